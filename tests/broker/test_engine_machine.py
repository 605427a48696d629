"""Random commands against a model, and against a twin that commits and restarts after every command.

The engine under test commits only now and then, so that its gathered changes meet each other.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nodes.reference import wire
from nodes.reference.api import Command, Deliver, Done, Effect, Refused
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.limits import Limits
from nodes.reference.engine.model import ACK_MODES, Message
from nodes.reference.engine.store import Changes, Row
from nodes.systems.reference.probes.engine import EngineProbe

QUEUES = ("red", "red", "red", "blue")
TOPICS = ("t.a", "t.b")
DEFERRED = (False, False, True)
SELECTED = {"t.a": ("t.a",), "t.*": TOPICS, ">": TOPICS, "t.b.>": ()}
DURABLES = ("p", "q")
Key = tuple[str, ...]
"""Where the model's messages are: ("queue", name), ("durable", name) or ("transient", connection, subscription)."""
LIMITS = Limits(message_cache=20)


class Copy:
    """What a tap tells makes: for each queue, by its identity, bodies by sequence number."""

    def __init__(self) -> None:
        self.queues: dict[int, dict[int, bytes]] = {}
        self.last: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.engine: StoreEngine

    def enqueued(self, message: Message) -> None:
        queue = message.queue
        assert message.sequence == self.last.get(queue.id, 0) + 1, "each queue counts its messages without a gap"
        self.last[queue.id], self.names[queue.id] = message.sequence, queue.name
        self.queues.setdefault(queue.id, {})[message.sequence] = self.engine.content(message)[1]

    def dequeued(self, message: Message) -> None:
        del self.queues[message.queue.id][message.sequence]


class Node:
    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        self.copy = Copy()
        self.rows: dict[str, dict[int, Row]] = {}
        self.restart()

    def restart(self) -> None:
        self.engine = self.copy.engine = StoreEngine(self.database, LIMITS)
        self.engine.tap(self.copy)
        self.engine.changes = Changes()

    def apply(self, command: Command) -> list[Effect]:
        if not self.database.in_transaction:
            self.database.execute("BEGIN")
        return self.engine.apply(command)

    def commit(self) -> None:
        if self.database.in_transaction:
            self.engine.flush()
            self.database.execute("COMMIT")
            assert self.engine.changes is not None
            for table, rows, removed in self.engine.changes.drain():
                kept = self.rows.setdefault(table, {})
                for key in removed:
                    kept.pop(key, None)
                kept.update((row[0], row) for row in rows)


@dataclass
class Sent:
    """The model's message in one place; its holder is a delivery, or the XID of a prepared branch."""

    place: int
    redeliveries: int = 0
    holder: Deliver | str | None = None


@dataclass
class Branch:
    """The model's prepared branch: bodies and destinations that it sends, messages that it acknowledges."""

    sends: list[tuple[bytes, str]]
    taken: list[tuple[Key, bytes]]


@dataclass
class Client:
    """The model's connection."""

    conn: str
    reliable: bool
    seq: int = 0
    out_seq: int = 0
    received: int = 0
    last: Command | None = None
    subscriptions: dict[str, tuple[Key, str, int]] = field(default_factory=dict)
    held: dict[str, Deliver] = field(default_factory=dict)
    transactions: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    xids: dict[str, str] = field(default_factory=dict)

    def key(self, delivery: Deliver) -> tuple[Key, bytes]:
        return self.subscriptions[delivery.subscription][0], delivery.body


def some(attribute: str) -> Any:
    """The rule makes sense while a client has some of these."""
    return precondition(lambda machine: any(getattr(each, attribute) for each in machine.clients.values()))


class BrokerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.node, self.twin = Node(), Node()
        self.clients: dict[str, Client] = {}
        self.live: dict[tuple[Key, bytes], Sent] = {}
        self.patterns: dict[Key, str] = {}
        self.prepared: dict[str, Branch] = {}
        self.outcomes: dict[str, str] = {}
        self.names = 0

    # Choosing.

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def pick(self, data: st.DataObject, items: Any) -> Any:
        items = list(items)
        return data.draw(st.sampled_from(items)) if items else None

    def client(self, data: st.DataObject, having: str = "conn") -> tuple[str, Client]:
        """One of the clients that have some of these; there is one (``some``)."""
        conn = data.draw(st.sampled_from([conn for conn, client in self.clients.items() if getattr(client, having)]))
        return conn, self.clients[conn]

    # Acting.

    def apply(self, command: Command) -> list[Effect]:
        decoded = wire.decode(wire.encode(command.args))
        effects = self.node.apply(command)
        assert self.twin.apply(command._replace(args=decoded)) == effects
        self.twin.commit()
        self.twin.restart()
        return effects

    def do(self, kind: str, conn: str, **args: Any) -> list[Effect]:
        client = self.clients[conn]
        if client.reliable:
            client.seq += 1
        command = client.last = Command(kind, conn, client.seq, args)
        effects = self.apply(command)
        assert effects[0] == Done(conn, client.seq, None)
        self.observe(effects)
        return effects

    def observe(self, effects: list[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, Deliver):
                continue
            client = self.clients[effect.conn]
            key, _, prefetch = client.subscriptions[effect.subscription]
            message = self.live[key, effect.body]  # never lost, never delivered after its acknowledgement
            if key[0] == "queue":
                assert effect.destination == f"/queue/{key[1]}"
            else:
                assert effect.destination.removeprefix("/topic/") in SELECTED[self.patterns[key]]
            assert message.holder is None and effect.redeliveries == message.redeliveries
            ready = [m.place for (k, _), m in self.live.items() if k == key and m.holder is None]
            assert message.place == min(ready)
            client.out_seq += 1
            assert effect.out_seq == client.out_seq
            message.holder = client.held[effect.ack_id] = effect
            assert self.window(client, effect.subscription) <= prefetch

    def window(self, client: Client, subscription: str) -> int:
        return sum(d.subscription == subscription for d in client.held.values())

    def give_back(self, client: Client, held: list[Deliver]) -> None:
        for delivery in held:
            del client.held[delivery.ack_id]
            self.release(client.key(delivery))

    def release(self, place: tuple[Key, bytes]) -> None:
        self.live[place].holder = None
        self.live[place].redeliveries += 1

    def consume(self, client: Client, held: list[Deliver]) -> None:
        for delivery in held:
            del client.held[delivery.ack_id]
            del self.live[client.key(delivery)]

    def arrive(self, body: bytes, destination: str) -> None:
        self.names += 1
        _, kind, name = destination.split("/")
        if kind == "queue":
            self.live[("queue", name), body] = Sent(self.names)
            return
        for key, pattern in self.patterns.items():
            if name in SELECTED[pattern]:
                self.live[key, body] = Sent(self.names)

    def end_subscription(self, client: Client, name: str) -> None:
        key = client.subscriptions[name][0]
        self.give_back(client, [d for d in client.held.values() if d.subscription == name])
        del client.subscriptions[name]
        if key[0] == "transient":
            self.drop(key)

    def drop(self, key: Key) -> None:
        del self.patterns[key]
        self.live = {place: message for place, message in self.live.items() if place[0] != key}

    def user(self, key: Key) -> tuple[str, str] | None:
        """Connection and subscription that consume from there; the first of them."""
        return next(((conn, name) for conn, client in self.clients.items()
                     for name, (used, _, _) in client.subscriptions.items() if used == key), None)

    def covered(self, client: Client, delivery: Deliver) -> list[Deliver]:
        if client.subscriptions[delivery.subscription][1] == "client-individual":
            return [delivery]
        return [d for d in client.held.values()
                if d.subscription == delivery.subscription and d.out_seq <= delivery.out_seq]

    def settle(self, client: Client, kind: str, delivery: Deliver) -> None:
        covered = self.covered(client, delivery)
        if kind == "ack":
            self.consume(client, covered)
        else:
            self.give_back(client, covered)

    # Rules.

    @initialize(ack=st.sampled_from(ACK_MODES), queue=st.sampled_from(QUEUES))
    def two_clients(self, ack: str, queue: str) -> None:
        for reliable in (True, False):
            self.add_client(reliable, queue, ack)

    @precondition(lambda self: len(self.clients) < 3)
    @rule(reliable=st.booleans(), ack=st.sampled_from(ACK_MODES), queue=st.sampled_from(QUEUES))
    def add_client(self, reliable: bool, queue: str, ack: str) -> None:
        conn = self.open(reliable)
        self.add_subscription(conn, queue, ack, 2)
        self.add_listener(conn, "t.*", ack, 2, None)
        self.begin_transaction(conn, True)

    def open(self, reliable: bool) -> str:
        conn = self.name("conn")
        self.apply(Command("open", conn, 0, {"reliable": reliable, "login": "g"}))
        self.clients[conn] = Client(conn, reliable)
        return conn

    @some("conn")
    @rule(data=st.data(), queue=st.sampled_from(QUEUES), deferred=st.sampled_from(DEFERRED), count=st.integers(1, 3))
    def send(self, data: st.DataObject, queue: str, deferred: bool, count: int) -> None:
        for _ in range(count):
            self.send_one(data, *self.client(data), f"/queue/{queue}", deferred)

    @some("conn")
    @rule(data=st.data(), topic=st.sampled_from(TOPICS), deferred=st.sampled_from(DEFERRED), count=st.integers(1, 3))
    def publish(self, data: st.DataObject, topic: str, deferred: bool, count: int) -> None:
        for _ in range(count):
            self.send_one(data, *self.client(data), f"/topic/{topic}", deferred)

    def send_one(self, data: st.DataObject, conn: str, client: Client, destination: str, deferred: bool) -> None:
        body = self.name("message ").encode()
        args: dict[str, Any] = {"destination": destination, "headers": {"n": "v"}, "body": body}
        transaction = self.pick(data, client.transactions) if deferred else None
        if transaction is not None:
            client.transactions[transaction].append(("send", (body, destination)))
            args["tx"] = transaction
        else:
            self.arrive(body, destination)
        self.do("send", conn, **args)

    @some("conn")
    @rule(data=st.data(), queue=st.sampled_from(QUEUES), prefetch=st.integers(1, 3),
          ack=st.sampled_from(ACK_MODES))
    def subscribe(self, data: st.DataObject, queue: str, prefetch: int, ack: str) -> None:
        conn, client = self.client(data)
        if len(client.subscriptions) < 3:
            self.add_subscription(conn, queue, ack, prefetch)

    def add_subscription(self, conn: str, queue: str, ack: str, prefetch: int) -> None:
        name = self.name("sub")
        self.clients[conn].subscriptions[name] = (("queue", queue), ack, prefetch)
        self.do("subscribe", conn, id=name, destination=f"/queue/{queue}", ack=ack, prefetch=prefetch)

    @some("subscriptions")
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        conn, client = self.client(data, "subscriptions")
        name = self.pick(data, client.subscriptions)
        self.end_subscription(client, name)
        self.do("unsubscribe", conn, id=name)

    @some("conn")
    @rule(data=st.data(), pattern=st.sampled_from(sorted(SELECTED)), ack=st.sampled_from(ACK_MODES),
          prefetch=st.integers(1, 3), durable=st.sampled_from([None, *DURABLES]))
    def listen(self, data: st.DataObject, pattern: str, ack: str, prefetch: int, durable: str | None) -> None:
        conn, client = self.client(data)
        if len(client.subscriptions) < 3 and self.user(("durable", str(durable))) is None:
            self.add_listener(conn, pattern, ack, prefetch, durable)

    def add_listener(self, conn: str, pattern: str, ack: str, prefetch: int, durable: str | None) -> None:
        client, name = self.clients[conn], self.name("sub")
        key: Key = ("transient", conn, name) if durable is None else ("durable", durable)
        args: dict[str, Any] = {"id": name, "destination": f"/topic/{pattern}", "ack": ack, "prefetch": prefetch}
        if durable is not None:
            args["durable"] = durable
            if self.patterns.get(key, pattern) != pattern:
                self.drop(key)
        self.patterns[key] = pattern
        client.subscriptions[name] = (key, ack, prefetch)
        self.do("subscribe", conn, **args)

    @some("conn")
    @rule(data=st.data(), durable=st.sampled_from(DURABLES))
    def delete_durable(self, data: st.DataObject, durable: str) -> None:
        key = ("durable", durable)
        if key not in self.patterns:
            return
        user = self.user(key)
        conn = self.client(data)[0] if user is None else user[0]
        if user is not None:
            self.end_subscription(self.clients[conn], user[1])
        self.drop(key)
        self.do("unsubscribe", conn, durable=durable)

    @some("held")
    @rule(data=st.data(), kind=st.sampled_from(["ack", "ack", "nack"]), deferred=st.sampled_from(DEFERRED),
          count=st.integers(1, 3))
    def answer(self, data: st.DataObject, kind: str, deferred: bool, count: int) -> None:
        conn, client = self.client(data, "held")
        transaction = self.pick(data, client.transactions) if deferred else None
        for _ in range(count):
            if client.held:
                self.answer_one(conn, kind, self.pick(data, client.held), transaction)

    def answer_one(self, conn: str, kind: str, ack_id: str, transaction: str | None) -> None:
        client = self.clients[conn]
        if transaction is not None:
            client.transactions[transaction].append((kind, client.held[ack_id]))
            self.do(kind, conn, id=ack_id, tx=transaction)
            return
        self.settle(client, kind, client.held[ack_id])
        self.do(kind, conn, id=ack_id)

    @some("conn")
    @rule(data=st.data(), branch=st.booleans())
    def begin(self, data: st.DataObject, branch: bool) -> None:
        conn, client = self.client(data)
        if len(client.transactions) < 2:
            self.begin_transaction(conn, branch)

    def begin_transaction(self, conn: str, branch: bool = False) -> None:
        name = self.name("tx")
        self.clients[conn].transactions[name] = []
        args = {"tx": name}
        if branch:
            args["xid"] = self.clients[conn].xids[name] = self.name("xid")
        self.do("begin", conn, **args)

    def end_transaction(self, client: Client, name: str, outcome: str) -> list[tuple[str, Any]]:
        if name in client.xids:
            self.outcomes[client.xids.pop(name)] = outcome
        return client.transactions.pop(name)

    @some("xids")
    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        conn, client = self.client(data, "xids")
        name = self.pick(data, client.xids)
        if client.held:
            self.answer_one(conn, "ack", self.pick(data, client.held), name)
        items = client.transactions[name]
        if not self.possible(client, items):
            self.refused(conn, Command("prepare", conn, client.seq + client.reliable, {"tx": name}))
            return
        xid = client.xids.pop(name)
        del client.transactions[name]
        branch = self.prepared[xid] = Branch([item for kind, item in items if kind == "send"], [])
        for kind, item in items:
            if kind == "nack":
                self.settle(client, kind, item)
            elif kind == "ack":
                for delivery in self.covered(client, item):
                    del client.held[delivery.ack_id]
                    branch.taken.append(client.key(delivery))
                    self.live[branch.taken[-1]].holder = xid
        self.do("prepare", conn, tx=name)

    @some("conn")
    @precondition(lambda self: self.prepared)
    @rule(data=st.data(), kind=st.sampled_from(["commit", "abort"]))
    def end_prepared(self, data: st.DataObject, kind: str) -> None:
        conn, xid = self.client(data)[0], self.pick(data, self.prepared)
        branch = self.prepared.pop(xid)
        self.outcomes[xid] = kind
        for place in branch.taken:
            if place not in self.live:
                continue  # its topic subscription is gone
            if kind == "commit":
                del self.live[place]
            else:
                self.release(place)
        if kind == "commit":
            for body, destination in branch.sends:
                self.arrive(body, destination)
        self.do(kind, conn, xid=xid)

    @some("conn")
    @precondition(lambda self: self.outcomes)
    @rule(data=st.data())
    def end_again(self, data: st.DataObject) -> None:
        xid = self.pick(data, self.outcomes)
        self.do(self.outcomes[xid], self.client(data)[0], xid=xid)

    @some("transactions")
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        conn, client = self.client(data, "transactions")
        name = self.pick(data, client.transactions)
        self.end_transaction(client, name, "abort")
        self.do("abort", conn, tx=name)

    @some("transactions")
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        conn, client = self.client(data, "transactions")
        name = self.pick(data, client.transactions)
        items = client.transactions[name]
        if not self.possible(client, items):
            self.refused(conn, Command("commit", conn, client.seq + client.reliable, {"tx": name}))
            return
        self.end_transaction(client, name, "commit")
        for kind, item in items:
            if kind == "send":
                self.arrive(*item)
            else:
                self.settle(client, kind, item)
        self.do("commit", conn, tx=name)

    def possible(self, client: Client, items: list[tuple[str, Any]]) -> bool:
        taken: set[str] = set()
        for kind, item in items:
            if kind != "send":
                if item.ack_id in taken or item.ack_id not in client.held:
                    return False
                taken |= {d.ack_id for d in self.covered(client, item)}
        return True

    @precondition(lambda self: len(self.clients) > 2)
    @rule(data=st.data(), durable=st.sampled_from(DURABLES))
    def mistake(self, data: st.DataObject, durable: str) -> None:
        conn, client = self.client(data)
        wrong: list[tuple[str, dict[str, Any]]] = [("ack", {"id": "99999-1"}), ("commit", {"xid": "never"})]
        for xid, outcome in self.outcomes.items():
            wrong.append(("abort" if outcome == "commit" else "commit", {"xid": xid}))
        user = self.user(("durable", durable))
        if user is not None and user[0] != conn:
            wrong.append(("unsubscribe", {"durable": durable}))
            wrong.append(("subscribe", {"id": self.name("sub"), "destination": "/topic/t.b", "ack": "auto",
                                        "prefetch": 1, "durable": durable}))
        kind, args = self.pick(data, wrong)
        self.refused(conn, Command(kind, conn, client.seq + client.reliable, args))

    def refused(self, conn: str, command: Command) -> None:
        self.forget(conn)
        effects = self.apply(command)
        assert isinstance(effects[0], Refused)
        self.observe(effects)

    @precondition(lambda self: len(self.clients) > 2)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        conn, _ = self.client(data)
        self.forget(conn)
        self.observe(self.apply(Command("close", conn, 0, {"reason": "lost"})))

    def forget(self, conn: str) -> None:
        client = self.clients[conn]
        for name in list(client.subscriptions):
            self.end_subscription(client, name)
        del self.clients[conn]

    @some("reliable")
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """A reliable client that missed the receipt sends its last frame again."""
        conn, client = self.client(data, "reliable")
        if client.last is not None:
            assert self.apply(client.last) == [Done(conn, client.last.seq, None, duplicate=True)]

    @some("reliable")
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        conn, client = self.client(data, "reliable")
        received = data.draw(st.integers(client.received, client.out_seq))
        self.report(client, received)
        effects = self.apply(Command("open", conn, 0, {"reliable": True, "login": "g", "resume": True,
                                                       "received": received}))
        pending = [d for d in client.held.values() if d.out_seq > received]
        assert effects[1 : 1 + len(pending)] == pending
        self.observe(effects[1 + len(pending) :])

    def report(self, client: Client, received: int) -> None:
        client.received = received
        self.consume(client, [d for d in client.held.values() if d.out_seq <= received
                              and client.subscriptions[d.subscription][1] == "auto"])

    @rule(restart=st.booleans())
    def commit_to_disk(self, restart: bool) -> None:
        self.node.commit()
        assert list(self.node.engine.dump()) == list(self.twin.engine.dump())
        if restart:
            self.node.restart()

    @rule()
    def replace_twin(self) -> None:
        self.node.commit()
        rows = [wire.decode(wire.encode(row)) for row in self.node.engine.dump()]
        self.twin.database.execute("BEGIN")
        self.twin.engine.load(rows)
        self.twin.commit()

    # Invariants.

    @invariant()
    def depths_are_right(self) -> None:
        expected = dict.fromkeys(self.node.engine.depths(), 0)
        for key, _ in self.live:
            if key[0] != "transient":
                expected[key[1] if key[0] == "queue" else f"durable:g:{key[1]}"] += 1
        assert self.node.engine.depths() == self.twin.engine.depths() == expected
        durables = {f"durable:g:{key[1]}" for key in self.patterns if key[0] == "durable"}
        assert {name for name in expected if name.startswith("durable:")} == durables

    @invariant()
    def taps_tell_what_is_there(self) -> None:
        expected = Counter(key[1] if key[0] == "queue" else f"durable:g:{key[1]}" if key[0] == "durable" else ""
                           for key, _ in self.live)
        for node in (self.node, self.twin):
            copied = Counter(node.copy.names[queue] for queue, held in node.copy.queues.items() for _ in held)
            assert copied == expected
            assert sorted(body for held in node.copy.queues.values() for body in held.values()) == sorted(
                body for _, body in self.live)
            for name in node.engine.depths().keys() - node.engine.server_queues.depths().keys():
                browsed = [(each.sequence, each.body) for each in node.engine.browse(name)]
                held = [item for queue, bodies in node.copy.queues.items() if node.copy.names[queue] == name
                        for item in bodies.items()]
                assert browsed == sorted(held)

    @invariant()
    def changes_make_the_same_rows(self) -> None:
        noted = ([table, *row] for table, rows in self.twin.rows.items() for row in rows.values())
        assert sorted(noted, key=repr) == sorted(self.twin.engine.dump(), key=repr)

    @invariant()
    def nothing_waits_for_a_consumer_with_room(self) -> None:
        for client in self.clients.values():
            for name, (key, _, prefetch) in client.subscriptions.items():
                if self.window(client, name) < prefetch:
                    assert all(m.holder for (k, _), m in self.live.items() if k == key)

    @invariant()
    def prepared_branches_are_right(self) -> None:
        for conn, client in list(self.clients.items())[:1]:
            # Not a number of its own: the last frame again, which changes nothing.
            command = Command("recover", conn, client.seq, {"receipt": "r"})
            if client.seq or not client.reliable:
                answer = self.apply(command)[0]
                assert isinstance(answer, Done) and answer.headers == {"x-xids": " ".join(self.prepared)}

    @invariant()
    def memory_is_as_after_a_start(self) -> None:
        for node in (self.node, self.twin):
            assert EngineProbe(node.engine).miscounted() == "" and EngineProbe(node.engine).unlike_store() == ""

    @invariant()
    def connections_are_right(self) -> None:
        assert list(self.node.engine.connections().items()) == [(c, m.reliable) for c, m in self.clients.items()]


class Longer(BrokerMachine):
    """The same, for longer."""


BrokerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
TestBrokerMachine = BrokerMachine.TestCase
Longer.TestCase.settings = settings(max_examples=2000, stateful_step_count=100, deadline=None)
TestLonger = pytest.mark.soak(Longer.TestCase)
