"""Resources that all sessions of a broker share: memory, and the amount of their work under way at a time.

Nothing here affects the result of a command, so replicas may differ in it: it only ends sessions, or delays their
clients.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar


class MemoryHolder(Protocol):
    """A session, as the budget sees it; ``held`` is in bytes."""

    held: int

    def end(self, reason: str) -> None:
        """End the session, which then holds nothing."""


T = TypeVar("T", bound=MemoryHolder)

_PAUSE_TURNS = 4
"""Turns of the event loop between large pieces of work, in which small commands that have arrived are done first."""


class HeldMemory:
    """The bytes that all sessions hold together: unfinished frames, work under way, and waiting output.

    While there are more than ``limit``, the session that holds most is ended. A session below its equal share never is:
    there is always one that holds more.
    """

    def __init__(self, limit: int, sessions: Callable[[], Iterable[MemoryHolder]]) -> None:
        self._limit, self._sessions = limit, sessions
        self.total = 0

    def note(self, holder: MemoryHolder, held: int) -> None:
        """Update the number of bytes that a session holds."""
        self.total += held - holder.held
        holder.held = held
        while self.total > self._limit:
            greediest = max(self._sessions(), key=lambda session: session.held)
            most = greediest.held
            greediest.end(f"the connections together hold more than {self._limit} bytes, and this one most: {most}")
            if greediest.held == most:
                break  # it is about to end anyway


class TurnTaker:
    """An owner of work that takes turns; ``finished`` is the end of its turns so far, in the virtual time of
    ``Turns``."""

    finished = 0


class Turns:
    """Interleaves the work of many clients, so that no client waits behind all the work that another has sent.

    ``limit`` bytes of large frames, or other work of that size, are under way at a time, at least one frame; the others
    wait for their turn. Clients that have had little work done precede those that have had much: Start-time Fair
    Queueing (Goyal, Vin and Cheng, 1996), with equal weights. ``weight`` is that of all commands under way, ``busy``
    the number of sessions that have any, ``taken`` the size of the work that has its turn.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0
        self._clock = 0
        self._number = 0
        self._pausing = False
        self.waiting: list[tuple[int, int, int, asyncio.Future[bool]]] = []
        """Heap of waiting work: its start in virtual time, a number, its size, and its turn."""
        self.weight = self.busy = 0

    @property
    def clock(self) -> int:
        """Return the virtual time: the latest start of work that has begun."""
        return self._clock

    def enter(self, worker: TurnTaker, size: int) -> asyncio.Future[bool] | None:
        """Begin work of that size: at once (None), or when the future is done. Its result tells whether to begin."""
        start = max(self._clock, worker.finished)
        worker.finished = start + size
        if not self.waiting and self.fits(size):
            self._begin(start, size)
            return None
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._number += 1
        heapq.heappush(self.waiting, (start, self._number, size, turn))
        return turn

    def leave(self, size: int) -> None:
        """End the turn of finished work; waiting work is admitted after the input of others has been read."""
        self.taken -= size
        if self.waiting and not self._pausing:
            self._pausing = True
            self._pause(_PAUSE_TURNS)

    def _pause(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._pause, turns - 1)
        else:
            self._pausing = False
            self.admit()

    def admit(self) -> None:
        """Admit waiting work while there is room."""
        while self.waiting:
            start, _, size, turn = self.waiting[0]
            if not turn.done():
                if not self.fits(size):
                    break
                self._begin(start, size)
                turn.set_result(True)
            heapq.heappop(self.waiting)

    def _begin(self, start: int, size: int) -> None:
        self.taken += size
        self._clock = max(self._clock, start)

    def fits(self, size: int) -> bool:
        """Return whether work of that size may begin now."""
        return not self.taken or self.taken + size <= self._limit
