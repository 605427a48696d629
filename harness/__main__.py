"""``python -m harness`` is ``stormproof``."""

from harness.cli import main

main()
