"""Spark jobs over numbers: each task takes its share of them, and the batches that it yields are returned as one table.

The jobs use Spark's RDDs. Data frames would do the same, but the JVM takes a second longer to load their planner, as
long as it takes to judge hundreds of runs (``docs/spark.md``).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from checkers.spark.failures import failure_of

Progress = Callable[[int, int], None]
"""Called with the count of numbers done so far and the total: of runs, for example."""
Work = Callable[[Iterable[int]], Iterator[pa.RecordBatch]]
"""The work of a task on its share of the numbers."""


def carry_out(
    spark: Any, work: Work, count: int, tasks: int, schema: pa.Schema, progress: Progress | None = None
) -> pa.Table:
    """Deal the numbers below ``count`` to ``tasks`` tasks, in contiguous shares, and collect the results.

    ``work`` turns each share into batches of ``schema``. ``spark`` is a context. ``progress`` gets the count of numbers
    done.

    Raises:
        SparkFailed: the job failed.
    """

    def packed(numbers: Iterable[int]) -> Iterator[bytes]:
        return (batch.serialize().to_pybytes() for batch in work(numbers))

    try:
        data = spark.parallelize(range(count), tasks).mapPartitions(packed)
        found = data.collect() if progress is None else _watched(spark, data, count, progress)
    except Exception as error:
        raise failure_of(spark, error) from error
    return pa.Table.from_batches([pa.ipc.read_record_batch(batch, schema) for batch in found], schema)


def _watched(spark: Any, data: Any, count: int, progress: Progress) -> list[bytes]:
    """Collect data while reporting how many of its tasks are done."""
    from pyspark import InheritableThread

    group = f"check-{os.getpid()}-{id(data)}"
    result: list[list[bytes]] = []
    failure: list[Exception] = []

    def collect() -> None:
        try:
            spark.setJobGroup(group, "check")
            result.append(data.collect())
        except Exception as error:
            failure.append(error)

    worker = InheritableThread(target=collect, name="check-job")
    worker.start()
    tracker = spark.statusTracker()
    waiter = threading.Event()
    while worker.is_alive():
        waiter.wait(0.1)
        progress(_done(tracker, group, count), count)
    worker.join()
    if failure:
        raise failure[0]
    progress(count, count)
    return result[0]


def _done(tracker: Any, group: str, count: int) -> int:
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            stage_info = tracker.getStageInfo(stage)
            if stage_info:
                done += stage_info.numCompletedTasks
                total += stage_info.numTasks
    return count * done // total if total else 0


def sql_session(spark: Any) -> Any:
    """Return the session for SQL in a context; the JVM takes a second to load the classes that it needs.

    Raises:
        SparkFailed: the JVM is gone.
    """
    from pyspark.sql import SparkSession

    try:
        session = SparkSession._instantiatedSession
        is_its = session is not None and session._sc is spark and spark._jsc is not None
        return session if is_its else SparkSession(spark)
    except Exception as error:
        raise failure_of(spark, error) from error
