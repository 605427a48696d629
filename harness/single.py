"""``stormproof broker``: one reference broker in this process."""

from __future__ import annotations

from pathlib import Path

from harness.errors import StormproofError, UsageError
from harness.registry import DESIGNS


def run_single(design: str, data: Path, host: str, port: int, login: str, passcode: str) -> int:
    """Run until SIGTERM or Ctrl-C; returns the exit status.

    Raises:
        UsageError: the design does not exist or needs other nodes.
    """
    system = DESIGNS.load(design)
    if system.replicated:
        raise UsageError(f"design {design} needs a cluster: start it with `stormproof test --design {design}`")
    raise StormproofError("")
