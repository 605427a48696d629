"""Kills that strike a simulated program exactly at one of its named points (``nodes.reference.points``)."""

from __future__ import annotations

from collections.abc import Callable


class Struck(BaseException):
    """Leaves the code of a process that was killed at a point; no ``except Exception`` of its own may stop this."""


class Strike:
    """Ends a process when it comes to ``point`` for the ``hit``-th time (from 1 on) since this was armed.

    ``end`` ends the process; ``struck`` tells whether that has happened.
    """

    def __init__(self, point: str, hit: int, end: Callable[[], None]) -> None:
        self.point = point
        self.hit = hit
        self.struck = False
        self._end = end

    def reached(self, name: str) -> None:
        """The process is at a point.

        Raises:
            Struck: it was the one.
        """
        if name != self.point or self.struck:
            return
        self.hit -= 1
        if self.hit == 0:
            self.struck = True
            self._end()
            raise Struck(name)
