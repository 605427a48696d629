"""The child process of a run. It ends reliably, even when a user's code blocks in it.

System code that blocks stops the event loop, and with it the run. A watchdog thread tests whether the loop still turns.
If it does not, the thread raises ``Blocked`` in the blocking code, and the run ends. If that does not help, the thread
ends the process. The thread also sends the parent a sign of life. The parent needs this sign because an extension that
holds Python's lock stops this thread, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from harness.run import plugins
from harness.run.control_channel import ControlChannel, Interrupted, tell_error
from stormproof.errors import EXIT_ERROR, StormproofError
from stormproof.run_folder import HARNESS_LOG
from stormproof.timeout_scale import TIMEOUT_FACTOR

TICK_SECONDS = 1.0
STUCK_SECONDS = 15.0 * TIMEOUT_FACTOR
"""The time that a call of a plug-in's code may block the loop."""
LONGEST_SECONDS = 600.0 * TIMEOUT_FACTOR
"""The time that the loop may be blocked for any other reason."""
ATTEMPTS = 3
"""The number of times that blocking code is interrupted before the process is ended."""
END_SECONDS = 2.0
"""The time that remaining tasks may take to end after ``main`` has returned."""

logger = logging.getLogger("stormproof.child")


class Blocked(StormproofError):
    """Code of a system did not return, and blocked the harness."""


class LoopWatch(threading.Thread):
    """Watches whether the event loop of the main thread turns, and interrupts plug-in code that blocks it.

    After each interruption, the loop calls ``blocked`` with the error.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, log: Path, give_up: Callable[[str], None]) -> None:
        """Create the watch. It touches the file ``log``: its modification time shows that this process runs.
        ``give_up`` ends the process; this thread calls it."""
        super().__init__(name="stormproof-watch", daemon=True)
        self.blocked: Callable[[Blocked], None] = lambda error: None
        self._loop, self._log, self._give_up = loop, log, give_up
        self._still = self._attempts = 0
        """Ticks since the loop last turned, and interruptions since then."""
        self._inside: FrameType | None = None
        self._inside_for = 0
        """The outermost plug-in call on the main thread's stack, and the number of ticks that it has been there."""
        self._over = threading.Event()
        self._before = signal.signal(signal.SIGUSR2, self._interrupt)

    def run(self) -> None:
        """Watch until ``end``. A stopped process does not count as stuck, because this thread is stopped with it."""
        while not self._over.wait(TICK_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self._log)
            self._still += 1
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._turned)
            found = _plugged(sys._current_frames().get(threading.main_thread().ident or 0))
            self._inside_for = self._inside_for + 1 if found is not None and found is self._inside else 0
            self._inside = found
            if self._still * TICK_SECONDS >= LONGEST_SECONDS:
                self._give_up(f"the harness could do nothing for {LONGEST_SECONDS:g} s; {_told(found)}")
            if min(self._still, self._inside_for) * TICK_SECONDS >= STUCK_SECONDS:
                self._inside_for, self._attempts = 0, self._attempts + 1
                if self._attempts > ATTEMPTS:
                    self._give_up(f"{_told(found)} blocks, and can't be interrupted")
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)

    def end(self) -> None:
        """Stop watching."""
        self._over.set()
        signal.signal(signal.SIGUSR2, self._before)

    def _turned(self) -> None:
        self._still = self._attempts = 0

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        found = _plugged(frame)
        if found is None:
            return
        error = Blocked(f"{_told(found)} blocks: the harness could do nothing for {STUCK_SECONDS:g} s; "
                        "code that waits has to await, by asyncio.to_thread for one")
        self._loop.call_soon(self.blocked, error)
        raise error


def _plugged(frame: FrameType | None) -> FrameType | None:
    """Return the outermost call of a plug-in's code on a stack."""
    frames = [each for each, _ in traceback.walk_stack(frame)]
    return next((each for each in reversed(frames) if plugins.is_code_of_one(each.f_globals)), None)


def _told(frame: FrameType | None) -> str:
    if frame is None:
        return "no code of a plug-in was running"
    return f"{frame.f_code.co_qualname}() ({frame.f_code.co_filename}:{frame.f_lineno})"


Work = Callable[[Path, ControlChannel], Coroutine[Any, Any, None]]
"""The child's work on a run's folder, under the parent's orders."""


def run_child(work: Work) -> NoReturn:
    """Carry out ``work`` with the arguments of the command line, then end the process, even if threads still run.

    The exit status is 0 for complete work, and 3 for work that broke or was interrupted; then the parent is told why.
    """
    run_dir, plugged = Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")

    def give_up(why: str) -> None:
        tell_error(why)
        os._exit(EXIT_ERROR)

    signal.signal(signal.SIGINT, lambda *_: None)  # the parent handles Ctrl-C
    runner = asyncio.Runner()
    watch = LoopWatch(runner.get_loop(), run_dir / HARNESS_LOG, give_up)
    watch.start()
    status = EXIT_ERROR
    try:
        status = runner.run(_carried_out(work, watch, run_dir, plugged))
        runner.get_loop().run_until_complete(_rest())
    except BaseException as error:
        traceback.print_exc()
        tell_error(f"the harness's child process failed: {traceback.format_exception_only(error)[-1].strip()}")
    watch.end()
    logging.shutdown()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(status)  # threads that can't be ended would keep the process alive


async def _carried_out(work: Work, watch: LoopWatch, run_dir: Path, plugged: Path | None) -> int:
    """Load the plug-ins, and return the exit status of the work."""
    control = ControlChannel()
    watch.blocked = control.fail
    await control.open()
    try:
        if plugged is not None:
            plugins.load_from(plugged)
        await work(run_dir, control)
    except Interrupted:
        return EXIT_ERROR
    except StormproofError as error:
        tell_error(str(error))
        return EXIT_ERROR
    return 0


async def _rest() -> None:
    """Cancel all remaining tasks and give them a limited time to end."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=END_SECONDS)


class ParentWatch(threading.Thread):
    """The parent's watch over its child. A child that gives no sign of life for too long, and is not stopped, is
    killed."""

    SILENT_SECONDS = 60.0 * TIMEOUT_FACTOR

    def __init__(self, pid: int, run_dir: Path, kill: Callable[[], object]) -> None:
        super().__init__(name="stormproof-child-watch", daemon=True)
        self.killed = False
        self._pid, self._run_dir, self._kill = pid, run_dir, kill
        self._over = threading.Event()

    def run(self) -> None:
        """Watch until ``end``."""
        last, silent = -1, 0.0
        while not self._over.wait(TICK_SECONDS):
            now = self._last_sign()
            silent = silent + TICK_SECONDS if now == last else 0.0
            last = now
            if silent >= self.SILENT_SECONDS and not self._is_stopped():
                self.killed = True
                self._kill()
                return

    def end(self) -> None:
        """Stop watching."""
        self._over.set()

    def _last_sign(self) -> int:
        try:
            return (self._run_dir / HARNESS_LOG).stat().st_mtime_ns
        except OSError:
            return 0

    def _is_stopped(self) -> bool:
        """Return whether the child, or the process through which it was started, is stopped."""
        return any(_state(pid) in ("T", "t") for pid in _line_of(self._pid, str(self._run_dir).encode()))


def _line_of(pid: int, named: bytes) -> Iterator[int]:
    """Yield a process, and those of its descendants that have ``named`` on their command lines."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in map(int, children):
        with contextlib.suppress(OSError):
            if named in Path(f"/proc/{child}/cmdline").read_bytes():
                yield from _line_of(child, named)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
