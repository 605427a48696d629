"""What clients, subscribers and publishers of HA IceStorm are guaranteed, in simulated time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from icestorm_sim import Group, simulate

from harness.tools.bench.reference.events import EventLoad, measure
from nodes.reference.designs.icestorm.requests import Request, answer_headers
from nodes.reference.server.runtime import LoopRuntime
from nodes.stomp import Frame, Parser, encode
from stormproof.contracts.cluster import MAIN
from stormproof.operation import INVOKE, Op
from workloads.event_names import KINDS, NON_REPLICATED, REPLICATED, SINGLE
from workloads.reference.connection import ConnectionBroken
from workloads.reference.events_client import Publisher
from workloads.reference.managed_objects import DONE, FOUND_SO
from workloads.reference.subscriptions import SUBSCRIBE, topic_objects


def event(number: int, topic: int = 0) -> Op:
    return Op(INVOKE, "publish", key=topic, value=(0, number))


async def published(publisher: Publisher, count: int, first: int = 0) -> list[Op]:
    return [await publisher.invoke(event(first + number)) for number in range(count)]


class Mute:
    """A subscriber that reads and acknowledges nothing by itself."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.writer: asyncio.StreamWriter | None = None
        self.connections = 0

    async def listen(self, group: Group, port: int) -> str:
        host = group.backend.address("c1")
        await asyncio.start_server(self._accept, host, port)
        return f"{host}:{port}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.connections += 1
        parser = Parser()
        while data := await reader.read(65536):
            self.frames += [frame for frame in parser.feed(data) if isinstance(frame, Frame)]

    def acknowledge(self, frame: Frame) -> None:
        assert self.writer is not None
        self.writer.write(encode(Frame("ACK", {"id": frame.headers["ack"]})))


