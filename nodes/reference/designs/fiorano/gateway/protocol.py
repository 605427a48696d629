"""The protocol between a server and the gateway, on a connection that begins like a link between brokers.

Requests are lists: the kind of request, a number that the answer repeats, and arguments.

* ``open NUMBER LOCKFILE``: the first request of a connection, with the lock file that the server is configured for.
  Answers: ``opened NUMBER``; ``refused NUMBER REASON`` (the gateway has another lock file).
* ``take NUMBER LOW OWN OTHER NEW``: request the lock as epoch ``NEW`` (``grants.Take``). Answers: ``granted NUMBER
  NEW``; ``held NUMBER EPOCH`` (another server may believe that it holds the lock); ``stale NUMBER EPOCH`` (another
  server has held it since ``LOW``, or ``NEW`` is not new); ``refused NUMBER REASON`` (the lock file can't be written).
* ``renew NUMBER EPOCH``: renew the lease. Answers: ``granted NUMBER EPOCH``; ``lost NUMBER EPOCH``.
* ``release NUMBER EPOCH``: end the lease, so that the other server need not wait for it. Answer: ``released NUMBER``.

A server counts its lease from when it *sent* the request that was granted.
"""

from __future__ import annotations

PROTOCOL = "stormproof-gateway/1"
SERVICE = "gateway"
"""The gateway's name in the handshake."""
OPEN, OPENED = "open", "opened"
TAKE, RENEW, RELEASE = "take", "renew", "release"
GRANTED, HELD, STALE, LOST, RELEASED, REFUSED = "granted", "held", "stale", "lost", "released", "refused"
MAX_FRAME = 4096
"""Maximum size in bytes of a request or an answer; a longer frame means that the sender speaks another protocol."""
