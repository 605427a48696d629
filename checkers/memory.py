"""The limit on the memory that judging takes on one machine, over all processes that judge.

A process that is about to judge a run reserves the memory that it will take, and waits while other processes hold too
much. So fewer large runs are judged at once. A run that would take more than the whole limit is not begun.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from stormproof.errors import HistoryError
from stormproof.history.read_limits import FOOTER_LIMITS, read_size
from stormproof.run_folder import HISTORY
from stormproof.text import size

VARIABLE = "STORMPROOF_MEMORY"
"""The environment variable that, as ``--memory`` does, limits the memory that judging may take on one machine."""
WHOLE_ROW, REST_ROW, PART_ROW = 96, 80, 125
"""Upper bounds of bytes per row while a run is judged: as a whole, as the rest of one in parts, as a row of a part."""
BASE = 64 << 20
"""Bytes in addition to those of the rows."""
MEMORY_SHARE = 0.75
"""Share of the machine's memory that may be taken if no limit is set."""
_SLACK = 2
"""The multiple of its reservation beyond which a process is stopped from taking more memory."""
POLL_SECONDS = 0.05
"""Time between two attempts to reserve memory that other processes hold."""
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of ``mallopt``, in malloc.h."""
_NEVER_TRIM = (1 << 31) - 1
_LOOK_AT = 1 << 20
"""A history file of fewer bytes is small enough to skip its footer."""


class TooLarge(HistoryError):
    """Judging a run would take more memory than allowed."""


@dataclass(frozen=True)
class MemoryBudget:
    """``total`` bytes may be taken on each machine by all processes that share ``name``."""

    total: int
    name: str

    @contextlib.contextmanager
    def reserved(self, needed: int, where: object) -> Iterator[None]:
        """Reserve ``needed`` bytes while a block runs, once they are free.

        Raises:
            TooLarge: that is more than there is, or the block took far more than it reserved.
        """
        if needed > self.total:
            raise TooLarge(f"{where}: judging it takes about {size(needed)} of memory, and {size(self.total)} is the "
                           f"bound; `--memory` (or {VARIABLE}) raises it")  # fmt: skip
        while not self._taken(needed):
            time.sleep(POLL_SECONDS)
        try:
            with _limited(needed * _SLACK + BASE):
                yield
        except MemoryError as error:
            raise TooLarge(f"{where}: judging it took more than {size(needed * _SLACK)} of memory; `--memory` (or "
                           f"{VARIABLE}) raises the bound, which is {size(self.total)}") from error  # fmt: skip
        finally:
            _give_back()
            self._taken(0)

    def _taken(self, needed: int) -> bool:
        """Record that this process holds ``needed`` bytes (0: nothing) if there is room; return whether there is."""
        with self._book() as book:
            held = {pid: number for pid, number in _read(book).items() if pid != os.getpid() and _lives(pid)}
            fits = not held or sum(held.values()) + needed <= self.total
            if needed and fits:
                held[os.getpid()] = needed
            book.seek(0)
            book.truncate()
            book.write(json.dumps(held))
            if not held:
                self._path.unlink(missing_ok=True)
        return fits

    @property
    def _path(self) -> Path:
        return Path(tempfile.gettempdir()) / f"stormproof-memory-{os.getuid()}-{self.name}"

    @contextlib.contextmanager
    def _book(self) -> Iterator[IO[str]]:
        """Open and lock the file in which processes record their reservations."""
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "r+") as book:
                fcntl.flock(book, fcntl.LOCK_EX)
                # The last process may have removed the file between opening and locking.
                if os.fstat(book.fileno()).st_nlink:
                    yield book
                    return


def budget_of(name: str, text: str | None) -> MemoryBudget:
    """Return the budget for a text such as ``2G``, or, without one, most of this machine's memory.

    Raises:
        UsageError: the text is not a size.
    """
    if text:
        return MemoryBudget(read_size(text, "--memory"), name)
    return MemoryBudget(int(MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")), name)


def set_memory(text: str | None) -> None:
    """Set the limit from now on, in this process and its children; raises UsageError if the text is not a size."""
    if text:
        os.environ[VARIABLE] = str(read_size(text, "--memory"))


def rows_of(run_dir: Path) -> int:
    """Return the number of rows of a run's history, by its footer; 0 if the file is small, or can't be read."""
    path = run_dir / HISTORY
    try:
        if not path.is_file() or path.stat().st_size < _LOOK_AT:
            return 0
        with pa.memory_map(str(path)) as mapped:
            return max(0, int(pq.ParquetFile(mapped, **FOOTER_LIMITS).metadata.num_rows))
    except (OSError, pa.ArrowException, ValueError):
        return 0  # the later reader of the file reports the error


def keep_memory() -> None:
    """Let this process and its forks reuse memory that they have freed.

    The kernel takes a third of the time to hand out pages for large arrays that are allocated one after the other and
    freed a moment later. Only glibc supports this setting.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM)


def _give_back() -> None:
    """Return free memory to the kernel: other processes may reserve it now."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _read(book: IO[str]) -> dict[int, int]:
    try:
        return {int(pid): int(held) for pid, held in json.loads(book.read() or "{}").items()}
    except (ValueError, AttributeError, TypeError):
        return {}


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@contextlib.contextmanager
def _limited(more: int) -> Iterator[None]:
    """Limit this process to ``more`` bytes beyond its current memory: otherwise the kernel would kill other processes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