@pytest.mark.requirement("I8")
def test_requests_fail_when_all_are_down_and_end_with_the_last_replica_that_blocked_them(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        client = group.metadata_client("n1")
        await client.open()
        assert (await client.invoke(Op(INVOKE, SUBSCRIBE, key=0))).type == "ok", "active"
        await group.kill("n2", "n3")
        assert await group.until(lambda status: status["state"] == "inactive", "n1", 10.0) is not None
        blocked = asyncio.create_task(group.ask("n1", "list", limit=60.0))
        await asyncio.sleep(20.0)
        assert not blocked.done(), "inactive: the request blocks"
        await group.kill("n1")
        with pytest.raises(ConnectionBroken):
            await blocked
        done = await client.invoke(Op(INVOKE, SUBSCRIBE, key=1))
        assert done.type in ("fail", "info"), "its connection had just ended"
        done = await client.invoke(Op(INVOKE, SUBSCRIBE, key=1))
        assert (done.type, "no connection" in str(done.error)) == ("fail", True), "down: nobody is there to block"
        await client.close()

    simulate(scenario, tmp_path)


@pytest.mark.requirement("I9")
def test_an_outcome_lost_with_the_majority_is_unknown_and_the_documented_loop_settles_it(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        client = group.metadata_client("n3")
        await client.open()
        await group.cut_off("n3")
        first = await client.invoke(Op(INVOKE, SUBSCRIBE, key=0))
        assert (first.type, first.error) == ("info", "unknown")
        await group.cut_off()
        outcomes: list[Op] = []
        while not outcomes or outcomes[-1].type != "ok":
            outcomes.append(await client.invoke(Op(INVOKE, SUBSCRIBE, key=0)))
            assert len(outcomes) < 20
        assert outcomes[-1].value in (DONE, FOUND_SO)
        assert (await client.invoke(Op(INVOKE, SUBSCRIBE, key=0))).value == FOUND_SO, "already subscribed is as good"
        for node in group.nodes:
            assert [row[0] for row in await group.ask(node, "subscribers", topic="t0")] == ["s0"], "once"
        await client.close()

    simulate(scenario, tmp_path)


@pytest.mark.requirement("I9", part=True)
@pytest.mark.requirement("I14", part=True)
def test_a_change_goes_on_when_its_client_is_gone(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        await group.backend.pause("n1", MAIN)
        connection = await group.connect("n3")
        asking = asyncio.create_task(connection.request(
            "SEND", {"destination": "/topic-manager", "x-request": "create"}, b'{"topic": "a"}', 5.0
        ))  # fmt: skip
        await asyncio.sleep(0.1)
        await connection.abort()
        with pytest.raises(ConnectionBroken):
            await asking
        await asyncio.sleep(1.0)
        await group.backend.resume("n1", MAIN)
        assert await group.healthy()
        assert [(await group.status(node))["stamp"] for node in group.nodes][1:] == [
            (await group.status("n3"))["stamp"]] * 2  # fmt: skip
        assert await group.ask("n1", "list") == ["a"]

    simulate(scenario, tmp_path)


@pytest.mark.requirement("I10")
def test_a_subscriber_gets_events_from_any_replica_until_it_unsubscribes(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        listener = await group.listener()
        publishers = [await group.publisher(SINGLE, node) for node in group.nodes]
        for number, publisher in enumerate(publishers):
            assert (await publisher.invoke(event(number))).type == "ok"
        came = [await listener.invoke(Op(INVOKE, "receive", key=0)) for _ in group.nodes]
        assert sorted((op.value, op.node) for op in came) == [((0, 0), "n1"), ((0, 1), "n2"), ((0, 2), "n3")]
        assert await group.ask("n2", "unsubscribe", topic="e0", subscriber="s0") is True
        for number, publisher in enumerate(publishers):
            assert (await publisher.invoke(event(9 + number))).type == "ok"
        assert (await listener.invoke(Op(INVOKE, "receive", key=0))).error == "empty"
        for node in group.nodes:
            assert "s0" not in (await group.status(node))["waiting"]

    simulate(scenario, tmp_path)


@pytest.mark.requirement("I10")
@pytest.mark.parametrize(("retries", "removed"), [(0, True), (2, True), (-1, False)])
def test_a_subscriber_is_removed_after_its_further_attempts(tmp_path: Path, retries: int, removed: bool) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        listener = await group.listener()
        await listener.close()
        await group.cut_off("n1")  # the replica that gives up may be unable to say so at once
        publisher = await group.publisher(SINGLE, "n2")
        assert (await publisher.invoke(event(0))).type == "ok"
        await asyncio.sleep(5.0)
        await group.cut_off()
        assert await group.healthy()
        await asyncio.sleep(3.0)
        attempts = (await group.log("n2")).count("delivery failed")
        assert attempts == retries + 1 if removed else attempts > 20
        for node in group.nodes:
            found = [row[0] for row in await group.ask(node, "subscribers", topic="e0")]
            assert found == ([] if removed else ["s0"])

    simulate(scenario, tmp_path, retry_count=retries)


@pytest.mark.requirement("I10")
@pytest.mark.parametrize(("reliability", "outstanding"), [("ordered", 1), ("unordered", 16)])
def test_ordered_events_come_one_at_a_time_and_what_fails_comes_again_first(
    tmp_path: Path, reliability: str, outstanding: int
) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        mute = Mute()
        endpoint = await mute.listen(group, 7300)
        assert await group.ask("n1", "create", topic="e0") is True
        assert await group.ask("n1", "subscribe", topic="e0", subscriber="s", endpoint=endpoint, retryCount=5,
                               reliability=reliability) is True  # fmt: skip
        await published(await group.publisher(SINGLE, "n2"), 20)
        await asyncio.sleep(0.2)
        assert len(mute.frames) == outstanding
        await asyncio.sleep(1.5)
        again = mute.frames[outstanding : 2 * outstanding]
        assert mute.connections == 2 and [f.body for f in again] == [f.body for f in mute.frames[:outstanding]]
        mute.acknowledge(again[0])
        await asyncio.sleep(0.1)
        assert mute.frames[2 * outstanding].body == f"0/{outstanding}".encode()

    simulate(scenario, tmp_path)


@pytest.mark.requirement("I10", part=True)
def test_a_subscriber_that_only_chatters_has_failed(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        mute = Mute()
        endpoint = await mute.listen(group, 7300)
        assert await group.ask("n1", "create", topic="e0") is True
        assert await group.ask("n1", "subscribe", topic="e0", subscriber="s", endpoint=endpoint) is True
        await published(await group.publisher(SINGLE, "n2"), 1)
        for _ in range(30):
            await asyncio.sleep(0.1)
            if mute.writer is not None and not mute.writer.is_closing():
                mute.writer.write(b"\n")
        assert await group.ask("n1", "subscribers", topic="e0") == []

    simulate(scenario, tmp_path)


@pytest.mark.requirement("I11")
def test_a_replicated_publisher_stays_and_fails_over_without_notice(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        listener = await group.listener()
        publisher = await group.publisher(REPLICATED, "n2")
        before = await published(publisher, 10)
        assert {(op.type, op.node) for op in before} == {("ok", "n2")}
        assert [(await listener.invoke(Op(INVOKE, "receive", key=0))).value for _ in before] == [
            (0, number) for number in range(10)]  # fmt: skip
        await group.kill("n2")
        await asyncio.sleep(1.0)
        after = await published(publisher, 5, 10)
        assert [op.type for op in after] == ["ok"] * 5, "another replica took what had not been sent"
        assert {op.node for op in after} == {"n3"}, "and the publisher stays there"
        await group.backend.pause("n3", MAIN)
        sent = asyncio.create_task(publisher.invoke(event(15)))
        await asyncio.sleep(0.1)
        await group.kill("n3")
        assert (await sent).type == "info", "what was sent can't be retried: the publisher is told"

    simulate(scenario, tmp_path)


@pytest.mark.requirement("I12")
@pytest.mark.parametrize(("kind", "endpoints"), [(NON_REPLICATED, "all"), (SINGLE, "all"), (REPLICATED, "one")])
def test_a_publisher_with_one_endpoint_never_fails_over_silently(tmp_path: Path, kind: str, endpoints: str) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        publisher = await group.publisher(kind, "n2")
        assert {(op.type, op.node) for op in await published(publisher, 5)} == {("ok", "n2")}
        proxies = [len(await group.ask("n2", name, topic="e0")) for name in ("publisher", "non-replicated-publisher")]
        assert proxies == ([3, 1] if endpoints == "all" else [1, 1])
        await group.kill("n2")
        await asyncio.sleep(3.0)
        assert (await publisher.invoke(event(5))).type == "fail", "it is told"
        later = await published(publisher, 3, 6)
        if kind != SINGLE:
            assert {op.type for op in later} == {"ok"} and "n2" not in {op.node for op in later}, "another proxy"
        else:
            assert {op.type for op in later} == {"fail"}, "it knows no other endpoint"
            await group.start("n2")
            assert await group.healthy()
            assert {(op.type, op.node) for op in await published(publisher, 3, 9)} == {("ok", "n2")}

    simulate(scenario, tmp_path, publisher_endpoints=endpoints)


@pytest.mark.requirement("I13")
@pytest.mark.parametrize(("kind", "node"), [(REPLICATED, "n3"), (NON_REPLICATED, "n2")])
def test_idle_connections_are_closed_and_opened_again_unnoticed(tmp_path: Path, kind: str, node: str) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        publisher = await group.publisher(kind, "n2")
        assert [op.node for op in await published(publisher, 2)] == ["n2"] * 2
        await asyncio.sleep(1.9)
        assert [op.node for op in await published(publisher, 1, 2)] == ["n2"], "it was in use"
        await asyncio.sleep(4.0)
        assert (await group.log("n2")).count("idle client closed") == 1
        assert [(op.type, op.node) for op in await published(publisher, 2, 3)] == [("ok", node)] * 2

    simulate(scenario, tmp_path, acm_timeout=2.0)


@pytest.mark.requirement("I14", part=True)
@pytest.mark.parametrize(("topics", "links"), [(1, 0), (2, 2), (3, 6), (4, 12)])
def test_the_workloads_objects_are_all_different(topics: int, links: int) -> None:
    objects = topic_objects({"topics": topics, "subscribers": 2, "loose_topics": 2, "links": 99})
    bodies = [each.requests[each.changes[0]][1] for each in objects]
    about = [(body["topic"], body.get("subscriber"), body.get("target")) for body in bodies]
    assert len(set(about)) == len({each.name for each in objects}) == len(about) == 2 * topics + 2 + links
    assert all(topic != target for topic, _, target in about)
    assert {each.changes for each in objects[2 * topics : 2 * topics + 2]} == {("create", "destroy")}
    assert [each.changes for each in objects[2 * topics + 2 :]] == [("link", "unlink")] * links


@pytest.mark.requirement("I14")
def test_events_follow_one_link_if_it_is_cheap_enough(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        listeners = [await group.listener(key) for key in range(3)]
        for source, target, cost in (("e0", "e1", 3), ("e1", "e2", 0), ("e2", "e0", 0)):
            assert await group.ask("n1", "link", topic=source, target=target, cost=cost) is True
        assert await group.ask("n1", "link", topic="e0", target="e0") == "link-to-itself"
        connection = await group.connect("n2")
        for topic, number, cost in (("e0", 0, "3"), ("e0", 1, "4"), ("e1", 2, "999999999"), ("e0", 3, "9" * 5000)):
            headers = {"destination": f"/topic/{topic}", "x-cost": cost}
            answer = await connection.request("SEND", headers, f"0/{number}".encode(), 3.0)
            assert answer.get("x-error") == (None if number < 3 else "bad-cost")
        came: list[list[Any]] = []
        for key, listener in enumerate(listeners):
            taken = [await listener.invoke(Op(INVOKE, "receive", key=key)) for _ in range(4)]
            came.append([op.value[1] for op in taken if op.type == "ok"])
        assert came == [[0, 1], [0, 2], [2]], "over one link, and not over one that costs less than the event"

    simulate(scenario, tmp_path, topics=3, links=0)


def test_long_answers_come_in_pages() -> None:
    names = [f"{'x' * 190}{number:05}" for number in range(500)]
    told: list[str] = []
    headers = {"x-more": ""}
    while "x-more" in headers:
        after = headers["x-more"]
        headers = answer_headers(Request("list", after=after), [name for name in names if name > after])
        assert len(headers["x-answer"]) <= 16_000
        told += [name.strip('"') for name in headers["x-answer"][1:-1].split(",")]
    assert told == names
    assert answer_headers(Request("create"), True) == {"x-answer": "true"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_benchmark_counts_every_event_that_is_confirmed_and_that_comes(tmp_path: Path, kind: str) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        rates = await measure(group.cluster, 0, EventLoad(kind, 4, "unordered"), seconds=0.25)
        assert 100 < rates.delivered <= rates.confirmed + 4 / 0.25, "each publisher has one under way"
        assert rates.delivered > 0.9 * rates.confirmed
        alone = await measure(group.cluster, 1, EventLoad(kind, 1, "ordered"), seconds=0.25)
        assert rates.confirmed > 2.5 * alone.confirmed, "publishers wait for their own receipts only"
        assert await group.ask("n1", "subscribers", topic="e0") == []

    simulate(scenario, tmp_path)


NONSENSE = {
    b'{"topic": "\\ud800"}': "bad-name", b'{"topic": "a\\u0000"}': "bad-name", b'{"topic": "a b"}': "bad-name",
    b'{"topic": ""}': "bad-name", b'{"topic": "%s"}' % (b"x" * 201): "bad-name", b'{"topic": 7}': "bad-name",
    b"[" * 100_000: "bad-request", b"\xff": "bad-request", b"[]": "bad-request", b"{": "bad-request",
    b'{"after": "\\ud800", "topic": "a"}': "bad-name",
}  # fmt: skip


def test_no_request_brings_a_replica_down(tmp_path: Path) -> None:
    """Neither the one that was asked, nor the coordinator that it would ask."""

    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        for node in ("n1", "n3"):
            connection = await group.connect(node)
            for body, word in NONSENSE.items():
                kind = "list" if b"after" in body else "create"
                headers = {"destination": "/topic-manager", "x-request": kind}
                answer = await connection.request("SEND", headers, body, 3.0)
                assert answer.get("x-error") == word, body[:50]
            await connection.abort()
        assert await group.ask("n1", "create", topic="\u00e9\u4e8b/#1") is True
        assert await group.ask("n2", "list") == ["\u00e9\u4e8b/#1"]
        assert await group.healthy()

    simulate(scenario, tmp_path)


def test_a_subscriber_may_have_an_address_of_ipv6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    connect = LoopRuntime.connect

    async def recording(runtime: LoopRuntime, host: str, port: int) -> Any:
        asked.append((host, port))
        return await connect(runtime, host, port)

    async def scenario(group: Group) -> None:
        monkeypatch.setattr(LoopRuntime, "connect", recording)
        await group.start()
        assert await group.healthy()
        assert await group.ask("n1", "create", topic="e0") is True
        assert await group.ask("n1", "subscribe", topic="e0", subscriber="s", endpoint="[fd00::1]:7000") is True
        assert (await (await group.publisher(SINGLE, "n1")).invoke(event(0))).type == "ok"
        await asyncio.sleep(1.0)
        assert ("fd00::1", 7000) in asked

    simulate(scenario, tmp_path)
