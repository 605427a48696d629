"""Synthetic runs with known anomalies, in the format of real ones: for benchmarks and tests.

The operations of a run are drawn as columns: producers send one after another, consumers take the messages in the order
of their confirmation, everything is drained at the end. The requested defects are added on top.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from checkers.gates import DEFAULT_GATES
from stormproof.contracts.fault import CUTS_LINKS
from stormproof.history.digest import RowsDigest
from stormproof.history.ledger import LedgerLine, ledger_sha256
from stormproof.history.schema import HISTORY_SCHEMA, NO_VALUE, PAIR_SHIFT, SCHEMA_VERSION, TYPE_CODES
from stormproof.run_folder import HISTORY, LEDGER, RUN_FILE, RUN_SCHEMA, with_seal

ROW_GROUP = 250_000
BLOCK = 5_000_000
SECOND = 1_000_000_000
_START = datetime(2026, 1, 1, tzinfo=UTC)
PRODUCERS = 4
CONSUMERS = 4
CLIENTS = PRODUCERS + CONSUMERS
NODES = ("n1", "n2", "n3")

_F = ("enqueue", "dequeue", "drain", "depth", "partition.inject", "partition.heal")
_ENQUEUE, _DEQUEUE, _DRAIN, _DEPTH, _INJECT, _HEAL = range(6)
_ERRORS = ("empty", "no receipt in time")
_EMPTY, _LATE = range(2)
_OK, _FAIL, _INFO = TYPE_CODES["ok"], TYPE_CODES["fail"], TYPE_CODES["info"]

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Defects:
    """The number of defects of each kind in a run.

    ``crashed`` sends end unknown (every other one of them is delivered); ``left`` messages are never delivered and are
    still in the queue at the end; ``drained`` is false for a run whose drain breaks off.
    """

    lost: int = 0
    duplicated: int = 0
    redelivered: int = 0
    phantom: int = 0
    left: int = 0
    crashed: int = 0
    drained: bool = True

    @property
    def anomalies(self) -> dict[str, int]:
        """The anomalies that the checks must find."""
        found = {
            "lost": self.lost + self.left if self.drained else 0,
            "phantom": self.phantom,
            "duplicated": self.duplicated,
            "redelivered-unconfirmed": self.redelivered,
            "depth": self.left if self.drained else 0,
        }
        return {name: count for name, count in found.items() if count}

    @property
    def verdict(self) -> str:
        """The verdict that the run must get."""
        if set(self.anomalies) - {"redelivered-unconfirmed"}:
            return "invalid"
        return "valid" if self.drained else "unknown"


@dataclass
class _Ops:
    """Operations as columns, one entry each; ``client`` is the thread, not yet the process."""

    client: list[Int64s] = field(default_factory=list)
    f: list[Int64s] = field(default_factory=list)
    start: list[Int64s] = field(default_factory=list)
    end: list[Int64s] = field(default_factory=list)
    kind: list[Int64s] = field(default_factory=list)
    sent: list[Int64s] = field(default_factory=list)
    value: list[Int64s] = field(default_factory=list)
    error: list[Int64s] = field(default_factory=list)

    def add(self, client: Any, f: int, start: Any, end: Any, *, kind: Any = _OK, sent: Any = NO_VALUE,
            value: Any = NO_VALUE, error: Any = -1) -> None:  # fmt: skip
        """Append operations; a scalar applies to all of them."""
        length = len(np.atleast_1d(start))
        row = (client, f, start, end, kind, sent, value, error)
        columns = (self.client, self.f, self.start, self.end, self.kind, self.sent, self.value, self.error)
        for column, entry in zip(columns, row, strict=True):
            column.append(np.broadcast_to(np.asarray(entry, dtype=np.int64), (length,)))

    def columns(self) -> list[Int64s]:
        """Return all operations, in the order of the fields."""
        lists = (self.client, self.f, self.start, self.end, self.kind, self.sent, self.value, self.error)
        return [np.concatenate(column) for column in lists]


def write_run(run_dir: Path, events: int, seed: int, defects: Defects | None = None) -> None:
    """Write a run of about ``events`` rows (at least 200) into a new folder: history, ledger and description."""
    wrong = defects or Defects()
    rng = np.random.default_rng(seed)
    messages = max(100, events // 4 - CLIENTS)
    ops = _traffic(rng, messages, wrong)
    end = int(max(column.max(initial=0) for column in ops.end))
    window = (int(end * 0.4), int(end * 0.6))
    table = _rows(run_dir.name, ops.columns(), window)
    _store(run_dir, [table], window, seed)


def write_large_run(run_dir: Path, events: int, seed: int, defects: Defects | None = None, block: int = BLOCK) -> None:
    """Write a run of about ``events`` rows as ``write_run`` does, without ever holding more than ``block`` of them.

    The queues are used one after the other, each by separate clients; the first has the defects.
    """
    sizes = [min(block, events - start) for start in range(0, events, block)]
    window: list[int] = []

    def tables() -> Iterator[pa.Table]:
        rows = time = process = 0
        for number, size in enumerate(sizes):
            wrong = (defects or Defects()) if number == 0 else Defects(crashed=5)
            ops = _traffic(np.random.default_rng((seed, number)), max(100, size // 4 - CLIENTS), wrong)
            end = int(max(column.max(initial=0) for column in ops.end))
            window[:] = window or [int(end * 0.4), int(end * 0.6)]
            table = _rows(run_dir.name, ops.columns(), (int(end * 0.4), int(end * 0.6)))
            table, processes = _moved(table, number, rows, time, process)
            yield table
            rows, time, process = rows + table.num_rows, time + end + 3 * SECOND, process + processes

    _store(run_dir, tables(), window, seed)


def _moved(table: pa.Table, number: int, rows: int, time: int, process: int) -> tuple[pa.Table, int]:
    """Shift a block's rows to queue ``number``, after ``rows`` rows and ``time`` nanoseconds.

    Its clients begin with process number ``process``. Also returns the number of their processes.
    """
    columns = {name: table.column(name).to_numpy() for name in ("index", "time", "process", "key", "value")}
    client = columns["process"] >= 0
    depths = pc.equal(table.column("f").cast(pa.string()), "depth").to_numpy()
    messages = (columns["value"] >= 0) & ~depths
    moved = {
        "index": columns["index"] + rows,
        "time": columns["time"] + time,
        "process": np.where(client, columns["process"] + process, -1).astype(np.int32),
        "key": np.where(columns["key"] >= 0, number, columns["key"]).astype(np.int32),
        "value": columns["value"] + np.where(messages, number * PRODUCERS << PAIR_SHIFT, 0),
    }
    for name, column in moved.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), pa.array(column))
    return table, int(columns["process"].max()) + 1


def _store(run_dir: Path, tables: Iterable[pa.Table], window: Sequence[int], seed: int) -> None:
    """Write a run's folder; ``window``, the times of its fault, is needed only after the last table."""
    run_dir.mkdir(parents=True)
    path = run_dir / HISTORY
    schema = HISTORY_SCHEMA.with_metadata({"stormproof.schema": str(SCHEMA_VERSION), "stormproof.run": run_dir.name})
    digest = RowsDigest()
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer:
        for table in tables:
            writer.write_table(table.cast(schema), row_group_size=ROW_GROUP)
            digest.update(table)
    (run_dir / LEDGER).write_text(_ledger((window[0], window[1])), encoding="utf-8")
    digests = {"history_sha256": digest.hexdigest(),
               "history_file_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
               "ledger_sha256": ledger_sha256(run_dir / LEDGER)}  # fmt: skip
    info = _info(run_dir.name, seed) | digests
    (run_dir / RUN_FILE).write_text(json.dumps(with_seal(info)), encoding="utf-8")


