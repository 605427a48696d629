"""The process from which Spark forks its Python workers: it imports the checks before it forks.

Named by ``spark.python.daemon.module``. Without it every worker would import NumPy, Arrow and the kernels again.
"""

from __future__ import annotations

import os
import sys

from checkers.spark import fork_server


def main() -> None:
    """Hand over to a fork of the fork server, which has imported everything already; without a server, import it now.
    """
    server = os.environ.pop(fork_server.VARIABLE, "")
    status = fork_server.hand_over(server) if server else None
    if status is None:
        fork_server.load()
        fork_server.serve()
    sys.exit(status)


if __name__ == "__main__":
    main()
