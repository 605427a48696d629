"""Watchers of HA Joram's data, with ``partitions=primary-partition``: the log, the entries that are committed or
acknowledged, and the effects that masters release."""

from __future__ import annotations

from nodes.reference.designs.joram.decisions import round_of
from nodes.reference.designs.joram.leader import BATCH_COMMANDS
from nodes.reference.replication.quorum import majority
from nodes.systems.reference.joram.probes import JoramObserved, JoramProbe
from stormproof.contracts.invariant import Watcher

LONGEST_LOG = 9
"""Upper bound of the log's length, as a multiple of the entries kept for other replicas; one batch is added."""
LONGEST_FOR_LAGGING = 8
"""Entries that a master keeps for a lagging replica, as a multiple of those that it keeps in any case."""
SHORT_LOG = min(LONGEST_LOG, LONGEST_FOR_LAGGING)


class LogIsShort(Watcher):
    """Tracks the replicas that were sending the whole state at their last check."""

    def __init__(self) -> None:
        self._sending: set[str] = set()

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that the committed entries in the log do not exceed those kept for others, unless a whole state is
        sent.

        A master drops surplus entries when it writes to its disk; entries that were committed in that step are
        excepted.
        """
        keep, sent, there = program.log_keep, node in self._sending, now.committed - now.base
        if there <= SHORT_LOG * keep:  # also holds one step earlier
            self._sending.discard(node)
            return ""
        if program.transfers:
            self._sending.add(node)
            return ""
        self._sending.discard(node)
        held, most = there, LONGEST_LOG * keep + BATCH_COMMANDS
        wrote = (before is not None and before.leads == now.leads > 0 and before.promised == now.promised
                 and now.durable > before.durable)  # fmt: skip
        if before is not None and wrote and not sent:
            held, most = before.committed - now.base, LONGEST_FOR_LAGGING * keep
        return f"its log holds {held} entries that are committed, and {most} are enough" if held > most else ""


class LogIsLongEnough(Watcher):
    """Stateless check of a master whose log has become shorter."""

    fields = ("base",)

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that the log still holds the entries that are kept for returning replicas, and those that a replica fed
        from it needs, unless that lags too far. A replica that receives the whole state keeps nothing, but it is never
        a master."""
        if before is None or now.base <= before.base or not now.leads or before.leads != now.leads:
            return ""
        keep, there = program.log_keep, now.last - now.base
        if there < keep and program.log.size <= program.log_keep_bytes / 2:
            return f"its log holds {there} entries, and {keep} are to be kept"
        if there < LONGEST_FOR_LAGGING * keep and (slow := program.lacking(now.base)):
            return f"its log begins behind entry {now.base}, which it has not sent {slow[0]}"
        return ""


class NewestLogLeads(Watcher):
    """Tracks the log position of each replica when it promised its present epoch."""

    fields = ("leads", "promised")

    def __init__(self) -> None:
        self._positions: dict[str, tuple[int, tuple[int, int]]] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that a master begins with a log that is as complete as those of a majority that promised its epoch."""
        if before is None or before.promised != now.promised:
            self._positions[node] = now.promised, (now.last_epoch or 0, now.last)
        if not now.leads or (before is not None and before.leads):
            return ""
        log, group = program.log, program.group
        mine = log.epoch_at(now.last - 1) or 0, now.last - 1
        promised = [self._positions[name][1] for name in group
                    if name in self._positions and self._positions[name][0] == now.leads]
        behind = sum(position <= mine for position in promised)
        if len(promised) < majority(len(group)) or behind >= majority(len(group)):
            return ""
        return (f"it is master in epoch {round_of(now.leads)} with a log that ends at {mine[1]} of epoch "
                f"{round_of(mine[0])}, and only {behind} of those that promised have none that is more complete")

    def disk_lost(self, node: str) -> None:
        """Forget the node's promise, with the log that it had then."""
        self._positions.pop(node, None)


