"""Read-only probe of a ``qpid`` cluster manager, for invariants and deadlines."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

from nodes.reference.api import Pending
from nodes.reference.designs.qpid.manager.coordinator import ASKING, COORDINATING, STANDING, Coordinator
from nodes.reference.designs.qpid.manager.manager import ClusterManager
from nodes.reference.designs.qpid.manager.note import Note
from nodes.reference.designs.qpid.manager.options import ManagerOptions
from nodes.reference.designs.qpid.manager.report import Report, candidates
from nodes.reference.designs.qpid.manager.services import BrokerSupervisor
from nodes.reference.designs.qpid.manager.virtual_address import VirtualAddress
from nodes.systems.reference.probes.replication import silent_links

_LATE_LOOK = 0.5
"""Seconds by which an event may be seen late."""
_SHUTDOWN_SECONDS = 3.0
"""Seconds after which managers end when the cluster was shut down in order."""

MANAGER = "manager"
"""The kind of a manager's program, for invariants."""


class ManagerObserved(NamedTuple):
    """The values that invariants observe.

    - ``phase``: the coordinator's phase. ``leads``: the ballot in which it is coordinator (0: it is not).
    - ``promised`` to ``note``: its record.
    - ``cleared``: the term whose primary it permits to be started (0: none).
    - ``earlier`` and ``present``: the times at which it last backed a primary (``Answers``).
    - ``unsaid``: whether others have not been informed of urgent news.
    - ``unheeded``: the term in which its broker may be promoted, if that is not being handled; else 0."""

    phase: str
    leads: int
    promised: int
    ballot: int
    term: int
    primary: str
    promoted: int
    finished: int
    note: Note
    cleared: int
    earlier: float
    present: float
    unsaid: bool = False
    unheeded: int = 0


class ManagerProbe:
    """Observes one manager."""

    kind = MANAGER

    def __init__(self, manager: ClusterManager) -> None:
        self._manager = manager
        self._leaves = (math.inf, 0.0)
        """The time at which it ends after a shutdown, and the seconds left when that was first seen."""

    def observed(self) -> ManagerObserved:
        """Return the manager's state."""
        manager = self._manager
        coordinator, record, answers = manager.coordinator, manager.store.record, manager.answers
        return ManagerObserved(coordinator.phase, coordinator.ballot, record.promised, record.ballot, record.term,
                               record.primary, record.promoted, record.finished, record.note,
                               record.term if coordinator.cleared else 0, answers.earlier, answers.present,
                               self._unsaid(), unheeded(manager.services))  # fmt: skip

    @property
    def node(self) -> str:
        """The node whose manager it is."""
        return self._manager.node

    @property
    def members(self) -> Sequence[str]:
        """All nodes that have a manager."""
        return self._manager.membership.members

    @property
    def needed(self) -> int:
        """The number of managers that form a majority."""
        return self._manager.membership.needed

    @property
    def options(self) -> ManagerOptions:
        """The manager's options."""
        return self._manager.options

    @property
    def coordinator(self) -> str:
        """The member last heard as the coordinator of the highest ballot."""
        return self._manager.coordinator.coordinator

    def reports(self) -> Mapping[str, Report]:
        """Return the latest broker reports of the live members, this one included."""
        return self._manager.reports()

    def now(self) -> float:
        """Return the seconds on this manager's clock."""
        return self._manager.runtime.now()

    def heard_ago(self) -> float:
        """Return the seconds since the last message of the coordinator."""
        return self._manager.runtime.now() - self._manager.coordinator.heard_at

    def backed_ago(self) -> float:
        """Return the seconds since this manager last backed a primary, or was started."""
        answers = self._manager.answers
        return self._manager.runtime.now() - max(answers.earlier, answers.present)

    def aged(self) -> float:
        """Return the seconds since it last backed the primary of a term before that of its decision."""
        return self._manager.runtime.now() - self._manager.answers.earlier

    def _unsaid(self) -> bool:
        """Tell whether urgent news was not sent. Others notice by themselves that it no longer coordinates."""
        said, news = self._manager.said, self._manager.news()
        return news[0] != said[0] or (news[1] > 0 and news[1:] != said[1:])

    def pending(self) -> Pending:
        """Return pending work of this manager."""
        manager = self._manager
        if manager.ending:
            return {}
        if manager.leaves_at < math.inf:
            if self._leaves[0] != manager.leaves_at:
                self._leaves = manager.leaves_at, manager.leaves_at - manager.runtime.now()
            return _of_shutdown(manager, *self._leaves)
        found: dict[str, Collection[Hashable]] = dict(_of_coordinator(manager, manager.coordinator))
        found |= _of_broker(manager.services, manager.runtime.now())
        if manager.address is not None:
            found |= of_address(manager.address, manager.services.primary_until(), manager.runtime.now())
        if heard := manager.links.last_heard():
            found["silent-manager"] = found["silent-manager-link"] = heard
        found |= {name: things for name, things in silent_links(manager.links, manager.options.lease).items()
                  if name != "silent-link"}
        if missing := manager.links.missing():
            found["manager-link"] = missing
        return found


