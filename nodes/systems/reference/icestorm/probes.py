"""Read-only probe of an ``icestorm`` replica, for invariants, deadlines and counts."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nodes.reference import wire
from nodes.reference.api import Pending
from nodes.reference.designs.icestorm.decisions import Stamp
from nodes.reference.designs.icestorm.delivery import CONNECTS, RESTS, WINDOW, EventDelivery, SubscriberOutbox
from nodes.reference.designs.icestorm.design import IceStormDesign
from nodes.reference.designs.icestorm.election import ELECTION, INACTIVE, NORMAL, REORGANIZATION, InvitationElection
from nodes.reference.designs.icestorm.options import CHECKED
from nodes.reference.designs.icestorm.peers import Peers
from nodes.reference.designs.icestorm.topics import TopicDatabase
from nodes.systems.reference.probes.broker import BrokerProbe


class IceStormObserved(NamedTuple):
    """The values that invariants observe: the replica's part in the election, its database's stamp and promise, the
    last change that it has agreed as coordinator, and the last request that it has answered (``Replication.answered``).
    ``members``: the size of its group, this replica included, as its coordinator knows it; 0 on other replicas."""

    state: str
    coordinator: str
    group: str
    epoch: int
    members: int
    max_seen: int
    promised: int
    stamp: Stamp
    agreed: Stamp
    answered: tuple[int, int]


class IceStormProbe:
    """Observes one replica."""

    def __init__(self, design: IceStormDesign) -> None:
        self._design = design
        self._broker = BrokerProbe(design.broker)
        self._last: IceStormObserved | None = None
        self.election = design.election
        """This replica's part in elections."""
        self.database = design.database
        """The replicated database."""
        self.options = design.options
        """The replica's options."""
        self.replicas = len(design.election.replicas)
        """The number of replicas."""

    def observed(self) -> IceStormObserved:
        """Return the replica's state for invariants; once its store has failed, the state before that: it is ending,
        and its memory is ahead of what it has written."""
        if self._broker.failed and self._last is not None:
            return self._last
        self._last = self._observed()
        return self._last

    def _observed(self) -> IceStormObserved:
        election, database, replication = self.election, self.database, self._design.replication
        members = 1 + len(election.up) if election.leads else 0
        return IceStormObserved(election.state, election.coordinator, election.group, election.epoch, members,
                                election.max_seen, database.promised, database.stamp, replication.agreed,
                                replication.answered)  # fmt: skip

    def pending(self) -> Pending:
        """Return pending work: the replica's actions and the messages it expects."""
        design, election, peers = self._design, self.election, self._design.peers
        if design.broker.stopping:
            return {}
        if self._broker.failed:
            return self._broker.pending()
        found: dict[str, Collection[Hashable]] = {
            **self._broker.pending(), **elections_of(election), **questions_of(peers), **deliveries_of(design.delivery),
            **self._looks()}  # fmt: skip
        if missing := peers.missing():
            found["link"] = missing
        if silent := peers.silent():
            found["silent-link"] = silent
        if election.state != NORMAL:
            found["group"] = [""]
        elif election.leads and (away := [name for name in peers.names if name not in election.up]):
            found["away"] = away
        if design.early:
            found["early"] = list(design.early)
        if design.resting:
            found["again"] = list(design.resting)
        if design.blocked and election.state == NORMAL:
            found["blocked"] = [election.group]
        if design.ended_busy:
            found["ended-busy"] = design.ended_busy
        clients = design.clients.values()
        if self.options.acm_timeout and (unused := [(client.conn, client.rested) for client in clients
                                                    if not client.busy and client.commands.empty()]):
            found["unused"] = unused
        if busy := [(client.conn, client.used) for client in clients if client.busy]:
            found["request"] = busy
        return found

    def _looks(self) -> Pending:
        """Return the due checks: whether other replicas are alive, and whether they would join this one's group."""
        election, peers = self.election, self._design.peers
        if election.state not in (NORMAL, INACTIVE):
            return {}
        found: dict[str, list[Hashable]] = {}
        checked = election.leads and election.up and self.options.step_down == CHECKED
        for question, due in (("are-you-there", not election.leads), ("are-you-mine", checked),
                              ("are-you-coordinator", election.leads and len(election.up) < len(peers.names))):
            asked = peers.asked(question)
            if not due:
                continue
            if asked < election.entered or question == "are-you-mine":  # requests lead to that question, too
                found.setdefault("first-look", []).append((question, election.group, max(asked, election.entered)))
            else:
                found.setdefault("look" if election.state == NORMAL else "look-alone", []).append((question, asked))
        return found

    def miscounted(self) -> str:
        """Describe the first wrong counter; empty if all are right, or the store has failed."""
        if self._broker.failed:
            return ""
        return next(wrong_counts(self._design.delivery, self.options.max_waiting), "") or self._broker.miscounted()

    @property
    def common(self) -> BrokerProbe:
        """The probe of the part that all designs share."""
        return self._broker

    def unlike_store(self) -> str:
        """Describe a difference between memory and store; empty if there is none, or the store has failed."""
        if self._broker.failed:
            return ""
        return unlike_tables(self.database, self._design.broker.database) or self.strangers()

    def strangers(self) -> str:
        """Describe events that wait for subscribers missing in the database; empty if there are none."""
        topics = self.database.topics
        strangers = [key for key, outbox in self._design.delivery.outboxes.items()
                     if key[0] not in topics or topics[key[0]].subscribers.get(key[1]) != outbox.subscriber]
        return f"outboxes: {strangers[:3]} are no subscribers" if strangers else ""

    @property
    def awaited(self) -> list[str]:
        """The replicas that took this coordinator's invitation, and have not accepted yet."""
        return awaited_by(self.election)

    @property
    def begun(self) -> int:
        """The number of changes and questions that it has begun to carry out as coordinator."""
        return self._design.replication.begun

    @property
    def members(self) -> Sequence[str]:
        """The other members of the group that this replica coordinates."""
        return tuple(self.election.up)

    def failures(self) -> Mapping[str, int]:
        """Return the number of questions that each of the other replicas has not answered."""
        return self._design.peers.failures()

    def linked(self) -> Mapping[str, int]:
        """Return the replicas to which there is a link, each with the number of links that have broken before."""
        return self._design.peers.linked()

    @property
    def failed(self) -> bool:
        """Tell whether its store has failed; it is ending then."""
        return self._broker.failed

    def waiting(self) -> Counter[str]:
        """Return the number of events that each subscriber has not acknowledged; those without any are left out."""
        counts: Counter[str] = Counter()
        for (_, ident), outbox in self._design.delivery.outboxes.items():
            counts[ident] += len(outbox.queue) + len(outbox.in_flight)
        return +counts

    def status(self) -> dict[str, Any]:
        """Return the status for an administrator."""
        return self._design.status()


