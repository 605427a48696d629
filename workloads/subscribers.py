"""Generators of publishers and subscribers, of topics and of events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stormproof.generator import PENDING, Answer, Context, Generator, Pending, Seed, lift
from stormproof.operation import FAIL, INFO, INVOKE, OK, Op
from stormproof.test import Test
from workloads.queue import Enqueues


class Publishes(Enqueues):
    """One producer thread's messages, for topics in turn."""

    f = "publish"


@dataclass(frozen=True, slots=True)
class SubscriberLoad(Generator):
    """One subscriber thread: it requests its subscription until that succeeds, then takes (``take`` names the
    operation).

    With ``away`` above 0 it detaches after ``stay`` operations on average and reattaches after ``away`` nanoseconds.
    ``deletes`` is the share of the departures in which it deletes the subscription instead, and then creates another
    one. A drain ends with the first take that finds no message left.
    """

    key: int
    mask: int
    ask: str
    take: str
    seed: Seed
    stay: int = 0
    away: int = 0
    subscribed: bool = False
    due: int = 0
    deletes: float = 0.0

    def op(self, test: Test, ctx: Context) -> Answer:
        if ctx.time < self.due:
            return Pending(self.due), self
        if not ctx.free:
            return PENDING, self
        if not self.subscribed:
            return ctx.fill(Op(INVOKE, self.ask, self.mask, self.key)), self
        if not self.away:
            return ctx.fill(Op(INVOKE, self.take, None, self.key)), self
        draw, seed = self.seed.below(self.stay)
        f = "detach" if draw == 0 else self.take
        if draw == 0 and self.deletes:
            place, seed = seed.below(100)
            f = "delete" if place < 100 * self.deletes else f
        return ctx.fill(Op(INVOKE, f, None, self.key)), replace(self, seed=seed)

    def update(self, test: Test, ctx: Context, event: Op) -> Generator:
        if event.type == INVOKE:
            return self
        if event.type == INFO:  # the thread continues as another process, with another connection
            return replace(self, subscribed=False, due=ctx.time + RETRY_NANOSECONDS)
        if event.f == self.ask:
            done = event.type == OK
            return replace(self, subscribed=done, due=0 if done else ctx.time + RETRY_NANOSECONDS)
        if event.f in ("detach", "delete") and event.type == OK:
            # A subscription that is created after a deletion is another subscription, though its name is the same.
            key = self.key + subscriptions(test.options) * (event.f == "delete")
            return replace(self, key=key, subscribed=False, due=ctx.time + self.away)
        if event.f == "drain" and event.type == FAIL and event.error == "empty":
            return lift(None)
        if event.type == FAIL and event.error not in ("empty", GIVEN_BACK):  # perhaps there is a new connection
            return replace(self, subscribed=False, due=ctx.time + RETRY_NANOSECONDS)
        return self


RETRY_NANOSECONDS = 250_000_000
"""Nanoseconds before a failed subscription is requested again."""


def subscriptions(options: Mapping[str, Any]) -> int:
    """Return the number of subscriptions at a time. A subscription that is created after another of its name was
    deleted has a number that is larger by this."""
    return max(1, int(options.get("durables", 0)) + int(options.get("transients", 0)))


GIVEN_BACK = "given back"
"""The error of an operation that took a message and gave it back."""
