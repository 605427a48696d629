"""``stormproof simulate``: many seeds, reported to a person or as JSON."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.backends.catalog import BACKENDS
from harness.cli.outcomes import Outcomes, outcome_of
from harness.cli.output import print_json
from harness.reference.feature_coverage import with_all_features
from harness.run.cases import BROKEN, Case, JudgedRun
from harness.run.deployment import topology_of
from harness.run.progress import console
from harness.run.settings import SEEDS, parse_nemesis, with_aims, with_new_names
from harness.sim.campaign import Seeded, campaign
from harness.sim.draw import DrawnCase, Given
from harness.sim.guided import guides_of
from harness.sim.kinds import FailureKinds
from harness.sim.shrink import Shrunk, shrink
from harness.sim.tally import CampaignTally
from nemesis.families import split_aims, supported_families
from nemesis.schedule import schedule
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.backend import Backend
from stormproof.errors import EXIT_ERROR, EXIT_INVALID, EXIT_UNKNOWN, EXIT_VALID, StormproofError, UsageError
from stormproof.run_folder import SCENARIO, write_text
from stormproof.store import make_store
from stormproof.test import Test
from stormproof.text import amount
from workloads.catalog import WORKLOADS

_LOG_INTERVAL = 5.0
_REPORTS = 20


def cases_of(
    systems: Sequence[str], workloads: Sequence[str], nemeses: Sequence[str], *, nodes: int | None,
    time_limit: float, rate: float, settings: Mapping[str, Any],
) -> tuple[list[Case], list[str]]:  # fmt: skip
    """Return every combination that makes sense, each checked as a whole, and a line for each that does not.

    Raises:
        UsageError: no combination makes sense, or a name is given twice or is unknown.
    """
    for what, names in (("system", systems), ("workload", workloads), ("nemesis", nemeses)):
        given = [frozenset(name.split(",")) for name in names]
        twice = next((name for name, parts in zip(names, given, strict=True) if given.count(parts) > 1), None)
        if twice is not None:
            raise UsageError(f"--{what} {twice} is given twice")
    for name in systems:
        SYSTEMS.entry(name)
    for name in workloads:
        WORKLOADS.entry(name)
    for nemesis in nemeses:
        parse_nemesis(split_aims(nemesis)[0])
    cases, left_out = [], []
    for system, workload, nemesis in itertools.product(systems, workloads, nemeses):
        families, aimed = with_aims(nemesis, settings)
        try:
            aimed = with_new_names(system, workload, families, "sim", aimed)
            case = Case(system, workload, families, nodes, time_limit, rate, with_all_features(workload, aimed))
            case.families(0)
        except UsageError as error:
            if len(systems) * len(workloads) * len(nemeses) == 1:
                raise
            left_out.append(f"{system}, {workload}, {nemesis}: {error}")
        else:
            cases.append(case)
    if not cases:
        raise UsageError(f"none of the combinations can be: {left_out[0]}")
    return cases, left_out


def drawn_cases(systems: Sequence[str], given: Given) -> list[DrawnCase]:
    """Return the default campaign of each system, with the given parameters.

    Raises:
        UsageError: a name is given twice or is unknown, or no test can be drawn.
    """
    twice = next((name for name in systems if systems.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--system {twice} is given twice")
    cases = [DrawnCase(name, given) for name in systems]
    for case in cases:
        case.of(0)
    return cases


def run_campaign(cases: Sequence[Seeded], start: int, count: int, store: Path, *, jobs: int | None, master: str | None,
                 collect: bool, shrinking: bool, as_json: bool, left_out: Sequence[str] = (),
                 outcomes: Outcomes | None = None, guided: bool = False, visits: Path | None = None) -> int:
    """Run the seeds from ``start`` on, in ``jobs`` processes, or as tasks of Spark if there is a ``master``.

    ``left_out`` lists impossible combinations for the JSON object. With ``guided``, the results of earlier runs
    determine which runs follow. ``visits`` is the page to write of the states that were reached under each fault.

    Returns the exit status: 1 when a run was invalid, 3 when one broke, 2 when none failed but some verdict is unknown.

    Raises:
        UsageError: a number makes no sense. StormproofError: a worker process died.
    """
    for name, number, least in (("seeds", count, 1), ("start", start, 0), ("jobs", jobs, 1)):
        if number is not None and number < least:
            raise UsageError(f"--{name} {number}: at least {least}")
    if start + count > SEEDS:
        raise UsageError(f"--start {start}: the last seed must be below 2**63")
    guides = guides_of(cases, start) if guided else []
    made = make_store(store)
    jobs = min(jobs or os.cpu_count() or 1, count * len(cases))
    view = _View(console(as_json), cases, count, left_out, outcomes, FailureKinds() if collect else None)
    tally = view.tally
    interrupted = True
    try:
        with view:
            seeds = range(start, start + count)
            if master is None:
                campaign(cases, seeds, store, jobs=jobs, collect=collect, report=view.show, guides=guides,
                         visits=visits is not None)
            else:
                from harness.sim.spark import spark_campaign

                spark_campaign(
                    cases, seeds, store, master=master, collect=collect, report=view.show, progress=view.under_way
                )
        for guide in guides:
            view.print(guide.line())
        if visits is not None:
            write_text(visits, tally.visits_page())
        interrupted = False
        if shrinking and tally.failures:
            _shrink(view, tally.failures, jobs, store)
    except BaseException:
        if as_json:
            print_json(view.to_json(interrupted))
        with contextlib.suppress(StormproofError, OSError):  # The original error matters more.
            _report(view, store, indexed=master is not None and tally.runs > 0)
        raise
    finally:
        if made:
            with contextlib.suppress(OSError):  # Ignore a store that contains runs.
                store.rmdir()
    if as_json:
        print_json(view.to_json())
    _report(view, store, indexed=master is not None)
    if any(result.verdict == BROKEN for result in tally.failures):
        return EXIT_ERROR
    return EXIT_INVALID if tally.failures else EXIT_UNKNOWN if tally.unknown else EXIT_VALID


def _report(view: _View, store: Path, indexed: bool) -> None:
    """Write the reports of the first failed runs, and the index if there are any, or if ``indexed``."""
    kept = [result.run_dir for result in view.tally.failures if result.run_dir is not None]
    if not (kept or indexed) or not store.is_dir():
        return
    from harness.analysis.coverage import note_log_events
    from reports.index_page import write_index
    from reports.run_page import write_report

    for run_dir in kept[:_REPORTS]:
        note_log_events(run_dir)
        write_report(run_dir)
    if len(kept) > _REPORTS:
        others = f"`stormproof report RUN --store {store}` writes others"
        view.print(f"reports of the first {_REPORTS} are written; {others}")
    write_index(store)


def _shrink(view: _View, failures: Sequence[JudgedRun], jobs: int, store: Path) -> None:
    """Shrink the first run that broke a guarantee and write the scenario into its folder."""
    failure = next((result for result in failures if result.verdict == "invalid"), None)
    if failure is None or failure.run_dir is None:
        view.print("nothing to shrink: no run broke a promise, the harness failed")
        return
    so_far: Shrunk | None = None

    def smaller(result: JudgedRun, runs: int) -> None:
        nonlocal so_far
        so_far = Shrunk(result, runs)
        tell(so_far)

    trouble: KeyboardInterrupt | StormproofError | None = None
    with view.shrinking() as tell:
        try:
            so_far = shrink(failure.case, failure.seed, jobs=jobs, progress=smaller)
        except (KeyboardInterrupt, StormproofError) as error:
            trouble = error
    if trouble is not None:
        why = "interrupted" if isinstance(trouble, KeyboardInterrupt) else f"shrinking ended: {trouble}"
        rest = "what follows may not be the smallest" if so_far else f"the run as it was is in {failure.run_dir}"
        view.print(f"{why}; {rest}")
    if so_far is not None:
        _tell_shrunk(view, so_far, failure.run_dir, store)
    if isinstance(trouble, KeyboardInterrupt):
        raise trouble


def _tell_shrunk(view: _View, shrunk: Shrunk, run_dir: Path, store: Path) -> None:
    """Write the scenario into the run's folder and print how to try it."""
    path = run_dir / SCENARIO
    write_text(path, shrunk.scenario())
    faults, runs = amount(len(shrunk.faults), "fault"), amount(shrunk.runs, "run")
    view.print(f"shrunk to {faults} in {runs}: {shrunk.result.sentence}")
    view.print(f"  scenario    {path}")
    files = shlex.join(["--config", str(path), "--store", str(store)])
    view.print(f"  try it with stormproof test --backend sim {files}")
    view.print(_on_real_nodes(shrunk.result, files))


