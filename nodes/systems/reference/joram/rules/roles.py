"""Watchers of HA Joram's roles, with ``partitions=primary-partition``: elections, promises, leases, and what replicas
say of themselves."""

from __future__ import annotations

from typing import Any

from nodes.reference.designs.joram.decisions import round_of
from nodes.reference.designs.joram.election import ADOPTING, IDLE
from nodes.reference.replication.quorum import majority
from nodes.systems.reference.joram.probes import JoramObserved, JoramProbe
from nodes.systems.reference.joram.rules.frames import epoch_promised
from stormproof.contracts.invariant import EagerWatcher, Watcher

_NEARLY = 0.98
_TURN = 2.0
"""Detection time-outs that a candidate leaves to each candidate before it, and to a candidate that has its promise."""


class OneMasterAnEpoch(Watcher):
    """Tracks the master of each epoch."""

    fields = ("leads",)

    def __init__(self) -> None:
        self._masters: dict[int, str] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that the master's epoch had no other master."""
        if not now.leads or (before is not None and before.leads == now.leads):
            return ""
        other = self._masters.setdefault(now.leads, node)
        return "" if other == node else f"it is master in epoch {round_of(now.leads)}, in which {other} was"


class LeadsInItsPromise(Watcher):
    """Stateless check of a master's promise."""

    fields = ("leads", "promised")

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that a master's promised epoch equals its own epoch; a newer promise supersedes it."""
        if now.leads in (0, now.promised):
            return ""
        return f"it is master in epoch {round_of(now.leads)}, and has promised {round_of(now.promised)}"


class OneServes(EagerWatcher):
    """Tracks the masters, and whether the leases of two hold at the same time."""

    fields = ("leads", "serving")

    def __init__(self) -> None:
        self._masters: dict[str, JoramProbe] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that only one lease holds; while two replicas believe that they are masters, each of their steps is
        checked.
        """
        if now.leads:
            self._masters[node] = program
        else:
            self._masters.pop(node, None)
        self.eager = len(self._masters) > 1
        if not self.eager or not now.serving:
            return ""
        others = [name for name, each in self._masters.items() if name != node and each.holds_lease()]
        return f"its lease holds, and that of {others[0]} as well" if others else ""

    def ended(self, node: str) -> None:
        """Forget the ended master."""
        self._masters.pop(node, None)
        self.eager = len(self._masters) > 1


class LeaseProtects(Watcher):
    """Tracks the masters, and the epoch that each replica has promised."""

    fields = ("leads", "promised", "serving")

    def __init__(self) -> None:
        self._masters: dict[str, tuple[int, JoramProbe]] = {}
        self._promised: dict[str, int] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that no majority has promised a newer epoch than that of a master whose lease holds."""
        if now.leads:
            self._masters[node] = now.leads, program
        else:
            self._masters.pop(node, None)
        if self._promised.get(node) == now.promised and (before is None or before.serving == now.serving):
            return ""
        self._promised[node] = now.promised
        for name, (epoch, master) in self._masters.items():
            newer = [each for each in master.group if self._promised.get(each, 0) > epoch]
            if len(newer) >= majority(len(master.group)) and master.holds_lease():
                return (f"{len(newer)} of {len(master.group)} replicas have promised a newer epoch than "
                        f"{round_of(epoch)}, in which the lease of {name} holds")  # fmt: skip
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended master; the promise stays."""
        self._masters.pop(node, None)


class Promises(Watcher):
    """Tracks each replica's promise on disk."""

    fields = ("promised", "durable_promise")

    def __init__(self) -> None:
        self._durable: dict[str, int] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that a promise only grows, even across restarts."""
        if before is not None and now.promised < before.promised:
            return f"it had promised epoch {round_of(before.promised)}, and now {round_of(now.promised)}"
        kept = self._durable.get(node, 0)
        if before is None and now.promised < kept:
            return f"it was started with the promise {round_of(now.promised)}, and had {round_of(kept)} on its disk"
        self._durable[node] = max(kept, now.durable_promise)
        return ""

    def disk_lost(self, node: str) -> None:
        """Forget the promise that was on the node's disk."""
        self._durable.pop(node, None)


