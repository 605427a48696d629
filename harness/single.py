"""``stormproof broker``: one reference broker in this process."""

from __future__ import annotations

from pathlib import Path

from harness.errors import UsageError
from harness.registry import DESIGNS
from nodes.reference.api import ConfigError
from nodes.reference.config import build_config
from nodes.reference.process import serve


def run_single(design: str, data: Path, host: str, port: int, login: str, passcode: str) -> int:
    """Run until SIGTERM or Ctrl-C; returns the exit status.

    Raises:
        UsageError: the design does not exist or needs other nodes, or a setting can't be used.
    """
    if DESIGNS.load(design).replicated:
        raise UsageError(f"design {design} needs a cluster: start it with `stormproof test --design {design}`")
    try:
        config = build_config(data, design=design, host=host, port=port, login=login, passcode=passcode)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    return serve(config)
