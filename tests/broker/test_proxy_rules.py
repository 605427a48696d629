"""Consumers of other servers' destinations (HA Joram, 1.1.1), as two state machines that exchange messages."""

from __future__ import annotations

import random
import sqlite3
from typing import Any

import pytest

from nodes.reference.api import Command, Config, Deliver, Refused
from nodes.reference.bugs import edits as bug_edits
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.limits import Limits
from nodes.reference.engine.row_schema import ShapeError, check_command, check_row, check_state

THERE, OWN = 0, 1
QUEUE, TOPIC = "/server/0/queue/q", "/server/0/topic/t"


class World:
    """Server 0 has the destinations, client ``c`` is connected to server 1 and client ``d`` to server 0."""

    def __init__(self, **limits: int) -> None:
        self.limits = Limits(**limits)
        self.databases = [sqlite3.connect(":memory:", isolation_level=None) for _ in (THERE, OWN)]
        self.engines = [self.engine(server) for server in (THERE, OWN)]
        self.taken: list[Deliver] = []
        self.refused: list[str] = []
        for server, conn in ((OWN, "c"), (THERE, "d")):
            self.run(server, "open", conn, reliable=False, login="guest")

    def engine(self, server: int) -> StoreEngine:
        config = Config(f"n{server}", "standalone", "", server=server, servers={1 - server: [("h", 1)]})
        return StoreEngine(self.databases[server], self.limits, config)

    def restart(self) -> None:
        self.engines = [self.engine(server) for server in (THERE, OWN)]

    def run(self, on: int, kind: str, conn: str = "", /, **args: Any) -> list[Any]:
        command = Command(kind, conn, 0, args)
        check_command(*command)
        effects = self.engines[on].apply(command)
        self.engines[on].flush()
        self.taken += [effect for effect in effects if isinstance(effect, Deliver)]
        self.refused += [effect.reason for effect in effects if isinstance(effect, Refused)]
        return effects

    def step(self, source: int) -> bool:
        """One message goes from one server to the other."""
        queues = self.engines[source].server_queues
        message = next(iter(queues.peer(1 - source).outgoing.values()), None)
        if message is None:
            return False
        headers, body = queues.content(message)
        self.run(1 - source, "external", server=source, sequence=message.sequence, destination=message.destination,
                 headers=headers, body=body)
        if self.engines[1 - source].server_queues.peer(source).received < message.sequence:
            return False
        self.run(source, "forwarded", server=1 - source, sequence=message.sequence)
        return True

    def exchange(self) -> None:
        for _ in range(1000):
            if not self.step(THERE) and not self.step(OWN):
                return
        raise AssertionError("the servers send each other messages for ever")

    def send(self, body: str, destination: str = QUEUE) -> None:
        self.run(OWN, "send", "c", destination=destination, headers={"k": "v"}, body=body.encode())
        self.exchange()

    def consume(self, destination: str = QUEUE, conn: str = "c", **more: Any) -> None:
        args = {"id": "s", "destination": destination, "ack": "client-individual", "prefetch": 2, **more}
        self.run(OWN if conn == "c" else THERE, "subscribe", conn, **args)
        self.exchange()

    def ack(self, delivery: Deliver, kind: str = "ack", **more: Any) -> None:
        self.run(OWN if delivery.conn == "c" else THERE, kind, delivery.conn, id=delivery.ack_id, **more)
        self.exchange()

    def bodies(self) -> list[str]:
        """What clients were given since the last call."""
        taken, self.taken = self.taken, []
        return [delivery.body.decode() for delivery in taken]

    def depth(self) -> int:
        return self.engines[THERE].depths().get("q", 0)


@pytest.mark.requirement("J21", part=True)
def test_a_client_consumes_from_another_servers_queue_and_its_acknowledgement_ends_the_message_there():
    world = World()
    for number in range(4):
        world.send(str(number))
    world.consume()
    first, second = world.taken
    assert (first.body, first.destination, dict(first.headers)) == (b"0", QUEUE, {"k": "v"})
    assert world.bodies() == ["0", "1"] and world.depth() == 4
    world.ack(second)
    assert world.bodies() == ["2"] and world.depth() == 3
    world.restart()
    world.ack(first)
    assert world.bodies() == ["3"] and world.depth() == 2


