"""Linearizability of metadata: each subscription, topic or link exists or not, once, and every client sees the same."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import porcupine
from porcupine import CheckResult, Operation

from checkers.api import RunCheck
from checkers.history import CREATES, DELETES, READS
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.vocabulary import METADATA

MODEL = "cas-register"
ABSENT, PRESENT = None, 1
# Compiles the model if it has never been compiled, so that compilation does not count against the limits below.
porcupine.check_operations(porcupine.model_named(MODEL), [Operation(0, ("cas", None, 1), True, 0, 1)])

KEY_SECONDS = 2.0
KEY_MEMORY = 256 << 20
"""Limits of time and memory for porcupine on one object; an object that it cannot decide within them is unknown."""
RUN_SECONDS = 20.0
"""After this time the check begins no further object of a run."""


def check(run: Run) -> CheckOutcome:
    """Decide whether every object (key) behaved as if each operation on it had happened at one instant.

    A change that ended ``ok`` with 1 took effect: the object was in the other state before. With 0, the object was in
    the wanted state already. A change that ended ``info`` may have taken effect at any time after it was invoked; one
    that ended ``fail`` did not. Counts objects.
    """
    objects = operations_of(run)
    figures: dict[str, object] = {"model": MODEL, "objects": len(objects),
                                  "operations": sum(len(rows) for rows in objects.values())}  # fmt: skip
    if not objects:
        return CheckOutcome(UNKNOWN, 0, "nothing was changed or looked at", (), figures)
    model = porcupine.model_named(MODEL)
    deadline = time.monotonic() + RUN_SECONDS
    illegal: list[Anomaly] = []
    undecided = 0
    for key, found in objects.items():
        if time.monotonic() >= deadline:
            undecided += 1
            continue
        operations = [operation for operation, _ in found]
        verdict = porcupine.check_operations(model, operations, timeout=KEY_SECONDS, max_memory=KEY_MEMORY)
        if verdict is CheckResult.UNKNOWN:
            undecided += 1
        elif verdict is CheckResult.ILLEGAL:
            illegal.append(_anomaly(run, key, found))
    figures["undecided"] = undecided
    if illegal:
        first = illegal[0]
        reason = f"{run.name_of(first.key or 0)}: {first.detail['reason']}"
        text = f"{len(illegal):,} of {len(objects):,} objects not linearizable: {reason}"
        return CheckOutcome(INVALID, len(illegal), text, tuple(illegal[:MAX_EXAMPLES]), figures)
    if undecided:
        text = f"{undecided:,} of {len(objects):,} objects could not be decided within the limits of time and memory"
        return CheckOutcome(UNKNOWN, 0, text, (), figures)
    return CheckOutcome(VALID, 0, f"{len(objects):,} subscriptions, topics and links linearizable", (), figures)


def operations_of(run: Run) -> dict[int, list[tuple[Operation, int]]]:
    """Map each object to its operations that may have happened, each with the row of its invocation."""
    objects: dict[int, list[tuple[Operation, int]]] = {}
    for key, operation, row in _operations(run):
        objects.setdefault(key, []).append((operation, row))
    return dict(sorted(objects.items()))


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
    model = porcupine.model_named(MODEL)
    minimal = porcupine.minimal_history(model, [operation for operation, _ in found], timeout=KEY_SECONDS)
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
