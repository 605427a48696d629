"""Observes simulated nodes after each of their callbacks, and ends a run in which an invariant is broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import ne
from typing import Any, Protocol

from harness.sim.deadlines import PERIOD, Deadlines
from harness.sim.disk import SimDisk
from harness.sim.errors import SimulationError
from harness.sim.explorer import Explorer
from harness.sim.external_view import Outside, WireTap
from harness.sim.process import SimProcess
from harness.sim.waits import Instants, Waits
from stormproof.contracts.deadline import Deadline
from stormproof.contracts.invariant import BROKER, AfterStep, EagerWatcher, Exit, Invariant, Watcher
from stormproof.contracts.wait import Wait

_LAST_LINES = 6
_TEXT = 400
ERROR = " ERROR "
"""The level of a line in a log that tells of an error."""
_Looks = Sequence[tuple[Invariant, Callable[[str, Any, Any, Any], str]]]
"""Invariants, each with the ``look`` of its watcher."""


class InvariantBroken(SimulationError):
    """An invariant is violated: ``str`` says which, where and when; ``told`` holds all details."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(f"{told['name']} is broken at {told['time']:.6f} s, {told['node']}: {told['wrong']}")
        self.told = told


def kind_of(program: Any) -> str:
    """Return the kind of a program."""
    return str(getattr(program, "kind", BROKER))


class SimClock(Protocol):
    """The source of the time that is read after each callback."""

    now: float


class WatchedGroup:
    """The watchers of the nodes of one group, and the last observation of each node."""

    def __init__(self, invariants: Sequence[Invariant]) -> None:
        self.outside = Outside()
        self.watchers: list[tuple[Invariant, Watcher]] = [(each, each.watcher()) for each in invariants]
        for _, watcher in self.watchers:
            watcher.outside = self.outside
        self._eager = [watcher for _, watcher in self.watchers if isinstance(watcher, EagerWatcher)]
        self.seen: dict[str, tuple[Any, ...]] = {}
        self.machines: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.alert = False
        """Whether a watcher wants to look after every callback."""

    def watchers_of(self, kind: str) -> list[tuple[Invariant, Watcher]]:
        """Return the watchers that look at programs of a kind."""
        return [(invariant, watcher) for invariant, watcher in self.watchers if kind in invariant.of]

    def looked(self) -> None:
        """Update ``alert`` after eager watchers have looked at a node."""
        self.alert = any(watcher.eager for watcher in self._eager)


class _Asked(dict[tuple[bool, ...], tuple[_Looks, bool]]):
    """The pattern of changed fields in an observation -> the watchers to call, and whether an eager one is among them.

    ``all`` is the entry for all watchers. Each node has a separate dictionary, because lookups are very frequent.
    """

    def __init__(self, watchers: Sequence[tuple[Invariant, Watcher]]) -> None:
        super().__init__()
        self._watchers = [(invariant, watcher) for invariant, watcher in watchers
                          if type(watcher).look is not Watcher.look]  # fmt: skip
        self.all = self._of(self._watchers)

    def note(self, differs: tuple[bool, ...], now: Any) -> tuple[_Looks, bool]:
        """Add the entry for a new pattern of changed fields; where the fields have no names, all watchers look."""
        changed = {name for name, other in zip(getattr(now, "_fields", ()), differs, strict=False) if other}
        if not changed:
            return self.all
        found = self[differs] = self._of([(invariant, watcher) for invariant, watcher in self._watchers
                                          if not watcher.fields or changed.intersection(watcher.fields)])  # fmt: skip
        return found

    def _of(self, watchers: Sequence[tuple[Invariant, Watcher]]) -> tuple[_Looks, bool]:
        return ([(invariant, watcher.look) for invariant, watcher in watchers],
                any(isinstance(watcher, EagerWatcher) for _, watcher in watchers))


