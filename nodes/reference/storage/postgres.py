"""A client of PostgreSQL: the part of its protocol, version 3, that the storage service needs.

It uses one connection, on which statements are sent together and answered together. Statements that are sent together
form one transaction: PostgreSQL carries out all of them, or nothing from the first failing statement on.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from nodes.reference.api import Runtime
from nodes.timeouts import within

_VERSION = 3 << 16
_HEAD = struct.Struct(">cI")
_LONG, _SHORT = struct.Struct(">i"), struct.Struct(">h")
_INT8, _BYTEA, _TEXT = 20, 17, 25
_INT8_ARRAY, _BYTEA_ARRAY = 1016, 1001
_MAX_REPLY_BYTES = 64 << 20
"""Largest reply that is read: more is not an answer to one of our statements."""
_MAX_ROUNDS = 100_000
"""Maximum rounds of a password's hash; a server that requires more is not one of ours."""


class PostgresError(Exception):
    """PostgreSQL refused a statement or a connection: its whole transaction is undone. ``code`` is its SQLSTATE."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class PostgresLostError(Exception):
    """The connection is lost, or no answer arrived in time: the outcome of a transaction under way is unknown."""


class Statement(NamedTuple):
    """SQL with ``$1``... for its parameters: int, str, bytes, or a list of int or of bytes, which must not be empty."""

    text: str
    parameters: Sequence[Any] = ()


class PostgresConnection:
    """A connection to a server on this machine; after any exception but PostgresError it must be replaced by a new
    one."""

    def __init__(self, runtime: Runtime, port: int, user: str, password: str, deadline: float) -> None:
        """Prepare a connection, each of whose operations takes at most ``deadline`` seconds."""
        self._runtime, self._port, self._user, self._password = runtime, port, user, password
        self._deadline = deadline
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        """Connect and log in.

        Raises:
            PostgresError: the server refuses us, or is about to start or to stop.
            PostgresLostError: the server does not answer.
        """
        try:
            async with within(self._deadline):
                self._reader, self._writer = await self._runtime.connect("127.0.0.1", self._port)
                names = f"user\0{self._user}\0database\0postgres\0\0".encode()
                self._writer.write(_LONG.pack(len(names) + 8) + _LONG.pack(_VERSION) + names)
                await self._log_in()
                await self._until_ready()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError, struct.error) as error:
            self.abort()
            raise PostgresLostError(_reason(error)) from error
        except PostgresError:
            self.abort()
            raise

    def abort(self) -> None:
        """Abort the connection without notice to the server."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    async def run(self, statements: Sequence[Statement]) -> list[list[list[Any]]]:
        """Carry out statements as one transaction; return the rows of each, with columns in their binary form (None:
        null).

        Raises:
            PostgresError: one of them failed: nothing was done.
            PostgresLostError: the connection is gone; the transaction may have been carried out.
        """
        writer = self._writer
        if writer is None:
            raise PostgresLostError("not connected")
        try:
            writer.write(b"".join(map(_encoded, statements)) + _message(b"S"))
            async with within(self._deadline):
                return await self._answers(len(statements))
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError, struct.error) as error:
            self.abort()
            raise PostgresLostError(_reason(error)) from error
        except asyncio.CancelledError:
            self.abort()
            raise

    async def _answers(self, count: int) -> list[list[list[Any]]]:
        found: list[list[list[Any]]] = [[]]
        failure: PostgresError | None = None
        while True:
            kind, content = await self._read()
            if kind == b"D":
                found[-1].append(_row(content))
            elif kind in (b"C", b"I"):
                found.append([])
            elif kind == b"E":
                failure = failure or _error(content)
            elif kind == b"Z":
                if failure is not None:
                    raise failure
                return found[:count]

    async def _read(self) -> tuple[bytes, bytes]:
        assert self._reader is not None
        kind, size = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
        if not 4 <= size <= _MAX_REPLY_BYTES:
            raise ValueError(f"a message of {size} bytes")
        return kind, await self._reader.readexactly(size - 4)

    async def _until_ready(self) -> None:
        while (reply := await self._read())[0] != b"Z":
            if reply[0] == b"E":
                raise _error(reply[1])

    async def _log_in(self) -> None:
        """Log in by SCRAM-SHA-256 (RFC 5802, RFC 7677), in which the server also proves that it knows the password."""
        assert self._writer is not None
        content = await self._asked(10)
        if b"SCRAM-SHA-256" not in content.split(b"\0"):
            raise ValueError("it does not ask for SCRAM-SHA-256")
        nonce = base64.b64encode(self._runtime.random.randbytes(18))
        first = b"n=,r=" + nonce
        begin = b"n,," + first
        self._writer.write(_message(b"p", b"SCRAM-SHA-256\0" + _LONG.pack(len(begin)) + begin))
        challenge = await self._asked(11)
        said = dict(part.split(b"=", 1) for part in challenge.split(b","))
        rounds = int(said[b"i"])
        if not said[b"r"].startswith(nonce) or not 0 < rounds <= _MAX_ROUNDS:
            raise ValueError("its challenge is not an answer to ours")
        salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), base64.b64decode(said[b"s"]), rounds)
        bare = b"c=biws,r=" + said[b"r"]
        signed = b",".join((first, challenge, bare))
        key = hmac.digest(salted, b"Client Key", "sha256")
        shown = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, shown, strict=True)))
        self._writer.write(_message(b"p", bare + b",p=" + proof))
        expected = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")
        if not hmac.compare_digest(await self._asked(12), b"v=" + base64.b64encode(expected)):
            raise ValueError("it does not know the password")
        if await self._asked(0):
            raise ValueError("it wants more than a password")

    async def _asked(self, step: int) -> bytes:
        """Return the server's message at a step of the login."""
        kind, content = await self._read()
        if kind == b"E":
            raise _error(content)
        if kind != b"R" or _LONG.unpack_from(content)[0] != step:
            raise ValueError("it wants another login")
        return content[4:]


