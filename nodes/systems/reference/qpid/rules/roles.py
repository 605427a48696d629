"""Watchers of the roles in a Qpid cluster with a manager next to each broker: ballots, terms, leases, the primary.

They check the premises of the argument that there is one primary at a time, where each step of it is taken: the
promises, decisions and answers at the time when a manager becomes coordinator, permits the start of a primary, or
permits it to continue. A manager that has ended counts as correct, because its behaviour is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodes.reference.designs.qpid.states import CATCHUP, CONNECTING, PRIMARY, READY, STOPPED
from nodes.reference.designs.qpid.store_status import DIRTY
from nodes.systems.reference.qpid.manager_probes import ManagerObserved, ManagerProbe
from nodes.systems.reference.qpid.probes import QpidObserved, QpidProbe
from nodes.systems.reference.rules.disks import DiskWatcher
from stormproof.contracts.invariant import EagerWatcher, Watcher

_CHANGES = {
    (CONNECTING, CATCHUP), (CONNECTING, PRIMARY), (CATCHUP, READY), (CATCHUP, CONNECTING), (READY, CONNECTING),
    (READY, PRIMARY), (READY, CATCHUP), (READY, STOPPED), (PRIMARY, CONNECTING), (PRIMARY, CATCHUP), (PRIMARY, STOPPED),
}  # fmt: skip
"""Steps between states. A broker that lost its primary may find the next one at once, and be in CATCHUP again."""

_CAUTION = 1.25
"""Leases for which a manager that backs a new primary must not have backed an earlier one
(docs/designs/qpid.md).
"""

_SLACK = 0.01
"""Seconds by which clocks may diverge within a lease."""

Program = QpidProbe | ManagerProbe


class AgreementWatcher(Watcher):
    """A watcher of what managers agree on, until the disk of one of them forgets what it had promised: from then on two
    majorities may have nobody in common who remembers (docs/designs/qpid.md, Limits)."""

    forgotten = False
    """Whether a manager's disk has lost what it had synced."""

    def disk_lost(self, node: str) -> None:
        """Note that a manager may have forgotten its promises."""
        self.forgotten = True


class ClusterWatcher(AgreementWatcher):
    """Tracks the running brokers and managers, and each manager's record at its last check; by node."""

    def __init__(self) -> None:
        self.brokers: dict[str, QpidProbe] = {}
        self.managers: dict[str, ManagerProbe] = {}
        self.records: dict[str, ManagerObserved] = {}
        self._nodes: dict[str, str] = {}
        self._without: set[str] = set()

    def look(self, node: str, program: Program, now: QpidObserved | ManagerObserved,
             before: QpidObserved | ManagerObserved | None) -> str:
        """Dispatch to the check of a manager or of a broker."""
        if isinstance(now, ManagerObserved):
            assert isinstance(program, ManagerProbe)
            self._nodes[node] = program.node
            self.managers[program.node] = program
            if before is None and node in self._without:
                self._without.discard(node)
                self.records.pop(program.node, None)
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

    def disk_lost(self, node: str) -> None:
        """Forget the record of a manager whose disk has lost it."""
        super().disk_lost(node)
        self._without.add(node)  # its manager may run on, and note what is lost when it is started again
        self.records.pop(self._nodes.get(node, ""), None)

    def most(self, nodes: Iterable[str]) -> bool:
        """Tell whether these nodes' managers are a majority."""
        needed = next((each.needed for each in self.managers.values()), 0)
        return len(set(nodes)) >= needed


