"""A client of queues on Redis: a stream each, read by one consumer group.

A message is an entry of the stream. Taking it is XREADGROUP, which keeps it pending for this consumer; acknowledging it
removes it, so that the stream's length is the queue's depth. The pending entries of a lost consumer are claimed by
another one when they have been idle for ``CLAIM_MILLISECONDS``, and delivered again. (Redis' documentation, "Redis
Streams", sections *Consumer groups* and *Recovering from permanent failures*.)
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stormproof.contracts.backend import Credentials
from stormproof.contracts.client import Delivery, LogEntry, NotDone

SERVER_PORT, SENTINEL_PORT = 6379, 26379
CLAIM_MILLISECONDS = 3000
NOBODY = Credentials()
ANSWER_SECONDS = 2.0
"""Time limit for a server's answer to an administrator."""
_GROUP = "consumers"
_REFUSED = ("NOREPLICAS ", "MISCONF ", "OOM ", "BUSY ")
"""Prefixes of the errors with which a server reports that it has not carried out a command; other such errors have
classes.
"""


@dataclass(frozen=True)
class WatchedKey:
    """A group of servers that sentinels watch: its name there, and the port of the sentinel next to each server."""

    master: str
    port: int


class RedisConnection:
    """One client's connection to the server that takes writes, as the documentation of Sentinel's clients describes.

    ``wait_for``: a write is confirmed only when this number of replicas has it (WAIT). If fewer report it within
    ``wait_milliseconds``, it may have happened.
    """

    prefetch = 1

    def __init__(self, *, by_sentinel: WatchedKey | None, wait_for: int, wait_milliseconds: int,
                 credentials: Credentials = NOBODY) -> None:  # fmt: skip
        self._by_sentinel, self._credentials = by_sentinel, credentials
        self._wait_for, self._wait_milliseconds = wait_for, wait_milliseconds
        self._name = uuid.uuid4().hex
        self._client: Any = None
        self._grouped: set[str] = set()

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect. With sentinels, ``host``'s sentinel names the server, which must report that it is the master
        ("Guidelines for Redis clients with support for Redis Sentinel", steps 2 and 3)."""
        if self._by_sentinel:
            host, port = await self._master(self._by_sentinel, host, local)
        self._client = _client(host, port, local, self._credentials)
        role = await self._ask("ROLE")
        if role[0] != b"master":
            raise NotDone(f"{host} is a {role[0].decode()}")

    async def send(self, queue: str, body: bytes) -> None:
        """Add an entry."""
        await self._ask("XADD", queue, "*", "body", body)
        await self._wait()

    async def _wait(self) -> None:
        if self._wait_for:
            seen = await self._ask("WAIT", self._wait_for, self._wait_milliseconds)
            if seen < self._wait_for:
                raise RuntimeError(f"only {seen} of {self._wait_for} replicas have it")

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Take a new entry, or one that another consumer has kept for too long."""
        await self._group(queue)
        entries = await self._claimed(queue) or await self._read(queue, timeout)
        if not entries:
            return None
        number, fields = entries[0]

        async def ack() -> None:
            async with self._client.pipeline(transaction=True) as both:
                both.execute_command("XACK", queue, _GROUP, number)
                both.execute_command("XDEL", queue, number)
                await both.execute()

        return Delivery(_body(fields), ack)

    async def depth(self, queue: str) -> int:
        """Return the number of entries that were not acknowledged."""
        return int(await self._ask("XLEN", queue))

    async def connect_copy(self, host: str, port: int, local: str) -> None:
        """Connect to this server, master or replica."""
        self._client = _client(host, port, local, self._credentials)
        await self._ask("PING")

    async def append(self, name: str, body: bytes) -> int:
        """Add an entry to a stream whose identifiers are counted (``0-*``), not taken from the clock: the second part
        is the offset. (Redis' documentation, XADD, "Specifying a Stream ID as an argument"; since 7.0.)"""
        given = await self._ask("XADD", name, "0-*", "body", body)
        await self._wait()
        return _offset(given)

    async def read(self, name: str, after: int, limit: int) -> list[LogEntry]:
        """Read entries by XRANGE."""
        entries = await self._ask("XRANGE", name, f"(0-{after}", "+", "COUNT", limit)
        return [LogEntry(_offset(number), _body(fields)) for number, fields in entries]

    async def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            await self._client.aclose()

    async def remove(self, names: Sequence[str]) -> None:
        """Delete streams."""
        await self._ask("DEL", *names)

    async def _master(self, watched: WatchedKey, host: str, local: str) -> tuple[str, int]:
        sentinel = _client(host, watched.port, local)
        try:
            found = await sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", watched.master)
        finally:
            await sentinel.aclose()
        if not found:
            raise NotDone(f"the sentinel at {host} knows no master")
        return _text(found[0]), int(found[1])

    async def _group(self, queue: str) -> None:
        if queue in self._grouped:
            return
        from redis.exceptions import ResponseError

        try:
            await self._ask("XGROUP", "CREATE", queue, _GROUP, "0", "MKSTREAM")
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._grouped.add(queue)

    async def _claimed(self, queue: str) -> list[Any]:
        answer = await self._ask("XAUTOCLAIM", queue, _GROUP, self._name, CLAIM_MILLISECONDS, "0", "COUNT", 1)
        return list(answer[1])

    async def _read(self, queue: str, timeout: float) -> list[Any]:
        milliseconds = max(1, round(timeout * 1000))
        answer = await self._ask("XREADGROUP", "GROUP", _GROUP, self._name, "COUNT", 1, "BLOCK", milliseconds,
                                 "STREAMS", queue, ">")  # fmt: skip
        if not answer:
            return []
        return list(answer[0][1])

    async def _ask(self, *words: Any) -> Any:
        from redis import exceptions

        try:
            return await self._client.execute_command(*words)
        except (exceptions.ReadOnlyError, exceptions.BusyLoadingError, exceptions.MasterDownError) as error:
            raise NotDone(str(error)) from error
        except exceptions.ResponseError as error:
            if str(error).startswith(_REFUSED):
                raise NotDone(str(error)) from error
            raise


def _client(host: str, port: int, local: str | None, credentials: Credentials = NOBODY) -> Any:
    """Return a connection that repeats nothing automatically: a command sent twice is two messages."""
    import redis.asyncio as redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    class FromHere(redis.Connection):
        def _connection_arguments(self) -> Mapping[str, Any]:
            given = super()._connection_arguments()
            return given if not local else {**given, "local_addr": (local, 0)}

    pool = redis.ConnectionPool(connection_class=FromHere, host=host, port=port, retry=Retry(NoBackoff(), 0),
                                protocol=2, max_connections=1, username=credentials.login or None,
                                password=credentials.passcode or None)  # fmt: skip
    client = redis.Redis(connection_pool=pool)
    client.response_callbacks.clear()
    return client


def _body(fields: list[Any]) -> bytes:
    body: bytes = dict(zip(fields[::2], fields[1::2], strict=True))[b"body"]
    return body


def _offset(identifier: bytes) -> int:
    return int(identifier.partition(b"-")[2])


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


async def ask(host: str, port: int, *words: str, credentials: Credentials = NOBODY) -> Any:
    """Return the answer of a server or sentinel, unconverted: bytes, numbers, lists.

    Raises:
        OSError, TimeoutError, redis.exceptions.RedisError: it does not answer.
    """
    client = _client(host, port, None, credentials)
    try:
        return await asyncio.wait_for(client.execute_command(*words), ANSWER_SECONDS)
    finally:
        await client.aclose()
