"""Mutexes: a lock whose holder keeps it until it releases it, however long that takes."""

from __future__ import annotations

from functools import partial

import numpy as np
import porcupine
from porcupine import Operation

from checkers.api import RunCheck
from checkers.locks import ACQUIRE, RELEASE
from checkers.objects import ObjectKind, decide
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import UNKNOWN, VALID, CheckOutcome
from stormproof.history.schema import NO_VALUE
from stormproof.text import amount

MUTEX, REENTRANT = "mutex", "reentrant-mutex"
"""The names of two checks: of a lock that its holder cannot acquire again, and of one that it can."""
NEVER_HELD = "no client ever held the lock"
REFUSED = "refused"
"""Error of an acquire of a lock that was held, and of a release without the lock. A failure for any other reason proves
nothing.
"""


def check(run: Run, kind: ObjectKind) -> CheckOutcome:
    """Decide whether some order of instants explains the answers, by porcupine's ``lock`` or ``reentrant-lock`` model.

    An operation that ended ``ok`` happened; one that ended ``info`` or never ended may have, at any time after its
    invocation. The owner is the invocation's value, or the process if the value is missing. A lock has no time limit:
    its owner holds it until the owner releases it.
    """
    found = operations_of(run)
    held = sum(operation.input[0] == ACQUIRE and operation.ret is not None and operation.output
               for operation, _ in found)  # fmt: skip
    outcome = decide(run, kind, {0: found} if found else {}, NEVER_HELD)
    verdict, summary = outcome.verdict, outcome.summary
    if verdict == VALID:
        verdict = VALID if held else UNKNOWN
        summary = f"one holder at a time, in {amount(held, 'hold')}" if held else NEVER_HELD
    return CheckOutcome(verdict, outcome.count, summary, outcome.anomalies, {**outcome.figures, "holds": held})


def operations_of(run: Run) -> list[tuple[Operation, int]]:
    """Return the operations that happened, may have happened or were refused, each with the row of its invocation."""
    h = run.history
    found = []
    rows = np.flatnonzero((h.kind == vocabulary.INVOKE) & (h.process >= 0) & h.f.rows_with(ACQUIRE, RELEASE))
    for row in rows.tolist():
        end = int(h.partner[row])
        kind = vocabulary.INFO if end < 0 else int(h.kind[end])
        refused = kind == vocabulary.FAIL and h.error.at(end) == REFUSED
        if kind == vocabulary.FAIL and not refused:
            continue
        ret = None if kind == vocabulary.INFO else end
        found.append((Operation(int(h.process[row]), (h.f.at(row), _owner(run, row)), not refused, row, ret), row))
    return found


def _owner(run: Run, row: int) -> tuple[str, int]:
    value = int(run.history.value[row])
    return ("process", int(run.history.process[row])) if value == NO_VALUE else ("owner", value)


def _told(run: Run, call: int) -> str:
    """Describe one operation to the user."""
    h = run.history
    end, (what, number) = int(h.partner[call]), _owner(run, call)
    kind = vocabulary.INFO if end < 0 else int(h.kind[end])
    outcome = {vocabulary.OK: "", vocabulary.INFO: " (unknown)"}.get(kind, " (refused)")
    return f"{h.f.at(call)} by {what} {number}{outcome}"


def _check(name: str, model: str, guarantee: str) -> RunCheck:
    compiled = porcupine.model_named(model)
    # Compiles the model if it has never been compiled, so that compilation does not count against a check's limits.
    porcupine.check_operations(compiled, [Operation(0, (ACQUIRE, 1), True, 0, 1)])
    return RunCheck(
        name=name,
        guarantee=guarantee,
        anomaly=name,
        decides=True,
        subjects=(),
        one="lock had two holders, or was released by a client that did not hold it",
        more="locks had two holders, or were released by clients that did not hold them",
        speaks_when_held=True,
        function=partial(check, kind=ObjectKind(compiled, name, "lock", "locks", _told)),
    )


CHECK = _check(MUTEX, "lock", "a lock has one holder, from its acquire until its release")
REENTRANT_CHECK = _check(REENTRANT, "reentrant-lock", "a lock has one holder, which may acquire it again and must "
                         "release it as often")  # fmt: skip
