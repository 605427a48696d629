"""STOMP 1.2 frames: encoding, and an incremental parser for untrusted input.

Pure functions and one parser object; used by the reference broker and by Stormproof's clients. The format is
https://stomp.github.io/stomp-specification-1.2.html, "Augmented BNF" and "Value Encoding".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

EOL: Final = b"\n"
"""A heart-beat on the wire."""

CLIENT_COMMANDS: Final = frozenset({
    "CONNECT", "STOMP", "SEND", "SUBSCRIBE", "UNSUBSCRIBE", "ACK", "NACK", "BEGIN", "COMMIT", "ABORT",
    "DISCONNECT", "PREPARE", "RECOVER", "RECEIVED", "READ",
})
SERVER_COMMANDS: Final = frozenset({"CONNECTED", "MESSAGE", "RECEIPT", "ERROR", "SAFE"})
_COMMANDS: Final = CLIENT_COMMANDS | SERVER_COMMANDS
# For compatibility with STOMP 1.0, these two carry their headers unescaped.
_UNESCAPED: Final = frozenset({"CONNECT", "CONNECTED"})

_NOT_IN_CONNECT: Final = frozenset("\n\r\0")

_TO_ESCAPE: Final = re.compile(r"[\\\r\n:]")
_ESCAPES: Final = {"\\": "\\\\", "\r": "\\r", "\n": "\\n", ":": "\\c"}
_ESCAPED: Final = re.compile(r"\\(.?)", re.DOTALL)
_UNESCAPES: Final = {"\\": "\\", "r": "\r", "n": "\n", "c": ":"}
_END_OF_HEADERS: Final = re.compile(rb"\n\r?\n")
_DIGITS: Final = re.compile(r"[0-9]{1,15}")


class ProtocolError(Exception):
    """The peer doesn't speak STOMP 1.2, or exceeds a limit; the text is a short reason."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; of repeated headers, the first counts."""

    command: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class StompHeartbeat:
    """One or more end-of-lines between frames."""

    def __repr__(self) -> str:
        return "HEARTBEAT"


HEARTBEAT: Final = StompHeartbeat()


@dataclass(frozen=True)
class FrameLimits:
    """Limits of a parser: bytes of command and headers together, number of headers, bytes of body."""

    header_bytes: int = 64 << 10
    headers: int = 128
    body: int = 4 << 20


def encode(frame: Frame) -> bytes:
    """Encode a frame; ``content-length`` is added when there is a body and no such header.

    Raises:
        ValueError: a header of CONNECT or CONNECTED holds a character that can't be sent there, or a header holds NUL.
    """
    headers = frame.headers
    if frame.body and "content-length" not in headers:
        headers = {**headers, "content-length": str(len(frame.body))}
    escapes = frame.command not in _UNESCAPED
    if not escapes:
        for name, value in headers.items():
            if not name or ":" in name or not _NOT_IN_CONNECT.isdisjoint(name + value):
                raise ValueError(f"{frame.command} can't carry the header {name!r}")
    head = _head(frame.command, headers)
    # Most headers contain no colon or end of line except the separators just added, so nothing has to be escaped.
    plain = head.count(":") == head.count("\n") == len(headers) and "\\" not in head and "\r" not in head
    if escapes and not plain:
        head = _head(frame.command, {escape(name): escape(value) for name, value in headers.items()})
    if "\0" in head:
        raise ValueError("a header can't hold NUL")
    return b"%b\n\n%b\0" % (head.encode(), frame.body)


def _head(command: str, headers: Mapping[str, str]) -> str:
    return "\n".join([command, *[f"{name}:{value}" for name, value in headers.items()]])


def escape(text: str) -> str:
    """Encode a text as a header's name or value on the wire."""
    return _TO_ESCAPE.sub(lambda match: _ESCAPES[match.group()], text)


def unescape(text: str) -> str:
    """Decode a header's name or value from the wire; raises ProtocolError for a bad escape."""
    if "\\" not in text:
        return text
    return _ESCAPED.sub(_unescape_one, text)


def _unescape_one(match: re.Match[str]) -> str:
    plain = _UNESCAPES.get(match.group(1))
    if plain is None:
        raise ProtocolError("a header has an undefined escape")
    return plain


