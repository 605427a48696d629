"""A run's records of its nodes and messages, and their wording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

from reports.inference.sends import ConfirmedSends
from reports.message_trace import QueueStay, Trace
from reports.narrative import ShownOperation, fault_name
from reports.pack import shorten
from reports.roles import Granted, Lane, RolePeriod, TransferMark
from stormproof.contracts.fault import ENDS_PROCESS
from stormproof.contracts.system import (
    ACKNOWLEDGED,
    CLOSED,
    COPIED,
    DELETED,
    REPLACED,
    RESET,
    RETURNED,
    STARTED,
    TRUNCATED,
)
from stormproof.history.ledger import FaultWindow, Repair

CLOCKS_S = 0.02
"""The times of logs and of the history may be out of order by this much."""
NEAR_S = 1.0
"""The time within which an announced transfer and a traced replacement of the state count as the same event."""
CANT_TELL = "The nodes' records do not show the cause."
NO_TRACE = "The places of the messages were not recorded. Some systems record them with --set trace=true."
_REMOVED = {
    ACKNOWLEDGED: "removed it after an acknowledgement",
    RETURNED: "removed it when a client returned it",
    RESET: "discarded it when its queue was reset",
    DELETED: "removed it with its queue",
    COPIED: "removed it at another node’s request",
    TRUNCATED: "removed it from its log, which contradicted another node's log",
    "open": "removed it when a client resumed its connection",
    "commit": "removed it when a transaction was committed",
}


@dataclass(frozen=True)
class Facts:
    """A run's records other than its history; times are seconds of the run."""

    trace: Trace = field(default_factory=Trace)
    roles: Sequence[Lane] = ()
    transfers: Sequence[TransferMark] = ()
    faults: Sequence[FaultWindow] = ()
    grants: Sequence[Granted] = ()
    repairs: Sequence[Repair] = ()
    leaders: Sequence[Lane] = ()
    """The leader of each queue according to each node."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the test."""
    names: tuple[str, ...] = ()
    """The names of all nodes."""
    sends: Callable[[int | None], ConfirmedSends] | None = None
    """Returns the fate of all confirmed sends, or with a subscription, their fate for it; None without a history."""

    @cached_property
    def led_separately(self) -> bool:
        """Whether one report named different leaders for several objects: what a node's log says of leading is then not
        about each of them."""
        lanes = [(lane.node.partition(", ")[2], stretch) for lane in self.leaders for stretch in lane.stretches]
        return any(witness == by and one.role != other.role and one.start < other.end and other.start < one.end
                   for (witness, one), (by, other) in combinations(lanes, 2))  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """``code`` identifies the kind of cause; ``sentence`` states recorded facts about one message or several ("it");
    ``death`` is the time at which the last node that had the message lost it, if it did. Without a ``code`` no cause is
    known. ``inferred`` is a conclusion from these facts; empty: the facts themselves are the cause."""

    code: str
    sentence: str
    death: float | None = None
    inferred: str = ""

    @property
    def text(self) -> str:
        """The conclusion, marked as one, and the facts."""
        return f"Inferred: {self.inferred} {self.sentence}" if self.inferred else self.sentence


def what_happened(stay: QueueStay, facts: Facts) -> tuple[str, str]:
    """Return what ended a stay, and the time, if many messages share it."""
    end = stay.end or 0.0
    when = f"at {end:.3f} s"
    if stay.gone == REPLACED:
        source = source_of(stay.node, end, facts)
        if not source:
            return "had its state replaced by one that lacked it", when
        return f"took {shorten(source)}’s state, which lacked it", when
    if stay.gone == STARTED:
        fault = ended_by(stay.node, end, facts.faults)
        return "restarted without it" + (f", after {fault}" if fault else ""), when
    if stay.gone == CLOSED:
        _, _, reason = stay.gone_token.partition(" ")
        return f"removed it when a client’s connection was closed{f' ({shorten(reason)})' if reason else ''}", ""
    return _REMOVED.get(stay.gone, f"removed it ({shorten(stay.gone)})"), ""


def source_of(node: str, time: float, facts: Facts) -> str:
    """Return the node whose state another node announced to have taken at a time; empty where it did not name one."""
    near = [each for each in facts.transfers
            if each.target.partition(".")[0] == node and abs(each.time - time) <= NEAR_S]  # fmt: skip
    source = min(near, key=lambda each: abs(each.time - time)).source if near else ""
    if source and source not in facts.trace.nodes and len(facts.trace.nodes) == 2:
        return next(iter(facts.trace.nodes - {node}))  # in a pair: "its peer"
    return "" if source == "?" else source


def ended_by(node: str, before: float, faults: Sequence[FaultWindow]) -> str:
    """Return the last fault that had ended the programs of a node."""
    ended = [fault for fault in faults if ENDS_PROCESS in fault.effects and node in fault.targets
             and fault.start / 1e9 <= before]  # fmt: skip
    return fault_name(ended[-1]) if ended else ""


def stretches_at(roles: Sequence[Lane], time: float) -> Iterator[tuple[Lane, RolePeriod]]:
    """Yield the role of each node at a time."""
    for lane in roles:
        for stretch in lane.stretches:
            if stretch.start <= time < stretch.end:
                yield lane, stretch


def group_at(node: str, time: float, facts: Facts) -> str:
    """Return the group of a node at a time; empty if its log does not report it."""
    return next((stretch.group for lane, stretch in stretches_at(facts.roles, time) if lane.node == node), "")


def role_at(node: str, time: float, facts: Facts) -> str:
    """Return the role of a node at a time, in brackets; empty if its log does not report it."""
    mine = [stretch for lane, stretch in stretches_at(facts.roles, time) if lane.node == node]
    return f" ({role_text(mine[-1])})" if mine else ""


def role_text(stretch: RolePeriod) -> str:
    """Return a readable text of a role with its group."""
    group = shorten(stretch.group, 24)
    if stretch.members:
        members = ", ".join(shorten(member) for member in stretch.members)
        group = f"{group}: {members}" if group else members
    return f"{shorten(stretch.role)}{f', {group}' if group else ''}"


def end_of(op: ShownOperation) -> float:
    """Return the time at which an operation ended, or began if its end is not in the history."""
    return op.start if op.end is None else op.end


def nodes_of(stays: Iterable[QueueStay]) -> list[str]:
    """Return the nodes where a message stayed."""
    return sorted({stay.node for stay in stays})
