"""Invariants of elections among HA Joram's replicas, with ``partitions=primary-partition``: the candidates, their
timing, and the promises."""

from __future__ import annotations

from nodes.reference.designs.joram.decisions import round_of
from nodes.reference.designs.joram.design import Joram
from nodes.reference.designs.joram.election import ADOPTING, IDLE
from nodes.reference.designs.joram.probes import Observed
from nodes.reference.replication.quorum import majority
from stormproof.contracts.invariant import Invariant, Watcher

PRIMARY = {"partitions": ("primary-partition",)}
_NEARLY = 0.98
_TURN = 2.0
"""Detection time-outs that a candidate leaves to each candidate before it, and to a candidate that has its promise."""


class OneRole(Watcher):
    """Stateless check of a replica's roles."""

    fields = ("phase", "leads", "follows", "takes", "promised")

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that a leader or follower is not a candidate, and that a log is received in the epoch promised last."""
        if now.phase != IDLE and (now.leads or now.follows):
            return f"it is {now.phase}, and {f'follows {now.follows}' if now.follows else 'is master'}"
        if now.leads and now.follows:
            return f"it is master, and follows {now.follows}"
        if not now.takes:
            return ""
        if now.takes != now.promised:
            return (f"it takes the log of {program.source} in epoch {round_of(now.takes)}, and has promised "
                    f"{round_of(now.promised)}")  # fmt: skip
        if now.phase == ADOPTING or now.follows == program.source:
            return ""
        return f"it takes the log of {program.source}, which it neither follows nor adopts"


class ElectedByMajority(Watcher):
    """Tracks the newest epoch that each replica has ever promised."""

    fields = ("leads", "promised")

    def __init__(self) -> None:
        self._promised: dict[str, int] = {}
        self._programs: dict[str, Joram] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that a master belongs to its group, of which a majority has promised its epoch."""
        self._programs[node] = program
        if now.promised > self._promised.get(node, 0):
            self._promised[node] = now.promised
        if not now.leads or (before is not None and before.leads == now.leads):
            return ""
        group = program.group
        if node not in group:
            return f"it is master of {', '.join(group)}, and does not belong to them"
        having = sum(self._promised.get(name, 0) >= now.leads for name in group)
        if having >= majority(len(group)):
            return ""
        return f"it is master in epoch {round_of(now.leads)}, which {having} of {len(group)} replicas have promised"

    def ended(self, node: str) -> None:
        """Keep the ended replica's promise: it may have ended in the middle of a callback, after the last check, and
        may already have sent it.
        """
        if (program := self._programs.pop(node, None)) is not None:
            self._promised[node] = max(self._promised.get(node, 0), program.observed().promised)


class StandsInTurn(Watcher):
    """Tracks, by each replica's clock, how long it has neither led nor followed, and when it promised an epoch to
    another candidate in that time."""

    fields = ("leads", "follows", "phase", "promised")

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._promised: dict[str, float] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that a candidate has left two detection time-outs to each candidate before it, and to one that has its
        promise.
        """
        if before is None or before.leads or before.follows or now.leads or now.follows:
            self._since[node] = program.now()
            self._promised.pop(node, None)
            return ""
        if now.promised != before.promised and program.favours() and now.promised != program.own_epoch(now.promised):
            self._promised[node] = program.now()
        if before.phase != IDLE or now.phase == IDLE:
            return ""
        turn = _TURN * program.detection_timeout
        if program.lacks_what_others_have():
            return "it stands without any log, and others have one"
        if ahead := program.ahead():
            waited = program.now() - self._since[node]
            if waited < _NEARLY * turn * len(ahead):
                return f"it stands {waited:.3g} s after it had a master, with {', '.join(ahead)} before it"
        if node in self._promised and (waited := program.now() - self._promised[node]) < _NEARLY * turn:
            return f"it stands {waited:.3g} s after it promised epoch {round_of(now.promised)} to another"
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended replica's times; they start over."""
        self._since.pop(node, None)
        self._promised.pop(node, None)


class EmptyCountsForNothing(Watcher):
    """Tracks the epochs that were proposed by candidates with a log."""

    fields = ("promised",)

    def __init__(self) -> None:
        self._by_log: dict[int, bool] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that a replica without a whole log promises nothing to a candidate that has one."""
        if before is None or now.promised == before.promised or now.leads or now.follows:
            return ""
        if now.promised == program.own_epoch(now.promised):
            if now.phase != IDLE:
                self._by_log[now.promised] = now.last > 0 and self._by_log.get(now.promised, True)
            return ""
        whole = now.last and program.log.whole
        if whole or not program.favours() or not self._by_log.get(now.promised, False):
            return ""
        return f"it has no whole log, and has promised epoch {round_of(now.promised)} to a candidate that has one"


class NamesItsMaster(Watcher):
    """Tracks the master of each epoch."""

    fields = ("leads", "follows", "takes", "group_index")

    def __init__(self) -> None:
        self._masters: dict[int, str] = {}

    def look(self, node: str, program: Joram, now: Observed, before: Observed | None) -> str:
        """Check that a replica that begins to follow a master names it to clients, and that one without a master names
        none.
        """
        if now.leads:
            self._masters[now.leads] = node
            return ""
        if before is not None and (before.leads, before.follows, before.takes, before.group_index) == (
                now.leads, now.follows, now.takes, now.group_index):
            return ""
        told, status = program.admission().master, program.status()["master"]
        if not program.hears_master():
            return f"it has no master, and names {told or status}" if told or status else ""
        master = self._masters.get(now.takes)
        if master is None:
            return ""
        if status != master:
            return f"its master is {master}, and its status names {status}"
        address = program.listeners.get(master) or None
        return f"it follows {master} at {address}, and sends clients to {told}" if told != address else ""


CANDIDACIES = (
    Invariant("one-role", "who leads or follows does not stand; a log is taken from the master, or from whom a "
              "candidate adopts it, in the epoch that was promised last",
              "Raft paper, Figure 2, Rules for Servers: a candidate that hears of a leader becomes a follower",
              OneRole, where=PRIMARY),
    Invariant("elected-by-majority", "a master belongs to its group, and a majority of it has promised its epoch",
              "Raft paper, 5.2: a candidate wins an election if it receives votes from a majority for the same term",
              ElectedByMajority, where=PRIMARY),
    Invariant("stands-in-turn", "a candidate leaves two detection time-outs to each before it, and to whom it has "
              "promised; who has no log does not stand where others have one",
              "docs/designs/joram.md, Elections: the second tries after two more detection_timeouts, and so on; 4.8: "
              "the order of the group list", StandsInTurn, where=PRIMARY),
    Invariant("empty-promises-nothing", "a replica without a whole log promises nothing to a candidate that has one",
              "docs/designs/joram.md, Start and restart: a replica whose disk is empty doesn't count",
              EmptyCountsForNothing, where=PRIMARY),
    Invariant("names-its-master", "a replica names the master that it follows, and nobody when it has none",
              "docs/stomp.md: a node that isn't the master names the master if it knows it; 4.9", NamesItsMaster,
              where=PRIMARY),
)  # fmt: skip
