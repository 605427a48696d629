"""Deadlines: what has been pending for too long in a node ends the run; only the time counts that the node had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.run.cases import Case
from harness.sim.campaign import ALL, run_and_judge
from harness.sim.deadlines import Deadlines
from nodes.reference.api import Deliver
from nodes.reference.bugs import BUGS
from nodes.reference.designs.fiorano import lock
from nodes.reference.designs.fiorano.server import HAServer
from nodes.reference.designs.fiorano.states import ACTIVE
from nodes.reference.designs.icestorm.design import IDLE, IceStormDesign
from nodes.reference.designs.joram.election import ADOPTING, Election
from nodes.reference.designs.joram.outbox import Outbox
from nodes.reference.designs.qpid.browsing import Browsing
from nodes.reference.designs.qpid.primary import Primary
from nodes.reference.designs.standalone import Standalone
from nodes.reference.engine.clustered import Clustered
from nodes.reference.engine.destinations import Destinations
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.model import AUTO, Message
from nodes.reference.replication.follower_log import FollowerLog
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.collocated import CollocatedConnection
from nodes.reference.server.connections import Connections
from nodes.reference.server.flow import Flow
from nodes.reference.server.guard import Guard
from nodes.reference.server.networks import Networks
from nodes.reference.server.output_buffer import OutputBuffer
from nodes.reference.server.session_timers import SessionTimers
from nodes.reference.server.sessions import Session
from nodes.reference.storage import client as storage_client
from nodes.systems.catalog import SYSTEMS
from nodes.systems.reference.joram.system import JORAM
from nodes.timeouts import within
from stormproof.contracts.deadline import Deadline, Pending
from stormproof.contracts.fault_points import POINT_ACTS
from stormproof.contracts.invariant import INVARIANTS
from stormproof.run_folder import read_run
from stormproof.test import Test
from tests.icestorm.test_icestorm_deadlines import LATE as ICESTORM_LATE
from tests.qpid.qpid_breaks import QPID_LATE
from tests.sim.joram_breaks import JORAM_LATE
from tests.sim.test_fiorano_deadlines import LATE as FIORANO_LATE
from workloads.reference.connection import StompConnection

ALWAYS = Deadline("own", {"timeout": 2}, 0.5, "a paper", requirement="it is done within {}")
CALM = Deadline("calm", {"timeout": 2}, 0.5, "a paper", requirement="others do it within {}", calm=True)


class Program:
    """What is pending in it is what a test says."""

    def __init__(self) -> None:
        self.waits: Pending = {}

    def pending(self) -> Pending:
        return self.waits


def looks(program: Program, times: list[float], *, ran_on: float = 0.0, calm_since: float | None = 0.0) -> str:
    """What is wrong in the end, with a deadline of 1.5 seconds."""
    watch = Deadlines((ALWAYS, CALM), {"timeout": 0.5})
    for time in times:
        if late := watch.look(program, time, ran_on, calm_since):
            return f"{late[0].name}: {late[1]}"
    return ""


@pytest.mark.requirement("H17", part=True)
def test_what_is_pending_for_too_long_is_late() -> None:
    program = Program()
    program.waits = {"own": ["a", "b"]}
    assert looks(program, [0.0, 1.0, 1.5]) == ""
    assert looks(program, [0.0, 1.0, 1.7]) == "own: it is done within 1.5 s; not done for 1.7 s (a)"
    assert looks(program, [0.0, 1.0, 1.7], ran_on=0.5) == "", "it was paused until then"
    assert looks(program, [0.0, 1.0, 1.7], calm_since=None), "faults are no excuse"


def test_what_depends_on_others_counts_without_faults_only() -> None:
    program = Program()
    program.waits = {"calm": ["a"]}
    assert looks(program, [0.0, 1.0, 1.7]).startswith("calm: ")
    assert looks(program, [0.0, 1.0, 1.7], calm_since=None) == ""
    assert looks(program, [0.0, 1.0, 1.7], calm_since=0.9) == ""


def test_what_moves_on_has_its_time_anew() -> None:
    program, watch = Program(), Deadlines((ALWAYS,), {"timeout": 0.5})
    for time in range(9):
        program.waits = {"own": [("a", time // 2)]}
        assert watch.look(program, float(time), 0.0, 0.0) is None
    program.waits = {}
    assert watch.look(program, 20.0, 0.0, 0.0) is None


@pytest.mark.requirement("H17", part=True)
def test_what_a_program_plans_too_far_ahead_is_late_at_once() -> None:
    class Planning(Program):
        def planned(self) -> Mapping[str, Mapping[Hashable, float]]:
            return {"own": {"b": 1.5}}

    program = Planning()
    program.waits = {"own": ["a", "b"]}
    assert looks(program, [0.0]) == ""
    assert looks(program, [0.0, 0.2]) == "own: it is done within 1.5 s; not done for 1.7 s by its own plan (b)"


def test_names_are_told_apart_and_settings_are_there() -> None:
    for name in SYSTEMS.names():
        system = SYSTEMS.load(name)
        deadlines = [each.name for each in system.deadlines]
        assert len({*deadlines, *(each.name for each in system.invariants)}) == len(deadlines) + len(system.invariants)
        if deadlines:
            options = {option.name for option in system.options}
            assert {setting for each in system.deadlines for setting in each.times} <= options


def test_an_exception_may_be_for_one_kind_of_a_fault_alone() -> None:
    claimed = Deadline("own", {}, 1.0, "so", ("disk", "points:cut", "shared-db:stop"))

    def test(*nemesis: str, **options: str) -> Test:
        return Test("a", "b", nemesis, options=options)

    assert claimed.claimed(test("kill", "points", points_kind="kill,power"))
    assert claimed.claimed(test("kill", points_kind="cut"))
    assert claimed.claimed(test("shared-db", shared_db_kind="cut"))
    assert not claimed.claimed(test("points", points_kind="power,cut"))
    assert not claimed.claimed(test("points", points_kind="any"))
    assert not claimed.claimed(test("points"))
    assert not claimed.claimed(test("shared-db", shared_db_kind="stop"))
    assert not claimed.claimed(test("disk", disk_kind="empty"))


def test_a_silent_master_is_late_where_a_strike_cuts_no_links() -> None:
    (silent,) = (each for each in JORAM.deadlines if each.name == "silent-master")
    options = {"partitions": "primary-partition", "heartbeat_interval": 0.0}
    for kind in POINT_ACTS:
        test = Test("joram", "queue", ("points",), options={**options, "points_kind": kind})
        assert silent.claimed(test) == (kind not in ("cut", "partial"))


LATE_BUGS = [
    ("idle-by-parts", "idle-connection", "kill,pause", 4), ("dials-rarely", "link", "partition", 3),
    ("renews-late", "asking", "kill", 1),
    ("merges-lowest-first", "merge", "kill", 1), ("turns-of-twenty", "turn-1", "kill", 1),
    ("hello-late", "broadcast", "kill,partition", 12), ("ballots-rarely", "candidacy", "kill", 1),
    ("idle-timer-goes-on", "idle-client", "points", 3),
    ("election-without-end", "election", "points,partition", 10), ("waits-for-all-replicas", "answered", "kill", 21),
    ("dead-link-kept", "silent-link", "partition", 1), ("stood-still-adds-up", "believed", "power", 3),
    ("leaver-is-awaited", "leaver", "rolling", 3), ("standby-names-itself", "misdirects", "kill", 1),
]  # fmt: skip
"""Bug -> the deadline that it misses, the faults under which, and a seed."""
SLOW_BUGS = [("heartbeats-late", "silent-master", "kill", 1), ("expected-for-long", "expected", "kill", 3)]


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize(("bug", "deadline", "nemesis", "seed"), [
    *LATE_BUGS, *(pytest.param(*each, marks=pytest.mark.soak) for each in SLOW_BUGS),
])  # fmt: skip
def test_a_broker_that_is_late_ends_the_run(
    bug: str, deadline: str, nemesis: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SYSTEMS.load(BUGS[bug].design), "waits", ())  # a timer that is set too late is seen earlier
    workload = "subscriptions" if BUGS[bug].design == "icestorm" else "queue"
    settings = {"bug": bug, "min_ok": "5"}
    if workload == "subscriptions":
        settings["election_timeout"] = "1" if deadline == "answered" else "0.3"
    case = Case(BUGS[bug].design, workload, nemesis, None, 22.0, 17.0, settings)
    found, *_ = run_and_judge(case, seed, tmp_path, tmp_path, ALL)
    assert found.broken == (INVARIANTS,) and BUGS[bug].drawn, found.sentence
    assert found.run_dir is not None
    told = read_run(found.run_dir)["invariant_broken"]
    (rule,) = (each.rule for each in SYSTEMS.load(BUGS[bug].design).deadlines if each.name == deadline)
    assert told["name"] == deadline and told["source"] and told["rule"] == rule


Patch = pytest.MonkeyPatch


def no_beats(patch: Patch) -> None:
    """A broker sends no heart-beats."""
    patch.setattr(SessionTimers, "beat", lambda self, interval: None)


def hasty_beats(patch: Patch) -> None:
    """A broker sends heart-beats ten times a second, whatever a client has asked for."""
    beat = SessionTimers.beat
    patch.setattr(SessionTimers, "beat", lambda self, interval: beat(self, min(interval, 0.1)))


def source_lost(patch: Patch) -> None:
    """A candidate that adopts a log loses the source at once, and goes on."""
    adopt = Election._adopt

    def lose(self: Election) -> None:
        if not self._node.started:  # The first election of all is as ever.
            adopt(self)
            return
        source = max(self.promises, key=lambda name: name != self._replica.name)
        self.phase, self._deadline = ADOPTING, self._replica.now() + 10.0
        self._node.receive_from(FollowerLog(self._replica, source, self.epoch))
        self._replica.links.cut(source)

    patch.setattr(Election, "_adopt", lose)
    patch.setattr(Election, "lost_link", lambda *_: None)


def never_paused(patch: Patch) -> None:
    """A broker takes all that a client sends."""
    async def go_on(self: Flow, must_wait: Callable[[], bool]) -> None:
        self.read()

    patch.setattr(Flow, "pause", go_on)


def deaf_to_silence(patch: Patch) -> None:
    """Clients send no heart-beats, and the broker does not mind."""
    patch.setattr(SessionTimers, "listen", lambda self, *how: None)
    patch.setattr(StompConnection, "_beat", lambda self: asyncio.sleep(1000))


def missed_beats_add_up(patch: Patch) -> None:
    """Whoever is heard is ended all the same."""
    patch.setattr(SessionTimers, "listen", lambda self, name, interval, most, silent: self.start(
        name, interval, silent))


def lost_wake_up(patch: Patch) -> None:
    """Who has waited for its connection goes on three seconds later."""
    pause = Flow.pause

    async def late(self: Flow, must_wait: Callable[[], bool]) -> None:
        self.paused = True
        await asyncio.sleep(3 if must_wait() else 0)
        await pause(self, must_wait)

    patch.setattr(Flow, "pause", late)


def patience_without_end(patch: Patch) -> None:
    """Nobody gives a client up that reads nothing."""
    patch.setattr(OutputBuffer, "_give_up", lambda self, reason: None)


def connection_lost(patch: Patch) -> None:
    """Clients lose their connections, as to others that take them over, and are not told."""
    greet = Session._greet

    def lose(self: Session, headers: Mapping[str, str]) -> None:
        greet(self, headers)
        self.conn = None if not self.admin else self.conn

    patch.setattr(Session, "_greet", lose)


def told_too_late(patch: Patch) -> None:
    """What is committed waits for ever."""
    patch.setattr(Outbox, "commit", lambda self, index: None)


def never_adopted(patch: Patch) -> None:
    """A candidate does not notice that it has the most complete log."""
    patch.setattr(Election, "adopted", lambda self, source: None)


def never_forwarded(patch: Patch) -> None:
    """Nothing is sent to another server."""
    patch.setattr(Networks, "_pump", lambda self, server, connection: None)


def busy_as_idle(patch: Patch) -> None:
    """A client that waits for its answer counts as an idle one."""
    async def close(self: IceStormDesign) -> None:
        while True:
            await asyncio.sleep(0.05)
            for client in [each for each in self.clients.values() if each.busy]:
                self._forget(client, IDLE)

    patch.setattr(IceStormDesign, "_close_idle", close)


def still_expected(patch: Patch) -> None:
    """A backup that attaches goes on to be expected."""
    patch.setattr(Primary, "attached", lambda self, name, message: self.browsing.attached(name, message))


def ready_for_nothing(patch: Patch) -> None:
    """Nobody waits for a backup that is ready."""
    completed = Browsing.completed

    def without(self: Browsing, name: str, number: int, groups: int) -> None:
        completed(self, name, number, groups)
        for browser in self.browsers.values():
            browser.counts = False

    patch.setattr(Browsing, "completed", without)


def undecided(patch: Patch) -> None:
    """An active server whose peer is gone stays what it is."""
    decide = HAServer.decide
    patch.setattr(HAServer, "decide", lambda self: None if self.state == ACTIVE and self.peer is None else decide(self))


_LEASE = 1.0


def awaits_the_database(patch: Patch) -> None:
    """A server that the database does not answer waits on."""
    patch.setattr(storage_client, "within", lambda seconds: within(None))


def waits_for_ever(patch: Patch) -> None:
    """A server that the gateway does not answer waits on."""
    patch.setattr(lock, "within", lambda seconds: within(None if seconds == _LEASE else seconds))


def never_cut_off(patch: Patch) -> None:
    """A client that is ended is told nothing, and stays."""
    patch.setattr(OutputBuffer, "finish", lambda self, last: None)


def never_doomed(patch: Patch) -> None:
    """A client that is ended is told so, and no timer cuts it off."""
    finish = OutputBuffer.finish

    def without(self: OutputBuffer, last: bytes) -> None:
        finish(self, last)
        if self.cut is not None:
            self.cut.cancel()

    patch.setattr(OutputBuffer, "finish", without)


def rights_stay(patch: Patch) -> None:
    """Who has lost a right is not closed."""
    patch.setattr(StoreEngine, "_withdraw", lambda self, login: setattr(self, "_reduced", None))


def lives_on(patch: Patch) -> None:
    """A broker whose store has failed thinks about that for a while."""
    stop = ReferenceBroker.stop

    async def later(self: ReferenceBroker) -> None:
        for _ in range(30):
            await asyncio.sleep(0.1)
        await stop(self)

    patch.setattr(ReferenceBroker, "stop", later)


def lazy(patch: Patch) -> None:
    """Commands wait for others that may come."""
    async def run(self: Standalone) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(0.5)
            self._commit()

    patch.setattr(Standalone, "_run", run)


def nothing_shared(patch: Patch) -> None:
    """Elements of clustered queues give each other nothing."""
    patch.setattr(Clustered, "balance", lambda self, queue: None)


def called_rarely(patch: Patch) -> None:
    """A server that could not be reached is called again after ten times the usual time."""
    begin = Networks.__init__

    def patient(self: Networks, *about: Any) -> None:
        begin(self, *about)
        self._retry *= 10

    patch.setattr(Networks, "__init__", patient)


def no_network_beats(patch: Patch) -> None:
    """Servers say nothing to each other but messages, and do not mind silence."""
    patch.setattr(Networks, "_tick", lambda self: asyncio.sleep(1000))


def slow_to_open(patch: Patch) -> None:
    """A client inside the broker takes its time."""
    opened = CollocatedConnection.open

    async def later(self: CollocatedConnection) -> None:
        await asyncio.sleep(3)
        await opened(self)

    patch.setattr(CollocatedConnection, "open", later)


def slow_to_react(patch: Patch) -> None:
    """A client inside the broker thinks about each message."""
    following = CollocatedConnection.next_message

    async def later(self: CollocatedConnection) -> Deliver:
        message = await following(self)
        await asyncio.sleep(3)
        return message

    patch.setattr(CollocatedConnection, "next_message", later)


def long_seconds(patch: Patch) -> None:
    """So many passcodes may be hashed in a hundred seconds."""
    count = Guard._count

    def rarely(self: Guard) -> None:
        self._window = max(self._window, self._now() - 0.5)
        count(self)

    patch.setattr(Guard, "_count", rarely)


def never_idle(patch: Patch) -> None:
    """Connections whose clients are gone stay."""
    patch.setattr(Connections, "_start_idle_timer", lambda self, conn: None)


def settled_when_sent(patch: Patch) -> None:
    """What is sent on a reliable connection with ``ack:auto`` is settled at once, as on any other."""
    delivery = Destinations.delivery

    def made(self: Destinations, message: Message) -> Deliver:
        return replace(delivery(self, message), auto=message.subscription is not None
                       and message.subscription.ack == AUTO)

    patch.setattr(Destinations, "delivery", made)


def not_dispatched(patch: Patch) -> None:
    """Room that an acknowledgement makes is not used before the next message comes."""
    consume = Destinations.consume

    def quietly(self: Destinations, message: Message) -> None:
        before = dict(self._touched)
        consume(self, message)
        self._touched = before

    patch.setattr(Destinations, "consume", quietly)


def counted_as_strangers(patch: Patch) -> None:
    """Whoever has logged in counts as somebody who has not."""
    seat = ReferenceBroker.seat

    def kept(self: ReferenceBroker, session: Session) -> bool:
        self.logins = {**self.logins, session: None} if seat(self, session) else self.logins
        return session in self.logins

    patch.setattr(ReferenceBroker, "seat", kept)


QUIET = ("silent-client", "idle-session", "network-silent")
"""Whoever has something to say is not silent."""
LATE: dict[str, tuple[str, str, str, dict[str, str], Callable[[Patch], None]]] = {
    "heart-beat": ("standalone", "queue", "kill", {}, no_beats),
    "hasty-beat": ("standalone", "queue", "kill", {"client_heartbeat": "3"}, hasty_beats),
    "taken-beyond": ("icestorm", "topic-dialogue", "kill", {"max_outstanding": "1"}, never_paused),
    "silent-client": ("standalone", "queue", "kill", {"client_heartbeat": "1"}, deaf_to_silence),
    "idle-session": ("standalone", "queue", "kill", {"client_heartbeat": "1", "idle_timeout": "1"}, deaf_to_silence),
    "uncut": ("standalone", "dialogue", "packets", {"client_heartbeat": "3", "op_timeout": "6"}, never_doomed),
    "adoption": ("joram", "queue", "partition,kill", {}, source_lost),
    "denied": ("standalone", "security", "kill", {}, rights_stay),
    "bereft": ("standalone", "security", "kill", {}, rights_stay),
    "failed-store": ("fiorano", "queue", "disk", {"disk_kind": "sync-error"}, lives_on),
    "lingering": ("standalone", "dialogue", "kill", {"client_heartbeat": "3", "op_timeout": "6"}, never_cut_off),
    "uncommitted": ("standalone", "queue", "kill", {}, lazy),
    "refused-idle": ("standalone", "dialogue", "kill", {"visitors": "true"}, long_seconds),
    "sharing": ("joram", "clustered", "kill", {}, nothing_shared),
    "network-beat": ("joram", "clustered", "kill", {}, no_network_beats),
    "network-silent": ("joram", "clustered", "kill", {}, no_network_beats),
    "network-call": ("joram", "clustered", "kill", {}, called_rarely),
    "collocated": ("standalone", "processing", "kill", {}, slow_to_open),
    "reaction": ("standalone", "processing", "kill", {}, slow_to_react),
    "cut-early": ("standalone", "queue", "kill", {}, missed_beats_add_up),
    "held-up": ("standalone", "queue", "kill", {}, lost_wake_up),
    "unread": ("standalone", "dialogue", "none", {"output_timeout": "0.2", "client_heartbeat": "3"},
               patience_without_end),
    "left-over": ("standalone", "queue", "kill", {}, connection_lost),
    "untold": ("joram", "queue", "kill", {"propagation": "asynchronous"}, told_too_late),
    "adopted": ("joram", "queue", "kill,partition", {"ack": "majority", "detection_timeout": "0.5"}, never_adopted),
    "forwarding": ("joram", "clustered", "kill", {}, never_forwarded),
    "ended-busy": ("icestorm", "topic-dialogue", "kill", {"acm_timeout": "5"}, busy_as_idle),
    "expected-though-there": ("qpid", "queue", "kill", {"catchup_timeout": "2"}, still_expected),
    "ready-uncounted": ("qpid", "queue", "kill", {}, ready_for_nothing),
    "answer": ("fiorano", "queue", "gateway", {"gateway_kind": "cut", "lease": str(_LEASE)}, waits_for_ever),
    "database-answer": ("fiorano", "queue", "shared-db", {"mode": "shared", "database_timeout": "0.5"},
                        awaits_the_database),
    "undecided": ("fiorano", "queue", "kill", {"mode": "replicated"}, undecided),
    "delivery": ("standalone", "queue", "kill", {}, not_dispatched),
    "login": ("standalone", "queue", "none", {}, counted_as_strangers),
    "orphan": ("standalone", "clustered", "packets", {"idle_timeout": "1", "surface": "true"}, never_idle),
    "settled-early": ("joram", "queue", "kill", {"surface": "true"}, settled_when_sent),
    **QPID_LATE,
    **JORAM_LATE,
}


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize("name", LATE)
def test_a_deadline_that_is_missed_ends_the_run(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    system, workload, nemesis, settings, break_it = LATE[name]
    tested = SYSTEMS.load(system)
    (deadline,) = (each for each in tested.deadlines if each.name == name)
    monkeypatch.setattr(tested, "deadlines", (deadline,))
    monkeypatch.setattr(tested, "invariants", ())
    monkeypatch.setattr(tested, "waits", ())
    break_it(monkeypatch)
    rate = 0.3 if name in QUIET else 17.0
    nodes = 5 if name.startswith("turn-") else None
    case = Case(system, workload, nemesis, nodes, 26.0, rate, {"min_ok": "1", INVARIANTS: "true", **settings})
    seen = []
    for seed in range(1, 9):
        found, *_ = run_and_judge(case, seed, tmp_path / str(seed), tmp_path, ALL)
        seen.append(found.sentence)
        if found.run_dir is not None and read_run(found.run_dir).get("invariant_broken", {}).get("name") == name:
            return
    raise AssertionError(seen)


@pytest.mark.requirement("H17", part=True)
def test_each_deadline_is_missed_by_something() -> None:
    elsewhere = {"overtaken", "superseded"}  # tests/broker/test_broker_reliable.py
    missed = {*LATE, *ICESTORM_LATE, *(each.partition(" ")[0] for each in FIORANO_LATE),
              *(deadline for _, deadline, *_ in (*LATE_BUGS, *SLOW_BUGS))}  # fmt: skip
    declared = {each.name for name in SYSTEMS.names() for each in SYSTEMS.load(name).deadlines}
    assert declared == missed | elsewhere
