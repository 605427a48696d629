"""Watchers of the data in a Qpid cluster: stores, backups' copies, and the notes of what backups lack.

The notes are checked at the time when a primary confirms data, and when a manager promotes its broker.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from nodes.reference.api import Image
from nodes.reference.designs.qpid.configuration import BINDING, EXCHANGE, QUEUE, REPLICATE
from nodes.reference.designs.qpid.manager.note import Note
from nodes.reference.designs.qpid.options import NONE
from nodes.reference.designs.qpid.states import CATCHUP, PRIMARY, READY
from nodes.reference.designs.qpid.store_status import BACKUP_STORE, CLEAN, DIRTY, EMPTY, PRIMARY_STORE
from nodes.systems.reference.probes.images import difference
from nodes.systems.reference.qpid import own_rows
from nodes.systems.reference.qpid.manager_probes import ManagerObserved, ManagerProbe
from nodes.systems.reference.qpid.probes import QpidObserved, QpidProbe
from nodes.systems.reference.qpid.rules.roles import ClusterWatcher
from nodes.systems.reference.qpid.rules.wire import completed
from nodes.systems.reference.rules.disks import DiskWatcher
from nodes.systems.reference.rules.guards import AsksOnce
from nodes.systems.reference.wire_reader import decoded
from stormproof.contracts.invariant import Watcher


class OwnRowsJudged(AsksOnce):
    """Tries starts from a sample of rows."""

    period = 2.0

    def ask(self, program: QpidProbe) -> str:
        """Try all of them."""
        return own_rows.misjudged()


class UrlsKept(DiskWatcher):
    """Compares what each broker takes for its URLs with its disk."""

    period = 1.0

    def inspect(self, node: str, program: QpidProbe) -> str:
        """Check that the URLs are those of its disk, if a person has set any, and otherwise those of its
        configuration."""
        if program.failed or program.store_error or (rows := self.rows(node, "qpid_urls")) is None:
            return ""
        expected = program.configured_urls()
        for _, _, brokers, clients, _ in rows:
            expected = {name: (host, port) for name, host, port in decoded(brokers)}, dict(decoded(clients))
        found = program.urls()
        return f"its URLs are {found}, and by its disk they are {expected}" if found != expected else ""


class FirstStartOfAll(DiskWatcher):
    """Tracks the brokers that were ever started."""

    def __init__(self) -> None:
        super().__init__()
        self._nodes: set[str] = set()

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check, when a broker is promoted that was never ready, that the disks of all others have empty stores, or
        clean ones of one shutdown."""
        super().look(node, program, now, before)
        self._nodes.add(node)
        if now.state != PRIMARY or before is None or before.state == PRIMARY or before.eligible or before.vouched:
            return ""
        if before.store == DIRTY:
            return ""  # `may-lead` judges that
        stores = {name: self._store(name) for name in self._nodes - {node}}
        odd = [name for name, store in stores.items() if store is not None and store[0] != before.store]
        found = {store for store in stores.values() if store is not None}
        if not odd and len(found) <= 1:
            return ""
        return f"it was never ready, and its store was {before.store}; those of the others are {stores}"

    def _store(self, node: str) -> tuple[str, str] | None:
        """Return state and identifier of a node's store; None where the disk has lost it."""
        if (rows := self.rows(node, "qpid_store")) is None:
            return None
        return (rows[0][1], rows[0][4]) if rows else (EMPTY, "")


class EligibleHasStored(Watcher):
    """Stateless check of a backup that carries on though its store fails."""

    period = 0.1

    def inspect(self, node: str, program: QpidProbe) -> str:
        """Check that it is not eligible while some of what it has is not stored."""
        if program.failed or not program.store_error or not program.observed().eligible:
            return ""
        return f"it may be promoted, and could not store everything: {program.store_error}"


class PrimaryIsDirty(Watcher):
    """Stateless check of a store."""

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that the store of a broker that runs as primary is dirty."""
        return f"it is primary, and its store is {now.store}" if now.state == PRIMARY and now.store != DIRTY else ""


class PrimaryOnDisk(DiskWatcher):
    """Stateless check of the disk of a broker that becomes primary."""

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that its disk says so: the store is dirty, a primary's, and of its generation."""
        super().look(node, program, now, before)
        if now.state != PRIMARY or before is None or before.state == PRIMARY:
            return ""
        if (rows := self.rows(node, "qpid_store")) is None:
            return ""
        there = [(state, role, generation) for _, state, role, generation, _ in rows]
        if there == [(DIRTY, PRIMARY_STORE, now.generation)]:
            return ""
        return f"it is primary of generation {now.generation}, and on its disk is {there or 'nothing'}"


