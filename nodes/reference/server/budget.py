"""What all sessions of a broker share: memory, and how much of their work may be under way at a time.

Nothing here decides what a command does: replicas may differ in it. It ends sessions, or makes their clients wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar


class Holder(Protocol):
    """A session, as the budget sees it; ``held`` is in bytes."""

    held: int

    def end(self, reason: str) -> None:
        """End it; it holds nothing then."""


T = TypeVar("T", bound=Holder)


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


class Turns:
    """Lets the work of many clients through side by side, so that nobody waits behind all that another has sent.

    ``limit`` bytes of large frames are under way at a time, at least one frame; the others wait for their turn, first
    come, first served. ``weight`` is that of all commands under way, ``busy`` the number of sessions that have any.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[bool]]] = deque()
        self.weight = self.busy = 0

    def enter(self, size: int) -> asyncio.Future[bool] | None:
        """Begin with a frame of that size: at once (None), or when the future is done. Its result tells whether."""
        if not self._waiting and self._fits(size):
            self._taken += size
            return None
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        return turn

    def leave(self, size: int) -> None:
        """A frame that had its turn is done."""
        self._taken -= size
        self.admit()

    def admit(self) -> None:
        """Let in who waits, as far as there is room."""
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(size):
                    break
                self._taken += size
                turn.set_result(True)
            self._waiting.popleft()

    def _fits(self, size: int) -> bool:
        return not self._taken or self._taken + size <= self._limit
