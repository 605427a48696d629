"""Looks at simulated nodes after each of their callbacks, and ends a run in which an invariant is broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.sim.errors import SimulationError
from harness.sim.explorer import Explorer
from stormproof.contracts.invariant import Invariant, Watched, Watcher

_LAST_LINES = 6
_TEXT = 400


class InvariantBroken(SimulationError):
    """An invariant does not hold: ``str`` says which, where and when; ``told`` holds all that is known of it."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(f"{told['name']} is broken at {told['time']:.6f} s, {told['node']}: {told['wrong']}")
        self.told = told


class Group:
    """The watchers of the nodes that belong together, and what was last observed of each."""

    def __init__(self, invariants: Sequence[Invariant]) -> None:
        self.watchers: list[tuple[Invariant, Watcher]] = [(each, each.watcher()) for each in invariants]
        self.seen: dict[str, tuple[Any, ...]] = {}
        self.machines: dict[str, str] = {}
        self.alert = False


class Observer:
    """Watches the nodes of a run.

    Args:
        invariants: those that are claimed of the run.
        time: simulated seconds since its beginning.
        last_lines: the newest lines of a node's logs.
        explorer: records which states they come into, if anybody does.
    """

    def __init__(self, invariants: Sequence[Invariant], time: Callable[[], float],
                 last_lines: Callable[[str, int], Sequence[str]], explorer: Explorer | None = None) -> None:
        self._invariants = invariants
        self._time = time
        self._last_lines = last_lines
        self._explorer = explorer
        self._groups: dict[str, Group] = {}

    def watch(self, machine: str, node: str, group: str, program: Watched) -> Callable[[], None]:
        """A node's program has been started on a machine; what is returned is to be called after each of its callbacks.
        """
        found = self._groups.setdefault(group, Group(self._invariants))
        found.machines[node] = machine
        found.seen.pop(node, None)
        seen = found.seen

        def look() -> None:
            now = program.observed()
            before = seen.get(node)
            if now == before and not found.alert:
                return
            seen[node] = now
            for invariant, watcher in found.watchers:
                wrong = watcher.look(node, program, now, before)
                if wrong:
                    raise self._broken(invariant, node, wrong, found)
            found.alert = any(watcher.eager for _, watcher in found.watchers)

        explorer = self._explorer
        if explorer is None:
            return look
        explorer.belongs(machine, group)
        changing = explorer.changing

        def explore() -> None:
            before = seen.get(node)
            if program.observed() == before and not found.alert:
                return
            look()
            now = seen[node]
            if before is None or changing(now) != changing(before):
                explorer.changed(group, seen, found.machines)

        return explore

    def ended(self, node: str, group: str) -> None:
        """A program that was watched has ended."""
        found = self._groups[group]
        found.seen.pop(node, None)
        for _, watcher in found.watchers:
            watcher.ended(node)

    def _broken(self, invariant: Invariant, node: str, wrong: str, group: Group) -> InvariantBroken:
        return InvariantBroken({
            "name": invariant.name, "rule": invariant.rule, "source": invariant.source, "node": node, "wrong": wrong,
            "time": self._time(),
            "states": {name: _told(seen) for name, seen in sorted(group.seen.items())},
            "events": {name: [line[:_TEXT] for line in self._last_lines(group.machines[name], _LAST_LINES)]
                       for name in sorted(group.seen)},
        })  # fmt: skip


def _told(seen: tuple[Any, ...]) -> str:
    """What was observed, in words; fields without a name are not told."""
    fields: Sequence[str] = getattr(seen, "_fields", ())
    return ", ".join(f"{name} {value}" for name, value in zip(fields, seen, strict=True))[:_TEXT]
