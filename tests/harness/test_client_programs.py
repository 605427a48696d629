"""Client programs: scripted ones say and do everything that a program may, and must not."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from served_client import CLIENT

from stormproof.client_log import MAX_BYTES, ClientLog
from stormproof.clients.exec import EXEC, in_program, words_of
from stormproof.clients.program import ProgramLost, announced, decode_bytes, encode_bytes
from stormproof.contracts.backend import Credentials
from stormproof.contracts.client import (
    Beating,
    LockConnection,
    LogConnection,
    LogEntry,
    NotDone,
    NotFound,
    Prefetching,
    RegisterConnection,
)
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup, ProtocolClient, Tls
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError

pytestmark = pytest.mark.requirement("H26", part=True)

SCRIPTED = r"""
import json, os, sys, time
hello, script = sys.argv[1], json.loads(sys.argv[2])
print(hello, flush=True)
print("started", file=sys.stderr, flush=True)
for line in sys.stdin:
    request = json.loads(line)
    answer = script.get(request["op"], {"ok": None})
    if isinstance(answer, list):  # one after the other
        answer = answer.pop(0) if len(answer) > 1 else answer[0]
    if answer == "exit":
        sys.exit(7)
    if answer == "silent":
        continue
    if answer == "request":
        print(json.dumps({**request, "place": os.environ["PLACE"]}), file=sys.stderr, flush=True)
        time.sleep(0.1)  # it is read before the answer
        answer = {"ok": None}
    if answer == "huge":
        print("x" * (17 << 20), flush=True)
        continue
    if isinstance(answer, str):
        print(answer, flush=True)
        continue
    print(json.dumps({"id": request["id"], **answer}), flush=True)