class Observer:
    """Watches the nodes of a run.

    Args:
        invariants: the invariants that are claimed of the run.
        clock: the simulated seconds since the run's beginning.
        last_lines: returns the newest lines of a node's logs.
        explorer: records the states that the nodes reach; None: they are not recorded.
        deadlines: the deadlines that are claimed of the run; ``options`` are the options of its test.
        tap: reads the frames that programs send; None: rules about frames are not checked.
        waits: the waits that programs declare.
    """

    def __init__(self, invariants: Sequence[Invariant], clock: SimClock,
                 last_lines: Callable[[str, int], Sequence[str]], explorer: Explorer | None = None,
                 deadlines: Sequence[Deadline] = (), options: Mapping[str, Any] | None = None,
                 tap: WireTap | None = None, waits: Sequence[Wait] = ()) -> None:
        self._invariants = invariants
        self._deadlines = deadlines
        self._waits = waits
        self._options = options or {}
        self.calm_since: Callable[[], float | None] = lambda: None
        """The time since which no fault has been in force, in simulated seconds.

        None: a fault is in force, or the load has not begun.
        """
        self._clock = clock
        self._last_lines = last_lines
        self._explorer = explorer
        self._groups: dict[str, WatchedGroup] = {}
        self._tap = tap

    def watch(self, machine: str, node: str, group: str, program: Any, process: SimProcess, disk: SimDisk,
              ) -> Callable[[bool], None]:
        """Watch a node's program that has been started on a machine; returns the function for ``Process.look``."""
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = WatchedGroup(self._invariants)
        found.outside.place(node, disk)
        found.machines[node] = machine
        found.seen.pop(node, None)
        seen, kind = found.seen, kind_of(program)
        found.kinds[node] = kind
        watchers = found.watchers_of(kind)
        deadlines = Deadlines(self._deadlines, self._options) if self._deadlines else None
        periodic = [(invariant, watcher) for invariant, watcher in watchers if watcher.period]
        asked = _Asked(watchers)
        clock, due = self._clock, self._clock.now if self._deadlines or periodic else float("inf")
        inspected = dict.fromkeys(range(len(periodic)), due)
        observed: Callable[[], Any] = program.observed
        last: Any = None
        sent: list[tuple[Invariant, str | AfterStep]] = []
        self._listen(node, process, watchers, sent)
        self._read_errors(node, process, watchers, sent)
        process.exited = self._examines_exit(node, watchers, found)
        self._follow_points(node, process, watchers, sent)
        waits = Waits(self._waits, self._options, kind)
        process.armed = waits.armed if waits else None
        instants = Instants(self._waits, self._options, kind, program)

        unseen, called = float("inf"), clock.now
        """The simulated times since which steps were not looked at, and of the last call."""

        def look(woken: bool) -> None:
            nonlocal due, last, unseen, called
            if sent:
                for invariant, said in sent:
                    if wrong := said if isinstance(said, str) else said(program):
                        raise self._broken(invariant, wrong, node, found)
                sent.clear()
            if waits.wrong is not None:
                raise self._broken(*waits.wrong, node, found)
            # A step before a standstill is looked at after it.
            unseen = min(unseen, clock.now if process.ran_on <= called else called)
            called = clock.now
            if not woken or last is None or found.alert:
                strayed = instants.look(process.offset + unseen * process.rate, process.local())
                unseen = float("inf")
                if strayed:
                    raise self._broken(*strayed, node, found)
                now = observed()
                if found.alert or (now is not last and now != last):
                    before, last = last, now
                    seen[node] = now
                    if before is None or found.alert:
                        looks, eager = asked.all
                    else:
                        differs = tuple(map(ne, now, before))
                        looks, eager = asked.get(differs) or asked.note(differs, now)
                    for invariant, watch in looks:
                        if wrong := watch(node, program, now, before):
                            raise self._broken(invariant, wrong, node, found)
                    if eager:
                        found.looked()
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

        def explore(woken: bool) -> None:
            before = seen.get(node)
            look(woken)
            now = seen[node]
            if now is before:
                return
            if before is None or changing(now) != changing(before):
                brokers = {name: each for name, each in seen.items() if found.kinds[name] == BROKER}
                explorer.changed(group, brokers, found.machines)

        return explore

    def close(self) -> None:
        """Free what the observation of nodes' disks took."""
        for group in self._groups.values():
            group.outside.close()

    def ended(self, node: str, group: str) -> None:
        """Forget a watched program that has ended."""
        found = self._groups[group]
        found.seen.pop(node, None)
        for _, watcher in found.watchers:
            watcher.ended(node)

    def _listen(self, node: str, process: SimProcess, watchers: Sequence[tuple[Invariant, Watcher]],
                found: list[tuple[Invariant, str | AfterStep]]) -> None:
        """Let watchers examine the frames that a process sends; ``found`` receives the violations, and what is asked
        after the step."""
        if self._tap is None:
            return
        self._tap.names[process] = node
        hears = [(invariant, watcher.sent) for invariant, watcher in watchers
                 if type(watcher).sent is not Watcher.sent]  # fmt: skip
        if not hears:
            return

        def tell(peer: str, frame: Any) -> None:
            found.extend((invariant, wrong) for invariant, examine in hears if (wrong := examine(node, peer, frame)))

        self._tap.told[process] = tell

    @staticmethod
    def _read_errors(node: str, process: SimProcess, watchers: Sequence[tuple[Invariant, Watcher]],
                     found: list[tuple[Invariant, str | AfterStep]]) -> None:
        """Let watchers examine the errors that a process logs; ``found`` receives the violations."""
        reads = [(invariant, watcher.logged) for invariant, watcher in watchers
                 if type(watcher).logged is not Watcher.logged]  # fmt: skip

        def read(line: str) -> None:
            if ERROR in line:
                found.extend((invariant, wrong) for invariant, examine in reads if (wrong := examine(node, line)))

        process.logged = read if reads else None

    def _examines_exit(self, node: str, watchers: Sequence[tuple[Invariant, Watcher]],
                       group: WatchedGroup) -> Callable[[Exit], None]:
        """Return a function that lets watchers examine the exit of a process."""
        def examine(how: Exit) -> None:
            for invariant, watcher in watchers:
                if wrong := watcher.exited(node, how):
                    raise self._broken(invariant, wrong, node, group)

        return examine

    @staticmethod
    def _follow_points(node: str, process: SimProcess, watchers: Sequence[tuple[Invariant, Watcher]],
                       found: list[tuple[Invariant, str | AfterStep]]) -> None:
        """Let watchers examine the named points that a process reaches."""
        follows = [(invariant, watcher.passed) for invariant, watcher in watchers
                   if type(watcher).passed is not Watcher.passed]  # fmt: skip

        def tell(point: str) -> None:
            found.extend((invariant, wrong) for invariant, examine in follows if (wrong := examine(node, point)))

        process.passed = tell if follows else None

    def disk_lost(self, machine: str) -> None:
        """Tell the watchers of the machine's nodes that its disk has lost synced data."""
        for group in self._groups.values():
            for node in [name for name, place in group.machines.items() if place == machine]:
                for _, watcher in group.watchers:
                    watcher.disk_lost(node)

    def _broken(self, invariant: Invariant | Deadline | Wait, wrong: str, node: str,
                group: WatchedGroup) -> InvariantBroken:
        return InvariantBroken({
            "name": invariant.name, "rule": invariant.rule, "source": invariant.source, "node": node, "wrong": wrong,
            "time": self._clock.now,
            "states": {name: _told(seen) for name, seen in sorted(group.seen.items())},
            "events": {name: [line[:_TEXT] for line in self._last_lines(group.machines[name], _LAST_LINES)]
                       for name in sorted(group.seen)},
        })  # fmt: skip


def _told(seen: tuple[Any, ...]) -> str:
    """Describe an observation in words; fields without a name are omitted."""
    fields: Sequence[str] = getattr(seen, "_fields", ())
    return ", ".join(f"{name} {value}" for name, value in zip(fields, seen, strict=True))[:_TEXT]
