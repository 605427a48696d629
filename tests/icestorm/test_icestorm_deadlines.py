"""Deadlines of HA IceStorm: each ends a run, or is there to do so, when what keeps it is wrong; questions, and events
on their way, say what they wait for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.run.cases import Case
from harness.sim.campaign import ALL, run_and_judge
from nodes.reference import wire
from nodes.reference.api import Config
from nodes.reference.designs.icestorm import design
from nodes.reference.designs.icestorm.decisions import ELECTION, INACTIVE, NORMAL, REORGANIZATION, follows
from nodes.reference.designs.icestorm.delivery import PublishedEvent, SubscriberOutbox
from nodes.reference.designs.icestorm.design import IceStormDesign
from nodes.reference.designs.icestorm.election import InvitationElection
from nodes.reference.designs.icestorm.options import IceStormOptions
from nodes.reference.designs.icestorm.peers import PeerFailed, Peers
from nodes.reference.designs.icestorm.topics import ORDERED, ReplicatedTopic, TopicSubscriber
from nodes.systems.catalog import SYSTEMS
from nodes.systems.reference.icestorm.probes import questions_of, step_of, unlike_tables, wrong_counts
from stormproof.contracts.invariant import INVARIANTS
from stormproof.run_folder import read_run
from tests.breaking import later

Patch = pytest.MonkeyPatch


class Stub:
    """Links that lead nowhere."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, peer: str, frame: bytes) -> bool:
        self.sent.append(peer)
        return True

    def cut(self, peer: str, reason: str = "") -> None:
        pass


def lonely(answer: Callable[..., Any] = lambda *_: True, failed: bool = False) -> tuple[Peers, Stub]:
    config = Config("n3", "icestorm", "", peers={"n1": ("", 1), "n2": ("", 2), "n3": ("", 3)})
    runtime = SimpleNamespace(random=random.Random(1), now=lambda: 0.0)
    broker: Any = SimpleNamespace(config=config, runtime=runtime, store_failed=failed)
    stub: Any = Stub()
    return Peers(broker, IceStormOptions(response_timeout=0.02), answer, lambda *_, **__: stub), stub


def test_questions_say_what_they_wait_for() -> None:
    async def ask() -> None:
        peers, _ = lonely()
        asking = [asyncio.create_task(each) for each in (
            peers.ask("n1", "promised"), peers.ask("n1", "database", "g", timeout=9.0),
            peers.ask("n1", "request", [], patient=True), peers.ask_all(["n2"], "promised"))]
        await asyncio.sleep(0.001)
        assert questions_of(peers) == {"question": [("n1", 1), ("n2", 4)], "long-question": [("n1", 2)], "round": [1]}
        peers.broken["n1"] += 1
        assert questions_of(peers)["lost-question"] == [("n1", 1), ("n1", 2), ("n1", 3)], "the link is another"
        peers.link_down("n1")
        peers.frames("n2", [["answer", 4, 7]])
        await asyncio.wait(asking)
        assert questions_of(peers) == {} and peers.failures() == {"n1": 3, "n2": 0}
        assert all(isinstance(task.exception(), PeerFailed) for task in asking[:3])

    asyncio.run(ask())


@pytest.mark.parametrize("later", [True, False])
def test_a_peer_that_has_answered_what_was_asked_later_is_not_dead(later: bool) -> None:
    async def ask() -> None:
        peers, _ = lonely()
        asking = [asyncio.create_task(peers.ask("n1", "promised")) for _ in range(2)]
        await asyncio.sleep(0.001)
        peers.frames("n1", [["answer", 2 if later else 1, 7]])
        await asyncio.wait(asking)
        assert questions_of(peers).get("cut-alive", []) == ([("n1", "promised")] if later else [])

    asyncio.run(ask())


