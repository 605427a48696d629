"""Why a message was delivered again: its acknowledgement never arrived, was undone by a fault, or the message was sent
twice.

- *unacknowledged*: the first delivery's acknowledgement was not confirmed.
- *undone*: it was, and a fault ended its node, or another node took over, before the next delivery.
- *sent again*: it was, the next delivery began only after that, and a fault had hit the send's node while the send
  lasted, so that a library may have repeated the send.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from reports.inference.circumstances import (
    complete,
    cut_off_from,
    discarded,
    ends_of,
    is_power,
    led_at,
    over,
    span,
    stops_of,
    struck,
)
from reports.inference.loss import NOT_TOLD
from reports.narrative import ShownAnomaly, ShownOperation, fault_name, plain
from reports.run_facts import CLOCKS_S, Cause, Facts, end_of
from stormproof.history.ledger import FaultWindow
from stormproof.text import elapsed, listed

DOUBLES = ("delivered-after-receipt", "acknowledged-twice", "redelivered-unconfirmed", "delivered-more-than-once",
           "after-receipt-or-held-back", "topic-delivered-after-receipt")  # fmt: skip
"""Kinds of anomalies that this module explains."""


UNACKNOWLEDGED, UNDONE, SENT_AGAIN = "unacknowledged", "undone", "sent again"
"""Codes of causes."""
_ERROR = re.compile(r"(?:ack unconfirmed: )?(.*?)(?:, came \S+ s, connected \S+ s)?", re.DOTALL)
"""The error of an acknowledgement, without the times that only checks need, and that differ for each message."""


class Twice(NamedTuple):
    """The operations of a message that came twice."""

    send: ShownOperation | None
    first: ShownOperation
    again: ShownOperation


def double_causes(members: Sequence[ShownAnomaly], facts: Facts) -> list[tuple[int, Cause]]:
    """Return the causes of repeated deliveries, each with their number."""
    groups: dict[tuple[str, ...], list[Twice]] = {}
    for anomaly in members:
        if (twice := _twice(anomaly)) is not None:
            groups.setdefault(_kind(twice, facts), []).append(twice)
    known = sum(len(mine) for mine in groups.values())
    found = [(len(mine), _told(kind, mine, facts)) for kind, mine in groups.items() if mine]
    unread = [(len(members) - known, Cause("", NOT_TOLD))] if known < len(members) else []
    return sorted([*found, *unread], key=lambda each: (not each[1].code, -each[0]))


def _twice(anomaly: ShownAnomaly) -> Twice | None:
    sends = [op for op in anomaly.operations if op.sends and op.value == anomaly.value and op.type != "fail"]
    takes = sorted((op for op in anomaly.operations if op.takes and op.value == anomaly.value and op.end is not None),
                   key=end_of)  # fmt: skip
    proof = [op for op in takes if op.proof]
    if len(proof) < 2:
        return None
    return Twice(sends[0] if len(sends) == 1 else None, proof[0], proof[1])


def _kind(twice: Twice, facts: Facts) -> tuple[str, ...]:
    """Return what may have caused it, as texts that identify the causes; empty: nothing that the records show."""
    first = twice.first
    if first.type == "info":
        match = _ERROR.fullmatch(first.error)
        return (UNACKNOWLEDGED, match[1] if match else first.error)
    found = [f"{UNDONE} {fault.id}" for fault in _undoing(twice, facts)]
    if twice.send is not None and twice.again.start >= end_of(first) and _met(twice.send, facts):
        found.append(SENT_AGAIN)
    return tuple(found)


def _undoing(twice: Twice, facts: Facts) -> list[FaultWindow]:
    """Return the faults between an acknowledgement's receipt and the next delivery that may have undone it."""
    node, since, until = twice.first.node, end_of(twice.first), end_of(twice.again)
    ended = [fault for fault in ends_of(node, facts) if since - CLOCKS_S <= complete(fault) and struck(fault) <= until
             and (len(facts.names) == 1 or led_at(node, twice.first.key, struck(fault), facts))]  # fmt: skip
    apart = [fault for fault in facts.faults if fault.confirmed and _isolated(twice.again.node, node, fault, facts)
             and struck(fault) - CLOCKS_S <= since <= over(fault) and twice.again.node != node]  # fmt: skip
    return [*ended, *apart]


def _isolated(node: str, other: str, fault: FaultWindow, facts: Facts) -> bool:
    """Return whether a fault kept a node from hearing another one: it cut them off, or suspended the node."""
    return other in cut_off_from(node, fault, facts.names) or fault in stops_of(node, facts)