@pytest.mark.requirement("J21", part=True)
def test_what_was_not_acknowledged_goes_back_in_its_order_when_the_consumer_goes():
    world = World()
    for number in range(3):
        world.send(str(number))
    world.consume(prefetch=3)
    world.ack(world.taken[1])
    world.bodies()
    world.run(OWN, "close", "c", reason="connection lost")
    world.exchange()
    world.consume("/queue/q", "d", prefetch=9)
    assert [(each.body, each.redeliveries) for each in world.taken] == [(b"0", 1), (b"2", 1)]
    assert list(world.engines[OWN].depths()) == [] and not world.engines[OWN].state.proxies
    assert list(world.engines[THERE].connections()) == ["d"]
    assert not [conn for conn in world.engines[THERE].state.contexts if conn != "d"]


@pytest.mark.requirement("J21", part=True)
def test_a_message_that_is_given_back_comes_again_and_says_so():
    world = World()
    world.send("a")
    world.consume()
    world.ack(world.taken.pop(), "nack")
    assert [(each.body, each.redeliveries) for each in world.taken] == [(b"a", 1)]


@pytest.mark.requirement("J21", part=True)
def test_acknowledgements_in_a_transaction_take_effect_there_at_its_commit():
    world = World()
    world.send("a")
    world.consume()
    world.run(OWN, "begin", "c", tx="t")
    world.ack(world.taken[0], tx="t")
    assert world.depth() == 1
    world.run(OWN, "commit", "c", tx="t")
    world.exchange()
    assert world.depth() == 0
    world.send("b")
    world.run(OWN, "begin", "c", tx="x", xid="x")
    world.ack(world.taken[-1], tx="x")
    world.run(OWN, "prepare", "c", tx="x")
    assert "distributed transaction" in world.refused[-1] and world.depth() == 1


@pytest.mark.requirement("J21", part=True)
def test_a_topic_of_another_server_and_a_durable_subscription_there():
    world = World()
    world.consume(TOPIC, durable="s1")
    world.send("a", TOPIC)
    assert [each.destination for each in world.taken] == [TOPIC]
    assert world.bodies() == ["a"]
    world.run(OWN, "unsubscribe", "c", id="s")
    world.exchange()
    world.send("b", TOPIC)
    world.consume(TOPIC, durable="s1")
    assert world.bodies() == ["a", "b"]
    world.run(OWN, "unsubscribe", "c", id="s", durable="s1")
    world.exchange()
    assert world.engines[THERE].depths() == {}


@pytest.mark.requirement("J21", part=True)
def test_what_the_other_server_refuses_ends_the_connection_with_its_reason():
    world = World()
    world.consume("/topic/t", "d", durable="s1")
    world.consume(TOPIC, durable="s1")
    assert world.refused == ["server 0: durable subscription s1 is in use"]
    assert list(world.engines[OWN].connections()) == []
    other = World()
    other.run(OWN, "subscribe", "c", id="s", destination="/server/7/queue/q", ack="auto", prefetch=1)
    assert other.refused == ["there is no server 7 in the configuration"]


def test_a_server_that_is_full_takes_the_delivery_when_it_has_room():
    world = World(max_messages=2)
    world.send("a")
    world.send("b")
    world.run(OWN, "send", "c", destination="/queue/mine", headers={}, body=b"x")
    world.consume(prefetch=2)
    assert world.bodies() == ["a"]
    world.restart()
    world.run(OWN, "subscribe", "c", id="mine", destination="/queue/mine", ack="client-individual", prefetch=1)
    world.ack(next(each for each in world.taken if each.body == b"x"))
    assert world.bodies() == ["x", "b"]


def test_a_delivery_for_a_former_subscription_of_that_name_is_not_taken_for_the_new_ones():
    world = World()
    world.send("a")
    subscribe = {"id": "s", "destination": QUEUE, "ack": "client-individual", "prefetch": 2}
    world.run(OWN, "subscribe", "c", **subscribe)
    assert world.step(OWN)  # delivered there, and on its way
    world.run(OWN, "unsubscribe", "c", id="s")
    world.run(OWN, "subscribe", "c", **subscribe)
    world.exchange()
    (delivery,) = world.taken
    world.ack(delivery)
    assert delivery.redeliveries == 1 and world.bodies() == ["a"] and world.depth() == 0


