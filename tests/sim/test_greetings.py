"""The rule about CONNECTED and ERROR, on frames as a broker sends them, and on the same with one thing wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodes.stomp import Frame, encode
from nodes.systems.reference.rules.exits import StopsInOrder
from nodes.systems.reference.rules.greetings import TellsClients
from nodes.systems.reference.wire_reader import LinkReader
from stormproof.contracts.invariant import Exit

GREETING = {"version": "1.2", "server": "s/1", "heart-beat": "100,100", "session": "n1-7", "x-replicas": "n1:1,n2:1"}
RELIABLE = GREETING | {"x-connection-id": "n1-7", "x-received": "3"}


def watcher(master: str | None = None, early: bool = False) -> Any:
    admission = SimpleNamespace(accepted=master is None, reason="", master=master, early=early)
    found = TellsClients()
    common = SimpleNamespace(admission=admission, names_replicas=True)
    found.inspect("n1", cast("Any", SimpleNamespace(common=common)))
    return found


def told(*pieces: bytes, master: str | None = None, early: bool = False) -> list[str]:
    reader, judge = LinkReader(), watcher(master, early)
    return [wrong for piece in pieces for frame in reader.feed(piece) if (wrong := judge.sent("n1", "c1", frame))]


def greeting(headers: dict[str, str]) -> bytes:
    return encode(Frame("CONNECTED", headers))


def refusal(reason: str, body: bytes | None = None, **headers: str) -> bytes:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return encode(Frame("ERROR", {"message": reason, "content-type": "text/plain", **named},
                        f"{reason}\n".encode() if body is None else body))


@pytest.mark.parametrize("right", [GREETING, RELIABLE])
def test_a_whole_greeting_is_right(right: dict[str, str]) -> None:
    assert not told(greeting(right))
    for name in right:
        less = {key: text for key, text in right.items() if key != name}
        assert told(greeting(less)), name
    for name in ("version", "heart-beat", *(["session", "x-connection-id"] if right is RELIABLE else [])):
        assert told(greeting({**right, name: "1.1"})), name
    assert told(greeting({**right, "x-else": "1"}))
    assert bool(told(greeting(right), early=True)) is (right is RELIABLE)
    assert bool(told(greeting({**right, "x-early": "true"}), early=True)) is (right is GREETING)


def test_a_refused_login_names_its_reason_and_the_master() -> None:
    assert not told(refusal("wrong login or passcode"))
    assert not told(refusal("not master", x_master="n2:1"), master="n2:1")
    assert told(refusal("not master"), master="n2:1")
    assert told(refusal("not master", x_master="n1:1"), master="n2:1")
    assert not told(refusal("supported protocol versions are 1.2", version="1.2"))
    assert told(refusal("supported protocol versions are 1.2"))
    assert told(refusal("wrong login or passcode", version="1.2"))
    assert told(refusal("")) and told(refusal("no", b"yes\n")) and told(refusal("no", x_else="1"))
    assert not told(refusal("connection closed", x_closed="idle", x_received="7"))
    assert not told(refusal("connection closed", x_closed="gap", x_received="7"))
    assert told(refusal("connection closed", x_closed="tired"))
    assert told(refusal("connection closed", x_received="7"))


def test_a_refused_command_closes_a_reliable_connection_and_says_so() -> None:
    assert not told(greeting(RELIABLE), refusal("no such id", receipt_id="r1", x_closed="error", x_received="3"))
    assert not told(greeting(RELIABLE), refusal("gap", receipt_id="r1", x_closed="gap", x_received="3"))
    assert told(greeting(RELIABLE), refusal("gap", receipt_id="r1", x_closed="error", x_received="3"))
    assert told(greeting(RELIABLE), refusal("no such id", receipt_id="r1"))
    assert told(greeting(RELIABLE), refusal("connection closed", x_closed="client", x_received="3"))
    assert not told(greeting(RELIABLE), refusal("the broker is shutting down"))
    assert not told(greeting(GREETING), refusal("no such id", receipt_id="r1"))
    assert told(greeting(GREETING), refusal("no such id", receipt_id="r1", x_closed="error", x_received="3"))


def test_nothing_follows_an_error() -> None:
    receipt = b"RECEIPT\nreceipt-id:r2\n\n\0"
    assert not told(greeting(GREETING), receipt + refusal("no"))
    assert told(greeting(GREETING), refusal("no") + receipt)
    assert told(greeting(GREETING), refusal("no"), receipt)


@pytest.mark.parametrize(("how", "wrong"), [
    (Exit(0, 0.1, sound=True), ""), (Exit(1, None, sound=True), ""), (Exit(1, 0.1, sound=False), ""),
    (Exit(0, 9.0, sound=False, left=("a listener at n1:1",)), ""),
    (Exit(1, 0.1, sound=True), "status 1"), (Exit(0, None, sound=False), "nobody asked"),
    (Exit(0, 4.0, sound=True), "still runs"), (Exit(0, 0.1, sound=True, left=("a listener at n1:1",)), "a listener"),
])  # fmt: skip
def test_an_orderly_stop(how: Exit, wrong: str) -> None:
    found = StopsInOrder().exited("n1", how)
    assert bool(found) is bool(wrong) and wrong in found
