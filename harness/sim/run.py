"""One simulated run in this process: the unchanged test runner on a simulated event loop."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from harness.run.control_channel import ControlChannel, Interrupted
from harness.run.test_runner import Emit, Environment, TestRunner
from harness.sim.clock import EPOCH
from harness.sim.errors import Endless
from harness.sim.explorer import Explorer
from harness.sim.invariants import InvariantBroken
from harness.sim.livelock import LOOKS, MOST_LOOKS, Livelock, WorkLimit
from harness.sim.loop import SimLoop, simulation
from nodes.systems.catalog import SYSTEMS
from stormproof.history.journal import JournalWriter
from stormproof.run_folder import HARNESS_LOG, read_run, update_run
from stormproof.test import Test


def ignore(event: Mapping[str, Any]) -> None:
    """Ignore an event, for callers that do not follow a run."""


def simulate(run_dir: Path, emit: Emit = ignore, explorer: Explorer | None = None) -> None:
    """Carry out the test of a run folder in simulation, up to its sealed history.

    A run whose nodes never finish ends there, as does a run in which an invariant is broken. ``run.json`` then
    describes the event, on which the verdict is based. An ``explorer`` records the states that the nodes reach.

    Raises:
        StormproofError: the run broke; the history so far is sealed.
        KeyboardInterrupt: Ctrl-C; the history so far is sealed, too. A second Ctrl-C ends the run at once.
    """
    test = Test.from_json(read_run(run_dir)["test"])
    control = ControlChannel()
    control.teardown.set()
    begun: list[TestRunner] = []
    with simulation() as loop, _logged(run_dir / HARNESS_LOG, loop):
        loop.limit, loop.explorer = WorkLimit(test.rate, test.time_limit), explorer
        runner = loop.create_task(_runner(run_dir, test, loop, control, emit, begun), name="runner")
        with _interrupts(lambda: loop.interrupt(control.interrupted.set)), _endless_steps(loop):
            try:
                loop.run_until_complete(runner)
            except (Livelock, Endless) as error:
                if not begun:
                    raise
                begun[0].end_as_it_is(str(error))
                update_run(run_dir, livelock=str(error))
            except InvariantBroken as broken:
                if not begun:
                    raise
                begun[0].end_as_it_is(str(broken))
                update_run(run_dir, invariant_broken=broken.told)
            except Interrupted:
                raise KeyboardInterrupt from None
            finally:
                SYSTEMS.load(test.system).simulation_over()


@contextmanager
def _logged(path: Path, loop: SimLoop) -> Iterator[None]:
    """Write the harness's log lines to a file, stamped with simulated time, if there are any."""
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(_AtSimulatedTime(loop))
    logger = logging.getLogger("stormproof")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()


class _AtSimulatedTime(logging.Formatter):
    def __init__(self, loop: SimLoop) -> None:
        super().__init__("%(asctime)s %(name)s %(message)s")
        self._loop = loop

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return f"{self._loop.now:.6f}"


@contextmanager
def _interrupts(tell: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM call ``tell`` instead of its usual handler.

    An exception in the middle of a callback would be raised in some simulated node, which would handle it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Signals that are ignored, or that end the process, keep their effect: a campaign's workers leave them to their
    # parent.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in handlers.items() if callable(handler)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def first(*_: object) -> None:
        restore()
        tell()

    for number in before:
        signal.signal(number, first)
    try:
        yield
    finally:
        restore()


@contextmanager
def _endless_steps(loop: SimLoop) -> Iterator[None]:
    """Break off a node's step that never ends, during which simulated time would be frozen.

    The measure is CPU time of this process, independent of the machine's other load.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = loop.step, 0

    def look(_: int, frame: FrameType | None) -> None:
        nonlocal seen
        step, times = seen
        seen = loop.step, times + 1 if step == loop.step else 0
        if seen[1] >= MOST_LOOKS:
            loop.break_off(frame.f_code.co_qualname if frame is not None else "?")

    before = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, LOOKS, LOOKS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


async def _runner(
    run_dir: Path, test: Test, loop: SimLoop, control: ControlChannel, emit: Emit, begun: list[TestRunner]
) -> None:
    environment = Environment(
        emit=emit,
        passcode=f"{test.rng('passcode').getrandbits(128):032x}",
        time_of_day=lambda: EPOCH + timedelta(seconds=loop.now),
        make_journal=_journal,
    )
    begun.append(TestRunner(run_dir, control, environment))
    await begun[0].run()


def _journal(path: Path, run: str) -> JournalWriter:
    return JournalWriter(path, run, lasting=False)
