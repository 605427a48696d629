"""What breaks each rule of a qpid cluster's managers and stores, for the tests of invariants and of deadlines."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from harness.run.cases import Case
from nodes.reference.designs.qpid import browsing
from nodes.reference.designs.qpid.administration import Administration
from nodes.reference.designs.qpid.browsing import Browser, Browsing
from nodes.reference.designs.qpid.lease_client import ManagerPermission
from nodes.reference.designs.qpid.manager import coordinator as coordinating
from nodes.reference.designs.qpid.manager import virtual_address
from nodes.reference.designs.qpid.manager.coordinator import COORDINATING, Coordinator
from nodes.reference.designs.qpid.manager.manager import ClusterManager
from nodes.reference.designs.qpid.manager.membership import NEVER, Answers
from nodes.reference.designs.qpid.manager.note import Note
from nodes.reference.designs.qpid.manager.record import ManagerRecord, RecordStore
from nodes.reference.designs.qpid.manager.services import BrokerSupervisor
from nodes.reference.designs.qpid.manager.virtual_address import VirtualAddress
from nodes.reference.designs.qpid.primary import Primary
from nodes.reference.designs.qpid.roles import Roles
from nodes.reference.designs.qpid.states import READY
from nodes.reference.designs.qpid.store_status import StoreStatus
from nodes.reference.engine.replica import QueueReplicas
from nodes.reference.replication.links import Links
from tests.breaking import later

Patch = pytest.MonkeyPatch
Break = Callable[[Patch], None]
QPID = Case("qpid", "queue", "partition,pause,kill", None, 30.0, 30.0, {"min_ok": "5"})


def nothing(patch: Patch) -> None:
    """The bug is switched on by the case."""


def unwritten_promise(patch: Patch) -> None:
    """Who promises a ballot does not write that down."""
    save = RecordStore.save

    def without(self: RecordStore, record: ManagerRecord) -> None:
        save(self, record._replace(promised=self.record.promised))

    patch.setattr(RecordStore, "save", without)


def forgotten_answer(patch: Patch) -> None:
    """A new decision lets a manager forget what it did before the one before."""
    def superseded(self: Answers) -> None:
        self.earlier, self.present = self.present, NEVER

    patch.setattr(Answers, "superseded", superseded)


def hasty_clearance(patch: Patch) -> None:
    """Nobody waits for leases."""
    patch.setattr(coordinating, "leases_are_over", lambda *_: True)


def unnoted_answer(patch: Patch) -> None:
    """Who backs a primary does not note so."""
    patch.setattr(Answers, "backed", lambda self, now: None)


def replaced_primary(patch: Patch) -> None:
    """Now and then a coordinator names somebody else."""
    govern = Coordinator._govern

    def instead(self: Coordinator, now: float) -> None:
        others = [name for name in self._membership.members if name != self.record.primary]
        if self.record.term and self._runtime.random.random() < 0.01:
            self._decide(others[0], now)
        else:
            govern(self, now)

    patch.setattr(Coordinator, "_govern", instead)


def told_with_the_next_beat(patch: Patch) -> None:
    """That a broker has ended is told with the next heartbeat."""
    patch.setattr(ClusterManager, "_changed", lambda self: self.coordinator.react())


def same_version(patch: Patch) -> None:
    """Each note of a primary has the same number."""
    def noted(self: BrokerSupervisor, term: int, version: int, excluded: list[str]) -> int:
        self._store.save(self._store.record._replace(note=Note(term, min(1, version), tuple(excluded))))
        return version

    patch.setattr(BrokerSupervisor, "_note", noted)


def unread_notes(patch: Patch) -> None:
    """A coordinator knows of no note."""
    patch.setattr(Coordinator, "latest_note", lambda self: Note())


def nobody_awaited(patch: Patch) -> None:
    patch.setattr(Primary, "awaits_backups", property(lambda self: False))


def same_generation(patch: Patch) -> None:
    """Each primary's store is of the first generation."""
    write = StoreStatus.write

    def first(self: StoreStatus, **changes: Any) -> None:
        write(self, **{**changes, "generation": min(1, int(changes.get("generation", 1)))})

    patch.setattr(StoreStatus, "write", first)


def anybody_promoted(patch: Patch) -> None:
    """Those are promoted who say that they are not to be."""
    promote = Administration._promote
    patch.setattr(Administration, "_promote", lambda self, request: promote(self, {**request, "force": True}))
    patch.setattr(coordinating, "candidates", lambda reports, order, excluded: [
        name for name in order if name in reports and reports[name].up and not reports[name].eligible])