def _on_real_nodes(result: JudgedRun, files: str) -> str:
    """Return a line with the command that tries a scenario on the simplest backend of real nodes with all its faults.
    """
    test = result.case.test(result.seed)
    real = {name: backend for name in BACKENDS.names() if not (backend := BACKENDS.load(name)).in_process}
    plain, addressed = (
        [name for name in real if bool(real[name].also_type) is needs_address] for needs_address in (False, True)
    )
    for name in (*reversed(plain), *addressed):
        if _can_run(real[name], test):
            return f"  and, on real nodes, stormproof test --backend {name}{real[name].also_type} {files} --repeat 10"
    return "  no backend of real nodes has all of these faults"


def _can_run(backend: type[Backend], test: Test) -> bool:
    topology = topology_of(test)
    try:
        schedule(test, supported_families(backend, test, topology, SYSTEMS.load(test.system)))
    except UsageError:
        return False
    return not backend.cannot(test, topology)


class _View:
    """Progress: a live line on a terminal, an occasional line in a log.

    Failures are shown as they occur. In a campaign that collects many, only the first of each kind is shown, and a list
    of all kinds follows at the end.
    """

    def __init__(self, to: Console, cases: Sequence[Seeded], seeds: int, left_out: Sequence[str],
                 outcomes: Outcomes | None, kinds: FailureKinds | None) -> None:
        self._outcomes = outcomes
        self._kinds = kinds
        workloads = [name for case in cases for name in case.workloads()]
        self.tally = CampaignTally([case.system for case in cases], workloads, left_out)
        self._console = to
        self._several = len(cases) > 1
        self._total = seeds * len(cases)
        self._status = to.status("simulating") if to.is_terminal else None
        self._last = time.monotonic()

    def __enter__(self) -> _View:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
        if self.tally.runs:
            table = self.tally.coverage_table()
            if table.row_count:
                self._console.print(table)
            for line in (*self.tally.never(), self.tally.surface.line()):
                if line:
                    self.print(line)
        for line in self._kinds.lines() if self._kinds is not None else ():
            self.print(line)
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.print(f"interrupted after {self.tally.line(self._total)}")
        else:
            self.print(self.tally.line())

    @contextlib.contextmanager
    def shrinking(self) -> Iterator[Callable[[Shrunk], None]]:
        """Yield a function that shows each smaller run that fails."""
        if self._status is not None:
            self._status.update("shrinking")
            self._status.start()

        def tell(shrunk: Shrunk) -> None:
            case = shrunk.result.case
            line = f"shrinking: {amount(shrunk.runs, 'run')}; {amount(len(shrunk.faults), 'fault')}, "
            line += f"{case.time_limit:g} s, {case.rate:g} operations a second"
            if self._status is not None:
                self._status.update(line)
            else:
                self.print(line)

        try:
            yield tell
        finally:
            if self._status is not None:
                self._status.stop()

    def show(self, result: JudgedRun) -> None:
        """Add one result, and show it unless it is valid."""
        self.tally.add(result)
        if self._outcomes is not None:
            told = {"run": result.run_dir, "command": result.command}
            self._outcomes.add(outcome_of(result.case.test(result.seed), result.verdict, result.sentence,
                                          result.seconds, **told))
        if result.verdict != "valid" and (self._kinds is None or self._kinds.add(result)):
            case = f" {result.case.label()}" if self._several else ""
            self.print(f"seed {result.seed}{case}: {result.verdict.upper()}: {result.sentence}")
            if result.failed and result.run_dir is not None:
                self.print(f"  kept in     {result.run_dir}")
            self.print(f"  repeat with {result.command}")
        self._progress(self.tally.line(self._total) + self.tally.left(self._total))

    def to_json(self, interrupted: bool = False) -> dict[str, Any]:
        """Return the object for ``--json``."""
        kinds = {} if self._kinds is None else {"kinds": self._kinds.to_json()}
        return {**self.tally.to_json(interrupted), **kinds}

    def under_way(self, done: int, total: int) -> None:
        """Show the progress of a Spark job, whose results are not known yet."""
        self._progress(f"{self.tally.line(self._total)} ({done} of the next {total} done)")

    def _progress(self, line: str) -> None:
        if self._status is not None:
            self._status.update(line)
        elif time.monotonic() - self._last > _LOG_INTERVAL:
            self._last = time.monotonic()
            self.print(line)

    def print(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, markup=False, soft_wrap=True)