class LogsMatch(Watcher):
    """Tracks each entry by index and epoch: its content, and the epoch of the entry before it."""

    fields = ("last", "last_epoch")

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], tuple[int | None, bytes]] = {}
        self._known: dict[str, dict[int, int]] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check the new entries of the log, from its end back to the last checked one."""
        log = program.log
        known = self._known.setdefault(node, {})
        for gone in range(now.last + 1, before.last + 1 if before is not None else 0):
            known.pop(gone, None)
        for index in range(now.last, now.base, -1):
            epoch = log.epoch_at(index)
            if epoch is None or known.get(index) == epoch:
                break
            known[index] = epoch
            held = (log.epoch_at(index - 1), log.entry(index))
            other = self._entries.setdefault((index, epoch), held)
            if other[1] != held[1]:
                return f"entry {index} of epoch {round_of(epoch)} holds something else than elsewhere"
            if other[0] != held[0] and None not in (other[0], held[0]):
                return f"before entry {index} of epoch {round_of(epoch)} there is another one than elsewhere"
        return ""


class CommittedStays(Watcher):
    """Tracks the epoch of each committed entry, and the epoch in which it was committed, which may be later.

    ``newest`` is the highest committed index: because logs match, a replica that has this entry has all of them.
    """

    fields = ("leads", "committed", "last")

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._committed_in: dict[int, int] = {}
        self.newest = 0

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check a replica's committed entries, its log, and the log with which it begins as master."""
        return self._lost(program, now, before) or self._other(program, now, before)

    def _lost(self, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        if now.leads and (before is None or before.leads != now.leads):
            # A replica that was suspended when it was elected may begin when a newer master has already committed more.
            newest = next((index for index in range(self.newest, 0, -1)
                           if index in self._epochs and self._committed_in[index] < now.leads), 0)  # fmt: skip
            has = program.log.epoch_at(newest) if newest > now.base else self._epochs.get(newest)
            if newest and has != self._epochs.get(newest):
                return f"it is master in epoch {round_of(now.leads)} without the committed entry {newest}"
        if before is not None and now.committed < before.committed:
            return f"entries up to {before.committed} were committed, and now only those up to {now.committed}"
        return f"entry {now.committed} is committed, and the log ends at {now.last}" if now.committed > now.last else ""

    def _other(self, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        start = before.committed if before is not None else now.base
        for index in range(max(start, now.base) + 1, now.committed + 1):
            epoch = program.log.epoch_at(index)
            if epoch is None:
                continue
            self._committed_in.setdefault(index, now.leads or now.promised)
            other = self._epochs.setdefault(index, epoch)
            if other != epoch:
                return (f"entry {index} is committed in epoch {round_of(epoch)}, and was before in epoch "
                        f"{round_of(other)}")  # fmt: skip
        self.newest = max(self.newest, now.committed)
        return ""


class CommittedIsDurable(Watcher):
    """Tracks the entries that each replica has on disk."""

    fields = ("durable", "leads", "committed")

    def __init__(self) -> None:
        self._durable: dict[str, int] = {}
        self._before: dict[str, int] = {}
        """Node -> the last entry that was on its disk before that lost its data."""
        self._programs: dict[str, JoramProbe] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that the entries that a master commits are on the disks of a majority of the group."""
        self._durable[node] = now.durable
        self._programs[node] = program
        if not now.leads or before is None or now.committed <= before.committed:
            return ""
        group = program.group
        having = sum(self._has(name, now.committed) for name in group)
        if having >= majority(len(group)):
            return ""
        return f"it commits entry {now.committed}, which {having} of {len(group)} replicas have on disk"

    def ended(self, node: str) -> None:
        """Keep the ended replica's durable index: it may have ended in the middle of a callback, after the last check,
        with more entries on its disk, and may have acknowledged them."""
        if (program := self._programs.pop(node, None)) is not None:
            self._durable[node] = program.observed().durable

    def disk_lost(self, node: str) -> None:
        """Note the entries that were on the node's disk: acknowledgements of before may still be on their way."""
        self._before[node] = self._durable.get(node, 0)

    def _has(self, name: str, index: int) -> bool:
        return index <= max(self._durable.get(name, 0), self._before.get(name, 0))


class AcknowledgedIsThere(Watcher):
    """Tracks the replicas, and the acknowledgements that each master counted at its last check."""

    def __init__(self) -> None:
        self._programs: dict[str, JoramProbe] = {}
        self._acked: dict[str, dict[str, int]] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that acknowledged entries are in the replica's log, as long as it has promised no newer epoch."""
        self._programs[node] = program
        if not now.leads or (acked := program.acknowledged) == (known := self._acked.get(node, {})):
            return ""
        self._acked[node] = dict(acked)
        for name, index in acked.items():
            other = self._programs.get(name)
            if other is None or known.get(name) == index or other.log.promised > now.leads:
                continue
            mine, theirs = program.log.epoch_at(index), other.log.epoch_at(index)
            if index > other.log.last or (None not in (mine, theirs) and mine != theirs):
                return (f"{name} has acknowledged entry {index} of epoch {round_of(mine or 0)}, and its log has "
                        f"{'nothing' if theirs is None else f'one of epoch {round_of(theirs)}'} there")
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended replica; it is checked again after its restart."""
        self._programs.pop(node, None)
        self._acked.pop(node, None)


class ServesAfterOwnEntry(Watcher):
    """Stateless check of a master that begins to serve."""

    fields = ("serving",)

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that the last entry that a master has committed belongs to its epoch before it serves."""
        if not now.serving or (before is not None and before.serving):
            return ""
        epoch = program.log.epoch_at(now.committed)
        if epoch in (now.leads, None):  # with asynchronous propagation it may have been dropped
            return ""
        return f"it serves in epoch {round_of(now.leads)}, and the last entry committed is of {round_of(epoch or 0)}"


class AllHaveIt(Watcher):
    """Tracks the entries that each replica has on disk."""

    fields = ("durable", "leads", "committed")

    def __init__(self) -> None:
        self._durable: dict[str, int] = {}
        self._before: dict[str, int] = {}
        """Node -> the last entry that was on its disk before that lost its data."""
        self._programs: dict[str, JoramProbe] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that the entries that a master commits are on the disks of all members of its view."""
        self._durable[node] = now.durable
        self._programs[node] = program
        if not now.leads or before is None or before.leads != now.leads or now.committed <= before.committed:
            return ""  # a new master may have learned of it from the source of its log
        without = [name for name in program.members if not self._has(name, now.committed)]
        return f"it commits entry {now.committed}, which {without[0]} does not have on disk" if without else ""

    def ended(self, node: str) -> None:
        """Keep the ended replica's durable index: it may have ended in a callback, after the last check."""
        if (program := self._programs.pop(node, None)) is not None:
            self._durable[node] = program.observed().durable

    def disk_lost(self, node: str) -> None:
        """Note the entries that were on the node's disk: acknowledgements of before may still be on their way."""
        self._before[node] = self._durable.get(node, 0)

    def _has(self, name: str, index: int) -> bool:
        return index <= max(self._durable.get(name, 0), self._before.get(name, 0))


class ViewHasIt(Watcher):
    """Tracks the most entries that each replica has ever had on disk: with ``partitions=unspecified`` its log may get
    shorter when it takes over another side's state."""

    fields = ("durable", "leads", "committed")

    def __init__(self) -> None:
        self._most: dict[str, int] = {}
        self._programs: dict[str, JoramProbe] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that the entries that a master commits are on the disks of as many members of its view as ``ack``
        demands."""
        self._most[node] = max(self._most.get(node, 0), now.durable)
        self._programs[node] = program
        if not now.leads or before is None or before.leads != now.leads or now.committed <= before.committed:
            return ""
        members = program.members
        having = sum(self._most.get(name, 0) >= now.committed for name in members)
        if having >= program.needed:
            return ""
        return f"it commits entry {now.committed}, which {having} of the {len(members)} members of its view have"

    def ended(self, node: str) -> None:
        """Note what the ended replica had on disk: it may have ended in a callback, after the last check."""
        if (program := self._programs.pop(node, None)) is not None:
            self._most[node] = max(self._most.get(node, 0), program.observed().durable)


class CountsForWhatItHas(Watcher):
    """Tracks the programs."""

    def __init__(self) -> None:
        self._programs: dict[str, JoramProbe] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that a master does not count a follower as having more entries than the follower's log has: entries
        from before the loss of its disk do not count."""
        self._programs[node] = program
        master = self._programs.get(now.follows)
        if master is None or now.takes != master.leads_in:
            return ""
        index = master.acknowledged.get(node, -1)
        return f"its log ends at {now.last}, and its master takes it to have entry {index}" if index > now.last else ""

    def ended(self, node: str) -> None:
        """Forget the ended replica; it is checked again after its restart."""
        self._programs.pop(node, None)


class StatesAreNeeded(Watcher):
    """Tracks the programs."""

    fields = ("states",)

    def __init__(self) -> None:
        self._programs: dict[str, JoramProbe] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that a replica gets the whole state only if its master's log has neither its last entry nor its last
        committed one.
        """
        self._programs[node] = program
        if before is None or now.states == before.states:
            return ""
        master = self._programs.get(now.follows)
        if master is None or now.takes != master.leads_in:
            return ""
        log = master.log
        if log.epoch_at(before.last) == before.last_epoch or log.base <= before.committed <= log.last:
            return (f"it is sent the whole state by {now.follows}, and its log ended at {before.last}, of which "
                    f"{before.committed} were committed; that of its master begins behind {log.base}")
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended replica."""
        self._programs.pop(node, None)


class CommitsItsOwn(Watcher):
    """Stateless check of a master that commits."""

    fields = ("committed",)

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that a master commits by counting only entries of its epoch: counting proves nothing for older ones."""
        if before is None or not now.leads or before.leads != now.leads or now.committed <= before.committed:
            return ""
        epoch = program.log.epoch_at(now.committed)
        if epoch in (now.leads, None):
            return ""
        return f"it commits entry {now.committed} of epoch {round_of(epoch or 0)} in epoch {round_of(now.leads)}"


class ReleasesInLease(Watcher):
    """Stateless check of a master that releases effects."""

    fields = ("unleased",)

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that a master releases effects only while its lease holds; the count covers every release between two
        checks.
        """
        return f"it has let out {now.unleased} effects without a lease" if now.unleased else ""
