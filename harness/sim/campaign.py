"""Many seeds: one simulated run each, spread over processes, checked at once.

Runs live in a scratch folder, in memory where the machine has one; those that failed are moved to the store, with
verdict and report, and told with the command that repeats them.
"""

from __future__ import annotations

import multiprocessing
import os
import shlex
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from harness.errors import StormproofError

BROKEN = "broken"
WHY = "simulated"

_MEMORY = Path("/dev/shm")
_AHEAD = 3
_RECYCLE = 2000
"""Runs after which a worker process is replaced, so that no leak can add up."""


@dataclass(frozen=True)
class Plan:
    """What to run, but for the seed: the arguments of ``make_test``."""

    design: str
    workload: str
    nemesis: str
    nodes: int | None
    time_limit: float
    rate: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    def label(self) -> str:
        """For a person."""
        return f"{self.design} {self.workload} {self.nemesis}"


@dataclass(frozen=True)
class SeedResult:
    """What became of one seed. ``verdict`` is ``broken`` when the harness failed; then ``sentence`` says how.

    ``broken`` names the checks that decided for invalid; ``simulated`` and ``seconds`` are the run's length in
    simulated and in real time, checks included. ``run_dir`` is where a run that was kept lies.
    """

    plan: Plan
    seed: int
    verdict: str
    sentence: str
    anomalies: Mapping[str, int]
    broken: tuple[str, ...]
    figures: Mapping[str, Any]
    history_sha256: str
    simulated: float
    seconds: float
    command: str
    run_dir: Path | None = None

    @property
    def failed(self) -> bool:
        """Whether a promise was broken, or the harness."""
        return self.verdict in ("invalid", BROKEN)


def run_seed(plan: Plan, seed: int, store: Path, scratch: Path) -> SeedResult:
    """Simulate and check one seed; a run that did not fail is deleted.

    Its folder is in ``scratch``, its command names ``store``.
    """
    from checkers.run_check import check_run
    from checkers.verdict import write_verdict
    from harness.describe import create_run
    from harness.settings import make_test
    from harness.sim.run import simulate
    from harness.store import read_run, update_run

    start = time.perf_counter()
    test = make_test(
        design=plan.design, workload=plan.workload, nemesis=plan.nemesis, backend="sim", nodes=plan.nodes,
        time_limit=plan.time_limit, rate=plan.rate, seed=seed, settings=plan.settings,
    )
    command = repeating(plan, seed, store)
    run_dir = create_run(test, WHY, store, scratch)
    kept: Path | None = None
    try:
        try:
            simulate(run_dir)
        except StormproofError as error:
            update_run(run_dir, failure=str(error), status="broken")
            seconds, kept = time.perf_counter() - start, run_dir
            return SeedResult(plan, seed, BROKEN, str(error), {}, (), {}, "", 0.0, seconds, command, kept)
        verdict = check_run(run_dir)
        info = read_run(run_dir)
        if verdict.verdict == "invalid":
            write_verdict(run_dir, verdict)
            kept = run_dir
        broken = tuple(c.check for c in verdict.checks if c.decides and c.outcome.verdict == "invalid")
        return SeedResult(
            plan, seed, verdict.verdict, verdict.sentence, verdict.anomalies, broken, dict(verdict.figures),
            info["history_sha256"], info["phases"][-1]["end"] / 1e9, time.perf_counter() - start, command, kept,
        )
    finally:
        if kept is None:
            shutil.rmtree(run_dir, ignore_errors=True)


def repeating(plan: Plan, seed: int, store: Path) -> str:
    """The command that repeats one seed's run and writes its report."""
    words = ["stormproof", "test", "--backend", "sim", "--design", plan.design, "--workload", plan.workload]
    words += ["--nemesis", plan.nemesis]
    if plan.nodes is not None:
        words += ["--nodes", str(plan.nodes)]
    words += ["--time-limit", f"{plan.time_limit:g}", "--rate", f"{plan.rate:g}", "--seed", str(seed)]
    words += ["--store", str(store)]
    for name, value in plan.settings.items():
        words += ["--set", f"{name}={value}"]
    return shlex.join(words)


