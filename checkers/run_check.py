"""All checks on one run: a single code path, used both inside Spark's tasks and directly."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from checkers.api import RunCheck
from checkers.catalog import CHECKS, GATES
from checkers.run import SECOND, EndedEarly, Run, load_run
from checkers.sentence import Circumstances, circumstances, sentence
from checkers.verdict import CheckVerdict, Verdict
from stormproof import vocabulary
from stormproof.contracts.check import UNKNOWN, Check, CheckOutcome, RecordedRun
from stormproof.errors import HistoryError
from stormproof.text import escaped

_SENSELESS = 1 << 63
"""A limit in seconds or bytes that no run reaches, though a damaged file may contain such a number."""
THREADED_ROWS = 1_000_000
"""The number of rows from which checks run in several threads."""


def check_run(run_dir: Path) -> Verdict:
    """Return the verdict on one run. Never raises for defects of the run.

    A run that ended early is unknown. A run that is not whole, or needs more memory than there is, is not judged: the
    verdict's ``damage`` gives the reason.
    """
    try:
        return check_in_memory(run_dir)
    except MemoryError:
        reason = f"{run_dir}: there was not enough memory to judge it"
        return unjudged(run_dir.name, reason, reason)


def check_in_memory(run_dir: Path) -> Verdict:
    """Judge as ``check_run`` does, but raise MemoryError if there is not enough memory."""
    found = opened(run_dir)
    if not isinstance(found, Run):
        return found
    try:
        return judge(found)
    except MemoryError:
        raise
    except Exception as error:
        # Checks handle their own errors. An error here is an unexpected field in the record: it costs this run alone.
        reason = f"{run_dir}: judging the run failed: {_origin(error)}"
        return unjudged(run_dir.name, reason, reason)


def opened(run_dir: Path) -> Run | Verdict:
    """Return the run if it can be judged; else the verdict with the reason why it cannot."""
    try:
        return load_run(run_dir)
    except EndedEarly as error:
        return unjudged(run_dir.name, str(error), None)
    except HistoryError as error:
        return unjudged(run_dir.name, str(error), str(error))
    except MemoryError:
        raise
    except Exception as error:
        # A damaged file can break the reader in unforeseen ways; the run must not vanish from the verdicts.
        reason = f"{run_dir}: reading the run failed: {_origin(error)}"
        return unjudged(run_dir.name, reason, reason)


def judge(run: Run) -> Verdict:
    """Return the verdict on a run that has been read."""
    results = tuple(_results(run))
    return verdict_of(run.name, results, counts_of(run), circumstances(run))


def verdict_of(
    name: str, results: tuple[CheckVerdict, ...], counts: Mapping[str, Any], under: Circumstances
) -> Verdict:
    """Build the verdict from the checks' results.

    ``counts`` are the result of ``counts_of``, ``under`` that of ``circumstances``.
    """
    return Verdict(name, escaped(sentence(under, results, load_check)), results, _figures(counts, results))


def unjudged(name: str, reason: str, damage: str | None) -> Verdict:
    """Return the verdict on a run that was not judged; ``damage`` is the reason if it cannot be judged."""
    reason = escaped(reason)
    outcome = CheckOutcome(UNKNOWN, 1, reason)
    return Verdict(name, f"Unknown: {reason}.", (CheckVerdict(GATES, True, outcome),),
                   damage=None if damage is None else escaped(damage))


def _results(run: Run) -> Iterator[CheckVerdict]:
    asked = list(checks_of(run))
    for (name, check, decides), outcome in zip(asked, attempts([check for _, check, _ in asked], run), strict=True):
        yield CheckVerdict(name, decides, outcome, check.anomaly)
    for name in run.info.get("guarantees") or ():
        if name not in CHECKS:
            yield CheckVerdict(name, True, CheckOutcome(UNKNOWN, 0, f"there is no check {name!r}"))


def checks_of(run: Run) -> Iterator[tuple[str, Check, bool]]:
    """Yield the checks that apply to a run, by name, and whether they decide its verdict."""
    judged_by = run.info.get("guarantees")
    for entry in CHECKS:
        check = load_check(entry.name)
        named = judged_by is not None and entry.name in judged_by
        if not (named or run.subjects.intersection(check.subjects)):
            continue
        yield entry.name, check, named or entry.name == GATES or (judged_by is None and check.decides)


class _Broken(Check):
    """Stands for a check that cannot be loaded; its subjects are unknown, so it applies to every run."""

    decides = True

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        self._error = error

    def judge(self, run: RecordedRun) -> CheckOutcome:
        """Fail as loading did."""
        raise self._error


def load_check(name: str) -> Check:
    """Return a check by its name, or one that fails with the error of its loading."""
    try:
        return CHECKS.load(name)
    except Exception as error:
        return _Broken(name, error)


def attempts(checks: Sequence[Check], run: Run) -> list[CheckOutcome]:
    """Run several checks, each as ``attempt`` does.

    Those of a large run are run in two threads, as kernels and NumPy do not hold Python's lock. Checks of plug-ins are
    not, because they need not be thread-safe.
    """
    if run.history.rows < THREADED_ROWS:
        return [attempt(check, run) for check in checks]
    waiting = deque(check for check in checks if type(check) is RunCheck)
    found: dict[int, CheckOutcome] = {}

    def ask(following: Callable[[], Check]) -> None:
        while True:
            try:
                check = following()
            except IndexError:
                return
            found[id(check)] = attempt(check, run)

    # From both ends: the first checks wait for the account of all messages, which the last ones do not need.
    with ThreadPoolExecutor(2) as threads:
        for asked in [threads.submit(ask, waiting.popleft), threads.submit(ask, waiting.pop)]:
            asked.result()
    return [found[id(check)] if id(check) in found else attempt(check, run) for check in checks]


def attempt(check: Check, run: Run) -> CheckOutcome:
    """Return the check's outcome; unknown if the check cannot judge this history, or fails on it."""
    try:
        return check.judge(run)
    except HistoryError as error:
        return CheckOutcome(UNKNOWN, 0, str(error))
    except MemoryError:
        raise
    except Exception as error:
        # Any other error is a defect of the check: it costs this run its verdict, and does not affect other runs.
        return CheckOutcome(UNKNOWN, 0, f"the check {check.name} failed: {_origin(error)}")


