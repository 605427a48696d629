"""Read-only probe of a ``joram`` replica, for invariants, deadlines and counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from nodes.reference.api import Admission, Image, Pending
from nodes.reference.designs.joram.decisions import make_epoch, round_of
from nodes.reference.designs.joram.design import JoramDesign
from nodes.reference.designs.joram.election import ADOPTING, IDLE, PREVOTING, PROPOSING
from nodes.reference.designs.joram.leader import Leader
from nodes.reference.designs.joram.log import JoramLog
from nodes.reference.replication.quorum import majority
from nodes.systems.reference.probes.broker import BrokerProbe
from nodes.systems.reference.probes.replication import lacks_chunks, lacks_entries, miscounted


class JoramObserved(NamedTuple):
    """The values that invariants observe.

    ``leads`` is the epoch in which this node is master, 0 when it isn't. ``serving``: it serves, and its lease holds.
    ``committed``: the index that it considers committed. The outline of the log follows: the promised epoch, and the
    promise that is on disk; the index of the last dropped entry, the index of the last entry, and its epoch; the
    indexes of the last entry on disk, of the newest group change, and of the newest view. ``follows`` is its master, if
    any; ``phase`` is the phase of its candidacy; ``takes`` is the epoch in which it receives another node's log, or 0.
    ``states``: the number of whole states it has been sent. ``unleased``: the number of effects that it has released as
    this master without a lease.
    """

    leads: int
    serving: bool
    committed: int
    promised: int
    durable_promise: int
    base: int
    last: int
    last_epoch: int
    durable: int
    group_index: int
    view_index: int = 0
    follows: str = ""
    phase: str = "idle"
    takes: int = 0
    states: int = 0
    unleased: int = 0


_OBSERVED: Callable[[tuple[Any, ...]], JoramObserved] = partial(tuple.__new__, JoramObserved)
"""Creates one from its fields in a third of the constructor's time; one is needed after each step."""


