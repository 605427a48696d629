"""One run's history as validated columns.

All data that index an array are checked here once; kernels check nothing and trust the result of this module.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from checkers.kernels.rows import pair
from stormproof.errors import HistoryError
from stormproof.history.columns import HistoryColumns, Int8s, Int32s, Int64s, first_problem, read_columns
from stormproof.history.schema import NO_VALUE, TEXT_VALUE, TYPE_NAMES
from stormproof.run_folder import HISTORY
from stormproof.vocabulary import CREATES as THAT_CREATE
from stormproof.vocabulary import DELETES as THAT_DELETE
from stormproof.vocabulary import READS as THAT_READ
from stormproof.vocabulary import names_that

CREATES, DELETES, READS = names_that(THAT_CREATE), names_that(THAT_DELETE), names_that(THAT_READ)
"""Operations on metadata: creating, deleting and reading an object."""


def read_history(run_dir: Path, file_sha256: str, rows_sha256: str) -> HistoryColumns:
    """Read and validate a run's history.

    Raises:
        HistoryError: the sealed history is missing, it is not the one that the run recorded (by the digest of its file,
            or that of its rows), or its rows do not form a history.
    """
    path = run_dir / HISTORY
    return validated(read_columns(path, file_sha256, rows_sha256, pair=pair_rows), str(path))


def validated(history: HistoryColumns, where: str, *, whole: bool = True) -> HistoryColumns:
    """Return the history if kernels may index by its contents.

    A history that is not ``whole`` may hold any rows, in order.

    Raises:
        HistoryError: its rows do not form a history; the message begins with ``where`` and names the row.
    """
    rows, codes = history.rows, history.f.codes
    numbered = np.array_equal(history.index, np.arange(rows)) if whole else bool((np.diff(history.index) > 0).all())
    _require(numbered, where, "its rows are not numbered 0, 1, 2...")
    _require(history.runs <= 1, where, "it holds rows of several runs")
    if rows:
        _require(history.kind.min() >= 0 and history.kind.max() < len(TYPE_NAMES), where,
                 "a type is not one of the four")  # fmt: skip
        _require(history.process.min() >= -1, where, "a process number is below -1")
        _require(history.key.min() >= NO_VALUE, where, "a key is below -1")
        _require(history.value.min() >= TEXT_VALUE, where, "a value is below -2")
        _require(codes.min() >= 0, where, "a row has no function")
    if history.problem is not None:
        row, reason = history.problem
        raise HistoryError(f"{where}: row {row}: {reason}")
    return history


def pair_rows(
    process: Int32s, kind: Int8s, function: Int32s, time: Int64s
) -> tuple[Int64s, tuple[int, str] | None]:
    """Pair rows as ``stormproof.history.columns.pair_rows`` does, compiled."""
    numbers, bound = dense(process)
    partner, wrong = pair(numbers, bound, kind, function, time)
    return partner, first_problem(wrong.tolist())


def dense(numbers: Int32s) -> tuple[Int32s, int]:
    """Return numbers from -1 unchanged, or renumbered if they are too sparse to index an array; and their bound."""
    top = int(numbers.max(initial=-1)) + 1
    if top <= 4 * len(numbers) + 65_536:
        return numbers, top
    distinct, codes = np.unique(numbers, return_inverse=True)
    shift = 1 if distinct[0] < 0 else 0
    return (codes - shift).astype(np.int32), len(distinct) - shift


def dense_keys(history: HistoryColumns) -> tuple[Int32s, int, Int32s]:
    """Return queues by row as numbers below a bound (-1: none), the bound, and the queue's key by number."""
    queue, bound = dense(history.key)
    keys = np.arange(bound, dtype=np.int32)
    if queue is not history.key:
        keys[queue[queue >= 0]] = history.key[queue >= 0]
    return queue, bound, keys


def _require(fine: bool, where: str, wrong: str) -> None:
    if not fine:
        raise HistoryError(f"{where}: {wrong}")
