"""The present ports and addresses of a project's machines, kept up to date while containers come and go."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import select
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import docker
from docker.errors import DockerException

from harness.backends.docker_leftovers import LABEL_RUN

_EVENTS = ["start", "die", "connect", "disconnect"]


class EventWatch:
    """Calls ``changed`` in the harness's loop after containers of a run were started or ended, or networks changed."""

    def __init__(self, run: str, changed: Callable[[], Awaitable[None]]) -> None:
        self._run, self._changed = run, changed
        self._loop = asyncio.get_running_loop()
        self._client: docker.DockerClient | None = None
        self._stream: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._wanted = False
        self._over = False

    def start(self) -> None:
        """Begin to listen."""
        self._client = docker.from_env(timeout=None)  # type: ignore[arg-type]
        self._stream = self._client.api.events(filters={"event": _EVENTS}, decode=True)
        threading.Thread(target=self._listen, name="stormproof-events", daemon=True).start()

    def stop(self) -> None:
        """Stop listening."""
        self._over = True
        for each in (self._stream, self._client):
            if each is not None:
                with contextlib.suppress(Exception):
                    each.close()

    def _listen(self) -> None:
        with contextlib.suppress(DockerException, OSError, ValueError, AttributeError):
            for event in self._stream:
                labels = (event.get("Actor") or {}).get("Attributes") or {}
                if self._over:
                    return
                if labels.get(LABEL_RUN) in (self._run, None):  # events of networks lack the container's labels
                    with contextlib.suppress(RuntimeError):
                        self._loop.call_soon_threadsafe(self._schedule)

    def _schedule(self) -> None:
        """Run ``changed`` once more after the present run of it, however many events arrive."""
        self._wanted = True
        if not self._tasks:
            task = self._loop.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        while self._wanted and not self._over:
            self._wanted = False
            await self._changed()


def probe_addresses(targets: Sequence[str], seconds: float) -> str:
    """Return whether this thread's network reaches any of some addresses: ``open``, ``cut``, or ``unknown`` without
    addresses.

    Port 9 (discard) is closed on ordinary machines, so a packet that arrives is answered at once by a refusal.
    """
    if not targets:
        return "unknown"
    waiting: dict[int, socket.socket] = {}
    try:
        poll = select.poll()
        for address in targets:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            each = socket.socket(family, socket.SOCK_STREAM)
            each.setblocking(False)
            status = each.connect_ex((address, 9))
            if status in (0, errno.ECONNREFUSED):
                each.close()
                return "open"
            waiting[each.fileno()] = each
            poll.register(each, select.POLLOUT | select.POLLERR | select.POLLHUP)
        deadline = time.monotonic() + seconds
        while waiting and (left := deadline - time.monotonic()) > 0:
            for number, _ in poll.poll(left * 1000):
                status = waiting[number].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if status in (0, errno.ECONNREFUSED):
                    return "open"
                poll.unregister(number)
                waiting.pop(number).close()
        return "cut"
    finally:
        for each in waiting.values():
            each.close()
