"""The picture of a queue that is not linearizable: linked from the run's report, and served."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from checker_histories import drained, sent, store_run, taken

from checkers.spark.job import check_and_store
from reports.run_page import write_report
from reports.server import make_server
from stormproof.run_folder import is_picture, picture_name, pictures

A = (0, 0)
LINK = '<a href="linearizability-0.html">Picture of queue 0</a>'


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run_dir = store_run(tmp_path / "store" / "r", [*sent(0, A), *taken(1, A), *taken(2, A), *drained()])
    check_and_store(run_dir)
    return run_dir


@pytest.fixture
def server(run_dir: Path) -> Iterator[ThreadingHTTPServer]:
    with make_server(run_dir.parent, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: ThreadingHTTPServer, path: str) -> tuple[int, bytes, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(), response.headers["Content-Security-Policy"]
    finally:
        connection.close()


def test_the_report_links_the_picture(run_dir: Path) -> None:
    page = write_report(run_dir).read_text(encoding="utf-8")
    assert page.count(LINK) == 2  # with the anomaly and in the table of checks


def test_the_report_links_no_picture_that_is_not_there(run_dir: Path) -> None:
    (run_dir / "linearizability-0.html").unlink()
    assert "linearizability-0.html" not in write_report(run_dir).read_text(encoding="utf-8")


def test_a_verdict_cannot_make_the_report_link_elsewhere(run_dir: Path) -> None:
    text = (run_dir / "verdict.json").read_text()
    (run_dir / "verdict.json").write_text(text.replace("linearizability-0.html", "javascript:alert(1)"))
    page = write_report(run_dir).read_text(encoding="utf-8")
    assert 'href="javascript' not in page


def test_the_server_gives_the_picture_and_lets_it_reach_no_network(server: ThreadingHTTPServer, run_dir: Path) -> None:
    status, body, policy = ask(server, "/r/linearizability-0.html")
    assert (status, body) == (200, (run_dir / "linearizability-0.html").read_bytes())
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    "path",
    ["/r/linearizability-1.html", "/r/linearizability-x.html", "/linearizability-0.html",
     "/r/logs/linearizability-0.html", "/r/linearizability-0.html.html", "/r/.linearizability-0.html"],
)  # fmt: skip
def test_the_server_gives_no_other_page(server: ThreadingHTTPServer, run_dir: Path, path: str) -> None:
    (run_dir / "logs").mkdir()
    for place in ("linearizability-x.html", "logs/linearizability-0.html", "../linearizability-0.html",
                  "linearizability-0.html.html", ".linearizability-0.html"):  # fmt: skip
        (run_dir / place).write_text("<script>1</script>")
    assert ask(server, path)[0] == 404


def test_names_of_pictures(tmp_path: Path) -> None:
    assert [picture_name(key) for key in (-1, 0, 12)] == [
        "linearizability-none.html", "linearizability-0.html", "linearizability-12.html"]  # fmt: skip
    for key in (-1, 2, 12, 0):
        (tmp_path / picture_name(key)).touch()
    (tmp_path / "linearizability-x.html").touch()
    assert pictures(tmp_path) == [picture_name(key) for key in (0, 2, 12, -1)]
    assert not any(map(is_picture, ("linearizability-٣.html", "linearizability-0.html\n", "linearizability--1.html")))
