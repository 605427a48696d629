"""The protocol between a client, the fork server (``checkers.spark.fork_server``), and the client's fork."""

from __future__ import annotations

import json
import resource
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LENGTH = struct.Struct("!I")
"""Precedes the request; sent together with the streams."""
BEGUN = b"b"
"""The first byte that a fork sends."""


def ask(place: str, told: Mapping[str, Any], streams: Sequence[int], environ: Mapping[str, str]) -> socket.socket:
    """Connect to the server and request a fork; return the connection.

    The fork exists once the server has imported everything. It gets these standard ``streams`` and variables, and this
    process's path and limits. ``told`` describes its task.

    Raises:
        OSError: the server does not exist.
    """
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(place)
        whole = json.dumps({
            "environ": dict(environ), "path": sys.path, "cwd": str(Path.cwd()),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE), **told,
        }).encode()  # fmt: skip
        socket.send_fds(server, [LENGTH.pack(len(whole))], streams)
        server.sendall(whole)
    except BaseException:
        server.close()
        raise
    return server


def has_begun(server: socket.socket) -> bool:
    """Wait until the fork has begun; return False if it ended before. Raises OSError like ``ask``."""
    return server.recv(1) == BEGUN