def _origin(error: Exception) -> str:
    """Return the error and its origin, on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error) or 'no reason given'}{where}".replace("\n", " ")


def counts_of(run: Run) -> dict[str, Any]:
    """Return the figures of a run that no check gives: operations by their outcome, faults."""
    h = run.history
    kinds = _kinds(run, run.tally)
    counted = {name: _kinds(run, [function for function in run.tally
                                  if vocabulary.function_named(function).counted == name])
               for name in ("enqueue", "dequeue")}  # fmt: skip
    return {
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
        "faults_confirmed": sum(fault.counts for fault in run.faults),
        **_costs(run.info.get("costs"), counted["enqueue"][vocabulary.OK], kinds[vocabulary.OK]),
    }


def _costs(noted: Any, confirmed: int, ok: int) -> dict[str, Any]:
    """Return the resources that all machines used under the load, in total and per confirmed message.

    A run without messages has them per operation that succeeded. These figures decide nothing.
    """
    nodes = noted.get("nodes") if isinstance(noted, Mapping) else None
    told = [each for each in nodes.values() if isinstance(each, Mapping)] if isinstance(nodes, Mapping) else []
    if not told:
        return {}
    used = {name: sum(value for each in told if isinstance(value := each.get(name), int | float)
                      and abs(value) < _SENSELESS) for name in ("cpu_s", "written", "sent")}  # fmt: skip
    found: dict[str, Any] = {"cpu_s": round(used["cpu_s"], 2), "written": used["written"], "sent": used["sent"],
                             "complete": not noted.get("troubles")}  # fmt: skip
    if count := confirmed or ok:
        found |= {"each": "confirmed message" if confirmed else "operation", "count": count,
                  "cpu_ms_each": round(1000 * used["cpu_s"] / count, 3), "written_each": round(used["written"] / count),
                  "sent_each": round(used["sent"] / count)}  # fmt: skip
    return {"costs": found}


def _figures(counts: Mapping[str, Any], results: Iterable[CheckVerdict]) -> dict[str, Any]:
    figures = dict(counts)
    for result in results:
        if result.check in CHECKS and load_check(result.check).headline_figures:
            figures |= result.outcome.figures
    unpromised = {r.check: r.outcome.figures["not_promised"] for r in results if "not_promised" in r.outcome.figures}
    return figures | ({"not_promised": unpromised} if unpromised else {})


def _kinds(run: Run, functions: Collection[str]) -> list[int]:
    """Return the number of clients' rows of each type, of some functions."""
    return [sum(int(run.tally[name][kind]) for name in functions) for kind in range(4)]
