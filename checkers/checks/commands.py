"""Test commands of the user's that failed: each must end with status 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkers.api import RunCheck
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import COMMANDS

KINDS = ("first", "parallel_driver", "serial_driver", "singleton_driver", "anytime", "eventually", "finally")
"""Functions that execute a command."""
LOAD = ("parallel_driver", "serial_driver", "singleton_driver", "anytime")
ENDED_BY_TEST = "ended by the test"
"""The beginning of the error of a command that the test ended."""
NOT_STARTED = "not started"
"""The beginning of the error of a command that could not be started."""
OK, FAILED, HIT, ENDED, UNSTARTED, OPEN = "succeeded", "failed", "hit by a fault", ENDED_BY_TEST, NOT_STARTED, "unknown"


@dataclass(frozen=True)
class Ended:
    """The end of a command: the row of its completion, its result, and the ids of the faults that hit its machine."""

    row: int
    kind: str
    result: str
    faults: tuple[int, ...] = ()


def ended_commands(run: Run) -> Iterator[Ended]:
    """Yield the ends of all commands, in order."""
    h = run.history
    codes = [code for code, name in enumerate(h.f.names) if name in KINDS]
    rows = np.flatnonzero(np.isin(h.f.codes, codes) & (h.process >= 0) & (h.kind != vocabulary.INVOKE))
    for row in rows.tolist():
        yield _ended(run, row)


def _ended(run: Run, row: int) -> Ended:
    h = run.history
    kind, error = str(h.f.at(row)), str(h.error.at(row) or "")
    if h.kind[row] == vocabulary.OK:
        return Ended(row, kind, OK)
    if error.startswith(ENDED_BY_TEST):
        return Ended(row, kind, ENDED)
    if error.startswith(NOT_STARTED):
        return Ended(row, kind, UNSTARTED)
    if h.value[row] <= 0:  # its exit status is unknown
        return Ended(row, kind, OPEN)
    faults = hits(run, str(h.node.at(row)), int(h.time[h.partner[row]]), int(h.time[row]))
    return Ended(row, kind, HIT if faults else FAILED, faults)


def hits(run: Run, machine: str, begin: int, end: int) -> tuple[int, ...]:
    """Return the faults that had a machine as their target at any time between two times."""
    return tuple(fault.id for fault in run.faults if machine in fault.targets and fault.start <= end and (
        fault.end is None or begin <= max(fault.end, fault.healed or 0)))  # fmt: skip


def check(run: Run) -> CheckOutcome:
    """Find commands that ended by themselves with another exit status than 0.

    A command does not count if the test ended it, or if a fault of the test had its container as target while it ran.
    """
    found = list(ended_commands(run))
    failed = [each for each in found if each.result == FAILED]
    told = run.info.get("commands")
    noted: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    counts = Counter(each.result for each in found)
    figures = {"template": noted.get("template"), "began_by": noted.get("began_by"), "results": dict(counts),
               "by_command": _by_command(run, found)}  # fmt: skip
    others = ", ".join(f"{count:,} {result}" for result, count in counts.items() if result not in (OK, FAILED))
    text = f"{amount(counts[OK], 'test command')} succeeded{f' ({others})' if others else ''}"
    if not failed:
        return CheckOutcome(VALID, 0, text, (), figures)
    examples = tuple(_anomaly(run, each) for each in failed[:MAX_EXAMPLES])
    first = examples[0].detail
    summary = (f"{amount(len(failed), 'test command')} failed, the first was {first['command']} "
               f"(exit status {first['exit_status']}); {text}")
    return CheckOutcome(INVALID, len(failed), summary, examples, figures)


def _by_command(run: Run, found: list[Ended]) -> dict[str, dict[str, int]]:
    results: dict[str, Counter[str]] = {}
    for each in found:
        results.setdefault(run.name_of(int(run.history.key[each.row])), Counter())[each.result] += 1
    return {name: dict(counter) for name, counter in sorted(results.items())}


def _anomaly(run: Run, failed: Ended) -> Anomaly:
    h, row = run.history, failed.row
    detail = {"command": run.name_of(int(h.key[row])), "container": h.node.at(row), "exit_status": int(h.value[row]),
              "output": str(h.error.at(row) or "").partition(": ")[2], "faults": run.faults_at(row)}  # fmt: skip
    return Anomaly("command-failed", run.rows_of(row), None, None, detail)


def _clauses(outcome: CheckOutcome, others: Mapping[str, CheckOutcome]) -> list[str]:
    """Return the clause of the sentence: it names the first command."""
    first = outcome.anomalies[0].detail
    named = f"{first['command']} with exit status {first['exit_status']}"
    return [f"{amount(outcome.count, 'test command')} failed ({'the first: ' if outcome.count > 1 else ''}{named})"]


CHECK = RunCheck(
    name="commands",
    guarantee="every test command ends with exit status 0",
    anomaly="command-failed",
    decides=True,
    subjects=(COMMANDS,),
    speaks_when_held=True,
    happens=True,
    tell=_clauses,
    function=check,
)
