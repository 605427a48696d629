"""Groups of replicas as the documentation of HA IceStorm describes them, in simulated time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from icestorm_sim import Group, simulate

from harness.run.cases import Case
from harness.sim.campaign import ALL, run_and_judge
from nodes.reference.api import Config
from nodes.reference.designs.icestorm import topics
from nodes.reference.designs.icestorm.decisions import Stamp, may_replicate, merge_delay, most_recent, next_epoch
from nodes.reference.designs.icestorm.election import InvitationElection
from nodes.reference.designs.icestorm.options import IceStormOptions
from nodes.reference.designs.icestorm.peers import PeerFailed, Peers
from nodes.reference.designs.icestorm.requests import Request
from nodes.reference.replication.handshake import LinkError
from nodes.systems.catalog import SYSTEMS
from nodes.systems.reference.icestorm.probes import awaited_by
from stormproof.contracts.cluster import MAIN


@pytest.mark.requirement("I5")
@pytest.mark.parametrize(
    ("group", "max_seen", "allowed"),
    [(3, 0, True), (2, 0, False), (2, 2, False), (2, 3, True), (1, 3, False)],
)
def test_a_group_replicates_with_everybody_or_with_a_majority_once_all_were_seen(
    group: int, max_seen: int, allowed: bool
) -> None:
    assert may_replicate(group, 3, max_seen, needed=2) is allowed


@pytest.mark.requirement("I6")
def test_the_most_recent_database_has_the_highest_epoch_then_the_most_changes() -> None:
    assert most_recent({"a": Stamp(64, 9), "b": Stamp(128, 0), "c": Stamp(64, 10)}) == "b"
    assert most_recent({"a": Stamp(64, 9), "c": Stamp(64, 10)}) == "c"
    assert most_recent({"a": Stamp(128, 5, wall=10.0), "b": Stamp(64, 1, wall=11.0)}) == "b"


@pytest.mark.requirement("I1")
def test_who_comes_first_waits_least_and_epochs_never_meet() -> None:
    assert merge_delay(3, 2, 3, 1.0) == 0.0
    assert 1.0 <= merge_delay(2, 3, 3, 1.0) < merge_delay(1, 3, 3, 1.0)
    assert len({next_epoch(100, ident) for ident in range(1, 64)}) == 63
    assert all(next_epoch(next_epoch(100, 63), ident) > next_epoch(100, 63) for ident in range(1, 64))


@pytest.mark.requirement("I1")
@pytest.mark.requirement("I2")
@pytest.mark.requirement("I3")
@pytest.mark.parametrize("nodes", [3, 5])
def test_the_highest_priority_coordinates_is_replaced_and_returns(tmp_path: Path, nodes: int) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        top, second = group.nodes[-1], group.nodes[-2]
        assert await group.healthy()
        before = await group.status(top)
        assert (before["state"], before["coord"], before["max"]) == ("normal", nodes, nodes)
        assert before["group"].startswith(f"{nodes}:") and before["up"] == list(range(1, nodes))
        await group.kill(top)
        seconds = await group.until(
            lambda status: status["state"] == "normal" and status["coord"] == nodes - 1, second, 15.0
        )
        assert seconds is not None
        log = (await group.backend.download(second, f"/{second}/broker.log")).decode()
        assert all(f"state={state}" in log for state in ("inactive", "election", "reorganization", "normal"))
        await group.start(top)
        assert await group.healthy()
        assert (await group.status(second))["coord"] == nodes, "the highest priority leads again"

    simulate(scenario, tmp_path, nodes=nodes)


@pytest.mark.requirement("I4")
@pytest.mark.requirement("I8")
def test_a_minority_stops_within_its_bound_and_its_clients_wait(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        await group.cut_off("n3")
        stopped = await group.until(lambda status: status["state"] != "normal", "n3", 10.0)
        options = group.test.options
        assert stopped is not None
        assert stopped <= options["master_timeout"] + options["response_timeout"] + 0.1
        assert await group.until(lambda status: status["state"] == "normal" and status["coord"] == 2, "n2", 15.0)
        assert await group.ask("n1", "create", topic="a") is True
        with pytest.raises(TimeoutError):
            await group.ask("n3", "list", limit=5.0)
        waiting = asyncio.create_task(group.ask("n3", "list", limit=30.0))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        await group.cut_off()
        assert await waiting == ["a"], "the request waited until the replica was active, and saw what the others did"

    simulate(scenario, tmp_path)


@pytest.mark.requirement("I5")
def test_after_a_stop_of_all_everybody_must_take_part(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        await group.kill()
        await group.start("n1", "n2")
        assert (await group.status("n1")).get("max", 0) in (0, 1)
        assert await group.until(lambda status: status.get("state") == "normal", "n2", 20.0) is None
        assert (await group.status("n2"))["max"] == 2
        await group.start("n3")
        assert await group.healthy()
        await group.kill("n3")
        assert await group.until(lambda status: status["state"] == "normal" and status["coord"] == 2, "n2", 15.0)
        await group.kill("n1")
        await group.start("n1")
        seconds = await group.until(lambda status: status.get("state") == "normal", "n1", 15.0)
        assert seconds is not None, "a majority is enough while one that has seen all is running"
        assert (await group.status("n1"))["max"] == 3, "it has learnt how many there were"

    simulate(scenario, tmp_path)


@pytest.mark.requirement("I6")
@pytest.mark.requirement("I14", part=True)
def test_the_most_recent_database_wins_a_full_restart(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        assert await group.ask("n1", "create", topic="old") is True
        await group.kill("n3")
        assert await group.until(lambda status: status["state"] == "normal" and status["coord"] == 2, "n2", 15.0)
        assert await group.ask("n1", "create", topic="new") is True
        assert await group.ask("n2", "destroy", topic="old") is True
        endpoint = {"endpoint": "10.0.0.131:7000", "retryCount": 2, "reliability": "ordered"}
        assert await group.ask("n1", "subscribe", topic="new", subscriber="s", **endpoint) is True
        await group.kill()
        await group.start()
        assert await group.healthy()
        assert (await group.status("n3"))["coord"] == 3
        for node in group.nodes:
            assert await group.ask(node, "list") == ["new"]
            assert await group.ask(node, "subscribers", topic="new") == [["s", "10.0.0.131:7000", 2, "ordered"]]

    simulate(scenario, tmp_path)


@pytest.mark.requirement("I14")
def test_topics_subscribers_and_links_through_any_replica(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        assert await group.ask("n1", "create", topic="a") is True
        assert await group.ask("n2", "create", topic="a") == "topic-exists"
        assert await group.ask("n2", "create", topic="b") is True
        assert await group.ask("n3", "link", topic="a", target="b", cost=3) is True
        assert await group.ask("n1", "link", topic="a", target="b") == "link-exists"
        assert await group.ask("n1", "link", topic="a", target="c") == "no-such-topic"
        assert await group.ask("n2", "links", topic="a") == [["b", 3]]
        subscription = {"topic": "b", "subscriber": "s", "endpoint": "10.0.0.131:7000"}
        assert await group.ask("n1", "subscribe", **subscription) is True
        assert await group.ask("n2", "subscribe", **subscription) == "already-subscribed"
        assert await group.ask("n3", "unsubscribe", topic="b", subscriber="s") is True
        assert await group.ask("n3", "unsubscribe", topic="b", subscriber="s") == "no-such-subscriber"
        assert await group.ask("n1", "destroy", topic="b") is True
        assert await group.ask("n1", "links", topic="a") == []
        assert await group.ask("n1", "subscribers", topic="b") == "no-such-topic"
        assert await group.ask("n1", "subscribe", topic="a", subscriber="s", endpoint="nowhere") == "bad-endpoint"
        assert await group.ask("n1", "frobnicate") == "bad-request"

    simulate(scenario, tmp_path)


@pytest.mark.requirement("I6")
def test_wall_clock_stamps_are_an_option(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        assert await group.ask("n1", "create", topic="a") is True
        stamp = (await group.status("n1"))["stamp"]
        assert stamp[2] > 9e8, "seconds since 1970"

    simulate(scenario, tmp_path, stamp="wall-clock")


@pytest.mark.requirement("I5")
def test_a_start_that_one_replica_leaves_before_it_is_done_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promise, stubborn = InvitationElection.asked_to_promise, ["n1"]

    def not_n1(election: InvitationElection, peer: str, group: str, epoch: int) -> list[Any] | None:
        return None if stubborn and election.name == "n1" else promise(election, peer, group, epoch)

    async def scenario(group: Group) -> None:
        monkeypatch.setattr(InvitationElection, "asked_to_promise", not_n1)
        await group.start()
        assert await group.until(lambda status: status.get("state") == "normal", "n3", 20.0) is None
        assert "the group fell apart" in await group.log("n3")
        stubborn.clear()
        assert await group.healthy()

    simulate(scenario, tmp_path)


@pytest.mark.requirement("I4")
def test_a_slow_slave_does_not_cost_the_others_their_group(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        before = (await group.status("n3"))["group"]
        await group.backend.pause("n1", MAIN)
        for number in range(3):
            assert await group.ask("n2", "create", topic=f"t{number}") is True, "forwarded to who waits for n1"
        assert (await group.status("n2"))["group"] == before and (await group.status("n3"))["up"] == [2]
        await group.backend.resume("n1", MAIN)
        assert await group.healthy()
        assert await group.ask("n1", "list") == ["t0", "t1", "t2"]

    simulate(scenario, tmp_path)


@pytest.mark.requirement("I4")
def test_a_minority_stops_in_time_while_it_looks_for_others(tmp_path: Path) -> None:
    """Five replicas, one of which is away already, so that a coordinator asks in vain all the time."""

    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        await group.cut_off("n1")
        await asyncio.sleep(4.0)
        options = group.test.options
        for moment in range(8):
            await asyncio.sleep(0.13 * moment)
            await group.cut_off("n5", "n1")
            stopped = await group.until(lambda status: status["state"] != "normal", "n5", 10.0)
            assert stopped is not None
            assert stopped <= options["master_timeout"] + options["response_timeout"] + 0.1
            await group.cut_off("n1")
            assert await group.until(lambda status: status["state"] == "normal", "n5", 20.0) is not None
            await asyncio.sleep(1.0)

    simulate(scenario, tmp_path, nodes=5)


MALFORMED = (
    7, [], ["ask"], ["answer", 1], ["ask", 1, "promised"], ["ask", "x", "promised", []], ["ask", 1, "nonsense", []],
    ["ask", 1, "invitation", ["n1"]], ["ask", 1, "invitation", [1, 2]], ["ask", 1, "accept", ["g", [1], 0]],
    ["ask", 1, "promise", ["g", "x"]], ["ask", 1, "install", ["g", 1, [1, 2, 0.0], [["a", b"nonsense"]]]],
    ["ask", 1, "install", ["g", 1, [1, 2], None]], ["ask", 1, "update", ["g", 1, [1, 2, 0.0], ["subscribe", "t"]]],
    ["ask", 1, "request", [["create"]]], ["ask", 1, "request", [["frob", "", "", "", 0, "", "", "", ""]]],
    ["ask", 1, "are-you-there", [None]], ["answer", [1], True], {"ask": 1},
)  # fmt: skip


class Stub:
    """Links that lead nowhere."""

    def __init__(self) -> None:
        self.cuts: list[str] = []

    def send(self, peer: str, frame: bytes) -> bool:
        return True

    def cut(self, peer: str, reason: str = "") -> None:
        self.cuts.append(reason)


def lonely_peers(answered: list[str], failed: bool = False) -> tuple[Peers, Stub]:
    config = Config("n3", "icestorm", "", peers={"n1": ("", 1), "n2": ("", 2), "n3": ("", 3)})
    runtime = SimpleNamespace(random=random.Random(1), now=lambda: 0.0)
    broker: Any = SimpleNamespace(config=config, runtime=runtime, store_failed=failed)
    stub: Any = Stub()
    peers = Peers(broker, IceStormOptions(), lambda peer, question, arguments: answered.append(question),
                  lambda *_, **__: stub)
    return peers, stub


@pytest.mark.parametrize("failed", [False, True])
def test_a_replica_whose_store_has_failed_answers_nothing(failed: bool) -> None:
    """Its memory may be ahead of its disk: a peer would count on what a restart does not find."""
    answered: list[str] = []
    peers, _ = lonely_peers(answered, failed)
    peers.frames("n1", [["ask", 1, "promised", []]])
    assert answered == ["promised"] * (not failed)


@pytest.mark.parametrize("frame", MALFORMED)
def test_words_that_no_replica_says_end_the_link(frame: Any) -> None:
    answered: list[str] = []
    peers, _ = lonely_peers(answered)
    with pytest.raises(LinkError):
        peers.frames("n1", [frame])
    assert not answered
    peers.frames("n1", [["ask", 1, "promised", []], ["answer", 1, 0]])
    assert answered == ["promised"]


@pytest.mark.parametrize(
    ("question", "arguments", "answer"),
    [("promised", [], "many"), ("promise", ["g", 1], [1]), ("database", ["g"], [["a", b"nonsense"]]),
     ("accept", ["g", [], 0], 1), ("request", [list(Request("list"))], ["done"])],
)  # fmt: skip
def test_answers_that_no_replica_gives_count_as_none(question: str, arguments: list[Any], answer: Any) -> None:
    async def ask() -> None:
        peers, stub = lonely_peers([])
        asking = asyncio.create_task(peers.ask("n1", question, *arguments))
        await asyncio.sleep(0)
        peers.frames("n1", [["answer", 1, answer]])
        with pytest.raises(PeerFailed):
            await asking
        assert len(stub.cuts) == 1

    asyncio.run(ask())


@pytest.mark.parametrize("answer", [None, ["answer", 1, "nonsense"]])
def test_a_question_to_several_that_fails_leaves_no_failure_that_nobody_takes(answer: Any) -> None:
    """Where the process ends first, asyncio would complain of an exception that was never retrieved."""

    async def ask() -> None:
        peers, _ = lonely_peers([])
        asking = asyncio.create_task(peers.ask_all(["n1", "n2"], "promised"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asked = [task for task in asyncio.all_tasks() if task not in (asking, asyncio.current_task())]
        waiting = [future for futures in peers._waiting.values() for future in futures.values()]
        assert len(asked) == len(waiting) == 2
        if answer is None:
            peers.link_down("n1")
        else:
            peers.frames("n1", [answer])
        peers.frames("n2", [["answer", 2, 7]])
        await asyncio.wait(asked)
        assert all(task.exception() is None for task in asked)
        assert all(future.exception() is None for future in waiting)
        assert await asking == {"n2": 7}

    asyncio.run(ask())


def test_a_full_database_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MAX_ROWS", 3)

    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        assert [await group.ask("n1", "create", topic=name) for name in "abcd"] == [True, True, True, "full"]
        assert await group.ask("n2", "link", topic="a", target="b") == "full"
        where = {"topic": "a", "subscriber": "s"}
        assert await group.ask("n2", "subscribe", **where, endpoint="10.0.0.1:70") == "full"
        assert await group.ask("n2", "subscribe", **where, endpoint="10.0.0.1:70000") == "bad-endpoint"
        assert await group.ask("n2", "destroy", topic="c") is True
        assert await group.ask("n2", "link", topic="a", target="b") is True

    simulate(scenario, tmp_path)


@pytest.mark.requirement("I4", part=True)
@pytest.mark.requirement("I6", part=True)
@pytest.mark.parametrize("real", [False, True])
def test_the_real_systems_lone_coordinator_stays_until_a_change_is_tried(tmp_path: Path, real: bool) -> None:
    """ICESTORM 3.7: with ``reads=local`` and ``step_down=on-write`` a coordinator that is cut off tells old things."""

    async def scenario(group: Group) -> None:
        await group.start()
        assert await group.healthy()
        await group.cut_off("n3")
        assert await group.until(lambda status: status["state"] == "normal" and status["coord"] == 2, "n2", 20.0)
        assert await group.ask("n2", "create", topic="new") is True
        assert ((await group.status("n3"))["state"] == "normal") is real
        if not real:
            with pytest.raises(TimeoutError):
                await group.ask("n3", "list", limit=5.0)
            return
        assert await group.ask("n3", "list") == [], "an old answer"
        assert await group.ask("n3", "create", topic="mine") == "unknown"
        assert (await group.status("n3"))["state"] != "normal"
        await group.cut_off()
        assert await group.healthy()
        assert "new" in await group.ask("n3", "list")

    options = {"reads": "local", "step_down": "on-write"} if real else {}
    simulate(scenario, tmp_path, **options)


def test_who_is_brought_by_another_is_awaited_though_its_own_invitation_comes_second() -> None:
    class Peering:
        """Those who are asked: n1 is in n2's group still, which takes it along before it is invited itself."""

        names = ("n1", "n2")

        async def ask_all(self, peers: list[str], question: str, *about: Any) -> dict[str, bool]:
            assert election.accepted("n2", about[1], ["n1"], 0)
            return {"n1": False, "n2": True}

    config = Config("n3", "icestorm", "", peers={"n1": ("", 1), "n2": ("", 2), "n3": ("", 3)})
    runtime = SimpleNamespace(random=random.Random(1), now=lambda: 0.0, log=lambda *_, **__: None, point=lambda _: None)
    peering: Any = Peering()
    broker: Any = SimpleNamespace(config=config, runtime=runtime)
    database: Any = None
    election = InvitationElection(broker, IceStormOptions(), database, peering, lambda: None)

    async def invite() -> None:
        merging = asyncio.create_task(election._merge(["n1", "n2"]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (election.state, awaited_by(election)) == ("election", ["n1"])
        merging.cancel()

    asyncio.run(invite())


def test_a_coordinator_that_does_not_wait_for_who_is_brought_is_seen(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted = InvitationElection.accepted
    monkeypatch.setattr(InvitationElection, "accepted", lambda self, peer, group, passed_on, max_seen: accepted(
        self, peer, group, [], max_seen))
    (rule,) = (each for each in SYSTEMS.load("icestorm").invariants if each.name == "awaits-who-comes")
    monkeypatch.setattr(SYSTEMS.load("icestorm"), "invariants", (rule,))
    case = Case("icestorm", "subscriptions", "partition,pause,kill", 5, 20.0, 30.0, {"min_ok": "5"})
    found = (run_and_judge(case, seed, tmp_path / str(seed), tmp_path, ALL)[0].sentence for seed in range(1, 26))
    assert any("awaits-who-comes" in each and "without" in each for each in found)
