"""``python -m checkers.prepare``: create once what later starts use: compiled kernels, Spark's class-data archive.

Takes some ten seconds; does nothing if everything exists already. Only the time to start depends on it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from checkers.catalog import CHECKS
from checkers.spark.java import find_java
from checkers.spark.job import check_runs, summarize, warm_up
from checkers.spark.session import archive_path, start_spark, stop_spark
from stormproof.errors import StormproofError


def prepare() -> Path | None:
    """Compile the kernels and create the archive for this Java and this Spark; return its path, if there is one.

    Raises:
        StormproofError: Java is missing, or Spark does not start.
    """
    for check in CHECKS:
        CHECKS.load(check.name)
    archive = archive_path(find_java())
    if archive is None or archive.exists():
        return archive
    partial = archive.with_name(f".{archive.name}.{os.getpid()}")
    try:
        spark = start_spark(record_archive=partial)
        warm_up(spark)
        with tempfile.TemporaryDirectory() as store:
            # A run that can't be read takes the same path through Spark as any other.
            (Path(store) / "none").mkdir()
            check_runs(spark, [Path(store) / "none"], lambda done, total: None)
            summarize(spark, Path(store))
        stop_spark()
        if partial.exists():
            partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)
    return archive if archive.exists() else None


def main() -> int:
    """Prepare, and print the result in one line."""
    try:
        archive = prepare()
    except StormproofError as error:
        print(error, file=sys.stderr)
        return 3
    print(f"Spark's class archive: {archive or 'none (this Java makes none); starts take longer'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
