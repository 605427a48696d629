"""Random commands against a model, and against a twin that commits and restarts after every command.

The engine under test commits only now and then, so that its gathered changes meet each other.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nodes.reference import wire
from nodes.reference.api import Command, Deliver, Done, Effect, Refused
from nodes.reference.contexts import ACK_MODES
from nodes.reference.engine import StoreEngine
from nodes.reference.limits import Limits

QUEUES = ("red", "red", "red", "blue")
LIMITS = Limits(message_cache=20)


class Node:
    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        self.restart()

    def restart(self) -> None:
        self.engine = StoreEngine(self.database, LIMITS)

    def apply(self, command: Command) -> list[Effect]:
        if not self.database.in_transaction:
            self.database.execute("BEGIN")
        return self.engine.apply(command)

    def commit(self) -> None:
        if self.database.in_transaction:
            self.engine.flush()
            self.database.execute("COMMIT")


@dataclass
class Sent:
    """The model's message."""

    queue: str
    place: int
    redeliveries: int = 0
    holder: Deliver | None = None


@dataclass
class Client:
    """The model's connection."""

    reliable: bool
    seq: int = 0
    out_seq: int = 0
    received: int = 0
    last: Command | None = None
    subscriptions: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    held: dict[str, Deliver] = field(default_factory=dict)
    transactions: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)


class BrokerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.node, self.twin = Node(), Node()
        self.clients: dict[str, Client] = {}
        self.live: dict[bytes, Sent] = {}
        self.names = 0

    # Choosing.

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def pick(self, data: st.DataObject, items: Any) -> Any:
        items = list(items)
        return data.draw(st.sampled_from(items)) if items else None

    def client(self, data: st.DataObject) -> tuple[str, Client] | None:
        conn = self.pick(data, self.clients)
        return None if conn is None else (conn, self.clients[conn])

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
            message = self.live[effect.body]  # never lost, never delivered after its acknowledgement
            client = self.clients[effect.conn]
            queue, _, prefetch = client.subscriptions[effect.subscription]
            assert queue == message.queue and effect.destination == f"/queue/{queue}"
            assert message.holder is None and effect.redeliveries == message.redeliveries
            ready = [m.place for m in self.live.values() if m.queue == queue and m.holder is None]
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
            message = self.live[delivery.body]
            message.holder = None
            message.redeliveries += 1

    def consume(self, client: Client, held: list[Deliver]) -> None:
        for delivery in held:
            del client.held[delivery.ack_id]
            del self.live[delivery.body]

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
        for conn in (self.open(True), self.open(False)):
            self.add_subscription(conn, queue, ack, 2)
            self.begin_transaction(conn)

    @rule(reliable=st.booleans())
    def one_more_client(self, reliable: bool) -> None:
        if len(self.clients) < 3:
            self.open(reliable)

    def open(self, reliable: bool) -> str:
        conn = self.name("conn")
        self.apply(Command("open", conn, 0, {"reliable": reliable, "login": "g"}))
        self.clients[conn] = Client(reliable)
        return conn

    @rule(data=st.data(), queue=st.sampled_from(QUEUES), in_transaction=st.booleans(), count=st.integers(1, 3))
    def send(self, data: st.DataObject, queue: str, in_transaction: bool, count: int) -> None:
        found = self.client(data)
        for _ in range(count if found is not None else 0):
            self.send_one(data, *found, queue, in_transaction)

    def send_one(self, data: st.DataObject, conn: str, client: Client, queue: str, in_transaction: bool) -> None:
        body = self.name("message ").encode()
        args: dict[str, Any] = {"destination": f"/queue/{queue}", "headers": {"n": "v"}, "body": body}
        transaction = self.pick(data, client.transactions) if in_transaction else None
        if transaction is not None:
            client.transactions[transaction].append(("send", (body, queue)))
            args["tx"] = transaction
        else:
            self.live[body] = Sent(queue, self.names)
        self.do("send", conn, **args)

    @rule(data=st.data(), queue=st.sampled_from(QUEUES), prefetch=st.integers(1, 3),
          ack=st.sampled_from(ACK_MODES))
    def subscribe(self, data: st.DataObject, queue: str, prefetch: int, ack: str) -> None:
        found = self.client(data)
        if found is not None and len(found[1].subscriptions) < 3:
            self.add_subscription(found[0], queue, ack, prefetch)

    def add_subscription(self, conn: str, queue: str, ack: str, prefetch: int) -> None:
        name = self.name("sub")
        self.clients[conn].subscriptions[name] = (queue, ack, prefetch)
        self.do("subscribe", conn, id=name, destination=f"/queue/{queue}", ack=ack, prefetch=prefetch)

    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        found = self.client(data)
        if found is None or (name := self.pick(data, found[1].subscriptions)) is None:
            return
        conn, client = found
        del client.subscriptions[name]
        self.give_back(client, [d for d in client.held.values() if d.subscription == name])
        self.do("unsubscribe", conn, id=name)

    @rule(data=st.data(), kind=st.sampled_from(["ack", "ack", "nack"]), in_transaction=st.booleans())
    def answer(self, data: st.DataObject, kind: str, in_transaction: bool) -> None:
        found = self.client(data)
        if found is None or (ack_id := self.pick(data, found[1].held)) is None:
            return
        conn, client = found
        transaction = self.pick(data, client.transactions) if in_transaction else None
        if transaction is not None:
            client.transactions[transaction].append((kind, client.held[ack_id]))
            self.do(kind, conn, id=ack_id, tx=transaction)
            return
        self.settle(client, kind, client.held[ack_id])
        self.do(kind, conn, id=ack_id)

    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        found = self.client(data)
        if found is not None and len(found[1].transactions) < 2:
            self.begin_transaction(found[0])

    def begin_transaction(self, conn: str) -> None:
        name = self.name("tx")
        self.clients[conn].transactions[name] = []
        self.do("begin", conn, tx=name)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        found = self.client(data)
        if found is not None and (name := self.pick(data, found[1].transactions)) is not None:
            del found[1].transactions[name]
            self.do("abort", found[0], tx=name)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        found = self.client(data)
        if found is None or (name := self.pick(data, found[1].transactions)) is None:
            return
        conn, client = found
        items = client.transactions.pop(name)
        if not self.possible(client, items):
            self.refused(conn, Command("commit", conn, client.seq + client.reliable, {"tx": name}))
            return
        for kind, item in items:
            if kind == "send":
                self.names += 1
                self.live[item[0]] = Sent(item[1], self.names)
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

    @rule(data=st.data())
    def mistake(self, data: st.DataObject) -> None:
        found = self.client(data)
        if found is not None:
            conn, client = found
            seq = client.seq + 1 if client.reliable else 0
            self.refused(conn, Command("ack", conn, seq, {"id": "99999-1"}))

    def refused(self, conn: str, command: Command) -> None:
        self.forget(conn)
        effects = self.apply(command)
        assert isinstance(effects[0], Refused)
        self.observe(effects)

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        found = self.client(data)
        if found is not None:
            self.forget(found[0])
            self.observe(self.apply(Command("close", found[0], 0, {"reason": "lost"})))

    def forget(self, conn: str) -> None:
        client = self.clients.pop(conn)
        self.give_back(client, list(client.held.values()))

    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """A reliable client that missed the receipt sends its last frame again."""
        found = self.client(data)
        if found is not None and found[1].reliable and found[1].last is not None:
            last = found[1].last
            assert self.apply(last) == [Done(found[0], last.seq, None, duplicate=True)]

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        found = self.client(data)
        if found is None or not found[1].reliable:
            return
        conn, client = found
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
        for message in self.live.values():
            expected[message.queue] += 1
        assert self.node.engine.depths() == self.twin.engine.depths() == expected

    @invariant()
    def nothing_waits_for_a_consumer_with_room(self) -> None:
        for queue in QUEUES:
            room = any(q == queue and self.window(client, name) < prefetch
                       for client in self.clients.values()
                       for name, (q, _, prefetch) in client.subscriptions.items())
            assert not room or all(m.holder for m in self.live.values() if m.queue == queue)

    @invariant()
    def connections_are_right(self) -> None:
        assert list(self.node.engine.connections().items()) == [(c, m.reliable) for c, m in self.clients.items()]


BrokerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestBrokerMachine = BrokerMachine.TestCase
