"""All checks on one run: the one code path, called inside Spark's tasks and directly alike."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from checkers.catalog import CHECKS, GATES
from checkers.run import SECOND, Run, load_run
from checkers.verdict import CheckVerdict, Verdict
from checkers.wholeness import demand_whole, ended_early
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, Check, CheckOutcome, RecordedRun, worst
from stormproof.errors import HistoryError
from stormproof.history.columns import HistoryColumns
from stormproof.run_folder import read_run, written_by


def check_run(run_dir: Path) -> Verdict:
    """The verdict on one run. Never raises for what is wrong with the run.

    One that merely ended early is unknown. One that is not whole is not judged: the verdict's ``damage`` says why.
    """
    try:
        info = read_run(run_dir)
        if (reason := ended_early(info)) is not None:
            return _unjudged(run_dir.name, reason, None)
        demand_whole(run_dir, info, written_by(run_dir))
        run = load_run(run_dir, info)
    except HistoryError as error:
        return _unjudged(run_dir.name, str(error), str(error))
    except Exception as error:
        # A damaged file can break the reader in ways nobody listed; the run must not vanish from the verdicts.
        reason = f"{run_dir}: reading the run failed: {_origin(error)}"
        return _unjudged(run_dir.name, reason, reason)
    return judge(run)


def judge(run: Run) -> Verdict:
    """The verdict on a run that has been read."""
    results = tuple(_results(run))
    figures = _figures(run, results)
    return Verdict(run.name, _sentence(run, results), results, figures)


def _unjudged(name: str, reason: str, damage: str | None) -> Verdict:
    outcome = CheckOutcome(UNKNOWN, 1, reason)
    return Verdict(name, f"Unknown: {reason}.", (CheckVerdict(GATES, True, outcome),), damage=damage)


def _results(run: Run) -> Iterator[CheckVerdict]:
    judged_by = run.info.get("guarantees")
    for entry in CHECKS:
        check = _load(entry.name)
        named = judged_by is not None and entry.name in judged_by
        if not (named or run.subjects.intersection(check.subjects)):
            continue
        decides = named or entry.name == GATES or (judged_by is None and check.decides)
        yield CheckVerdict(entry.name, decides, _attempt(check, run), check.anomaly)
    for name in judged_by or ():
        if name not in CHECKS:
            yield CheckVerdict(name, True, CheckOutcome(UNKNOWN, 0, f"there is no check {name!r}"))


class _Broken(Check):
    """Stands for a check that can't be loaded; what it is about is not known, so it is asked of every run."""

    decides = True

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        self._error = error

    def judge(self, run: RecordedRun) -> CheckOutcome:
        """Fails as loading did."""
        raise self._error


def _load(name: str) -> Check:
    try:
        return CHECKS.load(name)
    except Exception as error:
        return _Broken(name, error)


def _attempt(check: Check, run: Run) -> CheckOutcome:
    """The check's outcome; a check that can't judge this history, or breaks on it, leaves it unknown."""
    try:
        return check.judge(run)
    except HistoryError as error:
        return CheckOutcome(UNKNOWN, 0, str(error))
    except Exception as error:
        # Anything else is a defect of the check: it costs this run its verdict, and no other run anything.
        return CheckOutcome(UNKNOWN, 0, f"the check {check.name} failed: {_origin(error)}")


def _origin(error: Exception) -> str:
    """The error and where it came from, on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error) or 'no reason given'}{where}".replace("\n", " ")


def _figures(run: Run, results: Iterable[CheckVerdict]) -> dict[str, Any]:
    h = run.history
    clients = h.process >= 0
    kinds = np.bincount(h.kind[clients], minlength=4).tolist()
    counted = {name: _kinds(h, name) for name in ("enqueue", "dequeue")}
    figures: dict[str, Any] = {
        "ops": kinds[vocabulary.INVOKE],
        "ok": kinds[vocabulary.OK],
        "fail": kinds[vocabulary.FAIL],
        "info": kinds[vocabulary.INFO],
        "open": kinds[vocabulary.INVOKE] - sum(kinds[1:]),
        "enqueue_ok": counted["enqueue"][vocabulary.OK],
        "enqueue_info": counted["enqueue"][vocabulary.INFO],
        "dequeue_ok": counted["dequeue"][vocabulary.OK],
        "dequeue_info": counted["dequeue"][vocabulary.INFO],
        "duration_s": round(float(h.time[-1]) / SECOND, 3) if h.rows else 0.0,
        "faults": len(run.faults),
        "faults_confirmed": sum(fault.confirmed for fault in run.faults),
    }
    for result in results:
        if result.check in CHECKS and _load(result.check).headline_figures:
            figures |= result.outcome.figures
    unpromised = {r.check: r.outcome.figures["not_promised"] for r in results if "not_promised" in r.outcome.figures}
    return figures | ({"not_promised": unpromised} if unpromised else {})


def _kinds(h: HistoryColumns, name: str) -> list[int]:
    """How many rows are of each type, of the functions that figures count under a name."""
    codes = [code for code, function in enumerate(h.f.names) if vocabulary.function_named(function).counted == name]
    mine = np.isin(h.f.codes, codes) & (h.process >= 0)
    counts: list[int] = np.bincount(h.kind[mine], minlength=4).tolist()
    return counts


def _sentence(run: Run, results: Iterable[CheckVerdict]) -> str:
    """One sentence for a person: what was found, or why nothing can be said, or what held."""
    deciding = [result for result in results if result.decides]
    verdict = worst(result.outcome.verdict for result in deciding)
    if verdict == INVALID:
        bad = [result for result in deciding if result.outcome.verdict == INVALID]
        clauses = [text for result in bad if (text := _load(result.check).clause(result.outcome.count))]
        # The readings repeat what the loud checks say: they speak when nothing else does.
        clauses = clauses or [result.outcome.summary for result in bad]
        return f"Invalid: {_join(clauses)}{_under(run)}."
    if verdict == UNKNOWN:
        open_ones = [result for result in deciding if result.outcome.verdict == UNKNOWN]
        gates = [result for result in open_ones if result.check == GATES]
        return f"Unknown: {(gates or open_ones)[0].outcome.summary}."
    held = [result.outcome.summary for result in results
            if result.outcome.verdict == VALID and _load(result.check).speaks_when_held]  # fmt: skip
    return f"Valid: {_join(held) if held else 'every guarantee was kept'}{_under(run)}."


def _join(clauses: list[str]) -> str:
    return clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"


def _under(run: Run) -> str:
    """The faults that were confirmed, and what was done after them, as a phrase."""
    counts: dict[str, int] = {}
    for fault in run.faults:
        if fault.confirmed:
            counts[fault.fault] = counts.get(fault.fault, 0) + 1
    repaired = ", after repair" if run.repairs else ""
    if run.standstills:
        repaired += f", though the harness stood still for {sum(each.seconds for each in run.standstills):.1f} s"
    if not counts:
        return f", with no fault in force{repaired}"
    listed = ", ".join(f"{count} {name}" for name, count in counts.items())
    total = sum(counts.values())
    return f" under {total} confirmed fault{'s' if total != 1 else ''} ({listed}){repaired}"
