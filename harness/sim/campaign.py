"""Campaigns of many seeds: one simulated run each, spread over processes, checked at once.

Runs are stored in a scratch folder, in memory where the machine allows it. Failed runs are moved to the store, with
verdict and report, and are reported with the command that repeats them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.run.cases import BROKEN, Case, JudgedRun
from harness.sim.pool import worker_pool
from stormproof.errors import StormproofError

if TYPE_CHECKING:
    from checkers.verdict import Verdict

WHY = "simulated"


class Seeded(Protocol):
    """A case that may depend on the seed."""

    @property
    def system(self) -> str:
        """The system under test."""
        ...

    def of(self, seed: int) -> Case:
        """Return the case to run with that seed; raises UsageError when none is possible."""
        ...

    def workloads(self) -> tuple[str, ...]:
        """Return the workloads that its clients may run."""
        ...

    def label(self) -> str:
        """Return a label for display."""
        ...


class Guiding(Protocol):
    """Chooses the next runs of a system, and learns from finished ones (``harness.sim.guided``)."""

    @property
    def system(self) -> str:
        """The system under test."""
        ...

    def next(self) -> tuple[Case, int]:
        """Return the next run."""
        ...

    def learn(self, result: JudgedRun) -> int:
        """Learn from a finished run; returns the number of items that it was the first to meet."""
        ...


FAILED, NONE, ALL = "failed", "none", "all"
"""The runs that ``run_seed`` keeps."""


def run_seed(case: Seeded, seed: int, store: Path, scratch: Path, keep: str = FAILED,
             explores: bool = False, visits: bool = False) -> JudgedRun:
    """Simulate and check one seed.

    The run's folder is in ``scratch``; its command names ``store``. ``keep`` selects the runs whose folders remain:
    failed runs, none, or all with their verdicts. With ``explores``, the states that the nodes reach are recorded;
    with ``visits``, the pairs of states and faults, from the logs.
    """
    return run_and_judge(case, seed, store, scratch, keep, explores, visits)[0]


def run_and_judge(drawn: Seeded, seed: int, store: Path, scratch: Path, keep: str,
                  explores: bool = False, visits: bool = False) -> tuple[JudgedRun, Verdict | None]:
    """Do the work of ``run_seed``, and return the whole verdict as well; None for a run that broke."""
    from checkers.run_check import check_run
    from checkers.verdict import write_verdict
    from checkers.verdict_cache import note_for
    from harness.analysis.coverage import states_during_faults
    from harness.reference.feature_coverage import used_and_judged
    from harness.run import plugins
    from harness.run.describe import create_run
    from harness.sim.explorer import Explorer
    from harness.sim.run import simulate
    from nodes.systems.catalog import SYSTEMS
    from reports.summaries import guarantees_shown
    from stormproof.run_folder import read_run, update_run

    start = time.perf_counter()
    case = drawn.of(seed)
    command = repeating(case, seed, store)
    run_dir = create_run(case.test(seed), WHY, store, scratch)
    abstraction = SYSTEMS.load(case.system).abstraction if explores else None
    explorer = Explorer(abstraction) if abstraction is not None else None
    kept: Path | None = None

    def broken(why: str) -> JudgedRun:
        nonlocal kept
        kept = None if keep == NONE else run_dir
        return JudgedRun(case, seed, BROKEN, why, seconds=time.perf_counter() - start, command=command, run_dir=kept)

    try:
        try:
            simulate(run_dir, explorer=explorer)
        except StormproofError as error:
            update_run(run_dir, failure=str(error), status="broken")
            return broken(str(error)), None
        verdict = check_run(run_dir)
        if verdict.damage is not None:
            return broken(verdict.damage), None
        info = read_run(run_dir)
        if keep == ALL or (keep == FAILED and verdict.verdict == "invalid"):
            write_verdict(run_dir, verdict, note_for(run_dir) if plugins.preparation() is None else None)
            kept = run_dir
        ended = info["phases"][-1]["end"] if info["phases"] else 0
        violated = tuple(c.check for c in verdict.checks if c.decides and c.outcome.verdict == "invalid")
        result = JudgedRun(
            case, seed, verdict.verdict, verdict.sentence, verdict.anomalies, violated, dict(verdict.figures),
            info["coverage"], info["history_sha256"], ended / 1e9, time.perf_counter() - start,
            command, kept, guarantees_shown(info, verdict.to_json()),
            used_and_judged(info, {c.check: c.outcome.verdict for c in verdict.checks if c.decides}),
            states_during_faults(SYSTEMS.load(case.system), run_dir) if visits else frozenset(),
            frozenset(explorer.found) if explorer is not None else frozenset(),
        )
        return result, verdict
    finally:
        if kept is None:
            shutil.rmtree(run_dir, ignore_errors=True)


def repeating(case: Case, seed: int, store: Path) -> str:
    """Return the command that repeats one seed's run and writes its report."""
    from harness.run import plugins
    from harness.run.settings import parse_nemesis, repeated

    words = ["stormproof", "test", "--backend", "sim", "--system", plugins.typed("system", case.system)]
    words += ["--workload", plugins.typed("workload", case.workload)]
    words += ["--nemesis", ",".join(plugins.typed("nemesis", name) for name in case.nemesis.split(","))]
    if case.nodes is not None:
        words += ["--nodes", str(case.nodes)]
    words += ["--time-limit", f"{case.time_limit:g}", "--rate", f"{case.rate:g}", "--seed", str(seed)]
    words += ["--store", str(store)]
    for name, value in repeated(case.system, case.workload, parse_nemesis(case.nemesis), case.settings).items():
        words += ["--set", f"{name}={value}"]
    return shlex.join(words)


