"""``stormproof broker``: run one reference broker in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nodes.reference.api import ConfigError
from nodes.reference.config import build_config
from nodes.reference.designs import DESIGNS
from nodes.reference.server.process import serve
from nodes.reference.server.start import start_config
from nodes.systems.catalog import SYSTEMS
from stormproof.errors import UsageError


def run_single(design: str, data: Path, host: str, port: int, login: str, passcode: str) -> int:
    """Run the broker until SIGTERM or Ctrl-C, and return the exit status.

    Raises:
        UsageError: the design does not exist or needs other nodes, or a setting is invalid.
    """
    if design not in DESIGNS:
        raise UsageError(f"the reference broker has no design {design!r} (known: {', '.join(DESIGNS)})")
    if SYSTEMS.load(design).min_nodes > 1:
        raise UsageError(f"design {design} needs a cluster: start it with `stormproof test --system {design}`")
    try:
        config = build_config(data, design=design, host=host, port=port, login=login, passcode=passcode)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    return serve(config)


def run_described(descriptor: Path, arguments: Sequence[str], expected: int | None, join: bool,
                  secret_file: Path | None) -> int:
    """Run one machine of an XML descriptor, in the way of ``run_single``.

    ``nodes.reference.server.start`` documents the arguments.

    Raises:
        UsageError: the descriptor or an argument is invalid.
    """
    try:
        config = start_config(descriptor, arguments, expected, join, secret_file)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    return serve(config)
