"""Preparation of a system whose replicas may still be joining each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

PREPARE_SECONDS, PREPARE_PAUSE_SECONDS = 30.0, 0.5
"""The time that replicas have to join each other, and the pause between two attempts."""


async def until_done(attempt: Callable[[], Awaitable[None]]) -> None:
    """Await ``attempt()`` until it succeeds; after ``PREPARE_SECONDS`` raise its last error.

    An attempt may fail with any error: which one depends on how far the replicas are.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PREPARE_SECONDS
    while True:
        try:
            return await attempt()
        except Exception:
            if loop.time() > deadline:
                raise
            await asyncio.sleep(PREPARE_PAUSE_SECONDS)
