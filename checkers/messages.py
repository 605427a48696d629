"""The account of a run's messages as a table, with the same counts as the checks: the node that confirmed each, and
whether it is lost.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.checks.lost import missing
from checkers.kernels.queues import ACKED, FAILED, NEVER, UNSURE
from checkers.lake.files import LAKE, AnyStore
from checkers.lake.object_store import ObjectStore, runs_among
from checkers.lake.table import MESSAGE_ROWS, MESSAGES_DIR
from checkers.run import SECOND, EndedEarly, Run, load_run
from stormproof.errors import HistoryError
from stormproof.history.columns import Bools, Int64s
from stormproof.history.schema import decode_pair
from stormproof.run_folder import HISTORY
from stormproof.store import Store
from stormproof.vocabulary import MESSAGES

_STATES = {NEVER: "never sent", ACKED: "confirmed", FAILED: "failed", UNSURE: "unknown"}


def messages_table(run: Run) -> pa.Table:
    """Return a row per message of a queue (schema ``checkers.lake.table.MESSAGE_ROWS``); none for other subjects.

    Raises:
        HistoryError: no account can be given.
    """
    if MESSAGES not in run.subjects:
        return MESSAGE_ROWS.empty_table()
    h, messages = run.history, run.messages
    count = len(messages.key)
    lost, undecided = (_marked(some, count) for some in missing(run))
    sent = messages.sent
    completion = np.where(sent >= 0, h.partner[sent], -1)
    confirmed = np.where(messages.state == ACKED, completion, -1)
    got = messages.deliveries > 0
    first, last = messages.first, np.full(count, -1, dtype=np.int64)
    last[got] = messages.delivered[messages.start[1:][got] - 1]
    pairs = [decode_pair(int(value)) if value >= 0 else (None, None) for value in messages.value.tolist()]
    return pa.table({
        "run": pa.repeat(run.name, count), "queue": messages.key,
        "producer": [pair[0] for pair in pairs], "sequence": [pair[1] for pair in pairs],
        "state": [_STATES[code] for code in messages.state.tolist()],
        "sent_s": _times(run, sent), "confirmed_s": _times(run, confirmed), "confirmed_by": _nodes(run, confirmed),
        "deliveries": messages.deliveries, "first_s": _times(run, first), "first_by": _nodes(run, first),
        "last_s": _times(run, last), "lost": lost, "undecided": undecided,
    }).cast(MESSAGE_ROWS)  # fmt: skip


def _marked(some: Int64s, count: int) -> Bools:
    marked = np.zeros(count, dtype=np.bool_)
    marked[some] = True
    return marked


def _times(run: Run, rows: Int64s) -> pa.Array:
    return pa.array(run.history.time[rows] / SECOND, mask=rows < 0)


def _nodes(run: Run, rows: Int64s) -> list[str | None]:
    return [None if row < 0 else run.history.node.at(row) for row in rows.tolist()]


def add_messages(store: AnyStore, progress: Callable[[int, int], None] | None = None) -> tuple[int, list[str]]:
    """Create the accounts that a store's lake lacks, or has of another history; remove those of runs that are gone.

    Returns the number of accounts created, and the reasons why others cannot be created. ``progress`` is called with
    the runs done and all runs.

    Raises:
        OSError, StormproofError: the lake can't be written.
    """
    if isinstance(store, ObjectStore):
        return _add_objects(store, progress)
    folder = store / LAKE / MESSAGES_DIR
    folder.mkdir(parents=True, exist_ok=True)
    made, refused = 0, []
    runs = {run_dir.name: run_dir for run_dir in Store(store).runs() if (run_dir / HISTORY).exists()}
    for stale in _stale(folder, runs):
        stale.unlink(missing_ok=True)
    for done, (name, run_dir) in enumerate(runs.items()):
        if progress is not None:
            progress(done, len(runs))
        path = folder / f"{name}.parquet"
        if path.exists() and path.stat().st_mtime_ns >= (run_dir / HISTORY).stat().st_mtime_ns:
            continue
        try:
            table = messages_table(_read(run_dir))
        except HistoryError as error:
            refused.append(str(error))
            continue
        partial = folder / f".{name}.{os.getpid()}.partial"
        try:
            pq.write_table(table, partial, compression="zstd", compression_level=1)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        made += 1
    return made, refused


def _add_objects(store: ObjectStore, progress: Callable[[int, int], None] | None) -> tuple[int, list[str]]:
    """Add the messages of an object store, as ``add_messages`` does."""
    items = store.items()
    runs = {run: files for run, files in runs_among(items).items() if HISTORY in files}
    accounts = {name: item for name, item in items.items() if Path(name).match(f"{LAKE}/{MESSAGES_DIR}/*.parquet")}
    for name in accounts:
        if Path(name).stem not in runs:
            store.remove(name)
    made, refused = 0, []
    for done, (run, files) in enumerate(runs.items()):
        if progress is not None:
            progress(done, len(runs))
        name = f"{LAKE}/{MESSAGES_DIR}/{run}.parquet"
        # An object service's times have a resolution of whole seconds.
        if name in accounts and accounts[name].written >= files[HISTORY].written:
            continue
        with tempfile.TemporaryDirectory(prefix="stormproof-") as scratch:
            try:
                store.fetch(run, Path(scratch) / run, files)
                table = messages_table(_read(Path(scratch) / run))
            except HistoryError as error:
                refused.append(str(error).replace(scratch, store.url))
                continue
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer, compression="zstd", compression_level=1)
        store.write(name, buffer.getvalue().to_pybytes())
        made += 1
    return made, refused


def _read(run_dir: Path) -> Run:
    try:
        return load_run(run_dir)
    except EndedEarly as error:
        raise HistoryError(f"{run_dir}: {error}") from None


def _stale(folder: Path, runs: dict[str, Path]) -> Iterator[Path]:
    for path in folder.glob("*.parquet"):
        if path.stem not in runs:
            yield path
