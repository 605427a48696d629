"""The premises of the argument that there is one primary at a time, checked where each step of it is taken: the
promises, decisions, answers and notes at the time when a manager becomes coordinator, permits the start of a primary,
or permits it to continue.

These invariants observe both managers and brokers. A manager that has ended counts as correct, because its behaviour is
unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from nodes.reference.designs.qpid.manager.note import Note
from nodes.reference.designs.qpid.options import BUILTIN
from nodes.reference.designs.qpid.states import CATCHUP, PRIMARY, READY
from nodes.reference.designs.qpid.store_status import DIRTY
from nodes.systems.reference.qpid.probes import MANAGER, ManagerObserved, ManagerProbe, QpidObserved, QpidProbe
from stormproof.contracts.invariant import BROKER, Invariant, Watcher

Program = QpidProbe | ManagerProbe
_MANAGED = {"manager": (BUILTIN,)}
_HOT = {**_MANAGED, "standby": ("hot",)}
_BOTH = (BROKER, MANAGER)
_CAUTION = 1.25
"""Leases for which a manager that backs a new primary must not have backed an earlier one
(docs/designs/qpid.md).
"""
_SLACK = 0.01
"""Seconds by which clocks may diverge within a lease."""


class _Cluster(Watcher):
    """Tracks the running brokers and managers, and each manager's record at its last check; by node."""

    def __init__(self) -> None:
        self.brokers: dict[str, QpidProbe] = {}
        self.managers: dict[str, ManagerProbe] = {}
        self.records: dict[str, ManagerObserved] = {}
        self._nodes: dict[str, str] = {}

    def look(self, node: str, program: Program, now: QpidObserved | ManagerObserved,
             before: QpidObserved | ManagerObserved | None) -> str:
        """Dispatch to the check of a manager or of a broker."""
        if isinstance(now, ManagerObserved):
            assert isinstance(program, ManagerProbe)
            self._nodes[node] = program.node
            self.managers[program.node] = program
            known = self.records.get(program.node)
            self.records[program.node] = now
            return self.manager(program, now, before if isinstance(before, ManagerObserved) else None, known)
        assert isinstance(program, QpidProbe)
        self.brokers[node] = program
        return self.broker(node, program, now, before if isinstance(before, QpidObserved) else None)

    def manager(self, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None,
                known: ManagerObserved | None) -> str:
        """Check a manager that has changed; ``known`` is its last observation, perhaps from before its start."""
        return ""

    def broker(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check a broker that has changed."""
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended program."""
        self.brokers.pop(node, None)
        self.managers.pop(self._nodes.get(node, ""), None)

    def most(self, nodes: Iterable[str]) -> bool:
        """Tell whether these nodes' managers are a majority."""
        needed = next((each.needed for each in self.managers.values()), 0)
        return len(set(nodes)) >= needed


class ElectedByMost(_Cluster):
    """Stateless check of an election."""

    def manager(self, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None,
                known: ManagerObserved | None) -> str:
        """Check that a new coordinator has the promise of a majority, on disk, and that none of these heard another
        coordinator.
        """
        if not now.leads or (before is not None and before.leads == now.leads):
            return ""
        promised = [name for name, record in self.records.items() if record.promised >= now.leads]
        if not self.most(promised):
            return f"it coordinates in ballot {now.leads}, which {len(promised)} managers have promised"
        hearing = [name for name, each in self.managers.items() if self._hears_another(program, name, each, now.leads)]
        if len(program.members) - len(hearing) < program.needed:
            return f"it coordinates in ballot {now.leads}, and {', '.join(hearing)} heard another coordinator lately"
        return ""

    def _hears_another(self, elected: ManagerProbe, name: str, other: ManagerProbe, ballot: int) -> bool:
        """Tell whether a manager has recently heard a coordinator of an earlier ballot."""
        return (name != elected.node and other.coordinator not in ("", elected.node)
                and self.records[name].promised <= ballot
                and other.heard_ago() < other.options.lease - _SLACK)  # fmt: skip


class AnswersNoted(_Cluster):
    """Stateless check of a manager's answers."""

    def manager(self, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None,
                known: ManagerObserved | None) -> str:
        """Check that a manager remembers when it last backed a primary, including that of the previous term."""
        if before is None:
            return ""
        floor = max(before.earlier, before.present) if now.term != before.term else before.earlier
        # A decision of another term may be known before it is on disk.
        if now.earlier < floor or (now.term == before.term and max(now.earlier, now.present) < before.present):
            return (f"it last backed a primary at {max(before.earlier, before.present):.3f} by its clock, and takes it "
                    f"for {now.earlier:.3f} in earlier terms, {now.present:.3f} in this one")  # fmt: skip
        return ""


class ClearedWhenOver(_Cluster):
    """Tracks the last term whose primary was permitted to start, and how far back each manager's memory of answers
    reaches.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cleared = 0
        self._since: dict[str, float] = {}

    def manager(self, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None,
                known: ManagerObserved | None) -> str:
        """Check that a primary may start only if a majority has accepted it, and no earlier lease is left."""
        if before is None:
            self._since[program.node] = now.earlier
        term, last = now.cleared, self._cleared
        if term <= last:
            return ""
        self._cleared = term
        accepted = [name for name, record in self.records.items() if record.term >= term]
        if not self.most(accepted):
            return f"it lets the primary of term {term} start, which {len(accepted)} managers have accepted"
        for name, broker in self.brokers.items():
            seen = broker.observed()
            if seen.state == PRIMARY and 0 < seen.term < term and broker.confirms():
                return f"it lets the primary of term {term} start, and {name} may confirm in term {seen.term}"
        earlier = [record.promoted for record in self.records.values()
                   if last <= record.promoted < term and record.finished < record.promoted]
        old = [name for name in accepted if self._has_waited(name, term)]
        if earlier and not self.most(old):
            return (f"it lets the primary of term {term} start, and of those that have accepted it {len(old)} have not "
                    f"backed the one of term {max(earlier)} for {_CAUTION} leases")  # fmt: skip
        return ""

    def _has_waited(self, name: str, term: int) -> bool:
        """Tell whether a manager has not backed a primary of an earlier term for 1.25 leases, as far as observable."""
        program, record = self.managers.get(name), self.records[name]
        if program is None or record.term != term or record.earlier == self._since[name]:
            return True
        return program.aged() > _CAUTION * program.options.lease - _SLACK


class PrimaryKept(_Cluster):
    """Stateless check of a coordinator's decision."""

    def manager(self, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None,
                known: ManagerObserved | None) -> str:
        """Check that a primary is not replaced while its manager reports that it is primary."""
        if before is None or not now.leads or before.leads != now.leads or before.term in (0, now.term):
            return ""
        report = program.reports().get(before.primary)
        if report is None or report.promoted != before.term:
            return ""
        return f"it makes {now.primary} primary in place of {before.primary}, which is heard, and is that already"


class AtOnce(Watcher):
    """Stateless check of a manager after each of its steps."""

    fields = ("unsaid", "unheeded")

    def look(self, node: str, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None) -> str:
        """Check that urgent news is sent in the step in which it arises, and that due work is not left to the next
        turn."""
        if now.unsaid:
            return (f"it has decided something, or its broker is primary no longer (term {now.term}, finished "
                    f"{now.finished}), and nobody was told")  # fmt: skip
        return f"its broker may be promoted in term {now.unheeded}, and nobody looks" if now.unheeded else ""


class NotesGrow(_Cluster):
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
        if now.note.version and (says := self._says.setdefault(now.note.order, now.note.names)) != now.note.names:
            return f"it has the note {now.note}, which names {says} elsewhere"
        return ""


class BackedByMost(_Cluster):
    """Stateless check of a primary's permission."""

    def broker(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check, each time that a primary gets permission to continue, that a majority has backed it and noted that,
        since the heartbeat on which the permission rests was sent."""
        if now.state != PRIMARY or not now.term or (before is not None and before.until == now.until):
            return ""
        left, manager = program.lease_left(), next(iter(self.managers.values()), None)
        if left <= 0 or manager is None:
            return ""
        elapsed = manager.options.lease - left + _SLACK
        short = [name for name, each in self.managers.items() if each.backed_ago() > elapsed]
        if len(manager.members) - len(short) >= manager.needed:
            return ""
        return (f"it may go on for {left:.3f} s of a lease of {manager.options.lease:g} s, and {', '.join(short)} have "
                "backed no primary since that would have been sent")  # fmt: skip


class ConfirmedOrNoted(_Cluster):
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
            key = node, now.generation, program.serves_at
            self._completed[key] = max(now.number, self._completed.get(key, 0))
            return ""
        fresh = before is None or before.state != PRIMARY or before.generation != now.generation
        if now.state != PRIMARY or now.released <= (0 if fresh or before is None else before.released):
            return ""
        return self._lacks(node, now)

    def _lacks(self, node: str, now: QpidObserved) -> str:
        if not now.term or not now.released:
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


class HasTheirTime(Watcher):
    """Stateless check of a primary that completes something."""

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that no group is completed without a backup that still has time to catch up."""
        if now.state != PRIMARY or before is None or before.released == now.released or not now.released:
            return ""
        young = program.has_its_time()
        return f"it has completed group {now.released}, and {', '.join(young)} may still catch up" if young else ""


class NotedAreNotPromoted(_Cluster):
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


class EndsWhenNotLet(Watcher):
    """Stateless check: a broker reports whether it ended itself too early."""

    fields = ("gave_up",)

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that a broker that is promoted, or steps down, has the time to get permission for its new role."""
        return "it ends itself for want of quorum, and its manager has let it go on for longer" if now.gave_up else ""


class NewestLeads(Watcher):
    """Tracks the newest generation in which a group was completed."""

    def __init__(self) -> None:
        self._newest = 0

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that a new primary's generation is higher than all in which a group was completed."""
        if now.state != PRIMARY or before is None:
            return ""
        if before.state != PRIMARY and not before.vouched and now.generation <= self._newest:
            return f"it is primary of generation {now.generation}, and something was completed in {self._newest}"
        if now.released and now.released != before.released:
            self._newest = max(self._newest, now.generation)
        return ""


class MayLead(Watcher):
    """Stateless check of a promotion."""

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that only an eligible broker is promoted, or one whose store is empty or clean like all others."""
        if now.state != PRIMARY or before is None or before.state == PRIMARY:
            return ""
        fine = before.eligible or before.vouched or before.store != DIRTY
        return "" if fine else f"it was {before.state}, with a {before.store} store, and was not to be promoted"


_PAXOS = "Lamport, The Part-Time Parliament, 1998"
_LEASES = "Gray and Cheriton 1989; Ongaro's dissertation, 6.4.1; docs/designs/qpid.md: Why there are never two"
_NOTES = ("docs/designs/qpid.md: a primary that goes on without a backup first has that noted by a majority of "
          "managers")  # fmt: skip
_OWN = "docs/designs/qpid.md: the coordinator keeps the primary that there is"

MANAGER_INVARIANTS = (
    Invariant("elected-by-most", "who coordinates has the promises of most managers, on disk, which heard nobody else",
              _PAXOS, ElectedByMost, unless=("disk", "clock"), where=_MANAGED, of=_BOTH),
    Invariant("answers-noted", "a manager remembers when it last backed a primary, also of an earlier term", _LEASES,
              AnswersNoted, where=_MANAGED, of=_BOTH),
    Invariant("cleared-when-over", "a primary may start when most have accepted it and earlier leases are over",
              _LEASES, ClearedWhenOver, unless=("disk", "clock"), where=_MANAGED, of=_BOTH),
    Invariant("backed-by-most", "a primary goes on for a lease after most managers backed it, and noted so", _LEASES,
              BackedByMost, unless=("disk", "clock"), where=_MANAGED, of=_BOTH),
    Invariant("primary-kept", "a primary that is heard is not replaced", _OWN, PrimaryKept, where=_MANAGED, of=_BOTH),
    Invariant("at-once", "what managers decide, and that a primary has ended, is told and acted upon at once",
              "manager.py: nobody has to wait for the next heartbeat to know", AtOnce, where=_MANAGED, of=(MANAGER,)),
    Invariant("notes-grow", "a manager's note gives way to a later one only, of its term, and says the same everywhere",
              _NOTES, NotesGrow, unless=("disk",), where=_MANAGED, of=_BOTH),
    Invariant("confirmed-or-noted", "what is completed is at each backup, or most managers have noted that it is not",
              _NOTES, ConfirmedOrNoted, unless=("disk", "clock"), where={**_HOT, "as_documented": ("",)}, of=_BOTH),
    Invariant("noted-are-not-promoted", "nobody is promoted whom the latest note of most managers names",
              "docs/designs/qpid.md: nobody whom the latest note names is promoted", NotedAreNotPromoted,
              unless=("disk", "clock"), where=_HOT, of=_BOTH),
    Invariant("has-its-time", "nothing is completed without a backup that has its time to catch up still",
              "the document: New backups connecting to primary", HasTheirTime,
              where={**_MANAGED, "as_documented": ("",)}),
    Invariant("ends-when-not-let", "a broker ends itself when no grant of its manager's runs any more",
              "docs/designs/qpid.md: a broker that was not let for a lease ends itself", EndsWhenNotLet,
              where=_MANAGED),
    Invariant("newest-leads", "a new primary's generation is behind all in which something was completed",
              "the document: generation number, incremented by new primary", NewestLeads, unless=("disk", "clock"),
              where={**_HOT, "store": ("sync",)}),
    Invariant("may-lead", "only a broker that is eligible, or of a first start, is promoted",
              "the document: the primary can only be started on nodes where there is a ready backup", MayLead,
              where=_HOT),
)  # fmt: skip
