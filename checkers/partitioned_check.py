"""A very large run judged in parts: a separate task judges each, and the outcome is the same as of the whole.

The message checks decompose by producer: a part holds all operations on the messages of some producers, under the row
numbers of the whole. One more task, the rest, reads all rows: it verifies that they are the recorded ones, and runs the
checks that need them all. ``finish`` builds the verdict from these findings. A check for which the parts do not suffice
runs again on the whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from checkers.account import SentTwice
from checkers.api import ByParts, NeedsWhole
from checkers.catalog import CHECKS
from checkers.history import pair_rows, validated
from checkers.kernels.rows import HERE, OPEN, select
from checkers.run import Run
from checkers.run_check import attempt, attempts, checks_of, counts_of, load_check, opened, verdict_of
from checkers.sentence import Circumstances, circumstances
from checkers.verdict import CheckVerdict, Verdict
from stormproof.contracts.check import UNKNOWN, Check, CheckOutcome
from stormproof.errors import HistoryError
from stormproof.history.columns import (
    BATCH_ROWS,
    NAMES,
    NUMBERS,
    RUN,
    HistoryColumns,
    Names,
    codes_of,
    demand_schema,
    make_columns,
)
from stormproof.history.ledger import read_ledger, read_standstills
from stormproof.history.read_limits import FOOTER_LIMITS, demand_small
from stormproof.history.schema import PAIR_SHIFT
from stormproof.run_folder import HISTORY, LEDGER, read_run
from stormproof.vocabulary import FUNCTIONS, MESSAGES, OTHER

Columns = dict[str, NDArray[Any]]

_NUMBERS = [name for name in NUMBERS if name != "index"]
_NAMES = [name for name in NAMES if name != RUN]


@dataclass
class Rest:
    """The findings of one task in the whole run: outcomes by check, None for checks that the parts answer."""

    name: str
    outcomes: list[tuple[str, CheckOutcome | None]]
    decides: Mapping[str, bool]
    counts: Mapping[str, Any]
    under: Circumstances
    open_queues: Mapping[int, str]
    accounts: Mapping[int, float]
    gone_queues: Mapping[int, tuple[int, int]]
    delivery_limit: str


@dataclass
class Part:
    """The findings of one task in a part: by check the result of its ``find``.

    ``twice`` is set if no account can be given; ``failed`` if the part could not be judged.
    """

    found: dict[str, Any] = field(default_factory=dict)
    twice: SentTwice | None = None
    failed: bool = False


def by_parts(check: Check) -> ByParts | None:
    """Return the way a check judges a run in parts, if it can."""
    found = getattr(check, "by_parts", None)
    return found if isinstance(found, ByParts) else None


def judge_rest(run_dir: Path) -> Rest | Verdict:
    """Run the checks that need the whole run; return the findings, or the run's verdict if it cannot be judged."""
    run = opened(run_dir)
    if isinstance(run, Verdict):
        return run
    split = MESSAGES in run.subjects
    asked = list(checks_of(run))
    whole = [(name, check) for name, check, _ in asked if not (split and by_parts(check) is not None)]
    found = dict(zip((name for name, _ in whole), attempts([check for _, check in whole], run), strict=True))
    outcomes = [(name, _drawn(found[name]) if name in found else None) for name, _, _ in asked]
    outcomes += [(name, CheckOutcome(UNKNOWN, 0, f"there is no check {name!r}"))
                 for name in run.info.get("guarantees") or () if name not in CHECKS]  # fmt: skip
    decides = {name: decides for name, _, decides in asked}
    return Rest(run.name, outcomes, decides, counts_of(run), circumstances(run), run.open_queues if split else {},
                run.accounts if split else {}, run.gone_queues if split else {}, run.delivery_limit)  # fmt: skip


def _drawn(outcome: CheckOutcome) -> CheckOutcome:
    """Return the outcome with its pages as texts instead of functions that draw them from the run."""
    pages = {name: _Page(make()) for name, make in outcome.pages.items()}
    return dataclasses.replace(outcome, pages=pages) if pages else outcome


@dataclass(frozen=True)
class _Page:
    text: str

    def __call__(self) -> str:
        return self.text


def judge_part(run_dir: Path, number: int, parts: int) -> Part:
    """Return the findings of the message checks in part ``number`` of ``parts``."""
    try:
        info = read_run(run_dir)
        history = read_part(run_dir / HISTORY, number, parts)
        run = Run(run_dir.name, info, read_ledger(run_dir / LEDGER), history, run_dir,
                  standstills=read_standstills(run_dir / LEDGER), whole=False)
        part = Part()
        for entry in CHECKS:
            how = by_parts(load_check(entry.name))
            if how is not None:
                part.found[entry.name] = how.find(run)
    except SentTwice as twice:
        return Part(twice=twice)
    except MemoryError:
        raise
    except Exception:
        # After any error the whole run is judged instead, so a run that cannot be judged in parts gets the same
        # verdict.
        return Part(failed=True)
    return part


def finish(run_dir: Path, rest: Rest | Verdict, parts: Sequence[Part]) -> Verdict:
    """Return the verdict on a run of which the rest and all parts were judged."""
    if isinstance(rest, Verdict):
        return rest
    outcomes, again = _told(rest, parts)
    if again:
        run = opened(run_dir)
        if isinstance(run, Verdict):
            return run
        outcomes |= {name: attempt(load_check(name), run) for name in again}
    results = tuple(
        CheckVerdict(name, rest.decides.get(name, True), outcomes[name],
                     load_check(name).anomaly if name in rest.decides else None)
        for name, _ in rest.outcomes
    )  # fmt: skip
    return verdict_of(rest.name, results, rest.counts, rest.under)


