"""All checks on one run: the one code path, called inside Spark's tasks and directly alike."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from checkers import kernels
from checkers.catalog import CHECKS, GATES, Check
from checkers.folder import read_info
from checkers.history import History
from checkers.run import SECOND, Run, load_run
from checkers.verdict import INVALID, UNKNOWN, VALID, CheckResult, Outcome, Verdict, worst
from harness.errors import HistoryError

_WORDS = {
    "lost": "{n} confirmed {messages} never delivered",
    "duplicated": "{n} {messages} delivered again after the receipt of the ACK",
    "phantom": "{n} {messages} delivered without having been sent",
    "topic-lost": "{n} confirmed {messages} never delivered to a durable subscription",
    "topic-duplicated": "{n} {messages} delivered to a subscription again after the receipt of the ACK",
    "topic-phantom": "{n} phantom {messages} delivered to a subscription",
    "topic-order": "{n} {messages} delivered to a subscription after a later one of the same producer",
    "agreement": "{n} {messages} seen in different orders by different subscriptions",
    "gaps": "{n} {messages} missing in what a connected transient subscription got",
    "atomic": "{n} {transactions} done in part, or against what was confirmed",
    "exactly-once": "{n} {messages} not moved exactly once",
    "prepared": "{n} prepared {transactions} refused their end",
    "tx-phantom": "{n} phantom {messages} delivered that no transaction had sent",
    "event-lost": "{n} confirmed {messages} never delivered to a subscriber",
    "event-order": "{n} {messages} delivered to a subscriber after a later one of a publisher that had not moved",
    "metadata": "{n} {objects} not linearizable",
    "elections": "{n} {rules} broken",
    "depth": "{n} {messages} left after everything was drained",
}
"""What the sentence says of the anomalies that it names first."""
_HELD = ("lost", "topic-lost", "agreement", "atomic", "exactly-once")
"""Checks whose summaries are the sentence on a valid run."""


def check_run(run_dir: Path) -> Verdict:
    """The verdict on one run. Never raises for what is wrong with the run: that makes it unknown, with the reason."""
    try:
        info = read_info(run_dir)
        run = load_run(run_dir, info)
    except HistoryError as error:
        return _unreadable(run_dir.name, str(error))
    except Exception as error:
        # A damaged file can break the reader in ways nobody listed; the run must not vanish from the verdicts.
        return _unreadable(run_dir.name, f"reading the run failed: {_origin(error)}")
    return judge(run)


def judge(run: Run) -> Verdict:
    """The verdict on a run that has been read."""
    results = tuple(_results(run))
    figures = _figures(run, results)
    return Verdict(run.name, _sentence(run, results), results, figures)


def _unreadable(name: str, reason: str) -> Verdict:
    outcome = Outcome(UNKNOWN, 1, reason)
    return Verdict(name, f"Unknown: {reason}.", (CheckResult(GATES, True, outcome),))


def _results(run: Run) -> Iterator[CheckResult]:
    promises = run.info.get("promises")
    for check in CHECKS:
        promised = promises is not None and check.name in promises
        if not (promised or run.subjects.intersection(check.subjects)):
            continue
        decides = promised or check.name == GATES or (promises is None and check.decides)
        yield CheckResult(check.name, decides, _attempt(check, run), check.anomaly)
    for name in promises or ():
        if all(name != check.name for check in CHECKS):
            yield CheckResult(name, True, Outcome(UNKNOWN, 0, f"there is no check {name!r}"))


def _attempt(check: Check, run: Run) -> Outcome:
    """The check's outcome; a check that can't judge this history, or breaks on it, leaves it unknown."""
    try:
        return check.load()(run)
    except HistoryError as error:
        return Outcome(UNKNOWN, 0, str(error))
    except Exception as error:
        # Anything else is a defect of the check: it costs this run its verdict, and no other run anything.
        return Outcome(UNKNOWN, 0, f"the check {check.name} failed: {_origin(error)}")


def _origin(error: Exception) -> str:
    """The error and where it came from, on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error) or 'no reason given'}{where}".replace("\n", " ")