@pytest.mark.parametrize("lost", [True, False])
def test_an_answer_goes_back_on_the_link_on_which_it_was_asked_for(lost: bool) -> None:
    """A peer that was started anew counts its questions anew: it would take it for the answer to another one."""
    async def ask() -> None:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        peers, stub = lonely(lambda *_: answer)
        peers.frames("n1", [["ask", 5, "request", [["list", "", "", "", 0, "", "", "", "", 9]]]])
        if lost:
            peers.link_down("n1")
        answer.set_result(["done", []])
        await asyncio.sleep(0)
        assert stub.sent == ([] if lost else ["n1"])

    asyncio.run(ask())


def test_events_say_what_they_wait_for() -> None:
    async def deliver() -> None:
        taken: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def connect(host: str, port: int) -> Any:
            return await taken

        def spawn(work: Any, name: str) -> asyncio.Task[None]:
            return asyncio.get_running_loop().create_task(work)

        runtime: Any = SimpleNamespace(connect=connect, spawn=spawn, now=asyncio.get_running_loop().time,
                                       log=lambda *_, **__: None)
        reader, sent = asyncio.StreamReader(), list[bytes]()
        writer = SimpleNamespace(write=sent.append, transport=SimpleNamespace(abort=lambda: None))
        subscriber = TopicSubscriber("s", "127.0.0.1:9", -1, ORDERED, "64.1")
        outbox = SubscriberOutbox(runtime, IceStormOptions(retry_interval=9.0), subscriber, lambda: None, None)
        assert step_of(outbox) is None
        for number in (1, 2):
            outbox.add(PublishedEvent(number, "n1", "t", {}, b"x"))
        assert step_of(outbox) == ("retry", 0)
        await asyncio.sleep(0.001)
        assert step_of(outbox) == ("connecting", 1)
        taken.set_result((reader, writer))
        await asyncio.sleep(0.001)
        assert step_of(outbox) == ("unacknowledged", 1, "1") and len(sent) == outbox.most == 1
        outbox._taken.append(1)
        assert outbox.again == 0, "until it is sent"
        flying = dict(outbox.in_flight)
        outbox.in_flight.clear()
        assert step_of(outbox) == ("delivery", 1, 2), "there is room, and nobody has seen that yet"
        outbox.in_flight.update(flying)
        reader.feed_eof()
        await asyncio.sleep(0.001)
        assert step_of(outbox) == ("retry", 1) and outbox.again == 0
        outbox.add(PublishedEvent(2, "n1", "t", {}, b"x"))
        assert outbox.again == 1, "it was there before"
        outbox.stop()
        await asyncio.sleep(0.001)
        assert step_of(outbox) == ("removal", "64.1")

    asyncio.run(deliver())


def test_an_ordered_subscriber_that_gets_several_at_once_is_miscounted() -> None:
    def wrong() -> str:
        return next(wrong_counts(delivery, max_waiting=3), "")

    outbox: Any = SimpleNamespace(waiting_bytes=0, most=2, again=0, unqueued=0, queue=[], window=1,
                                  subscriber=TopicSubscriber("s", "", 0, ORDERED))
    delivery: Any = SimpleNamespace(outboxes={("t", "s"): outbox})
    assert "2 at once" in wrong()
    outbox.most = 1
    assert wrong() == ""
    outbox.again = 1
    assert "again" in wrong()
    outbox.again, outbox.queue = 0, [SimpleNamespace(body=b"")] * 19
    assert wrong() == ""
    outbox.queue = [SimpleNamespace(body=b"")] * 20
    assert "20 wait" in wrong()
    outbox.queue, outbox.unqueued = [], 1
    assert "1 were dropped" in wrong()


