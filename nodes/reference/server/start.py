"""The starting parameters of HA Joram (4.7.2): server, storage path, replica, nbClusterExpected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nodes.reference.api import Config, ConfigError
from nodes.reference.config import parse_config
from nodes.reference.server.descriptor import config_of, read_descriptor


def start_config(descriptor: str | Path, arguments: Sequence[str], expected: int | None, join: bool = False,
                 secret_file: str | Path | None = None) -> Config:
    """Build the configuration of one machine of a descriptor.

    Args:
        descriptor: path of the XML file.
        arguments: id of the server, storage path, and for a cluster the id of the replica.
        expected: ``nbClusterExpected``; None for all replicas.
        join: the replica is added to a cluster that runs; it must be the last of its cluster.
        secret_file: holds the secret that all servers of the descriptor must share to admit each other.

    Raises:
        ConfigError: the descriptor or an argument can't be used.
    """
    if len(arguments) not in (2, 3):
        raise ConfigError("with --descriptor: id of the server, storage path and, in a cluster, id of the replica")
    server, storage, *rest = arguments
    for what, text in (("server", server), *(("replica", each) for each in rest)):
        if not (text.isascii() and text.isdecimal() and len(text) < 7):
            raise ConfigError(f"id of the {what}: {text!r} is not a number")
    replica = int(rest[0]) if rest else None
    content = config_of(read_descriptor(descriptor), int(server), storage, replica, expected, join)
    if secret_file is not None:
        content["options"]["secret"] = _secret(Path(secret_file))
    try:
        return parse_config(content)
    except ConfigError as error:
        raise ConfigError(f"{descriptor}: {error}") from error


def _secret(path: Path) -> str:
    """Return the contents of a file, without the white space around it; raises ConfigError when that is empty."""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: can't be read ({getattr(error, 'strerror', None) or error})") from error
    if not secret:
        raise ConfigError(f"{path}: is empty; it should hold a secret")
    return secret
