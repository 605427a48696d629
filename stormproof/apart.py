"""Connections of a system's clients that can be left behind: each runs on a separate event loop, in a thread.

A coroutine that blocks stops its loop, and a coroutine that swallows its cancellation never ends. Neither harms the run
here: the call is left behind with its thread (``Abandoned``), and all other work continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from stormproof.contracts.client import Abandoned, Delivery
from stormproof.errors import StormproofError, errors_of_others
from stormproof.hook_types import demand_result
from stormproof.text import reason
from stormproof.timeout_scale import TIMEOUT_FACTOR

T = TypeVar("T")

LEAVE_SECONDS = 2.0 * TIMEOUT_FACTOR
"""The time limit in seconds for a call to end after its cancellation."""
MAKE_SECONDS = 10.0 * TIMEOUT_FACTOR
"""The time limit in seconds for creating a connection, which is not open yet."""

_CONNECTING = ("connect", "connect_copy")
"""The methods of connections that take the address to connect from."""

_here = threading.local()
logger = logging.getLogger("stormproof.apart")


async def left_after(seconds: float | None, work: Awaitable[T]) -> T:
    """Return the result of ``work``, a system's coroutine; leave it behind if it does not end even when cancelled.

    Raises:
        TimeoutError: it took longer than ``seconds`` (None: no limit). Any other: the ``Exception`` that it raised, or
            an exception that describes what it raised.
    """
    async def guarded() -> T:
        try:
            return await work
        except asyncio.CancelledError as error:
            if asked:
                raise
            raise as_exception(error) from error
        except errors_of_others() as error:
            raise as_exception(error) from error

    asked = False
    task = asyncio.ensure_future(guarded())
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            asked = True
            task.cancel()
            await asyncio.wait({task}, timeout=LEAVE_SECONDS)
    if not asked:
        return task.result()
    raise TimeoutError(f"no answer within {seconds:g} s")


async def at_home(call: Callable[[], Awaitable[T]]) -> T:
    """Await a call that belongs to the harness's loop, from any loop."""
    home: asyncio.AbstractEventLoop | None = getattr(_here, "home", None)
    if home is None or home is asyncio.get_running_loop():
        return await call()

    async def there() -> T:
        return await call()

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), home))


class OwnLoop:
    """An event loop in a thread; ``home`` is the harness's loop, which submits the calls."""

    def __init__(self) -> None:
        self.home = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        self._over = False
        threading.Thread(target=self._run, name="stormproof-connection", daemon=True).start()

    def _run(self) -> None:
        _here.home = self.home
        asyncio.set_event_loop(self._loop)
        while not self._over:
            try:
                self._loop.run_forever()
            except BaseException as error:  # asyncio lets SystemExit and KeyboardInterrupt of any task through
                logger.warning("a client's task raised %s", reason(error))
        self._loop.close()

    def end(self) -> None:
        """Let the thread end, once no call keeps it."""
        self._over = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)

    def make(self, factory: Callable[[], T]) -> T:
        """Return the result of ``factory``, called in the thread. Raises its exceptions, and TimeoutError if it takes
        too long."""
        outcome: list[Any] = []
        made = threading.Event()

        def begin() -> None:
            try:
                outcome.append((factory(), None))
            except BaseException as error:
                outcome.append((None, error))
            made.set()

        self._loop.call_soon_threadsafe(begin)
        if not made.wait(MAKE_SECONDS):
            raise TimeoutError
        value, error = outcome[0]
        if error is not None:
            raise as_exception(error)
        return value  # type: ignore[no-any-return]

    async def call(self, name: str, function: Callable[[], Any]) -> Any:
        """Call ``function`` in the thread and return its result; an awaitable result is awaited there.

        Raises:
            Abandoned: this call was cancelled, and the call in the thread did not end within ``LEAVE_SECONDS`` after
                that.
        """
        done: asyncio.Future[Any] = self.home.create_future()
        late: list[asyncio.Future[None]] = []
        over = False

        def finish(value: Any, error: BaseException | None) -> None:
            nonlocal over
            over = True
            if late and not late[0].done():
                late[0].set_result(None)
            if done.done():
                return
            if error is None:
                done.set_result(value)
            else:
                done.set_exception(as_exception(error))

        tasks = self.begin(function, finish)
        try:
            return await done
        except asyncio.CancelledError:
            if over:
                raise
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            late.append(self.home.create_future())
            with contextlib.suppress(asyncio.CancelledError):  # cancelled a second time: no time is left
                await asyncio.wait(late, timeout=LEAVE_SECONDS)
            if over:
                raise
            raise Abandoned(f"{name}() did not end within {LEAVE_SECONDS:g} s of being cancelled") from None

    def begin(self, function: Callable[[], Any], finish: Callable[[Any, BaseException | None], None]
              ) -> list[asyncio.Task[None]]:  # fmt: skip
        """Call ``function`` in the thread, and then ``finish`` in the harness's loop with its result or error. Return a
        list that receives the task.
        """
        tasks: list[asyncio.Task[None]] = []

        async def carry_out() -> None:
            value, error = None, None
            try:
                value = function()
                if inspect.isawaitable(value):
                    value = await value
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the harness's loop is closed
                self.home.call_soon_threadsafe(finish, value, error)

        self._loop.call_soon_threadsafe(lambda: tasks.append(self._loop.create_task(carry_out())))
        return tasks


