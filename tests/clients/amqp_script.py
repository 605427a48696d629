"""A server's side of AMQP 0-9-1, from bytes to bytes, for one queue that holds at most one message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pamqp.frame
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.exceptions import UnmarshalingException
from pamqp.header import ContentHeader, ProtocolHeader
from pamqp.heartbeat import Heartbeat

ACK, NACK, RETURN, RETURN_OTHER, CLOSE = "ack", "nack", "return", "return another", "close"
PROPERTIES = {"product": "RabbitMQ", "capabilities": {"publisher_confirms": True, "basic.nack": True}}


class AmqpScript:
    """``answer`` is what a publish is answered with; ``holds`` is pushed to the first consumer."""

    def __init__(self, answer: str = ACK, holds: bytes | None = None, properties: Any = PROPERTIES,
                 headers: dict[str, Any] | None = None, redelivered: bool = False) -> None:  # fmt: skip
        self._answer, self._holds, self._properties = answer, holds, properties
        self._headers, self._redelivered = headers, redelivered
        self._buffer = b""
        self._sent = 0
        self._publish: Any = None
        self._header: ContentHeader | None = None
        self.published: list[bytes] = []
        self.properties: Any = None
        self.settled: list[str] = []
        """Acknowledgements in the transaction, by their method's name."""
        self.committed: list[str] = []
        self.declared: list[Any] = []
        self.beats = 0
        self.confirmed_at = 0
        """The number of bytes sent with the last confirmation."""

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        answer = b""
        while self._buffer:
            try:
                used, channel, frame = pamqp.frame.unmarshal(self._buffer)
            except UnmarshalingException:
                break
            self._buffer = self._buffer[used:]
            for reply in self._replies(frame):
                answer += pamqp.frame.marshal(reply, channel)
                if isinstance(reply, commands.Basic.Ack | commands.Tx.CommitOk):
                    self.confirmed_at = self._sent + len(answer)
        self._sent += len(answer)
        return answer

    def _replies(self, frame: Any) -> Iterator[Any]:
        match frame:
            case ProtocolHeader():
                yield commands.Connection.Start(server_properties=self._properties, mechanisms="PLAIN", locales="en_US")
            case commands.Connection.StartOk():
                yield commands.Connection.Tune(channel_max=100, frame_max=131072, heartbeat=1)
            case commands.Connection.Open():
                yield commands.Connection.OpenOk()
            case commands.Connection.Close():
                yield commands.Connection.CloseOk()
            case commands.Channel.Open():
                yield commands.Channel.OpenOk()
            case commands.Channel.Close():
                yield commands.Channel.CloseOk()
            case commands.Confirm.Select():
                yield commands.Confirm.SelectOk()
            case commands.Tx.Select():
                yield commands.Tx.SelectOk()
            case commands.Basic.Qos():
                yield commands.Basic.QosOk()
            case commands.Queue.Declare():
                self.declared.append(frame)
                yield commands.Queue.DeclareOk(queue=frame.queue, message_count=0, consumer_count=0)
            case commands.Basic.Consume():
                yield commands.Basic.ConsumeOk(consumer_tag=frame.consumer_tag)
                if self._holds is not None:
                    yield commands.Basic.Deliver(frame.consumer_tag, 1, self._redelivered, "", "q0")
                    properties = commands.Basic.Properties(headers=self._headers)
                    yield ContentHeader(body_size=len(self._holds), properties=properties)
                    yield ContentBody(self._holds)
            case commands.Basic.Publish():
                self._publish = frame
            case ContentHeader():
                self._header, self.properties = frame, frame.properties
            case ContentBody():
                self.published.append(frame.value)
                yield from self._answers(frame.value)
            case commands.Basic.Ack() | commands.Basic.Nack() | commands.Basic.Reject():
                self.settled.append(frame.name)
            case commands.Tx.Commit():
                self.committed, self.settled = self.committed + self.settled, []
                yield commands.Tx.CommitOk()
            case Heartbeat():
                self.beats += 1

    def _answers(self, body: bytes) -> Iterator[Any]:
        if self._answer in (RETURN, RETURN_OTHER):
            yield commands.Basic.Return(312, "NO_ROUTE", "", "q0")
            ours = self.properties.message_id
            properties = commands.Basic.Properties(message_id=ours if self._answer == RETURN else f"{ours}-other")
            yield ContentHeader(body_size=len(body), properties=properties)
            yield ContentBody(body)
        if self._answer == NACK:
            yield commands.Basic.Nack(1)
        elif self._answer == CLOSE:
            yield commands.Channel.Close(reply_code=406, reply_text="PRECONDITION_FAILED", class_id=60, method_id=40)
        else:
            yield commands.Basic.Ack(1)
