"""What becomes of clients that nobody uses any more: what was confirmed to them is made safe, then they are closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from harness.protocols import Client, Settling
from nodes.timeouts import within

CLOSE_SECONDS = 5.0
"""Hard limit for closing one client."""

logger = logging.getLogger("stormproof.interpreter")


class Leaving:
    """Clients on their way out, which may take long.

    Tasks are kept in the order in which they began: the order in a set would be that of their addresses in
    memory, which no simulated run may depend on.
    """

    def __init__(self) -> None:
        self._settling: dict[asyncio.Task[None], None] = {}
        self._closing: dict[asyncio.Task[None], None] = {}

    def leave(self, client: Client) -> None:
        """Settle a client, if it can, and close it, in the background."""
        if isinstance(client, Settling):
            _track(self._settling, self._settle_and_close(client))
        else:
            self._close(client)

    async def settle(self, clients: Iterable[Client], timeout: float) -> bool:
        """Let these clients, which stay in use, and those that are leaving settle; close those that leave.

        False when some could not settle within ``timeout`` seconds: they have stopped trying.
        """
        staying = [asyncio.create_task(client.settle()) for client in clients if isinstance(client, Settling)]
        tasks = [*staying, *self._settling]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        late = await _cancelled(tasks)
        await self._closed()
        return not late

    async def end(self, clients: Iterable[Client]) -> None:
        """Close these clients, and those that are leaving, settled or not."""
        await asyncio.sleep(0)  # a task that is cancelled before its first step never comes to closing its client
        await _cancelled(list(self._settling))
        for client in clients:
            self._close(client)
        await self._closed()

    async def _settle_and_close(self, client: Settling) -> None:
        try:
            await client.settle()
        finally:
            self._close(client)

    def _close(self, client: Client) -> None:
        _track(self._closing, _close(client))

    async def _closed(self) -> None:
        if self._closing:
            await asyncio.wait(list(self._closing))


def _track(tasks: dict[asyncio.Task[None], None], work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work, name="leaving")
    tasks[task] = None
    task.add_done_callback(lambda done: tasks.pop(done, None))


async def _cancelled(tasks: list[asyncio.Task[None]]) -> list[asyncio.Task[None]]:
    """Cancel those that are not done, and wait until they have ended; returns them."""
    late = [task for task in tasks if not task.done()]
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late)
    return late


async def _close(client: Client) -> None:
    """Close a client; one that raises or hangs costs nobody else anything."""
    try:
        async with within(CLOSE_SECONDS):
            await client.close()
    except Exception as error:
        logger.warning("closing a client failed: %s", f"{type(error).__name__}: {error}".removesuffix(": "))