class GenerationsGrow(DiskWatcher):
    """Tracks the highest generation that each store has held, and the brokers that carry on with one in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._generations: dict[str, int] = {}
        self._unstored: set[str] = set()

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that a store's generation never decreases; a generation is in the store before it is reported.

        An administrator may erase and replace a store, and so may the managers after a full stop. What a broker finds
        at its start may not be on disk: the kernel still has what a failed sync left there.
        """
        super().look(node, program, now, before)
        if self.lacks_files(node):
            return ""
        kept = self._generations.get(node, 0)
        if 0 < now.generation < kept:
            return f"its store was of generation {kept}, and is now of {now.generation}"
        if before is None:
            self._unstored.discard(node)
        if not now.generation or (before is not None and before.generation != now.generation):
            self._unstored.add(node)
        if node in self._unstored and not program.store_error:
            self._unstored.discard(node)
            self._generations[node] = now.generation
        return ""

    def disk_lost(self, node: str) -> None:
        """Expect nothing of a store that the disk has lost."""
        super().disk_lost(node)
        self._generations.pop(node, None)


class StoreTells(Watcher):
    """Tracks the running brokers."""

    def __init__(self) -> None:
        self._programs: dict[str, QpidProbe] = {}

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that a store is marked with its broker's role, and that a broker that becomes ready has its primary's
        generation.
        """
        self._programs[node] = program
        if now.state not in (READY, PRIMARY):
            return ""
        role = PRIMARY_STORE if now.state == PRIMARY else BACKUP_STORE
        if now.store != DIRTY or now.role != role:
            return f"it is {now.state}, and its store is a {now.store} one of a {now.role}"
        if now.state == READY and (before is None or before.times_ready < now.times_ready):
            primary = self._programs.get(program.serves_at or "")
            leads = primary.leads(node) if primary is not None else 0
            if leads not in (0, now.generation):
                return f"it is ready with a store of generation {now.generation}, and its primary is of {leads}"
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended broker."""
        self._programs.pop(node, None)


class DamagedStores(Watcher):
    """Tracks the nodes whose disks have lost or changed synced data, until their stores were seen empty."""

    def __init__(self) -> None:
        self._damaged: set[str] = set()

    def damaged(self, node: str, now: QpidObserved) -> bool:
        """Tell whether a node's store may hold what no broker has written."""
        if now.store == EMPTY:
            self._damaged.discard(node)
        return node in self._damaged

    def disk_lost(self, node: str) -> None:
        """Expect nothing of a store whose disk has lost something, before it is replaced."""
        self._damaged.add(node)


class CleanAlike(DamagedStores):
    """Tracks the content of the first clean store of each identifier."""

    def __init__(self) -> None:
        super().__init__()
        self._images: dict[str, tuple[str, Image]] = {}

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Compare a store when it becomes clean, or a broker is started from it."""
        damaged = self.damaged(node, now)
        if now.store != CLEAN or (before is not None and before.store == CLEAN) or damaged:
            return ""
        found = program.clean_image()
        if found is None:
            return ""
        uuid, image = found
        other, expected = self._images.setdefault(uuid, (node, image))
        wrong = difference(image, expected, (node, other))
        return f"of the shutdown {uuid}: {wrong}" if wrong else ""


class CopiesMatch(DamagedStores):
    """Tracks the running brokers, and the primary of each generation."""

    period = 3.0

    def __init__(self) -> None:
        super().__init__()
        self._programs: dict[str, QpidProbe] = {}

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that a ready backup has everything that its primary has: when it becomes ready, and at each group."""
        self._programs[node] = program
        if self.damaged(node, now) or now.state != READY or before is None:
            return ""
        if now.times_ready > before.times_ready:
            return self.inspect(node, program)
        primary = self._primary_of(program, now)
        if now.number == before.number or primary is None or primary.observed().number != now.number:
            return ""
        mine, theirs = program.extent(), primary.extent()
        odd = [name for name in mine if mine[name] != theirs.get(name)]
        if not odd:
            return ""
        made, came, left = mine[odd[0]]
        return (f"it has completed group {now.number}, and has {left} of {came} messages of queue {odd[0]} ({made}), "
                f"where its primary has {theirs.get(odd[0])}")  # fmt: skip

    def inspect(self, node: str, program: QpidProbe) -> str:
        """Check that a ready backup has the primary's messages at the same positions; later ones may be in flight."""
        now = program.observed()
        sound = now.state == READY and not self.damaged(node, now)
        primary = self._primary_of(program, now) if sound else None
        if primary is None:
            return ""
        theirs = primary.copies()
        for name, (made, came, copies) in program.copies().items():
            if name not in theirs or theirs[name][0] != made:
                continue
            messages = theirs[name][2]
            if lacking := [place for place in messages if place <= came and place not in copies]:
                return f"it is ready, and lacks the messages {lacking[:3]} of queue {name}, of which it has got {came}"
            if other := [place for place in messages if place in copies and copies[place] != messages[place]]:
                return f"it is ready, and its messages {other[:3]} of queue {name} are others than the primary's"
        return ""

    def _primary_of(self, program: QpidProbe, now: QpidObserved) -> QpidProbe | None:
        """Return the primary that a backup is attached to, if it still is the primary of that generation."""
        primary = self._programs.get(program.serves_at or "")
        if primary is None or primary.failed:
            return None
        other = primary.observed()
        if self.damaged(program.serves_at or "", other):
            return None
        return primary if (other.state, other.generation) == (PRIMARY, now.generation) else None

    def ended(self, node: str) -> None:
        """Forget the ended broker."""
        self._programs.pop(node, None)


