"""``stormproof nightly``, ``stormproof triage`` and ``stormproof trend``: the reports on nights for people."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from checkers.spark.masters import demand_master
from harness.analysis.coverage import note_log_events
from harness.cli.outcomes import ORDER, Outcome, Outcomes
from harness.cli.output import print_answer, teller
from harness.nightly.judgement import Judgement, judge
from harness.nightly.known import KnownFailure
from harness.nightly.notify import Notify
from harness.nightly.pages import known_failures, write_pages
from harness.nightly.plan_file import Cell, Plan, read_plan
from harness.nightly.record import Night, all_nights, begin, find_night, new_id, unfinished
from harness.nightly.run import NightBudget, NightRun
from harness.nightly.trend import lines_of as trend_lines
from harness.nightly.trend import to_json as trend_to_json
from harness.nightly.triage import KNOWN, NEW, OVERDUE, SEEN, FailureHistory, kinds_over, reads_of
from harness.reference.feature_coverage import CoverageTable
from harness.run.progress import duration
from reports.matrix_page import MATRIX
from reports.run_page import write_report
from reports.trend_page import TREND
from reports.triage_page import TRIAGE
from stormproof.contracts.check import INVALID, VALID
from stormproof.errors import EXIT_INVALID, StormproofError, UsageError
from stormproof.run_folder import REPORT, write_text
from stormproof.store import make_store
from stormproof.text import amount, escaped

COVERAGE_FILE = "surface.md"
"""The file in a night's folder that lists the used and judged features."""
_NO_NIGHTS = "the store {store} holds no nights; `stormproof nightly FILE` makes one"


def run_nightly(file: Path, store: Path, *, budget: float | None, tag: str, fresh: bool, jobs: int | None, confirm: int,
                known: Path | None, outcomes: Outcomes, notify: Notify, as_json: bool,
                master: str | None = None) -> int:
    """Run a night, or the rest of one, and return its exit status. ``master`` is a Spark master that does the work.

    Raises:
        UsageError: a file has invalid content. StormproofError: the store can't be written.
        KeyboardInterrupt: Ctrl-C; the same command continues the night.
    """
    if confirm < 0 or (jobs is not None and jobs < 1):
        raise UsageError("--confirm: at least 0; --jobs: at least 1")
    if master is not None:
        demand_master(master)
    knowns = known_failures(known, file)
    salt = new_id()
    plan = read_plan(file, salt)
    make_store(store)
    night = None if fresh else unfinished(store, plan.digest)
    tell = teller(as_json)
    if night is None:
        night = begin(store, plan, salt, tag)
        tell(f"night {night.name}: {amount(sum(len(cell.seeds) for cell in plan.cells), 'run')} of "
             f"{amount(len(plan.cells), 'combination')}")
    else:
        plan = read_plan(file, night.name)
        tell(f"night {night.name} goes on: {len(night.results)} of {sum(len(cell.seeds) for cell in plan.cells)} runs "
             "are done")
    for line in plan.left_out:
        tell(f"left out: {line}")
    left = None if budget is None else max(0.0, budget - night.used)
    earlier = [each for each in all_nights(store) if each.name < night.name]
    try:
        end = night.head["status"] = NightRun(night, plan, store, NightBudget(left), jobs, tell, master).whole(confirm)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            tell(f"interrupted; the same command goes on with the night {night.name}")
        for result in night.results:
            outcomes.add(_outcome(result, plan.cells, {}))
        raise
    judgement = judge(night, plan.cells, earlier, knowns)
    kinds = {kind.fingerprint: kind for kind in judgement.kinds}
    for result in night.results:
        outcomes.add(_outcome(result, plan.cells, kinds))
    for cell in judgement.unfailing:
        outcomes.add(Outcome(f"night.{cell.case}", f"{cell.name.partition(': ')[2]}, all seeds", INVALID,
                             "none of its runs failed, and one should have"))
    _write_reports(store, judgement.kinds, knowns)
    write_text(night.folder / COVERAGE_FILE, coverage_of(night).page())
    lines = outcomes.lines = lines_of(night, judgement, plan, store)
    print_answer(as_json, to_json(night, judgement), map(escaped, lines))
    if judgement.status == EXIT_INVALID:
        notify.tell({"verdict": INVALID, "sentence": lines[-1], "text": "\n".join(lines), **to_json(night, judgement)})
    night.end(end)
    return judgement.status


def run_triage(store: Path, name: str | None, known: Path | None, as_json: bool) -> int:
    """Print the kinds of failure of one night, or of all. Return 0: it makes no new judgement.

    Raises:
        UsageError: the night does not exist.
    """
    nights = list(all_nights(store))
    if not nights:
        raise UsageError(_NO_NIGHTS.format(store=store))
    chosen = [find_night(store, name)] if name else nights
    found = kinds_over(nights, {night.name for night in chosen}, known_failures(known, None))
    lines = [escaped(line) for kind in found for line in _lines(kind, store)]
    print_answer(as_json, {"nights": [night.name for night in chosen], "failures": [_kind(kind) for kind in found]},
                 lines or [f"no failures in {amount(len(chosen), 'night')}"])
    return 0


def run_trend(store: Path, most: int, known: Path | None, as_json: bool) -> int:
    """Write the pages over the store, and print the changes. Return 0: it judges nothing.

    Raises:
        UsageError: the store holds no nights. HistoryError: the pages can't be written.
    """
    if most < 1:
        raise UsageError("--nights: at least 1")
    if next(all_nights(store), None) is None:
        raise UsageError(_NO_NIGHTS.format(store=store))
    found = write_pages(store, known_failures(known, None), most)
    print_answer(as_json, {**trend_to_json(found), "page": str(store / TREND)},
                 [*map(escaped, trend_lines(found)), *(str(store / page) for page in (TREND, MATRIX, TRIAGE))])
    return 0