def as_exception(error: BaseException) -> Exception:
    """Return the error of a system's code if the harness can continue after it; otherwise an exception that describes
    it.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    if isinstance(error, asyncio.CancelledError):
        return RuntimeError("cancelled inside the client")
    return RuntimeError(f"it raised {reason(error)}")


class Apart:
    """A factory of connections that can be left behind.

    Each connection has a separate loop while it is in use. With ``together``, all share one loop until it is left
    behind: for systems whose connections share objects that are bound to a loop.
    """

    def __init__(self, *, together: bool = False, enter: Callable[[str], None] | None = None) -> None:
        """``enter`` moves a connection's thread into the client place with an address before it connects from there."""
        self._together, self.enter = together, enter
        self._free: list[OwnLoop] = []
        self._shared: OwnLoop | None = None
        self.left = 0
        """The number of connections that were left behind."""

    def connection(self, make: Callable[[], Any]) -> Any:
        """Return the result of ``make``, wrapped for use from this loop; None if ``make`` returns None.

        Raises:
            StormproofError: ``make`` never returns.
        """
        place = self._take()
        try:
            made = place.make(make)
        except TimeoutError:
            self._forget(place)
            raise StormproofError(f"a connection was not made within {MAKE_SECONDS:g} s: "
                                  "the system's hook blocks") from None
        except BaseException:
            self._give_back(place)
            raise
        if made is None:
            self._give_back(place)
            return None
        kind: type = type(made)
        return class_like(_Connection, kind, frozenset(getattr(made, "__dict__", ())))(self, place, made)

    def close(self) -> None:
        """Let the unused threads end."""
        for place in (*self._free, *([self._shared] if self._shared else [])):
            place.end()
        self._free.clear()
        self._shared = None

    def _take(self) -> OwnLoop:
        if self._together:
            self._shared = self._shared or OwnLoop()
            return self._shared
        return self._free.pop() if self._free else OwnLoop()

    def _give_back(self, place: OwnLoop) -> None:
        if not self._together:
            self._free.append(place)

    def _forget(self, place: OwnLoop) -> None:
        """Stop using this loop; its thread ends if it ever gets that far."""
        self.left += 1
        if self._shared is place:
            self._shared = None


def _local(host: str, port: int, local: str) -> str:
    return local


def _inside(enter: Callable[[str], None], local: str, call: Callable[[], T]) -> T:
    """Make a call after this thread has entered a client place."""
    enter(local)
    return call()


class _Connection:
    """A connection that lives on another loop; its class has a method for each method of the real connection."""

    def __init__(self, apart: Apart, place: OwnLoop, real: Any) -> None:
        self._apart, self._place, self._real = apart, place, real
        self._ended = False
        self._left = ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._real, name)
        return functools.partial(self._call, name, value) if callable(value) else value

    def __del__(self) -> None:
        self._end()

    async def _call(self, name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if self._left:
            if name == "close":
                return None
            raise Abandoned(self._left)
        call = functools.partial(function, *arguments, **named)
        if name in _CONNECTING and (enter := self._apart.enter) is not None:
            call = functools.partial(_inside, enter, _local(*arguments, **named), call)
        try:
            found = await self._place.call(name, call)
        except Abandoned as error:
            self._leave(name, str(error))
            raise
        finally:
            if name == "close":
                self._end()
        demand_result(function, name, found)
        return self._wrapped(found) if isinstance(found, Delivery) else found

    def _wrapped(self, found: Delivery) -> Delivery:
        async def ack() -> None:
            await self._call("ack", found.ack)

        async def give_back() -> None:
            assert found.give_back is not None
            await self._call("give_back", found.give_back)

        return replace(found, ack=ack, give_back=None if found.give_back is None else give_back)

    def _leave(self, name: str, why: str) -> None:
        """Stop using the connection; if its loop still runs, ask the connection there to disconnect."""
        self._left = why
        if self._ended:
            return
        self._ended = True
        self._apart._forget(self._place)
        if name != "close":
            self._place.begin(self._real.close, lambda *_: None)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._apart._give_back(self._place)


@functools.cache
def class_like(base: type[Any], kind: type, own: frozenset[str]) -> type[Any]:
    """Return a subclass of ``base`` with the methods and attributes of ``kind`` and the additional attributes ``own``:
    runtime protocol checks look for them on the class.

    ``base`` carries out a method of its ``_real`` object by ``_call(name, function, ...)``.
    """

    def method(name: str) -> Callable[..., Awaitable[Any]]:
        async def forward(self: Any, *arguments: Any, **named: Any) -> Any:
            return await self._call(name, getattr(self._real, name), *arguments, **named)

        forward.__wrapped__ = getattr(kind, name)  # type: ignore[attr-defined]  # where `inspect` finds the source
        return forward

    def value(name: str) -> property:
        return property(lambda self: getattr(self._real, name))

    members = {name: method(name) if callable(getattr(kind, name, None)) else value(name)
               for name in {*dir(kind), *own} if not name.startswith("_")}  # fmt: skip
    return type(kind.__name__, (base,), members)
