"""A version of ``asyncio.timeout`` that works reliably while a cancelled task cleans up.

In such a task, Python 3.11.0 to 3.11.3 (Debian 12 has 3.11.2) raise CancelledError instead of TimeoutError when the
time is over, and so end the clean-up in the middle: https://github.com/python/cpython/issues/102780.
"""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import Self


class _Timeout(asyncio.Timeout):  # type: ignore[misc]  # final, for types; these few versions of Python don't change
    """Distinguishes its own cancellation from those that were requested of the task before."""

    async def __aenter__(self) -> Self:
        self._asked_before = _cancelling()
        await super().__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await super().__aexit__(exc_type, exc_val, exc_tb)
        if self.expired() and exc_type is asyncio.CancelledError and _cancelling() <= self._asked_before:
            raise TimeoutError from exc_val


def _cancelling() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def within(seconds: float | None) -> asyncio.Timeout:
    """Act as ``asyncio.timeout``: raise TimeoutError when the block takes longer; None means no limit."""
    if sys.version_info >= (3, 11, 4):
        return asyncio.timeout(seconds)
    return _Timeout(None if seconds is None else asyncio.get_running_loop().time() + seconds)
