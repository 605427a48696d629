"""The process from which Spark forks its Python workers: it imports the checks before it forks.

Named by ``spark.python.daemon.module``. Without it every worker would import NumPy, Arrow and the kernels anew.
"""

from __future__ import annotations

import os
import sys

from checkers.spark import fork_server


def main() -> None:
    """Leave it to a fork of the server that has imported everything already, else import it now."""
    server = os.environ.pop(fork_server.VARIABLE, "")
    status = fork_server.hand_over(server) if server else None
    if status is None:
        fork_server.load()
        fork_server.serve()
    sys.exit(status)


if __name__ == "__main__":
    main()
