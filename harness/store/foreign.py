"""Files of histories that were recorded elsewhere: by Jepsen, by Maelstrom, or by other clients."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from porcupine import PorcupineError
from porcupine.formats import (
    LOG,
    Row,
    format_of,
    in_order,
    is_nemesis,
    items_of,
    of_2015,
    parse_edn,
    parse_json,
    row_of,
)
from porcupine.formats.memory import MemoryMeter
from porcupine.formats.rows import DID_NOT_MATCH, FAILED_CAS, Reading
from porcupine.values import number_of

from harness.store.claims import Action, claimed_faults
from harness.store.translations import (
    TRANSLATIONS,
    ForeignEvent,
    ForeignRows,
    Meaning,
    Unfit,
    plain,
    plain_name,
    translated,
)
from stormproof.errors import HistoryError, UsageError
from stormproof.history.jsonl import import_jsonl
from stormproof.history.ledger import INJECT, LedgerLine
from stormproof.history.read_limits import max_history, read_small
from stormproof.history.schema import (
    HISTORY_SCHEMA,
    NO_VALUE,
    TEXT_VALUE,
    TYPE_CODES,
    TYPE_NAMES,
    decode_pair,
    encode_value,
)
from stormproof.operation import INVOKE, NEMESIS
from stormproof.text import amount
from stormproof.vocabulary import REGISTER

OURS = "; stormproof history of run "
"""The beginning of an EDN file that Stormproof wrote. Its rows need no translation."""
_SCHEMA = '{"schema":'
"""The beginning of JSON lines that Stormproof wrote."""
_MOST_SHOWN = 120
"""The number of characters that are shown of the first line that was passed over."""
_LATEST = 1 << 63
"""The upper bound of times."""
_PROCESSES = 1 << 31
"""The upper bound of process numbers."""
_SINCE_START = 10**9 * 86400 * 365
"""A time above this, in nanoseconds, is a calendar time. It does not count from the start of the history."""


@dataclass(frozen=True)
class Foreign:
    """The content of a file: rows in HISTORY_SCHEMA, the number of clients' ``operations``, and the faults that it
    claims. ``passed_over`` counts the lines that hold no row; ``first`` is the first of them. ``ours``: Stormproof
    wrote the file."""

    table: pa.Table
    operations: int
    claims: Sequence[LedgerLine] = ()
    ours: bool = False
    passed_over: int = 0
    first: str = ""

    def told(self) -> str:
        """Describe the content in words."""
        text = amount(self.operations, "operation")
        if self.claims:
            text += f", {amount(sum(line.phase == INJECT for line in self.claims), 'claimed fault')}"
        if self.passed_over:
            text += f"; {amount(self.passed_over, 'line')} passed over, the first: {self.first}"
        return text


@dataclass(frozen=True)
class Choices:
    """The user's options for a history, as typed.

    ``failed_cas`` is the meaning of a ``cas`` that ended ``fail``; by default the file's format decides. ``initial`` is
    the first value of registers. With ``reentrant``, a lock's holder may acquire it again. Rows of processes in
    ``pass_over`` are left out. With ``allow_empty``, a history without operations is valid.
    """

    failed_cas: str | None = None
    initial: str | None = None
    reentrant: bool = False
    pass_over: tuple[str, ...] = ()
    allow_empty: bool = False

    def words(self) -> list[str]:
        """Return the command-line arguments for these choices."""
        named = [("--failed-cas", self.failed_cas), ("--initial", self.initial)]
        named += [("--pass-over", name) for name in self.pass_over]
        words = [word for option, value in named if value is not None for word in (option, value)]
        return words + ["--reentrant"] * self.reentrant + ["--allow-empty"] * self.allow_empty


def read_foreign(path: Path, workload: str, choices: Choices) -> Foreign:
    """Return a file's history, with the operation names of a workload.

    Raises:
        HistoryError: the file holds no history, or a row does not fit the workload.
        UsageError: histories of this workload can't be read.
    """
    if choices.failed_cas not in (None, *FAILED_CAS):
        raise UsageError(f"--failed-cas {choices.failed_cas}: choose {' or '.join(FAILED_CAS)}")
    if choices.initial is not None and workload != REGISTER:
        raise UsageError(f"--initial is the first value of registers; leave it out for --workload {workload}")
    make = TRANSLATIONS.get(workload)
    if make is None:
        raise UsageError(f"--workload {workload}: histories can be imported as {', '.join(TRANSLATIONS)}")
    try:
        text = bytes(read_small(path)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise HistoryError(f"{path}:{line}: not UTF-8 text") from None
    except OSError as error:
        raise HistoryError(f"can't read {path}: {error.strerror}") from None
    if text.startswith(_SCHEMA):
        return _claiming(renamed(import_jsonl(path), ""), ours=True)
    try:
        form = format_of(text, str(path))
        read = _read(path, text, form, choices.pass_over)
        if text.startswith(OURS):
            return _claiming(_our_rows(read.events).table(""), ours=True)
        observed = form == LOG and of_2015(text) if choices.failed_cas is None else choices.failed_cas == DID_NOT_MATCH
        rows = translated(read.events, make, Meaning(observed, _initial(choices.initial)))
    except PorcupineError as error:
        raise HistoryError(str(error)) from None
    except Unfit as error:
        raise HistoryError(f"{path}:{error.line}: {error.field}: {error}") from None
    first = text.splitlines()[read.passed_over[0] - 1].strip()[:_MOST_SHOWN] if read.passed_over else ""
    return replace(_claiming(rows.table("")), passed_over=len(read.passed_over), first=first)


def _initial(text: str | None) -> Any:
    """Return the first value of registers, typed as JSON or else as EDN."""
    if text is None:
        return None
    try:
        return parse_json(text)
    except ValueError:
        pass
    try:
        return parse_edn(text, "--initial")
    except PorcupineError as error:
        raise UsageError(str(error)) from None


def _claiming(table: pa.Table, *, ours: bool = False) -> Foreign:
    """Return a history with the faults that its nemesis claims."""
    rows = table.filter(pc.equal(table["process"], NEMESIS)).to_pylist()
    invoked = pc.and_(pc.not_equal(table["process"], NEMESIS), pc.equal(table["type"], TYPE_CODES[INVOKE]))
    claims = claimed_faults(Action(row["f"], value_of(row), row["time"]) for row in rows)
    return Foreign(table, pc.sum(invoked).as_py() or 0, claims, ours)


def value_of(row: Mapping[str, Any]) -> Any:
    """Return a row's value in its original form: a pair as a tuple."""
    value = row["value"]
    if value == NO_VALUE:
        return None
    if value == TEXT_VALUE:
        return json.loads(row["text"])
    pair = decode_pair(value)
    return pair if pair[0] and encode_value(pair) == (value, None) else value


