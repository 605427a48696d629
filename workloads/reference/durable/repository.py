"""A client's local repository: messages that it has accepted and that no broker has confirmed yet, in a file.

The file is a log. A frame is ``marker, size, check, synced, payload``. ``check`` is a CRC-32 of the frame, its offset
and the file's random ``salt``, so that a frame inside a message's body is never taken for a real one. ``synced`` is the
number of bytes of the file that were on disk when the frame was written. It distinguishes the unfinished end that a
crash leaves from damage. A broken frame is an unfinished end if no later frame has a ``synced`` beyond it. Such an end
is set aside, as no part of it was ever confirmed to a caller; a damaged file is refused.

The record that a message is done is not synced: after a crash the message is sent once more, and marked as such.
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
"""The file is rewritten when this many bytes of it, and more than half of it, concern messages that are done."""


class RepositoryFull(Exception):
    """There is no room for the message: it was not accepted."""


@dataclass(frozen=True)
class StoredMessage:
    """A message: ``session`` and ``number`` are its identity, and increase in the order in which messages were
    accepted."""

    session: int
    number: int
    queue: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def place(self) -> tuple[int, int]:
        """The position of the message in the order of all messages."""
        return self.session, self.number

    @property
    def size(self) -> int:
        """The bytes that the message takes of the repository's limit."""
        return len(self.body) + len(self.queue) + sum(len(name) + len(text) for name, text in self.headers.items())