"""
ALL = '{"stormproof": 1, "can": ["queues", "logs", "registers", "locks"], "prefetch": 3, "heartbeat": 0.5}'


def setup(tmp_path: Path, hello: str = ALL, tell: Any = lambda line: None, **script: Any) -> BrokerSetup:
    file = tmp_path / "client.py"
    file.write_text(SCRIPTED)
    command = shlex.join([sys.executable, str(file), hello, json.dumps(script)])
    return BrokerSetup([], options={"command": command}, tell=tell)


async def connected(tmp_path: Path, **script: Any) -> Any:
    connection = EXEC.connection(setup(tmp_path, **script))
    await connection.connect("127.0.0.1", 5, "127.0.0.2")
    return connection


async def test_each_answer_of_each_request(tmp_path: Path) -> None:
    taken = {"delivery": "d1", "body": {"base64": "/w=="}, "number": 2, "age": 0.5, "give_back": True}
    connection = await connected(
        tmp_path, take=[{"ok": taken}, {"ok": {"delivery": 4, "body": "ä"}}, {"ok": None}],
        depth=[{"ok": 3}, {"ok": None}], append={"ok": 17},
        read=[{"ok": [{"offset": 1, "body": "a"}]}, {"ok": "v"}, {"ok": None}], cas={"ok": False},
        acquire=[{"ok": 5}, {"ok": None}], release={"ok": True}, ack={"fail": "gone", "missing": True})  # fmt: skip
    for kind in (LockConnection, LogConnection, RegisterConnection, Beating, Prefetching):
        assert isinstance(connection, kind)
    assert (connection.prefetch, connection.heartbeat) == (3, 0.5)
    assert await connection.send("q", b"x") is None
    before = asyncio.get_running_loop().time()
    delivery = await connection.take("q", 1.0)
    assert (delivery.body, delivery.number) == (b"\xff", 2)
    assert delivery.came is not None and abs(delivery.came - before + 0.5) < 0.5
    await delivery.give_back()
    with pytest.raises(NotFound, match="gone"):
        await delivery.ack()
    delivery = await connection.take("q", 1.0)
    assert (delivery.body, delivery.number, delivery.came, delivery.give_back) == ("ä".encode(), None, None, None)
    assert await connection.take("q", 1.0) is None
    assert [await connection.depth("q"), await connection.depth("q")] == [3, None]
    assert await connection.append("l", b"x") == 17
    assert await connection.read("l", 0, 10) == [LogEntry(1, b"a")]
    assert [await connection.read("r"), await connection.read("r")] == [b"v", None]
    assert await connection.cas("r", None, b"x") is False
    assert [await connection.acquire("k", 1.0), await connection.acquire("k", 1.0)] == [5, None]
    assert await connection.release("k") is True
    await connection.close()
    await connection.close()


async def test_what_a_program_is_told_when_it_connects(tmp_path: Path) -> None:
    lines: list[str] = []
    made = setup(tmp_path, tell=lines.append, connect="request")
    access = Access(Credentials("me", "secret"), "v", "PLAIN", Tls("ca", "cert", "key", "name"))
    made = replace(made, brokers=[Broker("n1", "127.0.0.1", 5)], access=access, demands=Demands(("q0",), logs=("l0",)),
                   hosts={"n1": "127.0.0.1"}, place_command=lambda local: ["env", f"PLACE={local}"])  # fmt: skip
    connection = EXEC.connection(made)
    await connection.connect("127.0.0.1", 5, "127.0.0.2")
    (told,) = [json.loads(line.split(" ", 1)[1]) for line in lines if '"op"' in line]
    command = told.pop("options").pop("command")
    assert command == made.options["command"]
    assert told == {
        "id": 1, "op": "connect", "host": "127.0.0.1", "port": 5, "local": "127.0.0.2", "place": "127.0.0.2",
        "addresses": [{"node": "n1", "host": "127.0.0.1", "port": 5}], "hosts": {"n1": "127.0.0.1"},
        "names": {"queues": ["q0"], "topics": [], "logs": ["l0"], "registers": [], "locks": []}, "login": "me",
        "password": "secret", "vhost": "v", "sasl": "PLAIN",
        "tls": {"ca": "ca", "cert": "cert", "key": "key", "name": "name"},
    }  # fmt: skip
    await connection.close()


async def test_only_what_is_announced_is_there(tmp_path: Path) -> None:
    connection = await connected(tmp_path, hello='{"stormproof": 1, "can": ["logs"]}')
    assert isinstance(connection, LogConnection) and not isinstance(connection, RegisterConnection)
    assert not hasattr(connection, "send") and not isinstance(connection, Prefetching)
    assert not isinstance(connection, Beating)
    await connection.close()


@pytest.mark.parametrize(("answer", "told"), [
    ({"error": "broken pipe"}, "broken pipe"),
    ({"ok": 1, "fail": "both"}, 'needs "ok", or a text "fail" or "error"'),
    ({"fail": None}, 'needs "ok", or a text "fail" or "error"'),
    ({}, 'needs "ok", or a text "fail" or "error"'),
    ({"ok": 7}, "answered 'send' with 7, not with null"),
    ("oops", "a line of the client program is not JSON in UTF-8: 'oops'"),
    ("[1]", "is not a JSON object: '[1]'"),
    ('{"id": 99, "ok": null}', "has the id 99, and no request waits for it"),
    ('{"ok": null}', "has the id null, and no request waits for it"),
    ('{"id": true, "ok": null}', "has the id true, and no request waits for it"),
    ("exit", "the client program ended with status 7"),
    ("huge", "a line of the client program has more than 16777216 bytes"),
])
async def test_after_anything_else_it_may_have_happened(tmp_path: Path, answer: Any, told: str) -> None:
    """The program is ended; what is asked of it later certainly does not happen."""
    connection = await connected(tmp_path, send=answer)
    process = connection._program._process
    with pytest.raises(ProgramLost) as caught:
        await connection.send("q", b"x")
    assert told in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(NotDone, match="was ended before"):
        await connection.send("q", b"x")
    await asyncio.wait_for(process.wait(), 5)
    await connection.close()


async def test_a_program_that_says_that_nothing_happened_goes_on(tmp_path: Path) -> None:
    connection = await connected(tmp_path, send=[{"fail": "refused"}, {"ok": None}])
    with pytest.raises(NotDone, match="refused"):
        await connection.send("q", b"x")
    await connection.send("q", b"x")
    await connection.close()


@pytest.mark.parametrize(("op", "answer"), [
    ("take", {"ok": {"body": "x"}}), ("take", {"ok": []}), ("take", {"ok": {"delivery": 1, "body": 5}}),
    ("take", {"ok": {"delivery": 1}}), ("take", {"ok": {"delivery": 1, "body": "x", "number": "1"}}),
    ("take", {"ok": {"delivery": 1, "body": "x", "age": -1}}), ("depth", {"ok": -1}), ("depth", {"ok": True}),
    ("append", {"ok": 0}), ("append", {"ok": 2**31}), ("append", {"ok": 1.0}),
    ("read", {"ok": [{"offset": 0, "body": ""}]}), ("read", {"ok": ["a"]}), ("read", {"ok": {}}),
    ("cas", {"ok": 1}), ("acquire", {"ok": "1"}), ("acquire", {"ok": True}), ("release", {"ok": None}),
])  # fmt: skip
async def test_a_wrong_value_is_no_answer(tmp_path: Path, op: str, answer: Any) -> None:
    connection = await connected(tmp_path, **{op: answer})
    calls = {
        "take": ("q", 1.0), "depth": ("q",), "append": ("l", b"x"), "read": ("l", 0, 1), "cas": ("r", b"a", b"b"),
        "acquire": ("k", 1.0), "release": ("k",),
    }  # fmt: skip
    with pytest.raises(ProgramLost):
        await getattr(connection, op)(*calls[op])
    with pytest.raises(NotDone):
        await connection.depth("q")
    await connection.close()


async def test_silence_ends_a_program_but_not_one_that_waits_for_a_lock(tmp_path: Path) -> None:
    connection = await connected(tmp_path, acquire="silent", send="silent")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connection.acquire("k", 1.0), 0.1)
    await connection.give_up("k")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connection.send("q", b"x"), 0.1)
    with pytest.raises(NotDone, match="no answer to 'send' in time"):
        await connection.take("q", 1.0)
    await connection.close()


async def test_a_holder_that_stands_still_is_stopped(tmp_path: Path) -> None:
    connection = await connected(tmp_path)
    pid = connection._program._process.pid
    still = asyncio.create_task(connection.stand_still(0.5))
    for _ in range(1000):
        if _state(pid) == "T":
            break
        await asyncio.sleep(0)
    assert _state(pid) == "T"
    asking = asyncio.create_task(connection.send("q", b"x"))
    await still
    await asking
    assert _state(pid) != "T"
    await connection.close()


@pytest.mark.parametrize(("hello", "told"), [
    ("", "its first line is not JSON in UTF-8"),
    ("hello", "its first line is not JSON in UTF-8: 'hello'"),
    ("[]", "its first line is not a JSON object"),
    ('{"can": ["queues"]}', 'its first line needs "stormproof": 1, the version of the protocol, not null'),
    ('{"stormproof": 2, "can": ["queues"]}', "not 2"),
    ('{"stormproof": 1}', 'its first line needs "can", a list of texts, not null'),
    ('{"stormproof": 1, "can": ["queue"]}', "its first line announces 'queue'; known: queues, logs"),
    ('{"stormproof": 1, "can": ["prepare"]}', "needs at least one of queues, logs, registers, locks"),
    ('{"stormproof": 1, "can": ["queues"], "prefech": 1}', "its first line has 'prefech'; known: stormproof, can,"),
    ('{"stormproof": 1, "can": ["queues"], "prefetch": 1.5}', "its first line's 'prefetch' must be a whole number"),
    ('{"stormproof": 1, "can": ["locks"], "session": "2"}', "its first line's 'session' must be a number of 0 or more"),
])
def test_a_wrong_first_line_is_told(tmp_path: Path, hello: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        EXEC.features(setup(tmp_path, hello).options)
    assert told in str(caught.value) and "stormproof client check" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_program_that_is_not_there_ends_or_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^no program is named: give its path, as in exec:\./client$"):
        words_of(" ")
    with pytest.raises(UsageError, match=r"no program '\./no-such-client' here"):
        EXEC.features({"command": "./no-such-client"})
    with pytest.raises(UsageError, match="No closing quotation"):
        EXEC.features({"command": "./a 'b"})
    with pytest.raises(UsageError, match="needs a program"):
        EXEC.features({})
    with pytest.raises(ProgramLost, match=r"it ended before its first line; .*: no module named so"):
        announced(["sh", "-c", "echo no module named so >&2; exit 1"])
    with pytest.raises(ProgramLost, match="did not write its first line in time"):
        announced(["sleep", "60"], seconds=0.1)
    with pytest.raises(UsageError, match="announces no port"):
        EXEC.port_of(setup(tmp_path).options, False)
    assert EXEC.port_of(setup(tmp_path, '{"stormproof": 1, "can": ["logs"], "port": 4222}').options, False) == 4222


async def test_its_standard_error_is_kept(tmp_path: Path) -> None:
    log = ClientLog(tmp_path / "clients.log")
    connection = EXEC.connection(setup(tmp_path, tell=log, send={"error": "gone"}))
    await connection.connect("127.0.0.1", 5, "10.0.0.7")
    with pytest.raises(ProgramLost):
        await connection.send("q", b"x")
    await connection.close()
    lines = [line.split(" ", 1)[1] for line in (tmp_path / "clients.log").read_text().splitlines()]
    assert lines == ["10.0.0.7 started", "10.0.0.7 (ended by the harness: gone)"]


def test_a_log_of_clients_has_an_end(tmp_path: Path) -> None:
    log = ClientLog(tmp_path / "clients.log")
    for _ in range(6):
        log("x" * (1 << 20))
    text = (tmp_path / "clients.log").read_text()
    assert len(text) <= MAX_BYTES + 100 and text.count("left out") == 1


async def test_children_of_a_program_end_with_it(tmp_path: Path) -> None:
    """A shell in between is ended together with the program that it started."""
    script = tmp_path / "wrapped"
    inner = setup(tmp_path).options["command"]
    script.write_text(f"#!/bin/sh\n{inner}\n:\n")
    script.chmod(0o755)
    connection = EXEC.connection(BrokerSetup([], options={"command": str(script)}))
    await connection.connect("127.0.0.1", 5, "")
    group = connection._program._process.pid
    assert len(_members(group)) == 2
    await connection.close()
    for _ in range(500):
        if not _members(group):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(_members(group))


def test_bodies() -> None:
    for body in (b"", b"1/2", "ä".encode(), b"\xff\x00", b"\xed\xa0\x80"):
        assert decode_bytes(encode_bytes(body)) == body
    assert encode_bytes(b"1/2") == "1/2"
    for wrong in (None, 1, {"base64": "?"}, {"base64": 1}, {"base64": "", "x": 1}, "\ud800"):
        with pytest.raises(ProgramLost, match="a body must be"):
            decode_bytes(wrong)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _members(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(entry.parent.name))
    return found



@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> ProtocolClient:
    """A Python client whose connections are programs."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return in_program("served_client:CLIENT", CLIENT)


