"""Worker processes and a scratch folder for simulated runs, both removed however the work ends."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from typing import Any

from harness.run import plugins
from stormproof.errors import StormproofError
from stormproof.run_folder import LOCK_FILE, RunLock, is_alive

_MEMORY = Path("/dev/shm")
_PREFIX = "stormproof-sim-"
_LOCKING_SECONDS = 60.0
"""Seconds after the creation of a scratch folder within which its campaign also takes the lock."""
_TUNABLES = "GLIBC_TUNABLES"
_RUN_BYTES = 16 << 20
"""Bytes in memory for the unfinished runs of one process: each takes some hundred kilobytes, long ones more."""
_QUEUED_PER_WORKER = 3
_RUNS_PER_PROCESS = 2000
"""Runs after which a worker process is replaced, to bound the effect of leaks."""


@contextlib.contextmanager
def worker_pool(jobs: int) -> Iterator[tuple[Workers, Path]]:
    """Yield ``jobs`` workers and a scratch folder (in memory where possible); both are removed afterwards.

    Raises:
        StormproofError: memory for several processes is lacking.
    """
    scratch = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_scratch_place(jobs)))
    try:
        with RunLock(scratch), _huge_pages():  # The lock tells `remove_left` that this campaign is alive.
            try:
                workers = Workers(jobs)
            except OSError as error:  # Processes share data through /dev/shm, too.
                raise StormproofError(f"{jobs} processes can't work together ({error.strerror}); "
                                      f"make {_MEMORY} larger, or use --jobs 1") from error
            try:
                yield workers, scratch
            finally:
                with _undisturbed():
                    workers.close()
    finally:
        with _undisturbed():
            shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _huge_pages() -> Iterator[None]:
    """Let processes that start within this context request huge pages, which saves a tenth of a simulation's time.

    It works with glibc 2.35 or newer, where the kernel grants them on request; elsewhere it has no effect.
    """
    if _TUNABLES in os.environ:
        yield
        return
    os.environ[_TUNABLES] = "glibc.malloc.hugetlb=1"
    try:
        yield
    finally:
        del os.environ[_TUNABLES]


def remove_left() -> list[str]:
    """Remove this user's scratch folders of campaigns that were killed; returns a line for each.

    Young folders are skipped: their campaign may be about to take the lock, even if the lock's file already exists.
    """
    removed = []
    places = dict.fromkeys((_MEMORY, Path(tempfile.gettempdir())))
    for folder in sorted(folder for place in places for folder in place.glob(f"{_PREFIX}*")):
        try:
            lock = folder / LOCK_FILE
            born = (lock if lock.exists() else folder).stat().st_mtime
            if folder.stat().st_uid != os.getuid() or time.time() - born <= _LOCKING_SECONDS or is_alive(folder):
                continue
            if lock.exists():
                shutil.rmtree(folder)
            else:
                folder.rmdir()  # The campaign was killed before it created the lock or any other file.
            removed.append(f"folder {folder}")
        except (OSError, StormproofError):
            continue  # It has vanished, or belongs to another user.
    return removed


def _scratch_place(jobs: int) -> str | None:
    """Return the scratch folder's parent: in memory if ``jobs`` processes have room there (Docker gives 64 MiB)."""
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        return None
    return str(_MEMORY) if shutil.disk_usage(_MEMORY).free >= jobs * _RUN_BYTES else None


class Workers:
    """Processes that call functions; with one job, this process is the only worker."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._others = set(multiprocessing.active_children())
        self._pool = None if jobs == 1 else ProcessPoolExecutor(
            jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_prepare,
            initargs=(plugins.arguments(),), max_tasks_per_child=_RUNS_PER_PROCESS
        )  # fmt: skip

    def each(self, function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield the result of each task, in order of completion.

        Raises:
            StormproofError: a worker died.
        """
        if self._pool is None:
            yield from (function(*task) for task in tasks)
            return
        rest = iter(tasks)
        waiting: list[Future[Any]] = []
        while True:
            room = _QUEUED_PER_WORKER * self._jobs - len(waiting)
            waiting += [self._submit(function, task) for task in islice(rest, room)]
            if not waiting:
                return
            wait(waiting, return_when=FIRST_COMPLETED)
            for future in [future for future in waiting if future.done()]:
                waiting.remove(future)
                yield _result(future)

    def first(
        self, function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], accept: Callable[[Any], bool]
    ) -> tuple[int, Any]:
        """Return the number of the first task (from 0) whose result is accepted, and that result.

        When no result is accepted, return the number of tasks, and None. Later tasks start before it is known whether
        they are needed; the answer does not depend on that.

        Raises:
            StormproofError: a worker died.
        """
        rest = iter(tasks)
        waiting: deque[Future[Any]] = deque()
        number = 0
        try:
            while True:
                if self._pool is None:
                    results = [function(*task) for task in islice(rest, 1)]
                else:
                    room = 2 * self._jobs - len(waiting)
                    waiting.extend(self._submit(function, task) for task in islice(rest, room))
                    results = [_result(waiting.popleft())] if waiting else []
                if not results:
                    return number, None
                if accept(results[0]):
                    return number, results[0]
                number += 1
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """End the processes, even in the middle of their work."""
        if self._pool is None:
            return
        for process in multiprocessing.active_children():
            if process not in self._others:
                process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, function: Callable[..., Any], task: tuple[Any, ...]) -> Future[Any]:
        assert self._pool is not None
        try:
            return self._pool.submit(function, *task)
        except BrokenProcessPool as error:
            raise _dead(error) from error


def _result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise _dead(error) from error


def _dead(error: BrokenProcessPool) -> StormproofError:
    return StormproofError(f"a worker process of the simulation died ({error}); try fewer --jobs")


def _prepare(plugged: list[str]) -> None:
    """Prepare a worker: it loads the parent's plug-ins, leaves Ctrl-C to the parent, and does not outlive it."""
    import checkers.run_check  # noqa: F401 - preloaded, because every run needs it

    plugins.load(plugged)

    gc.freeze()  # Libraries are never garbage, so collections may skip them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), name="parent-watch", daemon=True).start()


def _follow(parent: Any) -> None:
    parent.join()
    os._exit(1)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep a second Ctrl-C or SIGTERM from ending the cleanup that the first one began."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
