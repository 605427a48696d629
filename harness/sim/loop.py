"""An event loop under simulated time, and the simulated processes whose callbacks it runs.

Time stands still while callbacks run and jumps to the next timer when nothing is ready. Every callback belongs to
the process in whose context it was scheduled: a paused process's callbacks are held until it is resumed, a dead
one's never run. Nothing here reads a clock, so the same callbacks in the same order give the same run.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import logging
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

from harness.sim.errors import Endless, SimulationError, Struck
from harness.sim.livelock import PORTION, WATCHED, Limit, Livelock, Watch, label

_LOG = logging.getLogger("stormproof.simulation")

RUNNING, PAUSED, DEAD = "running", "paused", "dead"

TURN = 1e-6
"""Seconds that one turn of the loop takes: code that waits for time by spinning gets it, too."""

MAX_IDLE_TURNS = 2_000_000
"""Turns without any timer coming due, after which the run is taken for one that spins for ever."""

_CLOSE_ATTEMPTS = 50

_WAKE: Callable[..., object] = asyncio.futures._set_result_unless_cancelled  # type: ignore[attr-defined]
"""The callback of ``asyncio.sleep``'s timers."""


class Process:
    """A simulated operating-system process: what it scheduled, and the clock that it reads.

    ``offset`` and ``rate`` make its monotonic clock differ from the simulation's time.
    """

    def __init__(self, loop: SimLoop, name: str, pid: int, offset: float = 0.0, rate: float = 1.0) -> None:
        self.name = name
        self.pid = pid
        self.state = RUNNING
        self.offset = offset
        self.rate = rate
        self.busy = False
        """Whether it waits for its disk: meanwhile it runs no further callback."""
        self.busy_until = 0.0
        """The simulated time when that is over."""
        self.ran_on = 0.0
        """The simulated time when it last ran on, having been paused or waited for its disk."""
        self.resources: dict[Resource, None] = {}
        """What the operating system takes back when the process ends."""
        self._loop = loop
        self._held: list[Handle] = []
        self._deferred: deque[tuple[float, Callable[..., object], tuple[Any, ...]]] = deque()
        self._tasks: list[asyncio.Task[Any]] = []
        self.ended = asyncio.Event()
        self.look: Callable[[bool], None] | None = None
        """Called after each of its callbacks, if anybody watches it; with True after one that did nothing but wake a
        task up, which changes nothing before its turn."""
        self.woken = False
        """Whether the present callback is such a one, for bytes that have come."""
        self.over: Callable[[], None] | None = None
        """Called when it has ended, likewise."""
        self._tidy_at = 64
        self._context = contextvars.copy_context()
        self._context.run(_OWNER.set, self)
        loop.living[self] = None

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task of this process."""
        return self._loop.create_task(work, name=name, context=self._context.copy())

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Let this process call a function soon, like a signal handler."""
        self._loop.post(self, self._context.copy(), function, *args)

    def local(self) -> float:
        """Seconds on its clock."""
        now, busy = self._loop.now, self.busy_until
        return self.offset + (now if now >= busy else busy) * self.rate

    def set_rate(self, rate: float) -> None:
        """Let its clock run faster or slower from now on; it does not jump, and its timers keep to it."""
        now, old = self._loop.now, self.rate
        self.offset += now * (old - rate)
        self.rate = rate
        self._loop.reschedule(self, old / rate)

    def stall(self, seconds: float) -> None:
        """It waits for its disk: the callback that runs now takes so much longer."""
        self.busy = True
        self.busy_until = max(self._loop.now, self.busy_until) + seconds
        self._loop.at(self.busy_until, self._release)

    def defer(self, function: Callable[..., object], *args: Any) -> None:
        """Let something happen once it has waited for its disk so far, unless it is killed before."""
        self._deferred.append((self.busy_until, function, args))

    def pause(self) -> None:
        """From now on nothing of it runs."""
        if self.state == RUNNING:
            self.state = PAUSED

    def resume(self) -> None:
        """Run what was held: what was ready and what arrived first, then timers, as a real loop does."""
        if self.state == PAUSED:
            self.state = RUNNING
            self._release()

    def _release(self) -> None:
        while self._deferred and self._deferred[0][0] <= self._loop.now:
            _, function, args = self._deferred.popleft()
            function(*args)
        if self.busy and self.busy_until <= self._loop.now:
            self.busy, self.ran_on = False, self._loop.now
            if self.look is not None:  # at what it was about when it began to wait
                self.look(False)
        if self.state != RUNNING or self.busy:
            return
        self.ran_on = self._loop.now
        held, self._held = self._held, []
        held.sort(key=lambda handle: handle.timed)
        # Before everything else, as what arrives from now on may be read at once.
        self._loop.ready.extendleft(reversed(held))

    def kill(self, powerless: bool = False) -> None:
        """End it: none of its code runs any more. The system, unless ``powerless`` too, closes its connections."""
        if self.state == DEAD:
            return
        self.state = DEAD
        self.busy = False
        self.busy_until = 0.0
        self._held.clear()
        self._deferred.clear()
        self.ended.set()
        self.look = None
        if self.over is not None:
            self.over()
        self.bury()
        for resource in list(self.resources):
            resource.owner_ended(powerless)
        self.resources.clear()

    def bury(self) -> None:
        """Let go of its tasks, which are never going to be done, and must not be collected (which would run their
        `finally`)."""
        for task in self._tasks:
            if not task.done():
                self._loop.bury(task)
        self._tasks.clear()
        self._loop.living.pop(self, None)

    def hold(self, handle: Handle) -> None:
        """Take a callback whose time came while the process does not run."""
        if self.state != DEAD:
            self._held.append(handle)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Keep a task from being collected while it waits."""
        self._tasks.append(task)
        if len(self._tasks) > self._tidy_at:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tidy_at = 2 * len(self._tasks) + 64


    def tasks(self) -> dict[str, int]:
        """How many of its tasks are not done, by the name of the function that they run."""
        found: dict[str, int] = {}
        for task in self._tasks:
            if not task.done():
                name = getattr(task.get_coro(), "__qualname__", "")
                found[name] = found.get(name, 0) + 1
        return found


class Resource:
    """Something that the operating system takes back when its owner ends."""

    def owner_ended(self, powerless: bool) -> None:
        """The process that held it is gone; when ``powerless``, the system that would clean up is gone as well."""
        raise NotImplementedError


_OWNER: contextvars.ContextVar[Process | None] = contextvars.ContextVar("stormproof-simulated-process", default=None)


def _nothing() -> None:
    """What a cancelled callback does."""


class Handle(asyncio.TimerHandle):
    """A callback with its owner; ``timed`` tells a timer from what was ready at once."""

    __slots__ = ("callback", "owner", "timed")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...],
                 context: contextvars.Context | None, owner: Process | None, timed: bool, when: float) -> None:
        # The parent's constructor would do work that is not needed here, for each of very many callbacks.
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
        """Never run it."""
        self._cancelled = True
        self.callback, self._args = _nothing, ()


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of a simulated run. ``network`` makes its connections; see ``Network.attach``."""

    def __init__(self) -> None:
        super().__init__()
        # Asked for each Future; answered without a call of Python's.
        self.get_debug = bool  # type: ignore[method-assign]
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]
        self.ready: deque[Handle] = deque()
        self.living: dict[Process, None] = {}
        self.now = 0.0
        """Simulated seconds: the time that no process's clock distorts."""
        self.network: Any = None
        self.explorer: Any = None
        """Who records which states the nodes come into (``harness.sim.explorer``), if anybody does."""
        self._timers: list[tuple[float, int, Handle]] = []
        self._sequence = 0
        self._owner: Process | None = None
        self._idle_turns = 0
        self.limit: Limit | None = None
        """How much the run may do; without one, anything."""
        self.watch: Watch | None = None
        """What happens, once the run is beyond that."""
        self.work = 0
        """Callbacks, and what was sent."""
        self._look_at = PORTION
        self._watched_until = 0
        self._endless = ""
        """Whose step did not come to an end, and where it was; empty: none."""
        self._graves: list[asyncio.Task[Any]] = []
        self._own: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        """Tasks of the harness."""
        self._ended = False
        self._harness = Process(self, "harness", 1)

    # What asyncio asks of a loop. Its type stubs tie callbacks to their arguments, which overrides can't repeat
    # without costs at run time. Timers are set in three places, as there are hundreds of them for a simulated second.

    def time(self) -> float:
        """The clock of the process that asks."""
        owner = self._owner
        return self.now if owner is None else owner.local()

    def call_soon(self, callback: Callable[..., object], *args: Any,  # type: ignore[override]
                  context: contextvars.Context | None = None) -> Handle:
        """Run a callback in the next turn, for the process in whose context it is."""
        if context is None:
            context = contextvars.copy_context()
        handle = Handle(callback, args, context, context.get(_OWNER), False, 0.0)
        if not self._ended:
            self.ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any,  # type: ignore[override]
                   context: contextvars.Context | None = None) -> Handle:
        """Run a callback after ``delay`` seconds on the clock of its process."""
        if context is None:
            context = contextvars.copy_context()
        owner = context.get(_OWNER)
        when = self.now + delay if owner is None else max(self.now, owner.busy_until) + delay / owner.rate
        handle = Handle(callback, args, context, owner, True, when)
        self._sequence += 1
        if not self._ended:
            heapq.heappush(self._timers, (when, self._sequence, handle))
        return handle

    def call_at(self, when: float, callback: Callable[..., object], *args: Any,  # type: ignore[override]
                context: contextvars.Context | None = None) -> Handle:
        """Run a callback at a time on the clock of its process."""
        if context is None:
            context = contextvars.copy_context()
        owner = context.get(_OWNER)
        moment = when if owner is None else (when - owner.offset) / owner.rate
        handle = Handle(callback, args, context, owner, True, when)
        self._sequence += 1
        if not self._ended:
            heapq.heappush(self._timers, (moment, self._sequence, handle))
        return handle

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """Leave an asynchronous generator that nobody holds any more as it is: its process may have been killed."""

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> NoReturn:  # type: ignore[override]
        """Refused: a simulated run has one thread."""
        raise SimulationError("a simulated run can't use threads")

    def run_in_executor(self, *args: Any, **kwargs: Any) -> NoReturn:  # type: ignore[override]
        """Refused: a simulated run has one thread."""
        raise SimulationError("a simulated run can't use threads or executors")

    def create_task(self, coro: Any, *, name: str | None = None,  # type: ignore[override]
                    context: contextvars.Context | None = None) -> asyncio.Task[Any]:
        """A task of the process in whose context it runs."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        if self._ended:
            self._graves.append(task)
            return task
        owner = _OWNER.get() if context is None else context.get(_OWNER)
        if owner is None:
            self._own.add(task)
        (owner or self._harness).adopt(task)
        return task

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None,
                                *, local_addr: Any = None, **_: Any) -> Any:
        """Connect over the simulated network, from ``local_addr`` or the place of the process that asks."""
        return await self.network.connect(protocol_factory, str(host), int(port), local_addr, _OWNER.get())

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None,
                            **_: Any) -> Any:
        """Listen on the simulated network."""
        return self.network.listen(protocol_factory, str(host), int(port), _OWNER.get())

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Note in the run's log a failure of a node's task that nobody waits for: a real node would write it on its
        standard error. What is found out when the run is over is of no use to anybody."""
        of = context.get("future")
        if not isinstance(of, asyncio.Task) or of in self._own:
            super().default_exception_handler(context)
        elif not self._ended:
            _LOG.info("%s: %s, %r", context["message"], of.get_name(), context.get("exception"))

    # What the simulated system asks.

    def post(self, owner: Process | None, context: contextvars.Context, callback: Callable[..., object],
             *args: Any) -> None:
        """Run a callback of a process in the next turn."""
        if not self._ended:
            self.ready.append(Handle(callback, args, context, owner, False, 0.0))

    def interrupt(self, callback: Callable[[], object]) -> None:
        """Call something that belongs to no process in the next turn; for signal handlers, whatever runs now."""
        self.ready.append(Handle(callback, (), None, None, False, 0.0))

    @property
    def step(self) -> tuple[float, Process | None]:
        """What tells the step that runs now from others: the time, and whose it is."""
        return self.now, self._owner

    def break_off(self, where: str) -> None:
        """The step that runs now has been running for far too long: if it is a node's, leave it, and end the run then.

        For signal handlers; ``where`` is what it is about.

        Raises:
            Endless: it is a node's.
        """
        owner = self._owner
        if owner is None or owner is self._harness:
            return
        self._endless = f"a step of {owner.name} has no end, in {where}"
        self._look_at = 0
        raise Endless(self._endless)

    def enter(self, process: Process | None) -> bool:
        """Let a callback of the network go on as this process (or the harness), if it can run now."""
        if process is not None and (process.state != RUNNING or process.busy):
            return False
        self._owner = process
        return True

    def after(self, delay: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Run something that belongs to no process (the network, the machine) after simulated seconds."""
        return self.at(self.now + delay, callback, *args)

    def at(self, when: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Run something that belongs to no process at a simulated time."""
        handle = Handle(callback, args, None, None, True, when)
        self._sequence += 1
        if not self._ended:
            heapq.heappush(self._timers, (when, self._sequence, handle))
        return handle

    def reschedule(self, owner: Process, factor: float) -> None:
        """Let the timers of a process come due after ``factor`` times what is left of them."""
        now = self.now
        self._timers = [
            (now + (when - now) * factor, sequence, handle) if handle.owner is owner else (when, sequence, handle)
            for when, sequence, handle in self._timers
        ]
        heapq.heapify(self._timers)

    def bury(self, task: asyncio.Task[Any]) -> None:
        """Keep a dead process's task until the run is over."""
        self._graves.append(task)

    def end(self) -> None:
        """End the simulated world: let go of everything that still waits, without letting it do anything."""
        self._ended = True
        self._harness.kill()
        for process in list(self.living):
            process.bury()
        self.ready.clear()
        self._timers.clear()
        asyncio._set_running_loop(self)
        disabled = logging.root.manager.disable
        logging.disable(logging.CRITICAL)  # whoever is not let go on has nothing to complain of
        try:
            while self._graves:
                _put_away(self._graves.pop())
        finally:
            asyncio._set_running_loop(None)
            logging.disable(disabled)
        self.close()

    # Inner workings.

    def _look(self) -> None:
        """After a portion of work: was it too much? Then what comes next is watched, and told.

        Raises:
            Livelock: nodes are never done. SimulationError: the harness isn't, or the run lasts far too long.
        """
        ready = self.ready
        if self._endless:
            raise Livelock(f"at {self.now:.3f} s: {self._endless}")
        if self.watch is None:
            self._look_at = self.work + PORTION
            if self.limit is not None and self.now > self.limit.longest:
                raise SimulationError(f"the run is not over after {self.now:,.0f} s")
            if self.limit is not None and self.limit.exceeded(self.work, self.now):
                self.watch = Watch()
                self._look_at = self._watched_until = self.work
                self._watched_until += WATCHED
            return
        self._look_at = self.work
        for handle in ready:
            if not handle._cancelled:
                self.watch.ran(handle.owner.name if handle.owner is not None else "", label(handle.callback))
        if self.work >= self._watched_until:
            told = f"at {self.now:.3f} s: {self.watch.told()}"
            if self.watch.by_nodes(self._harness.name):
                raise Livelock(f"the nodes are never done, {told}")
            raise SimulationError(f"the harness is never done, {told}")

    def _run_once(self) -> None:
        """Turn after turn until the loop is stopped; asyncio calls it until then."""
        ready, pop = self.ready, heapq.heappop
        while not self._stopping:  # type: ignore[attr-defined]
            timers = self._timers
            self.now += TURN
            self._idle_turns += 1
            if not ready:
                while timers and timers[0][2]._cancelled:
                    pop(timers)
                if not timers:
                    raise SimulationError(f"everybody waits for ever at {self.now:.6f} s: no timer is set")
                if timers[0][0] > self.now:
                    self.now = timers[0][0]
            while timers and timers[0][0] <= self.now:
                ready.append(pop(timers)[2])
                self._idle_turns = 0
            if self._idle_turns > MAX_IDLE_TURNS:
                raise SimulationError(f"somebody spins at {self.now:.6f} s: {ready[0] if ready else 'nothing'}")
            self.work += len(ready)
            if self.work >= self._look_at:
                self._look()
            # Written out here, without a call for each callback: there are a thousand for a simulated second.
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                owner = self._owner = handle.owner
                if owner is not None and (owner.state != RUNNING or owner.busy):
                    owner.hold(handle)
                    continue
                try:
                    if handle._context is None:
                        handle.callback(*handle._args)
                    else:
                        handle._context.run(handle.callback, *handle._args)
                except (SystemExit, KeyboardInterrupt, SimulationError):
                    raise
                except (Struck, Endless):
                    pass  # its process ended there, or the run ends after this turn
                except BaseException as error:
                    self.call_exception_handler({"message": f"exception in {handle}", "exception": error})
                # The network's callbacks go on as the process that they bring something to.
                ran = self._owner
                if ran is not None and ran.look is not None and not ran.busy:
                    woken = ran.woken or handle.callback is _WAKE
                    ran.woken = False
                    ran.look(woken)
        self._owner = None


@contextmanager
def simulation() -> Iterator[SimLoop]:
    """A loop for one simulation, put away at the end.

    Python's cyclic garbage collection is off meanwhile, since it would run finalizers at times of its own.
    """
    loop = SimLoop()
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield loop
    finally:
        loop.end()
        if collecting:
            gc.enable()


def _put_away(task: asyncio.Task[Any]) -> None:
    """Close a task's coroutine for good, even one that waits in its `finally`."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    task._log_traceback = False
    coroutine: Any = task.get_coro()
    for _ in range(_CLOSE_ATTEMPTS):
        with suppress(Exception):
            coroutine.close()
        if coroutine.cr_frame is None:
            return