def unsynced(patch: Patch) -> None:
    """A backup does not sync its disk."""
    begin = Roles.__init__

    def init(self: Roles, broker: Any, *rest: Any) -> None:
        begin(self, broker, *rest)
        broker.database.execute("PRAGMA synchronous=OFF")

    patch.setattr(Roles, "__init__", init)


def unsynced_record(patch: Patch) -> None:
    """A manager does not sync its disk."""
    begin = RecordStore.__init__

    def init(self: RecordStore, database: Any) -> None:
        begin(self, database)
        database.execute("PRAGMA synchronous=OFF")

    patch.setattr(RecordStore, "__init__", init)


def role_unwritten(patch: Patch) -> None:
    write = StoreStatus.write
    patch.setattr(StoreStatus, "write", lambda self, **changes: write(
        self, **{name: value for name, value in changes.items() if name != "role"}))


def no_patience(patch: Patch) -> None:
    """Whoever is promoted has to be let go on as primary at once."""
    lead = ManagerPermission.lead

    def hasty(self: ManagerPermission, term: int) -> None:
        lead(self, term)
        self._patience = NEVER

    patch.setattr(ManagerPermission, "lead", hasty)


def primary_untold(patch: Patch) -> None:
    """A backup does not tell whose it is."""
    description = Administration.description
    patch.setattr(Administration, "description", lambda self: {**description(self), "primary": None})


def every_other_message(patch: Patch) -> None:
    """A backup leaves out every other message."""
    enqueue = QueueReplicas.enqueue
    patch.setattr(QueueReplicas, "enqueue", lambda self, name, sequence, headers, body: (
        sequence % 2 == 0 and enqueue(self, name, sequence, headers, body)))


_SHUT_DOWN = replace(QPID, nemesis="crash", settings={"min_ok": "5", "crash_kind": "shutdown"})

QPID_BREAKS: dict[str, tuple[Case, Break]] = {
    "elected-by-most": (QPID, unwritten_promise),
    "answers-noted": (QPID, forgotten_answer),
    "cleared-when-over": (QPID, hasty_clearance),
    "backed-by-most": (QPID, unnoted_answer),
    "primary-kept": (QPID, replaced_primary),
    "at-once": (QPID, told_with_the_next_beat),
    "notes-grow": (QPID, same_version),
    "confirmed-or-noted": (replace(QPID, settings={"min_ok": "5", "bug": "exclusion-not-noted"}), nothing),
    "noted-are-not-promoted": (QPID, unread_notes),
    "completed-is-stored": (QPID, unsynced),
    "primary-on-disk": (QPID, unsynced),
    "record-on-disk": (QPID, unsynced_record),
    "has-its-time": (QPID, nobody_awaited),
    "ends-when-not-let": (QPID, no_patience),
    "newest-leads": (QPID, same_generation),
    "may-lead": (QPID, anybody_promoted),
    "store-tells": (QPID, role_unwritten),
    "tells-how-it-stands": (QPID, primary_untold),
    "clean-alike": (_SHUT_DOWN, every_other_message),
}
"""Invariant -> a case, and what breaks it there."""

_first: dict[object, int] = {}
"""Event loop -> the first term of the cluster that it runs."""


def _is_later(services: BrokerSupervisor) -> bool:
    """Whether a primary is not the first one of a run: with that the load begins."""
    term = services._store.record.term
    return bool(term) and term > _first.setdefault(asyncio.get_running_loop(), term)


def nobody_chosen(patch: Patch) -> None:
    choose = Coordinator._choose
    patch.setattr(Coordinator, "_choose", lambda self, now, reports: "" if self.record.term else choose(
        self, now, reports))


def no_stepping_down(patch: Patch) -> None:
    patch.setattr(Coordinator, "_step_down", lambda self, why: None)


def never_cleared(patch: Patch) -> None:
    """Leases never end."""
    patch.setattr(coordinating, "leases_are_over", lambda *_: False)
    patch.setattr(Coordinator, "_predecessor_has_ended", lambda self: False)


def not_promoted(patch: Patch) -> None:
    promote = BrokerSupervisor._promote_if_due

    async def due(self: BrokerSupervisor) -> None:
        if not _is_later(self):
            await promote(self)

    patch.setattr(BrokerSupervisor, "_promote_if_due", due)


def started_once(patch: Patch) -> None:
    start = BrokerSupervisor._start_if_due

    async def once(self: BrokerSupervisor, now: float) -> None:
        if not self.starts:
            await start(self, now)

    patch.setattr(BrokerSupervisor, "_start_if_due", once)


def nobody_ended(patch: Patch) -> None:
    patch.setattr(BrokerSupervisor, "_must_end", lambda self, now: "")


def nothing_noted(patch: Patch) -> None:
    patch.setattr(BrokerSupervisor, "_note", lambda self, term, version, excluded: 0)


