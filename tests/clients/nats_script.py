"""A server's side of NATS' protocol, from bytes to bytes, with a stream and a pull consumer that has one message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

INFO = {"server_id": "N", "server_name": "n1", "version": "2.11.0", "headers": True, "max_payload": 1048576, "proto": 1}
NO_RESPONDERS = "no responders"


class NatsScript:
    """``answer`` is what a publish is answered with: a JSON object, or ``NO_RESPONDERS``."""

    def __init__(self, answer: Any = None, holds: bytes | None = None, **info: Any) -> None:
        self._answer = answer if answer is not None else {"stream": "q0", "seq": 7}
        self._holds = holds
        self.greeting = b"INFO " + json.dumps(INFO | info).encode() + b"\r\n"
        self._buffer = b""
        self._sent = len(self.greeting)
        self._sids: dict[str, str] = {}
        self.published: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.confirmed_at = 0
        """The number of bytes sent with the last answer."""

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        answer = b""
        while b"\r\n" in self._buffer:
            line, rest = self._buffer.split(b"\r\n", 1)
            word, *arguments = line.decode().split(" ")
            if word in ("PUB", "HPUB"):
                size = int(arguments[-1])
                if len(rest) < size + 2:
                    break
                body, rest = rest[:size], rest[size + 2 :]
                for part in self._published(arguments[0], arguments[1] if len(arguments) > 2 else "", body):
                    answer += part
                self.confirmed_at = self._sent + len(answer)
            elif word == "SUB":
                self._sids[arguments[0]] = arguments[-1]
            elif word == "PING":
                answer += b"PONG\r\n"
            self._buffer = rest
        self._sent += len(answer)
        return answer

    def _published(self, subject: str, reply: str, body: bytes) -> Iterator[bytes]:
        if subject.startswith("$JS.API.CONSUMER.INFO"):
            none = {"consumer_seq": 0, "stream_seq": 0}
            told = {"stream_name": "q0", "name": "takers",
                    "config": {"deliver_policy": "all", "ack_policy": "explicit"},
                    "delivered": none, "ack_floor": none, "num_pending": 1}  # fmt: skip
            yield self._message(reply, json.dumps(told).encode())
        elif subject.startswith("$JS.API.CONSUMER.MSG.NEXT"):
            if self._holds is not None:
                back = "$JS.ACK.q0.takers.1.1.1.1700000000000000000.0"
                yield self._message(reply, self._holds, subject="q0", back=back)
        elif subject.startswith("$JS.ACK"):
            self.acknowledged.append(body)
            yield self._message(reply, b"")
        else:
            self.published.append(body)
            if self._answer == NO_RESPONDERS:
                head = b"NATS/1.0 503\r\n\r\n"
                yield b"HMSG %s %s %d %d\r\n%s\r\n" % (reply.encode(), self._sid(reply), len(head), len(head), head)
            else:
                yield self._message(reply, json.dumps(self._answer).encode())

    def _message(self, inbox: str, body: bytes, subject: str = "", back: str = "") -> bytes:
        words = [b"MSG", (subject or inbox).encode(), self._sid(inbox), *([back.encode()] if back else [])]
        return b" ".join([*words, b"%d" % len(body)]) + b"\r\n" + body + b"\r\n"

    def _sid(self, inbox: str) -> bytes:
        found = (sid for pattern, sid in self._sids.items() if inbox == pattern or
                 (pattern.endswith("*") and inbox.startswith(pattern[:-1])))  # fmt: skip
        return next(found).encode()
