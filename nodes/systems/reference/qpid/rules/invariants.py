"""Invariants of an active-passive cluster of Qpid brokers with a manager next to each, which hold at every instant.

*The document* is Qpid's "new HA design". It is not a defect that two brokers believe for a moment that they are
primary: one of them no longer has its manager's permission, and can't confirm anything.
"""

from __future__ import annotations

from nodes.reference.api import Image
from nodes.reference.designs.qpid.configuration import BINDING, EXCHANGE, QUEUE, REPLICATE
from nodes.reference.designs.qpid.options import BUILTIN, NONE, SYNC
from nodes.reference.designs.qpid.states import CATCHUP, CONNECTING, PRIMARY, READY, STOPPED
from nodes.reference.designs.qpid.store_status import BACKUP_STORE, CLEAN, DIRTY, PRIMARY_STORE
from nodes.systems.reference.probes.images import difference
from nodes.systems.reference.qpid.probes import MANAGER, ManagerObserved, ManagerProbe, QpidObserved, QpidProbe
from nodes.systems.reference.qpid.rules.manager_invariants import MANAGER_INVARIANTS
from nodes.systems.reference.rules.audits import COUNTS_ADD_UP, STORE_HOLDS, same_state
from stormproof.contracts.invariant import EagerWatcher, Invariant, Watcher

_MANAGED = {"manager": (BUILTIN,)}
_CHANGES = {
    (CONNECTING, CATCHUP), (CONNECTING, PRIMARY), (CATCHUP, READY), (CATCHUP, CONNECTING), (READY, CONNECTING),
    (READY, PRIMARY), (READY, CATCHUP), (READY, STOPPED), (PRIMARY, CONNECTING), (PRIMARY, CATCHUP), (PRIMARY, STOPPED),
}  # fmt: skip
"""Steps between states. A broker that lost its primary may find the next one at once, and be in CATCHUP again."""


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


class OneCoordinatorABallot(Watcher):
    """Tracks the coordinator of each ballot, and the primary chosen by each decision."""

    def __init__(self) -> None:
        self._coordinators: dict[int, str] = {}
        self._primaries: dict[int, str] = {}

    def look(self, node: str, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None) -> str:
        """Check that the ballot had no other coordinator, and that all accept the same primary of the term."""
        if now.leads and (other := self._coordinators.setdefault(now.leads, node)) != node:
            return f"it coordinates in ballot {now.leads}, in which {other} did"
        if now.term and (chosen := self._primaries.setdefault(now.term, now.primary)) != now.primary:
            return f"it has accepted {now.primary} as primary of term {now.term}, and others {chosen}"
        return ""


class RecordsGrow(Watcher):
    """Tracks each manager's newest record."""

    def __init__(self) -> None:
        self._records: dict[str, tuple[int, ...]] = {}

    def look(self, node: str, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None) -> str:
        """Check that a record only grows, even across restarts: all of it is on disk before it counts. A term only
        grows within one ballot: the coordinator of the next ballot may not know a term that no majority has accepted.
        """
        mine = now.promised, now.ballot, now.term, now.promoted, now.finished
        known = self._records.get(node, mine)
        terms = [(record[1], record[2]) for record in (mine, known)]
        if terms[0] < terms[1] or any(mine[place] < known[place] for place in (0, 1, 3, 4)):
            return f"its record (promised, ballot, term, promoted, finished) was {known}, and is now {mine}"
        if now.ballot > now.promised:
            return f"it has accepted ballot {now.ballot}, and promised {now.promised}"
        self._records[node] = mine
        return ""


class DecisionsStay(Watcher):
    """Tracks each manager's last accepted decision (ballot, term), and the newest that a majority has accepted."""

    def __init__(self) -> None:
        self._accepted: dict[str, tuple[int, int]] = {}
        self._chosen = (0, 0)

    def look(self, node: str, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None) -> str:
        """Check that the coordinator of a later ballot has taken over the decision that a majority has accepted."""
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


class PrimaryIsDirty(Watcher):
    """Stateless check of a store."""

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that the store of a broker that runs as primary is dirty."""
        return f"it is primary, and its store is {now.store}" if now.state == PRIMARY and now.store != DIRTY else ""


class GenerationsGrow(Watcher):
    """Tracks the highest generation that each store has held."""

    def __init__(self) -> None:
        self._generations: dict[str, int] = {}

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that a store's generation never decreases; a generation is in the store before it is reported.

        An administrator may erase and replace a store, and so may the managers after a full stop.
        """
        kept = self._generations.get(node, 0)
        if 0 < now.generation < kept:
            return f"its store was of generation {kept}, and is now of {now.generation}"
        self._generations[node] = now.generation
        return ""


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


