"""Lost messages: the send was confirmed, and no consumer ever got the message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkers import kernels
from checkers.api import ByParts, Example, RunCheck, WholeRun, examples_of
from checkers.run import SECOND, Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.history.columns import Int64s
from stormproof.vocabulary import MESSAGES


@dataclass
class Losses:
    """Confirmed messages of one queue that nobody got; ``since`` and ``until`` are when the first and the last were
    sent, in nanoseconds. ``nodes`` tells how many each node had confirmed, and the place of the first."""

    count: int
    place: int
    since: int
    until: int
    nodes: dict[str, tuple[int, int]]
    examples: list[Example]


@dataclass
class Found:
    """What is in a part of a run: ``queues`` by their key."""

    confirmed: int
    queues: dict[int, Losses]


def find(run: Run) -> Found:
    """Confirmed messages that no completed dequeue or drain (``ok`` or ``info``) names."""
    messages = run.messages
    acked = messages.state == kernels.ACKED
    gone = np.flatnonzero(acked & (messages.deliveries == 0))
    keys = messages.key[gone]
    queues = {key: _losses(run, gone[keys == key]) for key in np.unique(keys).tolist()}
    return Found(int(np.count_nonzero(acked)), queues)


def _losses(run: Run, gone: Int64s) -> Losses:
    """The losses of one queue."""
    h, sent = run.history, run.messages.sent[gone]
    times, nodes = h.time[sent], h.node.codes[h.partner[sent]]
    by_node: dict[str, tuple[int, int]] = {}
    for code in np.unique(nodes).tolist():
        name, here = (h.node.names[code] if code >= 0 else None) or "?", gone[nodes == code]
        count, place = by_node.get(name, (0, run.place(int(here[0]))))  # nodes without a name are one
        by_node[name] = count + len(here), min(place, run.place(int(here[0])))
    examples: list[Example] = [((run.place(m),), _anomaly(run, m)) for m in gone[:MAX_EXAMPLES].tolist()]
    return Losses(len(gone), run.place(int(gone[0])), int(times.min()), int(times.max()), by_node, examples)


def conclude(parts: Sequence[Found], whole: WholeRun) -> CheckOutcome:
    """``window`` of the figures is when lost messages were sent, in seconds of the run: the first, the last.

    Undecided (unknown) for a queue whose drain did not finish, unless its depth was read as zero after
    everything else: then it holds nothing that could still be delivered.
    """
    confirmed = sum(part.confirmed for part in parts)
    if not any(part.queues for part in parts):
        figures: dict[str, Any] = {"confirmed": confirmed, "undecided": 0, "by_node": {}}
        return CheckOutcome(VALID, 0, f"all {confirmed:,} confirmed messages were delivered", (), figures)
    losses = [(key, told) for part in parts for key, told in part.queues.items()]
    lost = [told for key, told in losses if key not in whole.open_queues]
    maybe = [(told.place, key, told.count) for key, told in losses if key in whole.open_queues]
    count, undecided = sum(told.count for told in lost), sum(number for _, _, number in maybe)
    figures = {"confirmed": confirmed, "undecided": undecided, "by_node": _by_node(lost)}
    if count:
        figures["window"] = {"from": round(min(told.since for told in lost) / SECOND, 6),
                             "to": round(max(told.until for told in lost) / SECOND, 6)}  # fmt: skip
        text = f"{count:,} of {confirmed:,} confirmed messages were never delivered"
        return CheckOutcome(INVALID, count, text, examples_of(told.examples for told in lost), figures)
    reason = whole.open_queues[min(maybe)[1]]
    text = f"{undecided:,} of {confirmed:,} confirmed messages were not delivered, but the queue was not drained"
    return CheckOutcome(UNKNOWN, 0, f"{text}: {reason}", (), figures)


check = ByParts(find, conclude)


def missing(run: Run) -> tuple[Int64s, Int64s]:
    """Numbers of the messages that are lost, and of those of which that can't be told."""
    messages = run.messages
    gone = np.flatnonzero((messages.state == kernels.ACKED) & (messages.deliveries == 0))
    if not len(gone):
        return gone, gone
    undecided = np.isin(messages.key[gone], np.asarray(list(run.open_queues), dtype=np.int32))
    return gone[~undecided], gone[undecided]


def _by_node(lost: Iterable[Losses]) -> dict[str, int]:
    """How many lost messages each node had confirmed, most first."""
    nodes: dict[str, list[tuple[int, int]]] = {}
    for told in lost:
        for node, found in told.nodes.items():
            nodes.setdefault(node, []).append(found)
    counted = [(-sum(count for count, _ in found), min(place for _, place in found), node)
               for node, found in nodes.items()]  # fmt: skip
    return {node: -count for count, _, node in sorted(counted)}


def _anomaly(run: Run, message: int) -> Anomaly:
    sent = int(run.messages.sent[message])
    confirmed = int(run.history.partner[sent])
    detail = {"confirmed_by": run.history.node.at(confirmed), "faults": run.faults_at(confirmed)}
    return Anomaly(
        "lost", run.rows_of(sent), int(run.messages.key[message]), run.messages.name(message), detail
    )


CHECK = RunCheck(
    name="lost",
    guarantee="every confirmed message is delivered",
    anomaly="lost",
    decides=True,
    subjects=(MESSAGES,),
    one="confirmed message was never delivered",
    more="confirmed messages were never delivered",
    speaks_when_held=True,
    function=check,
    by_parts=check,
)