class WindowUsed(Watcher):
    """Stateless check of a primary after each of its steps."""

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that a catch-up waits only while its window is full."""
        return f"{now.held_back} waits for more, though its window has room" if now.held_back else ""


class BacklogKept(Watcher):
    """Stateless check of a primary after each of its steps."""

    fields = ("overheld",)

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that a backup that catches up is cut off when more waits for it than may."""
        return f"more than catchup_backlog waits for {now.overheld}, which is not cut off" if now.overheld else ""


class LevelsKept(Watcher):
    """Stateless check of a backup's objects."""

    period = 2.0

    def inspect(self, node: str, program: QpidProbe) -> str:
        """Check that a backup that has everything has no object marked as not replicated, and no binding without both
        of its ends."""
        if program.observed().state != READY:
            return ""
        has = program.configuration
        odd = [key for key, arguments in has.items() if arguments.get(REPLICATE) == NONE]
        if odd:
            return f"as a backup it has {odd[0]}, which says {REPLICATE}={NONE}"
        loose = [arguments for (kind, _), arguments in has.items() if kind == BINDING
                 and not all((end, arguments[end]) in has for end in (EXCHANGE, QUEUE))]
        return f"as a backup it has the binding {dict(loose[0])}, and not both of its ends" if loose else ""


class NotesGrow(ClusterWatcher):
    """Tracks the content of each note."""

    def __init__(self) -> None:
        super().__init__()
        self._says: dict[tuple[int, int], tuple[str, ...]] = {}

    def manager(self, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None,
                known: ManagerObserved | None) -> str:
        """Check that a manager's note is on disk, gives way only to a later one, and is the same everywhere."""
        if known is not None and now.note.order < known.note.order:
            return f"it has the note {now.note}, and had {known.note}"
        news = before is not None and now.note != before.note and now.note.version
        # A manager that was cut off may learn of several decisions at once, and store a note of one before the next.
        if before is not None and news and not before.term <= now.note.term <= now.term:
            return f"it takes the note {now.note}, and has accepted the primary of term {now.term}"
        if not now.note.version or self.forgotten:
            return ""
        if (says := self._says.setdefault(now.note.order, now.note.names)) != now.note.names:
            return f"it has the note {now.note}, which names {says} elsewhere"
        return ""