def renamed(table: pa.Table, run: str) -> pa.Table:
    """Return the table with this name of its run."""
    column = pa.array([run] * table.num_rows).dictionary_encode().cast(HISTORY_SCHEMA.field("run").type)
    return table.set_column(0, HISTORY_SCHEMA.field("run"), column)


def _our_rows(events: Iterable[ForeignEvent]) -> ForeignRows:
    """Return the rows of an EDN file that Stormproof wrote. A list without ``text`` is a pair."""
    rows = ForeignRows()
    for event in events:
        pair = tuple(event.value) if isinstance(event.value, list) else event.value
        rows.add(event, event.type, pair if event.text is None else json.loads(event.text), event.key)
    return rows


@dataclass
class _Read:
    """The events of a file in the order in which they happened, and the numbers of the lines that hold none."""

    events: list[ForeignEvent] = field(default_factory=list)
    passed_over: list[int] = field(default_factory=list)


def _read(path: Path, text: str, form: str, pass_over: Sequence[str]) -> _Read:
    name, room, reading = str(path), MemoryMeter(max_history(), str(path)), Reading(pass_over=pass_over)
    clients: list[tuple[Row, Mapping[str, Any]]] = []
    faults: list[tuple[Row, Mapping[str, Any]]] = []
    read = _Read()
    for line, item in items_of(text, name, form, room):
        row = None if item is None else row_of(item, name, line)
        if row is None or item is None or (reading.passes_over(row, name) and not is_nemesis(row.process)):
            read.passed_over.append(line)
            continue
        room.take_row(row.value, line)
        if row.type not in TYPE_CODES:
            raise Unfit("type", f"one of {', '.join(TYPE_NAMES)} is expected, not {row.type:.40}", line)
        (faults if is_nemesis(row.process) else clients).append((row, item))
    ordered = [clients[place] for place in in_order([row for row, _ in clients], name)]
    numbers, clock = _Numbers(row.process for row, _ in clients), _Clock(row for row, _ in ordered)
    for row, item in _merged(ordered, faults):
        process = NEMESIS if is_nemesis(row.process) else numbers.of(row)
        node, own = item.get("node"), item.get("text")
        # Stormproof's own files hold some values also as JSON.
        read.events.append(ForeignEvent(
            row.line, process, row.type, row.f, item.get("value"), clock.of(row), item.get("key"),
            None if node is None else plain_name(node), plain(item.get("error")),
            own if isinstance(own, str) else None, row.process,
        ))  # fmt: skip
    return read


class _Numbers:
    """Assigns numbers to processes: a number keeps its value, a name gets an unused number."""

    def __init__(self, processes: Iterable[Any]) -> None:
        self._named: dict[str, int] = {}
        self._taken = {process for process in processes if type(process) is int}
        self._next = 0

    def of(self, row: Row) -> int:
        """Return the number of a row's process."""
        if type(row.process) is int:
            if row.process >= _PROCESSES:
                raise Unfit("process", f"a number below 2**31 is expected, not {row.process}", row.line)
            return row.process
        name = repr(row.process)
        if name not in self._named:
            while self._next in self._taken:
                self._next += 1
            self._named[name] = self._next
            self._next += 1
        return self._named[name]


class _Clock:
    """Converts times of rows to nanoseconds from 0 that never decrease. A row without a time gets the time right after
    the row before it."""

    def __init__(self, rows: Iterable[Row]) -> None:
        times = [time for row in rows if (time := _time_of(row)) is not None]
        first = min(times, default=0)
        self._start = first if first < 0 or first > _SINCE_START else 0
        self._last = 0

    def of(self, row: Row) -> int:
        """Return the time of a row. Rows must be given in order."""
        time = _time_of(row)
        self._last = self._last + 1 if time is None else max(self._last, int(time - self._start))
        return self._last


def _time_of(row: Row) -> int | float | Fraction | None:
    time = number_of(row.time)
    return time if time is not None and -_LATEST < time < _LATEST else None


def _merged(ordered: Sequence[tuple[Row, Any]], faults: Sequence[tuple[Row, Any]]) -> Iterator[tuple[Row, Any]]:
    """Yield all rows in the order in which they happened. The rows of the nemesis do not change the order of the
    others."""
    rest = deque(faults)
    for row, item in ordered:
        while rest and _before(rest[0][0], row):
            yield rest.popleft()
        yield row, item
    yield from rest


def _before(fault: Row, row: Row) -> bool:
    for one, other in ((fault.index, row.index), (_time_of(fault), _time_of(row))):
        if isinstance(one, int | float | Fraction) and isinstance(other, int | float | Fraction) and one != other:
            return bool(one < other)
    return fault.line < row.line