def _kept(result: SeedResult, store: Path) -> SeedResult:
    """The result with its run's folder moved to the store."""
    if result.run_dir is None:
        return result
    store.mkdir(parents=True, exist_ok=True)
    return replace(result, run_dir=Path(shutil.move(result.run_dir, store / result.run_dir.name)))


def campaign(
    plans: Sequence[Plan], seeds: Sequence[int], store: Path, *, jobs: int, collect: bool,
    report: Callable[[SeedResult], None],
) -> None:
    """Run every plan with every seed; ``report`` is called for each result, in the order in which they come.

    Stops at the first failure unless ``collect`` is set.

    Raises:
        StormproofError: a worker process died.
    """
    with tempfile.TemporaryDirectory(prefix="stormproof-sim-", dir=scratch_place()) as scratch:
        tasks = ((plan, seed, store, Path(scratch)) for seed in seeds for plan in plans)
        results = _serial(tasks) if jobs == 1 else _parallel(tasks, jobs)
        for result in results:
            report(_kept(result, store))
            if result.failed and not collect:
                break


def _serial(tasks: Iterator[tuple[Any, ...]]) -> Iterator[SeedResult]:
    for task in tasks:
        yield run_seed(*task)


def _parallel(tasks: Iterator[tuple[Any, ...]], jobs: int) -> Iterator[SeedResult]:
    pool = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=calm, max_tasks_per_child=_RECYCLE
    )
    waiting: deque[Future[SeedResult]] = deque()
    try:
        while True:
            for task in islice(tasks, _AHEAD * jobs - len(waiting)):
                waiting.append(pool.submit(run_seed, *task))
            if not waiting:
                return
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in [future for future in waiting if future in done]:
                waiting.remove(future)
                yield future.result()
    except BrokenProcessPool as error:
        raise StormproofError(f"a worker process of the campaign died ({error}); try fewer --jobs") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def calm() -> None:
    """Workers leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def scratch_place() -> str | None:
    """Where scratch folders are made: in memory where that is possible."""
    return str(_MEMORY) if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None


@dataclass
class Tally:
    """What a campaign has found so far."""

    started: float = field(default_factory=time.monotonic)
    verdicts: dict[str, int] = field(default_factory=dict)
    simulated: float = 0.0
    failures: list[SeedResult] = field(default_factory=list)
    unknown: list[SeedResult] = field(default_factory=list)

    def add(self, result: SeedResult) -> None:
        """One more."""
        self.verdicts[result.verdict] = self.verdicts.get(result.verdict, 0) + 1
        self.simulated += result.simulated
        if result.failed:
            self.failures.append(result)
        elif result.verdict == "unknown":
            self.unknown.append(result)

    @property
    def runs(self) -> int:
        """Runs done."""
        return sum(self.verdicts.values())

    @property
    def seconds(self) -> float:
        """Real seconds so far."""
        return max(time.monotonic() - self.started, 1e-9)

    def line(self) -> str:
        """All in one line."""
        seconds = self.seconds
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self.verdicts.items()))
        return (f"{self.runs} runs: {counts or 'none yet'}; {seconds:.0f} s, {self.runs / seconds * 60:.0f} runs a "
                f"minute, {self.simulated / seconds:.0f} simulated seconds a second")

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "runs": self.runs,
            "verdicts": dict(sorted(self.verdicts.items())),
            "seconds": round(self.seconds, 3),
            "simulated_seconds": round(self.simulated, 3),
            "failures": [
                {"seed": r.seed, "design": r.plan.design, "workload": r.plan.workload, "nemesis": r.plan.nemesis,
                 "verdict": r.verdict, "sentence": r.sentence, "anomalies": dict(r.anomalies), "command": r.command,
                 "run": r.run_dir.name if r.run_dir else None}
                for r in self.failures
            ],
        }
