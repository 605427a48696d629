"""Connections that are written on a blocking library: their calls run in threads.

``connection`` makes a connection of an object whose methods block. A call that never returns leaves its thread behind;
the next call gets another thread, so that the connection can still be closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, TypeVar

from stormproof.apart import as_exception, class_like
from stormproof.contracts.client import Delivery
from stormproof.timeout_scale import TIMEOUT_FACTOR

T = TypeVar("T")

CALL_SECONDS = 60.0 * TIMEOUT_FACTOR
"""The time limit for one call. It is longer than the harness's own limits, which apply first."""


def connection(blocking: Any, seconds: float = CALL_SECONDS) -> Any:
    """Return a connection for the harness whose calls are those of ``blocking``, each in a thread.

    ``blocking`` has the methods of a connection (``stormproof.contracts.client``) as ordinary functions; so has a
    ``Delivery`` that its ``take`` returns: ``ack`` and ``give_back`` block. Its coroutines are awaited in the event
    loop. Its attributes (``prefetch``, ``heartbeat``) stay visible. Calls run one after the other, in one thread.

    A call that takes longer than ``seconds`` raises TimeoutError, and a cancelled call ends at once; in both cases the
    operation may still happen. If such a call returns after ``close``, ``close`` is called again: the call may have
    opened a connection.
    """
    kind: type = type(blocking)
    return class_like(_Blocking, kind, frozenset(getattr(blocking, "__dict__", ())))(blocking, seconds)


class InThread:
    """Runs blocking calls one after the other in a thread. A call that does not return is left behind with its thread.

    Threads are daemons: they do not keep the process alive.
    """

    def __init__(self, seconds: float = CALL_SECONDS) -> None:
        """``seconds`` is the time limit of each call."""
        self._seconds = seconds
        self._jobs: SimpleQueue[Callable[[], None] | None] | None = None

    async def __call__(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call ``function`` in the thread and return its result.

        Raises:
            TimeoutError: it did not return in time. Any other: the ``Exception`` that it raised, or an exception that
                describes what it raised.
        """
        return await self.call(functools.partial(function, *arguments, **named), lambda: None)

    async def call(self, function: Callable[[], T], late: Callable[[], object]) -> T:
        """Call ``function`` as above; if it returns after it was left behind, its thread then calls ``late``."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        left = threading.Event()

        def finish(value: Any, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(value)
            else:
                done.set_exception(as_exception(error))

        def job() -> None:
            value, error = None, None
            try:
                value = function()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(finish, value, error)
            if left.is_set():
                with contextlib.suppress(Exception):
                    late()

        if self._jobs is None:
            self._jobs = SimpleQueue()
            threading.Thread(target=_work, args=(self._jobs,), name="stormproof-blocking", daemon=True).start()
        self._jobs.put(job)
        try:
            await asyncio.wait({done}, timeout=self._seconds)
        finally:
            if not done.done():
                left.set()
                self.end()
        if done.done():
            return done.result()
        done.cancel()
        raise TimeoutError(f"no answer within {self._seconds:g} s")

    def end(self) -> None:
        """Let the thread end after the calls that it has; a further call gets another thread."""
        jobs, self._jobs = self._jobs, None
        if jobs is not None:
            jobs.put(None)


def _work(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()


class _Blocking:
    """A connection whose methods run in threads; its class has a method for each method of the real connection."""

    def __init__(self, real: Any, seconds: float) -> None:
        self._real, self._thread = real, InThread(seconds)
        self._closed = False

    def __del__(self) -> None:
        self._thread.end()

    async def _call(self, name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*arguments, **named)
        if name == "close":
            self._closed = True
        try:
            found = await self._thread.call(functools.partial(function, *arguments, **named), self._close_again)
        finally:
            if self._closed:
                self._thread.end()
        return self._wrapped(found) if isinstance(found, Delivery) else found

    def _close_again(self) -> None:
        """In the thread of a call that was left behind, once it has returned."""
        if self._closed:
            self._real.close()

    def _wrapped(self, found: Delivery) -> Delivery:
        def awaitable(name: str, function: Callable[[], Any]) -> Callable[[], Awaitable[None]]:
            async def call() -> None:
                await self._call(name, function)

            return call

        return replace(found, ack=awaitable("ack", found.ack),
                       give_back=found.give_back and awaitable("give_back", found.give_back))  # fmt: skip
