"""Elements of clustered destinations on several servers, as state machines that exchange messages."""

from __future__ import annotations

import random
import sqlite3
from typing import Any

import pytest

from nodes.reference.api import Command, Config, ConfigError, Deliver
from nodes.reference.config import parse_config
from nodes.reference.engine.engine import StoreEngine

SERVERS = (0, 1, 2)
CLUSTERED = {"/queue/q": list(SERVERS), "/topic/t": list(SERVERS), "/queue/pair": [0, 1]}


class World:
    """Three servers whose messages to each other arrive when ``exchange`` is called, or some of them."""

    def __init__(self) -> None:
        self.databases = [sqlite3.connect(":memory:", isolation_level=None) for _ in SERVERS]
        self.engines = [self.engine(server) for server in SERVERS]
        self.taken: dict[int, list[bytes]] = {server: [] for server in SERVERS}
        self.done: list[bytes] = []
        self._awaiting: dict[int, list[tuple[str, bytes]]] = {server: [] for server in SERVERS}
        for server in SERVERS:
            self.run(server, "open", "c", reliable=False, login="guest")

    def engine(self, server: int) -> StoreEngine:
        others = {other: [("h", 1)] for other in SERVERS if other != server}
        config = Config(f"n{server}", "standalone", "", server=server, servers=others, clustered=CLUSTERED)
        return StoreEngine(self.databases[server], config=config)

    def restart(self) -> None:
        self.engines = [self.engine(server) for server in SERVERS]

    def run(self, on: int, kind: str, conn: str = "", /, **args: Any) -> None:
        for effect in self.engines[on].apply(Command(kind, conn, 0, args)):
            if isinstance(effect, Deliver):
                self.taken[on].append(effect.body)
                self._awaiting[on].append((effect.ack_id, effect.body))
        self.engines[on].flush()

    def send(self, server: int, body: str, destination: str = "/queue/q") -> None:
        self.run(server, "send", "c", destination=destination, headers={}, body=body.encode())

    def consume(self, server: int, destination: str = "/queue/q", prefetch: int = 2) -> None:
        self.run(server, "subscribe", "c", id=destination, destination=destination, ack="client-individual",
                 prefetch=prefetch)

    def acknowledge(self, server: int) -> None:
        waiting, self._awaiting[server] = self._awaiting[server], []
        for ack, body in waiting:
            self.run(server, "ack", "c", id=ack)
            self.done.append(body)

    def leave(self, server: int) -> None:
        """The consumer goes, with messages that it has not acknowledged."""
        self.run(server, "unsubscribe", "c", id="/queue/q")
        self._awaiting[server] = []

    def step(self, source: int, target: int) -> bool:
        """One message goes from one server to another."""
        peer = self.engines[source].server_queues.peer(target)
        message = next(iter(peer.outgoing.values()), None)
        if message is None:
            return False
        headers, body = self.engines[source].server_queues.content(message)
        self.run(target, "external", server=source, sequence=message.sequence, destination=message.destination,
                 headers=headers, body=body)
        self.run(source, "forwarded", server=target, sequence=message.sequence)
        return True

    def exchange(self, limit: int = 1000) -> int:
        """Until nothing is under way; how many messages it took."""
        count = 0
        while sum(self.step(source, target) for source in SERVERS for target in SERVERS):
            count += 1
            assert count < limit, "the servers send each other messages for ever"
        return count


@pytest.mark.requirement("J19", part=True)
def test_an_element_without_consumers_gives_to_one_that_has_them():
    world = World()
    for number in range(10):
        world.send(number % 2, str(number))
    world.exchange()
    world.consume(2)
    for _ in range(20):
        world.exchange()
        world.acknowledge(2)
    assert sorted(world.done) == sorted(str(number).encode() for number in range(10))
    assert sum(engine.depths().get("q", 0) for engine in world.engines) == 0


@pytest.mark.requirement("J19", part=True)
def test_an_element_serves_its_own_consumers_first_and_idle_elements_come_to_rest():
    world = World()
    world.consume(0)
    world.consume(1)
    world.exchange()
    assert world.exchange() == 0
    world.send(0, "a")
    assert world.taken == {0: [b"a"], 1: [], 2: []}
    for body in "bcde":
        world.send(0, body)
    world.exchange()
    assert (len(world.taken[0]), len(world.taken[1])) == (2, 2)
    assert world.engines[0].depths()["q"] + world.engines[1].depths()["q"] == 5
    assert world.exchange() == 0


@pytest.mark.requirement("J19", part=True)
@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_order_nothing_is_lost_and_nothing_comes_twice(seed: int):
    rng, world = random.Random(seed), World()
    sent = 0
    subscribed: set[int] = set()
    for _ in range(300):
        action = rng.choice(["send", "send", "step", "step", "step", "ack", "consume", "leave", "restart"])
        server = rng.choice(SERVERS)
        if action == "send":
            world.send(server, f"{sent:03}")
            sent += 1
        elif action == "step":
            world.step(server, rng.choice(SERVERS))
        elif action == "ack":
            world.acknowledge(server)
        elif action == "consume" and server not in subscribed:
            world.consume(server, prefetch=rng.randint(1, 5))
            subscribed.add(server)
        elif action == "leave" and server in subscribed:
            world.leave(server)
            subscribed.remove(server)
        elif action == "restart":
            world.restart()
    for server in subscribed:
        world.leave(server)
    world.consume(rng.choice(SERVERS))
    for _ in range(sent + 20):
        world.exchange()
        for server in SERVERS:
            world.acknowledge(server)
    assert sorted(world.done) == [f"{number:03}".encode() for number in range(sent)]
    assert sum(engine.depths().get("q", 0) for engine in world.engines) == 0


@pytest.mark.requirement("J19", part=True)
def test_a_message_on_one_element_of_a_topic_reaches_the_subscribers_of_all():
    world = World()
    for server in SERVERS:
        world.consume(server, "/topic/t", prefetch=10)
    world.send(1, "a", "/topic/t")
    world.send(1, "b", "/topic/t")
    world.exchange()
    assert all(world.taken[server] == [b"a", b"b"] for server in SERVERS)


def test_servers_without_an_element_have_no_part_in_it():
    world = World()
    world.consume(2, "/queue/pair")
    world.send(0, "a", "/queue/pair")
    assert world.exchange() == 0
    assert world.engines[0].depths() == {"pair": 1}


def test_what_is_clustered_is_checked():
    base = {"node": "n", "design": "standalone", "data": "d", "servers": {"1": [["h", 1]]}}
    assert parse_config({**base, "clustered": {"/queue/q": [0, 1]}}).clustered == {"/queue/q": [0, 1]}
    for wrong in ([], {"q": [0, 1]}, {"/queue/q": [0, 2]}, {"/queue/q": 1}):
        with pytest.raises(ConfigError, match="clustered"):
            parse_config({**base, "clustered": wrong})
