"""The storage of a lake's files: a folder, or an object store. ``checkers.lake.table`` handles their contents.

Names of parts are relative to the lake: ``month=2026-11/part-...parquet``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.lake.object_store import ObjectStore
from stormproof.errors import StormproofError
from stormproof.run_folder import LEDGER, NIGHT_FILE, RUN_FILE, RUN_ID, VERDICT_FILE

LAKE = "lake"
PART = "part-*.parquet"
_ROWS_A_GROUP = 5_000
_ABANDONED = 3600
"""Seconds after which a partly written file counts as abandoned."""
_OF_A_ROW = (RUN_FILE, VERDICT_FILE, LEDGER, NIGHT_FILE)

AnyStore = Path | ObjectStore


class LakeFiles(Protocol):
    """The files of a lake, and the files of its store's runs from which it is built."""

    def parts(self, month: str = "") -> list[str]:
        """Return the names of the parts of a month, or of all; sorted."""

    def open(self, part: str) -> pq.ParquetFile:
        """Open a part. Raises FileNotFoundError, or ArrowException or ValueError for a damaged one."""

    def write(self, month: str, table: pa.Table) -> None:
        """Write a new part, which appears whole or not at all. Raises StormproofError when it can't be stored."""

    def remove(self, part: str) -> None:
        """Remove a part, if it exists. Raises StormproofError when it can't be removed."""

    def alone(self, month: str) -> contextlib.AbstractContextManager[bool]:
        """Try to become the only process that merges a month's parts; False: another one is merging them.

        Raises StormproofError when the lake can't be written.
        """

    def present(self) -> set[str]:
        """Return the names of the store's entries, runs among them."""

    def written(self) -> dict[str, int]:
        """Return, for each judged run, when the files behind its row were written, in nanoseconds since 1970."""

    def run_folder(self, run: str) -> contextlib.AbstractContextManager[Path]:
        """Provide a folder with the files behind a run's row. Raises StormproofError or OSError when it can't be read.
        """


def files_of(store: AnyStore) -> LakeFiles:
    """Return the files of a store's lake."""
    return _InObjects(store) if isinstance(store, ObjectStore) else _InFolder(store)


def written(run_dir: Path) -> int:
    """Return when a run's verdict or its night's record was written, in nanoseconds since 1970; 0: never."""
    return _written(str(run_dir))


def _written(run_dir: str) -> int:
    return max(_changed(f"{run_dir}/{VERDICT_FILE}"), _changed(f"{run_dir}/{NIGHT_FILE}"))


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0


def _new_part() -> str:
    """Return a unique name that sorts by time."""
    return f"part-{time.time_ns():020}-{os.getpid()}-{secrets.token_hex(3)}.parquet"


class _InFolder:
    def __init__(self, store: Path) -> None:
        self._store, self._root = store, store / LAKE

    def parts(self, month: str = "") -> list[str]:
        found = self._root.glob(f"{month or 'month=*'}/{PART}")
        return sorted(str(path.relative_to(self._root)) for path in found)

    def open(self, part: str) -> pq.ParquetFile:
        # Read alone, without the partition that its path implies: the schema is ``checkers.lake``'s.
        return pq.ParquetFile(self._root / part)

    def write(self, month: str, table: pa.Table) -> None:
        """Write to a temporary name, flush, and rename the complete file."""
        folder, name = self._root / month, _new_part()
        partial = folder / f".{name}.partial"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                pq.write_table(table, partial, compression="zstd", compression_level=1, row_group_size=_ROWS_A_GROUP)
                with partial.open("rb") as file:
                    os.fsync(file.fileno())
                partial.replace(folder / name)
            finally:
                partial.unlink(missing_ok=True)
        except OSError as error:
            raise StormproofError(f"{folder}: the table of runs can't be stored ({error.strerror or error})") from error

    def remove(self, part: str) -> None:
        try:
            (self._root / part).unlink(missing_ok=True)
        except OSError as error:
            raise StormproofError(f"{self._root / part}: can't be removed ({error.strerror or error})") from error

    @contextlib.contextmanager
    def alone(self, month: str) -> Iterator[bool]:
        with contextlib.ExitStack() as stack:
            try:
                lock = stack.enter_context((self._root / ".lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError as error:
                raise StormproofError(f"{self._root}: can't be written ({error.strerror or error})") from error
            for partial in (self._root / month).glob(f".{PART}.partial"):
                if time.time() - partial.stat().st_mtime > _ABANDONED:
                    partial.unlink(missing_ok=True)
            yield True

    def present(self) -> set[str]:
        try:
            with os.scandir(self._store) as entries:
                return {entry.name for entry in entries}
        except OSError:
            return set()

    def written(self) -> dict[str, int]:
        # There may be tens of thousands of runs: paths stay texts, since creating path objects takes longer than all
        # else.
        found = {name: _written(f"{self._store}/{name}") for name in self.present() if RUN_ID.fullmatch(name)}
        return {name: moment for name, moment in found.items() if moment}

    @contextlib.contextmanager
    def run_folder(self, run: str) -> Iterator[Path]:
        yield self._store / run


class _InObjects:
    """A lake in an object store.

    Objects appear whole or not at all, so no temporary names are needed. Two processes that merge parts at the same
    time create two merged parts, whose rows count once.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def parts(self, month: str = "") -> list[str]:
        below = f"{LAKE}/{month}" if month else LAKE
        found = (f"{month}/{name}" if month else name for name in self._store.items(below))
        return sorted(name for name in found if Path(name).match(f"month=*/{PART}"))

    def open(self, part: str) -> pq.ParquetFile:
        return pq.ParquetFile(pa.BufferReader(self._store.read(f"{LAKE}/{part}")))

    def write(self, month: str, table: pa.Table) -> None:
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer, compression="zstd", compression_level=1, row_group_size=_ROWS_A_GROUP)
        self._store.write(f"{LAKE}/{month}/{_new_part()}", buffer.getvalue().to_pybytes())

    def remove(self, part: str) -> None:
        self._store.remove(f"{LAKE}/{part}")

    @contextlib.contextmanager
    def alone(self, month: str) -> Iterator[bool]:
        yield True

    def present(self) -> set[str]:
        return self._store.names()

    def written(self) -> dict[str, int]:
        found = {}
        for run, files in self._store.runs().items():
            if VERDICT_FILE in files:
                found[run] = max(files[name].written for name in (VERDICT_FILE, NIGHT_FILE) if name in files)
        return found

    @contextlib.contextmanager
    def run_folder(self, run: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="stormproof-") as scratch:
            files = {name: item for name, item in self._store.items(run).items() if name in _OF_A_ROW}
            self._store.fetch(run, Path(scratch) / run, files)
            yield Path(scratch) / run
