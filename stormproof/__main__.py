"""The command ``stormproof``, also ``python -m stormproof``."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from stormproof.errors import EXIT_ERROR, EXIT_INTERRUPTED, UsageError
from stormproof.own_packages import demand_own_packages


def main() -> NoReturn:
    """See that all packages are ours, then do what the command line says."""
    # Processes that are started from here don't look for modules in the folder that they are started in.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    try:
        demand_own_packages()
    except UsageError as error:
        print(f"stormproof: {error}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    try:
        from harness.early import begin

        begin(sys.argv[1:])

        from harness.cli import main as run
    except KeyboardInterrupt:  # importing takes a moment
        print("stormproof: interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