class Parser:
    """Cuts a stream of bytes into frames; must not be used after a ProtocolError.

    ``feed`` returns at most ``most`` frames at a time; ``limits``, which may be changed, are those of the next frame.
    """

    def __init__(self, limits: FrameLimits | None = None, most: int | None = None) -> None:
        self.limits = limits if limits is not None else FrameLimits()
        self.most = most
        self._buffer = bytearray()
        self._scanned = 0
        self._head: Frame | None = None
        self._length: int | None = None
        self._fault: ProtocolError | None = None

    @property
    def buffered(self) -> int:
        """The number of bytes of frames that have not been returned yet."""
        return len(self._buffer)

    def clear(self) -> None:
        """Discard the beginning of the next frame; the rest of the stream can't be parsed afterwards."""
        self._buffer = bytearray()
        self._scanned, self._head, self._length = 0, None, None

    def feed(self, data: bytes) -> list[Frame | StompHeartbeat]:
        """Return the frames that ``data`` completes, and HEARTBEAT for end-of-lines between them; call again for more.

        Raises:
            ProtocolError: the stream is not STOMP or exceeds a limit. When frames were completed before the fault, they
                are returned, and the fault is raised by the next call.
        """
        if self._fault is not None:
            raise self._fault
        # No frame is under way: most often the input is a heart-beat, or empty.
        if not self._buffer and self._head is None:
            if data == EOL:
                return [HEARTBEAT]
            if not data:
                return []
        self._buffer += data
        items: list[Frame | StompHeartbeat] = []
        position = 0
        while True:
            try:
                item, position = self._next(position)
            except ProtocolError as fault:
                if not items:
                    raise
                self._fault = fault
                return items
            if item is None:
                break
            items.append(item)
            if position == len(self._buffer) or len(items) == self.most:
                break
        if position:
            del self._buffer[:position]
            self._scanned -= position
        return items

    def _next(self, position: int) -> tuple[Frame | StompHeartbeat | None, int]:
        if self._head is None:
            beats = self._count_eols(position)
            if beats:
                return HEARTBEAT, position + beats
            position = self._read_head(position)
        if self._head is None:
            return None, position
        return self._read_body(self._head, position)

    def _count_eols(self, position: int) -> int:
        buffer, end = self._buffer, position
        size = len(buffer)
        while end < size:
            if buffer[end] == 0x0A:
                end += 1
            elif buffer[end] == 0x0D and end + 1 < size and buffer[end + 1] == 0x0A:
                end += 2
            else:
                break
        return end - position

    def _read_head(self, position: int) -> int:
        """Parse command and headers once they are complete; return the position of the body."""
        buffer, limit = self._buffer, self.limits.header_bytes
        start = max(position, self._scanned)
        match = _END_OF_HEADERS.search(buffer, start, position + limit + 3)
        if match is None:
            if len(buffer) - position > limit:
                raise ProtocolError(f"the headers are longer than {limit} bytes")
            # The last two bytes may be the beginning of the end.
            self._scanned = max(position, len(buffer) - 2)
            return position
        if match.start() - position > limit:
            raise ProtocolError(f"the headers are longer than {limit} bytes")
        self._head = _parse_head(bytes(buffer[position : match.start()]), self.limits.headers)
        self._length = self._content_length(self._head.headers)
        self._scanned = match.end()
        return match.end()

    def _content_length(self, headers: Mapping[str, str]) -> int | None:
        text = headers.get("content-length")
        if text is None:
            return None
        if not _DIGITS.fullmatch(text):
            raise ProtocolError("content-length is not a number")
        length = int(text)
        if length > self.limits.body:
            raise ProtocolError(f"the body is longer than {self.limits.body} bytes")
        return length

    def _read_body(self, head: Frame, position: int) -> tuple[Frame | None, int]:
        buffer, limit = self._buffer, self.limits.body
        if self._length is None:
            end = buffer.find(b"\0", self._scanned, position + limit + 1)
            if end < 0:
                if len(buffer) - position > limit:
                    raise ProtocolError(f"the body is longer than {limit} bytes")
                self._scanned = len(buffer)
                return None, position
        else:
            end = position + self._length
            if end >= len(buffer):
                return None, position
            if buffer[end] != 0:
                raise ProtocolError("no NUL follows the body of the stated length")
        frame = Frame(head.command, head.headers, _copied(buffer, position, end)) if end > position else head
        self._head = None
        self._scanned = end + 1
        return frame, end + 1


def first_frame(limits: FrameLimits) -> Callable[[bytes], bool]:
    """Return a function that takes a connection's bytes and tells whether they contain a frame, or can't become one."""
    parser = Parser(limits, most=1)

    def feed(data: bytes) -> bool:
        try:
            while items := parser.feed(data):
                if any(isinstance(item, Frame) for item in items):
                    return True
                data = b""
        except ProtocolError:
            return True
        return False

    return feed


def _copied(buffer: bytearray, start: int, end: int) -> bytes:
    with memoryview(buffer) as view, view[start:end] as part:  # slicing the buffer itself would copy once more
        return bytes(part)


def _parse_head(block: bytes, max_headers: int) -> Frame:
    try:
        lines = block.decode().split("\n")
    except UnicodeDecodeError:
        raise ProtocolError("command or headers are not UTF-8") from None
    if b"\r" in block:
        lines = [line.removesuffix("\r") for line in lines]
    command = lines[0]
    if command not in _COMMANDS:
        raise ProtocolError("unknown command")
    if len(lines) - 1 > max_headers:
        raise ProtocolError(f"a frame has more than {max_headers} headers")
    if b"\0" in block:
        raise ProtocolError("a header holds NUL")
    escaped = b"\\" in block and command not in _UNESCAPED
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or "\r" in line:
            raise ProtocolError("a header line is malformed")
        if escaped:
            name, value = unescape(name), unescape(value)
        headers.setdefault(name, value)
    return Frame(command, headers)