def _outcome(result: Any, cells: Iterable[Cell], kinds: Mapping[str, FailureHistory]) -> Outcome:
    """Return the outcome of a result for CI systems. A twin that fails as expected is a success. A failure that is not
    new is skipped."""
    twin = any(cell.name == result.cell and cell.expected == INVALID for cell in cells)
    case, _, rest = result.cell.partition(": ")
    told = {"command": result.command, "run": result.run, "fingerprint": result.fingerprint}
    verdict, sentence = result.verdict, result.sentence
    if twin and verdict == INVALID:
        verdict, sentence = VALID, f"as expected: {sentence}"
    kind = kinds.get(result.fingerprint)
    excuse = kind.status if kind is not None and verdict != VALID and kind.status in (SEEN, KNOWN) else ""
    return Outcome(f"night.{case}", f"{rest}, seed {result.seed}", verdict, sentence, result.seconds,
                   {name: value for name, value in told.items() if value}, excuse)


def _write_reports(store: Path, kinds: Sequence[FailureHistory], knowns: Mapping[str, KnownFailure]) -> None:
    """Write the report of each kind's example, and the pages over the store."""
    for kind in kinds:
        run_dir = store / kind.example.run
        if kind.example.run and run_dir.is_dir() and not (run_dir / REPORT).exists():
            try:
                note_log_events(run_dir)
                write_report(run_dir)
            except StormproofError as error:
                print(f"stormproof: no report of {run_dir.name}: {error}", file=sys.stderr)
    try:
        write_pages(store, knowns)
    except StormproofError as error:  # the findings must be reported all the same
        print(f"stormproof: {error}", file=sys.stderr)


def coverage_of(night: Night) -> CoverageTable:
    """Return the features of its systems that a night has used and judged."""
    cells = night.head.get("cells") or ()
    table = CoverageTable.of(*({str(cell.get(name)) for cell in cells} for name in ("system", "workload")))
    for result in night.results:
        table.add(result.surface)
    return table


def lines_of(night: Night, judgement: Judgement, plan: Plan, store: Path) -> list[str]:
    """Return the lines of the report for people in the morning."""
    counts = Counter(result.verdict for result in night.results)
    total = sum(len(cell.seeds) for cell in plan.cells)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ORDER if counts[verdict]) or "nothing was run"
    lines = [f"night {night.name}: {len(night.results)} of {amount(total, 'run')} in {duration(night.used)}: {told}"]
    for kind in judgement.kinds:
        lines += _lines(kind, store)
    lines += [f"DID NOT FAIL, and should: {cell.name}" for cell in judgement.unfailing]
    lines += [f"not run, no time was left: {cell.name}" for cell in judgement.missed]
    reasons = Counter(result.sentence for result in judgement.unknown)
    lines += [f"unknown, {amount(count, 'run')}: {sentence}" for sentence, count in reasons.most_common(5)]
    lines += [f"{line}; {night.folder / COVERAGE_FILE}"] if (line := coverage_of(night).line()) else []
    new = sum(kind.status == NEW for kind in judgement.kinds)
    overdue = sum(kind.status == OVERDUE for kind in judgement.kinds)
    verdict = [amount(new, "new kind of failure", "new kinds of failure")] if new else []
    verdict += [f"{overdue} known and overdue"] if overdue else []
    verdict += [f"{amount(len(judgement.unfailing), 'twin')} that did not fail"] if judgement.unfailing else []
    return [*lines, ", ".join(verdict) or "nothing new"]


def _lines(kind: FailureHistory, store: Path) -> list[str]:
    again = f"; again {kind.confirmed[0]} of {kind.confirmed[1]}" if kind.confirmed else ""
    known = kind.known
    why = f" ({', '.join(filter(None, (known.issue, known.reason, f'until {known.until}' if known.until else '')))})" \
        if known else ""
    lines = [f"{kind.status.upper()} {kind.fingerprint}: {kind.words}{why}",
             f"  {amount(len(kind.runs), 'run')}, first in {kind.first}, last in {kind.last}{again}",
             f"  {kind.example.sentence}"]
    if kind.example.run:
        lines.append(f"  report  {shlex.quote(str(store / kind.example.run / REPORT))}")
    lines += [f"  again   {kind.example.command}"] if kind.example.command else []
    return [*lines, f"  reads   {reads}"] if (reads := reads_of(store, kind)) else lines


def _kind(kind: FailureHistory) -> dict[str, Any]:
    known: Mapping[str, Any] = {} if kind.known is None else {
        "issue": kind.known.issue, "until": str(kind.known.until or ""), "reason": kind.known.reason}
    return {"fingerprint": kind.fingerprint, "words": kind.words, "status": kind.status, "runs": len(kind.runs),
            "first": kind.first, "last": kind.last, "example": kind.example.run, "sentence": kind.example.sentence,
            "command": kind.example.command, "confirmed": kind.confirmed, "known": known}  # fmt: skip


def to_json(night: Night, judgement: Judgement) -> dict[str, Any]:
    """Return the object that ``nightly --json`` prints."""
    counts = Counter(result.verdict for result in night.results)
    return {"night": night.name, "status": judgement.status, "end": night.head.get("status"), "runs": dict(counts),
            "failures": [_kind(kind) for kind in judgement.kinds],
            "unfailing": [cell.name for cell in judgement.unfailing],
            "missed": [cell.name for cell in judgement.missed], "left_out": night.head.get("left_out", []),
            "surface": coverage_of(night).to_json()}  # fmt: skip
