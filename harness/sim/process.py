"""Simulated operating-system processes, and the callbacks that belong to them."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from stormproof.contracts.invariant import Exit

RUNNING, PAUSED, DEAD = "running", "paused", "dead"


class ProcessLoop(Protocol):
    """The part of the event loop (``harness.sim.loop.SimLoop``) that processes use."""

    ready: deque[Handle]
    living: dict[SimProcess, None]
    now: float

    def create_task(self, coro: Any, *, name: str | None = None,
                    context: contextvars.Context | None = None) -> asyncio.Task[Any]:
        """Create a task of the process that owns its context."""
        ...

    def post(self, owner: SimProcess | None, context: contextvars.Context, callback: Callable[..., object],
             *args: Any) -> None:
        """Run a callback of a process in the next turn."""

    def at(self, when: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Run a callback outside any process at a simulated time."""
        ...

    def reschedule(self, owner: SimProcess, factor: float) -> None:
        """Multiply the remaining time of a process's timers by ``factor``."""

    def bury(self, task: asyncio.Task[Any]) -> None:
        """Keep a dead process's task until the run is over."""


class SimProcess:
    """A simulated operating-system process: its scheduled callbacks, and the clock that it reads.

    ``offset`` and ``rate`` make its monotonic clock differ from the simulation's time.
    """

    def __init__(self, loop: ProcessLoop, name: str, pid: int, offset: float = 0.0, rate: float = 1.0) -> None:
        self.name = name
        self.pid = pid
        self.state = RUNNING
        self.offset = offset
        self.rate = rate
        self.busy = False
        """Whether the process waits for its disk; meanwhile it runs no further callback."""
        self.busy_until = 0.0
        """The simulated time at which that wait ends."""
        self.ran_on = 0.0
        """The simulated time at which the process last resumed after a pause or a wait for its disk."""
        self.resources: dict[Resource, None] = {}
        """Resources that the operating system reclaims when the process ends."""
        self._loop = loop
        self._held: list[Handle] = []
        self._deferred: deque[tuple[float, Callable[..., object], tuple[Any, ...]]] = deque()
        self._tasks: list[asyncio.Task[Any]] = []
        self.ended = asyncio.Event()
        self.look: Callable[[bool], None] | None = None
        """Observer, called after each callback of this process.

        The argument is True after a callback that only woke a task: nothing changes before that task's turn.
        """
        self.armed: Callable[[float], None] | None = None
        """Observer of its timers, called from within each call that sets one, with the seconds until its end."""
        self.logged: Callable[[str], None] | None = None
        """Observer of the lines that it writes to its log."""
        self.passed: Callable[[str], None] | None = None
        """Observer of the named points of its code that it reaches."""
        self.woken = False
        """Whether the present callback only wakes a task, because bytes have arrived."""
        self.over: Callable[[], None] | None = None
        """Observer, called when the process has ended."""
        self.exited: Callable[[Exit], None] | None = None
        """Observer, called before that when the process has ended by itself."""
        self.asked: float | None = None
        """The time on its clock at which it was asked to stop."""
        self.failed = False
        """Whether it had logged an error before."""
        self._tidy_at = 64
        self._context = contextvars.copy_context()
        self._context.run(OWNER.set, self)
        loop.living[self] = None

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task of this process."""
        return self._loop.create_task(work, name=name, context=self._context.copy())

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Schedule a function call in this process, like a signal handler."""
        self._loop.post(self, self._context.copy(), function, *args)

    def local(self) -> float:
        """Return the seconds on its clock."""
        now, busy = self._loop.now, self.busy_until
        return self.offset + (now if now >= busy else busy) * self.rate

    def set_rate(self, rate: float) -> None:
        """Change the rate of its clock from now on; the clock does not jump, and its timers follow it."""
        old = self.rate
        self.offset += max(self._loop.now, self.busy_until) * (old - rate)  # what `local` shows now stays the same
        self.rate = rate
        self._loop.reschedule(self, old / rate)

    def stall(self, seconds: float) -> None:
        """Make the current callback take ``seconds`` longer, because the process waits for its disk."""
        self.busy = True
        self.busy_until = max(self._loop.now, self.busy_until) + seconds
        self._loop.at(self.busy_until, self._release)

    def defer(self, function: Callable[..., object], *args: Any) -> None:
        """Run a function after the present wait for the disk, unless the process is killed before."""
        self._deferred.append((self.busy_until, function, args))

    def pause(self) -> None:
        """Suspend the process."""
        if self.state == RUNNING:
            self.state = PAUSED

    def resume(self) -> None:
        """Resume the process: run ready callbacks and arrived data first, then timers, as a real loop does."""
        if self.state == PAUSED:
            self.state = RUNNING
            self._release()

    def _release(self) -> None:
        while self._deferred and self._deferred[0][0] <= self._loop.now:
            _, function, args = self._deferred.popleft()
            function(*args)
        if self.busy and self.busy_until <= self._loop.now:
            self.busy, self.ran_on = False, self._loop.now
            if self.look is not None:  # Observe the state in which the process began to wait.
                self.look(False)
        if self.state != RUNNING or self.busy:
            return
        self.ran_on = self._loop.now
        held, self._held = self._held, []
        held.sort(key=lambda handle: handle.timed)
        # These go first, because data that arrives from now on may be read at once.
        self._loop.ready.extendleft(reversed(held))

    def kill(self, powerless: bool = False) -> None:
        """End the process; none of its code runs again.

        The system closes its connections, unless it is ``powerless`` too.
        """
        if self.state == DEAD:
            return
        self.state = DEAD
        self.busy = False
        self.busy_until = 0.0
        self._held.clear()
        self._deferred.clear()
        self.ended.set()
        self.look = self.exited = None
        if self.over is not None:
            self.over()
        self.bury()
        for resource in list(self.resources):
            resource.owner_ended(powerless)
        self.resources.clear()

    def bury(self) -> None:
        """Release its unfinished tasks to the loop, which keeps them from garbage collection.

        They will never finish, and their collection would run their `finally` blocks.
        """
        for task in self._tasks:
            if not task.done():
                self._loop.bury(task)
        self._tasks.clear()
        self._loop.living.pop(self, None)

    def hold(self, handle: Handle) -> None:
        """Keep a callback that came due while the process was suspended."""
        if self.state != DEAD:
            self._held.append(handle)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Keep a task from being garbage-collected while it waits."""
        self._tasks.append(task)
        if len(self._tasks) > self._tidy_at:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tidy_at = 2 * len(self._tasks) + 64

    def tasks(self) -> dict[str, int]:
        """Return the number of unfinished tasks, by the name of the function that they run."""
        found: dict[str, int] = {}
        for task in self._tasks:
            if not task.done():
                name = getattr(task.get_coro(), "__qualname__", "")
                found[name] = found.get(name, 0) + 1
        return found


class Resource:
    """A resource that the operating system reclaims when its owner ends."""

    def described(self) -> str:
        """Describe the open socket in a few words; empty: it is not open yet."""
        raise NotImplementedError

    def owner_ended(self, powerless: bool) -> None:
        """React to the end of the owning process; when ``powerless``, the system that would clean up is down, too."""
        raise NotImplementedError


OWNER: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("stormproof-simulated-process", default=None)


def _nothing() -> None:
    """Do nothing, in place of a cancelled callback."""


class Handle(asyncio.TimerHandle):
    """A callback with its owner; ``timed`` distinguishes timers from callbacks that were ready at once."""

    __slots__ = ("callback", "owner", "timed")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...],
                 context: contextvars.Context | None, owner: SimProcess | None, timed: bool, when: float) -> None:
        # The parent's constructor would do unneeded work for each of very many callbacks.
        self.callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self._when = when
        self.owner = owner
        self.timed = timed

    def __repr__(self) -> str:
        return f"<{self.callback!r} of {self.owner.name if self.owner is not None else 'nobody'}>"

    def cancel(self) -> None:
        """Prevent the callback from running."""
        self._cancelled = True
        self.callback, self._args = _nothing, ()
