"""The command ``stormproof``, also ``python -m stormproof``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from stormproof.errors import EXIT_ERROR, EXIT_INTERRUPTED, UsageError
from stormproof.limits import supervise
from stormproof.own_packages import demand_own_packages


def main() -> NoReturn:
    """Verify that all packages are Stormproof's, then execute the command line."""
    # Child processes don't search for modules in their working directory.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    try:
        demand_own_packages()
    except UsageError as error:
        print(f"stormproof: {error}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    try:
        Path.cwd()
    except OSError:
        print("stormproof: the current folder was deleted, or can't be reached: change to another one", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    supervise(sys.argv[1:])
    try:
        from harness.cli.app import main as run
    except KeyboardInterrupt:  # importing takes a moment
        print("stormproof: interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        # Python would end with status 1, which reads as "invalid".
        why = f"its modules can't be loaded ({type(error).__name__}: {' '.join(str(error).split())}); install it again"
        if isinstance(error, MemoryError) or "without exception set" in str(error):  # so an import without memory ends
            why = "there is too little memory"
        print(f"stormproof: {why}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    run()


if __name__ == "__main__":
    main()