def _traffic(rng: np.random.Generator, messages: int, wrong: Defects) -> _Ops:
    ops = _Ops()
    client = np.arange(messages) % PRODUCERS
    value = client << PAIR_SHIFT | np.arange(messages) // PRODUCERS
    # Sends of one producer follow one another: each begins a little after the one before it has ended.
    step = 8_000_000
    start = np.arange(messages) // PRODUCERS * step + client * 1_000
    end = start + rng.integers(300_000, step - 500_000, messages)
    shuffled = rng.permutation(messages)
    crashed, lost, left, again, late = np.split(
        shuffled, np.cumsum([wrong.crashed, wrong.lost, wrong.left, wrong.redelivered])
    )
    kind, error = np.full(messages, _OK), np.full(messages, -1)
    kind[crashed], error[crashed] = _INFO, _LATE
    ops.add(client, _ENQUEUE, start, end, kind=kind, sent=value, value=value, error=error)
    takes = np.ones(messages, dtype=np.bool_)
    takes[lost] = takes[left] = takes[crashed[::2]] = False
    taken = np.flatnonzero(takes)
    taken = taken[np.argsort(end[taken], kind="stable")]
    consumer = np.arange(len(taken)) % CONSUMERS
    taken_at = np.maximum.accumulate(end[taken] + rng.integers(200_000, 900_000, len(taken)))
    asked_at = _after_previous(consumer, taken_at)
    unsure = np.isin(taken, again)
    ops.add(PRODUCERS + consumer, _DEQUEUE, asked_at, taken_at, kind=np.where(unsure, _INFO, _OK),
            value=value[taken], error=np.where(unsure, _LATE, -1))  # fmt: skip
    extra = [value[again], value[late[: wrong.duplicated]], np.arange(wrong.phantom) | (1_000_000 << PAIR_SHIFT)]
    _finish(ops, int(taken_at.max(initial=0)), np.concatenate(extra), wrong)
    return ops


