"""The election of a coordinator by majority votes, and its choice of the primary: one decision per ballot, each on
disk.

Each term is decided by single-decree Paxos; the coordinator's ballot is shared by all its decisions. The coordinator
first takes over the newest decision that any member of a majority has accepted, and replaces it only when the primary
is gone or has refused. A primary may be started (``cleared``) once a majority has accepted the decision and all leases
of earlier terms are over (``membership``). No wait for these leases is needed if the earlier primary's manager reports
that it has ended its broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from nodes.reference.api import Runtime
from nodes.reference.designs.qpid.manager.membership import (
    NEVER,
    Answers,
    ManagerMembership,
    best_decision,
    leases_are_over,
)
from nodes.reference.designs.qpid.manager.messages import Beat, Echo, Message, Vote, VoteRequest
from nodes.reference.designs.qpid.manager.note import Note, decoded_note, latest
from nodes.reference.designs.qpid.manager.options import ManagerOptions
from nodes.reference.designs.qpid.manager.record import ManagerRecord, RecordStore
from nodes.reference.designs.qpid.manager.report import STOPPED, Report, candidates, may_bootstrap, successors
from nodes.reference.points import BALLOT_ACCEPTED, BALLOT_PROMISED, CLEARED, COORDINATES

FOLLOWING, ASKING, STANDING, COORDINATING = "following", "asking", "standing", "coordinating"

_AVOIDED_LEASES = 3
"""Leases for which a member that has refused is not chosen again."""


class Others(Protocol):
    """The interface of a manager that its coordinator needs."""

    def send(self, peer: str, message: Message) -> None:
        """Send a message, if there is a link."""

    def beat(self) -> None:
        """Send a heartbeat to all members now."""

    def alive(self) -> Sequence[str]:
        """Return the members heard within a lease, this one included, in order."""
        ...

    def silent_for(self, peer: str) -> float:
        """Return the seconds of silence of another member; 0 for this one."""
        ...

    def reports(self) -> Mapping[str, Report]:
        """Return the latest broker reports of the live members, this one included."""
        ...


class Coordinator:
    """One manager's part in elections and decisions, as coordinator, candidate and voter."""

    def __init__(self, runtime: Runtime, options: ManagerOptions, store: RecordStore, membership: ManagerMembership,
                 answers: Answers, others: Others) -> None:
        self._runtime, self._options, self._store = runtime, options, store
        self._membership, self._answers, self._others = membership, answers, others
        self.phase = FOLLOWING
        self.coordinator = ""
        """The member last heard as the coordinator of the highest ballot."""
        # A manager with an accepted decision may have been away for a moment only.
        self.heard_at = runtime.now() if store.record.ballot else NEVER
        self.stand_at: float | None = None
        self._highest = store.record.promised
        self.last_ballot = 0
        self._votes: dict[str, tuple[int, int, str]] = {}
        self._refused: dict[str, None] = {}
        self.deadline = 0.0
        self._cleared_term = 0
        self._nothing_before = False
        self._predecessor: tuple[int, str] | None = None
        self._pending_since = 0.0
        self.avoided: dict[str, float] = {}
        self._declined = 0
        """The last term in which the chosen primary refused."""
        self._told = ""

    @property
    def record(self) -> ManagerRecord:
        """This manager's record on disk."""
        return self._store.record

    @property
    def ballot(self) -> int:
        """The ballot in which this manager is coordinator, 0 if it is not."""
        return self.last_ballot if self.phase == COORDINATING else 0

    @property
    def cleared(self) -> bool:
        """Tell whether, as the coordinator, it permits the primary to be started."""
        return self.phase == COORDINATING and self.record.term > 0 and self._cleared_term == self.record.term

    @property
    def bootstrap(self) -> bool:
        """Tell whether a primary that is started now may be unready."""
        return self.cleared and self._is_fresh(self._predecessor)

    @property
    def lacking(self) -> list[str]:
        """The members that a primary that is started now must consider incomplete."""
        if not self.cleared or self.bootstrap:
            return []
        return [name for name in self.latest_note().names if name != self.record.primary]

    def tick(self) -> None:
        """Maintain a primary as coordinator; without a coordinator, stand for election when it is this manager's time.
        """
        now = self._runtime.now()
        if self.phase == COORDINATING:
            if self._membership.quorum_since(now) + self._options.lease < now:
                self._step_down("no quorum")
            else:
                self._govern(now)
        elif self.hears_coordinator(now):
            self.phase, self.stand_at = FOLLOWING, None
        elif self.phase != FOLLOWING:
            if now > self.deadline:
                self._give_up(now)
        elif len(self._others.alive()) < self._membership.needed:
            self.stand_at = None
        elif self.stand_at is None:
            self._back_off(now)
        elif now >= self.stand_at:
            self._ask(sure=False)

    def react(self) -> None:
        """Continue at once as coordinator, because a message has arrived that it may have waited for."""
        if self.phase == COORDINATING:
            self._govern(self._runtime.now())

    # Elections.

    def asked(self, peer: str, ask: VoteRequest) -> None:
        """Answer another member's request for a vote."""
        now, record = self._runtime.now(), self.record
        self._highest = max(self._highest, ask.ballot)
        known = self.coordinator if self.hears_coordinator(now) else ""
        granted = ask.ballot > record.promised and self.phase != COORDINATING and known in ("", peer)
        if granted and ask.sure:
            self._store.save(record._replace(promised=ask.ballot))
            self._runtime.point(BALLOT_PROMISED)
            self.phase = FOLLOWING
            self._back_off(now)
        record = self.record
        self._others.send(peer, Vote(ask.ballot, ask.sure, granted, record.promised, record.ballot, record.term,
                                     record.primary))  # fmt: skip

    def voted(self, peer: str, vote: Vote) -> None:
        """Count another member's vote."""
        self._highest = max(self._highest, vote.promised)
        waiting = {ASKING: False, STANDING: True}
        if vote.asked != self.last_ballot or waiting.get(self.phase) is not vote.sure:
            return
        if vote.granted:
            self._votes[peer] = (vote.ballot, vote.term, vote.primary)
            self._count_votes()
            return
        self._refused[peer] = None
        if len(self._membership.members) - len(self._refused) < self._membership.needed:
            self._give_up(self._runtime.now())

    def heard(self, peer: str, beat: Beat) -> None:
        """Accept the decision in a coordinator's heartbeat, unless a higher ballot was promised."""
        record = self.record
        self._highest = max(self._highest, beat.ballot)
        if beat.ballot < max(record.promised, 1):
            return
        if self.phase == COORDINATING:
            self._step_down(f"{peer} is coordinator")
        self.phase, self.coordinator, self.heard_at = FOLLOWING, peer, self._runtime.now()
        if (beat.ballot, beat.term) > record.decision:
            self._accept(record._replace(promised=beat.ballot, ballot=beat.ballot, term=beat.term,
                                         primary=beat.primary))  # fmt: skip

    def echoed(self, peer: str, echo: Echo) -> None:
        """Note the ballot in a member's answer: if it is higher, this coordinator needs an even higher one."""
        self._highest = max(self._highest, echo.promised)
        if self.phase == COORDINATING and echo.promised > self.last_ballot:
            self._runtime.log("coordinator needs a higher ballot", ballot=self.last_ballot, promised=echo.promised,
                              by=peer)  # fmt: skip
            self._ask(sure=True)

    def hears_coordinator(self, now: float) -> bool:
        return now - self.heard_at <= self._options.lease

    def _back_off(self, now: float) -> None:
        self.stand_at = now + self._runtime.random.random() * self._options.election

    def _give_up(self, now: float) -> None:
        self.phase = FOLLOWING
        self._back_off(now)

    def _step_down(self, why: str) -> None:
        self._runtime.log("coordinator steps down", ballot=self.last_ballot, why=why)
        self.phase, self.stand_at = FOLLOWING, None
        self.heard_at, self.coordinator = self._runtime.now(), ""

    def _ask(self, sure: bool) -> None:
        record = self.record
        self.last_ballot = max(self._highest, record.promised) + 1
        self.phase = STANDING if sure else ASKING
        self.deadline = self._runtime.now() + self._options.lease
        self._refused.clear()
        if sure:
            self._store.save(record._replace(promised=self.last_ballot))
        self._votes = {self._membership.node: (record.ballot, record.term, record.primary)}
        for peer in self._others.alive():
            if peer != self._membership.node:
                self._others.send(peer, VoteRequest(self.last_ballot, sure))
        self._count_votes()

    def _count_votes(self) -> None:
        if len(self._votes) < self._membership.needed:
            return
        if self.phase == ASKING:
            self._ask(sure=True)
            return
        _, term, primary = best_decision(list(self._votes.values()))
        self._accept(self.record._replace(ballot=self.last_ballot, term=term, primary=primary))
        self.phase, self.coordinator, self._predecessor = COORDINATING, self._membership.node, None
        self._nothing_before = term == 0
        self.heard_at = NEVER
        self._pending_since, self._told = self._runtime.now(), ""
        self._runtime.log("coordinator", ballot=self.last_ballot, term=term, primary=primary or "none")
        self._runtime.point(COORDINATES)
        self._others.beat()

    def _accept(self, record: ManagerRecord) -> None:
        if record.term != self.record.term:
            self._answers.superseded()
        self._store.save(record)
        self._runtime.point(BALLOT_ACCEPTED)

    # As coordinator.

    def _govern(self, now: float) -> None:
        record, reports = self.record, self._others.reports()
        if record.term:
            report = reports.get(record.primary)
            if report is not None and report.promoted == record.term:
                self._told = ""
                return
            too_long = self._options.promotion_limit + _AVOIDED_LEASES * self._options.lease
            if report is not None and report.finished < record.term and now <= self._pending_since + too_long:
                self._clear(now)
                return
            if report is not None and report.declined == record.term > self._declined:
                self._declined = record.term  # it reports this until the next decision, and is avoided only once for it
                self.avoided[record.primary] = now + _AVOIDED_LEASES * self._options.lease
        chosen = self._choose(now, reports)
        if chosen:
            self._decide(chosen, now)

    def _choose(self, now: float, reports: Mapping[str, Report]) -> str:
        members, record = self._membership.members, self.record
        fresh = self._is_fresh((record.term, record.primary) if record.term else None)
        able = (successors(reports, members, record.primary) if self._options.cold
                else [name for name in members if reports[name].state != STOPPED] if fresh
                else candidates(reports, members, self.latest_note().names))  # fmt: skip
        chosen = next((name for name in able if now >= self.avoided.get(name, now)), "")
        told = "" if chosen else f"no member may be primary: {'all have refused' if able else 'none is eligible'}"
        if told and told != self._told:
            found = {name: f"{report.state or 'down'}/{report.store or '?'}" for name, report in reports.items()}
            self._runtime.log("no primary", level="warning", why=told, found=" ".join(map(":".join, found.items())))
        self._told = told
        return chosen

    def _decide(self, primary: str, now: float) -> None:
        record = self.record
        if record.term == record.ballot:  # this ballot has made its decision
            self._ask(sure=True)
            return
        self._predecessor = (record.term, record.primary) if record.term else None
        self._accept(record._replace(term=record.ballot, primary=primary))
        self._pending_since = now
        self._runtime.log("primary assigned", term=record.ballot, primary=primary, before=record.primary or "none")
        self._others.beat()
        self._clear(now)

    def _clear(self, now: float) -> None:
        """Permit the primary to be started, if no earlier lease can exist any longer."""
        if self.cleared:
            return
        membership = self._membership
        ages = membership.accepted(self.record.decision, now) | {membership.node: self._answers.age(now)}
        if len(ages) < membership.needed:
            return
        primary = self.record.primary
        if primary in self.latest_note().names and not self._may_lack_something(primary):
            # Noted after it was chosen, by an earlier primary that no longer has a note.
            self._runtime.log("primary withdrawn", level="warning", term=self.record.term, primary=primary)
            self.avoided[primary] = now + _AVOIDED_LEASES * self._options.lease
            self._pending_since = NEVER
            return
        reason = ("no earlier primary" if self._nothing_before else
                  "its manager ended the earlier one" if self._predecessor_has_ended() else
                  "earlier leases are over" if leases_are_over(ages, membership.needed, self._options.caution) else
                  "")  # fmt: skip
        if reason:
            self._cleared_term = self.record.term
            self._runtime.log("primary cleared", term=self.record.term, why=reason)
            self._runtime.point(CLEARED)
            self._others.beat()

    def latest_note(self) -> Note:
        """Return the latest of all members' notes. Once a majority has accepted a decision, no note of earlier terms is
        missing.

        A note counts for the primary that requests it when a majority has stored it, and only members that have
        accepted no newer decision store it. At least one of that majority is therefore among the members that have
        accepted this one.
        """
        echoes = map(self._membership.echo, self._membership.members)
        return latest([self.record.note, *(decoded_note(echo.note) for echo in echoes if echo is not None)])

    def _may_lack_something(self, primary: str) -> bool:
        """Tell whether an administrator has approved its data, or the whole cluster starts fresh."""
        reports = self._others.reports()
        return (primary in reports and reports[primary].forced) or self._is_fresh(self._predecessor)

    def _is_fresh(self, earlier: tuple[int, str] | None) -> bool:
        """Tell whether any member may be primary because the whole cluster starts fresh: for the first time, or after
        an orderly shutdown (``may_bootstrap``).

        A primary chosen ``earlier`` (term and name) in this ballot may still be promoted after it has reported its
        store, until its manager says that it never will be.
        """
        reports, members = self._others.reports(), self._membership.members
        if not may_bootstrap(reports, members, self.record.ballot):
            return False
        return earlier is None or earlier[1] not in members or reports[earlier[1]].finished >= earlier[0]

    def _predecessor_has_ended(self) -> bool:
        """Tell whether the earlier primary's own manager reports that its broker isn't primary, and never will be in
        that term.

        This is sufficient only if no primary before *that* one can have a lease: it had been promoted, or this
        coordinator had cleared its term.
        """
        if self._predecessor is None:
            return False
        term, name = self._predecessor
        promoted, finished = self._word_of(name)
        return finished >= term and term in (promoted, self._cleared_term)

    def _word_of(self, name: str) -> tuple[int, int]:
        """Return the last term in which a member's broker was promoted, and the last that is definitely over for it."""
        found = self.record if name == self._membership.node else self._membership.echo(name)
        return (found.promoted, found.finished) if found is not None else (0, 0)
