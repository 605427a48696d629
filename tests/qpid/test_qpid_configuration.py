"""How queues, exchanges and bindings propagate [LC2, LC5], and how they are listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from qpid_sim import LIMIT, Group, simulate

from nodes.systems.reference.qpid.stores import propagation
from workloads.reference.connection import Rejected

DECLARED = {"x-declare": json.dumps({"qpid.replicate": "configuration", "owner": "tests"})}


async def kinds(group: Group, node: str) -> dict[str, dict[str, str]]:
    """The queues that a broker knows of, whatever it is, with their arguments."""
    answer = await group.ask(node, "list", kind="queue")
    return {name: {key: value for key, value in arguments.items() if key != "created"}
            for _, name, arguments in answer["objects"]}  # fmt: skip


async def promote(group: Group, lost: str, chosen: str) -> None:
    await group.kill(lost)
    await group.until(chosen, "connecting")
    assert (await group.ask(chosen, "promote"))["ok"]


@pytest.mark.requirement("Q13", part=True)
@pytest.mark.requirement("Q6", part=True)
@pytest.mark.parametrize("documented", ["", "LC2a"])
def test_queues_made_on_demand(tmp_path: Path, documented: str) -> None:
    """They are on the backups when what made them is confirmed; as documented later, and then the client's address
    makes them again, with their arguments."""
    async def scenario(group: Group) -> None:
        await group.begin()
        connection = await group.connect("n1")
        await connection.request("SEND", {"destination": "/queue/sent", **DECLARED}, b"a", LIMIT)
        subscribe = {"destination": "/queue/watched", "id": "s", "ack": "client", **DECLARED}
        await connection.request("SUBSCRIBE", subscribe, b"", LIMIT)
        await promote(group, "n1", "n2")
        arguments = {"qpid.replicate": "configuration", "owner": "tests"}
        assert await kinds(group, "n2") == ({} if documented else {"sent": arguments, "watched": arguments})
        connection = await group.connect("n2")
        await connection.request("SUBSCRIBE", subscribe, b"", LIMIT)
        await connection.request("SEND", {"destination": "/queue/sent", **DECLARED}, b"b", LIMIT)
        assert await kinds(group, "n2") == {"sent": arguments, "watched": arguments}
        assert (await group.depth("n2", "sent"), await group.depth("n3", "sent")) == (1, 0)

    simulate(scenario, tmp_path, as_documented=documented)


@pytest.mark.requirement("Q13", part=True)
@pytest.mark.parametrize("text", [
    "", "[]", "{", '{"a": 1}', '{"qpid.replicate": "all"}', '{"created": "1"}', '{"a": "\\ud800"}',
])
def test_a_declaration_that_makes_no_sense(tmp_path: Path, text: str) -> None:
    """It is refused in one line, and nothing is made; an empty one says nothing."""
    async def scenario(group: Group) -> None:
        await group.begin()
        connection = await group.connect("n1")
        send = connection.request("SEND", {"destination": "/queue/q", "x-declare": text}, b"a", LIMIT)
        if not text:
            await send
            return
        with pytest.raises(Rejected, match=r"x-declare|qpid.replicate|created"):
            await send
        assert await kinds(group, "n1") == {}

    simulate(scenario, tmp_path)


@pytest.mark.requirement("Q13", part=True)
def test_a_subscription_that_is_refused_makes_no_queue(tmp_path: Path) -> None:
    """A dialogue found it: default campaign, seed 20."""
    async def scenario(group: Group) -> None:
        await group.begin()
        connection = await group.connect("n1")
        about = {"id": "s", "ack": "client"}
        await connection.request("SUBSCRIBE", {**about, "destination": "/queue/there"}, b"", LIMIT)
        with pytest.raises(Rejected):
            await connection.request("SUBSCRIBE", {**about, "destination": "/queue/refused"}, b"", LIMIT)
        assert set(await kinds(group, "n1")) == set(await kinds(group, "n2")) == {"there"}

    simulate(scenario, tmp_path)


@pytest.mark.requirement("Q13", part=True)
@pytest.mark.parametrize("documented", ["LC2c", "LC2b,LC2c"])
def test_a_script_asks_what_has_propagated(tmp_path: Path, documented: str) -> None:
    """LC2, case b: where changes are told late, a script asks until the backups have its change, and runs its command
    again when the primary is lost before; as documented nobody tells it."""
    async def told(group: Group) -> str:
        found: dict[str, Any] = {node: await group.ask(node, "status") for node in group.nodes}
        return " ".join(propagation("n1", found["n1"], found))

    async def scenario(group: Group) -> None:
        await group.begin()
        assert not await group.manage("n1", "create-queue", queue="made")
        early = await told(group)
        assert ("is not told (LC2b" in early) == ("LC2b" in documented)
        if "LC2b" in documented:
            await promote(group, "n1", "n2")
            assert "made" not in await kinds(group, "n2"), "the script could not know"
            return
        assert "at change 1, which has propagated to no backup, not yet to n2, n3" in early
        while "not yet" in await told(group):
            pass
        assert "at change 1, which has propagated to n2, n3" in await told(group)
        assert "made" in await kinds(group, "n3")
        await promote(group, "n1", "n2")
        assert "made" in await kinds(group, "n2")

    simulate(scenario, tmp_path, as_documented=documented)


@pytest.mark.requirement("Q13", part=True)
@pytest.mark.requirement("Q7", part=True)
@pytest.mark.parametrize("documented", ["", "LC5"])
def test_patterns_say_what_is_propagated(tmp_path: Path, documented: str) -> None:
    """LC5: by name, the first pattern that matches; an argument is stronger. As documented, by arguments alone."""
    async def scenario(group: Group) -> None:
        await group.begin()
        for queue in ("tmp.keep", "tmp.x", "conf.x", "other"):
            await group.send("n1", "a", queue=queue)
        assert not await group.manage("n1", "create-queue", queue="tmp.own", **{"qpid.replicate": "messages"})
        assert not await group.manage("n1", "create-exchange", exchange="tmp.news")
        await promote(group, "n1", "n2")
        names = {name for _, name, _ in (await group.ask("n2", "list"))["objects"]}
        everywhere = {"tmp.keep", "conf.x", "other", "tmp.own"}
        assert names == (everywhere | {"tmp.x", "tmp.news"} if documented else everywhere)
        assert await group.depth("n2", "conf.x") == int(bool(documented))
        assert await group.depth("n2", "tmp.keep") == 1

    simulate(scenario, tmp_path, as_documented=documented, patterns="tmp.keep=messages,tmp.*=none,conf.*=configuration")


@pytest.mark.requirement("Q6", part=True)
def test_a_long_list_comes_in_pages(tmp_path: Path) -> None:
    """By request of a client, and of an administrator, who may ask a backup."""
    async def scenario(group: Group) -> None:
        await group.begin()
        connection = await group.connect("n1")
        for number in range(300):
            body = json.dumps({"queue": f"{number:03}", "note": "x" * 100}).encode()
            await connection.request("SEND", {"destination": "/management", "x-request": "create-queue"}, body, LIMIT)
        found, pages, after = [], 0, ""
        while after or not pages:
            body = json.dumps({"kind": "queue", "after": after}).encode()
            headers = {"destination": "/management", "x-request": "list"}
            answer = await connection.request("SEND", headers, body, LIMIT)
            assert len(answer["x-answer"]) < 17_000
            found += [name for _, name, _ in json.loads(answer["x-answer"])]
            pages, after = pages + 1, answer.get("x-more", "")
        assert found == [f"{number:03}" for number in range(300)] and pages > 2
        listed, after = 0, ""
        while after or not listed:
            page = await group.ask("n3", "list", after=after)
            listed, after = listed + len(page["objects"]), page["more"]
        assert listed == 300
        refused = await group.ask("n3", "list", kind=3)
        assert not refused["ok"]

    simulate(scenario, tmp_path)