def _met(send: ShownOperation, facts: Facts) -> list[FaultWindow]:
    """Return the faults that hit the node of a send while the send lasted."""
    return [fault for fault in facts.faults if fault.confirmed and send.node in fault.targets
            and struck(fault) <= end_of(send) and over(fault) >= send.start]  # fmt: skip


def _told(kind: tuple[str, ...], mine: Sequence[Twice], facts: Facts) -> Cause:
    if not kind:
        return Cause("", NOT_TOLD)
    if kind[0] == UNACKNOWLEDGED:
        return _unacknowledged(kind[1], mine)
    told = [_undone(fault, mine, facts) for fault in facts.faults if f"{UNDONE} {fault.id}" in kind]
    told += [_sent_again(mine, facts)] if SENT_AGAIN in kind else []
    if len(told) == 1:
        code = SENT_AGAIN if kind[0] == SENT_AGAIN else UNDONE
        return Cause(code, f"{_first_times(mine)} {told[0][0]}", inferred=told[0][1])
    text = " Or: ".join(f"{conclusion} {known}" for known, conclusion in told)
    return Cause("either", f"{_first_times(mine)} {text}",
                 inferred="Several causes fit, and the records do not tell which it was.")  # fmt: skip


def _unacknowledged(error: str, mine: Sequence[Twice]) -> Cause:
    faults = listed(sorted({fault for each in mine for fault in each.first.faults})[:3])
    why = f" ({error})" if error else ""
    during = f", during {faults}" if faults else ""
    text = (f"{_where(mine, 'first')} delivered {_it(mine)} first {_when(mine, 'first')}, and that acknowledgement was "
            f"never confirmed{why}{during}. {_where(mine, 'again')} delivered {_it(mine)} again "
            f"{_when(mine, 'again')}.")  # fmt: skip
    return Cause(UNACKNOWLEDGED, text, inferred="The broker did not have the acknowledgement, and delivered again.")


def _first_times(mine: Sequence[Twice]) -> str:
    return (f"{_where(mine, 'first')} confirmed the first acknowledgement {_when(mine, 'first')}; "
            f"{_where(mine, 'again')} delivered {_it(mine)} again {_when(mine, 'again')}.")  # fmt: skip


def _undone(fault: FaultWindow, mine: Sequence[Twice], facts: Facts) -> tuple[str, str]:
    first, again = mine[0].first.node, mine[0].again.node
    if again != first and _isolated(again, first, fault, facts):
        how = "suspended" if fault in stops_of(again, facts) else f"cut off from {first}"
        text = f"{again} was {how} when the first acknowledgement was confirmed ({span(fault)})."
        return text, f"{again} never got that acknowledgement, and delivered again from its own state."
    text = f"In between, {fault_name(fault)} ended {first} at {struck(fault):.3f} s."
    if is_power(fault):
        count, _ = discarded(first, fault)
        told = f" Its disk discarded {plain(count)} bytes that were not synced." if count is not None else ""
        if count is None or count > 0:
            return f"{text}{told}", f"The loss of power took the acknowledgement, which {first} had not synced to disk."
        text += told
    if _where(mine, "again") != first:
        return text, f"{_where(mine, 'again')} took over from {first} without the acknowledgement."
    return text, f"{first} had the acknowledgement only in memory when it was ended."


def _sent_again(mine: Sequence[Twice], facts: Facts) -> tuple[str, str]:
    sends = [each.send for each in mine if each.send is not None]
    longest = max(end_of(send) - send.start for send in sends)
    met = sorted({fault_name(fault) for send in sends for fault in _met(send, facts)})
    confirmed = sum(send.type == "ok" for send in sends)
    text = (f"{listed(met)} hit the node of {'its send' if len(sends) == 1 else 'their sends'} during the send, which "
            f"lasted up to {elapsed(longest)}. Confirmed sends among them: {plain(confirmed)} of {plain(len(sends))}.")
    return text, "The answer to the send was lost, the client’s library sent it again, and the broker stored both."


def _it(mine: Sequence[Twice]) -> str:
    return "it" if len(mine) == 1 else "them"


def _where(mine: Sequence[Twice], which: str) -> str:
    return listed(sorted({getattr(each, which).node for each in mine if getattr(each, which).node})) or "The system"


def _when(mine: Sequence[Twice], which: str) -> str:
    times = sorted(end_of(getattr(each, which)) for each in mine)
    return f"at {times[0]:.3f} s" if len(times) == 1 else f"from {times[0]:.3f} to {times[-1]:.3f} s"
