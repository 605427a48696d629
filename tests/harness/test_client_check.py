"""`stormproof client check`: what each kind of broken client program is told."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from loopback import free_ports

from harness.contract.command import check_client
from harness.contract.core import FAILED, OK, SKIPPED, ItemOutcome
from harness.contract.program_check import FORM, WITH_BROKER, check_program
from stormproof.clients import exec as exec_client
from stormproof.clients.exec import connect_values
from stormproof.clients.program import Hello
from stormproof.contracts.protocol_client import Access, BrokerSetup
from stormproof.errors import UsageError

pytestmark = pytest.mark.requirement("H26", part=True)

CLIENT = Path(__file__).resolve().parents[2] / "docs/examples/clients/beanstalk_client.py"
HELLO = """print('{"stormproof": 1, "can": ["queues"]}', flush=True)"""
LOOP = f"""
import json, sys, time
{HELLO}
for line in sys.stdin:
    request = json.loads(line)
    ANSWER
"""


async def outcomes(tmp_path: Path, text: str) -> dict[str, ItemOutcome]:
    file = tmp_path / "client.py"
    file.write_text(text)
    found: list[ItemOutcome] = []
    await check_program(shlex.join([sys.executable, str(file)]), None, Access(), found.append)
    assert [each.name for each in found] == [item.name for item in (*FORM, *WITH_BROKER)]
    assert all("\n" not in each.told + each.where + each.advice for each in found)
    return {each.name: each for each in found}


@pytest.mark.parametrize(("broker", "told"), [
    ("foo", "--broker 'foo': write it as HOST:PORT"), ("127.0.0.1:99999", "write it as HOST:PORT"),
    ("", "say where the system runs: --broker HOST:PORT"), ("a:1,b:2", "--broker a:1,b:2: name one broker"),
    ("127.0.0.1:{}", "no broker accepts connections there: Connection refused"),
    (f"{'x' * 70}.lab:1", "no broker accepts connections there"),
])  # fmt: skip
def test_a_broker_that_is_not_there_is_told_before_anything_is_tried(
    broker: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise each item would fail, with a remedy that has nothing to do with it."""
    with pytest.raises(UsageError, match=re.escape(told)) as found:
        check_client(str(CLIENT), broker.format(*free_ports(1)), as_json=False)
    assert "--attach" not in str(found.value) and "\n" not in str(found.value) and not capsys.readouterr().out


@pytest.mark.parametrize(("answer", "told"), [
    ("print(json.dumps({'id': request['id'], 'ok': None}), flush=True)", "the answer was ok"),
    ("print('connected', flush=True)", "a line of the client program is not JSON in UTF-8: 'connected'"),
    ("print(json.dumps({'id': 1 + request['id'], 'fail': 'x'}), flush=True)", "has the id 2, and no request waits"),
    ("print('x' * (17 << 20), flush=True)", "a line of the client program has more than 16777216 bytes"),
    ("sys.exit('no connection')", "the client program ended with status 1"),
])
async def test_what_is_wrong_with_answers_is_told(tmp_path: Path, answer: str, told: str) -> None:
    found = await outcomes(tmp_path, LOOP.replace("ANSWER", answer))
    assert found["first-line"].status == OK and found["end"].status == OK
    for name in ("refused", "unknown-fields", "long-line"):
        assert found[name].status == FAILED and told in found[name].told and found[name].advice
    assert all(found[item.name].status == SKIPPED for item in WITH_BROKER)
    if "exit" in answer:
        assert found["refused"].where.endswith("client.py: no connection")


async def test_silence_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.contract.program_check.CALL_SECONDS", 0.2)
    monkeypatch.setattr("harness.contract.program_check.END_SECONDS", 0.2)
    found = await outcomes(tmp_path, f"import time\n{HELLO}\ntime.sleep(60)\n")
    assert "no answer within 0.2 s" in found["refused"].told
    assert found["end"].told == "it still runs 0.2 s after the end of its standard input"