async def test_a_python_client_runs_as_a_program(served: ProtocolClient, tmp_path: Path) -> None:
    """Every primitive, with the errors' meanings; what a library prints harms nothing."""
    lines: list[str] = []
    made = BrokerSetup([], Access(Credentials("me", "secret")), tell=lines.append)
    connection = served.connection(made)
    for kind in (LockConnection, LogConnection, RegisterConnection, Beating, Prefetching):
        assert isinstance(connection, kind)
    assert (connection.prefetch, connection.heartbeat) == (7, 0.25)
    await connection.connect("127.0.0.1", 5, "127.0.0.2")
    assert lines == ["127.0.0.2 a library prints 127.0.0.1 5 127.0.0.2 secret"]
    for body in (b"1/2", b"\xff"):
        await connection.send("q", body)
        delivery = await connection.take("q", 1.0)
        assert (delivery.body, delivery.number, delivery.give_back) == (body, 4, None)
        await delivery.ack()
    assert await connection.take("q", 1.0) is None and await connection.depth("q") == 0
    await connection.send("returns", b"x")
    await (await connection.take("returns", 1.0)).give_back()
    assert await connection.append("l", b"y") == 5 and await connection.read("l", 3, 1) == [LogEntry(4, b"y")]
    await connection.write("r", b"1")
    assert [await connection.cas("r", None, b"2"), await connection.cas("r", b"1", b"2")] == [False, True]
    assert [await connection.read("r"), await connection.read("none")] == [b"2", None]
    assert await connection.acquire("free", 1.0) == 9
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connection.acquire("taken", 1.0), 0.1)
    await connection.give_up("taken")
    assert [await connection.release("held"), await connection.release("lost")] == [True, False]
    with pytest.raises(NotDone, match="too large"):
        await connection.send("not done", b"x")
    with pytest.raises(NotFound, match="no such queue"):
        await connection.send("not found", b"x")
    with pytest.raises(ProgramLost, match="ConnectionResetError: reset"):
        await connection.send("maybe", b"x")
    await connection.close()
    assert await served.clear(made, ["q"]) == ["q", "asked here"]
