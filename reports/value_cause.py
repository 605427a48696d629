"""The cause of a register read that returned an older value: the node that returned it, and the values confirmed
before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reports.message_trace import Mark, QueueStay
from reports.narrative import ShownAnomaly, ShownOperation
from reports.run_facts import CANT_TELL, CLOCKS_S, Cause, Facts, end_of, role_at
from stormproof.contracts.system import READ, TOLD

WRITES = ("write", "cas")


def of_register(anomaly: ShownAnomaly, facts: Facts, operations: Callable[[], Sequence[ShownOperation]]) -> Cause:
    """Return the cause of the first read among an anomaly's operations that returned a value which had been replaced by
    one that was confirmed before the read began."""
    for op in sorted(anomaly.operations, key=end_of):
        if op.f != "read" or op.type != "ok":
            continue
        told = _told(op, facts)
        newer = _newer(op, operations())
        if newer is None or not told:
            continue
        (node,) = {mark.node for mark in told}
        gone = _replaced_at(op.value, newer, facts)
        if gone is None:
            continue
        time = told[0].time
        text = (f"{node}{role_at(node, time, facts)} answered process {op.process} with {op.value} at {time:.3f} s. "
                f"{gone.node}{role_at(gone.node, gone.end or 0.0, facts)} had replaced {op.value} at {gone.end:.3f} s, "
                f"and {newer.node} had confirmed {written(newer)} at {end_of(newer):.3f} s, before the read began at "
                f"{op.start:.3f} s.")  # fmt: skip
        late = [_carried_out(op.value, mark, facts) for mark in told]
        if any(each is not None and each <= mark.time for each, mark in zip(late, told, strict=True)):
            return Cause("read-older", text)
        done = min((each for each in late if each is not None), default=None)
        turn = "never came" if done is None else f"came at {done:.3f} s" if len(told) == 1 else "came later"
        return Cause("read-unordered", f"{text} {node} answered before the read’s turn in the order of all commands, "
                                       f"which {turn}.")  # fmt: skip
    return Cause("", CANT_TELL)


def _told(op: ShownOperation, facts: Facts) -> list[Mark]:
    """Return the answers that a read may have received: the first of each command, all from one node."""
    first: dict[str, Mark] = {}
    for mark in facts.trace.of(TOLD, op.value):
        if op.node in ("", mark.node):
            first.setdefault(f"{mark.node} {mark.token}", mark)
    found = [mark for mark in first.values() if op.start - CLOCKS_S <= mark.time <= end_of(op) + CLOCKS_S]
    return found if len({mark.node for mark in found}) == 1 else []


def _carried_out(value: str, mark: Mark, facts: Facts) -> float | None:
    """Return the time at which a node carried out the command of an answer; None if it never did, or found another
    value."""
    return next((each.time for each in facts.trace.of(READ, value)
                 if (each.node, each.token) == (mark.node, mark.token)), None)  # fmt: skip


def _newer(read: ShownOperation, operations: Sequence[ShownOperation]) -> ShownOperation | None:
    """Return the last write of the register that was confirmed before a read began, if its value differs from the one
    read."""
    writes = [op for op in operations if op.f in WRITES and op.type == "ok" and op.key == read.key
              and end_of(op) < read.start]  # fmt: skip
    last = max(writes, key=end_of, default=None)
    return last if last is not None and written(last) != read.value else None


def _replaced_at(value: str, newer: ShownOperation, facts: Facts) -> QueueStay | None:
    """Return the stay of a value at the node that confirmed a newer one, if the stay had ended when the newer value
    arrived there."""
    came = min((stay.start for stay in facts.trace.stays(written(newer)) if stay.node == newer.node), default=None)
    ended = [stay for stay in facts.trace.stays(value)
             if stay.node == newer.node and stay.end is not None and came is not None and stay.end <= came]  # fmt: skip
    return max(ended, key=lambda stay: stay.end or 0.0, default=None)


def written(op: ShownOperation) -> str:
    """Return the value that a write, or a compare-and-set, wrote."""
    return op.value.rpartition("/")[2]
