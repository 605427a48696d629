"""The end of clients that are no longer in use: their confirmed operations are made safe, then they are closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from nodes.timeouts import within
from stormproof.contracts.client import Abandoned, Client, Flushable
from stormproof.errors import errors_of_others
from stormproof.text import reason
from stormproof.timeout_scale import TIMEOUT_FACTOR

CLOSE_SECONDS = 5.0
"""Hard limit for closing one client."""
LEAVE_SECONDS = 2.0 * TIMEOUT_FACTOR
"""The time that a task may take to end after its cancellation, before it is left behind."""

logger = logging.getLogger("stormproof.interpreter")


class ClientReaper:
    """Closes clients that are no longer in use, which may take long. ``not_closed`` receives the reason for each client
    that is left behind.

    Tasks are kept in the order in which they began. A set would order them by their addresses in memory, and no
    simulated run may depend on those.
    """

    def __init__(self, not_closed: Callable[[str], None]) -> None:
        self._not_closed = not_closed
        self._flushing: dict[asyncio.Task[None], None] = {}
        self._closing: dict[asyncio.Task[None], None] = {}

    def retire(self, client: Client) -> None:
        """Flush a client, if it is flushable, and close it, in the background."""
        if isinstance(client, Flushable):
            _track(self._flushing, self._flush_and_close(client))
        else:
            self._close(client)

    async def flush(self, clients: Iterable[Client], timeout: float) -> bool:
        """Flush these clients, which stay in use, and the retired ones; then close the retired ones.

        Return False when a flush did not finish within ``timeout`` seconds. Such flushes are cancelled.
        """
        staying = [asyncio.create_task(client.flush()) for client in clients if isinstance(client, Flushable)]
        tasks = [*staying, *self._flushing]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        late = await self._cancelled(tasks)
        await self._closed()
        return not late

    async def end(self, clients: Iterable[Client]) -> None:
        """Close these clients and the retired ones, whether flushed or not."""
        await asyncio.sleep(0)  # a task that is cancelled before its first step would never close its client
        await self._cancelled(list(self._flushing))
        for client in clients:
            self._close(client)
        await self._closed()

    async def _flush_and_close(self, client: Flushable) -> None:
        try:
            await client.flush()
        finally:
            self._close(client)

    def _close(self, client: Client) -> None:
        _track(self._closing, self._closed_at_last(client))

    async def _closed(self) -> None:
        """Wait for clients that are being closed. Those that never end are left behind."""
        if self._closing:
            _, late = await asyncio.wait(list(self._closing), timeout=CLOSE_SECONDS + LEAVE_SECONDS + 1)
            self._leave(self._closing, late, "close()")

    async def _cancelled(self, tasks: list[asyncio.Task[None]]) -> list[asyncio.Task[None]]:
        """Cancel the unfinished tasks, wait until they have ended, and return them."""
        late = [task for task in tasks if not task.done()]
        for task in late:
            task.cancel()
        if late:
            _, deaf = await asyncio.wait(late, timeout=LEAVE_SECONDS)
            self._leave(self._flushing, deaf, "flush()")
        return late

    def _leave(self, tasks: dict[asyncio.Task[None], None], late: Iterable[asyncio.Task[None]], name: str) -> None:
        for task in late:
            tasks.pop(task, None)
            self._not_closed(f"{name} did not end within {LEAVE_SECONDS:g} s of being cancelled")

    async def _closed_at_last(self, client: Client) -> None:
        """Close a client. A client that raises or hangs does not affect the others."""
        try:
            async with within(CLOSE_SECONDS):
                await client.close()
        except Abandoned as error:
            self._not_closed(str(error))
        except errors_of_others() as error:
            logger.warning("closing a client failed: %s", reason(error))


def _track(tasks: dict[asyncio.Task[None], None], work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work, name="reaper")
    tasks[task] = None
    task.add_done_callback(lambda done: tasks.pop(done, None))