def not_released(patch: Patch) -> None:
    """What backups have completed is found at the next tick."""
    patch.setattr(Primary, "completed", lambda self, name, number, groups: self.browsing.completed(
        name, number, groups))


def stays_primary(patch: Patch) -> None:
    """A primary goes on whatever it hears, and its manager does not end it."""
    nobody_ended(patch)
    patch.setattr(Roles, "_step_down", lambda self, why: None)


def note_stays(patch: Patch) -> None:
    """Whoever was noted once is noted for ever."""
    recorded = ManagerPermission.recorded
    patch.setattr(ManagerPermission, "recorded", lambda self, excluded: recorded(
        self, sorted({*self.wanted, *excluded})))


def rarely_asked(patch: Patch) -> None:
    """A broker asks three times in two leases."""
    start = ManagerPermission.__init__

    def init(self: ManagerPermission, *args: Any, **more: Any) -> None:
        start(self, *args, **more)
        self._lease *= 2.7

    patch.setattr(ManagerPermission, "__init__", init)


def unpolled(patch: Patch) -> None:
    poll = BrokerSupervisor._poll

    async def rarely(self: BrokerSupervisor) -> None:
        if self.polls > 20:
            await asyncio.sleep(20)
        await poll(self)

    patch.setattr(BrokerSupervisor, "_poll", rarely)


def untold(patch: Patch) -> None:
    change = Roles._change_state

    def quietly(self: Roles, state: str, **fields: Any) -> None:
        vars(self)["greet_all"] = lambda: None
        change(self, state, **fields)
        del vars(self)["greet_all"]

    patch.setattr(Roles, "_change_state", quietly)


def silent(patch: Patch) -> None:
    """A manager that does not coordinate says nothing but answers, once there is a primary."""
    beat = ClusterManager.beat
    patch.setattr(ClusterManager, "beat", lambda self: (
        beat(self) if not self.store.record.term or self.coordinator.phase == COORDINATING else None))


def silence_borne(patch: Patch) -> None:
    """Nobody cuts a link for its silence."""
    patch.setattr(Links, "cut_silent", lambda self: None)


def impatient(patch: Patch) -> None:
    """A link is cut after half of the silence that is meant."""
    made = Links.__init__

    def halved(self: Links, *args: Any, **named: Any) -> None:
        made(self, *args, **named)
        self._silence /= 2

    patch.setattr(Links, "__init__", halved)


def goes_on_unpermitted(patch: Patch) -> None:
    """A broker does not mind that its manager does not let it go on."""
    patch.setattr(ManagerPermission, "lost", lambda self: False)


def leaves_late(patch: Patch) -> None:
    """A manager ends long after a shutdown of the cluster."""
    leave = ClusterManager._leave

    def late(self: ClusterManager) -> None:
        known = self.leaves_at < math.inf
        leave(self)
        self.leaves_at += 0 if known else 20

    patch.setattr(ClusterManager, "_leave", late)


def leaves_early(patch: Patch) -> None:
    """A manager ends half a second after a shutdown of the cluster, or a lease."""
    leave = ClusterManager._leave

    def early(self: ClusterManager) -> None:
        leave(self)
        self.leaves_at = min(self.leaves_at, self.runtime.now() + max(0.5, self.options.lease))

    patch.setattr(ClusterManager, "_leave", early)


def never_there(patch: Patch) -> None:
    patch.setattr(VirtualAddress, "keep", lambda self, until: None)


def never_gone(patch: Patch) -> None:
    patch.setattr(VirtualAddress, "release", lambda self, why, quiet=False: None)


def rarely_announced(patch: Patch) -> None:
    patch.setattr(virtual_address, "ANNOUNCEMENTS_PER_LEASE", 0.1)


def dials_once(patch: Patch) -> None:
    """Whoever was reached once is not dialled again."""
    dial = Links._dial

    async def once(self: Links, peer: str) -> None:
        while peer not in self._times_heard:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(dial(self, peer), 1)
        await asyncio.sleep(1000)

    patch.setattr(Links, "_dial", once)


def awaited_for_ever(patch: Patch) -> None:
    """Completions wait for backups that never catch up."""
    patch.setattr(Browsing, "give_up", lambda self: None)
    patch.setattr(Browsing, "completed", lambda self, name, number, groups: None)


def one_at_a_time(patch: Patch) -> None:
    """A backup that catches up is sent the next group in half a second, however many are under way."""
    async def window(browser: Browser) -> None:
        await asyncio.sleep(0.5 if browser.under_way else 0)

    patch.setattr(browsing, "_window", window)


def stands_for_ever(patch: Patch) -> None:
    """Nobody votes, and who gets no majority goes on to ask for it."""
    later(patch, Coordinator, "asked", lambda self, peer, ask: None)
    patch.setattr(Coordinator, "_give_up", lambda self, now: None)