class OneConfirms(EagerWatcher):
    """Tracks the primaries, and whether two may confirm at the same time."""

    def __init__(self) -> None:
        self._primaries: dict[str, QpidProbe] = {}

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that only one may confirm; while two brokers believe that they are primary, each of their steps is
        checked.
        """
        if now.state == PRIMARY:
            self._primaries[node] = program
        else:
            self._primaries.pop(node, None)
        self.eager = len(self._primaries) > 1
        if not self.eager or not now.confirms:
            return ""
        others = [name for name, each in self._primaries.items() if name != node and each.confirms()]
        return f"it may confirm as primary, and so may {others[0]}" if others else ""

    def ended(self, node: str) -> None:
        """Forget the ended primary."""
        self._primaries.pop(node, None)
        self.eager = len(self._primaries) > 1


class OneCoordinatorABallot(AgreementWatcher):
    """Tracks the coordinator of each ballot, and the primary chosen by each decision."""

    def __init__(self) -> None:
        self._coordinators: dict[int, str] = {}
        self._primaries: dict[int, str] = {}

    def look(self, node: str, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None) -> str:
        """Check that the ballot had no other coordinator, and that all accept the same primary of the term."""
        if self.forgotten:
            return ""
        if now.leads and (other := self._coordinators.setdefault(now.leads, node)) != node:
            return f"it coordinates in ballot {now.leads}, in which {other} did"
        if now.term and (chosen := self._primaries.setdefault(now.term, now.primary)) != now.primary:
            return f"it has accepted {now.primary} as primary of term {now.term}, and others {chosen}"
        return ""


class RecordsGrow(DiskWatcher):
    """Tracks each manager's newest record."""

    def __init__(self) -> None:
        super().__init__()
        self._records: dict[str, tuple[int, ...]] = {}

    def look(self, node: str, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None) -> str:
        """Check that a record only grows, even across restarts: all of it is on disk before it counts. A term only
        grows within one ballot: the coordinator of the next ballot may not know a term that no majority has accepted.
        """
        super().look(node, program, now, before)
        mine = now.promised, now.ballot, now.term, now.promoted, now.finished
        known = self._records.get(node, mine)
        terms = [(record[1], record[2]) for record in (mine, known)]
        if terms[0] < terms[1] or any(mine[place] < known[place] for place in (0, 1, 3, 4)):
            return f"its record (promised, ballot, term, promoted, finished) was {known}, and is now {mine}"
        if now.ballot > now.promised:
            return f"it has accepted ballot {now.ballot}, and promised {now.promised}"
        # At a start, the kernel may still have what a failed sync did not write.
        if before is not None and not self.lacks_files(node):
            self._records[node] = mine
        return ""

    def disk_lost(self, node: str) -> None:
        """Expect nothing of a record that the disk has lost."""
        super().disk_lost(node)
        self._records.pop(node, None)


class RecordOnDisk(DiskWatcher):
    """Stateless check of a manager's disk."""

    def look(self, node: str, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None) -> str:
        """Check that what a manager has promised, accepted and done is on its disk when the step has ended."""
        super().look(node, program, now, before)
        mine = now.promised, now.ballot, now.term, now.primary, now.promoted, now.finished
        if before is None or mine == (before.promised, before.ballot, before.term, before.primary, before.promoted,
                                      before.finished):  # fmt: skip
            return ""
        if (rows := self.rows(node, "record")) is None:
            return ""
        there = [(*row[1:6], row[7]) for row in rows]
        if there == [mine]:
            return ""
        return (f"its record (promised, ballot, term, primary, promoted, finished) is {mine}, and on its disk "
                f"{there[0] if there else 'nothing'}")


class DecisionsStay(AgreementWatcher):
    """Tracks each manager's last accepted decision (ballot, term), and the newest that a majority has accepted."""

    def __init__(self) -> None:
        self._accepted: dict[str, tuple[int, int]] = {}
        self._chosen = (0, 0)

    def look(self, node: str, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None) -> str:
        """Check that the coordinator of a later ballot has taken over the decision that a majority has accepted."""
        if self.forgotten:
            return ""
        ballot, term = self._chosen
        if now.leads > ballot and now.term < term and (before is None or before.leads != now.leads):
            return (f"it coordinates in ballot {now.leads} with the decision of term {now.term}, and most had accepted "
                    f"that of term {term} in ballot {ballot}")  # fmt: skip
        mine = now.ballot, now.term
        if self._accepted.get(node) != mine:
            self._accepted[node] = mine
            if mine > self._chosen and list(self._accepted.values()).count(mine) >= program.needed:
                self._chosen = mine
        return ""


