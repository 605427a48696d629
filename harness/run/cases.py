"""What many runs of tests have in common: a test without its seed, and the judged result of one run.

Campaigns, nights, reproductions, the guarantee matrix and the hunts for mutants all turn cases and seeds into judged
runs: ``harness.sim.campaign.run_seed`` in simulation, ``harness.run.many.run_on_nodes`` on real nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stormproof.contracts.check import INVALID
from stormproof.test import Test

if TYPE_CHECKING:
    from stormproof.contracts.fault import Fault

BROKEN = "broken"
"""The verdict on a run that the harness could not complete, or that can't be judged."""

EVENTFUL: Mapping[str, str] = {
    "fault_duration": "1.5", "fault_gap": "0.3", "detection_timeout": "0.5", "idle_timeout": "2", "min_ok": "20",
    "settle_timeout": "20", "drain_limit": "30",
}
"""Settings of short runs in which many faults strike: short faults, with short gaps and time-outs."""


@dataclass(frozen=True)
class Case:
    """A test's description except its seed: the arguments of ``make_test``."""

    system: str
    workload: str
    nemesis: str
    nodes: int | None
    time_limit: float
    rate: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    backend: str = "sim"

    def test(self, seed: int) -> Test:
        """Return the test of one seed.

        Raises:
            UsageError: a name, a number or a combination makes no sense.
        """
        from harness.run.settings import make_test

        return make_test(
            system=self.system, workload=self.workload, nemesis=self.nemesis, backend=self.backend, nodes=self.nodes,
            time_limit=self.time_limit, rate=self.rate, seed=seed, settings=self.settings,
        )

    def families(self, seed: int) -> list[Fault]:
        """Return the fault families of that seed's test, with the kinds that can be simulated.

        Raises:
            UsageError: one cannot be simulated, or the test makes no sense.
        """
        from harness.run.deployment import topology_of
        from harness.sim.backend import SimBackend
        from nemesis.families import supported_families
        from nodes.systems.catalog import SYSTEMS

        test = self.test(seed)
        return supported_families(SimBackend, test, topology_of(test), SYSTEMS.load(test.system))

    def of(self, seed: int) -> Case:
        """Return the case to run with that seed: always this one."""
        return self

    def workloads(self) -> tuple[str, ...]:
        """Return the workloads that its clients may run."""
        return (self.workload,)

    def label(self) -> str:
        """Return a label for display."""
        return f"{self.system} {self.workload} {self.nemesis}"


@dataclass(frozen=True)
class JudgedRun:
    """The result of one seed.

    ``verdict`` is ``broken`` when the harness failed; then ``sentence`` says how. ``broken`` names the checks that
    decided for invalid; ``coverage`` counts how often each state of the design was reached; ``simulated`` and
    ``seconds`` are the run's length in simulated and in real time, checks included. ``run_dir`` is the folder of a run
    that was kept; ``guarantees`` is what the run showed of each guarantee, as in ``IndexRow``.
    """

    case: Case
    seed: int
    verdict: str
    sentence: str
    anomalies: Mapping[str, int] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    coverage: Mapping[str, int] = field(default_factory=dict)
    history_sha256: str = ""
    simulated: float = 0.0
    seconds: float = 0.0
    command: str = ""
    run_dir: Path | None = None
    guarantees: Mapping[str, str] = field(default_factory=dict)
    surface: Mapping[str, tuple[int, bool]] = field(default_factory=dict)
    """Item of the surface -> how often it was used, and whether that use was judged."""
    visited: frozenset[tuple[str, str]] = frozenset()
    """The pairs (state, fault family) that the run visited, if the campaign counts them."""
    explored: frozenset[int] = frozenset()
    """The findings of the explorer (``harness.sim.explorer``), if there was one."""

    @property
    def failed(self) -> bool:
        """Whether a guarantee was broken, or the harness failed."""
        return self.verdict in (INVALID, BROKEN)
