"""The parts of a replica that all others share: its identity, its log, its peers, and the application of entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from nodes.reference import wire
from nodes.reference.api import Broker, Command, Effect
from nodes.reference.designs.joram.decisions import make_epoch, round_of
from nodes.reference.designs.joram.log import (
    JoramLog,
    Member,
    check_members,
    check_view,
    checked_entry,
    decode_command,
    encoded_members,
    is_command,
    members_of,
)
from nodes.reference.designs.joram.log_trace import LogTrace
from nodes.reference.designs.joram.messages import GroupMembers, Message, pack
from nodes.reference.designs.joram.options import JoramOptions
from nodes.reference.engine.row_schema import ShapeError
from nodes.reference.points import PROMISED
from nodes.reference.replication.handshake import LinkError
from nodes.reference.replication.links import LinkEvents, Links
from nodes.reference.replication.positions import LogId
from nodes.reference.replication.transfer import Marks

_COMMANDS_KEPT = 10_000


class JoramReplica:
    """One replica: name, place in the group's order, log, links.

    ``order`` lists the group's members: according to the log, or, while that has no group, according to the
    configuration (without this replica if it is to ``join`` a running group). ``places`` are these members and the
    replicas that are apart, each at the place that is its rank forever. ``learners`` are replicas that are being added:
    they get the log, and don't count in majorities. ``tell_peers`` sends a heartbeat to each peer.
    """

    def __init__(self, broker: Broker, options: JoramOptions, events: LinkEvents) -> None:
        config = broker.config
        self.broker = broker
        self.options = options
        self.runtime = broker.runtime
        self.now = broker.runtime.now
        """Monotonic seconds."""
        self.name = config.node
        self.configured = [
            Member(name, host, port, config.client_addresses.get(name, ""))
            for name, (host, port) in config.peers.items()
        ]
        self.learners: list[Member] = []
        self._memberships: dict[str, list[Member]] = {}
        self._commands: dict[int, tuple[bytes, Command]] = {}
        """Entries that peers have sent, each with its decoded command, until they are applied."""
        self._told: list[Member] = []
        self.log = JoramLog(broker.database)
        self.marks = Marks(broker.database)
        self.committed = self.log.applied
        self._persisted = broker.runtime.now()
        self.newest_promised = self.log.promised
        self.tell_peers: Callable[[], None] = lambda: None
        self.links = Links(
            broker.runtime, events, config.node, config.peers, options.cluster,
            silence=options.detection_timeout, retry=options.heartbeat_interval / 2, secret=options.secret,
        )
        self.log.regrouped = self.regroup
        if broker.engine.message_trace is not None:
            self.log.watch = LogTrace(self.log, broker.engine.message_trace)
        self.regroup()

    def regroup(self) -> None:
        """Update the group after a change of its members, of its learners, or of the lists that peers report."""
        self.places = self.log.group or [
            member for member in self.configured if member.name != self.name or not self.options.join
        ]
        self.group = [member for member in self.places if not member.apart]
        self.learners = [member for member in self.learners if member not in self.group]
        self.order = [member.name for member in self.group]
        self.ranks = {member.name: rank for rank, member in enumerate(self.configured)}
        self.ranks |= {member.name: rank for rank, member in enumerate(self.places)}
        # Of two nodes one must dial, so both should know the same order. The best list that names a node decides: this
        # node's log, else the peers' lists (a list only grows, so the longest first), else the configuration, which may
        # differ on other nodes. Links to removed replicas are kept: a removal may turn out not to be committed.
        learners = {member.name: member for member in self.learners}
        own = [learners.pop(member.name, member) for member in self.places]
        own += learners.values()
        memberships = sorted(self._memberships.values(), key=len, reverse=True)
        self.peers: list[str] = []
        for members in (*([own, *memberships] if self.log.group else [*memberships, own]), self.configured):
            self._meet(members)
        self.links.retain(self.peers)
        if self.log.group != self._told:
            self._told = self.log.group
            for peer in self.peers:
                self.introduce(peer)

    def _meet(self, members: Sequence[Member]) -> None:
        """Link to members that no better list has named; of two nodes, the one that is listed first dials."""
        names = [member.name for member in members]
        place = names.index(self.name) if self.name in names else len(names)
        for rank, member in enumerate(members):
            if member.name not in (self.name, *self.peers):
                self.peers.append(member.name)
                self.ranks.setdefault(member.name, len(self.ranks))
                self.links.add(member.name, (member.host, member.port), dial=rank > place)

    def introduce(self, peer: str) -> None:
        """Send the group's membership to a peer.

        The peer may have been away while the group grew, and may wait for a master of which it has never heard.
        """
        if self.log.group:
            self.send(peer, GroupMembers(encoded_members(self.log.group)))

    def introduced(self, peer: str, members: Sequence[Sequence[Any]]) -> None:
        """Note a peer's list of the group's members. Only this node's log determines whose acknowledgements count.

        Raises:
            LinkError: it is not a list of members.
        """
        try:
            check_members(members)
        except ShapeError as error:
            raise LinkError(f"a membership is malformed: {error}") from error
        self._memberships[peer] = members_of(members)
        self.regroup()

    @property
    def rank(self) -> int:
        """The place in the configured order."""
        return self.ranks[self.name]

    @property
    def is_apart(self) -> bool:
        """Tell whether this replica knows that it has a place and does not belong to the group."""
        return any(member.name == self.name and member.apart for member in self.places)

    @property
    def has_log(self) -> bool:
        """Tell whether this replica has been part of the group, and still has its log from that time."""
        return self.log.last > 0 and self.log.whole

    def encode(self, message: Message) -> bytes:
        """Encode a message as a link frame."""
        return pack(message)

    def check_entry(self, index: int, entry: bytes) -> None:
        """Check an entry that a peer has sent for this index; raises LinkError if it is invalid.

        The decoded command is kept, because it usually is the next one to be applied.
        """
        try:
            command = checked_entry(entry)
        except (ShapeError, wire.WireError) as error:
            raise LinkError(f"entry {index} is malformed: {error}") from error
        if command is not None:
            if len(self._commands) > _COMMANDS_KEPT:
                self._commands.clear()
            self._commands[index] = entry, command

    def check_group(self, view: Sequence[Any], group: Sequence[Any]) -> None:
        """Check a view and a group that a peer has sent; raises LinkError if one is invalid."""
        try:
            check_view(view)
            check_members(group)
        except ShapeError as error:
            raise LinkError(f"the end of a state is malformed: {error}") from error

    def send(self, peer: str, message: Message) -> None:
        """Send to a peer; without a link, the message is lost."""
        self.links.send(peer, pack(message))

    def is_alive(self, peer: str) -> bool:
        """Tell whether the peer has been heard within the detection time-out."""
        return self.links.silent_for(peer) <= self.options.detection_timeout

    def alive(self) -> list[str]:
        """Return this node and the peers that it believes alive, in configured order."""
        return [name for name in self.order if name == self.name or self.is_alive(name)]

    def note_promised(self, epoch: int) -> None:
        """Remember the newest epoch that any node is known to have promised."""
        self.newest_promised = max(self.newest_promised, epoch)

    def promise(self, epoch: int) -> None:
        """Agree, on disk, to reject all epochs before this one."""
        if epoch < self.log.promised:
            raise ValueError(f"epoch {epoch} is older than the promised {self.log.promised}")
        if epoch > self.log.promised:
            self.log.promised = epoch
            self.note_promised(epoch)
            self.persist()
            self.runtime.point(PROMISED)

    def next_epoch(self) -> int:
        """Return an epoch of this node that is newer than any it has heard of."""
        return make_epoch(round_of(self.newest_promised) + 1, self.rank)

    def advance(self, committed: int) -> list[Effect]:
        """Apply the entries up to ``committed``; return their effects.

        The engine keeps changes in memory until ``persist``; after a crash the entries are applied again.
        """
        if committed > self.committed:
            self.committed = committed
        effects: list[Effect] = []
        if self.log.applied >= self.committed:
            return effects
        for _, _, brought in self.apply(self.committed):
            effects.extend(brought)
        return effects

    def apply(self, upto: int) -> Iterator[tuple[int, Command, list[Effect]]]:
        """Apply the entries up to an index, committed or not; yield (index, command, effects) of each command.

        If an entry that was applied ahead of its commitment turns out not to be committed, the log of the next master
        contradicts the applied state, and the whole state is replaced (``plan_feed``).
        """
        log = self.log
        while log.applied < min(upto, log.last):
            entry = log.entry(log.applied + 1)
            log.applied += 1
            if is_command(entry):
                kept, command = self._commands.pop(log.applied, (b"", None))
                if command is None or kept is not entry:  # the first entry at this index may have been removed
                    command = decode_command(entry)
                yield log.applied, command, self.broker.engine.apply(command)
        if log.applied == log.last:
            self._commands.clear()  # drops commands that were replaced before they were applied

    def progress(self) -> Callable[[], None]:
        """Return a callback for work that blocks the event loop: called now and then, it sends heartbeats to the peers.

        Otherwise they would suspect a node that loads a bulky state, and cut the link that it still needs.
        """
        last = self.now()

        def on_progress() -> None:
            nonlocal last
            if self.now() - last >= self.options.heartbeat_interval:
                last = self.now()
                self.tell_peers()

        return on_progress

    def persist(self) -> None:
        """Commit the log, the promise and all applied changes to disk."""
        with self.broker.transaction():
            self.log.write()
        self._persisted = self.now()

    @property
    def persisted(self) -> float:
        """The time of the last call of ``persist``."""
        return self._persisted

    def unpersisted_for(self) -> float:
        """Return the seconds since the last ``persist``."""
        return self.now() - self._persisted

    def load(
        self, rows: Iterable[list[Any]], at: LogId, view: Sequence[str], group: Sequence[Sequence[Any]]
    ) -> None:
        """Replace the state by a dump that contains every entry up to ``at``, in one transaction."""
        with self.broker.transaction():
            self.broker.engine.load(rows, self.progress())
            self.log.reset(at, view, group)
            self.log.write()
        self._commands.clear()
        self.committed = at.idx
