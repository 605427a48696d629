"""Stormproof's checks compared with DuckDB and Polars: the same files, with five of the checks as one query of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from checkers.bench import Peak
from checkers.prepare import prepare
from checkers.synthetic import Defects, write_large_run, write_store
from stormproof.errors import StormproofError
from stormproof.run_folder import HISTORY, VERDICT_FILE, read_verdict

OURS, DUCKDB, POLARS = "check --all", "DuckDB", "Polars"
ENGINES = (OURS, DUCKDB, POLARS)
AIM = 0.4
"""The aim, as a share of DuckDB's time."""

QUERY = """
WITH ops AS (
    SELECT run, f, key, type, value, index, time, lag(time) OVER w AS began, lag(value) OVER w AS asked
    FROM read_parquet({files}) WHERE process >= 0 WINDOW w AS (PARTITION BY run, process ORDER BY index)
), sends AS (
    SELECT run, key, asked AS value, bool_or(type = 1) AS confirmed FROM ops
    WHERE f = 'enqueue' AND type <> 0 AND asked >= 0 GROUP BY ALL
), takes AS (
    SELECT run, key, value, count(*) AS times, min(index) AS first FROM ops
    WHERE f IN ('dequeue', 'drain') AND type IN (1, 3) AND value >= 0 GROUP BY ALL
), messages AS (
    SELECT coalesce(s.run, t.run) AS run, coalesce(s.key, t.key) AS key, coalesce(s.value, t.value) AS value,
           confirmed, times, first, s.run IS NOT NULL AS sent
    FROM sends s FULL JOIN takes t ON s.run = t.run AND s.key = t.key AND s.value = t.value
), placed AS (
    SELECT *, min(first) OVER (PARTITION BY run, key, value >> 32 ORDER BY value
                               ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS later FROM messages
), account AS (
    SELECT run, count_if(confirmed AND times IS NULL) AS lost, count_if(times IS NOT NULL AND NOT sent) AS phantom,
           count_if(times > 1) AS several, count_if(sent AND first > later) AS late FROM placed GROUP BY run
), took AS (
    SELECT run, f, quantile_disc(time - began, [0.5, 0.95, 0.99]) AS latency FROM ops WHERE type = 1 GROUP BY run, f
)
SELECT account.run, any_value(lost), any_value(phantom), any_value(several), any_value(late), count(latency)
FROM account JOIN took USING (run) GROUP BY account.run
"""
"""The query for each run's messages that are lost, phantom, duplicated or out of order, and its latency quantiles."""


@dataclass(frozen=True)
class Measured:
    """The resources that one engine used for a store.

    They are the wall-clock seconds of a separate process, the CPU seconds (including all processes that it started),
    and its peak memory (MB).
    """

    seconds: float
    processor: float
    peak_mb: float


def many_runs(runs: int, events: int) -> Iterator[tuple[str, str, str]]:
    """Yield the rows for a store of many runs, each with ``events`` events."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for _ in write_store(Path(folder), runs, events):
            pass
        yield from _rows(Path(folder), f"{runs:,} runs, {runs * events:,} events")


def one_run(events: int) -> Iterator[tuple[str, str, str]]:
    """Yield the rows for a store of one run with ``events`` events."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        write_large_run(Path(folder) / "20260101T000000-joram-queue-1-0001", events, 1, Defects(lost=3, redelivered=5))
        yield from _rows(Path(folder), f"one run, {events:,} events")


def _rows(store: Path, what: str) -> Iterator[tuple[str, str, str]]:
    found, answers = compare(store)
    if len(set(map(str, answers.values()))) > 1:
        raise StormproofError(f"the engines do not agree about {what}")
    base = found[DUCKDB].seconds
    for engine, told in found.items():
        aim = f"; at most {AIM} is asked for" if engine == OURS else ""
        figure = f"{told.seconds:.1f} s, {told.processor:.0f} s of processors, {told.peak_mb / 1024:.1f} GB"
        yield f"{engine}: {what}", figure, f"{told.seconds / base:.2f} of DuckDB's time{aim}"


