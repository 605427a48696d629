"""Mutual exclusion: a lock has one holder at a time."""

from __future__ import annotations

import porcupine
from porcupine import CheckResult, Operation

from checkers.api import RunCheck
from checkers.locks import Hold, holds_of
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import LOCKS

MODEL = porcupine.model_named("lock")
SECONDS, MEMORY = 5.0, 256 << 20
"""Limits of time and memory for porcupine; a history that it cannot decide within them is unknown."""
# Compiles the model if it has never been compiled, so that compilation does not count against a check's limits.
porcupine.check_operations(MODEL, [Operation(0, ("acquire", 1), True, 0, 1)])


def check(run: Run) -> CheckOutcome:
    """Decide whether some order of instants explains the holds, by porcupine's ``lock`` model with one owner per hold.

    An acquire that ended ``ok`` got the lock. Unless the release that followed was confirmed, the lock may have become
    free at any time after the last moment at which its holder certainly had it (``checkers.locks``). An acquire with an
    unknown outcome constrains nothing. Counts pairs of holds that certainly overlap.
    """
    holds = holds_of(run)
    figures: dict[str, object] = {"model": MODEL.name, "holds": len(holds)}
    if not holds:
        return CheckOutcome(UNKNOWN, 0, "no client ever held the lock", (), figures)
    pairs = overlaps(holds)
    # If two holds suffice as proof, porcupine need not search all of them.
    shown = operations_of(list(pairs[0]) if pairs else holds)
    verdict = porcupine.check_operations(MODEL, shown, timeout=SECONDS, max_memory=MEMORY)
    if verdict is CheckResult.UNKNOWN:
        return CheckOutcome(UNKNOWN, 0, "it could not be decided within the limits of time and memory", (), figures)
    if verdict is CheckResult.OK:
        return CheckOutcome(VALID, 0, f"one holder at a time, in {amount(len(holds), 'hold')}", (), figures)
    examples = tuple(_anomaly(run, *pair) for pair in pairs[:MAX_EXAMPLES])
    text = f"{amount(len(pairs), 'time')} two held the lock at once"
    return CheckOutcome(INVALID, len(pairs), text, examples, figures)


def operations_of(holds: list[Hold]) -> list[Operation]:
    """Convert each hold to an acquire and a release by a separate owner."""
    operations = []
    for owner, hold in enumerate(holds):
        operations.append(Operation(hold.process, ("acquire", owner), True, hold.call, hold.ret))
        call, ret = hold.released or (hold.proof, None)
        operations.append(Operation(hold.process, ("release", owner), True, call, ret))
    return operations


def overlaps(holds: list[Hold]) -> list[tuple[Hold, Hold]]:
    """Return pairs of holds each of which was held while the other certainly was, the earlier acquired first.

    Only such pairs can make an order impossible: if the intervals can be separated pair by pair, they can all be
    separated together, in the order of their certain ends.
    """
    found: list[tuple[Hold, Hold]] = []
    open_holds: list[Hold] = []
    for hold in sorted(holds, key=lambda each: each.ret):
        open_holds = [other for other in open_holds if other.proof > hold.ret]
        found += [(other, hold) for other in open_holds]
        open_holds.append(hold)
    return found


def _anomaly(run: Run, first: Hold, second: Hold) -> Anomaly:
    h = run.history
    rows = run.rows_of(first.ret, first.proof, second.ret)
    detail = {
        "holders": [first.process, second.process],
        "nodes": [h.node.at(first.ret), h.node.at(second.ret)],
        "seconds": round(float(h.time[min(first.proof, second.proof)] - h.time[second.ret]) / 1e9, 6),
        "faults": run.faults_at(second.ret),
    }
    return Anomaly("two-holders", rows, 0, None, detail)


CHECK = RunCheck(
    name="mutual-exclusion",
    guarantee="a lock has one holder at a time",
    anomaly="two-holders",
    decides=True,
    subjects=(LOCKS,),
    one="time two held the lock at once",
    more="times two held the lock at once",
    speaks_when_held=True,
    function=check,
)
