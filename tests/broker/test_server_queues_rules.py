"""What the state machine does with messages for and from other servers, and with reserved identifiers."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from nodes.reference.api import Arrived, Command, Config, Declined, Done, Refused, Waiting
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.limits import Limits

CONFIG = Config("n1", "standalone", "", server=3, servers={0: [("h", 1)], 7: [("h", 2)]})


class Machine:
    """An engine whose commands are committed one by one."""

    def __init__(self, **limits: int) -> None:
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        self.limits = Limits(**limits)
        self.engine = StoreEngine(self.database, self.limits, config=CONFIG)
        self.run("open", "c", reliable=False, login="guest")

    def run(self, kind: str, conn: str = "", **args: Any) -> list[Any]:
        effects = self.engine.apply(Command(kind, conn, 0, args))
        self.engine.flush()
        return effects

    def send(self, destination: str, body: str, **more: Any) -> list[Any]:
        return self.run("send", "c", destination=destination, headers={"a": "b"}, body=body.encode(), **more)

    def external(self, server: int, sequence: int, body: str = "x", destination: str = "/queue/q") -> list[Any]:
        return self.run("external", server=server, sequence=sequence, destination=destination, headers={},
                        body=body.encode())

    def waiting(self, server: int) -> list[tuple[int, str, bytes]]:
        server_queues = self.engine.server_queues
        return [(sequence, message.destination, server_queues.content(message)[1])
                for sequence, message in server_queues.peer(server).outgoing.items()]

    def bodies(self) -> list[bytes]:
        return [row[0] for row in self.database.execute("SELECT body FROM messages ORDER BY id")]

    def again(self) -> StoreEngine:
        """What a restart would find."""
        return StoreEngine(self.database, self.limits, config=CONFIG)


@pytest.mark.requirement("J2", part=True)
def test_a_message_for_another_server_is_kept_in_order_until_it_is_safe_there():
    machine = Machine()
    assert Waiting(0, 1) in machine.send("/server/0/queue/q", "one")
    machine.send("/server/7/queue/q", "other")
    machine.send("/server/0/topic/t", "two")
    machine.send("/server/0/queue/q", "three")
    expected = [(1, "/queue/q", b"one"), (2, "/topic/t", b"two"), (3, "/queue/q", b"three")]
    assert machine.waiting(0) == expected
    assert machine.engine.depths() == {"/server/0/queue/q": 2, "/server/0/topic/t": 1, "/server/7/queue/q": 1}
    machine.run("forwarded", server=0, sequence=2)
    machine.run("forwarded", server=0, sequence=1)
    assert machine.waiting(0) == expected[2:]
    machine.engine = machine.again()
    assert machine.waiting(0) == expected[2:]
    machine.send("/server/0/queue/q", "four")
    assert [sequence for sequence, *_ in machine.waiting(0)] == [3, 4]
    assert machine.bodies() == []


@pytest.mark.requirement("J12", part=True)
def test_a_message_that_was_taken_is_discarded_when_it_comes_again():
    machine = Machine()
    assert machine.external(7, 1, "a") == [Arrived(7, 1)]
    assert machine.external(7, 2, "b") == [Arrived(7, 2)]
    assert machine.external(7, 1, "a") == [Arrived(7, 2)]
    assert machine.external(0, 1, "c") == [Arrived(0, 1)]
    machine.engine = machine.again()
    assert machine.external(7, 2, "b") == [Arrived(7, 2)]
    assert machine.bodies() == [b"a", b"b", b"c"]


@pytest.mark.requirement("J12", part=True)
def test_the_knowledge_of_other_servers_goes_with_the_state():
    machine, other = Machine(), Machine()
    machine.send("/server/0/queue/q", "one")
    machine.external(7, 1, "a")
    rows = list(machine.engine.dump())
    other.engine.load(rows)
    assert list(other.engine.dump()) == rows
    assert other.waiting(0) == [(1, "/queue/q", b"one")]
    assert other.external(7, 1, "a") == [Arrived(7, 1)]
    assert other.bodies() == [b"a"]


def test_a_gap_is_declined_unless_the_sender_has_nothing_before_it():
    machine = Machine()
    machine.external(7, 1)
    assert machine.external(7, 3) == [Declined(7, "number 3 came after 1")]
    machine.run("meet", server=7, first=3)
    machine.run("meet", server=7, first=2)
    assert machine.external(7, 3) == [Arrived(7, 3)]


def test_a_full_server_declines_and_takes_the_same_message_later():
    machine = Machine(max_messages=1)
    machine.external(7, 1, "a")
    (declined,) = machine.external(7, 2, "b")
    assert isinstance(declined, Declined) and "limit of 1 messages" in declined.reason
    (refused,) = machine.send("/server/0/queue/q", "c")
    assert isinstance(refused, Refused)
    machine.database.execute("DELETE FROM messages")
    machine.engine = machine.again()
    assert machine.external(7, 2, "b") == [Arrived(7, 2)]


def test_where_a_destination_is_is_decided_by_its_number():
    machine = Machine()
    machine.send("/server/3/queue/q", "mine")
    assert (machine.bodies(), machine.waiting(3)) == ([b"mine"], [])
    (refused,) = machine.send("/server/9/queue/q", "nowhere")
    assert isinstance(refused, Refused) and refused.reason == "there is no server 9 in the configuration"


@pytest.mark.requirement("J2", part=True)
def test_a_transaction_reaches_other_servers_at_its_commit_only():
    machine = Machine()
    machine.run("begin", "c", tx="t")
    machine.send("/server/0/queue/q", "one", tx="t")
    assert machine.waiting(0) == []
    effects = machine.run("commit", "c", tx="t")
    assert Waiting(0, 1) in effects and any(isinstance(effect, Done) for effect in effects)
    assert machine.waiting(0) == [(1, "/queue/q", b"one")]
    machine.run("begin", "c", tx="u")
    machine.send("/server/0/queue/q", "two", tx="u")
    machine.run("abort", "c", tx="u")
    assert len(machine.waiting(0)) == 1


@pytest.mark.requirement("J10", part=True)
def test_reserved_identifiers_never_meet_generated_ones_and_deploying_again_changes_nothing():
    machine = Machine()
    for _ in range(2):
        for number in (1, 2, 3):
            machine.run("deploy", id=-number, destination=f"/queue/made{number}")
    for number in range(20):
        machine.send(f"/queue/sent{number}", "x")
    rows = machine.database.execute("SELECT id, name FROM queues ORDER BY id").fetchall()
    assert rows[:3] == [(-3, "made3"), (-2, "made2"), (-1, "made1")]
    assert [identity for identity, _ in rows] == sorted({identity for identity, _ in rows})
    assert all(identity > 0 for identity, name in rows if name.startswith("sent"))
    assert list(machine.again().dump()) == list(machine.engine.dump())