class PromisesOnDisk(Watcher):
    """Stateless check of a replica's promise."""

    fields = ("promised", "durable_promise")

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that a promise is on disk before it can be sent."""
        if now.durable_promise >= now.promised:
            return ""
        return f"it has promised epoch {round_of(now.promised)}, and on its disk is {round_of(now.durable_promise)}"


class RestsAfterStart(Watcher):
    """Tracks the time, by its own clock, at which each replica was started with a log."""

    fields = ("promised",)

    def __init__(self) -> None:
        self._started: dict[str, float] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that a replica makes no promise to another candidate within a detection time-out after its start: a
        master may rely on messages from before the replica's end. Its own epoch, and that of a master that it follows,
        are allowed. A replica may gain and lose a master within one step."""
        if before is None:
            if now.last:
                self._started[node] = program.now()
            return ""
        if now.promised == before.promised or program.hears_master() or not program.favours():
            return ""
        if node not in self._started:
            return ""
        ran = program.now() - self._started[node]
        if ran >= _NEARLY * program.detection_timeout or now.promised == program.own_epoch(now.promised):
            return ""
        return f"it has promised epoch {round_of(now.promised)} {ran:.3g} s after its start"

    def ended(self, node: str) -> None:
        """Forget the start; the next one is noted when it happens."""
        self._started.pop(node, None)


class OneRole(Watcher):
    """Stateless check of a replica's roles."""

    fields = ("phase", "leads", "follows", "takes", "promised")

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
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
        self._programs: dict[str, JoramProbe] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
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
    """Tracks, by each replica's clock, how long it has neither led nor followed, and when it sent a promise to another
    candidate in that time."""

    fields = ("leads", "follows", "phase", "promised")

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._promised: dict[str, float] = {}
        self._programs: dict[str, JoramProbe] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that a candidate has left two detection time-outs to each candidate before it, and to one that has its
        promise.
        """
        self._programs[node] = program
        if before is None or before.leads or before.follows or now.leads or now.follows:
            self._since[node] = program.now()
            self._promised.pop(node, None)
            return ""
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

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Note a promise when it is sent: a replica may also promise an epoch by following its master."""
        if epoch_promised(frame) and (program := self._programs.get(node)) is not None:
            self._promised[node] = program.now()
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended replica's times; they start over."""
        self._since.pop(node, None)
        self._promised.pop(node, None)
        self._programs.pop(node, None)


class EmptyCountsForNothing(Watcher):
    """Tracks the epochs that were proposed by candidates with a log."""

    fields = ("promised",)

    def __init__(self) -> None:
        self._by_log: dict[int, bool] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
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

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
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


class StatusTells(Watcher):
    """Stateless check of a replica's status."""

    period = 1.5

    def inspect(self, node: str, program: JoramProbe) -> str:
        """Check that the status shown to administrators matches the replica's state."""
        if program.failed:
            return ""
        now, said, log = program.observed(), program.status(), program.log
        suspects = [name for name in program.group if name != node and not program.believes(name)]
        is_ = {
            "serving": now.leads > 0 and bool(program.admission().accepted),
            "epoch": round_of(now.leads or now.promised), "view": list(log.view), "applied": program.step,
            "committed": now.committed, "log_first": now.base + 1, "log_last": now.last,
            "suspects": suspects,
        }  # fmt: skip
        if wrong := [name for name, value in is_.items() if said[name] != value]:
            return f"its status tells {wrong[0]} {said[wrong[0]]}, which is {is_[wrong[0]]}"
        if said["learners"] and not now.leads:
            return f"its status tells of {','.join(said['learners'])}, whom only a master takes in"
        roles = _roles(node, program, now, len(program.group) - len(suspects))
        return "" if said["role"] in roles else f"its status tells that it is {said['role']}, and it is {roles[0]}"


def _roles(node: str, program: JoramProbe, now: JoramObserved, living: int) -> tuple[str, ...]:
    """Return the roles that a replica may report, according to docs/designs/joram.md."""
    if now.leads:
        return ("master",)
    if program.is_apart:
        return ("apart",)
    if program.hears_master():
        return ("slave",) if node in program.log.view else ("joining",)
    return ("minority", "starting") if living < majority(len(program.group)) else ("electing", "starting")