@pytest.mark.parametrize(("text", "told"), [
    ("print('hello')", "its first line is not JSON in UTF-8: 'hello'"),
    ("raise SystemExit('no library')",
     "it ended before its first line; the last line of its standard error: no library"),
    ("""print('{"stormproof": 1, "can": ["queue"]}')""", "its first line announces 'queue'"),
])
async def test_a_wrong_first_line_is_told_and_nothing_else_is_tried(tmp_path: Path, text: str, told: str) -> None:
    found = await outcomes(tmp_path, text)
    assert found["first-line"].status == FAILED and told in found["first-line"].told
    assert {each.status for name, each in found.items() if name != "first-line"} == {SKIPPED}


async def test_short_lines_and_strict_fields_are_told(tmp_path: Path) -> None:
    """Programs that stop at 64 KiB, as many libraries do, or at a field that they don't know."""
    answer = "print(json.dumps({'id': request['id'], 'fail': 'refused'}), flush=True)"
    short = LOOP.replace("ANSWER", answer).replace("in sys.stdin", "in iter(lambda: sys.stdin.readline(65536), '')")
    found = await outcomes(tmp_path, short)
    assert {name for name, each in found.items() if each.status == FAILED} == {"long-line"}
    found = await outcomes(tmp_path, LOOP.replace("ANSWER", f"assert 'later' not in request\n    {answer}"))
    assert {name for name, each in found.items() if each.status == FAILED} == {"unknown-fields", "long-line"}


@pytest.mark.skipif(not shutil.which("beanstalkd"), reason="apt-get install beanstalkd")
def test_the_pages_client_with_a_broker() -> None:
    """All that it announces works, as the command says; without a broker, or without a program, one line says so."""
    (port,) = free_ports(1)
    broker = subprocess.Popen(["beanstalkd", "-l", "127.0.0.1", "-p", str(port)])
    try:
        until = time.monotonic() + 10
        while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < until:
            time.sleep(0.05)
        done = _command(str(CLIENT), "--broker", f"127.0.0.1:{port}", "--json")
        found = {item["name"]: item["status"] for item in json.loads(done.stdout)["items"]}
        assert done.returncode == 0, done.stdout + done.stderr
        assert {name for name, status in found.items() if status == OK} == {
            "first-line", "refused", "unknown-fields", "long-line", "end", "send-take", "depth",
            "depth-unacknowledged", "take-empty", "redelivery"}  # fmt: skip
    finally:
        broker.kill()
        broker.wait()
    done = _command(str(CLIENT), "--broker", f"127.0.0.1:{port}")
    assert done.returncode == 3 and f"--broker 127.0.0.1:{port}: no broker accepts connections" in done.stderr
    done = _command("./no-such-client")
    assert done.returncode == 3 and done.stderr.count("\n") == 1 and "no program './no-such-client'" in done.stderr


def _command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "stormproof", "client", "check", *words], capture_output=True,
                          text=True, timeout=120, check=False, env={**os.environ, "COLUMNS": "200"})  # fmt: skip


def test_the_page_has_the_program_as_it_is_tested() -> None:
    page = (CLIENT.parents[2] / "clients.md").read_text()
    assert f"```python\n{CLIENT.read_text()}```\n" in page


def test_the_page_names_every_request_and_field() -> None:
    """The tables have what the code sends, and the first line's fields."""
    page = (CLIENT.parents[2] / "clients.md").read_text()
    requests = set(re.findall(r'_(?:ask|nothing|truth)\(\s*"(\w+)"', Path(exec_client.__file__).read_text()))
    requests |= {"ack", "give_back", "close", "connect"}
    fields = [field.name for field in dataclasses.fields(Hello) if field.name != "can"]
    told = connect_values(BrokerSetup([]))
    for word in (*requests, *fields, *told, "stormproof", "can"):
        assert f"`{word}`" in page, word
    assert requests >= {"send", "take", "depth", "append", "read", "write", "cas", "acquire", "give_up", "release"}
