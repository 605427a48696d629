"""Flow control of one session: its commands under way, its turn among all sessions, and its pauses in reading."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from nodes.reference.engine.limits import Limits
from nodes.reference.server.budget import Turns, TurnTaker
from nodes.reference.server.inflight import UnderWay

_HIGH_OUTPUT_BYTES = 1 << 18
"""Waiting output beyond which no more of a client's frames are taken: they would cause still more output."""


class Flow:
    """The flow control of a session.

    ``outstanding`` holds the commands under way, ``outstanding_bytes`` and ``outstanding_weight`` their sums. ``turn``
    is the last turn that the session has waited for, ``entering`` the size of the work that waits for it, and
    ``waiting_bytes`` the bytes that this work holds. ``reading`` is false while no input is read. ``paused``: the
    session waits until it may go on; ``at_share``: because all clients together have reached their limit.
    """

    def __init__(self, turns: Turns, limits: Limits) -> None:
        self._turns, self._limits = turns, limits
        self._loop = asyncio.get_running_loop()
        self.outstanding: deque[UnderWay] = deque()
        self.outstanding_bytes = self.outstanding_weight = 0
        self.turn: asyncio.Future[bool] | None = None
        self.entering = 0
        self.waiting_bytes = 0
        self._worker = TurnTaker()
        self.may_go_on = asyncio.Event()
        self.reading = True
        self.paused = self.at_share = False
        self.last_read = self._loop.time()

    @property
    def turns_end(self) -> int:
        """Return the virtual time at which the session's turns so far end."""
        return self._worker.finished

    def read(self) -> None:
        """Note that input is read now."""
        self.last_read = self._loop.time()

    def begin(self, under_way: UnderWay) -> None:
        """Count a command that is under way from now on."""
        self._turns.busy += not self.outstanding
        self._turns.weight += under_way.weight
        self.outstanding.append(under_way)
        self.outstanding_bytes += under_way.size
        self.outstanding_weight += under_way.weight

    def end_oldest(self) -> None:
        """Release the oldest command under way, which is done."""
        # There may be none: after a takeover, the outcomes of the older session's commands arrive here.
        if self.outstanding:
            self._release(self.outstanding.popleft())
            self._turns.busy -= not self.outstanding

    def let_go(self) -> None:
        """Release all commands under way, whose outcomes are no longer awaited, and the work that waits for its
        turn."""
        turns = self._turns
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(False)
            turns.admit()
        for each in self.outstanding:
            self._release(each)
        turns.busy -= bool(self.outstanding)
        self.outstanding.clear()

    def _release(self, done: UnderWay) -> None:
        """Release what a command under way occupied."""
        self._turns.weight -= done.weight
        self.outstanding_bytes -= done.size
        self.outstanding_weight -= done.weight
        if done.turn:
            self._turns.leave(done.turn)

    async def take_turn(self, work: UnderWay, count: Callable[[], None]) -> bool:
        """Wait until the work may be under way; return whether it was admitted. ``count`` updates the session's
        memory."""
        self.turn = self._turns.enter(self._worker, work.turn)
        if self.turn is None:
            return True
        self.entering = work.turn
        self.reading, self.waiting_bytes = False, work.size
        count()
        admitted = await self.turn
        self.waiting_bytes = 0
        self.reading = True
        self.read()
        self.entering = 0
        return admitted

    def is_full(self, output: int) -> bool:
        """Return whether too many commands are under way, or too much output waits (``output`` bytes)."""
        limits = self._limits
        return (self.outstanding_weight >= limits.max_outstanding
                or self.outstanding_bytes >= limits.max_outstanding_bytes
                or output > _HIGH_OUTPUT_BYTES or self._has_share())

    def _has_share(self) -> bool:
        """Return whether all clients together have reached their limit of work, and this one its equal share of it."""
        turns, most = self._turns, self._limits.max_under_way
        return bool(self.outstanding) and turns.weight >= most and self.outstanding_weight * turns.busy >= most

    async def pause(self, must_wait: Callable[[], bool]) -> None:
        """Read nothing while ``must_wait`` is true; it is asked again each time that ``may_go_on`` is set."""
        self.reading, self.paused = False, True
        while must_wait():
            self.at_share = self._has_share()
            self.may_go_on.clear()
            await self.may_go_on.wait()
        self.reading, self.paused = True, False
        self.read()
