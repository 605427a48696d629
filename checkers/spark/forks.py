"""What one says to a fork server (``checkers.spark.fork_server``) and to the fork that it makes for whoever asks."""

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
"""Goes before what is asked, with the streams."""
BEGUN = b"b"
"""What a fork says first."""


def ask(place: str, told: Mapping[str, Any], streams: Sequence[int], environ: Mapping[str, str]) -> socket.socket:
    """A connection with what will be a new fork of the server, once that has imported everything: with these standard
    ``streams`` and variables, this process's path and limits. ``told`` says what it is for.

    Raises:
        OSError: there is no server.
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
    """Wait until the fork has begun; False if it has not come to that. Raises OSError likewise."""
    return server.recv(1) == BEGUN
