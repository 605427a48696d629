"""Faults that strike a simulated program exactly at one of its named points (``nodes.reference.points``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from harness.sim.errors import Struck
from harness.sim.network import Network
from harness.sim.process import SimProcess
from stormproof.contracts.backend import DEAD, Link, LinkConditions
from stormproof.contracts.fault_points import PointStrike, StruckPoint

ENDS, PAUSES, PARTIAL = ("kill", "power"), "pause", "partial"


class SimPoints:
    """The points of all simulated programs (``stormproof.contracts.fault_points.FaultPoints``).

    Args:
        names: the points that the system declares.
        time: returns the simulated seconds since the run's beginning.
        down: returns the number of these nodes that do not run.
        end: ends a program of a machine, with or without a power loss.
    """

    def __init__(self, names: Iterable[str], network: Network, time: Callable[[], float],
                 down: Callable[[tuple[str, ...]], int], end: Callable[[str, str, bool], None]) -> None:
        self.counts: dict[str, int] = dict.fromkeys(names, 0)
        self.struck: StruckPoint | None = None
        self.ended = False
        self.come_by: Callable[[str, str], None] | None = None
        """Called for each point that a machine's program reaches; None: not needed."""
        self._network, self._time, self._down, self._end = network, time, down, end
        self._armed: PointStrike | None = None
        self._given: PointStrike | None = None
        """The strike to arm again if its program ends before it is struck; None: it is disarmed."""
        self._names: frozenset[str] = frozenset()
        self._left = 0
        self._cut: frozenset[Link] = frozenset()
        self._suffering: dict[Link, LinkConditions] = {}
        self._wanted_cut: frozenset[Link] = frozenset()
        self._wanted_conditions: dict[Link, LinkConditions] = {}

    def come(self, machine: str, program: str, process: SimProcess, name: str) -> None:
        """Register that a program has reached a point.

        Raises:
            Struck: the program has ended at this point.
        """
        self.counts[name] = self.counts.get(name, 0) + 1
        if self.come_by is not None:
            self.come_by(machine, name)
        if process.passed is not None:
            process.passed(name)
        if self._armed is not None and name in self._names:
            self._strike(self._armed, machine, program, process, name)

    def arm(self, strike: PointStrike) -> None:
        """Arm the strike."""
        self._given = self._armed = strike
        self._names, self._left, self.struck = frozenset((strike.point,)), strike.hit, None

    def loosen(self, names: Collection[str]) -> None:
        """Strike at the next of these points instead, and at once."""
        if self._given is not None and self.struck is None:
            self._armed = replace(self._given, events=0)
        self._names, self._left = frozenset(names), 0

    def disarm(self) -> None:
        """Disarm the strike."""
        self._given = self._armed = None

    def lift(self) -> Mapping[Link, int]:
        """Restore the links that were struck; returns the number of packets that each has lost or delayed."""
        network = self._network
        lost, late = network.dropped(), network.affected_packets()
        counts = {link: lost.get(link, 0) for link in sorted(self._cut)}
        counts |= {link: late.get(link, 0) for link in self._suffering}
        self._cut, self._suffering = frozenset(), {}
        self.set_cut(self._wanted_cut)
        self.set_conditions(self._wanted_conditions)
        return counts

    def set_cut(self, cut: frozenset[Link]) -> None:
        """Set the links that are cut for reasons other than a strike."""
        self._wanted_cut = cut
        self._network.set_cut(cut | self._cut)

    def set_conditions(self, conditions: Mapping[Link, LinkConditions]) -> None:
        """Set the conditions of links for reasons other than a strike."""
        self._wanted_conditions = dict(conditions)
        self._network.set_conditions({**self._suffering, **self._wanted_conditions})

    def _strike_later(self, strike: PointStrike, machine: str, program: str, process: SimProcess, name: str) -> None:
        """Strike a program some steps after the point, unless the heal has struck another one meanwhile."""
        if self._given is not None and self.struck is None:
            self._left = 1
            self._strike(strike, machine, program, process, name, late=True)

    def _strike(self, strike: PointStrike, machine: str, program: str, process: SimProcess, name: str,
                late: bool = False) -> None:
        if process.state == DEAD or process.busy or program not in strike.programs.get(machine, ()):
            return
        self._left -= 1
        harms = strike.act in (*ENDS, PAUSES, PARTIAL)
        if self._left > 0 or (harms and machine in strike.nodes and self._down(strike.nodes) >= strike.most_down):
            return
        self._armed = None
        if strike.events:
            later = replace(strike, events=0)
            _after_steps(process, strike.events, lambda: self._strike_later(later, machine, program, process, name))
            return
        self.ended = False
        self.struck = StruckPoint(machine, program, process.pid, name, self.counts[name], self._time())
        if strike.act in ENDS:
            if strike.after or late:
                self._network.loop.after(0.0, self._end, machine, program, strike.act == "power")
                return
            self._end(machine, program, strike.act == "power")
            raise Struck(name)
        if strike.act == PAUSES:
            process.stall(strike.seconds)
            return
        links = strike.links[machine]
        if strike.conditions is None:
            self._cut = links
            self.set_cut(self._wanted_cut)
            if strike.act == PARTIAL:
                self._network.loop.after(strike.seconds, self._end_later, strike, machine, program)
        else:
            self._suffering = dict.fromkeys(sorted(links), strike.conditions)
            self.set_conditions(self._wanted_conditions)

    def _end_later(self, strike: PointStrike, machine: str, program: str) -> None:
        if machine not in strike.nodes or self._down(strike.nodes) < strike.most_down:
            self.ended = True
            self._end(machine, program, True)
            self._cut |= strike.hush.get(machine, frozenset())
            self.set_cut(self._wanted_cut)


def _after_steps(process: SimProcess, count: int, act: Callable[[], None]) -> None:
    """Call ``act`` when the process has completed ``count`` more callbacks; never, if it ends before."""
    watching, left = process.look, count + 1  # the present callback is the first to end

    def look(woken: bool) -> None:
        nonlocal left
        if watching is not None:
            watching(woken)
        left -= 1
        if not left:
            process.look = watching
            act()

    process.look = look
