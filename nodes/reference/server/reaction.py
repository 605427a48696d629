"""A collocated client of the event-reaction kind (HA Joram, 1.2): it repeatedly consumes a message, computes, produces.

Messages are *pushed* to it, some ahead of its acknowledgements, or it *pulls* one when it is done with the last.

The fate of a message whose reaction is interrupted by a failure depends on the *quality of service*:

* ``at-most-once``: acknowledge, then react. The message may be lost.
* ``duplicate-okay``: react, then acknowledge. The reaction may happen again.
* ``exactly-once``: acknowledgement and reaction are one branch of a distributed transaction (XA), prepared and then
  committed. A new master commits the branches that the former one had prepared: they contain all that is needed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

from nodes.reference.api import Command, ConfigError, Deliver
from nodes.reference.server.collocated import CollocatedChannel, CollocatedConnection, ConnectionLost, subscription
from nodes.reference.server.service import ServiceHost

REACTION = "stormproof.Reaction"
AT_MOST_ONCE, DUPLICATE_OKAY, EXACTLY_ONCE = "at-most-once", "duplicate-okay", "exactly-once"
QUALITIES = (AT_MOST_ONCE, DUPLICATE_OKAY, EXACTLY_ONCE)
PUSHED, PULLED = TAKING = ("pushed", "pulled")
ARGUMENTS = (f'args "NAME QUALITY SOURCE TARGET [TAKING]": a client inside the broker that takes from /queue/... or '
             f"/topic/..., and sends what it computes to /queue/...; the quality is {', '.join(QUALITIES)}; messages "
             f"are {' (unless it is said) or '.join(TAKING)}")
OUTPUT = "x-output"
"""Header of a reaction's output: a value that is unique to the reaction."""

_PREFETCH = 8
_RETRY_SECONDS = 0.1
"""Time before a lost connection is opened again."""


def check_arguments(arguments: Sequence[str]) -> str | None:
    """Return the error in the service's arguments, None if there is none."""
    if len(arguments) in (4, 5):
        name, quality, source, target, *taking = arguments
        wanted = ":" not in name and quality in QUALITIES and target.startswith("/queue/")
        wanted = wanted and all(each in TAKING for each in taking)
        if wanted and source.startswith(("/queue/", "/topic/")):
            return None
    return f"{REACTION} takes {ARGUMENTS}"


def compute(body: bytes) -> bytes:
    """Compute the reaction to a message: its body, a blank, and the beginning of the body's SHA-256."""
    return body + b" " + hashlib.sha256(body).hexdigest()[:8].encode()


class ReactionService:
    """The service: a collocated client on every replica, whose connection opens on the master.

    Arguments: the client's name, the quality of service, the source of its messages, the destination of its output; and
    whether messages are pushed or pulled.
    """

    def __init__(self, host: ServiceHost, reserved: int, arguments: Sequence[str]) -> None:
        wrong = check_arguments(arguments)
        if wrong is not None:
            raise ConfigError(f"services: {wrong}")
        name, self._quality, self._source, self._target, *taking = arguments
        self._prefetch = 0 if PULLED in taking else _PREFETCH
        self._name = name
        self._host = host
        self._number = 0
        self._channel = host.run_collocated(name, self._run)

    def init(self, first_time: bool) -> None:
        """Let the client's connection open, because this replica is master.

        On the first start, a durable subscription is created here, before any client can publish.
        """
        if first_time and self._source.startswith("/topic/"):
            conn, login = self._channel.new_conn(), self._channel.login
            self._host.submit(Command("open", conn, 0, {"reliable": False, "login": login, "collocated": True}))
            self._host.submit(Command("subscribe", conn, 0, subscription(self._source, self._name, self._prefetch)))
        self._channel.promoted()

    def stop(self) -> None:
        """Stop the client's connection, because this replica is no longer master."""
        self._channel.demoted()

    async def _run(self, channel: CollocatedChannel) -> None:
        """The client's thread, which also runs on slaves: there it blocks while it opens a connection."""
        while True:
            connection = CollocatedConnection(channel)
            try:
                await connection.open()
                channel.runtime.log("collocated connection opened", conn=connection.conn, quality=self._quality)
                await self._react(connection, channel)
            except ConnectionLost as error:
                channel.runtime.log("collocated connection lost", conn=connection.conn, reason=str(error))
                await asyncio.sleep(_RETRY_SECONDS)

    async def _react(self, connection: CollocatedConnection, channel: CollocatedChannel) -> None:
        if self._quality == EXACTLY_ONCE:
            await self._finish_branches(connection, channel)
        await connection.subscribe(self._source, self._name, self._prefetch)
        while True:
            message = await (connection.next_message() if self._prefetch else connection.pull())
            self._number += 1
            output = f"{connection.conn}:{self._number}"
            args = {"destination": self._target, "headers": {OUTPUT: output}, "body": compute(message.body)}
            if self._quality == AT_MOST_ONCE:
                await connection.request("ack", id=message.ack_id)
                await connection.request("send", **args)
            elif self._quality == DUPLICATE_OKAY:
                await connection.request("send", **args)
                await connection.request("ack", id=message.ack_id)
            else:
                await self._in_a_branch(connection, message, args, output)

    async def _in_a_branch(self, connection: CollocatedConnection, message: Deliver, args: dict[str, Any],
                           xid: str) -> None:
        connection.post("begin", tx=xid, xid=xid)
        connection.post("send", tx=xid, **args)
        connection.post("ack", tx=xid, id=message.ack_id)
        await connection.request("prepare", tx=xid)
        await connection.request("commit", xid=xid)

    async def _finish_branches(self, connection: CollocatedConnection, channel: CollocatedChannel) -> None:
        """Commit the branches that the former master had prepared."""
        done = await connection.request("recover")
        for xid in done.headers["x-xids"].split() if done is not None else ():
            await connection.request("commit", xid=xid)
            channel.runtime.log("prepared branch finished", xid=xid)