def test_what_makes_no_sense_changes_nothing():
    world = World()
    world.send("a")
    world.consume()
    held = world.bodies(), world.depth()
    nonsense = [
        ("subscribe", {}), ("subscribe", {"proxy": "9", "destination": "/x", "prefetch": "1", "login": "g"}),
        ("subscribe", {"proxy": "x", "destination": "/queue/q", "prefetch": "1"}), ("ack", {}),
        ("ack", {"proxy": "x", "id": "y"}), ("deliver", {}), ("deliver", {"proxy": "1"}), ("refuse", {"proxy": ""}),
        ("unsubscribe", {"proxy": "77"}), ("dance", {"proxy": "1"}),
        ("deliver", {"proxy": "3", "ack": "1-1", "message": "1", "redeliveries": "0", "destination": "/queue/q",
                     "headers": "[1"}),
    ]
    for server in (THERE, OWN):
        first = world.engines[server].server_queues.peer(1 - server).received + 1
        for sequence, (kind, headers) in enumerate(nonsense, first):
            world.run(server, "external", server=1 - server, sequence=sequence, destination=f"/proxy/{kind}",
                      headers=headers, body=b"")
    assert ([], world.depth()) == (world.bodies(), held[1]) and not world.refused


@pytest.mark.requirement("J21", part=True)
@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_order_nothing_is_lost_and_nothing_comes_after_its_acknowledgement(seed: int):
    assert not _explore(seed)


@pytest.mark.parametrize("bug", ["remote-ack-on-arrival", "remote-end-untold"])
def test_the_same_walk_finds_the_switchable_bugs(bug: str):
    bug_edits.switch([bug])
    try:
        assert any(_explore(seed) for seed in range(6))
    finally:
        bug_edits.switch([])


def _explore(seed: int) -> str:
    """What went wrong in a random walk, empty if nothing did."""
    rng, world = random.Random(seed), World()
    sent, acked, opened = 0, set(), True
    for _ in range(300):
        action = rng.choice(["send", "step", "step", "step", "ack", "nack", "subscribe", "leave", "close", "restart"])
        if action == "send":
            world.run(OWN, "send", "c", destination=QUEUE, headers={}, body=b"%d" % sent)
            sent += 1
        elif action == "step":
            world.step(rng.choice((THERE, OWN)))
        elif action in ("ack", "nack") and world.taken:
            delivery = world.taken.pop(rng.randrange(len(world.taken)))
            if delivery.body in acked:
                return f"{delivery.body!r} came again"
            world.run(OWN, action, "c", id=delivery.ack_id)
            acked |= {delivery.body} if action == "ack" else set()
        elif action == "subscribe" and "s" not in world.engines[OWN].state.contexts["c"].subscriptions:
            world.run(OWN, "subscribe", "c", id="s", destination=QUEUE, ack="client-individual",
                      prefetch=rng.randint(1, 4))
        elif action in ("leave", "close") and "s" in world.engines[OWN].state.contexts["c"].subscriptions:
            world.run(OWN, *(("unsubscribe", "c") if action == "leave" else ("close", "c")), **(
                {"id": "s"} if action == "leave" else {"reason": "connection lost"}))
            if action == "close":
                world.run(OWN, "open", "c", reliable=False, login="guest")
            world.taken.clear()
        elif action == "restart":
            world.restart()
        if rng.random() < 0.05:
            rows = list(world.engines[THERE].dump())
            for row in rows:
                check_row(row)
            _check(rows)
    world.run(OWN, "close", "c", reason="")
    world.exchange()
    world.taken.clear()
    world.consume("/queue/q", "d", prefetch=2000)
    left = {delivery.body for delivery in world.taken}
    if len(left) < len(world.taken) or left & acked:
        return "some came twice"
    return "" if len(left | acked) == sent and opened else f"{sent - len(left | acked)} lost"


def _check(rows: list[list[Any]]) -> None:
    tables: dict[str, dict[int, list[Any]]] = {}
    for row in rows:
        tables.setdefault(row[0], {})[row[1]] = row
    check_state(tables)


def test_a_client_cannot_speak_as_a_server():
    with pytest.raises(ShapeError):
        check_command("send", "c", 0, {"destination": "/server/0/proxy/ack", "headers": {}, "body": b""})
