"""A history as arrays: its rows in order, each invocation joined with its completion."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stormproof.errors import HistoryError
from stormproof.history.digest import RowsDigest, text_sizes
from stormproof.history.read_limits import FOOTER_LIMITS, ROW_BYTES, demand_bytes, demand_file, demand_small
from stormproof.history.schema import HISTORY_SCHEMA, SCHEMA_VERSION
from stormproof.run_folder import HISTORY
from stormproof.vocabulary import FUNCTIONS, INVOKE, OTHER

Int8s = NDArray[np.int8]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

NUMBERS: Mapping[str, Any] = {"index": np.int64, "time": np.int64, "process": np.int32, "type": np.int8,
                              "key": np.int32, "value": np.int64}  # fmt: skip
NAMES = ("run", "f", "node", "error")
RUN, TEXT = "run", "text"
Pairing = Callable[[Int32s, Int8s, Int32s, Int64s], tuple[Int64s, "tuple[int, str] | None"]]
"""A function from process, kind, function and time to the result of ``pair_rows``."""
BATCH_ROWS = 250_000
"""Number of rows decoded at a time: the size of a row group in our files."""
Digested = Callable[[pa.RecordBatch, Mapping[str, Any]], None]
"""Adds rows to a digest, as ``RowsDigest.update`` does."""
_PARALLEL_BYTES = 4 << 20
"""File size in bytes from which the digest runs in another thread, and columns are decoded in several threads."""


@dataclass(frozen=True)
class Names:
    """A column of repeated text: ``codes`` point into ``names``; -1 is null."""

    codes: Int32s
    names: tuple[str, ...]

    def at(self, row: int) -> str | None:
        """Return the text in one row."""
        code = int(self.codes[row])
        return None if code < 0 else self.names[code]

    def rows_with(self, *wanted: str) -> Bools:
        """Return, for each row, whether its text is one of these."""
        hit: Bools = np.asarray([*(name in wanted for name in self.names), False], dtype=np.bool_)[self.codes]
        return hit

    def rows_containing(self, words: str) -> Bools:
        """Return, for each row, whether its text contains these words."""
        hit: Bools = np.asarray([*(words in name for name in self.names), False], dtype=np.bool_)[self.codes]
        return hit


@dataclass(frozen=True)
class HistoryColumns:
    """The rows of one run, as arrays of equal length; a row's position in them is its identity here.

    ``index`` is the row's number in the file. ``kind`` is a code of ``TYPE_NAMES``; ``role`` is a code of
    ``stormproof.vocabulary`` (OTHER for unknown functions, and for the nemesis's rows). ``partner`` is the row of the
    other half of an operation, -1 if there is none: the operation was open when the run ended. ``problem`` is the
    reason why the rows do not form a history, with the first row at fault; None if they do. ``texts`` are the values
    that are text, by row.
    """

    index: Int64s
    time: Int64s
    process: Int32s
    kind: Int8s
    key: Int32s
    value: Int64s
    f: Names
    node: Names
    error: Names
    role: Int8s
    partner: Int64s
    problem: tuple[int, str] | None = None
    texts: Mapping[int, str] = field(default_factory=dict)
    runs: int = 1
    """The number of runs that the rows name."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.time)


def read_columns(
    path: Path, file_sha256: str | None = None, rows_sha256: str | None = None, *, texts: bool = False,
    pair: Pairing | None = None, row_bytes: int = ROW_BYTES,
) -> HistoryColumns:
    """Read a history file; its rows may have any content, as long as the file has the columns.

    Args:
        file_sha256: the expected digest of the file.
        rows_sha256: the expected digest of its rows.
        texts: whether to read the values that are text.
        pair: the function that joins invocations and completions; by default ``pair_rows``.
        row_bytes: the memory that the caller will use for each row.

    Raises:
        HistoryError: there is no sealed history, a digest shows that it is another one, it can't be read, or it would
            exceed the memory limit (``stormproof.history.read_limits``).
    """
    demand_file(path)
    if not path.exists():
        raise HistoryError(f"{path.parent}: no {HISTORY}: the run was not sealed; run `stormproof recover`")
    digest = RowsDigest() if rows_sha256 else None
    try:
        with pa.memory_map(str(path)) as mapped:
            content = mapped.read_buffer()
            if file_sha256 and hashlib.sha256(content).hexdigest() != file_sha256:
                raise HistoryError(f"{path}: not the history that the run recorded (its SHA-256 differs)")
            with _digesting(digest, content.size) as digested:
                numbers, names, found = _read_columns(content, path, texts, digested, row_bytes)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise HistoryError(f"{path}: not a history ({reason}); run `stormproof recover`") from error
    if digest is not None and digest.hexdigest() != rows_sha256:
        raise HistoryError(f"{path}: not the rows that the run recorded (history_sha256 in run.json differs)")
    index = numbers["index"]
    if (index[1:] < index[:-1]).any():
        order = np.argsort(index, kind="stable")
        numbers = {name: column[order] for name, column in numbers.items()}
        names = {name: Names(column.codes[order] if name != RUN else column.codes, column.names)
                 for name, column in names.items()}  # fmt: skip
        place = np.argsort(order, kind="stable")
        found = {int(place[row]): text for row, text in found.items()}
    return make_columns(numbers, names, found, pair)


def make_columns(
    numbers: Mapping[str, NDArray[Any]], names: Mapping[str, Names], texts: Mapping[int, str] | None = None,
    pair: Pairing | None = None,
) -> HistoryColumns:
    """Join raw columns (named as in HISTORY_SCHEMA) to a history, in the order of their indices."""
    process, kind, f = numbers["process"], numbers["type"], names["f"]
    codes = [FUNCTIONS[name].code if name in FUNCTIONS else OTHER for name in f.names]
    role = np.asarray([*codes, OTHER], dtype=np.int8)[f.codes]
    role[process < 0] = OTHER
    partner, problem = (pair or pair_rows)(process, kind, f.codes, numbers["time"])
    return HistoryColumns(
        index=numbers["index"], time=numbers["time"], process=process, kind=kind, key=numbers["key"],
        value=numbers["value"], f=f, node=names["node"], error=names["error"], role=role, partner=partner,
        problem=problem, texts=texts or {}, runs=len(names["run"].names),
    )  # fmt: skip


def pair_rows(
    process: Int32s, kind: Int8s, function: Int32s, time: Int64s
) -> tuple[Int64s, tuple[int, str] | None]:
    """Join each client's invocation with the completion that follows it in the same process.

    Returns the partner's row of every row (-1: none, as for the nemesis's rows), and the first row that breaks the
    rules of a history, with the reason. Rows that can be joined are joined even then.
    """
    rows = len(kind)
    partner = np.full(rows, -1, dtype=np.int64)
    # Narrow numbers are sorted by radix, which takes a tenth of the time.
    narrow = process.astype(np.int16) if rows and process.max() <= np.iinfo(np.int16).max else process
    order = np.argsort(narrow, kind="stable")
    order = order[process[order] >= 0]
    who, invokes = process[order], kind[order] == INVOKE
    same = np.zeros(len(order), dtype=np.bool_)
    same[1:] = who[1:] == who[:-1]
    follows = np.zeros(len(order), dtype=np.bool_)
    follows[1:] = same[1:] & invokes[:-1]
    completes = ~invokes & follows
    late = order[completes]
    early = order[np.flatnonzero(completes) - 1]
    partner[late], partner[early] = early, late
    wrong = (order[invokes & follows], order[~invokes & ~follows], late[function[late] != function[early]],
             np.flatnonzero(np.diff(time) < 0) + 1)  # fmt: skip
    return partner, first_problem([int(found.min()) if len(found) else -1 for found in wrong])


PROBLEMS = (
    "a second invocation of a process whose first is still open",
    "a completion without an invocation",
    "a completion of another function than was invoked",
    "time runs backwards",
)
"""The errors of rows that form no history."""


def first_problem(rows: Sequence[int]) -> tuple[int, str] | None:
    """Return the first of these rows (-1: none), each the first with one of PROBLEMS, and its problem."""
    return min(((row, reason) for row, reason in zip(rows, PROBLEMS, strict=True) if row >= 0), default=None)


@contextmanager
def _digesting(digest: RowsDigest | None, size: int) -> Iterator[Digested | None]:
    """Yield the function that adds rows to a digest: directly, or in a second thread that is at most one piece behind.
    The digest takes most of the time of reading, and runs without the GIL."""
    if digest is None or size < _PARALLEL_BYTES:
        yield digest.update if digest is not None else None
        return
    behind: list[Future[None]] = []

    def take(rows: pa.RecordBatch, sizes: Mapping[str, Any]) -> None:
        while behind:
            behind.pop().result()
        behind.append(thread.submit(digest.update, rows, sizes))

    with ThreadPoolExecutor(1) as thread:
        yield take
        while behind:
            behind.pop().result()


def _read_columns(
    content: pa.Buffer, path: Path, texts: bool, digested: Digested | None, row_bytes: int
) -> tuple[dict[str, NDArray[Any]], dict[str, Names], dict[int, str]]:
    """Return all columns, and the values that are text by row, read in batches so that only the texts of one batch are
    decoded at a time.

    Texts are read with dictionaries: fully expanded, a small file could hold any amount of them.
    """
    footer = pq.ParquetFile(pa.BufferReader(content), **FOOTER_LIMITS).metadata
    demand_small(footer, path, row_bytes)
    file = pq.ParquetFile(pa.BufferReader(content), metadata=footer, read_dictionary=[*NAMES, TEXT], **FOOTER_LIMITS)
    demand_schema(file.schema_arrow, path)
    rows = file.metadata.num_rows
    numbers = {name: np.empty(rows, dtype=kind) for name, kind in NUMBERS.items()}
    codes = {name: np.empty(rows, dtype=np.int32) for name in NAMES if name != RUN}
    known: dict[str, dict[str, int]] = {name: {} for name in NAMES}
    found: dict[int, str] = {}
    wanted = [*NUMBERS, *NAMES, *([TEXT] if texts or digested else [])]
    offset = taken = 0
    for batch in file.iter_batches(BATCH_ROWS, columns=wanted, use_threads=content.size >= _PARALLEL_BYTES):
        end = offset + batch.num_rows
        for name in wanted[len(NUMBERS):]:
            batch.column(name).validate(full=True)  # a damaged file may point behind its dictionary
        sizes = {name: text_sizes(batch.column(name)) for name in wanted[len(NUMBERS):]}
        written_out = sum(int(each.sum(dtype=np.int64)) + batch.column(name).null_count for name, each in sizes.items())
        # A footer may misstate the content.
        taken += batch.nbytes + written_out
        demand_bytes(taken, path)
        for name in NUMBERS:
            column = batch.column(name)
            if column.null_count:
                raise HistoryError(f"{path}: the column {name} holds nulls")
            numbers[name][offset:end] = column.to_numpy(zero_copy_only=False)
        for name in NAMES:
            found_codes = codes_of(batch.column(name), known[name])
            if name in codes:
                codes[name][offset:end] = found_codes
        if digested is not None:
            digested(batch, sizes)
        if texts:
            column = batch.column(TEXT)
            here = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
            found.update(zip((here + offset).tolist(), column.take(pa.array(here)).to_pylist(), strict=True))
        offset = end
    if offset != rows:
        raise HistoryError(f"{path}: it holds {offset} rows, and says {rows}")
    # Only the number of runs matters, not the run of each row.
    codes[RUN] = np.empty(0, dtype=np.int32)
    return numbers, {name: Names(codes[name], tuple(known[name])) for name in NAMES}, found


def demand_schema(schema: pa.Schema, path: Path) -> None:
    """Check that a file has the one schema; a column may lack the dictionary with which it was written.

    Raises:
        HistoryError: it has another schema.
    """
    version = (schema.metadata or {}).get(b"stormproof.schema", str(SCHEMA_VERSION).encode()).decode("utf-8", "replace")
    if version != str(SCHEMA_VERSION):
        raise HistoryError(f"{path} has schema version {version}, this Stormproof reads {SCHEMA_VERSION}")
    for wanted in HISTORY_SCHEMA:
        if (place := schema.get_field_index(wanted.name)) < 0:
            raise HistoryError(f"{path}: not a history: it has no column {wanted.name}, or several")
        plain, kind = (each.value_type if pa.types.is_dictionary(each) else each
                       for each in (wanted.type, schema.field(place).type))  # fmt: skip
        if kind != plain:
            raise HistoryError(f"{path}: the column {wanted.name} holds {kind}, not {plain}")


def codes_of(column: Any, known: dict[str, int]) -> Int32s:
    """Return a dictionary column's codes in terms of ``known``, which grows; each row group has a separate dictionary.
    """
    translate = [known.setdefault(name, len(known)) for name in column.dictionary.to_pylist()]
    local = column.indices.fill_null(-1) if column.indices.null_count else column.indices
    numbers: Int32s = local.to_numpy(zero_copy_only=False)
    if translate == list(range(len(translate))):
        return numbers
    found: Int32s = np.asarray([*translate, -1], dtype=np.int32)[numbers]
    return found
