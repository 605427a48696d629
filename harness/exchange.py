"""Histories out, for other tools, and in: those of Jepsen, of Maelstrom and of clients of one's own.

Out, nothing is lost: what is written can be read again, to the same rows. In, the words and values of others are
translated to what a workload's checks know; what an operation's end means stays as Jepsen has it: ``ok`` happened,
``fail`` did not, ``info`` may have, and so may what never ended.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from porcupine import PorcupineError
from porcupine.formats.edn import parse_edn

from harness.describe import versions
from stormproof.errors import HistoryError, UsageError
from stormproof.history.bounds import read_small
from stormproof.history.jsonl import export_jsonl, import_jsonl
from stormproof.history.ledger import ledger_sha256
from stormproof.history.schema import (
    HISTORY_SCHEMA,
    NO_VALUE,
    TEXT_VALUE,
    TYPE_CODES,
    TYPE_NAMES,
    decode_pair,
    encode_value,
)
from stormproof.history.seal import rows_sha256, write_history
from stormproof.operation import FAIL, INFO, INVOKE, NEMESIS, OK
from stormproof.run_folder import HISTORY, LEDGER, update_run
from stormproof.store import Store
from stormproof.test import Test
from workloads.catalog import WORKLOADS
from workloads.register_client import NO_MATCH

EDN, JSONL, CSV = "edn", "jsonl", "csv"
FORMATS = (EDN, JSONL, CSV)
DID_NOT_HAPPEN, DID_NOT_MATCH = "did-not-happen", "did-not-match"
"""What a ``cas`` that ended ``fail`` means: as Jepsen has it, or an observation of another value."""
IMPORTED = "imported"
"""What stands for the backend of a run that was recorded elsewhere."""
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")
_OURS = "; stormproof history of run "
"""How an EDN file begins that was written here: its rows are taken as they are."""
_COLUMNS = ("index", "time", "process", "type", "f", "key", "value", "text", "node", "error")
_EMPTY = "empty"
_FIELDS = ("process", "type", "f")


# Out.


def export(table: pa.Table, form: str, file: io.TextIOBase) -> None:
    """Write a history as EDN (a map a line, as Jepsen does), as JSON lines, or as CSV.

    Raises:
        UsageError: there is no such format.
    """
    if form == JSONL:
        export_jsonl(table, file)  # type: ignore[arg-type]  # a text file
    elif form == EDN:
        _export_edn(table, file)
    elif form == CSV:
        _export_csv(table, file)
    else:
        raise UsageError(f"--format {form}: choose one of {', '.join(FORMATS)}")


def _export_edn(table: pa.Table, file: io.TextIOBase) -> None:
    runs = table.column("run").unique().to_pylist()
    file.write(f"{_OURS}{runs[0] if runs else ''}\n")
    for row in _rows(table):
        parts = [f":index {row['index']}", f":time {row['time']}"]
        process = row["process"]
        parts += [f":process {process if process >= 0 else ':nemesis'}", f":type :{TYPE_NAMES[row['type']]}"]
        parts += [f":f {_keyword(row['f'])}", f":value {_edn(_value(row))}"]
        parts += [f":text {_edn(row['text'])}"] if row["text"] is not None else []
        parts += [f":key {row['key']}"] if row["key"] != NO_VALUE else []
        parts += [f":{name} {_edn(row[name])}" for name in ("node", "error") if row[name] is not None]
        file.write("{" + ", ".join(parts) + "}\n")


def _export_csv(table: pa.Table, file: io.TextIOBase) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in _rows(table):
        shown = {**row, "type": TYPE_NAMES[row["type"]], "key": "" if row["key"] == NO_VALUE else row["key"],
                 "value": "" if row["value"] in (NO_VALUE, TEXT_VALUE) else row["value"]}  # fmt: skip
        writer.writerow("" if shown[name] is None else shown[name] for name in _COLUMNS)


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _value(row: Mapping[str, Any]) -> Any:
    """A row's value as it was given: a pair as a tuple."""
    value = row["value"]
    if value == NO_VALUE:
        return None
    if value == TEXT_VALUE:
        return json.loads(row["text"])
    pair = decode_pair(value)
    return pair if pair[0] and encode_value(pair) == (value, None) else value


def _keyword(name: str) -> str:
    plain = name and not name[0].isdigit() and all(each.isalnum() or each in "-_.?!*+" for each in name)
    return f":{name}" if plain and name.isascii() else _edn(name)