def compare(store: Path) -> tuple[Mapping[str, Measured], Mapping[str, Mapping[str, Sequence[int]]]]:
    """Measure the engines for a store, one after the other, and return their resources and their answers.

    An answer holds for each run the numbers of lost, phantom and duplicated messages.

    Raises:
        StormproofError: an engine failed.
    """
    prepare()
    found, answers = {}, {}
    for engine in ENGINES:
        ours = [sys.executable, "-m", "harness", "check", "--all", "--again", "--json", "--max-history", "64G",
                "--store", str(store)]  # fmt: skip
        command = ours if engine == OURS else [sys.executable, "-m", "harness.tools.bench.engines", engine, str(store)]
        start = time.perf_counter()
        with tempfile.TemporaryFile("w+") as told, tempfile.TemporaryFile("w+") as said:
            child = subprocess.Popen(command, stdout=told, stderr=said)
            peak = Peak(child.pid)
            status = child.wait()
            found[engine] = Measured(time.perf_counter() - start, peak.processor, peak.megabytes)
            peak.stop()
            if status not in ((0, 1, 2) if engine == OURS else (0,)):
                said.seek(0)
                reason = (said.read().strip().splitlines() or ["it said nothing"])[-1]
                raise StormproofError(f"{engine} ended with status {status}: {reason}")
            told.seek(0)
            answers[engine] = _ours(store) if engine == OURS else dict(sorted(json.load(told).items()))
    return found, answers


def _ours(store: Path) -> dict[str, Sequence[int]]:
    found: dict[str, Sequence[int]] = {}
    for run_dir in sorted(path.parent for path in store.glob(f"*/{VERDICT_FILE}")):
        checks = {check["check"]: check for check in read_verdict(run_dir)["checks"]}
        lost = checks["lost"]["count"] + checks["lost"]["figures"]["undecided"]
        found[run_dir.name] = [lost, checks["phantom"]["count"], checks["at-most-once"]["count"]]
    return found


def _duckdb(store: Path) -> dict[str, Sequence[int]]:
    import duckdb

    files = [str(path) for path in store.glob(f"*/{HISTORY}")]
    connection = duckdb.connect()
    # Data that exceeds half of the machine's memory goes to a folder that is removed afterwards.
    connection.execute("SET temp_directory = ?", [os.environ["STORMPROOF_BENCH_SPILL"]])
    connection.execute("SET memory_limit = ?", [f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 2} B"])
    rows = connection.execute(QUERY.format(files=files)).fetchall()
    return {run: [lost, phantom, several] for run, lost, phantom, several, *_ in rows}


def _polars(store: Path) -> dict[str, Sequence[int]]:
    import polars as pl

    files = [str(path) for path in store.glob(f"*/{HISTORY}")]
    by = ["run", "process"]
    rows = pl.scan_parquet(files).select("run", "f", "key", "type", "value", "index", "time", "process")
    ops = rows.filter(pl.col("process") >= 0).sort("run", "process", "index").with_columns(
        began=pl.col("time").shift().over(by), asked=pl.col("value").shift().over(by))  # fmt: skip
    message = ["run", "key", "value"]
    sends = (ops.filter((pl.col("f") == "enqueue") & (pl.col("type") != 0) & (pl.col("asked") >= 0))
             .select("run", "key", pl.col("asked").alias("value"), "type")
             .group_by(message).agg(confirmed=(pl.col("type") == 1).any()).with_columns(sent=pl.lit(True)))  # fmt: skip
    takes = (ops.filter(pl.col("f").cast(pl.String).is_in(["dequeue", "drain"]) & pl.col("type").is_in([1, 3])
                        & (pl.col("value") >= 0))
             .group_by(message).agg(times=pl.len(), first=pl.col("index").min()))  # fmt: skip
    stream = ["run", "key", pl.col("value") // (1 << 32)]
    placed = sends.join(takes, on=message, how="full", coalesce=True).sort(message).with_columns(
        later=pl.col("first").shift(-1).reverse().cum_min().reverse().over(stream))  # fmt: skip
    account = placed.group_by("run").agg(
        lost=(pl.col("confirmed") & pl.col("times").is_null()).sum(),
        phantom=(pl.col("times").is_not_null() & pl.col("sent").is_null()).sum(),
        several=(pl.col("times") > 1).sum(), late=(pl.col("first") > pl.col("later")).sum())  # fmt: skip
    took = ops.filter(pl.col("type") == 1).group_by("run", "f").agg(
        *((pl.col("time") - pl.col("began")).quantile(share).alias(str(share)) for share in (0.5, 0.95, 0.99)))
    both = pl.collect_all([account, took], engine="streaming")
    return {str(run): [lost, phantom, several] for run, lost, phantom, several, _ in both[0].iter_rows()}


def main() -> None:
    """Print one engine's answer for one store, as JSON."""
    engine, store = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="bench-spill-") as spill:
        os.environ["STORMPROOF_BENCH_SPILL"] = spill
        print(json.dumps({DUCKDB: _duckdb, POLARS: _polars}[engine](Path(store))))


if __name__ == "__main__":
    main()
