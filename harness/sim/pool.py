"""Worker processes and a scratch folder for simulated runs, gone without a trace however the work ends."""

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
from stormproof.run_folder import LOCK_FILE, Lock, is_alive

_MEMORY = Path("/dev/shm")
_PREFIX = "stormproof-sim-"
_NEWBORN = 60.0
"""Seconds in which a campaign that has made its scratch folder has its lock, too."""
_TUNABLES = "GLIBC_TUNABLES"
_ROOM = 16 << 20
"""Bytes in memory for the runs that one process has under way: each is some hundred kilobytes, long ones are more."""
_AHEAD = 3
_RECYCLE = 2000
"""Runs after which a worker process is replaced, so that no leak can add up."""


@contextlib.contextmanager
def worker_pool(jobs: int) -> Iterator[tuple[Workers, Path]]:
    """So many workers and a scratch folder (in memory where that is possible); both are gone afterwards.

    Raises:
        StormproofError: there is no room for several processes.
    """
    scratch = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_scratch_place(jobs)))
    try:
        with Lock(scratch), _huge_pages():  # the lock tells `remove_left` that we live
            try:
                workers = Workers(jobs)
            except OSError as error:  # what processes share is in /dev/shm, too
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
    """Let processes that start meanwhile ask for huge pages, which saves a simulation a tenth of its time.

    It works with glibc from 2.35 on, where the kernel gives them to those that ask; elsewhere it does nothing.
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
    """Remove this user's scratch folders of campaigns that were killed; a line for each.

    A young one may be about to take its lock, even if the lock's file is there already.
    """
    removed = []
    places = dict.fromkeys((_MEMORY, Path(tempfile.gettempdir())))
    for folder in sorted(folder for place in places for folder in place.glob(f"{_PREFIX}*")):
        try:
            lock = folder / LOCK_FILE
            born = (lock if lock.exists() else folder).stat().st_mtime
            if folder.stat().st_uid != os.getuid() or time.time() - born <= _NEWBORN or is_alive(folder):
                continue
            if lock.exists():
                shutil.rmtree(folder)
            else:
                folder.rmdir()  # its campaign was killed before it had a lock, and anything else
            removed.append(f"folder {folder}")
        except (OSError, StormproofError):
            continue  # gone meanwhile, or not ours to remove
    return removed


def _scratch_place(jobs: int) -> str | None:
    """Where the scratch folder of so many processes is made: in memory if there is room (Docker gives 64 MiB)."""
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        return None
    return str(_MEMORY) if shutil.disk_usage(_MEMORY).free >= jobs * _ROOM else None


class Workers:
    """Processes that call functions; with one job it is this process."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._others = set(multiprocessing.active_children())
        self._pool = None if jobs == 1 else ProcessPoolExecutor(
            jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_prepare,
            initargs=(plugins.arguments(),), max_tasks_per_child=_RECYCLE
        )  # fmt: skip

    def each(self, function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """The result of each task, in the order in which they come.

        Raises:
            StormproofError: a worker died.
        """
        if self._pool is None:
            yield from (function(*task) for task in tasks)
            return
        rest = iter(tasks)
        waiting: list[Future[Any]] = []
        while True:
            waiting += [self._submit(function, task) for task in islice(rest, _AHEAD * self._jobs - len(waiting))]
            if not waiting:
                return
            wait(waiting, return_when=FIRST_COMPLETED)
            for future in [future for future in waiting if future.done()]:
                waiting.remove(future)
                yield _result(future)

    def first(
        self, function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], accept: Callable[[Any], bool]
    ) -> tuple[int, Any]:
        """The number of the first task (from 0) whose result is accepted, and that result.

        When none is: the number of tasks, and None. Later tasks are begun before it is known whether they are needed;
        the answer does not depend on that.

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
        """End the processes, also in the middle of their work."""
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
    """Workers have the parent's plug-ins, leave Ctrl-C to it, and don't outlive it."""
    import checkers.run_check  # noqa: F401 - what every run needs

    plugins.load(plugged)

    gc.freeze()  # libraries are never garbage: no collection need look at them
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), name="parent-watch", daemon=True).start()


def _follow(parent: Any) -> None:
    parent.join()
    os._exit(1)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C or SIGTERM must not end the tidying up that the first one began."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