def _edn(value: Any) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{' '.join(map(_edn, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_edn(name)} {_edn(each)}" for name, each in value.items()) + "}"
    # JSON's texts and numbers are EDN's; a character that JSON would escape as two halves is written as it is.
    return json.dumps(value, ensure_ascii=False)


# In.


def import_run(path: Path, workload: str, store: Path, *, system: str, failed_cas: str) -> Path:
    """A run of a history that was recorded elsewhere, ready to be checked; without faults, since nobody proves any.

    Raises:
        HistoryError, UsageError: as ``read_foreign``.
        StormproofError: the store can't be written.
    """
    if not RUN_NAME.fullmatch(system):
        raise UsageError(f"--system {system!r:.40}: a name of letters, digits, dots, dashes and underscores")
    if failed_cas not in (DID_NOT_HAPPEN, DID_NOT_MATCH):
        raise UsageError(f"--failed-cas {failed_cas}: choose {DID_NOT_HAPPEN} or {DID_NOT_MATCH}")
    found = read_foreign(path, workload, failed_cas, "")  # what is wrong with it is told before anything is made
    work = WORKLOADS.load(workload)
    test = Test(system, workload, (), IMPORTED, 1, 0, 0.0, 0.0, 1, {})
    run_dir = Store(store).create(
        test, backend={"name": IMPORTED, "why": f"recorded elsewhere: {path.name}", "lateness": None,
                       "in_process": False},
        plugins=[], subject=work.subject, guarantees=list(JUDGED_BY[workload]), statuses={}, exemptions={}, gates={},
        command=shlex.join(["stormproof", "import", str(path), "--workload", workload, "--system", system,
                            "--failed-cas", failed_cas, "--store", str(store)]),
        versions=versions(),
    )  # fmt: skip
    table = _renamed(found, run_dir.name)
    write_history(table, run_dir.name, run_dir / HISTORY)
    with (run_dir / HISTORY).open("rb") as file:
        file_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    update_run(run_dir, status="recorded", history_sha256=rows_sha256(table), history_file_sha256=file_sha256,
               ledger_sha256=ledger_sha256(run_dir / LEDGER))  # fmt: skip
    return run_dir


@dataclass
class Imported:
    """Rows for a history: (type, f, value, key, process, time, node, error); ``passed_over`` counts those of others."""

    rows: list[tuple[str, str, Any, int | None, int, int, str | None, str | None]] = field(default_factory=list)

    def add(self, item: Mapping[str, Any], kind: str, f: str, value: Any, key: int | None = None,
            error: str | None = None) -> None:
        """A row that says when and by whom what a foreign one does."""
        told = item.get("error") if error is None else error
        text = told if told is None or isinstance(told, str) else json.dumps(told, default=str)
        node = item.get("node")
        self.rows.append((kind, f, value, key, item["process"], item["time"],
                          None if node is None else str(node), text))  # fmt: skip

    def table(self, run: str) -> pa.Table:
        """The rows as a table of HISTORY_SCHEMA."""
        columns: dict[str, list[Any]] = {name: [] for name in HISTORY_SCHEMA.names}
        for index, (kind, f, value, key, process, time, node, error) in enumerate(self.rows):
            number, text = encode_value(value)
            entries = (run, index, time, process, TYPE_CODES[kind], f, NO_VALUE if key is None else key, number, text,
                       node, error)  # fmt: skip
            for name, entry in zip(HISTORY_SCHEMA.names, entries, strict=True):
                columns[name].append(entry)
        return pa.table(columns, schema=HISTORY_SCHEMA)


class Ids:
    """Numbers from 1 for values of any kind, in order of first sight."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, value: Any) -> int:
        """The number of a value; texts, numbers and nestings of them are told apart as JSON does."""
        return self._known.setdefault(json.dumps(value, default=str, sort_keys=True), len(self._known) + 1)


def read_foreign(path: Path, workload: str, failed_cas: str, run: str) -> pa.Table:
    """A file's history as a table, in the words of a workload.

    Raises:
        HistoryError: the file is no history, or one of something else than the workload is about.
        UsageError: histories of this workload can't be read.
    """
    make = TRANSLATIONS.get(workload)
    if make is None:
        raise UsageError(f"--workload {workload}: histories can be imported as {', '.join(TRANSLATIONS)}")
    try:
        text = bytes(read_small(path)).decode()
    except UnicodeDecodeError:
        raise HistoryError(f"{path}: not UTF-8 text") from None
    if text.startswith('{"schema":'):
        return _renamed(import_jsonl(path), run)
    items = list(_items(path, text))
    imported = Imported()
    if text.startswith(_OURS):
        for item in items:
            imported.add(item, item["type"], item["f"], _own_value(item), item.get("key"))
        return imported.table(run)
    translate = make(failed_cas)
    for number, item in enumerate(items, 1):
        try:
            if item["process"] == NEMESIS:
                imported.add(item, INFO, item["f"], item.get("value"))
            else:
                translate(item, imported)
        except (KeyError, TypeError, ValueError) as error:
            raise HistoryError(f"{path}: operation {number}: {error}") from None
    return imported.table(run)


def _own_value(item: Mapping[str, Any]) -> Any:
    """A value as ``_export_edn`` writes it: a list without ``text`` is a pair."""
    if item.get("text") is not None:
        return json.loads(item["text"])
    value = item.get("value")
    return tuple(value) if isinstance(value, list) else value


def _renamed(table: pa.Table, run: str) -> pa.Table:
    column = pa.array([run] * table.num_rows).dictionary_encode().cast(HISTORY_SCHEMA.field("run").type)
    return table.set_column(0, HISTORY_SCHEMA.field("run"), column)


def _items(path: Path, text: str) -> Iterator[dict[str, Any]]:
    """The rows of a file, with whole numbers for processes and times that do not run backwards."""
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
        yield {**item, "type": kind, "process": process, "f": str(item["f"]).removeprefix(":"), "time": last}


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
    for number, item in enumerate(found, 1):
        if not isinstance(item, dict):
            raise HistoryError(f"{path}: operation {number}: a map is expected, not {item!r:.40}")
        yield {str(name).removeprefix(":"): value for name, value in item.items()}


class Registers:
    """``read``, ``write`` and ``cas`` of one register, or of several by keys: ``[key value]``, as ``independent`` of
    Jepsen and Maelstrom's ``lin-kv`` have it. A register that was never written holds nil."""

    def __init__(self, failed_cas: str) -> None:
        self._observed = failed_cas == DID_NOT_MATCH
        self._values, self._keys = Ids(), Ids()
        self._keyed: bool | None = None

    def __call__(self, item: Mapping[str, Any], to: Imported) -> None:
        f, kind, value = item["f"], item["type"], item.get("value")
        if f not in ("read", "write", "cas"):
            raise ValueError(f"{f} is no operation of a register (read, write, cas)")
        key, value = self._parts(f, item, value)
        if f == "cas":
            if not isinstance(value, list | tuple) or len(value) != 2:
                raise ValueError("cas needs the pair of what is expected and what is set")
            old, new = map(self._number, value)
            failed = kind == FAIL and self._observed
            # Both from the start: of one that never ends it is known what it expected, too.
            error = NO_MATCH if failed else _not(NO_MATCH, item) if kind == FAIL else None
            to.add(item, kind, f, (old, new), key, error)
            return
        to.add(item, kind, f, self._number(value) if f == "write" or kind == OK else None, key)

    def _parts(self, f: str, item: Mapping[str, Any], value: Any) -> tuple[int, Any]:
        """The key's number, and the value without it."""
        if "key" in item:
            return self._keys.of(item["key"]), value
        if self._keyed is None:
            self._keyed = isinstance(value, list | tuple) and (f != "cas" or isinstance(value[-1], list | tuple))
        if not self._keyed:
            return 0, value
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ValueError("[key value] is expected, as in the operations before")
        return self._keys.of(value[0]), value[1]

    def _number(self, value: Any) -> int:
        return 0 if value is None else self._values.of(value)


def _not(word: str, item: Mapping[str, Any]) -> str:
    """The error of an operation that certainly did not happen, which must not read as an observation."""
    told = item.get("error")
    text = "did not happen" if told is None else told if isinstance(told, str) else json.dumps(told, default=str)
    return f"did not happen: {text}" if text == word else text


class Queues:
    """``enqueue`` and ``dequeue`` of one queue; a ``drain`` takes a list of messages, and then the queue was empty."""

    def __init__(self, failed_cas: str) -> None:
        self._messages = Ids()

    def __call__(self, item: Mapping[str, Any], to: Imported) -> None:
        f, kind, value = item["f"], item["type"], item.get("value")
        if f not in ("enqueue", "dequeue", "drain"):
            raise ValueError(f"{f} is no operation of a queue (enqueue, dequeue, drain)")
        if f == "enqueue":
            to.add(item, kind, f, self._message(value), 0)
        elif f == "drain" and kind == OK:
            for each in value or ():
                to.add(item, OK, f, self._message(each), 0)
                to.add(item, INVOKE, f, None, 0)
            to.add(item, FAIL, f, None, 0, _EMPTY)
        elif kind == FAIL:
            empty = f == "dequeue" and item.get("error") in (None, ":empty", "empty", "exhausted", ":exhausted")
            to.add(item, kind, f, None, 0, _EMPTY if empty else None)
        else:
            taken = value is not None and kind != INVOKE
            to.add(item, kind, f, self._message(value) if taken else None, 0)

    def _message(self, value: Any) -> tuple[int, int]:
        return 0, self._messages.of(value)


class Locks:
    """``acquire`` and ``release``; where an acquire's value is a whole number, that is its fencing token."""

    def __init__(self, failed_cas: str) -> None:
        pass

    def __call__(self, item: Mapping[str, Any], to: Imported) -> None:
        f, kind, value = item["f"], item["type"], item.get("value")
        if f not in ("acquire", "release"):
            raise ValueError(f"{f} is no operation of a lock (acquire, release)")
        token = value if f == "acquire" and kind == OK and type(value) is int and value > 0 else None
        to.add(item, kind, f, token, 0)


TRANSLATIONS: Mapping[str, type[Registers] | type[Queues] | type[Locks]] = {
    "register": Registers, "queue": Queues, "consume-last": Queues, "lock": Locks, "lease": Locks,
}  # fmt: skip
"""Workload -> what makes its operations of foreign ones."""
JUDGED_BY: Mapping[str, tuple[str, ...]] = {
    "register": ("register",), **dict.fromkeys(("queue", "consume-last"), ("lost", "phantom", "duplicated")),
    **dict.fromkeys(("lock", "lease"), ("mutual-exclusion", "fencing")),
}  # fmt: skip
"""Workload -> the checks that decide: those that need nothing but what clients did."""
