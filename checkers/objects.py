"""Linearizability of objects, each checked separately, decided by porcupine: code shared by checks of several models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import porcupine
from porcupine import CheckResult, Operation
from porcupine.models import CompiledModel

from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.text import amount

KEY_SECONDS = 2.0
KEY_MEMORY = 256 << 20
"""Limits of time and memory for porcupine on one object; an object that it cannot decide within them is unknown."""
RUN_SECONDS = 20.0
"""After this time the check begins no further object of a run."""
PROOF_SECONDS = 3.0
"""Seconds in which the proofs of all examples together are made as small as possible."""
_MOST_ROWS, _MOST_TOLD = 20, 6

Operations = Sequence[tuple[Operation, int]]
"""An object's operations that may have happened, each with the row of its invocation."""


@dataclass(frozen=True)
class ObjectKind:
    """The parameters of a check: the ``model`` of each object and the names in anomalies.

    ``told`` describes an operation (the row of its invocation) to the user.
    """

    model: CompiledModel
    anomaly: str
    one: str
    several: str
    told: Callable[[Run, int], str]


def decide(run: Run, kind: ObjectKind, objects: Mapping[int, Operations], nothing: str) -> CheckOutcome:
    """Decide whether every object (by its key) behaved as if each operation on it had happened at one instant.

    Counts objects. Without any object the outcome is unknown, with the summary ``nothing``.
    """
    figures: dict[str, Any] = {"model": kind.model.name, "objects": len(objects),
                               "operations": sum(len(found) for found in objects.values())}  # fmt: skip
    if not objects:
        return CheckOutcome(UNKNOWN, 0, nothing, (), figures)
    illegal, undecided = judge_each(kind.model, objects)
    figures["undecided"] = undecided
    if illegal:
        shown = illegal[:MAX_EXAMPLES]
        examples = tuple(_anomaly(run, kind, key, objects[key], PROOF_SECONDS / len(shown)) for key in shown)
        first = f"{kind.one} {examples[0].key}: {examples[0].detail['reason']}"
        text = f"{len(illegal):,} of {amount(len(objects), kind.one, kind.several)} not linearizable: {first}"
        return CheckOutcome(INVALID, len(illegal), text, examples, figures)
    if undecided:
        some = f"{undecided:,} of {amount(len(objects), kind.one, kind.several)}"
        text = f"{some} could not be decided within the limits of time and memory"
        return CheckOutcome(UNKNOWN, 0, text, (), figures)
    return CheckOutcome(VALID, 0, f"{amount(len(objects), kind.one, kind.several)} linearizable", (), figures)


def judge_each(model: CompiledModel, objects: Mapping[int, Operations]) -> tuple[list[int], int]:
    """Return the keys of the objects that are not linearizable, and the number of those that could not be decided."""
    deadline = time.monotonic() + RUN_SECONDS
    illegal: list[int] = []
    undecided = 0
    for key, found in objects.items():
        verdict = CheckResult.UNKNOWN
        if time.monotonic() < deadline:
            operations = [operation for operation, _ in found]
            verdict = porcupine.check_operations(model, operations, timeout=KEY_SECONDS, max_memory=KEY_MEMORY)
        undecided += verdict is CheckResult.UNKNOWN
        if verdict is CheckResult.ILLEGAL:
            illegal.append(key)
    return illegal, undecided


def by_object(operations: Iterable[tuple[int, Operation, int]]) -> dict[int, list[tuple[Operation, int]]]:
    """Group operations, each given with its object's key and the row of its invocation, by object, in order of keys."""
    objects: dict[int, list[tuple[Operation, int]]] = {}
    for key, operation, row in operations:
        objects.setdefault(key, []).append((operation, row))
    return dict(sorted(objects.items()))


def _anomaly(run: Run, kind: ObjectKind, key: int, found: Operations, seconds: float) -> Anomaly:
    """Report the smallest subset of the object's operations that is not linearizable, as rows of the history.

    Of a large subset, report the end, where the violation appears.
    """
    minimal = porcupine.minimal_history(kind.model, [operation for operation, _ in found], timeout=seconds)
    calls = sorted({found[place][1] for place in minimal.operations} or {call for _, call in found})
    rows = sorted({row for call in calls for row in (call, int(run.history.partner[call])) if row >= 0})
    told = "; ".join(kind.told(run, call) for call in calls[-_MOST_TOLD:])
    return Anomaly(kind.anomaly, run.rows_of(*rows[-_MOST_ROWS:]), key, None, {"reason": told})
