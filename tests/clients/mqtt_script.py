"""A server's side of MQTT 3.1.1 and 5, from bytes to bytes, for one connection and at most one message."""

from __future__ import annotations

CONNECT, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, PINGREQ = 1, 3, 4, 5, 6, 7, 8, 12


class MqttScript:
    """``reason`` is that of PUBACK or PUBREC, ``complete`` that of PUBCOMP (MQTT 5). The session has the message
    ``holds`` at quality ``quality``."""

    def __init__(self, newest: bool = False, reason: int = 0, complete: int = 0, holds: bytes | None = None,
                 quality: int = 1) -> None:  # fmt: skip
        self._newest, self._reason, self._complete = newest, reason, complete
        self._holds, self._quality = holds, quality
        self._buffer = b""
        self._sent = 0
        self.published: list[bytes] = []
        self.acknowledged = 0
        self.confirmed_at = 0
        """The number of bytes sent with the last PUBACK, PUBCOMP, SUBACK or PUBREL."""

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        answer = b""
        while (packet := self._packet()) is not None:
            answer += self._answer(*packet)
            self.confirmed_at = self._sent + len(answer)
        self._sent += len(answer)
        return answer

    def _packet(self) -> tuple[int, bytes] | None:
        size = shift = 0
        for place, byte in enumerate(self._buffer[1:5], 1):
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                end = place + 1 + size
                if len(self._buffer) < end:
                    return None
                first, body = self._buffer[0], self._buffer[place + 1 : end]
                self._buffer = self._buffer[end:]
                return first, body
        return None

    def _answer(self, first: int, body: bytes) -> bytes:
        kind = first >> 4
        if kind == CONNECT:
            return _packed(0x20, b"\0\0\0" if self._newest else b"\0\0")
        if kind == PUBLISH:
            length = int.from_bytes(body[:2], "big") + 2
            mid, rest = body[length : length + 2], body[length + 2 :]
            self.published.append(rest[1:] if self._newest else rest)
            reason = bytes([self._reason]) if self._newest and self._reason else b""
            return _packed(0x40 if (first >> 1) & 3 == 1 else 0x50, mid + reason)
        if kind == PUBREL:
            return _packed(0x70, body[:2] + (bytes([self._complete]) if self._complete else b""))
        if kind == SUBSCRIBE:
            answer = _packed(0x90, body[:2] + (b"\0" if self._newest else b"") + b"\1")
            if self._holds is not None:
                more = b"\0" if self._newest else b""
                answer += _packed(0x30 | self._quality << 1, b"\0\2q0\0\5" + more + self._holds)
                self._holds = None
            return answer
        if kind in (PUBACK, PUBREC):
            self.acknowledged += 1
            return _packed(0x62, body[:2]) if kind == PUBREC else b""
        return _packed(0xD0, b"") if kind == PINGREQ else b""


def _packed(first: int, body: bytes) -> bytes:
    return bytes([first, len(body)]) + body
