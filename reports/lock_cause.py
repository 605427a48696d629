"""The cause of two simultaneous holders of a lock: the holders and the length of a lease, from the history and the
test's options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.folder import number
from reports.narrative import ShownAnomaly, ShownOperation, plain
from reports.run_facts import CANT_TELL, Cause, end_of

TWO_HOLDERS, LOST_UPDATE = LOCK_KINDS = ("two-holders", "lost-update")
"""Kinds of anomalies that this module explains."""
_ACQUIRE, _UPDATE, _RELEASE = "acquire", "update", "release"
CLOSED_ITSELF = "this test closed its connection"
"""Part of the error of an update whose holder stood still, and whose connection, which had the lock, the test
closed."""


@dataclass(frozen=True)
class LockHold:
    """A process that got the lock, and its last known operation as the holder."""

    got: ShownOperation
    used: ShownOperation


def of_lock(
    anomaly: ShownAnomaly, options: Mapping[str, Any], operations: Callable[[], Sequence[ShownOperation]]
) -> Cause:
    """Return the cause, as far as the operations and the length of a lease show it."""
    holds = sorted(_holds(anomaly, operations()), key=lambda hold: end_of(hold.got))
    lease = number(options.get("lease_seconds", options.get("lease")))  # the option's name in older runs
    if len(holds) != 2 or end_of(holds[0].used) <= end_of(holds[1].got):
        return Cause("", CANT_TELL)
    first, second = holds
    if CLOSED_ITSELF in first.used.error:
        return Cause("closed-by-test", _closed(first, second))
    if lease is None:
        return Cause("", CANT_TELL)
    holder, got, until, again = first.got.process, end_of(first.got), end_of(first.used), end_of(second.got)
    text = f"Process {holder} got the lock at {got:.3f} s, with a lease of {plain(lease)} s."
    if again < first.got.start + lease:
        return Cause("lease-broken", f"{text} Process {second.got.process} got it at {again:.3f} s, before that lease "
                                     "expired.")  # fmt: skip
    if again < got + lease:
        return Cause("", CANT_TELL)  # the lease may have begun at any time during the acquire
    text += f" Its {first.used.f} lasted from {first.used.start:.3f} to {until:.3f} s{_stalls(first, options)}."
    text += f" Another process got the lock when that lease had expired, and process {holder} continued as its holder"
    name = next((name for name in ("refuse_old_tokens", "fencing") if name in options), "")
    if first.used.f == _UPDATE and name and options[name] is False:
        text += f": the guarded resource does not check tokens ({name}=false)"
    return Cause("lease-outlived", f"{text}.")


def _closed(first: LockHold, second: LockHold) -> str:
    """Return that the test itself freed the lock, by closing the connection of a holder which continued later."""
    holder, update = first.got.process, first.used
    return (f"Process {holder} got the lock at {end_of(first.got):.3f} s. It stalled in its update from "
            f"{update.start:.3f} to {end_of(update):.3f} s. Its connection sends no heart-beats, so this test closed "
            f"that connection, which released the lock. Process {second.got.process} got it at "
            f"{end_of(second.got):.3f} s, and process {holder} continued as its holder.")  # fmt: skip


def _stalls(hold: LockHold, options: Mapping[str, Any]) -> str:
    stall = number(options.get("stall"))
    stood = stall is not None and options.get("holders") == "stalling" and end_of(hold.used) - hold.used.start >= stall
    return f": some holders of this test stall for {plain(stall)} s (holders=stalling)" if stood else ""


def _holds(anomaly: ShownAnomaly, operations: Sequence[ShownOperation]) -> Iterator[LockHold]:
    """Yield the two holds that an anomaly is about. Without a named use, only the acquire is known."""
    named = [op for op in anomaly.operations if op.proof and op.type == "ok"]
    if anomaly.kind == LOST_UPDATE:
        for op in named:
            before = [each for each in operations if each.process == op.process and each.f == _ACQUIRE
                      and each.type == "ok" and end_of(each) <= op.start]  # fmt: skip
            if op.f == _UPDATE and before:
                yield LockHold(max(before, key=end_of), op)
        return
    for op in named:
        if op.f == _ACQUIRE:
            uses = [each for each in named if each.process == op.process and each.f in (_UPDATE, _RELEASE)
                    and each.start >= end_of(op)]  # fmt: skip
            yield LockHold(op, max(uses, key=end_of, default=op))