@pytest.mark.parametrize(("before", "after", "right"), [
    ((INACTIVE, "n1", "A"), (ELECTION, "n2", "B"), True), ((NORMAL, "n3", "A"), (ELECTION, "n1", "B"), True),
    ((REORGANIZATION, "n3", "A"), (ELECTION, "n2", "B"), False), ((ELECTION, "n3", "A"), (ELECTION, "n2", "B"), False),
    ((NORMAL, "n3", "A"), (ELECTION, "n3", "A"), False),
    ((ELECTION, "n2", "A"), (REORGANIZATION, "n2", "A"), True), ((ELECTION, "n2", "A"), (NORMAL, "n2", "A"), False),
    ((INACTIVE, "n1", "B"), (REORGANIZATION, "n2", "A"), False),
    ((REORGANIZATION, "n2", "A"), (NORMAL, "n2", "A"), True),
    ((REORGANIZATION, "n2", "A"), (INACTIVE, "n2", "A"), True),
    ((REORGANIZATION, "n2", "B"), (NORMAL, "n2", "A"), False), ((NORMAL, "n2", "A"), (INACTIVE, "n1", "B"), True),
    ((ELECTION, "n2", "A"), (INACTIVE, "n1", "A"), False), ((NORMAL, "n2", "A"), (INACTIVE, "n2", "B"), False),
])  # fmt: skip
def test_states_follow_as_the_procedures_have_it(before: Any, after: Any, right: bool) -> None:
    assert follows(before, after, "n1") is right


def options(patch: Patch, **times: float) -> None:
    """Replicas have other times than the test's settings say."""
    read = IceStormOptions.from_config
    patch.setattr(IceStormOptions, "from_config", lambda config: replace(read(config), **times))


def never_closed(patch: Patch) -> None:
    async def close(self: IceStormDesign) -> None:
        await asyncio.sleep(1e6)

    patch.setattr(IceStormDesign, "_close_idle", close)


def late_answers(patch: Patch) -> None:
    options(patch, response_timeout=2.0)


def late_retries(patch: Patch) -> None:
    options(patch, retry_interval=3.0)


def rare_looks(patch: Patch) -> None:
    options(patch, master_timeout=5.0)


def rare_looks_alone(patch: Patch) -> None:
    options(patch, election_timeout=7.0)


def never_removed(patch: Patch) -> None:
    patch.setattr(IceStormDesign, "_failed", lambda self, topic, subscriber: None)


def takes_events_at_any_time(patch: Patch) -> None:
    async def at_once(self: IceStormDesign) -> None:
        """Whoever is in no group goes on all the same."""

    patch.setattr(IceStormDesign, "_until_active", at_once)


def waits_for_ever(patch: Patch) -> None:
    async def wait(self: IceStormDesign) -> None:
        while self.election.state != NORMAL:
            self.blocked += 1
            await asyncio.sleep(1e6)

    patch.setattr(IceStormDesign, "_until_active", wait)


def tries_again_late(patch: Patch) -> None:
    patch.setattr(design, "_RETRY_SECONDS", 3.0)


def stays_when_refused(patch: Patch) -> None:
    recover = InvitationElection.recover
    patch.setattr(InvitationElection, "recover", lambda self, why: None if "withdrew" in why else recover(self, why))


def taken_twice(patch: Patch) -> None:
    """The bug is switched on."""


def never_merges(patch: Patch) -> None:
    """A coordinator that has found others leaves it at that."""
    may_merge = InvitationElection._may_merge

    def later(self: InvitationElection, highest: int) -> bool:
        may_merge(self, highest)
        return False

    patch.setattr(InvitationElection, "_may_merge", later)


def never_merges_again(patch: Patch) -> None:
    """Groups that have parted stay apart."""
    later(patch, InvitationElection, "_may_merge", lambda self, highest: False)


def deaf_to_the_end(patch: Patch) -> None:
    """Whoever waits for an answer does not notice that the link is broken."""
    def down(self: Peers, peer: str) -> None:
        self.broken[peer] += 1

    patch.setattr(Peers, "link_down", down)


def patient_with_databases(patch: Patch) -> None:
    """A database may be on its way for ten seconds, and a replica that has nothing else to do takes that long."""
    answer = IceStormDesign._answer

    def slowly(self: IceStormDesign, peer: str, question: str, arguments: list[Any]) -> Any:
        if question not in ("database", "install"):
            return answer(self, peer, question, arguments)
        return asyncio.get_running_loop().create_future()

    options(patch, election_timeout=3.0)
    patch.setattr(IceStormDesign, "_answer", slowly)


