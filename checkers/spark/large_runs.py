"""The selection of runs that are judged in parts (``checkers.partitioned_check``), and the Spark job that judges them.

A run is judged in parts if it would keep one core busy longer than the others are with all the rest, or would take more
memory as a whole than allowed.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers.memory import BASE, PART_ROW, REST_ROW, WHOLE_ROW, MemoryBudget, TooLarge, rows_of
from checkers.spark.tasks import Work
from stormproof.errors import HistoryError, StormproofError, UsageError
from stormproof.run_folder import HISTORY, read_run
from stormproof.vocabulary import MESSAGES, TRANSFERS

VARIABLE = "STORMPROOF_SPLIT_ROWS"
"""The environment variable with the number of rows from which a run may be judged in parts."""
SPLIT_ROWS = 3_000_000
MAX_PARTS = 64
"""Each part reads all rows of the run, so more of them would cost more than they save."""
CORES_PER_WHOLE_RUN = 2
"""Cores that a large run keeps busy as a whole (``checkers.run_check.attempts``).

Judging in parts needs more cores to be any faster, since each part has to read all rows.
"""
REST = -1
"""The number of the unit that runs the checks which need the whole run."""

_UNIT_ROWS = pa.schema([("run_dir", pa.string()), ("number", pa.int32()), ("result", pa.binary())])


@dataclass(frozen=True)
class Unit:
    """The work of one task for a run: part ``number`` of ``parts``, or the REST; ``needed`` is its memory in bytes."""

    run_dir: str
    number: int
    parts: int
    needed: int


def units_of(run_dirs: Sequence[Path], cores: int, budget: MemoryBudget) -> list[Unit]:
    """Return the units of the runs that are to be judged in parts, the longest first."""
    rows = {run_dir: rows_of(run_dir) for run_dir in run_dirs}
    share = sum(rows.values()) / (2 * max(cores, 1))
    least, units = split_rows(), []
    for run_dir, count in rows.items():
        rest = BASE + REST_ROW * count
        worth_it = needed_for(count) > budget.total or (cores > CORES_PER_WHOLE_RUN and count > share)
        if count < least or rest > budget.total or not worth_it or not decomposes(run_dir):
            continue
        parts = max(1, cores - 1)
        while parts < MAX_PARTS and BASE + PART_ROW * ceil(count / parts) > budget.total:
            parts += 1
        units.append(Unit(str(run_dir), REST, parts, rest))
        units += [Unit(str(run_dir), number, parts, BASE + PART_ROW * ceil(count / parts)) for number in range(parts)]
    return sorted(units, key=lambda unit: unit.needed, reverse=True)


def needed_for(rows: int) -> int:
    """Return the bytes that judging a whole run with this number of rows takes."""
    return BASE + WHOLE_ROW * rows


def split_rows() -> int:
    """Return the number of rows from which a run may be judged in parts.

    Raises:
        UsageError: the environment variable does not hold a number.
    """
    text = os.environ.get(VARIABLE) or str(SPLIT_ROWS)
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{VARIABLE}={text}: write a number of rows")
    return int(text)


def decomposes(run_dir: Path) -> bool:
    """Return whether a run is (or may be) about messages of queues.

    A wrong guess does no harm: the task finds out itself.
    """
    try:
        return read_run(run_dir).get("subject") in (None, "", MESSAGES, TRANSFERS)
    except HistoryError:
        return False


def judge_units(carry_out: Callable[[Work, int, pa.Schema], pa.Table],
                units: Sequence[Unit], budget: MemoryBudget) -> Mapping[str, list[bytes]]:  # fmt: skip
    """Return the findings of each run by its path: the rest first, then each part.

    ``carry_out`` gives each number below a bound to a task.
    """

    def judge(positions: Iterable[int]) -> Iterator[pa.RecordBatch]:
        for position in positions:
            unit = units[position]
            row = {"run_dir": unit.run_dir, "number": unit.number, "result": pickle.dumps(judged(unit, budget))}
            yield pa.RecordBatch.from_pylist([row], schema=_UNIT_ROWS)

    table = carry_out(judge, len(units), _UNIT_ROWS)
    found: dict[str, dict[int, bytes]] = {}
    for row in table.to_pylist():
        found.setdefault(row["run_dir"], {})[row["number"]] = row["result"]
    missing = [unit for unit in units if unit.number not in found.get(unit.run_dir, {})]
    if missing:
        raise StormproofError(f"{missing[0].run_dir}: Spark returned no result for part {missing[0].number}")
    return {path: [results[number] for number in sorted(results)] for path, results in found.items()}


def judged(unit: Unit, budget: MemoryBudget) -> Any:
    """Return a unit's findings; those of the rest come with the note of what they rest on (created before judging)."""
    from checkers.partitioned_check import Part, judge_part, judge_rest
    from checkers.run_check import unjudged
    from checkers.verdict_cache import note_for

    run_dir = Path(unit.run_dir)
    try:
        with budget.reserved(unit.needed, run_dir):
            if unit.number != REST:
                return judge_part(run_dir, unit.number, unit.parts)
            return note_for(run_dir), judge_rest(run_dir)
    except TooLarge as error:
        return Part(failed=True) if unit.number != REST else (None, unjudged(run_dir.name, str(error), str(error)))


def history_size(run_dir: Path) -> int:
    """Return the bytes of a run's history; 0 if there is none."""
    try:
        return (run_dir / HISTORY).stat().st_size
    except OSError:
        return 0
