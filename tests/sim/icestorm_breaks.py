"""What breaks the invariants of HA IceStorm that are about each step of its elections, and about its databases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness.run.cases import Case
from nodes.reference.designs.icestorm.decisions import INACTIVE, Stamp
from nodes.reference.designs.icestorm.delivery import EventDelivery
from nodes.reference.designs.icestorm.design import IceStormDesign
from nodes.reference.designs.icestorm.election import InvitationElection
from nodes.reference.designs.icestorm.replication import Replication, Unavailable
from nodes.reference.designs.icestorm.topics import Change, TopicDatabase
from nodes.reference.server.sessions import Session

_ELECTION = "nodes.reference.designs.icestorm.election"
_CASE = Case("icestorm", "subscriptions", "partition,pause,kill", 3, 20.0, 30.0, {"min_ok": "5"})


def _bug(name: str) -> Case:
    return replace(_CASE, settings={**_CASE.settings, "bug": name})


def _nothing(patch: pytest.MonkeyPatch) -> None:
    """The bug is switched on by the case."""


def _never_alone(patch: pytest.MonkeyPatch) -> None:
    """Who recovers counts the coordinator that it has lost as its member."""
    recover = InvitationElection.recover

    def instead(self: InvitationElection, why: str) -> None:
        former = self.coordinator
        recover(self, why)
        self.up = {former: None} if former != self.name else {}

    patch.setattr(InvitationElection, "recover", instead)


def _all_at_once(patch: pytest.MonkeyPatch) -> None:
    """Nobody waits for those of higher priority."""
    patch.setattr(f"{_ELECTION}.merge_delay", lambda *of: 0.0)


def _first_is_enough(patch: pytest.MonkeyPatch) -> None:
    """A coordinator goes on as soon as one has accepted."""
    accepted = InvitationElection.accepted

    def instead(self: InvitationElection, *about: Any) -> bool:
        counts = accepted(self, *about)
        if counts:
            self._accepted.set()
        return counts

    patch.setattr(InvitationElection, "accepted", instead)


def _restless(patch: pytest.MonkeyPatch) -> None:
    """Members leave their groups as they like."""
    async def leave(self: InvitationElection) -> None:
        self.recover("it is time")

    patch.setattr(InvitationElection, "_ask_coordinator", leave)


def _all_always(patch: pytest.MonkeyPatch) -> None:
    """A majority is not enough."""
    patch.setattr(f"{_ELECTION}.may_replicate", lambda group, replicas, max_seen, needed: group == replicas)


def _next_epoch(patch: pytest.MonkeyPatch) -> None:
    """Changes are stamped with an epoch that is to come."""
    apply = TopicDatabase.apply
    patch.setattr(TopicDatabase, "apply", lambda self, change, stamp: apply(
        self, change, Stamp(stamp.epoch + 64, stamp.counter, stamp.wall)))


def _dearer(patch: pytest.MonkeyPatch) -> None:
    """Each link costs one more than was asked for."""
    make = TopicDatabase._change

    def instead(self: TopicDatabase, change: Change, since: str) -> list[str]:
        return make(self, [*change[:3], change[3] + 1] if change[0] == "link" else change, since)

    patch.setattr(TopicDatabase, "_change", instead)


def _unconfirmed(patch: pytest.MonkeyPatch) -> None:
    """A coordinator answers without asking whether it still has its group."""
    async def confirm(self: Replication, group: str) -> None:
        pass

    patch.setattr(Replication, "_confirm", confirm)


def _answers_anyway(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that finds out that its group is gone answers what it was asked nevertheless."""
    confirm = Replication._confirm

    async def instead(self: Replication, group: str) -> None:
        with contextlib.suppress(Unavailable):
            await confirm(self, group)

    patch.setattr(Replication, "_confirm", instead)


