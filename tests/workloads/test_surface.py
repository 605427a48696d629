"""What clients use of all that a broker offers: drawn from the seed alone, told as operations of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.run.describe import create_run
from harness.run.interpreter import Interpreter, NoClient
from harness.run.settings import make_test
from harness.sim.run import simulate
from nodes.stomp import Frame, Parser, encode
from stormproof.generator import clients, sequence
from stormproof.operation import INFO, INVOKE, Op
from stormproof.run_folder import read_run
from stormproof.test import Test
from workloads.feature_coverage import FEATURES, FeatureCoverage, difference, named
from workloads.messages import decode_body

pytestmark = pytest.mark.requirement("H6", part=True)


def surface(seed: int, *features: str) -> FeatureCoverage:
    found = FeatureCoverage(Test("joram", "queue", nodes=3, seed=seed))
    found.features = frozenset(features or FEATURES)
    return found


def sent_and_read(about: Any, body: bytes) -> Frame:
    frame = Frame("MESSAGE", {"destination": "/queue/q0", "content-type": "text/plain", **about}, body)
    [read] = Parser().feed(encode(frame))
    assert isinstance(read, Frame)
    return read


def test_every_content_names_its_message_and_comes_through_the_protocol() -> None:
    drawn = surface(1)
    kinds = set()
    for number in range(400):
        content = drawn.content((3, number))
        frame = sent_and_read(content.headers, content.body)
        assert decode_body(named(frame)) == (3, number)
        assert difference(content, "/queue/q0", frame) is None
        kinds.update(content.items)
    assert kinds == {"body-empty", "body-binary", "body-text", "body-large", "headers-escaped", "headers-many"}
    assert drawn.content((3, 7)) == surface(1).content((3, 7)) != surface(2).content((3, 7))


@pytest.mark.parametrize(
    ("headers", "body", "found"),
    [
        ({"x-a": "1"}, b"0/0\n\0b", None),
        ({"x-a": "2"}, b"0/0\n\0b", "text of a header"),
        ({}, b"0/0\n\0b", "a header is missing"),
        ({"x-a": "1", "x-b": ""}, b"0/0\n\0b", "a header is new"),
        ({"x-a": "1"}, b"0/0\n", "length of the body"),
        ({"x-a": "1"}, b"0/0\n\0c", "bytes of the body"),
        ({"x-a": "1", "destination": "/queue/q1"}, b"0/0\n\0b", "destination"),
        ({"x-a": "1", "redelivered": "true", "x-redeliveries": "1"}, b"0/0\n\0b", None),
    ],
)
def test_what_is_not_as_it_was_sent(headers: dict[str, str], body: bytes, found: str | None) -> None:
    from workloads.feature_coverage import Content

    assert difference(Content({"x-a": "1"}, b"0/0\n\0b", ()), "/queue/q0", sent_and_read(headers, body)) == found


def test_draws_are_those_of_the_seed_and_the_process() -> None:
    def ways(found: FeatureCoverage) -> list[tuple[str, str, int]]:
        return [(way.subscribe(True), way.ack, way.window) for _ in range(20) for way in [found.style(1)]]

    assert ways(surface(1)) == ways(surface(1)) != ways(surface(2))
    assert {ack for _, ack, _ in ways(surface(1))} == {"client", "client-individual", "auto"}
    assert all(way.subscribe(False) and way.ack != "auto" for way in (surface(1).style(0) for _ in range(20)))


class Recorded:
    """A recorder of rows."""

    def __init__(self) -> None:
        self.rows: list[Op] = []

    def record(self, op: Op) -> None:
        self.rows.append(op)

    def flush(self) -> None:
        pass


class Noting(NoClient):
    """A client that takes one more each time, and one when it is given up."""

    def notes(self, *, over: bool) -> list[tuple[Op, Op]]:
        begun = Op(INVOKE, "dequeue", None, 0, 0)
        return [(begun, begun.info("late", (9, 9)) if over else begun.ok((1, 1)))]


async def test_what_a_client_did_besides_is_recorded_behind_its_operation() -> None:
    recorded = Recorded()
    test = Test("joram", "queue", nodes=1, concurrency=1)
    interpreter = Interpreter(test, lambda *_: Noting(), NoClient(), recorded)
    assert await interpreter.run(clients(sequence(Op(INVOKE, "dequeue", key=0))))
    await interpreter.close()
    assert [(row.type, row.value) for row in recorded.rows] == [
        ("invoke", None), ("ok", None), ("invoke", None), ("ok", (1, 1)), ("invoke", None), (INFO, (9, 9))]
    times = [row.time for row in recorded.rows]
    assert times == sorted(set(times)), "each row has a time of its own"


@pytest.mark.requirement("H4", part=True)
def test_a_run_with_the_surface_repeats_exactly_and_tells_what_it_used(tmp_path: Path) -> None:
    digests = set()
    for place in range(2):
        test = make_test(system="standalone", workload="queue", nemesis="kill", backend="sim", nodes=None,
                         time_limit=8.0, rate=30.0, seed=11, settings={"surface": "true"})  # fmt: skip
        run_dir = create_run(test, "test", tmp_path / str(place))
        simulate(run_dir)
        info = read_run(run_dir)
        digests.add(info["history_sha256"])
        assert {"content", "subscription", "redelivery"} <= {*info["guarantees"]}
        assert info["surface"]["send"] > 20 and len(info["surface"]) > 5
    assert len(digests) == 1


def test_without_the_setting_nothing_is_drawn(tmp_path: Path) -> None:
    test = make_test(system="standalone", workload="queue", nemesis="none", backend="sim", nodes=None,
                     time_limit=1.0, rate=10.0, seed=1, settings={})  # fmt: skip
    info = read_run(create_run(test, "test", tmp_path))
    assert not {"content", "subscription", "redelivery"} & {*info["guarantees"]}


def test_every_way_by_an_exchange_leads_to_its_queue_alone() -> None:
    from nodes.reference.designs.qpid.configuration import EXCHANGE_TYPES
    from nodes.reference.engine.topics import matches
    from workloads.reference.routes import route_to

    for kind in EXCHANGE_TYPES:
        for number in range(3):
            for other in range(3):
                sent, bound = route_to(kind, number), route_to(kind, other)
                chosen = sent.exchange == bound.exchange and any(
                    kind == "fanout" or (matches if kind == "topic" else str.__eq__)(each, sent.key)
                    for each in bound.bindings)
                assert chosen == (number == other), (kind, number, other)


async def test_who_can_not_give_a_message_back_gives_its_connection_up() -> None:
    """Else the message would stay with a connection that lives, and nobody would ever get it."""
    from types import SimpleNamespace

    from workloads.reference.connection import NotSent
    from workloads.reference.consumer import MessageConsumer

    class Client:
        node = None
        noted: tuple[Any, ...] = ()
        connection = SimpleNamespace(messages=[])

        async def request(self, command: str, *_: Any) -> None:
            if command == "NACK":
                raise NotSent("no connection")

        def observe(self, *_: Any, **__: Any) -> None:
            pass

        def outdated(self, _: float) -> bool:
            return False

    async def message() -> Frame:
        return Frame("MESSAGE", {"ack": "1", "subscription": "1", "destination": "/queue/q0"}, b"1/4")

    found = surface(1, "nack")
    client: Any = Client()
    taker = MessageConsumer(client, found.style(0), found, lambda *_: "/queue/q0")
    ended = {op.type for op in [await taker.take(Op(INVOKE, "dequeue", None, 0, 3), message) for _ in range(80)]
             if op.value is None}  # fmt: skip
    assert ended == {INFO}


async def test_what_came_before_the_receipt_of_its_subscription_counts_as_acknowledged() -> None:
    """With `ack:auto` the broker takes it for received with whatever the client says next, which may be SUBSCRIBE sent
    again: it gives the message to nobody else."""
    from collections import deque
    from types import SimpleNamespace

    from workloads.reference.consumer import MessageConsumer

    class Client:
        node = None

        def __init__(self) -> None:
            self.noted: list[tuple[Op, Op]] = []
            self.connection = SimpleNamespace(messages=deque[Frame](), silence=lambda: None)

        async def request(self, command: str, headers: dict[str, str]) -> None:
            about = {"subscription": headers["id"], "destination": "/queue/q0"}
            self.connection.messages.append(Frame("MESSAGE", about, b"1/4"))
            raise TimeoutError

        def note(self, begun: Op, done: Op, **_: Any) -> None:
            self.noted.append((begun, done))

    found, told = surface(1, "auto-ack"), {}
    for place in range(20):
        client: Any = Client()
        style = found.style(place)
        taker = MessageConsumer(client, style, found, lambda *_: "/queue/q0")
        with pytest.raises(TimeoutError):
            await taker.move(Op(INVOKE, "dequeue", None, 0, 3), {}, automatic=True)
        taker.leave()
        told[style.ack] = [(begun.f, done.type, done.key, done.value) for begun, done in client.noted]
    assert told == {"auto": [("dequeue", INFO, 0, (1, 4))], "client-individual": []}, "the other one is given back"


async def test_what_an_operation_took_is_told_before_what_had_come_on_a_connection_that_was_lost() -> None:
    """The same message may have come on both: what is observed belongs to the delivery that was told just before."""
    import random
    from collections import deque
    from types import SimpleNamespace

    from workloads.feature_coverage import AUTO, CLIENT, ConsumerStyle
    from workloads.reference.consumer import MessageConsumer
    from workloads.reference.stomp_client import StompClient

    class Ways(ConsumerStyle):
        def subscribe(self, reliable: bool) -> str:
            self.ack, self.window = AUTO if reliable else CLIENT, 5
            return "1"

    class Client(StompClient):
        def __init__(self) -> None:
            self.names, self._noted = {}, []
            self._connection: Any = SimpleNamespace(messages=deque[Frame](), peer=None)

        async def request(self, *_: Any, **__: Any) -> Any:
            pass

        def come(self, *said: int) -> None:
            for number, redeliveries in enumerate(said, 4):
                content = found.content((1, number))
                about = {"content-type": "text/plain", **content.headers, "destination": "/queue/q0"}
                brokers = {"subscription": "1", "ack": "1", "x-redeliveries": str(redeliveries)}
                self._connection.messages.append(Frame("MESSAGE", {**about, **brokers}, content.body))

        async def poll(self) -> Frame:
            message: Frame = self._connection.messages.popleft()
            return message

    found, lengths = surface(1, "auto-ack", "client-ack"), set()
    for seed in range(10):
        client, style = Client(), Ways(frozenset(), random.Random(seed))
        taker, op = MessageConsumer(client, style, found, lambda *_: "/queue/q0"), Op(INVOKE, "dequeue", key=0)
        await taker.move(op, {}, automatic=True)
        client.come(0, 1)
        taker.reset()
        await taker.move(op, {}, automatic=False)
        client.come(1, 2)
        done = await taker.take(op, client.poll)
        assert (done.type, done.value) == ("ok", (1, 4))
        told = [(done.value, done.type, done.error) for _, done in client.notes(over=False)]
        unread = "acknowledged when it came, never taken (buffered)"
        lost = [((1, 4), INFO, unread), ((1, 5), INFO, unread), ((1, 5), INFO, "redeliveries 1")]
        first = [((1, 4), INFO, "redeliveries 1")]
        second = [((1, 5), "ok", None), ((1, 5), INFO, "redeliveries 2")]
        assert told in (first + lost, first + second + lost)
        lengths.add(len(told))
    assert lengths == {4, 6}, "one message is taken, or both at once"


def test_a_value_that_came_otherwise_is_nobodys(tmp_path: Path) -> None:
    from workloads.reference.register_client import RegisterClient
    from workloads.register_client import FOREIGN

    client = RegisterClient.__new__(RegisterClient)
    client._coverage = drawn = surface(1)
    written = {value: drawn.single_value(2, value)[0] for value in range(1, 200)}
    assert {len(body) > 3_000 for body in written.values()} == {True, False}
    assert max(map(len, written.values())) <= 16 << 10
    for value, body in written.items():
        assert client._read_value(2, body) == value
        if b"\n" in body:
            assert client._read_value(2, body[:-1]) == client._read_value(3, body) == FOREIGN
    assert client._read_value(2, b"") == 0
