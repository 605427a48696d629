"""Looks at simulated nodes after each of their callbacks, and ends a run in which an invariant is broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol

from harness.sim.deadlines import PERIOD, Deadlines
from harness.sim.errors import SimulationError
from harness.sim.explorer import Explorer
from harness.sim.loop import Process
from stormproof.contracts.deadline import Deadline
from stormproof.contracts.invariant import BROKER, Invariant, Watcher

_LAST_LINES = 6
_TEXT = 400
_IS_EAGER: Callable[[Watcher], bool] = attrgetter("eager")


class InvariantBroken(SimulationError):
    """An invariant does not hold: ``str`` says which, where and when; ``told`` holds all that is known of it."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(f"{told['name']} is broken at {told['time']:.6f} s, {told['node']}: {told['wrong']}")
        self.told = told


def kind_of(program: Any) -> str:
    """What a program is."""
    return str(getattr(program, "kind", BROKER))


class Clock(Protocol):
    """Where the time is read, after each callback."""

    now: float


class Group:
    """The watchers of the nodes that belong together, and what was last observed of each."""

    def __init__(self, invariants: Sequence[Invariant]) -> None:
        self.watchers: list[tuple[Invariant, Watcher]] = [(each, each.watcher()) for each in invariants]
        self.looking = [watcher for _, watcher in self.watchers if type(watcher).look is not Watcher.look]
        """Those of them that look at what changes."""
        self.seen: dict[str, tuple[Any, ...]] = {}
        self.machines: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.alert = False

    def watchers_of(self, kind: str) -> list[tuple[Invariant, Watcher]]:
        """Those that look at programs of a kind."""
        return [(invariant, watcher) for invariant, watcher in self.watchers if kind in invariant.of]


class Observer:
    """Watches the nodes of a run.

    Args:
        invariants: those that are claimed of the run.
        clock: has the simulated seconds since its beginning.
        last_lines: the newest lines of a node's logs.
        explorer: records which states they come into, if anybody does.
        deadlines: those that are claimed of the run; ``options`` are its test's.
    """

    def __init__(self, invariants: Sequence[Invariant], clock: Clock,
                 last_lines: Callable[[str, int], Sequence[str]], explorer: Explorer | None = None,
                 deadlines: Sequence[Deadline] = (), options: Mapping[str, Any] | None = None) -> None:
        self._invariants = invariants
        self._deadlines = deadlines
        self._options = options or {}
        self.calm_since: Callable[[], float | None] = lambda: None
        """Since when no fault has been in force, in simulated seconds; None: one is, or the load has not begun."""
        self._clock = clock
        self._last_lines = last_lines
        self._explorer = explorer
        self._groups: dict[str, Group] = {}

    def watch(self, machine: str, node: str, group: str, program: Any, process: Process) -> Callable[[], None]:
        """A node's program has been started on a machine; what is returned is to be called after each of its callbacks.
        """
        found = self._groups.setdefault(group, Group(self._invariants))
        found.machines[node] = machine
        found.seen.pop(node, None)
        seen, kind = found.seen, kind_of(program)
        found.kinds[node] = kind
        watchers = found.watchers_of(kind)
        deadlines = Deadlines(self._deadlines, self._options) if self._deadlines else None
        periodic = [(invariant, watcher) for invariant, watcher in watchers if watcher.period]
        looking = [(invariant, watcher, frozenset(watcher.fields)) for invariant, watcher in watchers
                   if watcher in found.looking]  # fmt: skip
        some = any(fields for *_, fields in looking)
        clock, due = self._clock, self._clock.now if self._deadlines or periodic else float("inf")
        inspected = dict.fromkeys(range(len(periodic)), due)
        observed: Callable[[], tuple[Any, ...]] = program.observed
        last: tuple[Any, ...] | None = None

        def look() -> None:
            nonlocal due, last
            now = observed()
            if found.alert or (now is not last and now != last):
                before, last = last, now
                seen[node] = now
                changed = _changed(now, before) if some and not found.alert else None
                for invariant, watcher, fields in looking:
                    if changed is not None and fields and changed.isdisjoint(fields):
                        continue
                    wrong = watcher.look(node, program, now, before)
                    if wrong:
                        raise self._broken(invariant, wrong, node, found)
                found.alert = any(map(_IS_EAGER, found.looking))
            if (at := clock.now) < due:
                return
            due = at + PERIOD
            late = deadlines.look(program, at, process.ran_on, self.calm_since()) if deadlines is not None else None
            if late is not None:
                raise self._broken(*late, node, found)
            for place, (invariant, watcher) in enumerate(periodic):
                if at >= inspected[place]:
                    inspected[place] = at + watcher.period
                    if wrong := watcher.inspect(node, program):
                        raise self._broken(invariant, wrong, node, found)

        explorer = self._explorer
        if explorer is None or kind != BROKER:
            return look
        explorer.belongs(machine, group)
        changing = explorer.changing

        def explore() -> None:
            before = seen.get(node)
            look()
            now = seen[node]
            if now is before:
                return
            if before is None or changing(now) != changing(before):
                brokers = {name: each for name, each in seen.items() if found.kinds[name] == BROKER}
                explorer.changed(group, brokers, found.machines)

        return explore

    def ended(self, node: str, group: str) -> None:
        """A program that was watched has ended."""
        found = self._groups[group]
        found.seen.pop(node, None)
        for _, watcher in found.watchers:
            watcher.ended(node)

    def _broken(self, invariant: Invariant | Deadline, wrong: str, node: str, group: Group) -> InvariantBroken:
        return InvariantBroken({
            "name": invariant.name, "rule": invariant.rule, "source": invariant.source, "node": node, "wrong": wrong,
            "time": self._clock.now,
            "states": {name: _told(seen) for name, seen in sorted(group.seen.items())},
            "events": {name: [line[:_TEXT] for line in self._last_lines(group.machines[name], _LAST_LINES)]
                       for name in sorted(group.seen)},
        })  # fmt: skip


def _changed(now: Any, before: Any) -> set[str] | None:
    """The fields in which what is observed differs; None: it is looked at for the first time."""
    if before is None:
        return None
    return {name for name, new, old in zip(now._fields, now, before, strict=True) if new is not old and new != old}


def _told(seen: tuple[Any, ...]) -> str:
    """What was observed, in words; fields without a name are not told."""
    fields: Sequence[str] = getattr(seen, "_fields", ())
    return ", ".join(f"{name} {value}" for name, value in zip(fields, seen, strict=True))[:_TEXT]
