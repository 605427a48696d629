"""The process from which Spark forks its Python workers: it imports the checks before it forks.

Named by ``spark.python.daemon.module``. Without it every worker would import NumPy, Arrow and the kernels anew.
"""

from __future__ import annotations

import importlib
import os
import sys

from checkers import fork_server

_WORKER_NEEDS = (
    "checkers.job",
    "checkers.run_check",
    "pyarrow.parquet",
    "pyspark.worker",
)
"""What workers import anyway, sooner or later: loaded once instead of once in each."""


def load() -> None:
    """Import what workers need."""
    from checkers.catalog import CHECKS
    from checkers.memory import keep_memory

    keep_memory()
    for check in CHECKS:
        CHECKS.load(check.name)
    for module in _WORKER_NEEDS:
        importlib.import_module(module)


def serve() -> None:
    """Fork workers as Spark's own daemon does; ends with the process."""
    import pyarrow as pa
    from pyspark import daemon

    # Spark asks for one thread a worker (OMP_NUM_THREADS), which Arrow heeds; large histories are decoded by several.
    pa.set_cpu_count(os.cpu_count() or 1)
    daemon.manager()


def main() -> None:
    """Leave it to a fork of the server that has imported everything already, else import it now."""
    server = os.environ.pop(fork_server.VARIABLE, "")
    status = fork_server.hand_over(server) if server else None
    if status is None:
        load()
        serve()
    sys.exit(status)


if __name__ == "__main__":
    main()
