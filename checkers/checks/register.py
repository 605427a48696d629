"""Linearizability of registers: read, write and compare-and-set of single values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import porcupine
from porcupine import Operation

from checkers.api import RunCheck
from checkers.objects import ObjectKind, by_object, decide
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import CheckOutcome
from stormproof.history.schema import PAIR_SHIFT, decode_pair
from stormproof.vocabulary import REGISTERS

NOTHING = 0
"""The value of a register that was never written."""
NO_MATCH = "not what was expected"
"""Error of a compare-and-set that found another value."""
MODEL = porcupine.model_named("cas-register", NOTHING)
# Compiles the model if it has never been compiled, so that compilation does not count against a check's limits.
porcupine.check_operations(MODEL, [Operation(0, ("cas", NOTHING, 1), True, 0, 1)])


def check(run: Run) -> CheckOutcome:
    """Decide whether every register (key) behaved as if each operation on it had happened at one instant.

    A write that ended ``ok`` took effect; one that ended ``info`` may have, at any time after it was invoked; one that
    ended ``fail`` did not. The same holds for compare-and-set, except that one which failed on a different value proves
    that the register had a different value. A compare-and-set of unknown outcome that does not name the expected value
    may have replaced any value.
    """
    return decide(run, KIND, operations_of(run), "no register was written or read")


EXPECTED_FIRST = "expected the first value"
"""Error of a compare-and-set that may have happened and expected the register's initial value.

Its pair looks the same as a new value alone, which is what clients record if they learn the expected value only by
carrying out the operation.
"""


def operations_of(run: Run) -> dict[int, list[tuple[Operation, int]]]:
    """Map each register to its operations that may have happened, each with the row of its invocation."""
    return by_object(_operations(run))


def _operations(run: Run) -> Iterator[tuple[int, Operation, int]]:
    h = run.history
    rows = np.flatnonzero((h.kind == vocabulary.INVOKE) & h.f.rows_with("read", "write", "cas") & (h.process >= 0))
    for row in rows.tolist():
        name, end = h.f.at(row), int(h.partner[row])
        kind = vocabulary.INFO if end < 0 else int(h.kind[end])
        value = int(h.value[row if end < 0 else end])
        done = kind == vocabulary.OK
        made: tuple[tuple[object, ...], object] | None = None
        if name == "read":
            made = (("read",), value) if done else None
        elif name == "write":
            made = (("write", int(h.value[row])), None) if kind != vocabulary.FAIL else None
        elif done or (kind == vocabulary.FAIL and h.error.at(end) == NO_MATCH):
            made = (("cas", *decode_pair(value)), done)
        elif kind == vocabulary.INFO:
            known = value >> PAIR_SHIFT or h.error.at(row if end < 0 else end) == EXPECTED_FIRST
            made = (("cas", *decode_pair(value)) if known else ("write", value), True)
        if made is not None:
            ret = None if kind == vocabulary.INFO else end
            yield int(h.key[row]), Operation(int(h.process[row]), *made, row, ret), row


def _told(run: Run, call: int) -> str:
    """Describe one operation to the user."""
    h = run.history
    name, end = h.f.at(call), int(h.partner[call])
    kind = vocabulary.INFO if end < 0 else int(h.kind[end])
    value = int(h.value[call if end < 0 else end])
    outcome = {vocabulary.OK: "", vocabulary.INFO: " (unknown)"}.get(kind, " (found another)")
    if name == "read":
        what = f"read {value}"
    elif name == "write":
        what = f"write {int(h.value[call])}"
    else:
        old, new = decode_pair(value)
        what = f"set {old} to {new}" if old or kind != vocabulary.INFO else f"set to {new}"
    return f"{what} by process {h.process[call]}{outcome}"


KIND = ObjectKind(MODEL, "not-linearizable", "register", "registers", _told)
CHECK = RunCheck(
    name="register",
    guarantee="each register is linearizable: it has one value at a time, for all clients",
    anomaly="register",
    decides=True,
    subjects=(REGISTERS,),
    one="register was not linearizable",
    more="registers were not linearizable",
    speaks_when_held=True,
    function=check,
)
