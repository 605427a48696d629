"""The main lines of HA IceStorm's rules on real processes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from icestorm_processes import NAMES, Replicas, eventually

from stormproof.operation import INVOKE, Op
from workloads.event_names import KINDS, NON_REPLICATED, REPLICATED, SINGLE
from workloads.reference.connection import ConnectionBroken
from workloads.reference.events_client import EventListener, Publisher


@pytest.fixture
def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replicas]:
    """Three replicas, not started; a parameter gives their options."""
    made = Replicas(tmp_path, **getattr(request, "param", {}))
    yield made
    made.kill()


@pytest.mark.requirement("I1", part=True)
@pytest.mark.requirement("I3")
@pytest.mark.requirement("I4")
@pytest.mark.requirement("I5")
@pytest.mark.requirement("I6")
@pytest.mark.requirement("I8")
@pytest.mark.requirement("I2", part=True)
def test_two_of_three_wait_after_a_stop_of_all_and_the_most_recent_database_wins(replicas: Replicas) -> None:
    async def scenario() -> None:
        replicas.start()
        await replicas.normal(3)
        assert await replicas.ask("n1", "create", topic="old") is True, "active"
        replicas.kill("n3")
        await replicas.normal(2, "n1", "n2")
        assert await replicas.ask("n1", "create", topic="new") is True
        assert await replicas.ask("n2", "destroy", topic="old") is True
        assert re.search('state=inactive .* why="(no link to n3|n3 does not answer|the link to n3 broke)"',
                         replicas.log("n1")), "the slave found its coordinator gone"  # fmt: skip
        replicas.kill("n2")
        await replicas.until(lambda found: found.get("state") == "inactive", "n1")
        with pytest.raises(TimeoutError):
            await replicas.ask("n1", "create", limit=1.0, topic="mine")
        replicas.kill()
        with pytest.raises(ConnectionBroken):  # down
            await replicas.ask("n1", "list")
        replicas.start("n1", "n3")
        await replicas.until(lambda found: found.get("max") == 2 and found.get("coord") == 3, "n1", "n3")
        waiting = asyncio.create_task(replicas.ask("n3", "list", limit=60.0))
        await asyncio.sleep(1.5)
        assert not waiting.done(), "inactive: blocks"
        for name in ("n1", "n3"):
            found = await replicas.status(name)
            assert found["state"] != "normal" and found["max"] == 2
        replicas.start("n2")
        assert await waiting == ["new"], "what n1 and n2 had confirmed without n3"
        await replicas.normal(3)
        assert [await replicas.ask(name, "list") for name in NAMES] == [["new"]] * 3
        assert {(await replicas.status(name))["max"] for name in NAMES} == {3}
        log = replicas.log("n1")
        assert all(f"state={state}" in log for state in ("inactive", "election", "reorganization", "normal"))

    asyncio.run(scenario())


def event(kind: str, number: int, topic: int = 0) -> Op:
    return Op(INVOKE, "publish", key=topic, value=(KINDS.index(kind), number))


async def received(listener: EventListener, count: int) -> list[Any]:
    """So many events, and no more."""
    found: list[Any] = []

    async def take() -> bool:
        done = await listener.invoke(Op(INVOKE, "receive"))
        found.extend([(done.value, done.node)] if done.type == "ok" else [])
        return len(found) >= count

    await eventually(take, f"{count} events")
    await take()
    assert len(found) == count
    return found


EVENTS = {"acm_timeout": 3.0, "delivery_timeout": 5.0, "client_options": {"retry_count": 1, "poll": 0.4, "links": 0}}


@pytest.mark.requirement("I10")
@pytest.mark.requirement("I11")
@pytest.mark.requirement("I12")
@pytest.mark.requirement("I13")
@pytest.mark.requirement("I14", part=True)
@pytest.mark.parametrize("replicas", [EVENTS], indirect=True)
def test_publishers_of_each_kind_and_subscribers_of_real_replicas(replicas: Replicas) -> None:
    async def publish(publishers: dict[str, Publisher], number: int) -> dict[str, Op]:
        return {kind: await publisher.invoke(event(kind, number)) for kind, publisher in publishers.items()}

    async def subscribers(name: str) -> list[str]:
        return [row[0] for row in await replicas.ask(name, "subscribers", topic="e0")]

    async def scenario() -> None:
        replicas.start()
        await replicas.normal(3)
        listener, linked = await replicas.listener(0), await replicas.listener(1)
        for key, found in enumerate((listener, linked)):
            assert (await found.invoke(Op(INVOKE, "attach", key=key))).type == "ok"
        assert await replicas.ask("n3", "link", topic="e0", target="e1") is True
        publishers = {kind: await replicas.publisher(kind, "n2") for kind in KINDS}
        for number in range(3):
            done = await publish(publishers, number)
            assert {(op.type, op.node) for op in done.values()} == {("ok", "n2")}
        idle = replicas.log("n2").count("idle client closed")
        came = await received(listener, 9)
        for place in range(len(KINDS)):
            mine = [((producer, number), node) for (producer, number), node in came if producer == place]
            assert mine == [((place, number), "n2") for number in range(3)], "in order"
        assert sorted(await received(linked, 9)) == sorted(came), "over the link"

        await eventually(lambda: closed(idle + 3, publishers), "three idle connections closed")
        done = await publish(publishers, 3)
        assert {kind: (op.type, op.node) for kind, op in done.items()} == {
            REPLICATED: ("ok", "n3"), NON_REPLICATED: ("ok", "n2"), SINGLE: ("ok", "n2")}, "opened again, unnoticed"

        replicas.kill("n2")
        await replicas.until(lambda found: (found.get("state"), found.get("up")) == ("normal", [1]), "n3")
        done = await publish(publishers, 4)
        assert done[REPLICATED].type == "ok"
        assert done[NON_REPLICATED].type == done[SINGLE].type == "fail", "who has one endpoint is told"
        done = await publish(publishers, 5)
        assert done[NON_REPLICATED].type == "ok" and done[NON_REPLICATED].node != "n2", "by another proxy"
        assert done[SINGLE].type == "fail", "it knows no other"
        replicas.start("n2")
        await replicas.normal(3)
        done = await publish(publishers, 6)
        assert (done[SINGLE].type, done[SINGLE].node) == ("ok", "n2")

        replicas.kill("n3")
        await replicas.normal(2, "n1", "n2")
        failed_over = await publishers[REPLICATED].invoke(event(REPLICATED, 7))
        assert failed_over.type == "ok" and failed_over.node != "n3", "without notice"

        assert await subscribers("n1") == ["s0"]
        await listener.close()
        assert (await publishers[REPLICATED].invoke(event(REPLICATED, 8))).type == "ok"
        await eventually(lambda: removed("n1"), "the subscriber is removed everywhere")
        assert sum(replicas.log(name).count("delivery failed subscriber=s0") for name in NAMES) == 2, "one retry"
        for client in (linked, *publishers.values()):
            await client.close()

    async def closed(wanted: int, publishers: dict[str, Publisher]) -> bool:
        told = all(publisher._proxy is not None and publisher._proxy.over for publisher in publishers.values())
        return told and replicas.log("n2").count("idle client closed") >= wanted

    async def removed(name: str) -> bool:
        return await subscribers(name) == []

    asyncio.run(scenario())


def test_a_replica_with_another_secret_is_let_in_by_nobody(replicas: Replicas, tmp_path: Path) -> None:
    async def scenario() -> None:
        for name, secret in zip(NAMES, ("ours", "ours", "another"), strict=True):
            path = tmp_path / f"{name}.json"
            config = json.loads(path.read_text())
            config["options"]["secret"] = secret
            path.write_text(json.dumps(config))
        replicas.start()

        async def found_out() -> bool:
            return all("n3 has another secret" in replicas.log(name) for name in ("n1", "n2"))

        await eventually(found_out, "what the logs say")
        assert [(await replicas.status(name))["state"] == "normal" for name in NAMES] == [False] * 3

    asyncio.run(scenario())
