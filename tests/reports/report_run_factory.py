"""Plausible run folders for the tests of reports, written without the harness's own recorder."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nemesis.catalog import FAULTS
from stormproof.history.ledger import LedgerLine
from stormproof.history.schema import HISTORY_SCHEMA, TYPE_CODES, encode_value
from stormproof.operation import FAIL, INFO, INVOKE, NEMESIS, OK, Op
from stormproof.run_folder import RUN_SCHEMA

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><!--\u2028"
STARTED = datetime(2026, 5, 1, 10, 0, 0, tzinfo=UTC)
SECOND = 1_000_000_000


@dataclass
class Lane:
    """One client thread while a run is made up: the process it is now, the rows it made."""

    thread: int
    process: int
    node: str
    now: int = 0
    rows: list[Op] = field(default_factory=list)


def write_history(path: Path, rows: list[Op], run: str) -> None:
    """Rows in order of time, numbered, as the one Parquet file of a run."""
    encoded = [encode_value(op.value) for op in rows]
    columns = [
        [run] * len(rows), range(len(rows)), [op.time for op in rows], [op.process for op in rows],
        [TYPE_CODES[op.type] for op in rows], [op.f for op in rows],
        [-1 if op.key is None else op.key for op in rows], [value for value, _ in encoded],
        [text for _, text in encoded], [op.node for op in rows], [op.error for op in rows],
    ]  # fmt: skip
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, HISTORY_SCHEMA, strict=True)]
    pq.write_table(pa.table(arrays, schema=HISTORY_SCHEMA), path)


def make_run(
    store: Path,
    name: str = "run-1",
    *,
    verdict: str = "invalid",
    operations: int = 3000,
    seconds: float = 30.0,
    clients: int = 6,
    seed: int = 7,
    hostile: str = "",
    old: bool = False,
) -> Path:
    """A run of the queue workload with three faults; an invalid one loses and repeats messages.

    An ``old`` one has a description of schema 1, and a ledger without the effects of its faults.
    """
    run_dir = store / name
    (run_dir / "logs").mkdir(parents=True)
    rng = random.Random(seed)
    faults = [("partition", "master", 0.2, 0.4), ("pause", "one", 0.5, 0.58), ("kill", "master", 0.7, 0.74)]
    rows, lost, twice = _operations(rng, operations, seconds, clients, verdict, faults, hostile)
    rows.extend(_nemesis(faults, seconds))
    rows.sort(key=lambda op: op.time)
    write_history(run_dir / "history.parquet", rows, name)
    (run_dir / "ledger.jsonl").write_text(_ledger(faults, seconds, hostile, old), encoding="utf-8")
    for node in ("n1", "n2", "n3"):
        (run_dir / "logs" / f"{node}.log").write_text(_log(rng, node, seconds, faults, hostile), encoding="utf-8")
    _write(run_dir / "run.json", run_json(name, seconds, clients, seed, verdict, old))
    _write(run_dir / "verdict.json", verdict_json(name, verdict, rows, lost, twice))
    return run_dir


def _write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data), encoding="utf-8")


def _operations(
    rng: random.Random, operations: int, seconds: float, clients: int, verdict: str,
    faults: list[tuple[str, str, float, float]], hostile: str,
) -> tuple[list[Op], list[tuple[int, int]], list[tuple[int, int]]]:  # fmt: skip
    lanes = [Lane(t, t, f"n{t % 3 + 1}", rng.randrange(10_000_000)) for t in range(clients)]
    step = int(seconds * 0.9 * SECOND / (operations / clients))
    sequence = [0] * clients
    waiting: list[tuple[int, int]] = []
    lost: list[tuple[int, int]] = []
    twice: list[tuple[int, int]] = []
    for at in range(operations):
        lane = lanes[at % clients]
        start = max(lane.now + 1000, int((at // clients + rng.uniform(0.2, 0.8)) * step))
        share = start / SECOND / seconds
        cut = any(begin <= share <= end for _, _, begin, end in faults)
        took = int(rng.lognormvariate(15.0 if not cut else 16.5, 0.5))
        end = start + min(took, step // 2 if not cut else step * 3)
        unlucky = cut and rng.random() < 0.08
        reason = hostile or "timeout"
        if lane.thread % 2 == 0:
            value = (lane.thread, sequence[lane.thread])
            sequence[lane.thread] += 1
            lane.rows.append(_op(INVOKE, "enqueue", value, lane, start))
            lane.rows.append(_op(INFO if unlucky else OK, "enqueue", value, lane, end, reason if unlucky else None))
            if verdict == "invalid" and cut and not unlucky and len(lost) < 12 and rng.random() < 0.1:
                lost.append(value)
            else:
                waiting.append(value)
        else:
            lane.rows.append(_op(INVOKE, "dequeue", None, lane, start))
            if unlucky:
                lane.rows.append(_op(INFO, "dequeue", None, lane, end, reason))
            elif waiting and rng.random() > 0.03:
                value = waiting.pop(0)
                lane.rows.append(_op(OK, "dequeue", value, lane, end))
                if verdict == "invalid" and cut and len(twice) < 5 and rng.random() < 0.1:
                    twice.append(value)
                    waiting.append(value)
            else:
                lane.rows.append(_op(FAIL, "dequeue", None, lane, end, "empty"))
        if unlucky:
            lane.process += clients
        lane.now = end
    _drain(rng, lanes, waiting, int(seconds * 0.92 * SECOND), hostile)
    return [op for lane in lanes for op in lane.rows], lost, twice


def _drain(rng: random.Random, lanes: list[Lane], waiting: list[tuple[int, int]], now: int, hostile: str) -> None:
    for lane in lanes:
        lane.now = max(lane.now, now)
    for at, value in enumerate(waiting):
        lane = lanes[at % len(lanes)]
        lane.rows.append(_op(INVOKE, "drain", None, lane, lane.now + 1))
        lane.now += int(rng.uniform(1, 3) * 1e6)
        lane.rows.append(_op(OK, "drain", value, lane, lane.now))
    last = lanes[0]
    if hostile:
        last.rows.append(_op(INVOKE, "drain", None, last, last.now + 1))
        last.rows.append(_op(OK, "drain", {"body": hostile}, last, last.now + 2))
    last.rows.append(_op(INVOKE, "depth", None, last, last.now + 3))
    last.rows.append(_op(OK, "depth", 0, last, last.now + 900_000))


def _op(kind: str, f: str, value: Any, lane: Lane, time: int, error: str | None = None) -> Op:
    return Op(kind, f, value, 0, lane.process, time, lane.node, error)


def _nemesis(faults: list[tuple[str, str, float, float]], seconds: float) -> list[Op]:
    rows = []
    for at, (family, kind, *shares) in enumerate(faults, 1):
        for phase, share in zip(("inject", "heal"), shares, strict=True):
            text = {"id": at, "kind": kind, "targets": ["n1"]}
            for later in (0, 5_000_000):
                rows.append(Op(INFO, f"{family}.{phase}", text, None, NEMESIS, int(share * seconds * SECOND) + later))
    return rows


def _ledger(faults: list[tuple[str, str, float, float]], seconds: float, hostile: str, old: bool) -> str:
    targets = {"partition": ("n1", "c1"), "pause": ("n2",), "kill": (hostile or "n1",)}
    evidence: dict[str, dict[str, Any]] = {
        "partition": {"packets_dropped": {"n1": 1312, "n2": 640, "n3": 672}, "links": ["n1->n2", "n1->n3"]},
        "pause": {"state_before": "running", "state_after": "paused", "pid": 4711},
        "kill": {"pid": 4702, "gone": True, "note": hostile},
    }
    lines = []
    for at, (family, kind, start, end) in enumerate(faults, 1):
        for phase, share in (("inject", start), ("heal", end)):
            proof = evidence[family] if phase == "inject" else {"state": "running"}
            line = LedgerLine(at, family, kind, phase, int(share * seconds * SECOND), targets[family], proof, True,
                              effects=tuple(sorted(FAULTS.load(family).effects)))  # fmt: skip
            row = json.loads(line.to_json())
            lines.append(json.dumps({name: value for name, value in row.items() if not old or name != "effects"}))
    return "\n".join(lines) + "\n"


def _log(
    rng: random.Random, node: str, seconds: float, faults: list[tuple[str, str, float, float]], hostile: str
) -> str:
    lines = []
    messages = ("view 3 installed: n2 n3", "heartbeat missed", "replicated 128 entries", "client connected from c2")
    time = -0.5
    while time < seconds:
        lines.append((time, rng.choice(messages)))
        time += rng.uniform(0.05, 0.4)
    for _, kind, start, end in faults:
        lines.append((start * seconds + 0.9, f"suspect {kind}: no heartbeat for 800 ms; installing view 4: n2 n3"))
        lines.append((end * seconds + 0.2, "merged view 5: n1 n2 n3; state taken from n1"))
    if hostile:
        lines.append((seconds / 2, hostile))
    text = ""
    for time, message in sorted(lines):
        wall = (STARTED + timedelta(seconds=time)).isoformat(timespec="microseconds")
        text += f"{time + 2.25:.6f} {wall} {node} {message}\n"
    return text


def run_json(
    name: str, seconds: float, clients: int, seed: int, verdict: str, old: bool = False
) -> dict[str, Any]:
    """What the harness stores beside the history."""
    partitions = "unspecified" if verdict == "invalid" else "primary-partition"
    system, guarantees = ("design", "promises") if old else ("system", "guarantees")
    command = (
        f"stormproof test --{system} joram --workload queue --nemesis partition,pause,kill --backend local --nodes 3 "
        f"--time-limit {seconds:g} --rate 200 --seed {seed} --set partitions={partitions}"
    )
    backend = {} if old else {"lateness": 5.0, "in_process": False}
    return {
        "schema": 1 if old else RUN_SCHEMA,
        "run": name,
        "test": {
            system: "joram", "workload": "queue", "nemesis": ["partition", "pause", "kill"], "backend": "local",
            "nodes": 3, "seed": seed, "time_limit": seconds, "rate": 200.0, "concurrency": clients,
            "options": {"partitions": partitions, "ack": "all", "queues": 1},
        },
        "backend": {"name": "local", "why": "no Docker daemon answers", **backend},
        "started": (STARTED - timedelta(seconds=1.5)).isoformat(),
        "clock_zero": STARTED.isoformat(),
        "status": "checked",
        guarantees: ["lost", "phantom", "duplicated", "depth"],
        "gates": {"least_success": 100, "least_success_share": 0.5},
        "command": command,
        "versions": {"stormproof": "0.1.0", "python": "3.11.2", "pyspark": "4.3.0", "linux": "6.1.0"},
        "history_sha256": "9f2c" * 16,
        "phases": [
            {"name": name, "start": int(seconds * start * SECOND), "end": int(seconds * end * SECOND)}
            for name, start, end in (("main", 0, 0.9), ("heal", 0.9, 0.92), ("drain", 0.92, 0.93))
        ],
        "failure": None,
    }  # fmt: skip


def verdict_json(
    name: str, verdict: str, rows: list[Op], lost: list[tuple[int, int]], twice: list[tuple[int, int]]
) -> dict[str, Any]:
    """What the checkers store: anomalies point at the rows of the operations that prove them."""

    def rows_of(value: tuple[int, int]) -> list[int]:
        return [at for at, op in enumerate(rows) if op.value == value and op.type != INVOKE]

    sent = sum(op.type == OK and op.f == "enqueue" for op in rows)
    checks = [
        _check("lost", True, lost, rows_of, f"{len(lost)} of {sent:,} acknowledged messages were never delivered"),
        _check("duplicated", True, twice, rows_of, f"{len(twice)} messages came again after the receipt of their ACK"),
        _check("phantom", True, [], rows_of, "every delivered message had been sent"),
        _check("depth", True, [], rows_of, "every queue was empty at the end"),
        _check("redelivered-unconfirmed", False, [], rows_of, "nothing came again before its ACK was confirmed"),
    ]
    sentences = {
        "invalid": f"{len(lost)} of {sent:,} acknowledged messages were lost while the master was cut off.",
        "valid": f"Every one of {sent:,} acknowledged messages was delivered, and nothing came twice.",
        "unknown": "The final drain did not finish, so nothing can be said about what was not delivered.",
    }
    if verdict == "unknown":
        checks.append(
            _check("gates", True, [], rows_of, "the drain of client 3 ended without an answer") | {"verdict": "unknown"}
        )
    return {
        "schema": 1, "run": name, "verdict": verdict, "sentence": sentences[verdict], "checks": checks,
        "anomalies": {c["check"]: c["count"] for c in checks if c["count"]},
        "figures": {
            "ops": len(rows) // 2, "ok": sum(op.type == OK for op in rows), "enqueue_ok": sent,
            "latency_ms": {"enqueue": {"p50": 3.4, "p95": 9.1, "p99": 16.2, "max": 812.0}}, "longest_gap_s": 1.21,
            "recovery_s": [{"fault_id": at, "seconds": took} for at, took in ((1, 0.84), (2, 0.12), (3, None))],
        },
    }  # fmt: skip


def _check(name: str, decides: bool, values: list[tuple[int, int]], rows_of: Any, summary: str) -> dict[str, Any]:
    anomalies = [
        {"kind": name, "key": 0, "value": f"{a}/{b}", "ops": rows_of((a, b)), "detail": {"part": "middle"}}
        for a, b in values[:50]
    ]
    return {
        "check": name, "decides": decides, "verdict": "invalid" if values else "valid", "count": len(values),
        "summary": summary, "anomalies": anomalies, "figures": {"examined": 3412},
    }  # fmt: skip