def _of_shutdown(manager: ClusterManager, end: float, left: float) -> Pending:
    """Return the end that a manager awaits after an orderly shutdown, ``left`` seconds after that was first seen."""
    limit = max(_SHUTDOWN_SECONDS, 2 * manager.options.lease)
    found: dict[str, Collection[Hashable]] = {"shut-down": {end: limit + manager.options.heartbeat}}
    if left < limit - _LATE_LOOK:
        found["shut-down-early"] = [end]
    return found


def unheeded(services: BrokerSupervisor) -> int:
    """Return the term in which the broker may be promoted, if the promoting task waits otherwise; else 0."""
    waits = services.rests and services.cleared > services.heeded and not services.wake.is_set()
    return services.cleared if waits else 0


def _of_broker(services: BrokerSupervisor, now: float) -> Pending:
    """Return the events that the manager's broker waits for."""
    if not services.has_quorum(now) or services.left or services.promoting:
        return {}
    if not services.process:
        return {"not-started": [services.starts]}
    found: dict[str, Collection[Hashable]] = {"unpolled": [services.polls]}
    if services.asked_at is not None:
        found["unasked"] = [(services.process, services.asked_at)]
    return found


def of_address(address: VirtualAddress, until: float, now: float) -> Pending:
    """Return pending work for the virtual address, if it is to be here until that time."""
    if until <= now:
        return {"address-kept": [""]} if address.held else {}
    if not address.held or address.renewed_for < now:
        return {"address-away": [""]}
    return {"unannounced": [address.announced_at]}


def _of_coordinator(manager: ClusterManager, coordinator: Coordinator) -> Pending:
    """Return the search for a coordinator, or, as the coordinator, for a primary."""
    now = manager.runtime.now()
    if coordinator.phase in (ASKING, STANDING):
        # A permitted candidate asks again, for promises; one without answers asks with the same ballot later.
        return {"ballot": [(coordinator.phase, coordinator.last_ballot, coordinator.deadline)]}
    if coordinator.phase == COORDINATING:
        quorum = manager.membership.quorum_since(now) + manager.options.lease >= now
        return {**({} if quorum else {"quorumless": [coordinator.last_ballot]}), **without_primary(manager, now)}
    if coordinator.hears_coordinator(now) or len(manager.alive()) < manager.membership.needed:
        return {}
    return {"candidacy": [coordinator.stand_at]}


def without_primary(manager: ClusterManager, now: float) -> Pending:
    """Return the coordinator's pending work while the cluster has no primary."""
    coordinator, record, reports = manager.coordinator, manager.store.record, manager.reports()
    lacking = coordinator.latest_note().names
    here = record.term and manager.silent_for(record.primary) <= manager.options.lease
    report = reports.get(record.primary) if here else None
    if report is not None and report.promoted == record.term:
        return {}
    if report is not None and report.finished < record.term:
        if coordinator.cleared:
            return {"takeover": [record.term]}
        accepted = manager.membership.accepted(record.decision, now)
        waits = record.primary not in lacking and len(accepted) + 1 >= manager.membership.needed
        return {"clearance": [record.term]} if waits else {}
    able = candidates(reports, manager.membership.members, lacking)
    found: dict[str, Collection[Hashable]] = {"undecided": [record.term]} if able else {}
    if any(now >= coordinator.avoided.get(name, now) for name in able):
        found["unnamed"] = [record.term]
    return found
