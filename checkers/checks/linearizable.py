"""Linearizability of each queue as an unordered queue (a bag), decided by porcupine.

Without observations of "empty", bags of different queues form one bag of (queue, message) pairs, so one call of
porcupine decides all queues of a run. Only if that call does not find them linearizable is each queue checked alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from porcupine import CheckResult, ColumnsResult, check_queue_columns
from porcupine.columns import NEVER

# Loads the kernel that ``check_queue_columns`` needs, so that workers are forked with it and ``checkers.prepare``
# compiles it.
from porcupine.kernels import monitor_queue as _monitor_queue  # noqa: F401

from checkers.api import ByParts, NeedsWhole, RunCheck, WholeRun
from checkers.kernels.deliveries import takes_in_order
from checkers.kernels.queues import FAILED
from checkers.queue_columns import QueueColumns, columns_of
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.run_folder import picture_name
from stormproof.text import amount
from stormproof.vocabulary import MESSAGES

MODEL = "unordered-queue"
QUEUE_SECONDS = 1.0
QUEUE_MEMORY = 256 << 20
"""Limits of time and memory for porcupine on one queue; a queue that it cannot decide within them is unknown."""
RUN_SECONDS = 10.0
"""After this time the check begins no further queue of a run."""
MAX_PICTURES = 5
"""The maximum number of queues of one run that get a page."""


def check(run: Run) -> CheckOutcome:
    """Decide whether each queue behaved as if every operation had happened at one instant, messages in any order.

    A send that ended ``ok`` put its message in; one that ended ``info`` may have, at any time after it was invoked. A
    ``dequeue`` or ``drain`` that ended ``ok`` took its message out. A delivery whose ACK is unknown may not have taken
    it, and so constrains nothing. A poll that found no message does not prove that the queue was empty. Counts queues.
    """
    try:
        return conclude([find(run)], run)
    except NeedsWhole:
        pass
    columns = columns_of(run)
    queues = np.unique(columns.key).tolist()
    figures: dict[str, object] = {"model": MODEL, "queues": len(queues), "operations": len(columns.f)}
    if not queues:
        return CheckOutcome(UNKNOWN, 0, "no operation put a message into a queue or took one out", (), figures)
    whole = _decide(columns, run.history.rows)
    if whole.verdict is CheckResult.OK:
        return _held(len(queues), figures)
    illegal, unknown = _by_queue(run, columns, queues)
    if not illegal:
        some = f"{len(unknown):,} of {amount(len(queues), 'queue')}"
        text = f"{some} could not be decided within the limits of time and memory"
        return CheckOutcome(UNKNOWN, 0, text, (), {**figures, "undecided": len(unknown)})
    examples = tuple(
        _anomaly(run, key, result, operations, pictured=place < MAX_PICTURES)
        for place, (key, operations, result) in enumerate(illegal[:MAX_EXAMPLES])
    )
    pages = {picture_name(key): partial(_page, run, operations, result)
             for key, operations, result in illegal[:MAX_PICTURES]}  # fmt: skip
    first = examples[0]
    where = f" (message {first.value} of queue {first.key})" if first.value else f" (queue {first.key})"
    text = f"{len(illegal):,} of {amount(len(queues), 'queue')} not linearizable: {first.detail['reason']}{where}"
    return CheckOutcome(INVALID, len(illegal), text, examples, {**figures, "undecided": len(unknown)}, pages)


@dataclass
class InOrder:
    """A part of a run in which each message is in order by itself; the keys of its queues."""

    queues: set[int]
    operations: int


def find(run: Run) -> InOrder | None:
    """Judge a part of a run by ``deliveries.takes_in_order``; return None if something is not in order."""
    messages, h = run.messages, run.history
    takes = takes_in_order(h.role, h.kind, messages.of_row, messages.sent, messages.state)
    if takes < 0:
        return None
    put = messages.key[(messages.sent >= 0) & (messages.state != FAILED)]
    return InOrder(set(np.unique(put).tolist()), len(put) + takes)


def conclude(parts: Sequence[InOrder | None], whole: WholeRun) -> CheckOutcome:
    """Conclude that the queues are linearizable if every message is in order by itself.

    Raises:
        NeedsWhole: some message is not in order, or there is nothing to judge.
    """
    queues: set[int] = set()
    operations = 0
    for part in parts:
        if part is None:
            raise NeedsWhole
        queues |= part.queues
        operations += part.operations
    if not queues:
        raise NeedsWhole
    return _held(len(queues), {"model": MODEL, "queues": len(queues), "operations": operations})


def _held(queues: int, figures: dict[str, object]) -> CheckOutcome:
    text = f"{amount(queues, 'queue')} linearizable, messages in any order"
    return CheckOutcome(VALID, 0, text, (), figures)


def _decide(columns: QueueColumns, rows: int) -> ColumnsResult:
    """Return porcupine's verdict on a history of ``rows`` rows."""
    used = np.zeros(rows, dtype=np.bool_)
    used[columns.call] = True
    used[columns.ret[columns.ret != NEVER]] = True
    # Positions without gaps save porcupine a sort.
    place = np.cumsum(used) - 1
    ret = np.where(columns.ret == NEVER, NEVER, place[columns.ret])
    return check_queue_columns(
        columns.f, columns.value, place[columns.call], ret, unordered=True, timeout=QUEUE_SECONDS,
        max_memory=QUEUE_MEMORY,
    )  # fmt: skip


def _by_queue(
    run: Run, columns: QueueColumns, queues: list[int]
) -> tuple[list[tuple[int, QueueColumns, ColumnsResult]], list[int]]:
    """Return the queues that are not linearizable, with their operations and the evidence; and the undecided queues."""
    deadline = time.monotonic() + RUN_SECONDS
    illegal, unknown = [], []
    for key in queues:
        operations = columns.of(columns.key == key)
        result = _decide(operations, run.history.rows) if time.monotonic() < deadline else None
        if result is None or result.verdict is CheckResult.UNKNOWN:
            unknown.append(key)
        elif result.verdict is CheckResult.ILLEGAL:
            illegal.append((key, operations, result))
    return illegal, unknown


def _anomaly(run: Run, key: int, result: ColumnsResult, operations: QueueColumns, *, pictured: bool) -> Anomaly:
    rows = [int(operations.call[place]) for place in result.rows]
    message = int(operations.value[result.rows[0]]) - 1 if result.rows else -1
    value = run.messages.name(message) if 0 <= message < len(run.messages.key) else None
    detail: dict[str, object] = {"reason": result.pattern or "no order of its operations is right"}
    if pictured:
        detail["picture"] = picture_name(key)
    return Anomaly("not-linearizable", run.rows_of(*rows), key, value, detail)


def _page(run: Run, operations: QueueColumns, result: ColumnsResult) -> str:
    # Few runs need a page: the others need not load the code that draws it.
    from checkers.counterexample_pages import picture

    return picture(run, MODEL, operations, result.rows)


CHECK = RunCheck(
    name="linearizable",
    guarantee="each queue is linearizable as an unordered queue: nothing comes twice, nothing from nowhere",
    subjects=(MESSAGES,),
    function=check,
    by_parts=ByParts(find, conclude),
)
