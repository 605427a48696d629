"""``python -m harness`` is ``stormproof``."""

import sys

from harness.early import begin

if __name__ == "__main__":
    begin(sys.argv[1:])

    from harness.cli import main

    main()