def _refuses_some(patch: pytest.MonkeyPatch) -> None:
    """Every third change is refused; the coordinator, which has a bug, counts that as an agreement."""
    told = Replication.told_to_update
    patch.setattr(Replication, "told_to_update", lambda self, peer, group, epoch, stamp, change: (
        stamp[1] % 3 > 0 and told(self, peer, group, epoch, stamp, change)))


def _all_kept(patch: pytest.MonkeyPatch) -> None:
    """What waits for who has left stays."""
    patch.setattr(EventDelivery, "forget_gone", lambda self: None)


def _hides(patch: pytest.MonkeyPatch) -> None:
    """A coordinator of a group that replicates does not say so."""
    patch.setattr(InvitationElection, "are_you_coordinator", lambda self: self.leads and self.state == INACTIVE)


def _boasts(patch: pytest.MonkeyPatch) -> None:
    """A replica shows one more than it has seen."""
    status = IceStormDesign.status

    def instead(self: IceStormDesign) -> dict[str, Any]:
        shown = status(self)
        return {**shown, "max": shown["max"] + 1}

    patch.setattr(IceStormDesign, "status", instead)


def _looks_beyond(patch: pytest.MonkeyPatch) -> None:
    """Members look for other coordinators, too."""
    ask = InvitationElection._ask_coordinator

    async def instead(self: InvitationElection) -> None:
        await self._peers.ask_all(self._peers.names, "are-you-coordinator")
        await ask(self)

    patch.setattr(InvitationElection, "_ask_coordinator", instead)


def _keeps_its_connection(patch: pytest.MonkeyPatch) -> None:
    """Who is ended keeps its connection."""
    end = Session.end

    def instead(self: Session, reason: str, headers: Mapping[str, str] | None = None) -> None:
        conn = self.conn
        end(self, reason, headers)
        self.conn = conn

    patch.setattr(Session, "end", instead)


def _always_room(patch: pytest.MonkeyPatch) -> None:
    """A database takes all that comes."""
    patch.setattr(TopicDatabase, "_check_room", lambda self: None)


def _twice_the_bytes(patch: pytest.MonkeyPatch) -> None:
    """Twice as many bytes of events may wait for a subscriber."""
    patch.setattr("nodes.reference.designs.icestorm.delivery.MAX_WAITING_BYTES", 128 << 20)


def _unwritten(patch: pytest.MonkeyPatch) -> None:
    """Who promises an epoch writes that down later."""
    patch.setattr(TopicDatabase, "promise", lambda self, epoch: setattr(self, "promised", epoch))


ICESTORM_BREAKS: dict[str, tuple[Case, Callable[[pytest.MonkeyPatch], None]]] = {
    "groups-shrink": (_CASE, _never_alone),
    "asks-in-its-role": (_CASE, _looks_beyond),
    "ended-hold-nothing": (replace(_CASE, workload="topic-dialogue"), _keeps_its_connection),
    "refuses-when-full": (_CASE, _always_room),
    "keeps-what-may-wait": (_CASE, _twice_the_bytes),
    "agrees-in-order": (_bug("refused-update-counts"), _refuses_some),
    "invites-in-turn": (_CASE, _all_at_once),
    "awaits-who-comes": (_CASE, _first_is_enough),
    "keeps-who-follows": (_CASE, _restless),
    "commences": (_CASE, _all_always),
    "changes-in-their-epoch": (_CASE, _next_epoch),
    "changes-as-asked": (_CASE, _dearer),
    "most-recent-wins": (_bug("oldest-database-wins"), _nothing),
    "answers-while-it-leads": (replace(_CASE, nemesis="pause"), _unconfirmed),
    "answers-in-its-group": (_CASE, _answers_anyway),
    "delivers-to-subscribers": (replace(_CASE, workload="topic-dialogue"), _all_kept),
    "answers-as-it-has": (_CASE, _unwritten),
    "answers-as-it-stands": (_CASE, _hides),
    "tells-its-state": (_CASE, _boasts),
}