def told_by_parts(rest: Rest, parts: Sequence[Part]) -> bool:
    """Return whether ``finish`` can do without reading the run again."""
    return not _told(rest, parts)[1]


def _told(rest: Rest, parts: Sequence[Part]) -> tuple[dict[str, CheckOutcome], list[str]]:
    """Return outcomes by check, and the checks that need the whole run."""
    outcomes, again = {}, []
    for name, outcome in rest.outcomes:
        try:
            outcomes[name] = outcome if outcome is not None else _concluded(name, rest, parts)
        except NeedsWhole:
            again.append(name)
    return outcomes, again


def _concluded(name: str, rest: Rest, parts: Sequence[Part]) -> CheckOutcome:
    """Derive a check's outcome for a run from the findings in its parts; raises NeedsWhole if they do not suffice."""
    how = by_parts(load_check(name))
    if how is None or any(part.failed for part in parts):
        raise NeedsWhole
    twice = [part.twice for part in parts if part.twice is not None]
    if twice:
        return CheckOutcome(UNKNOWN, 0, str(min(twice, key=lambda error: error.row)))
    return how.conclude([part.found[name] for part in parts], rest)


def read_part(path: Path, number: int, parts: int) -> HistoryColumns:
    """Read the rows of part ``number`` of ``parts`` (``rows.select``), under their numbers in the whole
    history.

    Raises:
        HistoryError: the rows form no history, or the file can't be read.
    """
    known: dict[str, dict[str, int]] = {name: {} for name in _NAMES}
    pieces: list[Columns] = []
    rest: Columns | None = None
    try:
        with pa.memory_map(str(path)) as mapped:
            content = mapped.read_buffer()
            footer = pq.ParquetFile(pa.BufferReader(content), **FOOTER_LIMITS).metadata
            demand_small(footer, path)
            file = pq.ParquetFile(pa.BufferReader(content), metadata=footer, read_dictionary=_NAMES, **FOOTER_LIMITS)
            demand_schema(file.schema_arrow, path)
            offset = 0
            for batch in file.iter_batches(BATCH_ROWS, columns=["index", *_NUMBERS, *_NAMES], use_threads=False):
                columns = _columns(batch, offset, known, path)
                offset += batch.num_rows
                if rest is not None:
                    columns = {name: np.concatenate((rest[name], column)) for name, column in columns.items()}
                where = _where(columns, known, number, parts)
                pieces.append(_of(columns, where == HERE))
                rest = _of(columns, where == OPEN)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise HistoryError(f"{path}: not a history ({error})") from error
    if rest is not None:
        # Sends that were never answered.
        roles = _roles(known)[rest["f"]]
        values = rest["value"]
        mine = (roles == FUNCTIONS["enqueue"].code) & (values >= 0) & ((values >> PAIR_SHIFT) % parts == number)
        pieces.append(_of(rest, mine))
    whole = {name: np.concatenate([piece.pop(name) for piece in pieces]) for name in list(pieces[0])} if pieces else {}
    if not whole:
        whole = {**{name: np.empty(0, kind) for name, kind in NUMBERS.items()},
                 **{name: np.empty(0, np.int32) for name in _NAMES}}  # fmt: skip
    order = np.argsort(whole["index"], kind="stable")
    for name in whole:
        whole[name] = whole[name][order]
    names = {name: Names(whole.pop(name), tuple(known[name])) for name in _NAMES}
    names[RUN] = Names(np.empty(0, dtype=np.int32), (path.parent.name,))
    return validated(make_columns(whole, names, pair=pair_rows), str(path), whole=False)


def _columns(batch: pa.RecordBatch, offset: int, known: dict[str, dict[str, int]], path: Path) -> Columns:
    columns: Columns = {"index": np.arange(offset, offset + batch.num_rows)}
    # A reader of the whole sorts its rows; here operations are joined in the order in which they arrive.
    if not np.array_equal(batch.column("index"), columns["index"]):
        raise HistoryError(f"{path}: its rows do not lie in the order of their numbers")
    for name in _NUMBERS:
        if batch.column(name).null_count:
            raise HistoryError(f"{path}: the column {name} holds nulls")
        columns[name] = batch.column(name).to_numpy(zero_copy_only=False)
    for name in _NAMES:
        batch.column(name).validate(full=True)
        columns[name] = codes_of(batch.column(name), known[name])
    return columns


def _roles(known: Mapping[str, Mapping[str, int]]) -> NDArray[np.int8]:
    """Return the role by function's code; the last one is for rows without a function."""
    codes = [FUNCTIONS[name].code if name in FUNCTIONS else OTHER for name in known["f"]]
    return np.asarray([*codes, OTHER], dtype=np.int8)


def _where(columns: Columns, known: Mapping[str, Mapping[str, int]], number: int, parts: int) -> NDArray[np.int8]:
    role = _roles(known)[columns["f"]]
    role[columns["process"] < 0] = OTHER
    partner, _ = pair_rows(columns["process"], columns["type"], columns["f"], columns["time"])
    found: NDArray[np.int8] = select(
        role, columns["type"], columns["value"], partner, PAIR_SHIFT, number, parts
    )
    return found


def _of(columns: Columns, mask: NDArray[np.bool_]) -> Columns:
    return {name: column[mask] for name, column in columns.items()}