class ConfirmedOrNoted(ClusterWatcher):
    """Tracks the last group that each backup has completed, by (backup, generation, primary)."""

    def __init__(self) -> None:
        super().__init__()
        self._completed: dict[tuple[str, int, str | None], int] = {}

    def manager(self, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None,
                known: ManagerObserved | None) -> str:
        """Check that a note is replaced only by one that is correct, too."""
        if known is None or known.note == now.note:
            return ""
        for node, broker in self.brokers.items():
            seen = broker.observed()
            if seen.state == PRIMARY and broker.confirms() and (wrong := self._lacks(node, seen)):
                return f"it has the note {now.note}, and of {node} holds: {wrong}"
        return ""

    def broker(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that completed groups are at each other broker, or that a majority has noted that the primary continues
        without it.
        """
        if now.state in (CATCHUP, READY):
            return ""
        fresh = before is None or before.state != PRIMARY or before.generation != now.generation
        if now.state != PRIMARY or now.released <= (0 if fresh or before is None else before.released):
            return ""
        return self._lacks(node, now)

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Note that a backup has told its primary what it has completed, by the frame on the wire."""
        number, backup = completed(frame), self.brokers.get(node)
        if number is not None and backup is not None:
            key = node, backup.observed().generation, peer
            self._completed[key] = max(number, self._completed.get(key, 0))
        return ""

    def _lacks(self, node: str, now: QpidObserved) -> str:
        if not now.term or not now.released or self.forgotten:
            return ""
        for name in next((each.members for each in self.managers.values()), ()):
            if name == node or self._completed.get((name, now.generation, node), -1) >= now.released:
                continue
            noted = [each for each, record in self.records.items()
                     if record.note.term == now.term and name in record.note.names]
            if not self.most(noted):
                return (f"it has completed group {now.released}, which {name} has not, and {len(noted)} managers have "
                        "noted that it goes on without that")  # fmt: skip
        return ""


class NotedAreNotPromoted(ClusterWatcher):
    """Tracks all notes, and the version that each manager has in each term; the last term that each broker led; and the
    last term in which a primary had it ready, with the generation."""

    def __init__(self) -> None:
        super().__init__()
        self._notes: dict[tuple[int, int], Collection[str]] = {}
        self._taken: dict[int, dict[str, int]] = {}
        self._latest = (0, 0)
        self._led: dict[str, int] = {}
        self._stores: dict[str, str] = {}
        self._ready: dict[str, tuple[int, int]] = {}

    def manager(self, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None,
                known: ManagerObserved | None) -> str:
        """Check that a manager that promotes its broker knows all notes that a majority has stored."""
        note = now.note
        if self.forgotten:
            return ""
        if known is None or note != known.note:
            self._take(program, note)
        if before is None or now.promoted <= before.promoted or self._stores.get(program.node, DIRTY) != DIRTY:
            return ""
        names = {*note.names, program.node}
        known_of = [other for order, other in self._notes.items() if self._latest <= order < (now.promoted, 0)]
        if self._latest[0] >= now.promoted or not known_of or any(names >= set(other) for other in known_of):
            return ""
        return (f"its broker is promoted in term {now.promoted} with the note {note}, and most had noted "
                f"{self._notes[self._latest]} (term, version: {self._latest})")  # fmt: skip

    def _take(self, program: ManagerProbe, note: Note) -> None:
        self._notes.setdefault(note.order, note.names)
        if not note.version:
            return
        taken = self._taken.setdefault(note.term, {})
        taken[program.node] = note.version
        versions = sorted(taken.values(), reverse=True)
        if len(versions) >= program.needed:
            self._latest = max(self._latest, (note.term, versions[program.needed - 1]))

    def broker(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that no broker is promoted that a majority has noted as lacking data."""
        self._stores[node] = now.store
        if self.forgotten:
            return ""
        if now.state == READY and (before is None or before.state != READY or before.generation != now.generation):
            self._ready[node] = max(self._ready.get(node, (0, 0)), self._taken_in(node, program))
        if now.state != PRIMARY or not now.term or (before is not None and before.state == PRIMARY):
            return ""
        led, self._led[node] = self._led.get(node, 0), now.term
        term, generation = self._ready.pop(node, (0, 0))
        if before is None or before.vouched or before.store != DIRTY or self._latest[0] <= led:
            return ""
        # A primary of a later term than the note's has given this broker everything that it lacked.
        if term > self._latest[0] and before.generation == generation:
            return ""
        later = [names for order, names in self._notes.items() if order >= self._latest and order[1]
                 and order[0] < now.term]
        if later and all(node in names for names in later):
            return (f"it is promoted in term {now.term}, and most had noted that the primary of term {self._latest[0]} "
                    "goes on without it")  # fmt: skip
        return ""

    def _taken_in(self, node: str, program: QpidProbe) -> tuple[int, int]:
        """Return the term and the generation of the primary that has this broker ready; zeros if there is none."""
        primary = self.brokers.get(program.serves_at or "")
        if primary is None or not (generation := primary.leads(node)):
            return 0, 0
        return primary.observed().term, generation


class HasTheirTime(Watcher):
    """Stateless check of a primary that completes something."""

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that no group is completed without a backup that still has time to catch up."""
        if now.state != PRIMARY or before is None or before.released == now.released or not now.released:
            return ""
        young = program.has_its_time()
        return f"it has completed group {now.released}, and {', '.join(young)} may still catch up" if young else ""


class NewestLeads(Watcher):
    """Tracks the newest generation in which a group was completed."""

    def __init__(self) -> None:
        self._newest = 0
        self._held: dict[str, int] = {}

    def disk_lost(self, node: str) -> None:
        """Expect no generation that only the lost store has."""
        if self._held.pop(node, 0) >= self._newest:
            self._newest = min(self._newest, max(self._held.values(), default=0))

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that a new primary's generation is higher than all in which a group was completed."""
        if now.store == DIRTY:
            self._held[node] = now.generation
        if now.state != PRIMARY or before is None:
            return ""
        if before.state != PRIMARY and not before.vouched and now.generation <= self._newest:
            return f"it is primary of generation {now.generation}, and something was completed in {self._newest}"
        if now.released and now.released != before.released:
            self._newest = max(self._newest, now.generation)
        return ""