class OnePrimaryATerm(Watcher):
    """Tracks the broker that the managers have promoted in each term."""

    def __init__(self) -> None:
        self._primaries: dict[int, str] = {}

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that the term had no other primary."""
        if not now.term or (before is not None and before.term == now.term):
            return ""
        other = self._primaries.setdefault(now.term, node)
        return "" if other == node else f"it is primary of term {now.term}, of which {other} was"


class StatesByDocument(Watcher):
    """Stateless check of each step."""

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that a step between states is one of the document's; no broker is promoted while it catches up."""
        if before is None:
            return "" if now.state in (CONNECTING, CATCHUP) else f"it was just started and is {now.state}"
        if before.state == now.state or (before.state, now.state) in _CHANGES:
            return ""
        return f"it was {before.state} and is {now.state}"


class EligibleHasAll(Watcher):
    """Tracks whether each broker has had everything since its last catch-up began, and how often it had been ready."""

    def __init__(self) -> None:
        self._complete: dict[str, bool] = {}

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that only such a broker may be promoted, or one that an administrator has approved."""
        if before is None:
            self._complete[node] = False
        if now.state == PRIMARY or now.vouched or now.times_ready > (before.times_ready if before is not None else 0):
            self._complete[node] = True
        elif now.state == CATCHUP:
            self._complete[node] = False
        if not now.eligible or self._complete[node]:
            return ""
        return f"it is {now.state} and may be promoted, and was not ready since it began to catch up"


class ElectedByMost(ClusterWatcher):
    """Stateless check of an election."""

    def manager(self, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None,
                known: ManagerObserved | None) -> str:
        """Check that a new coordinator has the promise of a majority, on disk, and that none of these heard another
        coordinator.
        """
        if not now.leads or (before is not None and before.leads == now.leads) or self.forgotten:
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


class AnswersNoted(ClusterWatcher):
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


class ClearedWhenOver(ClusterWatcher):
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
        if term <= last or self.forgotten:
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


class BackedByMost(ClusterWatcher):
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


class PrimaryKept(ClusterWatcher):
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


class EndsWhenNotLet(Watcher):
    """Stateless check: a broker reports whether it ended itself too early."""

    fields = ("gave_up",)

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that a broker that is promoted, or steps down, has the time to get permission for its new role."""
        return "it ends itself for want of quorum, and its manager has let it go on for longer" if now.gave_up else ""


class MayLead(Watcher):
    """Stateless check of a promotion."""

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that only an eligible broker is promoted, or one whose store is empty or clean like all others."""
        if now.state != PRIMARY or before is None or before.state == PRIMARY:
            return ""
        fine = before.eligible or before.vouched or before.store != DIRTY
        return "" if fine else f"it was {before.state}, with a {before.store} store, and was not to be promoted"


class BrokerStatusTells(Watcher):
    """Stateless check of a broker's status."""

    period = 2.0

    def inspect(self, node: str, program: QpidProbe) -> str:
        """Check that the status shown to administrators and managers matches the broker's state."""
        if program.failed:
            return ""
        status, now = program.status(), program.observed()
        primary = node if now.state == PRIMARY else program.serves_at
        shown = {**status, "store": status["store"]["state"], "of": status["store"]["role"]}
        stands = {"state": now.state, "role": now.state, "eligible": now.eligible, "epoch": now.generation,
                  "generation": now.generation, "master": primary, "primary": primary, "store": now.store,
                  "of": now.role, "forced": now.vouched and now.state == CONNECTING,
                  "view": sorted({node, *status["backups"]})}
        wrong = [f"{name} {shown[name]}, which is {stands[name]}" for name in stands if shown[name] != stands[name]]
        if status["serving"] and not now.confirms:
            wrong.append("that it serves, and it may not confirm")
        if status["shutting_down"] and program.admits:
            wrong.append("that the cluster is being shut down, and it admits clients")
        return f"its status tells {wrong[0]}" if wrong else ""