def _figures(run: Run, results: Iterable[CheckResult]) -> dict[str, Any]:
    h = run.history
    clients = h.process >= 0
    kinds = np.bincount(h.kind[clients], minlength=4).tolist()
    by_role = {name: _kinds(h, roles) for name, roles in _COUNTED.items()}
    figures: dict[str, Any] = {
        "ops": kinds[kernels.INVOKE],
        "ok": kinds[kernels.OK],
        "fail": kinds[kernels.FAIL],
        "info": kinds[kernels.INFO],
        "open": kinds[kernels.INVOKE] - sum(kinds[1:]),
        "enqueue_ok": by_role["enqueue"][kernels.OK],
        "enqueue_info": by_role["enqueue"][kernels.INFO],
        "dequeue_ok": by_role["dequeue"][kernels.OK],
        "dequeue_info": by_role["dequeue"][kernels.INFO],
        "duration_s": round(float(h.time[-1]) / SECOND, 3) if h.rows else 0.0,
        "faults": len(run.faults),
        "faults_proven": sum(fault.proven for fault in run.faults),
    }
    for result in results:
        if result.check in ("latency", "availability", "recovery"):
            figures |= result.outcome.figures
    unpromised = {r.check: r.outcome.figures["not_promised"] for r in results if "not_promised" in r.outcome.figures}
    return figures | ({"not_promised": unpromised} if unpromised else {})


def _kinds(h: History, roles: Iterable[int]) -> list[int]:
    """How many rows of these roles are of each type."""
    counts = np.zeros(4, dtype=np.int64)
    for role in roles:
        counts += np.bincount(h.kind[h.role == role], minlength=4)
    kinds: list[int] = counts.tolist()
    return kinds


_COUNTED = {
    "enqueue": (kernels.ENQUEUE, kernels.PUBLISH, kernels.COMMIT),
    "dequeue": (kernels.DEQUEUE, kernels.DRAIN, kernels.RECEIVE),
}
"""The workloads' sends and takes, under the names that the queue workload has for them."""


def _sentence(run: Run, results: Iterable[CheckResult]) -> str:
    """One sentence for a person: what was found, or why nothing can be said, or what held."""
    deciding = [result for result in results if result.decides]
    verdict = worst(result.outcome.verdict for result in deciding)
    if verdict == INVALID:
        bad = [result for result in deciding if result.outcome.verdict == INVALID]
        clauses = [_clause(result) for name in _WORDS for result in bad if result.check == name]
        # The readings repeat what the loud checks say: they speak when nothing else does.
        clauses = clauses or [result.outcome.summary for result in bad]
        return f"Invalid: {_join(clauses)}{_under(run)}."
    if verdict == UNKNOWN:
        open_ones = [result for result in deciding if result.outcome.verdict == UNKNOWN]
        gates = [result for result in open_ones if result.check == GATES]
        return f"Unknown: {(gates or open_ones)[0].outcome.summary}."
    held = [r.outcome.summary for r in results if r.check in _HELD and r.outcome.verdict == VALID]
    return f"Valid: {_join(held) if held else 'every promise was kept'}{_under(run)}."


def _clause(result: CheckResult) -> str:
    count = result.outcome.count
    messages = "message was" if count == 1 else "messages were"
    transactions = "transaction was" if count == 1 else "transactions were"
    objects = "subscription, topic or link was" if count == 1 else "subscriptions, topics or links were"
    rules = "rule of the election was" if count == 1 else "rules of the election were"
    return _WORDS[result.check].format(
        n=f"{count:,}", messages=messages, transactions=transactions, objects=objects, rules=rules
    )


def _join(clauses: list[str]) -> str:
    return clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"


def _under(run: Run) -> str:
    """The faults that were proven, as a phrase."""
    counts: dict[str, int] = {}
    for fault in run.faults:
        if fault.proven:
            counts[fault.fault] = counts.get(fault.fault, 0) + 1
    if not counts:
        return ", with no fault in force"
    listed = ", ".join(f"{count} {name}" for name, count in counts.items())
    total = sum(counts.values())
    return f" under {total} proven fault{'s' if total != 1 else ''} ({listed})"
