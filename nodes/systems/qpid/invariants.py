"""What holds of an active-passive cluster of Qpid brokers at every instant, with a manager beside each.

*The document* is Qpid's "new HA design". That two brokers believe for a moment that they are primary is no defect: one
of them has no word of its manager any more, and can confirm nothing.
"""

from __future__ import annotations

from nodes.reference.designs.qpid.configuration import REPLICATE
from nodes.reference.designs.qpid.design import Observed, Qpid
from nodes.reference.designs.qpid.options import BUILTIN, NONE, SYNC
from nodes.reference.designs.qpid.states import CATCHUP, CONNECTING, PRIMARY, READY, STOPPED
from nodes.reference.designs.qpid.store_status import DIRTY
from nodes.systems.reference.audits import STORE_HOLDS, same_state
from stormproof.contracts.invariant import Invariant, Watcher

_MANAGED = {"manager": (BUILTIN,)}
_CHANGES = {
    (CONNECTING, CATCHUP), (CONNECTING, PRIMARY), (CATCHUP, READY), (CATCHUP, CONNECTING), (READY, CONNECTING),
    (READY, PRIMARY), (READY, CATCHUP), (READY, STOPPED), (PRIMARY, CONNECTING), (PRIMARY, CATCHUP), (PRIMARY, STOPPED),
}  # fmt: skip
"""Steps between states. One that lost its primary may find the next one at once, and be in CATCHUP again."""


class OneConfirms(Watcher):
    """Who is primary, and whether two may confirm at the same time."""

    def __init__(self) -> None:
        self._primaries: dict[str, Qpid] = {}

    def look(self, node: str, program: Qpid, now: Observed, before: Observed | None) -> str:
        """While two believe that they are primary, each of their steps is looked at."""
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
        """It is no primary any more."""
        self._primaries.pop(node, None)
        self.eager = len(self._primaries) > 1


class OnePrimaryATerm(Watcher):
    """Whom the managers have promoted in which term."""

    def __init__(self) -> None:
        self._primaries: dict[int, str] = {}

    def look(self, node: str, program: Qpid, now: Observed, before: Observed | None) -> str:
        """Compare with whoever had the term."""
        if not now.term or (before is not None and before.term == now.term):
            return ""
        other = self._primaries.setdefault(now.term, node)
        return "" if other == node else f"it is primary of term {now.term}, of which {other} was"


class StatesByDocument(Watcher):
    """Nothing of its own: each step is looked at."""

    def look(self, node: str, program: Qpid, now: Observed, before: Observed | None) -> str:
        """A step from one state to another is one that the document knows; nobody is promoted while it catches up."""
        if before is None:
            return "" if now.state in (CONNECTING, CATCHUP) else f"it was just started and is {now.state}"
        if before.state == now.state or (before.state, now.state) in _CHANGES:
            return ""
        return f"it was {before.state} and is {now.state}"


class PrimaryIsDirty(Watcher):
    """Nothing of its own: a store is looked at as it is."""

    def look(self, node: str, program: Qpid, now: Observed, before: Observed | None) -> str:
        """The store of a broker that runs as primary is dirty."""
        return f"it is primary, and its store is {now.store}" if now.state == PRIMARY and now.store != DIRTY else ""


class GenerationsGrow(Watcher):
    """The highest generation that each store has held."""

    def __init__(self) -> None:
        self._generations: dict[str, int] = {}

    def look(self, node: str, program: Qpid, now: Observed, before: Observed | None) -> str:
        """A generation is in the store before anybody is told, and is never replaced by an earlier one; an operator, or
        the managers where all was stopped, may have a store erased and replaced."""
        kept = self._generations.get(node, 0)
        if 0 < now.generation < kept:
            return f"its store was of generation {kept}, and is now of {now.generation}"
        self._generations[node] = now.generation
        return ""


class LevelsKept(Watcher):
    """Nothing of its own: a backup is looked at as it is."""

    period = 2.0

    def look(self, node: str, program: Qpid, now: Observed, before: Observed | None) -> str:
        """Nothing: this may be seen somewhat later."""
        return ""

    def inspect(self, node: str, program: Qpid) -> str:
        """A backup that has everything has nothing that says that it is not replicated."""
        if program.observed().state != READY:
            return ""
        odd = [key for key, arguments in program.configuration.items() if arguments.get(REPLICATE) == NONE]
        return f"as a backup it has {odd[0]}, which says {REPLICATE}={NONE}" if odd else ""


INVARIANTS = (
    Invariant("one-primary-confirms", "at any instant at most one primary may confirm and deliver",
              "the document: Failover and Cluster Resource Managers; Gray and Cheriton 1989", OneConfirms,
              unless=("clock",), where=_MANAGED),
    Invariant("one-primary-a-term", "in each of the managers' terms at most one broker is primary",
              "Raft paper, Figure 3, Election Safety", OnePrimaryATerm, where=_MANAGED),
    Invariant("states-of-a-broker", "a broker's states follow as the document says; nobody is promoted in catchup",
              "the document: Broker discovery and lifecycle", StatesByDocument, where=_MANAGED),
    Invariant("primary-is-dirty", "the store of a broker that is primary is dirty",
              "the document: Interaction with the store", PrimaryIsDirty),
    Invariant("generations-grow", "the generation in a broker's store only grows, unless that is erased",
              "Kafka's leader epochs (KIP-101)", GenerationsGrow, unless=("disk",),
              where={**_MANAGED, "store": (SYNC,)}),
    Invariant("levels-kept", "what says of itself that it is not replicated is at no backup",
              "the document: Replicating configuration, qpid.replicate", LevelsKept,
              where={**_MANAGED, "as_documented": ("",), "standby": ("hot",)}),
    STORE_HOLDS,
    same_state("of the same generation and group", {**_MANAGED, "standby": ("hot",)}),
)  # fmt: skip