def patient_with_subscribers(patch: Patch) -> None:
    """A subscriber may take its time to take a connection, or to acknowledge an event."""
    options(patch, delivery_timeout=5.0)


LATE: dict[str, tuple[str, str, dict[str, str], Callable[[Patch], None]]] = {
    "question": ("subscriptions", "pause", {}, late_answers),
    "round": ("subscriptions", "pause", {}, late_answers),
    "look": ("subscriptions", "kill", {}, rare_looks),
    "look-alone": ("subscriptions", "partition", {"fault_duration": "9"}, rare_looks_alone),
    "first-look": ("subscriptions", "kill", {}, rare_looks_alone),
    "unused": ("topic-dialogue", "kill", {"acm_timeout": "1"}, never_closed),
    "retry": ("topic-dialogue", "kill", {}, late_retries),
    "removal": ("topic-dialogue", "kill", {}, never_removed),
    "early": ("events", "partition", {}, takes_events_at_any_time),
    "blocked": ("events", "partition", {}, waits_for_ever),
    "again": ("subscriptions", "partition", {}, tries_again_late),
    "lost-question": ("subscriptions", "points", {"points_kind": "kill"}, deaf_to_the_end),
    "long-question": ("subscriptions", "kill", {"election_timeout": "0.3"}, patient_with_databases),
    "group": ("subscriptions", "partition", {}, never_merges_again),
    "away": ("subscriptions", "partition", {}, never_merges_again),
    "connecting": ("events", "partition", {"fault_duration": "6"}, patient_with_subscribers),
    "unacknowledged": ("events", "partition", {"fault_duration": "6"}, patient_with_subscribers),
    "cut-alive": ("subscriptions", "pause", {"bug": "slow-is-dead"}, lambda patch: None),
    "later-merge": ("subscriptions", "partition", {"fault_duration": "6"}, never_merges),
    "forsaken": ("subscriptions", "partition,packets", {"election_timeout": "0.3"}, stays_when_refused),
    "astray": ("subscriptions", "partition,packets", {"bug": "invitation-twice", "election_timeout": "0.3"},
               taken_twice),
}


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize("name", LATE)
def test_a_deadline_that_is_missed_ends_the_run(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    workload, nemesis, settings, break_it = LATE[name]
    tested = SYSTEMS.load("icestorm")
    (deadline,) = (each for each in tested.deadlines if each.name == name)
    monkeypatch.setattr(tested, "deadlines", (deadline,))
    monkeypatch.setattr(tested, "invariants", ())
    monkeypatch.setattr(tested, "waits", ())
    break_it(monkeypatch)
    case = Case("icestorm", workload, nemesis, 5 if name == "astray" else None, 26.0, 5.0,
                {"min_ok": "1", INVARIANTS: "true", **settings})
    seen = []
    for seed in range(1, 25 if name == "astray" else 9):
        found, *_ = run_and_judge(case, seed, tmp_path / str(seed), tmp_path, ALL)
        seen.append(found.sentence)
        if found.run_dir is not None and read_run(found.run_dir).get("invariant_broken", {}).get("name") == name:
            return
    raise AssertionError(seen)


def test_promise_and_stamp_are_compared_with_the_store() -> None:
    rows = [(b"",)]
    sql: Any = SimpleNamespace(execute=lambda statement: rows if "meta" in statement else [])
    database: Any = SimpleNamespace(topics=dict[str, ReplicatedTopic](), promised=5, stamp=(1, 2, 0.0))
    rows[:] = [(wire.encode([5, 1, 2, 0.0]),)]
    assert unlike_tables(database, sql) == ""
    rows[:] = [(wire.encode([4, 1, 2, 0.0]),)]
    assert "promise and stamp" in unlike_tables(database, sql)
    rows.clear()
    assert "promise and stamp" in unlike_tables(database, sql)
