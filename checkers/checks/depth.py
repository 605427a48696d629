"""Queue depth at the end: after the drain, queues must be empty."""

from __future__ import annotations

from collections.abc import Mapping

from checkers.api import RunCheck
from checkers.run import Run, noun_of
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import MESSAGES, TOPICS, TRANSACTIONS


def check(run: Run) -> CheckOutcome:
    """Find messages left in drained queues (or durable subscriptions).

    Unknown if the depth was not read and no fences showed that the queue was empty, the drain did not finish, or
    operations that never completed may hold as many messages as are left.
    """
    noun = noun_of(run)
    left = {queue: found for queue, found in run.depths.items() if found[0] > 0}
    stuck = {queue: (depth - int(held), row) for queue, (depth, row) in left.items()
             if queue not in run.undrained and (held := run.still_open.get(queue, 0)) < depth}  # fmt: skip
    count = sum(depth for depth, _ in stuck.values())
    figures = {"depths": {str(queue): depth for queue, (depth, _) in run.depths.items()}}
    if count:
        examples = tuple(
            Anomaly("left-in-queue", run.rows_of(row), queue, None, {"messages": depth})
            for queue, (depth, row) in list(stuck.items())[:MAX_EXAMPLES]
        )
        text = f"{amount(count, 'message was', 'messages were')} left in drained {noun}s"
        return CheckOutcome(INVALID, count, text, examples, figures)
    fenced = run.fenced_queues
    unread = [queue for queue in run.queues if queue not in run.depths and queue not in fenced]
    if unread:
        return CheckOutcome(UNKNOWN, 0, f"the depth of {noun} {_list(unread)} was not read", (), figures)
    if left:
        closed = [queue for queue in left if queue not in run.undrained]
        why = "operations that never ended may hold them" if closed else "its drain did not finish"
        text = f"{noun} {_list(closed or list(left))} holds messages, but {why}"
        return CheckOutcome(UNKNOWN, 0, text, (), figures)
    by = " (shown by fences, since nobody tells the depth)" if fenced else ""
    return CheckOutcome(VALID, 0, f"every {noun} was empty at the end{by}", (), figures)


def _list(queues: list[int]) -> str:
    shown = ", ".join(map(str, queues[:5]))
    return shown if len(queues) <= 5 else f"{shown} and {len(queues) - 5} others"


ONE, MORE = "message was left after everything was drained", "messages were left after everything was drained"


def tell(outcome: CheckOutcome, invalid: Mapping[str, CheckOutcome]) -> list[str]:
    """Return the clause for the messages left, without those already reported as lost: a message that is left and was
    never delivered is reported as lost.
    """
    count = outcome.count - sum(invalid[name].count for name in ("lost", "topic-lost") if name in invalid)
    return [amount(count, ONE, MORE)] if count > 0 else []


CHECK = RunCheck(
    name="depth",
    guarantee="a drained queue is empty",
    anomaly="depth",
    decides=True,
    subjects=(MESSAGES, TOPICS, TRANSACTIONS,),
    one=ONE,
    more=MORE,
    function=check,
    tell=tell,
)