class CopiesMatch(Watcher):
    """Tracks the running brokers, and the primary of each generation."""

    period = 3.0

    def __init__(self) -> None:
        self._programs: dict[str, QpidProbe] = {}

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that a ready backup has everything that its primary has: when it becomes ready, and at each group."""
        self._programs[node] = program
        if now.state != READY or before is None:
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
        primary = self._primary_of(program, now) if now.state == READY else None
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
        if primary is None:
            return None
        other = primary.observed()
        return primary if (other.state, other.generation) == (PRIMARY, now.generation) else None

    def ended(self, node: str) -> None:
        """Forget the ended broker."""
        self._programs.pop(node, None)


class WindowUsed(Watcher):
    """Stateless check of a primary after each of its steps."""

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Check that a catch-up waits only while its window is full."""
        return f"{now.held_back} waits for more, though its window has room" if now.held_back else ""


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


class CleanAlike(Watcher):
    """Tracks the content of the first clean store of each identifier."""

    def __init__(self) -> None:
        self._images: dict[str, tuple[str, Image]] = {}

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Compare a store when it becomes clean, or a broker is started from it."""
        if now.store != CLEAN or (before is not None and before.store == CLEAN):
            return ""
        found = program.clean_image()
        if found is None:
            return ""
        uuid, image = found
        other, expected = self._images.setdefault(uuid, (node, image))
        wrong = difference(image, expected, (node, other))
        return f"of the shutdown {uuid}: {wrong}" if wrong else ""


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


class BrokerStatusTells(Watcher):
    """Stateless check of a broker's status."""

    period = 2.0

    def inspect(self, node: str, program: QpidProbe) -> str:
        """Check that the status shown to administrators and managers matches the broker's state."""
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
        return f"its status tells {wrong[0]}" if wrong else ""


INVARIANTS = (
    Invariant("one-primary-confirms", "at any instant at most one primary may confirm and deliver",
              "the document: Failover and Cluster Resource Managers; Gray and Cheriton 1989", OneConfirms,
              unless=("clock",), where=_MANAGED),
    Invariant("one-coordinator-a-ballot", "in each ballot one manager coordinates, and each term is of one primary",
              "Lamport, The Part-Time Parliament, 1998", OneCoordinatorABallot, unless=("disk",), where=_MANAGED,
              of=(MANAGER,)),
    Invariant("records-grow", "what a manager has promised, accepted and done only grows",
              "Lamport, The Part-Time Parliament, 1998", RecordsGrow, unless=("disk",), where=_MANAGED, of=(MANAGER,)),
    Invariant("decisions-stay", "what most managers have accepted is known to whoever coordinates later",
              "Lamport, The Part-Time Parliament, 1998", DecisionsStay, unless=("disk",), where=_MANAGED,
              of=(MANAGER,)),
    Invariant("one-primary-a-term", "in each of the managers' terms at most one broker is primary",
              "Raft paper, Figure 3, Election Safety", OnePrimaryATerm, where=_MANAGED),
    Invariant("states-of-a-broker", "a broker's states follow as the document says; nobody is promoted in catchup",
              "the document: Broker discovery and lifecycle", StatesByDocument, where=_MANAGED),
    Invariant("primary-is-dirty", "the store of a broker that is primary is dirty",
              "the document: Interaction with the store", PrimaryIsDirty),
    Invariant("generations-grow", "the generation in a broker's store only grows, unless that is erased",
              "Kafka's leader epochs (KIP-101)", GenerationsGrow, unless=("disk",),
              where={**_MANAGED, "store": (SYNC,)}),
    Invariant("eligible-has-all", "a broker may be promoted that was ready since it last began to catch up",
              "the document: Broker discovery and lifecycle; requirement Q10", EligibleHasAll,
              where={**_MANAGED, "standby": ("hot",)}),
    Invariant("copies-match", "a backup that is ready has each message of its primary, under the same number",
              "the document: Replicating browsers", CopiesMatch, unless=("disk",),
              where={**_MANAGED, "as_documented": ("",), "standby": ("hot",)}),
    Invariant("levels-kept", "what says of itself that it is not replicated is at no backup",
              "the document: Replicating configuration, qpid.replicate", LevelsKept,
              where={**_MANAGED, "as_documented": ("",), "standby": ("hot",)}),
    Invariant("catch-up-window-used", "what a backup lacks is held back only while its window is full",
              "browsing.py: eight groups may be under way while a backup catches up", WindowUsed, where=_MANAGED),
    Invariant("store-tells", "the store of who is ready, or primary, is dirty, and of that role and generation",
              "the document: Stored status: clean(UUID)/dirty, primary/backup, generation number", StoreTells,
              where={**_MANAGED, "as_documented": ("",), "standby": ("hot",)}),
    Invariant("clean-alike", "stores that are clean with the same identifier hold the same",
              "the document: after clean shutdown all nodes have equivalent stores", CleanAlike, unless=("disk",),
              where={"as_documented": ("",), "standby": ("hot",)}),
    Invariant("tells-how-it-stands", "what a person, and a manager, is told of a broker is how it stands",
              "docs/designs/qpid.md: admin qpid status; manager/report.py: its own word", BrokerStatusTells),
    *MANAGER_INVARIANTS,
    STORE_HOLDS,
    COUNTS_ADD_UP,
    same_state("of the same generation and group", {**_MANAGED, "as_documented": ("",), "standby": ("hot",)}),
)  # fmt: skip
