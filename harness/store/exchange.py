"""Export of histories for other tools, and import of histories from Jepsen, Maelstrom and other clients.

An export loses nothing: an exported file can be read again, to the same rows. An import translates foreign names and
values into those that a workload's checks know. The end of an operation keeps Jepsen's meaning: ``ok`` happened,
``fail`` did not, ``info`` may have happened. An operation without an end may have happened, too.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers.checks.mutex import MUTEX, REENTRANT
from checkers.gates import OPERATIONS
from harness.run.describe import versions
from harness.store.foreign import OURS, Choices, Foreign, read_foreign, renamed, value_of
from harness.store.translations import JUDGED_BY, TRANSLATIONS, QueueTranslation
from stormproof.errors import UsageError
from stormproof.history.jsonl import export_jsonl
from stormproof.history.ledger import ledger_sha256
from stormproof.history.schema import NO_VALUE, TEXT_VALUE, TYPE_NAMES
from stormproof.history.seal import rows_sha256, write_history
from stormproof.run_folder import HISTORY, IMPORTED, LEDGER, update_run, write_text
from stormproof.store import Store
from stormproof.test import Test
from stormproof.unnamed_takes import IMPORTED as IMPORTED_TAKES
from stormproof.unnamed_takes import UNNAMED_TAKES
from stormproof.vocabulary import LOCK
from workloads.catalog import WORKLOADS

EDN, JSONL, CSV = "edn", "jsonl", "csv"
FORMATS = (EDN, JSONL, CSV)
NO_CHOICES = Choices()
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")
_COLUMNS = ("index", "time", "process", "type", "f", "key", "value", "text", "node", "error")


# Export.


def export(table: pa.Table, form: str, file: io.TextIOBase) -> None:
    """Write a history as EDN (one map per line, as Jepsen does), as JSON lines, or as CSV.

    Raises:
        UsageError: the format does not exist.
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
    file.write(f"{OURS}{runs[0] if runs else ''}\n")
    for row in _rows(table):
        parts = [f":index {row['index']}", f":time {row['time']}"]
        process = row["process"]
        parts += [f":process {process if process >= 0 else ':nemesis'}", f":type :{TYPE_NAMES[row['type']]}"]
        parts += [f":f {_keyword(row['f'])}", f":value {_edn(value_of(row))}"]
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
    # Texts and numbers of JSON are also EDN. A character that JSON would escape as a surrogate pair is written
    # unescaped.
    return json.dumps(value, ensure_ascii=False)


# Import.


def import_run(path: Path, workload: str, store: Path, *, system: str, choices: Choices = NO_CHOICES
               ) -> tuple[Path, Foreign]:
    """Create a run from a history that was recorded elsewhere, ready to be checked. Return its folder and the read
    content. Its faults are only claimed, because nothing proves them.

    Raises:
        HistoryError, UsageError: as for ``read_foreign``, or the choices are invalid.
        StormproofError: the store can't be written.
    """
    if not RUN_NAME.fullmatch(system):
        raise UsageError(f"--system {system!r:.40}: a name of letters, digits, dots, dashes and underscores")
    if choices.reentrant and workload != LOCK:
        raise UsageError(f"--reentrant says how --workload {LOCK} is judged; leave it out")
    found = read_foreign(path, workload, choices)  # report an invalid file before creating anything
    work = WORKLOADS.load(workload)
    test = Test(system, workload, (), IMPORTED, 1, 0, 0.0, 0.0, 1, {})
    words = ["stormproof", "import", str(path), "--workload", workload, "--system", system, *choices.words()]
    guarantees = [REENTRANT if name == MUTEX and choices.reentrant else name for name in JUDGED_BY[workload]]
    takes = {UNNAMED_TAKES: IMPORTED_TAKES} if TRANSLATIONS[workload] is QueueTranslation and not found.ours else {}
    run_dir = Store(store).create(
        test, backend={"name": IMPORTED, "why": f"recorded elsewhere: {path.name}", "lateness": None,
                       "in_process": False},
        plugins=[], subject=work.subject, guarantees=guarantees, statuses={}, exemptions={},
        gates={OPERATIONS: not choices.allow_empty}, command=shlex.join([*words, "--store", str(store)]),
        versions=versions(), **takes,
    )  # fmt: skip
    table = renamed(found.table, run_dir.name)
    write_history(table, run_dir.name, run_dir / HISTORY)
    if found.claims:
        write_text(run_dir / LEDGER, "".join(f"{line.to_json()}\n" for line in found.claims))
    with (run_dir / HISTORY).open("rb") as file:
        file_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    update_run(run_dir, status="recorded", history_sha256=rows_sha256(table), history_file_sha256=file_sha256,
               ledger_sha256=ledger_sha256(run_dir / LEDGER))  # fmt: skip
    return run_dir, found
