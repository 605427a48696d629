"""One run's history as validated columns.

Everything that indexes an array is checked here once; kernels (which check nothing) trust what this module
returns.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from checkers import kernels
from checkers.folder import HISTORY_FILE
from checkers.kernels import Int8s, Int32s, Int64s
from harness.errors import HistoryError
from harness.history.schema import NO_VALUE, TEXT_VALUE, TYPE_NAMES

ROLES = {
    "enqueue": kernels.ENQUEUE,
    "dequeue": kernels.DEQUEUE,
    "drain": kernels.DRAIN,
    "depth": kernels.DEPTH,
    "publish": kernels.PUBLISH,
    "receive": kernels.RECEIVE,
    "listen": kernels.LISTEN,
    "attach": kernels.ATTACH,
    "detach": kernels.DETACH,
    "delete": kernels.DELETE,
    "commit": kernels.COMMIT,
    "abort": kernels.ABORT,
    "move": kernels.MOVE,
    "finish": kernels.FINISH,
    "recover": kernels.RECOVER,
    "rollback": kernels.ROLLBACK,
}
ADDS, REMOVES, LOOKS = ("subscribe", "create", "link"), ("unsubscribe", "destroy", "unlink"), ("look",)
"""Operations on metadata: an object is to exist, is to exist no longer, is looked at."""
_NUMBERS = {"index": np.int64, "time": np.int64, "process": np.int32, "type": np.int8, "key": np.int32,
            "value": np.int64}  # fmt: skip
_NAMES = ("run", "f", "node", "error")
_PAIRING = {
    kernels.ORPHAN: "a completion without an invocation",
    kernels.OVERLAP: "a second invocation of a process whose first is still open",
    kernels.OTHER_FUNCTION: "a completion of another function than was invoked",
    kernels.TIME_BACKWARDS: "time runs backwards",
}


@dataclass(frozen=True)
class Names:
    """A column of repeated text: ``codes`` point into ``names``; -1 is null."""

    codes: Int32s
    names: tuple[str, ...]

    def at(self, row: int) -> str | None:
        """The text in one row."""
        code = int(self.codes[row])
        return None if code < 0 else self.names[code]


@dataclass(frozen=True)
class History:
    """The rows of one run; arrays of equal length, ``row`` is the index into all of them.

    ``role`` is a code of ``checkers.kernels`` (OTHER for the nemesis' rows); ``partner`` is the row of the
    other half of an operation, -1 where there is none (the operation was open when the run ended).
    """

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

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.time)


def read_history(run_dir: Path, sha256: str | None = None) -> History:
    """Read and validate a run's history.

    Raises:
        HistoryError: there is no sealed history, it is not the one that the run recorded (``sha256``), or its
            rows do not form a history.
    """
    path = run_dir / HISTORY_FILE
    if not path.exists():
        raise HistoryError(f"{run_dir}: no {HISTORY_FILE}: the run was not sealed; run `stormproof recover`")
    try:
        with pa.memory_map(str(path)) as mapped:
            content = mapped.read_buffer()
            if sha256 and hashlib.sha256(content).hexdigest() != sha256:
                raise HistoryError(f"{path}: not the history that the run recorded (its SHA-256 differs)")
            numbers, names = _read_columns(pq.ParquetFile(pa.BufferReader(content)))
    except (pa.ArrowException, OSError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise HistoryError(f"{path}: not a history ({reason}); run `stormproof recover`") from error
    return build_history(numbers, names, str(path))


def _read_columns(file: Any) -> tuple[dict[str, NDArray[Any]], dict[str, Names]]:
    """All columns that checks use, read one row group at a time so that only one is ever decoded."""
    rows = file.metadata.num_rows
    numbers = {name: np.empty(rows, dtype=kind) for name, kind in _NUMBERS.items()}
    codes = {name: np.empty(rows, dtype=np.int32) for name in _NAMES}
    known: dict[str, dict[str, int]] = {name: {} for name in _NAMES}
    offset = 0
    for group in range(file.metadata.num_row_groups):
        table = file.read_row_group(group, columns=[*_NUMBERS, *_NAMES], use_threads=False)
        end = offset + table.num_rows
        for name, kind in _NUMBERS.items():
            column = table.column(name).combine_chunks()
            numbers[name][offset:end] = column.to_numpy(zero_copy_only=False).astype(kind, copy=False)
        for name in _NAMES:
            codes[name][offset:end] = _codes(table.column(name), known[name])
        offset = end
    return numbers, {name: Names(codes[name], tuple(known[name])) for name in _NAMES}


def _codes(column: Any, known: dict[str, int]) -> Int32s:
    """A dictionary (or text) column's codes in terms of ``known``, which grows; row groups have dictionaries
    of their own."""
    array = column.combine_chunks()
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    parts = []
    for chunk in chunks:
        translate = [known.setdefault(name, len(known)) for name in chunk.dictionary.to_pylist()]
        local = chunk.indices.fill_null(-1) if chunk.indices.null_count else chunk.indices
        raw = local.to_numpy(zero_copy_only=False)
        parts.append(np.asarray([*translate, -1], dtype=np.int32)[raw])
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)


def build_history(numbers: dict[str, NDArray[Any]], names: dict[str, Names], where: str) -> History:
    """Validate raw columns (named as in HISTORY_SCHEMA) and join invocations with completions.

    Raises:
        HistoryError: the rows do not form a history; the message begins with ``where`` and names the row.
    """
    rows = len(numbers["time"])
    process, kind = numbers["process"], numbers["type"]
    _require(np.array_equal(numbers["index"], np.arange(rows)), where, "its rows are not numbered 0, 1, 2...")
    _require(len(names["run"].names) <= 1, where, "it holds rows of several runs")
    if rows:
        _require(kind.min() >= 0 and kind.max() < len(TYPE_NAMES), where, "a type is not one of the four")
        _require(process.min() >= -1, where, "a process number is below -1")
        _require(numbers["key"].min() >= NO_VALUE, where, "a key is below -1")
        _require(numbers["value"].min() >= TEXT_VALUE, where, "a value is below -2")
        _require(names["f"].codes.min() >= 0, where, "a row has no function")
    roles = np.asarray([*(ROLES.get(name, kernels.OTHER) for name in names["f"].names), 0], dtype=np.int8)
    role = roles[names["f"].codes]
    role[process < 0] = kernels.OTHER
    who, processes = _dense(process)
    partner, status, row = kernels.pair_rows(who, kind, names["f"].codes, numbers["time"], processes)
    if status != kernels.PAIRED:
        raise HistoryError(f"{where}: row {row}: {_PAIRING[status]}")
    return History(
        time=numbers["time"],
        process=process,
        kind=kind,
        key=numbers["key"],
        value=numbers["value"],
        f=names["f"],
        node=names["node"],
        error=names["error"],
        role=role,
        partner=partner,
    )


def _dense(numbers: Int32s) -> tuple[Int32s, int]:
    """Numbers from -1 as they are, or renumbered where they are too sparse to index an array with; and their
    bound."""
    top = int(numbers.max(initial=-1)) + 1
    if top <= 4 * len(numbers) + 65_536:
        return numbers, top
    distinct, codes = np.unique(numbers, return_inverse=True)
    shift = 1 if distinct[0] < 0 else 0
    return (codes - shift).astype(np.int32), len(distinct) - shift


def dense_keys(history: History) -> tuple[Int32s, int, Int32s]:
    """Queues by row as numbers below a bound (-1: none), the bound, and the queue's key by number."""
    queue, bound = _dense(history.key)
    keys = np.arange(bound, dtype=np.int32)
    if queue is not history.key:
        keys[queue[queue >= 0]] = history.key[queue >= 0]
    return queue, bound, keys


def _require(fine: bool, where: str, wrong: str) -> None:
    if not fine:
        raise HistoryError(f"{where}: {wrong}")
