"""A client's local repository: messages that it has accepted and no broker has confirmed yet, in a file.

The file is a log. A frame is ``marker, size, check, synced, payload``: ``check`` is a CRC-32 of the frame, of its place
and of the file's own random ``salt``, so that a frame inside a message's body is never taken for one; ``synced`` says
how much of the file had been brought to disk when the frame was written. So an end that a crash has left unfinished is
told from damage: behind a broken frame there is none that was written after it had been synced. The former is set
aside, as nothing in it was ever confirmed to anybody; the latter is refused.

That a message is done is not synced: after a crash it is sent once more, and marked as such.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workloads.reference.durable.storage import RepositoryError, Storage

MAGIC = b"stormproof repository 1\n"
_SALT_BYTES = 8
_HEADER_BYTES = len(MAGIC) + _SALT_BYTES + 4
_MARKER = b"\xf5rec"
_FRAME = struct.Struct(">4sIIQ")
_PLACE = struct.Struct(">QIQ")
_LENGTH = struct.Struct(">I")
_MESSAGE, _DONE, _SESSION, _REFUSED = "message", "done", "session", "refused"
_WASTE_BYTES = 256 << 10
"""The file is written anew when this much of it, and more than half, is about messages that are done."""


class RepositoryFull(Exception):
    """There is no room for the message: it was not accepted."""


@dataclass(frozen=True)
class Stored:
    """A message: ``session`` and ``number`` are its identity, in the order in which messages were accepted."""

    session: int
    number: int
    queue: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def place(self) -> tuple[int, int]:
        """Its place in the order of all messages."""
        return self.session, self.number

    @property
    def size(self) -> int:
        """Bytes that it counts for."""
        return len(self.body) + len(self.queue) + sum(len(name) + len(text) for name, text in self.headers.items())


class Repository:
    """The repository in ``storage``, with room for so many bytes and messages.

    ``session`` numbers the connections to brokers, those of earlier processes included. ``messages`` are those that are
    not done, in order; ``refusals`` those that a broker has refused, with its reason, until somebody takes them.

    Raises:
        RepositoryError: it is damaged, or no repository at all; it is left as it is.
    """

    def __init__(self, storage: Storage, max_bytes: int = 64 << 20, max_messages: int = 100_000) -> None:
        self.messages: dict[tuple[int, int], Stored] = {}
        self.refusals: dict[tuple[int, int], tuple[Stored, str]] = {}
        self.session = 0
        self.set_aside = 0
        """Bytes of an unfinished end that were found when it was opened."""
        self._storage = storage
        self._max_bytes, self._max_messages = max_bytes, max_messages
        self._bytes = 0
        self._failed = ""
        self._salt = b""
        self._end = self._synced = 0
        """Of the file: where it ends, and how much of it is on disk."""
        try:
            self._open()
        except BaseException:
            storage.close()
            raise

    def demand_room(self, message: Stored) -> None:
        """Raises RepositoryFull when there is no room for the message."""
        held = len(self.messages) + len(self.refusals)
        if held >= self._max_messages or self._bytes + message.size > self._max_bytes:
            raise RepositoryFull(f"{self._storage.name} holds {held:,} messages ({self._bytes:,} bytes) already")

    def write(self, message: Stored) -> None:
        """Keep a message; it is on disk after ``sync``. Raises OSError."""
        self._add([_MESSAGE, message.session, message.number, message.queue, dict(message.headers), message.body])
        self._keep(message)

    def sync(self) -> None:
        """Wait for the disk. Raises OSError."""
        with self._failing():
            self._storage.sync()
        self._synced = self._end

    def done(self, message: Stored) -> None:
        """A broker has confirmed the message. Raises OSError."""
        if message.place in self.messages:
            self._add([_DONE, *message.place])
            self._forget(message.place)
            self._tidy()

    def refuse(self, message: Stored, reason: str) -> None:
        """A broker has refused the message for good; it is kept until somebody takes it. Raises OSError."""
        self._add([_REFUSED, *message.place, reason])
        self.sync()
        self._set_refused(message.place, reason)

    def take_refusals(self) -> list[tuple[Stored, str]]:
        """The messages that were refused, with the reasons; they are forgotten here. Raises OSError."""
        taken = list(self.refusals.values())
        for message, _ in taken:
            self._add([_DONE, *message.place])
            self._forget(message.place)
        self._tidy()
        return taken

    def begin_session(self) -> int:
        """A new connection to a broker begins; its number, which is on disk when this returns. Raises OSError."""
        self._add([_SESSION, self.session + 1])
        self.sync()
        self.session += 1
        return self.session

    def close(self) -> None:
        """Let another process use it."""
        self._storage.close()

    def _keep(self, message: Stored) -> None:
        self.messages[message.place] = message
        self._bytes += message.size

    def _set_refused(self, place: tuple[int, int], reason: str) -> None:
        message = self.messages.pop(place, None)
        if message is not None:
            self.refusals[place] = message, reason

    def _forget(self, place: tuple[int, int]) -> None:
        message = self.messages.pop(place, None) or self.refusals.pop(place, (None, ""))[0]
        if message is not None:
            self._bytes -= message.size

    # The file.

    def _add(self, content: list[Any]) -> None:
        with self._failing():
            data = self._frame(content, self._end, self._synced)
            self._storage.append(data)
        self._end += len(data)

    def _frame(self, content: list[Any], place: int, synced: int) -> bytes:
        payload = _encoded(content)
        return _FRAME.pack(_MARKER, len(payload), self._check(payload, place, synced), synced) + payload

    def _check(self, payload: bytes, place: int, synced: int) -> int:
        return zlib.crc32(payload, zlib.crc32(self._salt + _PLACE.pack(place, len(payload), synced)))

    def _failing(self) -> _Failing:
        """After an error of the disk nobody knows what is on it, so nothing is added any more."""
        return _Failing(self)

    def failed(self, reason: str) -> None:
        """The disk has failed."""
        self._failed = self._failed or reason

    @property
    def failure(self) -> str:
        """How the disk failed; empty if it did not."""
        return self._failed

    def _tidy(self) -> None:
        """Write the file anew if most of it is of no use any more."""
        if self._end > _WASTE_BYTES and self._end > 4 * self._bytes:
            self._rewrite()

    def _rewrite(self) -> None:
        self._salt = os.urandom(_SALT_BYTES)
        parts = [_header(self._salt)]
        end = _HEADER_BYTES
        contents: list[list[Any]] = [[_SESSION, self.session]]
        kept = {**self.messages, **{place: message for place, (message, _) in self.refusals.items()}}
        contents += [[_MESSAGE, *place, m.queue, dict(m.headers), m.body] for place, m in sorted(kept.items())]
        contents += [[_REFUSED, *place, reason] for place, (_, reason) in self.refusals.items()]
        for content in contents:
            parts.append(self._frame(content, end, end))  # none of them is seen before all are on disk
            end += len(parts[-1])
        with self._failing():
            self._storage.replace(b"".join(parts))
        self._end = self._synced = end

    def _open(self) -> None:
        data = self._storage.read()
        if len(data) < _HEADER_BYTES and MAGIC.startswith(data[: len(MAGIC)]):
            self._rewrite()  # new, or its first write was never finished
            return
        if not data.startswith(MAGIC):
            raise RepositoryError(f"{self._storage.name}: this is not a repository of a durable connection; "
                                  "name another file")
        self._salt = data[len(MAGIC) :][:_SALT_BYTES]
        if not data.startswith(_header(self._salt)):
            raise self._damaged(len(MAGIC))
        end = _HEADER_BYTES
        for end, content in self._frames(data):
            self._replay(content, end)
        if end < len(data):
            if self._synced_beyond(data, end):
                raise self._damaged(end)
            self.set_aside = len(data) - end
            self._storage.cut(end)
        self._end = self._synced = end
        with self._failing():
            self._storage.sync()  # what a killed process had written may not be on disk yet

    def _damaged(self, place: int) -> RepositoryError:
        return RepositoryError(f"{self._storage.name}: damaged at byte {place:,}, before messages that were accepted; "
                               "it is left as it is: restore it from a copy, or move it away")

    def _frames(self, data: bytes) -> Iterator[tuple[int, list[Any]]]:
        """The frames from the beginning up to the first that is broken, each with the place of its end."""
        place = _HEADER_BYTES
        while (payload := self._payload(data, place)) is not None:
            place += _FRAME.size + len(payload)
            yield place, _decoded(payload)

    def _payload(self, data: bytes, place: int) -> bytes | None:
        """The payload of the frame at a place; None where there is none."""
        if place + _FRAME.size > len(data):
            return None
        marker, size, check, synced = _FRAME.unpack_from(data, place)
        payload = data[place + _FRAME.size : place + _FRAME.size + size]
        whole = marker == _MARKER and len(payload) == size
        return payload if whole and check == self._check(payload, place, synced) else None

    def _synced_beyond(self, data: bytes, place: int) -> bool:
        """Whether some frame behind a place was written after what lies at the place had been brought to disk."""
        found = data.find(_MARKER, place + 1)
        while found >= 0:
            if self._payload(data, found) is not None and _FRAME.unpack_from(data, found)[3] > place:
                return True
            found = data.find(_MARKER, found + 1)
        return False

    def _replay(self, content: list[Any], end: int) -> None:
        match content:
            case [str(kind), int(session), int(number), str(queue), dict(headers), bytes(body)] if kind == _MESSAGE:
                self._keep(Stored(session, number, queue, headers, body))
            case [str(kind), int(session), int(number)] if kind == _DONE:
                self._forget((session, number))
            case [str(kind), int(session), int(number), str(reason)] if kind == _REFUSED:
                self._set_refused((session, number), reason)
            case [str(kind), int(session)] if kind == _SESSION:
                self.session = session
            case _:
                raise RepositoryError(f"{self._storage.name}: a record that ends at byte {end:,} is of no known kind; "
                                      "it was written by another version")


class _Failing:
    """What is inside uses the disk; its failure is remembered, and refuses all that follows."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def __enter__(self) -> None:
        if self._repository.failure:
            raise OSError(f"the repository failed before: {self._repository.failure}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if isinstance(error, OSError):
            self._repository.failed(error.strerror or str(error))


def _header(salt: bytes) -> bytes:
    return MAGIC + salt + zlib.crc32(salt).to_bytes(4)


def _encoded(content: list[Any]) -> bytes:
    """A record: JSON, and the body behind it if it ends with one."""
    body = bytes(content[-1]) if content[0] == _MESSAGE else b""
    head = json.dumps(content[:-1] if content[0] == _MESSAGE else content).encode()
    return _LENGTH.pack(len(head)) + head + body


def _decoded(payload: bytes) -> list[Any]:
    """What ``_encoded`` was given; a message always has a body. An empty list for anything else."""
    end = _LENGTH.size + int.from_bytes(payload[: _LENGTH.size])
    try:
        content = json.loads(payload[_LENGTH.size : end])
    except (ValueError, RecursionError):
        return []
    if not isinstance(content, list):
        return []
    return [*content, payload[end:]] if content[:1] == [_MESSAGE] else content
