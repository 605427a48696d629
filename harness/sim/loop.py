"""An event loop under simulated time.

Time is frozen while callbacks run, and jumps to the next timer when nothing is ready. Every callback belongs to the
process in whose context it was scheduled: a paused process's callbacks are held until it is resumed, and a dead
process's callbacks never run. No code here reads a real clock, so the same callbacks in the same order give the same
run.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

from harness.sim.errors import Endless, SimulationError, Struck
from harness.sim.livelock import WATCHED_WORK, WORK_BETWEEN_CHECKS, ActivityRecord, Livelock, WorkLimit, label
from harness.sim.process import OWNER, RUNNING, Handle, SimProcess

_LOG = logging.getLogger("stormproof.simulation")

TURN_SECONDS = 1e-6
"""Seconds that one turn of the loop takes, so that time also passes for code that busy-waits for it."""

MAX_IDLE_TURNS = 2_000_000
"""Turns without a due timer after which the run is assumed to spin for ever."""

_CLOSE_ATTEMPTS = 50

_WAKE: Callable[..., object] = asyncio.futures._set_result_unless_cancelled  # type: ignore[attr-defined]
"""The callback of ``asyncio.sleep``'s timers."""


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of a simulated run. ``network`` creates its connections; see ``Network``."""

    def __init__(self) -> None:
        super().__init__()
        # asyncio asks this for each Future; ``bool`` answers without a Python call.
        self.get_debug = bool  # type: ignore[method-assign]
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]
        self.ready: deque[Handle] = deque()
        self.living: dict[SimProcess, None] = {}
        self.now = 0.0
        """Simulated seconds, which no process's clock distorts."""
        self.network: Any = None
        self.explorer: Any = None
        """Records the states that the nodes reach (``harness.sim.explorer``); None: they are not recorded."""
        self._timers: list[tuple[float, int, Handle]] = []
        self._sequence = 0
        self._owner: SimProcess | None = None
        self._idle_turns = 0
        self.limit: WorkLimit | None = None
        """The run's limit of work; None: unlimited."""
        self.watch: ActivityRecord | None = None
        """Records events once the run has exceeded its limit."""
        self.work = 0
        """Callbacks run, plus the volume of sent data."""
        self._look_at = WORK_BETWEEN_CHECKS
        self._watched_until = 0
        self._endless = ""
        """Description of a step that did not end: its process and its place in the code; empty: none."""
        self._graves: list[asyncio.Task[Any]] = []
        self._own: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        """Tasks of the harness."""
        self._ended = False
        self._harness = SimProcess(self, "harness", 1)

    # The interface that asyncio requires. Its type stubs tie callbacks to their arguments, and overrides cannot repeat
    # that without run-time cost. Three methods push timers themselves, because there are hundreds of timers in a
    # simulated second.

    def time(self) -> float:
        """Return the time on the clock of the calling process."""
        owner = self._owner
        return self.now if owner is None else owner.local()

    def call_soon(self, callback: Callable[..., object], *args: Any,  # type: ignore[override]
                  context: contextvars.Context | None = None) -> Handle:
        """Run a callback in the next turn, for the process that owns its context."""
        if context is None:
            context = contextvars.copy_context()
        handle = Handle(callback, args, context, context.get(OWNER), False, 0.0)
        if not self._ended:
            self.ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any,  # type: ignore[override]
                   context: contextvars.Context | None = None) -> Handle:
        """Run a callback after ``delay`` seconds on the clock of its process."""
        if context is None:
            context = contextvars.copy_context()
        owner = context.get(OWNER)
        when = self.now + delay if owner is None else max(self.now, owner.busy_until) + delay / owner.rate
        if owner is not None and owner.armed is not None:
            owner.armed(delay)
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
        owner = context.get(OWNER)
        moment = when if owner is None else (when - owner.offset) / owner.rate
        if owner is not None and owner.armed is not None:
            owner.armed(when - owner.local())
        handle = Handle(callback, args, context, owner, True, when)
        self._sequence += 1
        if not self._ended:
            heapq.heappush(self._timers, (moment, self._sequence, handle))
        return handle

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """Leave an unreferenced asynchronous generator untouched: its process may have been killed."""

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> NoReturn:  # type: ignore[override]
        """Refuse: a simulated run has one thread."""
        raise SimulationError("a simulated run can't use threads")

    def run_in_executor(self, *args: Any, **kwargs: Any) -> NoReturn:  # type: ignore[override]
        """Refuse: a simulated run has one thread."""
        raise SimulationError("a simulated run can't use threads or executors")

    def create_task(self, coro: Any, *, name: str | None = None,  # type: ignore[override]
                    context: contextvars.Context | None = None) -> asyncio.Task[Any]:
        """Create a task of the process that owns its context."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        if self._ended:
            self._graves.append(task)
            return task
        owner = OWNER.get() if context is None else context.get(OWNER)
        if owner is None:
            self._own.add(task)
        (owner or self._harness).adopt(task)
        return task

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None,
                                *, local_addr: Any = None, **_: Any) -> Any:
        """Connect over the simulated network, from ``local_addr`` or the machine of the calling process."""
        return await self.network.connect(protocol_factory, str(host), int(port), local_addr, OWNER.get())

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None,
                            **_: Any) -> Any:
        """Listen on the simulated network."""
        return self.network.listen(protocol_factory, str(host), int(port), OWNER.get())

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log the failure of a node's unawaited task.

        A real node would write it on its standard error. Failures that are found after the end of the run are useless,
        and are dropped.
        """
        of = context.get("future")
        if not isinstance(of, asyncio.Task) or of in self._own:
            super().default_exception_handler(context)
        elif not self._ended:
            _LOG.info("%s: %s, %r", context["message"], of.get_name(), context.get("exception"))

    # The interface for the simulated operating system.

    def post(self, owner: SimProcess | None, context: contextvars.Context, callback: Callable[..., object],
             *args: Any) -> None:
        """Run a callback of a process in the next turn."""
        if not self._ended:
            self.ready.append(Handle(callback, args, context, owner, False, 0.0))

    def interrupt(self, callback: Callable[[], object]) -> None:
        """Call a function outside any process in the next turn; for signal handlers, which interrupt arbitrary code."""
        self.ready.append(Handle(callback, (), None, None, False, 0.0))

    @property
    def step(self) -> tuple[float, SimProcess | None]:
        """The identity of the step that runs now: its time and its process."""
        return self.now, self._owner

    def break_off(self, where: str) -> None:
        """Break off the current step, which has been running for far too long, and end the run after it.

        Does nothing unless the step is a node's. For signal handlers; ``where`` names the code that the step is in.

        Raises:
            Endless: the step is a node's.
        """
        owner = self._owner
        if owner is None or owner is self._harness:
            return
        self._endless = f"a step of {owner.name} has no end, in {where}"
        self._look_at = 0
        raise Endless(self._endless)

    def enter(self, process: SimProcess | None) -> bool:
        """Make ``process`` (or the harness) the current owner, if it can run now; returns whether it can.

        A callback of the network then continues as that process.
        """
        if process is not None and (process.state != RUNNING or process.busy):
            return False
        self._owner = process
        return True

    def after(self, delay: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Run a callback outside any process (of the network or a machine) after ``delay`` simulated seconds."""
        return self.at(self.now + delay, callback, *args)

    def at(self, when: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Run a callback outside any process at a simulated time."""
        handle = Handle(callback, args, None, None, True, when)
        self._sequence += 1
        if not self._ended:
            heapq.heappush(self._timers, (when, self._sequence, handle))
        return handle

    def reschedule(self, owner: SimProcess, factor: float) -> None:
        """Multiply the remaining time of a process's timers by ``factor``."""
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
        """End the simulated world: release everything that still waits, without letting it run."""
        self._ended = True
        self._harness.kill()
        for process in list(self.living):
            process.bury()
        self.ready.clear()
        self._timers.clear()
        asyncio._set_running_loop(self)
        disabled = logging.root.manager.disable
        logging.disable(logging.CRITICAL)  # Abandoned tasks must not log complaints.
        try:
            while self._graves:
                _put_away(self._graves.pop())
        finally:
            asyncio._set_running_loop(None)
            logging.disable(disabled)
        self.close()

    # Internals.

    def _look(self) -> None:
        """Check the work so far against the limit; beyond it, watch what runs next, and report that.

        Raises:
            Livelock: the nodes never finish. SimulationError: the harness never finishes, or the run lasts far too
                long.
        """
        ready = self.ready
        if self._endless:
            raise Livelock(f"at {self.now:.3f} s: {self._endless}")
        if self.watch is None:
            self._look_at = self.work + WORK_BETWEEN_CHECKS
            if self.limit is not None and self.now > self.limit.longest:
                raise SimulationError(f"the run is not over after {self.now:,.0f} s")
            if self.limit is not None and self.limit.exceeded(self.work, self.now):
                self.watch = ActivityRecord()
                self._look_at = self._watched_until = self.work
                self._watched_until += WATCHED_WORK
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
        """Run turns until the loop is stopped; asyncio calls this method until then."""
        ready, pop = self.ready, heapq.heappop
        while not self._stopping:  # type: ignore[attr-defined]
            timers = self._timers
            self.now += TURN_SECONDS
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
            # Inlined to save a call for each callback: there are a thousand in a simulated second.
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
                    pass  # Its process ended there, or the run ends after this turn.
                except BaseException as error:
                    self.call_exception_handler({"message": f"exception in {handle}", "exception": error})
                # A callback of the network continues as the process to which it delivers.
                ran = self._owner
                if ran is not None and ran.look is not None and not ran.busy:
                    woken = ran.woken or handle.callback is _WAKE
                    ran.woken = False
                    ran.look(woken)
        self._owner = None


@contextmanager
def simulation() -> Iterator[SimLoop]:
    """Yield a loop for one simulation, and dispose of it at the end.

    Python's cyclic garbage collector is off meanwhile, because it would run finalizers at unpredictable times.
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
    """Close a task's coroutine for good, even if it waits in its `finally`."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    task._log_traceback = False
    coroutine: Any = task.get_coro()
    for _ in range(_CLOSE_ATTEMPTS):
        with suppress(Exception):
            coroutine.close()
        if coroutine.cr_frame is None:
            return
