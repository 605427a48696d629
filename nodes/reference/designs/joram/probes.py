"""What those who watch a replica of ``joram`` may ask it: invariants, deadlines, counts. None of it changes it."""

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
    """What invariants look at.

    ``leads`` is the epoch in which this node is master, 0 when it isn't; ``serving``: by a lease that holds;
    ``committed``: what it takes for committed; then come the log's (``Outline``). ``follows`` is its master, if any;
    ``phase`` that of its candidacy; ``takes`` the epoch in which it takes somebody's log, or 0; ``states``: how many
    whole states it has been sent; ``unleased``: how many effects it has let out as this master, and had no lease.
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
"""Makes one of its fields, in a third of the time that its constructor takes: it is asked for after each step."""


class Looked(ABC):
    """A replica as those see it who watch it."""

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
        """Whether this node is master or follows one that lives."""

    @abstractmethod
    def _live_master(self) -> str | None: ...

    @abstractmethod
    def admission(self) -> Admission:
        """Whether clients are let in."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """What a person needs to see."""

    def observed(self) -> Observed:
        """How this node stands."""
        replica, leader, received = self._replica, self._leader, self._received
        takes = received.epoch if received is not None else 0
        if leader is None:
            return _OBSERVED((0, False, replica.committed, *replica.log.outline(), self._master or "",
                              self._election.phase, takes, self._states, 0))
        serving = leader.serving and leader.holds_lease()
        return _OBSERVED((leader.epoch, serving, replica.committed, *replica.log.outline(), self._master or "",
                          self._election.phase, takes, self._states, leader.unleased))

    def pending(self) -> Pending:
        """What this node has to do, or to hear, before long."""
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
        """For how long this node is going to wait for its turn as a candidate."""
        turn = self._election.turn() if not self.hears_master() else None
        if turn is None:
            return {}
        vain = self._election.pending().get("asks-again", ())
        return {f"turn-{turn[0]}": {turn[1]: turn[2]}, "asks-again": dict.fromkeys(vain, turn[2]),
                "first-stands": {turn[1]: turn[2]}}

    def ahead(self) -> list[str]:
        """Who comes before this node as a candidate: in the last view or, behind its members, in the group, as far as
        they live. Whoever has no log does not count where others have one."""
        replica, view = self._replica, self._replica.log.view
        having = {name: report.last > 0 for name, report in self._reports.items()
                  if name in replica.order and self.believes(name)}
        some = replica.log.last > 0 or any(having.values())
        ranked = [*view, *(name for name in replica.order if name not in view)]
        place = ranked.index(replica.name) if replica.name in ranked else len(ranked)
        return [name for name in ranked[:place] if name in having and (having[name] or not some)]

    def lacks_what_others_have(self) -> bool:
        """Whether this node has no log, and others of its group, which live, have one."""
        return not self._replica.log.last and any(
            report.last > 0 for name, report in self._reports.items()
            if name in self._replica.order and self.believes(name)
        )

    def _is_uninformed(self) -> bool:
        """Whether this node does not take for committed what its master has told it is, and what it has."""
        received, report = self._received, self._reports.get(self._master or "")
        if received is None or report is None or received.source != self._master:
            return False
        return min(report.commit, received.matched) > self._replica.committed

    @property
    def detection_timeout(self) -> float:
        """Seconds after which a peer that is silent is suspected."""
        return self._options.detection_timeout

    def now(self) -> float:
        """Seconds on this node's clock."""
        return self._replica.now()

    def own_epoch(self, epoch: int) -> int:
        """The epoch of the same round that this node opens."""
        return make_epoch(round_of(epoch), self._replica.rank)

    @property
    def transfers(self) -> int:
        """How many replicas are being sent the whole state."""
        return self._leader.transfers if self._leader is not None else 0

    @property
    def acknowledged(self) -> Mapping[str, int]:
        """Up to where each replica has acknowledged this master's log, by what that knows."""
        return self._leader.acknowledged if self._leader is not None else {}

    @property
    def log_keep(self) -> int:
        """How many entries are kept for replicas that come back."""
        return self._options.log_keep

    @property
    def log_keep_bytes(self) -> int:
        """How many bytes of entries are kept for them."""
        return self._options.log_keep_bytes

    def lacking(self, index: int) -> list[str]:
        """Who is fed by this master's log, and has not been sent the entry at an index."""
        return self._leader.lacking(index) if self._leader is not None else []

    def miscounted(self) -> str:
        """What is counted otherwise than it is there."""
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
        """In what memory and store differ."""
        return self._replica.log.unlike_store() or self._broker.unlike_store()

    @property
    def step(self) -> int:
        """The last step that this node has done and others do as well (``replicated``)."""
        return self._replica.log.applied

    def replicated(self) -> tuple[Hashable, Image]:
        """How far this replica is, and what it then holds."""
        return self._replica.log.applied, self._broker.engine.image()

    def holds_lease(self) -> bool:
        """Whether this node serves, and may let clients know now what it has done."""
        leader = self._leader
        return leader is not None and leader.serving and leader.holds_lease()

    @property
    def log(self) -> Log:
        """The entries."""
        return self._replica.log

    @property
    def group(self) -> Sequence[str]:
        """Who belongs to the group, as this node knows."""
        return self._replica.order

    @property
    def listeners(self) -> Mapping[str, str]:
        """Where clients reach each replica of the group, as this node knows."""
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
        """From whom this node takes the log."""
        return self._received.source if self._received is not None else ""

    @property
    def is_apart(self) -> bool:
        """Whether it has a place, and does not belong to the group."""
        return self._replica.is_apart

    def believes(self, peer: str) -> bool:
        """Whether it takes a peer for alive."""
        return self._replica.links.silent_for(peer) <= self._options.detection_timeout

    def has_majority_of(self, group: Collection[str]) -> bool:
        """Whether those of a group that this master has in its view are a majority of it."""
        return sum(name in group for name in self.members) >= majority(len(group))
