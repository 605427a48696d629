"""Histories in their permanent form: from the journal to Parquet, and from both to tables for people and programs."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from stormproof.errors import HistoryError, StormproofError
from stormproof.history.description import DESCRIBED_BY
from stormproof.history.digest import RowsDigest, text_sizes
from stormproof.history.journal import JOURNAL_SCHEMA, read_journal
from stormproof.history.read_limits import FOOTER_LIMITS, OBJECT_BYTES, demand_bytes, demand_file, demand_small
from stormproof.history.schema import HISTORY_SCHEMA, SCHEMA_VERSION, TYPE_NAMES
from stormproof.run_folder import HISTORY, JOURNAL, RUN_SCHEMA

ROW_GROUP_ROWS = 250_000
DICTIONARY_COLUMNS = ["run", "process", "type", "f", "key", "node", "error"]
DELTA_COLUMNS = ["index", "time", "value"]


@dataclass(frozen=True)
class Sealed:
    """A sealed history: SHA-256 of its rows and of its file, rows, and the bytes of a torn tail that were dropped.

    The rows' digest tells whether two runs are the same; the file's digest tells whether the file is unchanged.
    """

    sha256: str
    file_sha256: str
    rows: int
    dropped_bytes: int


def seal(run_dir: Path) -> Sealed:
    """Write ``history.parquet`` from the run's journal; atomic, and harmless to repeat. The journal stays until
    ``drop_journal``.

    Raises:
        HistoryError: the journal can't be read. StormproofError: the Parquet file can't be written.
    """
    journal = read_journal(run_dir / JOURNAL)
    table = _as_history(journal.batches, journal.run)
    digest = rows_sha256(table)
    write_history(table, journal.run, run_dir / HISTORY)
    with (run_dir / HISTORY).open("rb") as file:
        file_digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Sealed(digest, file_digest, table.num_rows, journal.dropped_bytes)


def drop_journal(run_dir: Path) -> None:
    """Remove the journal of a run whose ``run.json`` has the digests of its sealed history."""
    with contextlib.suppress(OSError):  # a remaining journal does no harm
        fd = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)  # no power cut may undo the renaming of the file that replaces it
        finally:
            os.close(fd)
        (run_dir / JOURNAL).unlink()


def write_history(table: pa.Table, run: str, path: Path) -> None:
    """Store a table of HISTORY_SCHEMA as a history file, atomically: it is complete or does not exist."""
    metadata = {"stormproof.schema": str(SCHEMA_VERSION), "stormproof.run": run, DESCRIBED_BY: str(RUN_SCHEMA)}
    partial = path.with_name(path.name + ".partial")
    try:
        pq.write_table(
            table.replace_schema_metadata(metadata),
            partial,
            row_group_size=ROW_GROUP_ROWS,
            compression="zstd",
            compression_level=1,
            use_dictionary=DICTIONARY_COLUMNS,
            column_encoding=dict.fromkeys(DELTA_COLUMNS, "DELTA_BINARY_PACKED"),
        )
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the first error is the one to report
            partial.unlink()
        reason = error.strerror or error
        raise StormproofError(f"can't write {path}: {reason} (the journal beside it is whole)") from error


def read_history(run_dir: Path) -> pa.Table:
    """Return the history of a run folder as a table of HISTORY_SCHEMA: sealed, or else directly from the journal.

    Raises:
        HistoryError: neither exists, or it can't be read.
    """
    path = run_dir / HISTORY
    if not path.exists():
        if not (run_dir / JOURNAL).exists():
            raise HistoryError(f"{run_dir} holds no history: neither {HISTORY} nor {JOURNAL} is there")
        journal = read_journal(run_dir / JOURNAL)
        return _as_history(journal.batches, journal.run)
    demand_file(path)
    try:
        demand_small(pq.ParquetFile(path, **FOOTER_LIMITS).metadata, path, OBJECT_BYTES)
        texts = [field.name for field in HISTORY_SCHEMA if not pa.types.is_integer(field.type)]
        table = pq.read_table(path, read_dictionary=texts, **FOOTER_LIMITS)
        chunks = (chunk for name in texts for chunk in table.column(name).chunks)
        demand_bytes(sum(int(np.maximum(text_sizes(chunk), 0).sum(dtype=np.int64)) for chunk in chunks), path)
        version = (table.schema.metadata or {}).get(b"stormproof.schema", b"?").decode()
        if version != str(SCHEMA_VERSION):
            raise HistoryError(f"{path} has schema version {version}, this Stormproof reads {SCHEMA_VERSION}")
        return table.select(HISTORY_SCHEMA.names).cast(HISTORY_SCHEMA)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise HistoryError(f"can't read the history {path}: {reason}") from error


def history_frame(run_dir: Path) -> pd.DataFrame:
    """Return the history of a run folder as a pandas DataFrame for people.

    ``type`` is its name, ``time`` stays in nanoseconds, ``value`` and ``key`` are as the schema encodes them.
    """
    frame: pd.DataFrame = read_history(run_dir).to_pandas()
    frame["type"] = pd.Categorical.from_codes(frame["type"].to_list(), categories=pd.Index(TYPE_NAMES))
    return frame


def rows_sha256(table: pa.Table) -> str:
    """Return the SHA-256 of a history's rows, over all columns except ``run``, regardless of their chunks or encoding.
    """
    digest = RowsDigest()
    digest.update(table)
    return digest.hexdigest()


def _as_history(batches: Sequence[pa.RecordBatch], run: str) -> pa.Table:
    rows = pa.Table.from_batches(batches, schema=JOURNAL_SCHEMA)
    runs = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows.num_rows, dtype=np.int32)), pa.array([run]))
    table = rows.add_column(0, HISTORY_SCHEMA.field("run"), runs).combine_chunks()
    columns = []
    for field in HISTORY_SCHEMA:
        column = table.column(field.name)
        if pa.types.is_dictionary(field.type) and not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=HISTORY_SCHEMA)
