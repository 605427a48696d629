"""Somebody is told of what is invalid: by a command, by a POST; trouble with that changes no verdict."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from harness.cli.outcomes import Outcome, Outcomes
from harness.nightly.notify import Notify
from stormproof.errors import UsageError

CONTENT = {"verdict": "invalid", "sentence": "1 lost; $(touch x) \0", "list": [1]}


@pytest.fixture
def listener() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response({"/ok": 204, "/moved": 302}.get(self.path, 500))
            self.send_header("Location", "/ok")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Stay quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", got
        server.shutdown()
        thread.join()


def test_a_command_is_told_by_its_environment_and_its_input(tmp_path: Path) -> None:
    program = tmp_path / "tell.py"
    program.write_text("import json, os, sys\ntold = os.environ\nopen(sys.argv[1], 'w').write(json.dumps("
                       "[told['STORMPROOF_SENTENCE'], 'STORMPROOF_LIST' in told, json.load(sys.stdin)]))")
    Notify(f"{sys.executable} {program} '{tmp_path}/a file'").tell(CONTENT)
    assert json.loads((tmp_path / "a file").read_text()) == ["1 lost; $(touch x) ", False, CONTENT]
    assert not Path("x").exists()


def test_an_address_gets_the_same(listener: tuple[str, list[tuple[str, bytes]]]) -> None:
    address, got = listener
    Notify(webhook=f"{address}/ok").tell(CONTENT)
    assert [(path, json.loads(body)) for path, body in got] == [("/ok", CONTENT)]


def test_trouble_is_told_and_changes_nothing(
    listener: tuple[str, list[tuple[str, bytes]]], capfd: pytest.CaptureFixture[str]
) -> None:
    address, got = listener
    for path in ("/moved?secret", "/broken?secret"):
        Notify(webhook=address + path).tell(CONTENT)
    Notify(webhook="http://127.0.0.1:1/secret").tell(CONTENT)
    assert [path for path, _ in got] == ["/moved?secret", "/broken?secret"]
    Notify("/no/such/program").tell(CONTENT)
    Notify(f"{sys.executable} -c 'raise SystemExit(4)'").tell(CONTENT)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 5 and not any("secret" in line for line in lines)
    assert lines[-1].endswith("ended with status 4")


@pytest.mark.parametrize(("command", "webhook"), [
    ("'", ""), ("  ", ""), ("", "ftp://x/y"), ("", "nonsense"), ("", "http://"), ("", "http://x:99999/"),
])  # fmt: skip
def test_what_makes_no_sense_is_told_at_once(command: str, webhook: str) -> None:
    with pytest.raises(UsageError, match=r"--on-invalid|--webhook"):
        Notify(command, webhook)


def test_only_invalid_runs_are_told(listener: tuple[str, list[tuple[str, bytes]]]) -> None:
    address, got = listener
    with Outcomes(notify=Notify(webhook=f"{address}/ok")) as outcomes:
        for verdict in ("valid", "unknown", "broken", "invalid"):
            outcomes.add(Outcome("g", "n", verdict, f"It is {verdict}.", told={"command": "again"}))
    assert [json.loads(body) for _, body in got] == [
        {"verdict": "invalid", "sentence": "It is invalid.", "test": "g", "name": "n", "command": "again"}]