def keep_run(result: JudgedRun, store: Path) -> JudgedRun:
    """Move the run's folder, if it was kept, to the store, and return the result with its new path; raises OSError."""
    if result.run_dir is None:
        return result
    store.mkdir(parents=True, exist_ok=True)
    # Across file systems a move is a copy, and an interrupted copy must not look like a run.
    partial = store / f".{result.run_dir.name}"
    try:
        shutil.move(result.run_dir, partial)
        return replace(result, run_dir=partial.rename(store / result.run_dir.name))
    except OSError as error:  # On a full disk, say, the partial copy must not remain.
        shutil.rmtree(partial, ignore_errors=True)
        found = re.search(r"\[Errno (\d+)\]", str(error))  # A failed copy has a list of reasons, as texts.
        if error.strerror is None and found is not None:
            raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
        raise


def campaign(
    cases: Sequence[Seeded], seeds: Sequence[int], store: Path, *, jobs: int, collect: bool,
    report: Callable[[JudgedRun], None], guides: Sequence[Guiding] = (), visits: bool = False,
) -> None:
    """Run every case with every seed; ``report`` is called for each result, in order of completion.

    Stops at the first failure unless ``collect`` is set. With ``guides``, one for each system, the number of runs is
    the same, but the guides choose them. With ``visits``, results tell which states were reached under which faults.

    Raises:
        StormproofError: a worker process died, or the store cannot be written.
    """
    with worker_pool(jobs) as (workers, scratch):
        learners = {guide.system: guide for guide in guides}
        guided = ((*guide.next(), store, scratch, FAILED, True, visits) for _ in seeds for guide in guides)
        plain = ((case, seed, store, scratch, FAILED, False, visits) for seed in seeds for case in cases)
        for result in workers.each(run_seed, guided if guides else plain):
            if guides:
                learners[result.case.system].learn(result)
            try:
                kept = keep_run(result, store)
            except OSError as error:
                report(replace(result, run_dir=None))
                raise StormproofError(f"{store}: can't keep a run ({error.strerror}); repeat it with another --store"
                                      ) from error
            report(kept)
            if result.failed and not collect:
                break