def never_attached(patch: Patch) -> None:
    """A backup that was away is not let in."""
    attached = Primary.attached

    def once(self: Primary, name: str, message: Any) -> None:
        if self.number < 30:
            attached(self, name, message)

    patch.setattr(Primary, "attached", once)


def never_caught_up(patch: Patch) -> None:
    """A backup does not notice that it has everything."""
    change = Roles._change_state
    patch.setattr(Roles, "_change_state", lambda self, state, **fields: (
        change(self, state, **fields) if state != READY else None))


def unanswered(patch: Patch) -> None:
    """A primary does not hear what its backups have."""
    later(patch, Primary, "completed", lambda self, name, number, groups: None)


_ADDRESS = {"virtual_address": "auto"}

QPID_LATE: dict[str, tuple[str, str, str, dict[str, str], Break]] = {
    "undecided": ("qpid", "queue", "kill", {"kill_kind": "master"}, nobody_chosen),
    "unnamed": ("qpid", "queue", "kill", {"kill_kind": "master"}, nobody_chosen),
    "quorumless": ("qpid", "queue", "quorum", {"quorum_kind": "cut"}, no_stepping_down),
    "clearance": ("qpid", "queue", "kill", {"kill_kind": "master"}, never_cleared),
    "takeover": ("qpid", "queue", "kill", {"kill_kind": "master"}, not_promoted),
    "not-started": ("qpid", "queue", "kill", {"kill_program": "broker"}, started_once),
    "unasked": ("qpid", "queue", "pause", {"pause_program": "broker", "manager_lease": "0.5", "fault_duration": "5"},
                nobody_ended),
    "noting": ("qpid", "queue", "kill", {}, nothing_noted),
    "unreleased": ("qpid", "queue", "kill", {"detection_timeout": "2", "manager_lease": "2"}, not_released),
    "gives-way": ("qpid", "queue", "partition", {
        "partition_kind": "master", "fault_duration": "5", "bug": "inquorate-broker-lives"}, stays_primary),
    "noted-though-ready": ("qpid", "queue", "kill", {"catchup_timeout": "1"}, note_stays),
    "unasking": ("qpid", "queue", "kill", {"manager_lease": "2"}, rarely_asked),
    "unpolled": ("qpid", "queue", "kill", {}, unpolled),
    "untold": ("qpid", "queue", "kill", {"detection_timeout": "2"}, untold),
    "silent-manager": ("qpid", "queue", "kill", {"manager_lease": "2"}, silent),
    "silent-link": ("qpid", "queue", "partition", {"fault_duration": "4"}, silence_borne),
    "silent-manager-link": ("qpid", "queue", "partition", {"fault_duration": "4"}, silence_borne),
    "link-cut-early": ("qpid", "queue", "partition", {"fault_duration": "4"}, impatient),
    "unpermitted": ("qpid", "queue", "pause", {"pause_program": "manager", "fault_duration": "8"},
                    goes_on_unpermitted),
    "shut-down": ("qpid", "queue", "crash", {"crash_kind": "shutdown"}, leaves_late),
    "shut-down-early": ("qpid", "queue", "crash", {"crash_kind": "shutdown"}, leaves_early),
    "ballot": ("qpid", "queue", "kill", {"kill_kind": "master"}, stands_for_ever),
    "primary": ("qpid", "queue", "pause", {
        "pause_kind": "master", "fault_duration": "4", "manager_lease": "0.5", "detection_timeout": "0.5",
        "eviction_timeout": "1", "catchup_timeout": "1"}, not_promoted),
    "away": ("qpid", "queue", "kill", {}, never_attached),
    "catchup": ("qpid", "queue", "kill", {"catchup_timeout": "1"}, never_caught_up),
    "browser": ("qpid", "queue", "kill", {}, unanswered),
    "completion": ("qpid", "queue", "kill", {"catchup_timeout": "1"}, unanswered),
    "manager-link": ("qpid", "queue", "kill", {}, dials_once),
    "slow-backup": ("qpid", "queue", "kill", {"catchup_timeout": "1"}, awaited_for_ever),
    "catch-up-window": ("qpid", "queue", "kill", {}, one_at_a_time),
    "address-away": ("qpid", "queue", "kill", _ADDRESS, never_there),
    "address-kept": ("qpid", "queue", "kill", {**_ADDRESS, "kill_kind": "master", "kill_program": "broker"},
                     never_gone),
    "unannounced": ("qpid", "queue", "kill", _ADDRESS, rarely_announced),
}  # fmt: skip
"""Deadline -> system, workload, faults, settings, and what misses it there."""
