"""Ports on loopback for servers that are told where to listen."""

from __future__ import annotations

import socket
from collections import deque

_KEPT: deque[socket.socket] = deque(maxlen=400)


def free_ports(count: int, offset: int = 0) -> list[int]:
    """Ports that nobody else is given, here or in another process, until some hundred more were asked for.

    With an ``offset`` the ports so many higher are not given to anybody either. A socket that is bound and does not
    listen keeps each; only servers with SO_REUSEADDR may bind it as well.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = _kept(0)
        if port is not None and (not offset or (port + offset < 65536 and _kept(port + offset) is not None)):
            ports.append(port)
    return ports


def _kept(port: int) -> int | None:
    """The port (a free one for 0), kept from now on; None when another has it.

    SO_REUSEADDR comes after the bind: two sockets that both have it before may bind one port.
    """
    keeper = socket.socket()
    try:
        keeper.bind(("127.0.0.1", port))
    except OSError:
        keeper.close()
        return None
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _KEPT.append(keeper)
    return int(keeper.getsockname()[1])
