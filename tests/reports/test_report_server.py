"""The web server over a store, asked over a real socket."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from report_run_factory import make_run

from reports.index_page import PAGES
from reports.server import inside, make_server
from stormproof.errors import HistoryError, UsageError


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "secret.json").write_text("{}")
    store = tmp_path / "store"
    make_run(store, operations=300)
    return store


@pytest.fixture
def server(store: Path) -> Iterator[ThreadingHTTPServer]:
    with make_server(store, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: ThreadingHTTPServer, path: str, method: str = "GET", host: str | None = None
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{server.server_address[1]}")
        connection.endheaders()
        response = connection.getresponse()
        return response.status, response.read(), {name.lower(): value for name, value in response.getheaders()}
    finally:
        connection.close()


@pytest.mark.requirement("H10", part=True)
def test_index_report_and_raw_files_are_served_with_their_types(server: ThreadingHTTPServer) -> None:
    types = {
        "/": "text/html; charset=utf-8",
        "/index.html": "text/html; charset=utf-8",
        "/run-1/report.html": "text/html; charset=utf-8",
        "/run-1/history.parquet": "application/vnd.apache.parquet",
        "/run-1/run.json": "application/json",
        "/run-1/ledger.jsonl": "text/plain; charset=utf-8",
        "/run-1/logs/n1.log": "text/plain; charset=utf-8",
    }
    for path, kind in types.items():
        status, body, headers = ask(server, path)
        assert (status, headers["content-type"]) == (200, kind), path
        assert len(body) == int(headers["content-length"]) > 0
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_head_sends_headers_only(server: ThreadingHTTPServer) -> None:
    status, body, headers = ask(server, "/run-1/run.json", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.json",
        "/run-1/../../secret.json",
        "/%2e%2e/secret.json",
        "/..%2fsecret.json",
        "/run-1/%2e%2e%2f%2e%2e%2fsecret.json",
        "/run-1/..\\..\\secret.json",
        "//secret.json/../../secret.json",
        "/run-1/%00.json",
        "/run-1/link.json",
        "/run-1/.index-cache.json",
        "/.index-rows.jsonl",
        "/.index-lock",
        "/run-1/evil.js",
        "/index/evil.js",
        "/rows-00112233445566778899.js",
        "/run-1/lock",
        "/run-1/logs/",
        "/run-1/logs/n1.html",
        "/run-1",
        "/nowhere/report.html",
        "/run-1/%ff.json",
        "/" + "a" * 5000 + ".json",
    ],
)
def test_nothing_outside_the_store_and_nothing_hidden_is_served(
    server: ThreadingHTTPServer, store: Path, path: str
) -> None:
    (store / "run-1" / "link.json").symlink_to(store.parent / "secret.json")
    (store / "index").mkdir()
    for script in ("run-1/evil.js", "index/evil.js", "rows-00112233445566778899.js"):
        (store / script).write_text("alert(1)")
    (store / "run-1" / "lock").write_text("1")
    (store / "run-1" / "logs" / "n1.html").write_text("<script>1</script>")
    ask(server, "/")
    assert ask(server, path)[0] == 404


def test_a_link_that_stays_inside_the_store_is_served(store: Path) -> None:
    (store / "run-1" / "inner.json").symlink_to(store / "run-1" / "run.json")
    assert inside(store, ["run-1", "inner.json"]) is not None


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_reading_is_allowed(server: ThreadingHTTPServer, method: str) -> None:
    assert ask(server, "/", method)[0] == 501


def test_a_foreign_host_name_is_refused(server: ThreadingHTTPServer) -> None:
    assert ask(server, "/", host="evil.example:80")[0] == 403
    for name in ("localhost", "LOCALHOST", "LocalHost"):
        assert ask(server, "/", host=f"{name}:{server.server_address[1]}")[0] == 200


@pytest.mark.parametrize("host", ["LOCALHOST", "127.0.0.1", "127.0.0.2"])
def test_every_loopback_address_is_served_under_its_own_names_only(store: Path, host: str) -> None:
    with make_server(store, host, 0) as one:
        threading.Thread(target=one.serve_forever, daemon=True).start()
        address, port = one.server_address[:2]
        try:
            for name, status in (("evil.example", b"403"), (host, b"200")):
                with socket.create_connection((str(address), port), timeout=10) as asked:
                    asked.sendall(f"GET / HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n".encode())
                    assert asked.recv(12).endswith(status)
        finally:
            one.shutdown()


@pytest.mark.requirement("H10", part=True)
def test_index_and_report_follow_the_runs(server: ThreadingHTTPServer, store: Path) -> None:
    assert b'"run-2"' not in ask(server, "/")[1]
    make_run(store, "run-2", operations=300)
    assert b'"run-2"' in ask(server, "/")[1]
    assert b"were lost" in ask(server, "/run-2/report.html")[1]
    verdict = json.loads((store / "run-2" / "verdict.json").read_text()) | {"sentence": "Checked anew."}
    (store / "run-2" / "verdict.json").write_text(json.dumps(verdict))
    later = (store / "run-2" / "report.html").stat().st_mtime_ns + 10**9
    os.utime(store / "run-2" / "verdict.json", ns=(later, later))
    assert b"Checked anew." in ask(server, "/run-2/report.html")[1]


@pytest.mark.requirement("H22", part=True)
def test_other_pages_over_the_store_follow_runs_and_nights(store: Path) -> None:
    written: list[int] = []

    def others(where: Path) -> None:
        written.append(len(list(where.glob("*/run.json"))))
        for name in PAGES:
            (where / name).write_text(f"{name} {len(written)}")

    with make_server(store, "127.0.0.1", 0, others=others) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            assert b'href="matrix.html"' in ask(server, "/")[1]
            assert [ask(server, f"/{name}")[1].decode() for name in PAGES] == [f"{name} 1" for name in PAGES]
            make_run(store, "run-2", operations=100)
            assert ask(server, "/trend.html")[1] == b"trend.html 2"
            (store / "nights" / "one").mkdir(parents=True)
            (store / "nights" / "one" / "results.jsonl").write_text("{}")
            assert ask(server, "/triage.html")[1] == b"triage.html 3"
            assert ask(server, "/triage.html")[1] == b"triage.html 3"
            (store / "matrix.html").unlink()
            status, body, headers = ask(server, "/matrix.html")
            assert (status, body) == (200, b"matrix.html 4")
            assert "sandbox" not in headers["content-security-policy"]
            assert ask(server, "/other.html")[0] == 404
        finally:
            server.shutdown()
            thread.join()
    assert written == [1, 2, 2, 2]


def test_pages_and_scripts_that_a_stranger_left_in_a_store_are_not_served(
    server: ThreadingHTTPServer, store: Path
) -> None:
    (store / "trend.html").write_text("<script>alert(1)</script>")
    assert ask(server, "/trend.html")[0] == 404
    part = store / "index" / "rows-00112233445566778899.js"
    part.parent.mkdir()
    for text, sent in (
        (f'stormproofRows("{part.name}",{{"words":["</script>"]}});\n//00000000\n',
         f'stormproofRows("{part.name}",{{"words":["\\u003c/script\\u003e"]}});'),
        (f'stormproofRows("{part.name}",[1]);\nalert(1)', f'stormproofRows("{part.name}",[1]);'),
        (f'stormproofRows("{part.name}",[alert(1)]);', None), ("alert(1)", None), ('stormproofRows("",[]);', None),
        (f'stormproofRows("{part.name}",[]);alert(1);(0);', None),
        (f'stormproofRows("{part.name}",' + "[" * 10**6, None),
    ):  # fmt: skip
        part.write_text(text)
        status, body, headers = ask(server, f"/index/{part.name}")
        assert (status, body.decode() if status == 200 else None) == (404 if sent is None else 200, sent)
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_a_report_that_cannot_be_made_is_an_error_page_not_a_crash(server: ThreadingHTTPServer, store: Path) -> None:
    (store / "odd").mkdir()
    (store / "odd" / "verdict.json").write_text("{}")
    status, body, _ = ask(server, "/odd/report.html")
    assert (status, body.count(b"\n")) == (500, 1)
    assert ask(server, "/")[0] == 200


def test_a_port_in_use_is_one_clear_line(store: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError) as caught:
        make_server(store, "127.0.0.1", taken.getsockname()[1])
    assert "--port" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 99999), ("no such host", 0)])
def test_an_address_that_cannot_be_is_one_clear_line(store: Path, host: str, port: int) -> None:
    with pytest.raises(UsageError) as caught:
        make_server(store, host, port)
    assert "\n" not in str(caught.value)


def test_a_store_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="--store"):
        make_server(tmp_path / "nowhere", "127.0.0.1", 0)


def test_interrupting_ends_it_cleanly(store: Path) -> None:
    code = "import sys, pathlib; from reports.server import serve; serve(pathlib.Path(sys.argv[1]), port=0)"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(store)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        assert b"http://127.0.0.1:" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 0
        assert child.stderr.read() == b""


@pytest.mark.requirement("H22", part=True)
def test_programs_ask_for_runs_and_counts(server: ThreadingHTTPServer, store: Path) -> None:
    make_run(store, name="run-2", operations=20)
    status, body, headers = ask(server, "/api/runs?limit=1")
    told = json.loads(body)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert told["total"] == 2 and len(told["runs"]) == 1
    first = told["runs"][0]
    status, body, _ = ask(server, f"/api/runs?offset=1&verdict={first['verdict']}&system={first['system']}")
    assert [run["run"] for run in json.loads(body)["runs"]] != [first["run"]]
    assert json.loads(ask(server, "/api/runs?verdict=nothing")[1]) == {"total": 0, "offset": 0, "runs": []}
    status, body, headers = ask(server, "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r'[a-z_]+\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*\} \d+', line) for line in lines)
    assert sum(int(line.split()[-1]) for line in lines if line.startswith("stormproof_runs{")) == 2
    assert ask(server, "/metrics", "HEAD")[1] == b""


@pytest.mark.parametrize("query", ["limit=-1", "limit=x", "limit=99999999", "nosuch=1", "limit=1&" * 50, "offset="])
def test_a_question_that_makes_no_sense_is_told(query: str, server: ThreadingHTTPServer) -> None:
    status, body, _ = ask(server, f"/api/runs?{query}")
    assert status == 400 and body.count(b"\n") == 1


def test_counts_of_a_strangers_run_stay_lines_of_their_own(server: ThreadingHTTPServer, store: Path) -> None:
    run = json.loads((store / "run-1" / "run.json").read_text())
    run["test"]["system"] = 'x"} 5\nstormproof_runs{system="y\\'
    (store / "run-1" / "run.json").write_text(json.dumps(run))
    lines = ask(server, "/metrics")[1].decode().splitlines()
    assert len(lines) == 6 and not any(line.startswith('stormproof_runs{system="y') for line in lines)