class MessageRepository:
    """The repository in ``storage``, with a limit of bytes and of messages.

    ``session`` numbers the connections to brokers, including those of earlier processes. ``messages`` are the messages
    that are not done, in order; ``refusals`` are those that a broker has refused, with its reason, until a caller takes
    them.

    Raises:
        RepositoryError: it is damaged, or no repository at all; the file is left unchanged.
    """

    def __init__(self, storage: Storage, max_bytes: int = 64 << 20, max_messages: int = 100_000) -> None:
        self.messages: dict[tuple[int, int], StoredMessage] = {}
        self.refusals: dict[tuple[int, int], tuple[StoredMessage, str]] = {}
        self.session = 0
        self.set_aside = 0
        """Bytes of an unfinished end that were found when the repository was opened."""
        self._storage = storage
        self._max_bytes, self._max_messages = max_bytes, max_messages
        self._bytes = 0
        self._failed = ""
        self._salt = b""
        self._end = self._synced = 0
        """Offsets in the file: its end, and the end of the part that is on disk."""
        try:
            self._open()
        except BaseException:
            storage.close()
            raise

    def demand_room(self, message: StoredMessage) -> None:
        """Raise RepositoryFull when there is no room for the message."""
        held = len(self.messages) + len(self.refusals)
        if held >= self._max_messages or self._bytes + message.size > self._max_bytes:
            raise RepositoryFull(f"{self._storage.name} holds {held:,} messages ({self._bytes:,} bytes) already")

    def write(self, message: StoredMessage) -> None:
        """Append a message; it is on disk after ``sync``. Raises OSError."""
        self._add([_MESSAGE, message.session, message.number, message.queue, dict(message.headers), message.body])
        self._keep(message)

    def sync(self) -> None:
        """Wait for the disk. Raises OSError."""
        with self._failing():
            self._storage.sync()
        self._synced = self._end

    def done(self, message: StoredMessage) -> None:
        """Record that a broker has confirmed the message. Raises OSError."""
        if message.place in self.messages:
            self._add([_DONE, *message.place])
            self._forget(message.place)
            self._tidy()

    def refuse(self, message: StoredMessage, reason: str) -> None:
        """Record that a broker has refused the message for good; it is kept until a caller takes it. Raises OSError."""
        self._add([_REFUSED, *message.place, reason])
        self.sync()
        self._set_refused(message.place, reason)

    def take_refusals(self) -> list[tuple[StoredMessage, str]]:
        """Return and forget the messages that were refused, with the reasons. Raises OSError."""
        taken = list(self.refusals.values())
        for message, _ in taken:
            self._add([_DONE, *message.place])
            self._forget(message.place)
        self._tidy()
        return taken

    def begin_session(self) -> int:
        """Begin a new connection to a broker; return its number, which is on disk when this returns. Raises OSError."""
        self._add([_SESSION, self.session + 1])
        self.sync()
        self.session += 1
        return self.session

    def close(self) -> None:
        """Release the storage for other processes."""
        self._storage.close()

    def _keep(self, message: StoredMessage) -> None:
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
        """Guard a disk access: after a disk error the content of the disk is unknown, so later additions fail."""
        return _Failing(self)

    def failed(self, reason: str) -> None:
        """Record that the disk has failed."""
        self._failed = self._failed or reason

    @property
    def failure(self) -> str:
        """The reason of the disk's failure; empty if it has not failed."""
        return self._failed

    def _tidy(self) -> None:
        """Rewrite the file if most of it is no longer needed."""
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
            parts.append(self._frame(content, end, end))  # none of the frames is visible before all are on disk
            end += len(parts[-1])
        with self._failing():
            self._storage.replace(b"".join(parts))
        self._end = self._synced = end

    def _open(self) -> None:
        data = self._storage.read()
        if len(data) < _HEADER_BYTES and MAGIC.startswith(data[: len(MAGIC)]):
            self._rewrite()  # a new file, or one whose first write was never finished
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
            self._storage.sync()  # data written by a killed process may not be on disk yet

    def _damaged(self, place: int) -> RepositoryError:
        return RepositoryError(f"{self._storage.name}: damaged at byte {place:,}, before messages that were accepted; "
                               "it is left as it is: restore it from a copy, or move it away")

    def _frames(self, data: bytes) -> Iterator[tuple[int, list[Any]]]:
        """Yield the frames from the beginning up to the first broken one, each with the offset of its end."""
        place = _HEADER_BYTES
        while (payload := self._payload(data, place)) is not None:
            place += _FRAME.size + len(payload)
            yield place, _decoded(payload)

    def _payload(self, data: bytes, place: int) -> bytes | None:
        """Return the payload of the frame at an offset; None where there is no valid frame."""
        if place + _FRAME.size > len(data):
            return None
        marker, size, check, synced = _FRAME.unpack_from(data, place)
        payload = data[place + _FRAME.size : place + _FRAME.size + size]
        whole = marker == _MARKER and len(payload) == size
        return payload if whole and check == self._check(payload, place, synced) else None

    def _synced_beyond(self, data: bytes, place: int) -> bool:
        """Return whether a frame after the offset was written when the bytes at the offset had already been synced to
        disk."""
        found = data.find(_MARKER, place + 1)
        while found >= 0:
            if self._payload(data, found) is not None and _FRAME.unpack_from(data, found)[3] > place:
                return True
            found = data.find(_MARKER, found + 1)
        return False

    def _replay(self, content: list[Any], end: int) -> None:
        match content:
            case [str(kind), int(session), int(number), str(queue), dict(headers), bytes(body)] if kind == _MESSAGE:
                self._keep(StoredMessage(session, number, queue, headers, body))
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
    """A guard of disk accesses: it remembers a failure of the disk, and refuses all later accesses."""

    def __init__(self, repository: MessageRepository) -> None:
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
    """Return a record's bytes: JSON, followed by the body if the record is a message."""
    body = bytes(content[-1]) if content[0] == _MESSAGE else b""
    head = json.dumps(content[:-1] if content[0] == _MESSAGE else content).encode()
    return _LENGTH.pack(len(head)) + head + body


def _decoded(payload: bytes) -> list[Any]:
    """Return the record that ``_encoded`` was given; a message always has a body. Return an empty list for invalid
    bytes."""
    end = _LENGTH.size + int.from_bytes(payload[: _LENGTH.size])
    try:
        content = json.loads(payload[_LENGTH.size : end])
    except (ValueError, RecursionError):
        return []
    if not isinstance(content, list):
        return []
    return [*content, payload[end:]] if content[:1] == [_MESSAGE] else content