class JoramProbe:
    """Observes one replica."""

    def __init__(self, design: JoramDesign) -> None:
        self._design, self._replica, self._election = design, design.replica, design.election
        self._options = design.options
        self._broker = BrokerProbe(design.broker)
        self._last: JoramObserved | None = None
        self.log = design.replica.log
        """The log."""
        self.now = design.replica.now
        """Returns the seconds on this node's clock."""

    def observed(self) -> JoramObserved:
        """Return this node's state for invariants; once its store has failed, the state before that: it is ending, and
        its memory is ahead of what it has written."""
        if self._broker.failed and self._last is not None:
            return self._last
        self._last = self._observed()
        return self._last

    def _observed(self) -> JoramObserved:
        design, log, received = self._design, self.log, self._design.received
        leader, epochs = design.leader, log.epochs
        leads, serving, unleased = 0, False, 0
        if leader is not None:
            leads, serving, unleased = leader.epoch, leader.serving and leader.holds_lease(), leader.unleased
        return _OBSERVED((
            leads, serving, self._replica.committed, log.promised, log.written[2], log.base, log.last,
            epochs[-1] if epochs else log.base_epoch, log.clean_upto, log.groups[-1][0], log.views[-1][0],
            design.master or "", self._election.phase, received.epoch if received is not None else 0,
            design.states_begun, unleased,
        ))  # fmt: skip

    # Pending work.

    def pending(self) -> Pending:
        """Return pending work: the node's actions and the messages it expects."""
        design, replica, links = self._design, self._replica, self._replica.links
        if design.broker.stopping:
            return {}
        if self._broker.failed:
            return self._broker.pending()
        leader, received = design.leader, design.received
        found: dict[str, Collection[Hashable]] = dict(self._broker.pending())
        if replica.name in replica.order and (missing := [peer for peer in links.missing() if peer in replica.order]):
            found["link"] = missing
        if replica.name in replica.order and not self.hears_master():
            found["master"] = [""]
            if (turn := self._turn()) is not None:
                found[f"turn-{turn[0]}"] = [turn[1]]
                if turn[1] <= replica.now() and not self.ahead():
                    found["first-stands"] = [turn[1]]
            found |= self._candidacy()
        adopts = self._election.phase == ADOPTING
        if adopts and received is not None and received.source in links.missing():
            found["adoption"] = [received.source]
        found["believed"] = [(peer, links.times_heard(peer)) for peer in replica.alive() if peer != replica.name]
        if leader is not None and (left := [peer for peer in leader.members if peer in design.left]):
            staying = len(leader.members) - len(left)
            if not self._options.primary or staying >= majority(len(replica.order)):
                found["leaver"] = left
        target = self._election.target
        if adopts and target is not None and self.log.position().last >= target:
            found["adopted"] = [self.log.last]
        if self.log.applied < replica.committed:
            found["unapplied"] = [self.log.applied]
        if self.log.dirty:
            found["unwritten"] = [replica.persisted]
        if unspoken := links.unspoken():
            found["greeting"] = unspoken
        heard = links.last_heard()
        if leader is None:
            master = design.live_master()
            found["silent-peer"] = [each for each in heard if each[0] != master]
            found["silent-master"] = [each for each in heard if each[0] == master]
            if master is not None and self._would_stand():
                found["stale-candidacy"] = [""]
            if self._is_uninformed():
                found["uninformed"] = [replica.committed]
            return found
        found["silent-peer"] = heard
        return found | self._of_group(leader)

    def _candidacy(self) -> Pending:
        """Return the next step of a candidate."""
        election = self._election
        votes = list(election.answers.values()).count("")
        agreed = len(election.promises) if election.phase == PROPOSING else 1 + votes
        if election.phase in (PREVOTING, PROPOSING) and agreed >= majority(len(self._replica.order)):
            return {"enough": [(election.epoch, election.phase)]}
        failed_at = election.failed_at
        if election.phase == IDLE and failed_at is not None and (turn := self._turn()) is not None and turn[0] == 0:
            return {"asks-again": [failed_at]}
        return {}

    def _would_stand(self) -> bool:
        """Tell whether something is left of a candidacy, or of a vote."""
        election, now = self._election, self._replica.now()
        return (election.phase != IDLE or election.ready_at is not None
                or max(election.retry_at, election.favoured_until) > now)

    def _of_group(self, leader: Leader) -> dict[str, Collection[Hashable]]:
        """Return pending work of the group, as far as its master sees it."""
        replica, log = self._replica, self.log
        found: dict[str, Collection[Hashable]] = {}
        if not leader.serving:
            found["serving"] = [leader.epoch]
        elif not leader.holds_lease():
            found["lease"] = found["without-lease"] = [""]
        elif leader.outbox.ready:
            found["untold"] = [0]
        elif (waiting := leader.outbox.waiting) and waiting[0][0] <= replica.committed:
            found["untold"] = [waiting[0][0]]
        if replica.committed < log.last:
            found["uncommitted"] = [replica.committed]
        feeds = leader.replicators.items()
        if behind := [(peer, (each.match, each.chunks_acked)) for peer, each in feeds if each.match < log.last]:
            found["behind"] = behind
        if lacking := [(peer, each.next) for peer, each in feeds if lacks_entries(each, leader.ship_upto)]:
            found["unsent"] = lacking
        if lacking_chunks := [peer for peer, each in feeds if lacks_chunks(each)]:
            found["unsent-state"] = lacking_chunks
        if leader.ship_upto < log.last:
            found["unshipped"] = [leader.ship_upto]
        latest = replica.now() - self._options.detection_timeout
        silent = [name for name in leader.members[1:] if leader.seen.get(name, latest) < latest]
        left = [name for name in leader.members[1:] if replica.links.silent_for(name) == float("inf")]
        if len(leader.members) - len({*silent, *left}) >= majority(len(replica.order)):
            found["silent-member"] = silent
        if away := [peer for peer in replica.order if peer not in leader.members]:
            found["not-in-view"] = away
        return found

    def planned(self) -> Mapping[str, Mapping[Hashable, float]]:
        """Return the seconds for which this node plans to wait for its turn as a candidate."""
        turn = self._turn() if not self.hears_master() else None
        if turn is None:
            return {}
        vain = self._candidacy().get("asks-again", ())
        return {f"turn-{turn[0]}": {turn[1]: turn[2]}, "asks-again": dict.fromkeys(vain, turn[2]),
                "first-stands": {turn[1]: turn[2]}}

    def _turn(self) -> tuple[int, float, float] | None:
        """Return, for a node that waits for its turn: the number of candidates before it, the earliest time of its next
        attempt, and the seconds that it is going to wait. None for other nodes."""
        election = self._election
        if election.phase != IDLE or election.ready_at is None or not election.may_stand_now():
            return None
        due = max(election.retry_at, election.ready_at + election.turn_wait())
        place = election.ranked_candidates().index(self._replica.name)
        return place, election.retry_at, max(0.0, due - self._replica.now())

    def ahead(self) -> list[str]:
        """Return the live candidates before this node: those in the last view, followed by the rest of the group. A
        replica without a log does not count if others have one."""
        replica, view = self._replica, self.log.view
        having = {name: report.last > 0 for name, report in self._design.reports().items()
                  if name in replica.order and self.believes(name)}
        some = self.log.last > 0 or any(having.values())
        ranked = [*view, *(name for name in replica.order if name not in view)]
        place = ranked.index(replica.name) if replica.name in ranked else len(ranked)
        return [name for name in ranked[:place] if name in having and (having[name] or not some)]

    def lacks_what_others_have(self) -> bool:
        """Tell whether this node has no log while live members of its group have one."""
        return not self.log.last and any(
            report.last > 0 for name, report in self._design.reports().items()
            if name in self._replica.order and self.believes(name)
        )

    def _is_uninformed(self) -> bool:
        """Tell whether this node has received entries that its master reported as committed, and does not count them
        so.
        """
        design, received = self._design, self._design.received
        report = design.reports().get(design.master or "")
        if received is None or report is None or received.source != design.master:
            return False
        return min(report.commit, received.matched) > self._replica.committed

    # Counters and stores.

    def miscounted(self) -> str:
        """Describe the first wrong counter; empty if all are right, or the store has failed."""
        if self._broker.failed:
            return ""
        design, leader, links = self._design, self._design.leader, self._replica.links
        feeds = [feed for _, feed in design.catch_up_feeds.values()]
        if (leader is not None or design.master is not None) and feeds:
            return f"{len(feeds)} candidates are fed, and there is a master"
        if (watched := self._replica.marks.watched) > self.transfers + sum(not feed.in_step for feed in feeds):
            return f"transfers that rows are marked for: {watched} are counted, and there are {self.transfers}"
        replicators = leader.replicators if leader is not None else {}
        sent = [peer for peer, (_, feed) in design.catch_up_feeds.items() if feed.sends_state]
        sent += [peer for peer, each in replicators.items() if each.sends_state]
        if strangers := [peer for peer in links.exempted() if peer not in sent]:
            return f"{', '.join(strangers)} may be silent as if a state were sent to it, and none is"
        there = sum(map(len, self.log.entries.values()))
        if self.log.cached_bytes != there:
            return f"bytes of entries: {self.log.cached_bytes} are counted, and there are {there}"
        return next(filter(None, map(miscounted, replicators.values())), "") or self._broker.miscounted()

    @property
    def common(self) -> BrokerProbe:
        """The probe of the part that all designs share."""
        return self._broker

    def unlike_store(self) -> str:
        """Describe a difference between memory and store; empty if there is none, or the store has failed."""
        if self._broker.failed:
            return ""
        return self._log_unlike_store() or self._broker.unlike_store()

    def _log_unlike_store(self) -> str:
        """Describe a difference between the log and the stored one; empty while there are unwritten changes."""
        log = self.log
        if log.dirty:
            return ""
        stored = JoramLog(self._design.broker.database)
        for what in ("base", "base_epoch", "promised", "applied", "whole",
                     "views", "groups", "epochs", "sizes", "size"):  # fmt: skip
            mine, other = getattr(log, what), getattr(stored, what)
            if mine != other:
                return f"log, {what}: memory has {str(mine)[:200]}, and the store {str(other)[:200]}"
        strangers = [index for index in log.entries if not log.base < index <= log.last]
        return f"log: entries {strangers[:3]} of {log.base + 1}..{log.last} are in memory" if strangers else ""

    @property
    def step(self) -> int:
        """The index of the last applied entry, comparable with other nodes (``replicated``)."""
        return self.log.applied

    def replicated(self) -> tuple[Hashable, Image] | None:
        """Return this replica's applied index and the content that belongs to it; None if its store has failed."""
        if self._broker.failed:
            return None
        return self.log.applied, self._broker.engine.image()

    # What the watchers of invariants ask.

    @property
    def detection_timeout(self) -> float:
        """Seconds of silence after which a peer is suspected."""
        return self._options.detection_timeout

    @property
    def log_keep(self) -> int:
        """The number of entries that are kept for returning replicas."""
        return self._options.log_keep

    @property
    def log_keep_bytes(self) -> int:
        """The number of bytes of entries that are kept for returning replicas."""
        return self._options.log_keep_bytes

    def hears_master(self) -> bool:
        """Tell whether this node is master or follows a live one."""
        return self._design.hears_master()

    def favours(self) -> bool:
        """Tell whether this node has just supported a candidate, by its vote or by its promise; following a master's
        claim does not count."""
        return self._replica.now() < self._election.favoured_until

    def admission(self) -> Admission:
        """Tell whether clients are admitted."""
        return self._design.admission()

    @property
    def failed(self) -> bool:
        """Tell whether its store has failed; it is ending then."""
        return self._broker.failed

    def status(self) -> dict[str, Any]:
        """Return the status for an administrator."""
        return self._design.status()

    def own_epoch(self, epoch: int) -> int:
        """Return the epoch of the same round that this node opens."""
        return make_epoch(round_of(epoch), self._replica.rank)

    @property
    def transfers(self) -> int:
        """The number of replicas that are being sent the whole state."""
        leader = self._design.leader
        return sum(not each.in_step for each in leader.replicators.values()) if leader is not None else 0

    @property
    def transfer_form(self) -> str:
        """The configured form of a transfer of the whole state."""
        return self._options.transfer

    @property
    def needed(self) -> int:
        """The number of members of this master's view whose acknowledgements commit an entry, as configured."""
        members = len(self.members)
        return members if self._options.ack == "all" else majority(members)

    def claims(self) -> dict[str, tuple[float, int]]:
        """Return the newest heartbeat of each peer: the time at which it was sent, by the peer's clock, and the epoch
        in which the peer claims to be master, or 0."""
        return {peer: (beat.sent, beat.claim) for peer, beat in self._design.reports().items()}

    def promises_heard(self) -> dict[str, int]:
        """Return the promise in the newest heartbeat of each peer."""
        return {peer: beat.promised for peer, beat in self._design.reports().items()}

    @property
    def acknowledged(self) -> Mapping[str, int]:
        """The index up to which each replica has acknowledged this master's log, as far as the master knows."""
        return self._design.leader.acknowledged if self._design.leader is not None else {}

    def lacking(self, index: int) -> list[str]:
        """Return the peers that are fed from this master's log, and have not been sent the entry at an index."""
        leader = self._design.leader
        feeds = leader.replicators if leader is not None else {}
        return [peer for peer, each in feeds.items() if not each.sends_state and each.next <= index]

    def holds_lease(self) -> bool:
        """Tell whether this node serves, and may release effects to clients now."""
        leader = self._design.leader
        return leader is not None and leader.serving and leader.holds_lease()

    @property
    def group(self) -> Sequence[str]:
        """The names of the group's members, as this node knows them."""
        return self._replica.order

    @property
    def configured(self) -> list[list[Any]]:
        """The members of the configured group, each with its name and the address for clients. One that is to join
        another group does not count itself."""
        replica = self._replica
        return [[member.name, member.client] for member in replica.configured
                if member.name != replica.name or not self._options.join]

    @property
    def listeners(self) -> Mapping[str, str]:
        """The client address of each replica of the group, as this node knows them."""
        return {member.name: member.client for member in self._replica.group}

    @property
    def members(self) -> Sequence[str]:
        """The members of the view of this master."""
        return self._design.leader.members if self._design.leader is not None else ()

    @property
    def leads_in(self) -> int:
        """The epoch in which it is master, or 0."""
        return self._design.leader.epoch if self._design.leader is not None else 0

    @property
    def source(self) -> str:
        """The peer from which this node receives the log; empty for none."""
        return self._design.received.source if self._design.received is not None else ""

    @property
    def is_apart(self) -> bool:
        """Tell whether it has a place, and does not belong to the group."""
        return self._replica.is_apart

    def starts_with(self, has_log: bool) -> int:
        """Return the number of replicas that must have joined before it may be a candidate after its start. That
        number, if it was given, is for each start of the whole group, and otherwise for the first one."""
        config, group = self._design.broker.config, len(self._replica.order)
        given = int(config.options.get("nb_cluster_expected") or 0)
        expected = given or len(config.peers)
        if not self._options.primary:
            return expected
        return max(given if has_log else expected, majority(group))

    def believes(self, peer: str) -> bool:
        """Tell whether it considers a peer alive."""
        return self._replica.is_alive(peer)

    def has_majority_of(self, group: Collection[str]) -> bool:
        """Tell whether this master's view contains a majority of a group."""
        return sum(name in group for name in self.members) >= majority(len(group))