def elections_of(election: InvitationElection) -> Pending:
    """Return pending work: the election under way, or the merge that this coordinator must begin."""
    astray: Pending = {"astray": list(election.astray)} if election.astray else {}
    if election.state in (ELECTION, REORGANIZATION):
        if election.group == election.refused or (election.leads and not election.checks):
            astray = {**astray, "forsaken": [election.group]}
        answered = (election.state == ELECTION and election.leads
                    and all(name in election.up for name in election.issued))
        return {**astray, "election": [(election.state, election.group)],
                **({"answered": [election.group]} if answered else {})}
    if election.merge_due is None or election.merge_due[0] != election.group:
        return astray
    return {**astray, "merge" if election.ident > election.highest else "later-merge": [election.group]}


def questions_of(peers: Peers) -> Pending:
    """Return pending work: questions that wait for their answers."""
    found: dict[str, list[Hashable]] = {}
    for number, asked in peers.open_questions.items():
        lost = asked.broken != peers.broken[asked.peer] and not asked.answer.done()
        if kind := "lost-question" if lost else asked.kept_by:
            found.setdefault(kind, []).append((asked.peer, number))
    if peers.rounds:
        found["round"] = list(peers.rounds)
    if peers.cut_alive:
        found["cut-alive"] = list(peers.cut_alive)
    return found


def deliveries_of(delivery: EventDelivery) -> Pending:
    """Return pending work for subscribers: the next attempt, sends that have room, and acknowledgements."""
    found: dict[str, list[Hashable]] = {}
    for (topic, ident), outbox in delivery.outboxes.items():
        if (step := step_of(outbox)) is not None:
            found.setdefault(step[0], []).append((topic, ident, *step[1:]))
    return found


def step_of(outbox: SubscriberOutbox) -> tuple[str, *tuple[Hashable, ...]] | None:
    """Return the deadline to keep, and values that distinguish this step from the next; None without work to do."""
    if outbox.task.done():
        return "removal", outbox.subscriber.since
    if outbox.phase == CONNECTS:
        return "connecting", outbox.tries
    if outbox.phase == RESTS:
        return ("retry", outbox.tries) if outbox.queue else None
    if outbox.queue and len(outbox.in_flight) < outbox.window:
        return "delivery", outbox.tries, outbox.queue[0].number
    return ("unacknowledged", outbox.tries, next(iter(outbox.in_flight))) if outbox.in_flight else None


def wrong_counts(delivery: EventDelivery, max_waiting: int) -> Iterator[str]:
    """Describe each wrong counter and each broken limit."""
    outboxes = [(ident, outbox) for (_, ident), outbox in delivery.outboxes.items()]
    for ident, outbox in outboxes:
        if (there := sum(len(event.body) for event in outbox.queue)) != outbox.waiting_bytes:
            yield f"bytes that wait for {ident}: {outbox.waiting_bytes} are counted, and there are {there}"
    for ident, outbox in outboxes:
        if outbox.most > outbox.window:
            yield f"events under way to {ident}: {outbox.most} at once, and it is {outbox.subscriber.reliability}"
    for ident, outbox in outboxes:
        if outbox.again:
            yield f"events for {ident}: {outbox.again} were there again"
    for ident, outbox in outboxes:
        # Events that return from a failed connection wait in addition.
        if outbox.unqueued or len(outbox.queue) > max_waiting + WINDOW:
            yield f"events for {ident}: {len(outbox.queue)} wait, and {outbox.unqueued} were dropped as they came"


def awaited_by(election: InvitationElection) -> list[str]:
    """Return the replicas that took a coordinator's invitation, and have not accepted yet."""
    return [] if election.invites else [name for name in election.issued if name not in election.up]


def unlike_tables(database: TopicDatabase, sql: sqlite3.Connection) -> str:
    """Describe a difference between a database in memory and its tables; empty if there is none."""
    rows = dict(sql.execute("SELECT name, content FROM icestorm_topics"))
    for name in sorted({*database.topics, *rows}):
        topic = database.topics.get(name)
        if topic is None or rows.get(name) != topic.encode():
            return f"topic {name}: memory has {topic}, and the store {rows.get(name)!r}"
    mine = [database.promised, *database.stamp]
    metas = [wire.decode(value) for (value,) in sql.execute("SELECT value FROM icestorm_meta WHERE id = 0")]
    if metas != [mine] and (metas or any(mine)):
        return f"promise and stamp: memory has {mine}, and the store {metas}"
    return ""
