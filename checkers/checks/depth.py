"""Queue depth at the end: after the drain nothing may be left."""

from __future__ import annotations

from checkers.api import RunCheck
from checkers.run import Run, noun_of
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import MESSAGES, TOPICS, TRANSACTIONS


def check(run: Run) -> CheckOutcome:
    """Messages left in drained queues (or durable subscriptions); unknown where the depth was not read or the drain did
    not finish."""
    noun = noun_of(run)
    left = {queue: found for queue, found in run.depths.items() if found[0] > 0}
    stuck = {queue: found for queue, found in left.items() if queue not in run.undrained}
    count = sum(depth for depth, _ in stuck.values())
    figures = {"depths": {str(queue): depth for queue, (depth, _) in run.depths.items()}}
    if count:
        examples = tuple(
            Anomaly("left-in-queue", run.rows_of(row), queue, None, {"messages": depth})
            for queue, (depth, row) in list(stuck.items())[:MAX_EXAMPLES]
        )
        text = f"{amount(count, 'message was', 'messages were')} left in drained {noun}s"
        return CheckOutcome(INVALID, count, text, examples, figures)
    unread = [queue for queue in run.queues if queue not in run.depths]
    if unread:
        return CheckOutcome(UNKNOWN, 0, f"the depth of {noun} {_list(unread)} was not read", (), figures)
    if left:
        text = f"{noun} {_list(list(left))} holds messages, but its drain did not finish"
        return CheckOutcome(UNKNOWN, 0, text, (), figures)
    return CheckOutcome(VALID, 0, f"every {noun} was empty at the end", (), figures)


def _list(queues: list[int]) -> str:
    shown = ", ".join(map(str, queues[:5]))
    return shown if len(queues) <= 5 else f"{shown} and {len(queues) - 5} others"


CHECK = RunCheck(
    name="depth",
    guarantee="a drained queue is empty",
    anomaly="depth",
    decides=True,
    subjects=(MESSAGES, TOPICS, TRANSACTIONS,),
    one="message was left after everything was drained",
    more="messages were left after everything was drained",
    function=check,
)