def _after_previous(consumer: Int64s, done: Int64s) -> Int64s:
    """Return invocation times of consumers that ask again as soon as they have received a message."""
    asked = np.zeros(len(done), dtype=np.int64)
    for number in range(CONSUMERS):
        mine = np.flatnonzero(consumer == number)
        asked[mine[1:]] = done[mine[:-1]] + 1_000
    return np.minimum(asked, done - 1_000)


def _finish(ops: _Ops, begin: int, extra: Int64s, wrong: Defects) -> None:
    """Add the drain, which returns the extra deliveries, and the reading of the depth."""
    begin += SECOND
    at = begin + np.arange(len(extra)) * 1_000_000
    ops.add(PRODUCERS, _DRAIN, at, at + 500_000, value=extra)
    last = begin + len(extra) * 1_000_000 + np.arange(CONSUMERS) * 10_000
    everyone = PRODUCERS + np.arange(CONSUMERS)
    if wrong.drained:
        ops.add(everyone, _DRAIN, last, last + SECOND, kind=_FAIL, error=_EMPTY)
    else:
        ops.add(everyone, _DRAIN, last, last + SECOND, kind=_INFO, error=_LATE)
    left = wrong.left if wrong.drained else wrong.left + wrong.lost
    ops.add(0, _DEPTH, last[-1:] + 2 * SECOND, last[-1:] + 2 * SECOND + 1_000_000, value=left)


