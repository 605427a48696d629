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
STOOD_STILL = "stood still"
"""Text in the error of an update whose holder, with its client library, did not run for a while."""
_SESSIONS, _HEARTBEATS = ("session", "session_timeout"), ("heartbeat",)
"""Options of systems that let the next holder in after a time without a sign of life, in seconds: this is that time, or
the system waits for a small multiple of it. A session takes the place of the workload's lease."""
_BEATS = 3
"""Clients send at least this many signs of life in that time: the last one precedes a stall by a fraction of it."""
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
    if lease is None or any(name in options for name in _SESSIONS):
        return _silent(first, second, options)
    holder, got, until, again = first.got.process, end_of(first.got), end_of(first.used), end_of(second.got)
    text = f"Process {holder} got the lock at {got:.3f} s, with a lease of {plain(lease)} s."
    if again < first.got.start + lease:
        return Cause("lease-broken", f"{text} Process {second.got.process} got it at {again:.3f} s, before that lease "
                                     "expired.")  # fmt: skip
    stalled = STOOD_STILL in first.used.error
    if again < got + lease:  # the lease may have begun at any time during the acquire
        if not stalled:
            return Cause("", CANT_TELL)
        text = (f"Process {holder} asked for the lock at {first.got.start:.3f} s and got it at {got:.3f} s, with a "
                f"lease of {plain(lease)} s.")  # fmt: skip
    lasted = "It stood still in its" if stalled else "Its"
    text += f" {lasted} {first.used.f}{'' if stalled else ' lasted'} from {first.used.start:.3f} to {until:.3f} s"
    text += _stalls(first, options) + "."
    if stalled:
        text += f" Process {second.got.process} got the lock at {again:.3f} s, when that lease had expired,"
    else:
        text += " Another process got the lock when that lease had expired,"
    text += f" and process {holder} continued as its holder"
    how = "stood still" if stalled else "continued"
    return Cause("lease-outlived", f"{text}{_unchecked(first, options)}.", inferred=(
        f"The lease ended while the holder {how}, and the system let the next holder in."))  # fmt: skip


def _silent(first: LockHold, second: LockHold, options: Mapping[str, Any]) -> Cause:
    """Return the cause of a holder whose stall exceeded the system's limit for silence, if all times agree."""
    update, again = first.used, end_of(second.got)
    named = ((name, number(options.get(name))) for name in (*_SESSIONS, *_HEARTBEATS))
    name, limit = next((each for each in named if each[1]), ("", None))
    if limit is None or STOOD_STILL not in update.error:
        return Cause("", CANT_TELL)
    if again < update.start + limit * (1 - 1 / _BEATS) or end_of(update) - update.start < limit:
        return Cause("", CANT_TELL)
    holder = first.got.process
    return Cause("session-outlived", (
        f"Process {holder} got the lock at {end_of(first.got):.3f} s. It stood still in its update from "
        f"{update.start:.3f} to {end_of(update):.3f} s, and sent no sign of life; the system’s limit is {plain(limit)} "
        f"s ({name}={plain(limit)}). Process {second.got.process} got the lock at {again:.3f} s, and process {holder} "
        f"continued as its holder{_unchecked(first, options)}."), inferred=(
        "The system gave up the silent holder’s session, and let the next holder in."))  # fmt: skip


def _unchecked(hold: LockHold, options: Mapping[str, Any]) -> str:
    name = next((name for name in ("refuse_old_tokens", "refuse_older", "fencing") if name in options), "")
    if hold.used.f == _UPDATE and name and options[name] is False:
        return f": the guarded resource does not check tokens ({name}=false)"
    return ""


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
