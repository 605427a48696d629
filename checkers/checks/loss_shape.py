"""The position of lost messages among the surviving ones: at the beginning, in the middle, or at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkers.api import ByParts, Example, NeedsWhole, RunCheck, WholeRun, examples_of
from checkers.checks.lost import lost_of
from checkers.history import dense
from checkers.kernels.queues import ACKED
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.history.columns import Int64s
from stormproof.text import amount
from stormproof.vocabulary import MESSAGES

PREFIX, MIDDLE, POSTFIX, WHOLE = "prefix", "middle", "postfix", "whole"
"""Sent before all surviving messages, between them, after them; ``whole``: none is known to have survived before or
after it.
"""
_TOLD = {
    PREFIX: "{} before the first that survived",
    MIDDLE: "{} between those that survived",
    POSTFIX: "{} after the last that survived",
    WHOLE: "{} with none that survived before or after",
}


@dataclass
class LostPositions:
    """The lost and surviving messages of a part of a run, by queue.

    ``gone`` holds the rows in which messages were sent and confirmed that no consumer got, and their places.
    ``survived`` holds, for delivered messages, when the first was confirmed and the last was sent.
    """

    gone: dict[int, tuple[Int64s, Int64s, Int64s]]
    survived: dict[int, tuple[int, int]]
    named: dict[int, str]
    """The names of the first undelivered messages of each queue, by the row in which they were sent."""
    whole: bool


def find(run: Run) -> LostPositions:
    """Find by queue the confirmed messages that no consumer got, and the rows that show their position among the
    others.
    """
    messages, h = run.messages, run.history
    acked = np.flatnonzero(messages.state == ACKED)
    came = messages.deliveries[acked] > 0
    lost = run.undelivered
    if run.whole and not len(lost):
        return LostPositions({}, {}, {}, run.whole)
    gone: dict[int, tuple[Int64s, Int64s, Int64s]] = {}
    named: dict[int, str] = {}
    for key in np.unique(messages.key[lost]).tolist():
        mine = lost[messages.key[lost] == key]
        sent = messages.sent[mine]
        places = np.asarray([run.place(message) for message in mine.tolist()], dtype=np.int64)
        gone[key] = h.index[sent], h.index[h.partner[sent]], places
        named |= {int(h.index[messages.sent[message]]): messages.name(message)
                  for message in mine[:MAX_EXAMPLES].tolist()}  # fmt: skip
    return LostPositions(gone, _survived(run, acked[came]), named, run.whole)


def _survived(run: Run, others: Int64s) -> dict[int, tuple[int, int]]:
    """Return by queue the first row in which one of these messages was confirmed, and the last in which one was sent.
    """
    messages, h = run.messages, run.history
    queue, bound = dense(messages.key[others])
    first, last = np.full(bound + 1, h.rows), np.full(bound + 1, -1)
    sent = messages.sent[others]
    # Queue -1 has a place in the arrays, too.
    np.minimum.at(first, queue + 1, h.partner[sent])
    np.maximum.at(last, queue + 1, sent)
    keys = np.empty(bound + 1, dtype=np.int32)
    keys[queue + 1] = messages.key[others]
    used = np.flatnonzero(last >= 0)
    return {int(keys[number]): (int(h.index[first[number]]), int(h.index[last[number]])) for number in used}


def conclude(parts: Sequence[LostPositions], whole: WholeRun) -> CheckOutcome:
    """Classify lost messages by their position among the delivered confirmed messages of their queue.

    A message survived *before* a lost one if it was confirmed before the lost one was sent, and *after* it if it was
    sent after the lost one was confirmed. A node that returns with an old copy loses a postfix, a store that is emptied
    loses the whole or a prefix, and a log that is repaired loses a middle. If takes that named no message account for
    some of the missing messages, all missing messages are counted.
    """
    if whole.delivery_limit and not all(part.whole for part in parts):
        raise NeedsWhole  # a part lacks the dead letters
    queues = [(key, rows) for part in parts for key, rows in part.gone.items()]
    missing: Counter[int] = Counter()
    for key, rows in queues:
        missing[key] += len(rows[0])
    split = {key: lost_of(key, number, whole) for key, number in missing.items()}
    count, undecided = sum(lost for lost, _ in split.values()), sum(each for _, each in split.values())
    figures: dict[str, Any] = {"lost": count, "undecided": undecided}
    if not count and undecided:
        text = f"{amount(undecided, 'confirmed message')} may be lost: not delivered, but possibly still in the system"
        return CheckOutcome(UNKNOWN, 0, text, (), figures)
    if not count:
        return CheckOutcome(VALID, 0, "no confirmed message is lost", (), figures)
    named = {row: name for part in parts for row, name in part.named.items()}
    counts: Counter[str] = Counter()
    examples: list[Example] = []
    for key, (sent, confirmed, places) in queues:
        if not split[key][0]:
            continue
        shapes = _shapes(sent, confirmed, [part.survived[key] for part in parts if key in part.survived])
        counts.update(shapes.tolist())
        examples += [
            ((place,), Anomaly(f"lost-{shape}", (row, answer)[:MAX_EXAMPLES], key, named[row]))
            for row, answer, place, shape in zip(sent.tolist(), confirmed.tolist(), places.tolist(), shapes.tolist(),
                                                 strict=True) if row in named
        ]  # fmt: skip
    figures |= {shape: counts[shape] for shape in _TOLD}
    told = [words.format(f"{counts[shape]:,}") for shape, words in _TOLD.items() if counts[shape]]
    return CheckOutcome(INVALID, count, f"lost: {', '.join(told)}", examples_of([examples]), figures)


def _shapes(sent: Int64s, confirmed: Int64s, survived: Sequence[tuple[int, int]]) -> NDArray[np.str_]:
    """Return the position of each lost message of a queue among its survivors.

    ``survived`` holds when the first survivor of each part was confirmed, and when the last one was sent.
    """
    if not survived:
        return np.full(len(sent), WHOLE)
    before = sent > min(first_confirmed for first_confirmed, _ in survived)
    after = confirmed < max(last_sent for _, last_sent in survived)
    return np.select([before & after, before, after], [MIDDLE, POSTFIX, PREFIX], WHOLE)


check = ByParts(find, conclude)

CHECK = RunCheck(
    name="loss-shape",
    guarantee="none: it classifies lost messages by their position",
    subjects=(MESSAGES,),
    function=check,
    by_parts=check,
)
