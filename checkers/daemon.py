"""The process from which Spark forks its Python workers: it imports the checks before it forks.

Named by ``spark.python.daemon.module``. Without it every worker would import NumPy, Arrow and the kernels anew.
"""

from __future__ import annotations

import importlib

from pyspark import daemon

from checkers import run_check
from checkers.catalog import CHECKS


def main() -> None:
    """Import what workers need, then serve as Spark's own daemon does."""
    for check in CHECKS:
        check.load()
    # Spark's worker code, so that forked workers find it loaded.
    importlib.import_module("pyspark.worker")
    assert run_check.check_run is not None
    daemon.manager()


if __name__ == "__main__":
    main()