def _reason(error: BaseException) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def _message(kind: bytes, content: bytes = b"") -> bytes:
    return kind + _LONG.pack(len(content) + 4) + content


def _error(content: bytes) -> PostgresError:
    fields = {part[:1]: part[1:].decode("utf-8", "replace") for part in content.split(b"\0") if part}
    return PostgresError(fields.get(b"C", ""), fields.get(b"M", "it refuses"))


def _encoded(statement: Statement) -> bytes:
    """Encode Parse, Bind and Execute."""
    typed = [_parameter(value) for value in statement.parameters]
    types = b"".join(_LONG.pack(kind) for kind, _ in typed)
    values = b"".join(_LONG.pack(len(value)) + value for _, value in typed)
    count = _SHORT.pack(len(typed))
    binary = _SHORT.pack(1) + _SHORT.pack(1)
    return (_message(b"P", b"\0" + statement.text.encode() + b"\0" + count + types)
            + _message(b"B", b"\0\0" + binary + count + values + binary) + _message(b"E", b"\0" + _LONG.pack(0)))


def _parameter(value: Any) -> tuple[int, bytes]:
    """Return the type and the encoding of a parameter."""
    if isinstance(value, list):
        kind = _BYTEA if isinstance(value[0], bytes) else _INT8
        items = [_parameter(each)[1] for each in value]
        head = struct.pack(">iiIii", 1, 0, kind, len(items), 1)
        return (_BYTEA_ARRAY if kind == _BYTEA else _INT8_ARRAY,
                head + b"".join(_LONG.pack(len(each)) + each for each in items))
    if isinstance(value, bytes):
        return _BYTEA, value
    return (_INT8, struct.pack(">q", value)) if isinstance(value, int) else (_TEXT, value.encode())


def _row(content: bytes) -> list[Any]:
    """Return the columns of a row, in their binary form."""
    columns: list[Any] = []
    (count,), place = _SHORT.unpack_from(content), 2
    for _ in range(count):
        (size,) = _LONG.unpack_from(content, place)
        place += 4
        columns.append(None if size < 0 else content[place : place + size])
        place += max(size, 0)
    return columns


def number(column: bytes) -> int:
    """Decode a column of the type int8."""
    return int(struct.unpack(">q", column)[0])
