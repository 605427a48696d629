"""Read-only queries of a ``joram`` replica for invariants, deadlines and counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from nodes.reference.api import Admission, Broker, Image, Pending
from nodes.reference.designs.joram.decisions import make_epoch, round_of
from nodes.reference.designs.joram.election import Election
from nodes.reference.designs.joram.leader import Leader
from nodes.reference.designs.joram.log import Log
from nodes.reference.designs.joram.messages import Heartbeat
from nodes.reference.designs.joram.options import Options
from nodes.reference.designs.joram.replica import Replica
from nodes.reference.replication.follower_log import FollowerLog
from nodes.reference.replication.quorum import majority
from nodes.reference.replication.replicator import Replicator


class Observed(NamedTuple):
    """The values that invariants observe.

    ``leads`` is the epoch in which this node is master, 0 when it isn't. ``serving``: it serves, and its lease holds.
    ``committed``: the index that it considers committed. The log's ``Outline`` follows. ``follows`` is its master, if
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


_OBSERVED: Callable[[tuple[Any, ...]], Observed] = partial(tuple.__new__, Observed)
"""Creates one from its fields in a third of the constructor's time; one is needed after each step."""


class ProbedReplica(ABC):
    """A replica as its observers see it."""

    _broker: Broker
    _options: Options
    _replica: Replica
    _election: Election
    _leader: Leader | None
    _master: str | None
    _received: FollowerLog | None
    _catch_up_feeds: dict[str, tuple[int, Replicator]]
    _reports: dict[str, Heartbeat]
    _left: set[str]
    _states: int

    @abstractmethod
    def hears_master(self) -> bool:
        """Tell whether this node is master or follows a live one."""

    @abstractmethod
    def _live_master(self) -> str | None: ...

    @abstractmethod
    def admission(self) -> Admission:
        """Tell whether clients are admitted."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Return the status for an administrator."""

    def observed(self) -> Observed:
        """Return this node's state for invariants."""
        replica, leader, received = self._replica, self._leader, self._received
        takes = received.epoch if received is not None else 0
        if leader is None:
            return _OBSERVED((0, False, replica.committed, *replica.log.outline(), self._master or "",
                              self._election.phase, takes, self._states, 0))
        serving = leader.serving and leader.holds_lease()
        return _OBSERVED((leader.epoch, serving, replica.committed, *replica.log.outline(), self._master or "",
                          self._election.phase, takes, self._states, leader.unleased))

    def pending(self) -> Pending:
        """Return pending work: the node's actions and the messages it expects."""
        if self._broker.stopping:
            return {}
        replica, leader, links = self._replica, self._leader, self._replica.links
        found: dict[str, Collection[Hashable]] = dict(self._broker.pending())
        if replica.name in replica.order and (missing := [peer for peer in links.missing() if peer in replica.order]):
            found["link"] = missing
        if replica.name in replica.order and not self.hears_master():
            found["master"] = [""]
            if (turn := self._election.turn()) is not None:
                found[f"turn-{turn[0]}"] = [turn[1]]
                if turn[1] <= replica.now() and not self.ahead():
                    found["first-stands"] = [turn[1]]
            found |= self._election.pending()
        if self._election.adopts and self._received is not None and self._received.source in links.missing():
            found["adoption"] = [self._received.source]
        found["believed"] = [(peer, links.times_heard(peer)) for peer in replica.alive() if peer != replica.name]
        if leader is not None and (left := [peer for peer in leader.members if peer in self._left]):
            staying = len(leader.members) - len(left)
            if not self._options.primary or staying >= majority(len(replica.order)):
                found["leaver"] = left
        if self._election.has_adopted():
            found["adopted"] = [replica.log.last]
        if replica.log.applied < replica.committed:
            found["unapplied"] = [replica.log.applied]
        if replica.log.dirty:
            found["unwritten"] = [replica.persisted]
        if unspoken := links.unspoken():
            found["greeting"] = unspoken
        heard = links.last_heard()
        if leader is None:
            master = self._live_master()
            found["silent-peer"] = [each for each in heard if each[0] != master]
            found["silent-master"] = [each for each in heard if each[0] == master]
            if self._is_uninformed():
                found["uninformed"] = [replica.committed]
            return found
        found["silent-peer"] = heard
        found |= leader.pending()
        return found

    def planned(self) -> Mapping[str, Mapping[Hashable, float]]:
        """Return the seconds for which this node plans to wait for its turn as a candidate."""
        turn = self._election.turn() if not self.hears_master() else None
        if turn is None:
            return {}
        vain = self._election.pending().get("asks-again", ())
        return {f"turn-{turn[0]}": {turn[1]: turn[2]}, "asks-again": dict.fromkeys(vain, turn[2]),
                "first-stands": {turn[1]: turn[2]}}

    def ahead(self) -> list[str]:
        """Return the live candidates before this node: those in the last view, followed by the rest of the group. A
        replica without a log does not count if others have one."""
        replica, view = self._replica, self._replica.log.view
        having = {name: report.last > 0 for name, report in self._reports.items()
                  if name in replica.order and self.believes(name)}
        some = replica.log.last > 0 or any(having.values())
        ranked = [*view, *(name for name in replica.order if name not in view)]
        place = ranked.index(replica.name) if replica.name in ranked else len(ranked)
        return [name for name in ranked[:place] if name in having and (having[name] or not some)]

    def lacks_what_others_have(self) -> bool:
        """Tell whether this node has no log while live members of its group have one."""
        return not self._replica.log.last and any(
            report.last > 0 for name, report in self._reports.items()
            if name in self._replica.order and self.believes(name)
        )

    def _is_uninformed(self) -> bool:
        """Tell whether this node has received entries that its master reported as committed, and does not count them
        so.
        """
        received, report = self._received, self._reports.get(self._master or "")
        if received is None or report is None or received.source != self._master:
            return False
        return min(report.commit, received.matched) > self._replica.committed

    @property
    def detection_timeout(self) -> float:
        """Seconds of silence after which a peer is suspected."""
        return self._options.detection_timeout

    def now(self) -> float:
        """Return the seconds on this node's clock."""
        return self._replica.now()

    def own_epoch(self, epoch: int) -> int:
        """Return the epoch of the same round that this node opens."""
        return make_epoch(round_of(epoch), self._replica.rank)

    @property
    def transfers(self) -> int:
        """The number of replicas that are being sent the whole state."""
        return self._leader.transfers if self._leader is not None else 0

    @property
    def acknowledged(self) -> Mapping[str, int]:
        """The index up to which each replica has acknowledged this master's log, as far as the master knows."""
        return self._leader.acknowledged if self._leader is not None else {}

    @property
    def log_keep(self) -> int:
        """The number of entries that are kept for returning replicas."""
        return self._options.log_keep

    @property
    def log_keep_bytes(self) -> int:
        """The number of bytes of entries that are kept for returning replicas."""
        return self._options.log_keep_bytes

    def lacking(self, index: int) -> list[str]:
        """Return the peers that are fed from this master's log, and have not been sent the entry at an index."""
        return self._leader.lacking(index) if self._leader is not None else []

    def miscounted(self) -> str:
        """Describe the first wrong counter; empty if all are right."""
        leader, feeds = self._leader, [feed for _, feed in self._catch_up_feeds.values()]
        if (leader is not None or self._master is not None) and feeds:
            return f"{len(feeds)} candidates are fed, and there is a master"
        if (watched := self._replica.marks.watched) > self.transfers + sum(not feed.in_step for feed in feeds):
            return f"transfers that rows are marked for: {watched} are counted, and there are {self.transfers}"
        sent = [name for name, (_, feed) in self._catch_up_feeds.items() if feed.sends_state]
        sent += leader.sent_state() if leader is not None else []
        if strangers := [peer for peer in self._replica.links.exempted() if peer not in sent]:
            return f"{', '.join(strangers)} may be silent as if a state were sent to it, and none is"
        return (self._replica.log.miscounted() or (leader.miscounted() if leader is not None else "")
                or self._broker.miscounted())

    def unlike_store(self) -> str:
        """Describe a difference between memory and store; empty if there is none."""
        return self._replica.log.unlike_store() or self._broker.unlike_store()

    @property
    def step(self) -> int:
        """The index of the last applied entry, comparable with other nodes (``replicated``)."""
        return self._replica.log.applied

    def replicated(self) -> tuple[Hashable, Image]:
        """Return this replica's applied index and the content that belongs to it."""
        return self._replica.log.applied, self._broker.engine.image()

    def holds_lease(self) -> bool:
        """Tell whether this node serves, and may release effects to clients now."""
        leader = self._leader
        return leader is not None and leader.serving and leader.holds_lease()

    @property
    def log(self) -> Log:
        """The log."""
        return self._replica.log

    @property
    def group(self) -> Sequence[str]:
        """The names of the group's members, as this node knows them."""
        return self._replica.order

    @property
    def listeners(self) -> Mapping[str, str]:
        """The client address of each replica of the group, as this node knows them."""
        return {member.name: member.client for member in self._replica.group}

    @property
    def members(self) -> Sequence[str]:
        """The members of the view of this master."""
        return self._leader.members if self._leader is not None else ()

    @property
    def leads_in(self) -> int:
        """The epoch in which it is master, or 0."""
        return self._leader.epoch if self._leader is not None else 0

    @property
    def source(self) -> str:
        """The peer from which this node receives the log; empty for none."""
        return self._received.source if self._received is not None else ""

    @property
    def is_apart(self) -> bool:
        """Tell whether it has a place, and does not belong to the group."""
        return self._replica.is_apart

    def believes(self, peer: str) -> bool:
        """Tell whether it considers a peer alive."""
        return self._replica.links.silent_for(peer) <= self._options.detection_timeout

    def has_majority_of(self, group: Collection[str]) -> bool:
        """Tell whether this master's view contains a majority of a group."""
        return sum(name in group for name in self.members) >= majority(len(group))