def _rows(run: str, columns: list[Int64s], window: tuple[int, int]) -> pa.Table:
    client, f, start, end, kind, sent, value, error = columns
    process = _processes(client, start, kind)
    faults = np.asarray(window)
    steps = np.asarray([_INJECT, _HEAL])
    none = np.full(2, -1)
    time = np.concatenate([start, end, faults, faults + 1_000])
    order = np.argsort(time, kind="stable")
    count = len(time)

    def column(*parts: Int64s) -> Int64s:
        return np.concatenate(parts)[order]

    node = client % len(NODES)
    invoke = np.zeros(len(client), dtype=np.int64)
    arrays: dict[str, Any] = {
        "run": pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([run])),
        "index": pa.array(np.arange(count)),
        "time": pa.array(time[order] + np.arange(count)),
        "process": pa.array(column(process, process, none, none).astype(np.int32)),
        "type": pa.array(column(invoke, kind, none * 0 + _INFO, none * 0 + _INFO).astype(np.int8)),
        "f": _named(column(f, f, steps, steps), _F),
        "key": pa.array(column(invoke, invoke, none, none).astype(np.int32)),
        "value": pa.array(column(sent, value, none, none)),
        "text": pa.nulls(count, pa.string()),
        "node": _named(column(node, node, none, none), NODES),
        "error": _named(column(invoke - 1, error, none, none), _ERRORS),
    }
    return pa.table(arrays, schema=HISTORY_SCHEMA)


def _processes(client: Int64s, start: Int64s, kind: Int64s) -> Int64s:
    """Return process numbers: a client whose operation ended unknown continues under a new one."""
    process = np.empty(len(client), dtype=np.int64)
    for number in np.unique(client):
        mine = np.flatnonzero(client == number)
        mine = mine[np.argsort(start[mine], kind="stable")]
        crashes = np.concatenate([[0], np.cumsum(kind[mine] == _INFO)[:-1]])
        process[mine] = number + crashes * CLIENTS
    return process


def _named(codes: Int64s, names: tuple[str, ...]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32), mask=codes < 0), pa.array(names))


def _ledger(window: tuple[int, int]) -> str:
    common = {"id": 1, "fault": "partition", "kind": "one", "targets": ("n1", "c1"), "confirmed": True,
              "effects": (CUTS_LINKS,)}  # fmt: skip
    lines = [
        LedgerLine(phase="inject", time=window[0], **common),  # type: ignore[arg-type]
        LedgerLine(phase="heal", time=window[1], evidence={"dropped": 42}, **common),  # type: ignore[arg-type]
    ]
    return "".join(f"{line.to_json()}\n" for line in lines)


def _info(run: str, seed: int) -> dict[str, Any]:
    test: dict[str, Any] = {
        "system": ("joram", "standalone")[seed % 2],
        "workload": "queue",
        "nemesis": ["partition"],
        "backend": "local",
        "nodes": len(NODES),
        "seed": seed,
        "time_limit": 30.0,
        "rate": 200.0,
        "concurrency": CLIENTS,
        "options": {},
    }
    return {
        "schema": RUN_SCHEMA,
        "run": run,
        "test": test,
        "backend": {"name": "local", "why": "made up", "lateness": 5.0, "in_process": False},
        "started": "2026-01-01T00:00:00+00:00",
        "status": "recorded",
        "failure": None,
        "guarantees": ["lost", "phantom", "duplicated", "duplicate-okay", "depth"],
        "gates": dict(DEFAULT_GATES),
    }


def write_store(store: Path, runs: int, events: int) -> Iterator[tuple[Path, Defects]]:
    """Write ``runs`` runs into a store, one in five with anomalies; yield each with its defects."""
    for number in range(runs):
        defects = Defects(crashed=7)
        if number % 5 == 0:
            defects = _VARIANTS[number // 5 % len(_VARIANTS)]
        started = _START + timedelta(seconds=number)
        run_dir = store / f"{started:%Y%m%dT%H%M%S}-joram-queue-{number}-{number % 65536:04x}"
        write_run(run_dir, events, number, defects)
        yield run_dir, defects


_VARIANTS = (
    Defects(lost=3, crashed=5),
    Defects(duplicated=2),
    Defects(redelivered=4, crashed=2),
    Defects(phantom=1),
    Defects(left=2),
    Defects(lost=1, drained=False),
)
