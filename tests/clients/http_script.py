"""A server's side of HTTP/1.1, from bytes to bytes, for one queue with one message."""

from __future__ import annotations

MAPPING = """
[send]
method = "POST"
path = "/queues/{queue}/messages"
headers = { Content-Type = "application/octet-stream" }
body = "{body}"
ok = [201]
not_done = [429]

[take]
method = "POST"
path = "/queues/{queue}/take?wait={milliseconds}"
empty = [204]
receipt = "header:X-Receipt"

[ack]
method = "DELETE"
path = "/queues/{queue}/messages/{receipt}"
ok = [204]
"""


class HttpScript:
    """``status`` is the answer to a message that is sent; ``holds`` is the message that a take gets."""

    def __init__(self, status: int = 201, holds: bytes | None = None) -> None:
        self._status, self._holds = status, holds
        self._buffer = b""
        self._sent = 0
        self.requests: list[str] = []
        """The first lines of the requests that have arrived as a whole."""
        self.published: list[bytes] = []
        self.confirmed_at = 0
        """The number of bytes sent with the last answer."""

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        answer = b""
        while b"\r\n\r\n" in self._buffer:
            head, rest = self._buffer.split(b"\r\n\r\n", 1)
            first, *lines = head.decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            size = int(headers.get("content-length", 0))
            if len(rest) < size:
                break
            self._buffer = rest[size:]
            self.requests.append(first.removesuffix(" HTTP/1.1"))
            answer += self._answer(rest[:size])
            self.confirmed_at = self._sent + len(answer)
        self._sent += len(answer)
        return answer

    def _answer(self, body: bytes) -> bytes:
        request = self.requests[-1]
        if request.startswith("DELETE"):
            return b"HTTP/1.1 204 No Content\r\n\r\n"
        if "/take" in request:
            if self._holds is None:
                return b"HTTP/1.1 204 No Content\r\n\r\n"
            head = f"HTTP/1.1 200 OK\r\nX-Receipt: a/b\r\nContent-Length: {len(self._holds)}\r\n\r\n"
            return head.encode() + self._holds
        self.published.append(body)
        return f"HTTP/1.1 {self._status} Told\r\nContent-Length: 4\r\n\r\ntold".encode()
