"""Show that a queue is empty although nobody tells its depth: by fences, messages that the harness sends.

The queue's only consumer sends a fence and takes until it returns. If the queue keeps its order, all earlier messages
have been delivered by then. For queues without order, the consumer also takes for a while between two fences. The queue
is empty if ``ROUNDS`` fences returned and no other message arrived. The last fence is sent ``span`` seconds after the
return of the first one: until then, the broker must redeliver the messages that lost connections held.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable

from stormproof.contracts.client import Delivery, NotDone

ROUNDS = 3
"""Fences that must return before a queue counts as empty: a single one may overtake messages."""
FENCE_LOST = "a fence did not come back"
"""Part of the error of a drain whose fence did not return: the broker may withhold other messages, too."""
_FENCE = re.compile(rb"stormproof-fence/[0-9a-f]{16}")


def is_fence(body: bytes) -> bool:
    """Return whether a message is a fence, of this client or any other."""
    return _FENCE.fullmatch(body) is not None


class FencedDrain:
    """Takes from one queue, as its only consumer, until fences show that the queue is empty.

    Args:
        send: sends a message to the queue, and returns when the broker has confirmed it.
        take: returns the queue's next message, or None if none arrived within the given number of seconds.
        patience: the time in seconds within which a fence must return.
        span: seconds from the first fence's return to the sending of the last one.
        poll: seconds for which the queue must be silent before a fence is sent, and after the last one.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[None]], take: Callable[[float], Awaitable[Delivery | None]],
                 *, patience: float, span: float, poll: float) -> None:  # fmt: skip
        self._send, self._take = send, take
        self._patience, self._span, self._poll = patience, span, poll

    async def next(self) -> Delivery | None:
        """Return the next message other than a fence, not acknowledged yet; None if the queue is empty.

        Raises:
            NotDone: a fence did not return, so it is unknown whether the queue is empty.
            Exception: as ``send``, ``take`` and the acknowledgement of a fence raise.
        """
        pause = self._poll
        for _ in range(ROUNDS):
            if message := await self._within(pause) or await self.pass_fence():
                return message
            pause = max(self._poll, self._span / (ROUNDS - 1))
        return await self._within(self._poll)

    async def pass_fence(self) -> Delivery | None:
        """Send a fence, and take until it returns; return a message that arrives before it. Raises as ``next``."""
        fence = b"stormproof-fence/%s" % secrets.token_hex(8).encode()
        await self._send(fence)
        deadline = _now() + self._patience
        while (left := deadline - _now()) > 0:
            delivery = await self._next_in_time(min(self._poll, left))
            if delivery is not None and not is_fence(delivery.body):
                return delivery
            if delivery is not None:
                await delivery.ack()
                if delivery.body == fence:
                    return None
        raise NotDone(f"{FENCE_LOST} within {self._patience:g} s")

    async def _within(self, seconds: float) -> Delivery | None:
        """Return the next message within ``seconds``; fences on the way are acknowledged and dropped."""
        until = _now() + seconds
        while (left := until - _now()) > 0:
            delivery = await self._next_in_time(min(self._poll, left))
            if delivery is not None and not is_fence(delivery.body):
                return delivery
            if delivery is not None:
                await delivery.ack()
        return None

    async def _next_in_time(self, seconds: float) -> Delivery | None:
        """Take for ``seconds``. If the broker answers early that there is nothing, wait for the rest of the time."""
        until = _now() + seconds
        delivery = await self._take(seconds)
        if delivery is None:
            await asyncio.sleep(max(0.0, until - _now()))
        return delivery


def _now() -> float:
    return asyncio.get_running_loop().time()
