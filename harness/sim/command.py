"""``stormproof simulate``: many seeds, told to a person or as JSON."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.errors import EXIT_ERROR, EXIT_INVALID, EXIT_UNKNOWN, EXIT_VALID, UsageError
from harness.settings import make_test
from harness.sim.campaign import BROKEN, Plan, SeedResult, Tally, campaign, scratch_place
from harness.sim.shrink import shrink

_LOG_INTERVAL = 5.0
_REPORTS = 20
SCENARIO = "scenario.toml"


def plans_of(designs: Sequence[str], workloads: Sequence[str], nemeses: Sequence[str], *, nodes: int | None,
             time_limit: float, rate: float, settings: Mapping[str, Any]) -> list[Plan]:
    """Every combination, each checked as a whole.

    Raises:
        UsageError: one makes no sense.
    """
    plans = [
        Plan(design, workload, nemesis, nodes, time_limit, rate, dict(settings))
        for design, workload, nemesis in itertools.product(designs, workloads, nemeses)
    ]
    for plan in plans:
        make_test(
            design=plan.design, workload=plan.workload, nemesis=plan.nemesis, backend="sim", nodes=plan.nodes,
            time_limit=plan.time_limit, rate=plan.rate, seed=0, settings=plan.settings,
        )
    return plans


def run_campaign(plans: Sequence[Plan], start: int, count: int, store: Path, *, jobs: int | None, collect: bool,
                 shrinking: bool, as_json: bool) -> int:
    """Run the seeds from ``start`` on; returns the exit status: 1 when a run was invalid, 3 when one broke, 2 when
    none failed but some verdict is unknown.

    Raises:
        UsageError: a number makes no sense. StormproofError: a worker process died.
    """
    if count < 1 or start < 0:
        raise UsageError("--seeds: at least 1; --start: at least 0")
    if jobs is not None and jobs < 1:
        raise UsageError("--jobs: at least 1")
    jobs = min(jobs or os.cpu_count() or 1, count * len(plans))
    view = _View(Console(stderr=as_json, highlight=False), count * len(plans), len(plans) > 1)
    tally = view.tally
    with view:
        campaign(plans, range(start, start + count), store, jobs=jobs, collect=collect, report=view.show)
    if shrinking and tally.failures and tally.failures[0].run_dir is not None:
        _shrink(view, tally.failures[0])
    kept = [result.run_dir for result in tally.failures if result.run_dir is not None]
    if kept:
        from reports.index_page import write_index
        from reports.run_page import write_report

        for run_dir in kept[:_REPORTS]:
            write_report(run_dir)
        write_index(store)
    if as_json:
        print(json.dumps(tally.to_json()))
    if any(result.verdict == BROKEN for result in tally.failures):
        return EXIT_ERROR
    return EXIT_INVALID if tally.failures else EXIT_UNKNOWN if tally.unknown else EXIT_VALID


def _shrink(view: _View, failure: SeedResult) -> None:
    """Shrink a failing run and lay the scenario into its folder."""
    assert failure.run_dir is not None
    with tempfile.TemporaryDirectory(prefix="stormproof-sim-", dir=scratch_place()) as scratch:
        shrunk = shrink(failure.plan, failure.seed, Path(scratch))
    path = failure.run_dir / SCENARIO
    path.write_text(shrunk.scenario(), encoding="utf-8")
    view.print(f"shrunk to {len(shrunk.faults)} fault(s) in {shrunk.runs} runs: {shrunk.result.sentence}")
    view.print(f"  scenario    {path}")
    view.print(f"  try it with stormproof test --backend sim --config {path}")


class _View:
    """Progress: a live line on a terminal, a line now and then in a log; failures as they come."""

    def __init__(self, console: Console, total: int, several: bool) -> None:
        self.tally = Tally()
        self._console = console
        self._several = several
        self._total = total
        self._status = console.status("simulating") if console.is_terminal else None
        self._last = time.monotonic()

    def __enter__(self) -> _View:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._status is not None:
            self._status.stop()
        self.print(self.tally.line())

    def show(self, result: SeedResult) -> None:
        """One more result."""
        self.tally.add(result)
        if result.verdict != "valid":
            plan = f" {result.plan.label()}" if self._several else ""
            self.print(f"seed {result.seed}{plan}: {result.verdict.upper()}: {result.sentence}")
        if result.failed:
            if result.run_dir is not None:
                self.print(f"  kept in     {result.run_dir}")
            self.print(f"  repeat with {result.command}")
        line = f"{self.tally.line()} (of {self._total})"
        if self._status is not None:
            self._status.update(line)
        elif time.monotonic() - self._last > _LOG_INTERVAL:
            self._last = time.monotonic()
            self.print(line)

    def print(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, markup=False, soft_wrap=True)
