"""Files of histories that were recorded elsewhere: by Jepsen, by Maelstrom, or by other clients."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from porcupine import PorcupineError
from porcupine.formats.edn import parse_edn
from porcupine.formats.rows import DID_NOT_MATCH, FAILED_CAS
from porcupine.values import as_json

from harness.claims import Action, claimed_faults
from harness.translations import TRANSLATIONS, Event, Meaning, Rows, translated
from stormproof.errors import HistoryError, UsageError
from stormproof.history.bounds import read_small
from stormproof.history.jsonl import import_jsonl
from stormproof.history.ledger import INJECT, LedgerLine
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
_FIELDS = ("process", "type", "f")


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
        """The content in words."""
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
        """The words of a command that say this."""
        named = [("--failed-cas", self.failed_cas), ("--initial", self.initial)]
        named += [("--pass-over", name) for name in self.pass_over]
        words = [word for option, value in named if value is not None for word in (option, value)]
        return words + ["--reentrant"] * self.reentrant + ["--allow-empty"] * self.allow_empty


def read_foreign(path: Path, workload: str, choices: Choices) -> Foreign:
    """A file's history, in the words of a workload.

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
    except UnicodeDecodeError:
        raise HistoryError(f"{path}: not UTF-8 text") from None
    if text.startswith(_SCHEMA):
        return _claiming(renamed(import_jsonl(path), ""), ours=True)
    events = list(_events(path, text))
    if text.startswith(OURS):
        return _claiming(_our_rows(events).table(""), ours=True)

    def refuse(line: int, field: str, expected: str) -> HistoryError:
        return HistoryError(f"{path}:{line}: {field}: {expected}")

    meaning = Meaning(choices.failed_cas == DID_NOT_MATCH, _initial(choices.initial))
    return _claiming(translated(events, make, meaning, refuse).table(""))


def _initial(text: str | None) -> Any:
    """The first value of registers, typed as JSON or else as EDN."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return parse_edn(text, "--initial")
    except PorcupineError as error:
        raise UsageError(str(error)) from None


def _claiming(table: pa.Table, *, ours: bool = False) -> Foreign:
    """A history with the faults that its nemesis claims."""
    rows = table.filter(pc.equal(table["process"], NEMESIS)).to_pylist()
    invoked = pc.and_(pc.not_equal(table["process"], NEMESIS), pc.equal(table["type"], TYPE_CODES[INVOKE]))
    claims = claimed_faults(Action(row["f"], value_of(row), row["time"]) for row in rows)
    return Foreign(table, pc.sum(invoked).as_py() or 0, claims, ours)


def value_of(row: Mapping[str, Any]) -> Any:
    """A row's value as it was given: a pair as a tuple."""
    value = row["value"]
    if value == NO_VALUE:
        return None
    if value == TEXT_VALUE:
        return json.loads(row["text"])
    pair = decode_pair(value)
    return pair if pair[0] and encode_value(pair) == (value, None) else value


def renamed(table: pa.Table, run: str) -> pa.Table:
    """The table as that of a run of this name."""
    column = pa.array([run] * table.num_rows).dictionary_encode().cast(HISTORY_SCHEMA.field("run").type)
    return table.set_column(0, HISTORY_SCHEMA.field("run"), column)


def _our_rows(events: Iterable[Event]) -> Rows:
    """The rows of an EDN file that was written here: a list without ``text`` is a pair."""
    rows = Rows()
    for event in events:
        pair = tuple(event.value) if isinstance(event.value, list) else event.value
        rows.add(event, event.type, pair if event.text is None else json.loads(event.text), event.key)
    return rows


def _events(path: Path, text: str) -> Iterator[Event]:
    last = 0
    for number, item in enumerate(_maps(path, text), 1):
        missing = [name for name in _FIELDS if item.get(name) is None]
        if missing:
            raise HistoryError(f"{path}: operation {number}: {missing[0]} is missing")
        kind, process, time = str(item["type"]).removeprefix(":"), item["process"], item.get("time")
        if kind not in TYPE_CODES:
            raise HistoryError(f"{path}: operation {number}: the type is {kind!r:.40}, none of {', '.join(TYPE_NAMES)}")
        if isinstance(process, str) and process.removeprefix(":") == "nemesis":
            process = NEMESIS
        if type(process) is not int or not NEMESIS <= process < 1 << 31:
            raise HistoryError(f"{path}: operation {number}: the process is {process!r:.40}, no whole number from 0")
        last = max(last, int(time)) if isinstance(time, int | float) else last + 1
        node = item.get("node")
        yield Event(number, process, kind, str(item["f"]).removeprefix(":"), item.get("value"), last, item.get("key"),
                    None if node is None else str(node), item.get("error"), item.get("text"))


def _maps(path: Path, text: str) -> Iterator[dict[str, Any]]:
    start = text.lstrip()[:2]
    try:
        if start[:1] == "{" and start[1:].strip() in ('"', "") and ":process" not in text.partition("\n")[0]:
            found: Any = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            found = parse_edn(text if start[:1] in ("[", "(") else f"[{text}\n]", str(path))
    except PorcupineError as error:
        # The bracket that ends what is not a vector is ours.
        ours = "unexpected ']'" in str(error)
        raise HistoryError(f"{path}: a bracket is never closed" if ours else str(error)) from None
    except (ValueError, RecursionError) as error:
        raise HistoryError(f"{path}: neither EDN nor JSON lines: {error}") from None
    for number, item in enumerate(map(as_json, found), 1):
        if not isinstance(item, dict):
            raise HistoryError(f"{path}: operation {number}: a map is expected, not {item!r:.40}")
        yield {str(name).removeprefix(":"): value for name, value in item.items()}
