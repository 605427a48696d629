"""Lost messages: the send was confirmed, and no consumer ever got the message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkers.api import ByParts, Example, NeedsWhole, RunCheck, WholeRun, examples_of
from checkers.kernels.queues import ACKED
from checkers.run import SECOND, Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.history.columns import Int64s
from stormproof.text import amount
from stormproof.vocabulary import MESSAGES


@dataclass
class Losses:
    """Confirmed messages of one queue that no consumer got.

    ``since`` and ``until`` are when the first and the last were sent, in nanoseconds. ``nodes`` holds by node the
    number of these messages that it had confirmed, and the place of the first.
    """

    count: int
    place: int
    since: int
    until: int
    nodes: dict[str, tuple[int, int]]
    examples: list[Example]


@dataclass
class FoundLosses:
    """The losses in a part of a run; ``queues`` holds them by the queue's key."""

    confirmed: int
    queues: dict[int, Losses]
    dead: int = 0
    """Confirmed messages that no consumer got, and that were in a dead-letter queue."""
    whole: bool = True


def find(run: Run) -> FoundLosses:
    """Find confirmed messages that no completed dequeue or drain (``ok`` or ``info``) names."""
    messages = run.messages
    acked = messages.state == ACKED
    gone = run.undelivered
    keys = messages.key[gone]
    queues = {key: _losses(run, gone[keys == key]) for key in np.unique(keys).tolist()}
    dead = int(np.count_nonzero(acked & (messages.deliveries == 0))) - len(gone)
    return FoundLosses(int(np.count_nonzero(acked)), queues, dead, run.whole)


def _losses(run: Run, gone: Int64s) -> Losses:
    """Return the losses of one queue."""
    h, sent = run.history, run.messages.sent[gone]
    times, nodes = h.time[sent], h.node.codes[h.partner[sent]]
    by_node: dict[str, tuple[int, int]] = {}
    for code in np.unique(nodes).tolist():
        name, here = (h.node.names[code] if code >= 0 else None) or "?", gone[nodes == code]
        count, place = by_node.get(name, (0, run.place(int(here[0]))))  # nodes without a name count as one
        by_node[name] = count + len(here), min(place, run.place(int(here[0])))
    examples: list[Example] = [((run.place(m),), _anomaly(run, m)) for m in gone[:MAX_EXAMPLES].tolist()]
    return Losses(len(gone), run.place(int(gone[0])), int(times.min()), int(times.max()), by_node, examples)


def conclude(parts: Sequence[FoundLosses], whole: WholeRun) -> CheckOutcome:
    """Sum up the losses; ``window`` of the figures is when the first and the last lost message were sent, in seconds.

    Undecided (unknown) for a queue whose drain did not finish, unless its depth was read as zero after everything else:
    then it holds nothing that could still be delivered. In any other queue, takes that named no message account for
    some of the missing messages (``Run.accounts``). Missing messages beyond that number are lost, though it is unknown
    which of them.
    """
    if whole.delivery_limit and not all(part.whole for part in parts):
        raise NeedsWhole  # a part lacks the dead letters
    confirmed = sum(part.confirmed for part in parts)
    dead = sum(part.dead for part in parts)
    limit = (f"; a delivery limit moved {amount(dead, 'other one', 'others')} to a dead-letter queue "
             f"({whole.delivery_limit})") if dead else ""  # fmt: skip
    dead_figure = {"dead_lettered": dead} if dead else {}
    if not any(part.queues for part in parts):
        figures: dict[str, Any] = {"confirmed": confirmed, "undecided": 0, "by_node": {}, **dead_figure}
        text = f"all {confirmed:,} confirmed messages were delivered"
        if dead:
            text = f"{confirmed - dead:,} of {confirmed:,} confirmed messages were delivered{limit}"
        return CheckOutcome(VALID, 0, text, (), figures)
    missing: dict[int, list[Losses]] = {}
    for part in parts:
        for key, told in part.queues.items():
            missing.setdefault(key, []).append(told)
    split = {key: lost_of(key, sum(each.count for each in told), whole) for key, told in missing.items()}
    lost = [each for key, told in missing.items() if split[key][0] for each in told]
    count, undecided = sum(each for each, _ in split.values()), sum(each for _, each in split.values())
    figures = {"confirmed": confirmed, "undecided": undecided, "by_node": _by_node(lost), **dead_figure}
    if count:
        figures["window"] = {"from": round(min(told.since for told in lost) / SECOND, 6),
                             "to": round(max(told.until for told in lost) / SECOND, 6)}  # fmt: skip
        text = f"{count:,} of {confirmed:,} confirmed messages were never delivered"
        if accounted := sum(told.count for told in lost) - count:
            figures["accounted"] = accounted
            text = f"at least {text}: {count + accounted:,} were not delivered, and {_may_have(accounted)}"
        if gone := sorted(whole.gone_queues.keys() & {key for key, (each, _) in split.items() if each}):
            figures["gone"] = gone
            text += f"; queue {', '.join(map(str, gone[:5]))} no longer exists, by every answer of the drain"
        return CheckOutcome(INVALID, count, text + limit, examples_of(told.examples for told in lost), figures)
    text = f"{undecided:,} of {confirmed:,} confirmed messages were not delivered"
    first = min((told.place, key) for key, each in missing.items() for told in each)[1]
    reason = whole.open_queues.get(first)
    why = _may_have(undecided) if reason is None else f"the queue was not drained: {reason}"
    return CheckOutcome(UNKNOWN, 0, f"{text}, but {why}", (), figures)


def _may_have(count: int) -> str:
    return f"takes that named no message may have held {count:,} of them"


def lost_of(queue: int, missing: int, whole: WholeRun) -> tuple[int, int]:
    """Return how many of a queue's ``missing`` messages are lost, and how many may still exist."""
    account = missing if queue in whole.open_queues else int(min(missing, whole.accounts.get(queue, 0)))
    return missing - account, account


check = ByParts(find, conclude)


def missing(run: Run) -> tuple[Int64s, Int64s]:
    """Return the numbers of the lost messages, and of the missing messages that may not be lost.

    The latter include all missing messages of a queue in which takes that named no message account for some.
    """
    messages = run.messages
    gone = run.undelivered
    if not len(gone):
        return gone, gone
    unsure = {*run.open_queues, *run.accounts}
    undecided = np.isin(messages.key[gone], np.asarray(list(unsure), dtype=np.int32))
    return gone[~undecided], gone[undecided]


def _by_node(lost: Iterable[Losses]) -> dict[str, int]:
    """Return the number of lost messages that each node had confirmed, largest first."""
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


ONE, MORE = "confirmed message was never delivered", "confirmed messages were never delivered"


def tell(outcome: CheckOutcome, invalid: Mapping[str, CheckOutcome]) -> list[str]:
    """State how many messages are certainly lost, and which queues are gone as a whole."""
    least = "at least " if outcome.figures.get("accounted") else ""
    gone = ", ".join(f"queue {queue}" for queue in outcome.figures.get("gone", ())[:3])
    return [f"{least}{amount(outcome.count, ONE, MORE)}{f' ({gone} is gone as a whole)' if gone else ''}"]


CHECK = RunCheck(
    name="lost",
    guarantee="every confirmed message is delivered",
    anomaly="lost",
    decides=True,
    subjects=(MESSAGES,),
    one=ONE,
    more=MORE,
    tell=tell,
    speaks_when_held=True,
    function=check,
    by_parts=check,
)
