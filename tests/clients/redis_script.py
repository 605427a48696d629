"""A server's side of Redis' protocol (RESP2), from bytes to bytes, for one stream that holds at most one entry."""

from __future__ import annotations


class RedisScript:
    """``errors`` are the answers to commands that are refused, by the command's name; ``holds`` is the stream's entry,
    ``seen`` the number of replicas that WAIT reports."""

    def __init__(self, errors: dict[str, str] | None = None, holds: bytes | None = None, seen: int = 0,
                 role: str = "master") -> None:  # fmt: skip
        self._errors, self._holds, self._seen, self._role = errors or {}, holds, seen, role
        self._buffer = b""
        self._sent = 0
        self._queued: list[str] | None = None
        self.master_port = 1
        """What it answers as a sentinel."""
        self.done: list[str] = []
        """The commands that were carried out, by their name."""
        self.confirmed_at = 0
        """The number of bytes sent with the last answer to a command."""

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        answer = b""
        while (words := self._words()) is not None:
            answer += self._answer(words)
            self.confirmed_at = self._sent + len(answer)
        self._sent += len(answer)
        return answer

    def _words(self) -> list[bytes] | None:
        lines = self._buffer.split(b"\r\n", 1)
        if len(lines) < 2:
            return None
        rest, words = lines[1], []
        for _ in range(int(lines[0][1:])):
            size, found, rest = rest.partition(b"\r\n")
            if not found or len(rest) < (length := int(size[1:])) + 2:
                return None
            words.append(rest[:length])
            rest = rest[length + 2 :]
        self._buffer = rest
        return words

    def _answer(self, words: list[bytes]) -> bytes:
        name = words[0].decode()
        if error := self._errors.get(name):
            return f"-{error}\r\n".encode()
        if self._queued is not None and name != "EXEC":
            self._queued.append(name)
            return b"+QUEUED\r\n"
        if name == "EXEC":
            queued, self._queued = self._queued or [], None
            self.done += queued
            return packed([1] * len(queued))
        if name == "MULTI":
            self._queued = []
            return b"+OK\r\n"
        self.done.append(name)
        entry = [[b"1-1", [b"body", self._holds]]] if self._holds is not None else None
        return {
            "ROLE": packed([self._role.encode(), 0, []]), "XADD": packed(b"0-7"), "WAIT": packed(self._seen),
            "XAUTOCLAIM": packed([b"0-0", [], []]), "XREADGROUP": packed(entry and [[b"q0", entry]]),
            "EVAL": packed(1), "AUTH": b"+OK\r\n",
            "SENTINEL": packed([b"127.0.0.1", b"%d" % self.master_port]),
        }.get(name, b"+OK\r\n")  # fmt: skip


def packed(value: object) -> bytes:
    """A value in RESP2."""
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%s\r\n" % (len(value), value)
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(packed, value))
    return b"*-1\r\n"
