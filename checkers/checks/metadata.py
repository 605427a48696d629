"""Linearizability of metadata: each subscription, topic or link exists or not, once, and every client sees the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import porcupine
from porcupine import Operation

from checkers.api import RunCheck
from checkers.history import CREATES, DELETES, READS
from checkers.objects import KEY_SECONDS, by_object, judge_each
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.vocabulary import METADATA

MODEL = porcupine.model_named("cas-register")
ABSENT, PRESENT = None, 1
# Compiles the model if it has never been compiled, so that compilation does not count against the limits below.
porcupine.check_operations(MODEL, [Operation(0, ("cas", None, 1), True, 0, 1)])


def check(run: Run) -> CheckOutcome:
    """Decide whether every object (key) behaved as if each operation on it had happened at one instant.

    A change that ended ``ok`` with 1 took effect: the object was in the other state before. With 0, the object was in
    the wanted state already. A change that ended ``info`` may have taken effect at any time after it was invoked; one
    that ended ``fail`` did not. Counts objects.
    """
    objects = operations_of(run)
    figures: dict[str, object] = {"model": MODEL.name, "objects": len(objects),
                                  "operations": sum(len(rows) for rows in objects.values())}  # fmt: skip
    if not objects:
        return CheckOutcome(UNKNOWN, 0, "no object was changed or read", (), figures)
    illegal, undecided = judge_each(MODEL, objects)
    figures["undecided"] = undecided
    if illegal:
        examples = tuple(_anomaly(run, key, objects[key]) for key in illegal[:MAX_EXAMPLES])
        reason = f"{run.name_of(illegal[0])}: {examples[0].detail['reason']}"
        text = f"{len(illegal):,} of {len(objects):,} objects not linearizable: {reason}"
        return CheckOutcome(INVALID, len(illegal), text, examples, figures)
    if undecided:
        text = f"{undecided:,} of {len(objects):,} objects could not be decided within the limits of time and memory"
        return CheckOutcome(UNKNOWN, 0, text, (), figures)
    return CheckOutcome(VALID, 0, f"{len(objects):,} subscriptions, topics and links linearizable", (), figures)


def operations_of(run: Run) -> dict[int, list[tuple[Operation, int]]]:
    """Map each object to its operations that may have happened, each with the row of its invocation."""
    return by_object(_operations(run))


def _operations(run: Run) -> Iterator[tuple[int, Operation, int]]:
    h = run.history
    ours = [code for code, name in enumerate(h.f.names) if name in (*CREATES, *DELETES, *READS)]
    rows = np.flatnonzero((h.kind == vocabulary.INVOKE) & np.isin(h.f.codes, ours) & (h.process >= 0))
    for row in rows.tolist():
        name = h.f.names[h.f.codes[row]]
        end = int(h.partner[row])
        kind = vocabulary.INFO if end < 0 else int(h.kind[end])
        if kind == vocabulary.FAIL or (kind != vocabulary.OK and name in READS):
            continue
        ret = end if kind == vocabulary.OK else None
        answer = int(h.value[end]) if ret is not None else 1
        if name in READS:
            operation = Operation(int(h.process[row]), ("read",), PRESENT if answer else ABSENT, row, ret)
        else:
            change = (ABSENT, PRESENT) if name in CREATES else (PRESENT, ABSENT)
            operation = Operation(int(h.process[row]), ("cas", *change), bool(answer), row, ret)
        yield int(h.key[row]), operation, row


def _anomaly(run: Run, key: int, found: list[tuple[Operation, int]]) -> Anomaly:
    """Report the smallest subset of the object's operations that is not linearizable, as rows of the history."""
    minimal = porcupine.minimal_history(MODEL, [operation for operation, _ in found], timeout=KEY_SECONDS)
    calls = sorted(found[place][1] for place in minimal.operations)
    rows = sorted({row for call in calls for row in (call, int(run.history.partner[call])) if row >= 0})
    told = "; ".join(_told(run, call) for call in calls[:6])
    return Anomaly("not-linearizable", run.rows_of(*rows[:20]), key, None, {"object": run.name_of(key), "reason": told})


def _told(run: Run, call: int) -> str:
    """Describe one operation to the user."""
    h = run.history
    end = int(h.partner[call])
    if end < 0 or h.kind[end] != vocabulary.OK:
        outcome = "unknown"
    elif h.f.at(call) in READS:
        outcome = "there" if h.value[end] else "not there"
    else:
        outcome = "done" if h.value[end] else "found so"
    return f"{h.f.at(call)} by process {h.process[call]}: {outcome}"


CHECK = RunCheck(
    name="metadata",
    guarantee="each subscription, topic and link is linearizable: it exists or not, once",
    anomaly="metadata",
    subjects=(METADATA,),
    one="subscription, topic or link was not linearizable",
    more="subscriptions, topics or links were not linearizable",
    function=check,
)
