"""What all sessions of a broker share: memory, and how much of their work may be under way at a time.

Nothing here decides what a command does: replicas may differ in it. It ends sessions, or makes their clients wait.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar


class Holder(Protocol):
    """A session, as the budget sees it; ``held`` is in bytes."""

    held: int

    def end(self, reason: str) -> None:
        """End it; it holds nothing then."""


T = TypeVar("T", bound=Holder)

_PAUSE = 4
"""Turns of the event loop between large pieces of work: small commands that have come are read and done first."""


class Budget:
    """Bytes that all sessions hold together: what came of unfinished frames, what is under way, what waits to go out.

    When there are more than ``limit``, the session that holds most is ended, and the next. One that holds less than
    its equal share never is: there is always one that holds more.
    """

    def __init__(self, limit: int, sessions: Callable[[], Iterable[Holder]]) -> None:
        self._limit, self._sessions = limit, sessions
        self.total = 0

    def note(self, holder: Holder, held: int) -> None:
        """A session holds so much now."""
        self.total += held - holder.held
        holder.held = held
        while self.total > self._limit:
            greediest = max(self._sessions(), key=lambda session: session.held)
            most = greediest.held
            greediest.end(f"the connections together hold more than {self._limit} bytes, and this one most: {most}")
            if greediest.held == most:
                break  # it is about to end anyway


class Worker:
    """Who has work that takes turns; ``finished`` is where its turns end so far, in the virtual time of ``Turns``."""

    finished = 0


class Turns:
    """Lets the work of many clients through side by side, so that nobody waits behind all that another has sent.

    ``limit`` bytes of large frames, or other work of that size, are under way at a time, at least one frame; the others
    wait for their turn. Who has had little is before who has had much: Start-time Fair Queueing (Goyal, Vin and Cheng,
    1996), with equal weights. ``weight`` is that of all commands under way, ``busy`` the number of sessions that have
    any, ``taken`` the size of what has its turn.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0
        self._clock = 0
        self._number = 0
        self._pausing = False
        self._waiting: list[tuple[int, int, int, asyncio.Future[bool]]] = []
        self.weight = self.busy = 0

    def enter(self, worker: Worker, size: int) -> asyncio.Future[bool] | None:
        """Begin with work of that size: at once (None), or when the future is done. Its result tells whether."""
        start = max(self._clock, worker.finished)
        worker.finished = start + size
        if not self._waiting and self._fits(size):
            self._begin(start, size)
            return None
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._number += 1
        heapq.heappush(self._waiting, (start, self._number, size, turn))
        return turn

    def leave(self, size: int) -> None:
        """Work that had its turn is done; who waits is let in when what others have sent meanwhile has been read."""
        self.taken -= size
        if self._waiting and not self._pausing:
            self._pausing = True
            self._pause(_PAUSE)

    def _pause(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._pause, turns - 1)
        else:
            self._pausing = False
            self.admit()

    def admit(self) -> None:
        """Let in who waits, as far as there is room."""
        while self._waiting:
            start, _, size, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(size):
                    break
                self._begin(start, size)
                turn.set_result(True)
            heapq.heappop(self._waiting)

    @property
    def stands_still(self) -> bool:
        """Whether somebody waits for whom there is room; not for longer than it takes to read what others have sent."""
        waiting = [each for each in self._waiting if not each[3].done()]
        return bool(waiting) and self._fits(min(waiting)[2])

    def _begin(self, start: int, size: int) -> None:
        self.taken += size
        self._clock = max(self._clock, start)

    def _fits(self, size: int) -> bool:
        return not self.taken or self.taken + size <= self._limit
