"""The execution of a night: simulated cells fill the cores, real ones run one after the other."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from checkers.spark.masters import LOCAL_MASTER
from checkers.spark.session import SparkWarmup
from harness.backends.catalog import BACKENDS
from harness.nightly.figures import figures_of
from harness.nightly.fingerprint import Fingerprint, fingerprint_of_failure
from harness.nightly.plan_file import Cell, Plan
from harness.nightly.record import COMPLETE, SPENT, Night, NightResult
from harness.run.cases import JudgedRun
from harness.run.many import run_on_nodes
from harness.sim.campaign import FAILED, Seeded, keep_run, run_seed
from harness.sim.pool import Workers, worker_pool
from harness.sim.spark import SparkSimulation
from stormproof.contracts.check import INVALID
from stormproof.errors import StormproofError
from stormproof.run_folder import NIGHT_FILE, RunLock, write_json

_OVERHEAD_SECONDS = 20.0
"""Approximate seconds that a run on real nodes takes in addition to its load. It keeps runs from starting for which the
budget has no room."""

Task = tuple[Cell, int]


@dataclass
class NightBudget:
    """The seconds that a night may take; None means no limit."""

    seconds: float | None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def used(self) -> float:
        """Seconds since the budget was created."""
        return self.clock() - self._began

    def has(self, seconds: float = 0.0) -> bool:
        """Return whether ``seconds`` are left."""
        return self.seconds is None or self.used + seconds < self.seconds


def rounds(cells: Sequence[Cell], done: set[tuple[str, int]]) -> Iterator[tuple[list[Task], list[Task]]]:
    """Yield the outstanding tasks in portions: first the simulated ones, then the others.

    Every case gets a run before any case gets a second one. The first portion has one run of each case. The second has
    one run of each remaining cell. Each further portion has another seed of each cell.
    """
    first = {next(index for index, other in enumerate(cells) if other.case == cell.case) for cell in cells}
    for number in range(max((len(cell.seeds) for cell in cells), default=0)):
        due = [index for index, cell in enumerate(cells) if number < len(cell.seeds)]
        portions = [[index for index in due if index in first], [index for index in due if index not in first]]
        for portion in portions if number == 0 else [due]:
            tasks = [(cells[index], cells[index].seeds[number]) for index in portion]
            tasks = [(cell, seed) for cell, seed in tasks if (cell.name, seed) not in done]
            simulated = [task for task in tasks if BACKENDS.load(task[0].backend).in_process]
            if tasks:
                yield simulated, [task for task in tasks if task not in simulated]


class NightRun:
    """Runs the rest of a night."""

    def __init__(self, night: Night, plan: Plan, store: Path, budget: NightBudget, jobs: int | None,
                 tell: Callable[[str], None], master: str | None = None) -> None:
        """Create the run. With ``master``, that Spark simulates and checks, in place of ``jobs`` processes and this
        machine's Spark."""
        self._night, self._plan, self._store, self._budget = night, plan, store, budget
        self._jobs = jobs or os.cpu_count() or 1
        self._tell = tell
        self._total = sum(len(cell.seeds) for cell in plan.cells)
        self._master = master
        self._spark: SparkWarmup | None = None
        self._noted = 0.0

    def _since(self) -> float:
        """Return the seconds of the budget since the last call."""
        before, self._noted = self._noted, self._budget.used
        return self._noted - before

    def whole(self, confirm: int) -> str:
        """Run the rest, then repeat each kind of failure ``confirm`` times. Return the night's resulting status.

        The status is not recorded here. Until the findings have been reported to a person, the same command continues
        this night.

        Raises:
            StormproofError: the store can't be written. KeyboardInterrupt: Ctrl-C; completed runs are kept.
        """
        with RunLock(self._night.folder):
            try:
                with worker_pool(self._jobs) as (workers, scratch), self._simulation() as simulation:
                    for simulated, real in rounds(self._plan.cells, self._night.done):
                        if simulation is None:
                            self._simulate(simulated, workers, scratch)
                        else:
                            self._simulate_on(simulation, simulated)
                        self._run_real(real)
                    complete = len(self._night.done) >= self._total
                    if confirm:
                        self._confirm(confirm, scratch)
                self._night.spend(self._since())
            except BaseException:
                try:
                    self._night.spend(self._since())
                except StormproofError as error:
                    print(f"stormproof: {error}", file=sys.stderr)
                raise
            finally:
                if self._spark is not None:
                    self._spark.abandon()
            return COMPLETE if complete else SPENT

    def _simulate(self, tasks: Sequence[Task], workers: Workers, scratch: Path) -> None:
        def left() -> Iterator[tuple[Any, ...]]:
            for cell, seed in tasks:
                if not self._budget.has():
                    return
                yield cell, seed, self._store, scratch

        for result in workers.each(run_seed, left()):
            try:
                kept = keep_run(result, self._store)
            except OSError as error:
                raise StormproofError(f"{self._store}: can't keep a run ({error.strerror}); free some space, then "
                                      "repeat the command to continue the night") from error
            self._note(kept)

    @contextlib.contextmanager
    def _simulation(self) -> Iterator[SparkSimulation | None]:
        """Yield the simulation on a named Spark; None if the processes of this machine simulate."""
        if self._master is None:
            yield None
            return
        with SparkSimulation(self._warm(), self._store, FAILED) as simulation:
            yield simulation

    def _simulate_on(self, simulation: SparkSimulation, tasks: Sequence[Task]) -> None:
        left: list[tuple[Seeded, int]] = [*tasks]
        while left and self._budget.has():
            part, left = left[: simulation.runs_a_job], left[simulation.runs_a_job :]
            for result in simulation.results(part):
                self._note(result)

    def _warm(self) -> SparkWarmup:
        if self._spark is None:
            self._spark = SparkWarmup(self._master or LOCAL_MASTER)
        return self._spark

    def _run_real(self, tasks: Sequence[Task]) -> None:
        for cell, seed in tasks:
            if self._budget.has(cell.time_limit + _OVERHEAD_SECONDS):
                self._note(self._on_nodes(cell, seed))

    def _on_nodes(self, cell: Cell, seed: int) -> JudgedRun:
        return run_on_nodes(cell, seed, "named by the night", self._store, self._warm())

    def _note(self, run: JudgedRun) -> None:
        cell = run.case
        assert isinstance(cell, Cell)
        if run.run_dir is not None:
            write_json(run.run_dir / NIGHT_FILE, {"night": self._night.name, "case": cell.case,
                                              "tag": str(self._night.head.get("tag") or "")})
        print_of = fingerprint_of_failure(run) if run.failed else Fingerprint("", "")
        self._night.add(NightResult(
            cell.name, run.seed, run.verdict, run.sentence, round(run.seconds, 3), run.command,
            run.run_dir.name if run.run_dir else "", print_of.code, print_of.words,
            datetime.now(UTC).isoformat(timespec="seconds"), figures_of(run.figures), run.guarantees, run.surface,
        ), self._since())  # fmt: skip
        place = f"{len(self._night.results)} of {self._total}"
        wanted = " (as expected)" if run.verdict == INVALID == cell.expected else ""
        self._tell(f"{place}: {run.verdict}{wanted}: {cell.name}, seed {run.seed}: {run.sentence}")

    def _confirm(self, times: int, scratch: Path) -> None:
        cells = {cell.name: cell for cell in self._plan.cells}
        examples: dict[str, NightResult] = {}
        for result in self._night.results:
            cell = cells.get(result.cell)
            if result.fingerprint and cell is not None and cell.expected != INVALID:
                examples.setdefault(result.fingerprint, result)
        for code, result in examples.items():
            if code in self._night.confirmed:
                continue
            cell, again = cells[result.cell], 0
            if not self._budget.has(times * result.seconds):
                continue
            for _ in range(times):
                again += self._fails_so(cell, result, scratch)
            self._night.confirm(code, again, times)
            self._tell(f"again: {again} of {times}: {result.words}")

    def _fails_so(self, cell: Cell, result: NightResult, scratch: Path) -> bool:
        """Repeat a run, and return whether it fails in the same way."""
        simulated = BACKENDS.load(cell.backend).in_process
        run = run_seed(cell, result.seed, self._store, scratch) if simulated else self._on_nodes(cell, result.seed)
        return run.failed and fingerprint_of_failure(run).code == result.fingerprint
