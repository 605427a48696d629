"""Ports on loopback for servers that are told where to listen."""

from __future__ import annotations

import socket
from collections import deque

_KEPT: deque[socket.socket] = deque(maxlen=400)


def free_ports(count: int) -> list[int]:
    """Ports that nobody else is given, here or in another process, until some hundred more were asked for.

    A socket that is bound and does not listen keeps each; only servers with SO_REUSEADDR may bind it as well.
    """
    ports = []
    for _ in range(count):
        keeper = socket.socket()
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        _KEPT.append(keeper)
        ports.append(int(keeper.getsockname()[1]))
    return ports
