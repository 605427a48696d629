"""A server's side of AMQP 1.0, from bytes to bytes, by Proton's engine, for one connection."""

from __future__ import annotations

from typing import Any

from proton import Collector, Connection, Delivery, Message, Terminus, Transport

TAG = "\u0080\u0081"
"""A delivery's tag is any bytes; Proton as a client can't read this one as a text."""


class Amqp1Script:
    """A server's side of one connection; ``holds`` is sent to the first receiver, and ``state`` answers a transfer.

    ``refuses``: links get no terminus and are closed. ``settled`` is what receivers' dispositions said, ``frames`` the
    number of links that were attached.
    """

    def __init__(self, state: int | None = Delivery.ACCEPTED, holds: bytes | None = None, product: str = "",
                 version: str = "", refuses: bool = False, credit: int = 10) -> None:  # fmt: skip
        self._state, self._holds, self._refuses, self._credit = state, holds, refuses, credit
        self._connection, self._collector = Connection(), Collector()
        self._transport = Transport(Transport.SERVER)
        self._transport.sasl().allowed_mechs("ANONYMOUS")
        self._connection.collect(self._collector)
        self._connection.container = "server"
        self._connection.properties = {"product": product, "version": version}
        self._transport.bind(self._connection)
        self._sent = 0
        self.confirmed_at = 0
        self.published: list[Message] = []
        self.settled: list[tuple[str, bool]] = []
        self.addresses: list[str] = []

    def feed(self, data: bytes) -> bytes:
        answer = b""
        while data:
            room = self._transport.capacity()
            if room <= 0:
                break
            self._transport.push(data[:room])
            data = data[room:]
            answer += self._turn()
        self._sent += len(answer)
        return answer

    def _turn(self) -> bytes:
        confirms = False
        while (event := self._collector.peek()) is not None:
            confirms |= self._handle(event.type.name, event)
            self._collector.pop()
        answer = b""
        while (pending := self._transport.pending()) > 0:
            answer += self._transport.peek(pending)
            self._transport.pop(pending)
        if confirms:
            self.confirmed_at = self._sent + len(answer)
        return answer

    def _handle(self, name: str, event: Any) -> bool:
        if name == "PN_CONNECTION_REMOTE_OPEN":
            event.connection.open()
        elif name == "PN_SESSION_REMOTE_OPEN":
            event.session.open()
        elif name == "PN_LINK_REMOTE_OPEN":
            self._attach(event.link)
        elif name == "PN_LINK_REMOTE_CLOSE":
            event.link.close()
        elif name == "PN_LINK_FLOW" and event.link.is_sender and self._holds is not None and event.link.credit:
            event.link.delivery(TAG)
            event.link.stream(Message(body=self._holds, inferred=True).encode())
            event.link.advance()
            self._holds = None
        elif name == "PN_CONNECTION_REMOTE_CLOSE":
            event.connection.close()
        elif name == "PN_DELIVERY":
            return self._delivery(event.delivery)
        return False

    def _attach(self, link: Any) -> None:
        theirs = link.remote_target if link.is_receiver else link.remote_source
        self.addresses.append(theirs.address)
        mine = link.target if link.is_receiver else link.source
        if self._refuses:  # 2.6.3: an attach without a terminus, and a detach
            mine.type = Terminus.UNSPECIFIED
            link.open()
            link.close()
            return
        mine.address, mine.type = theirs.address, Terminus.TARGET if link.is_receiver else Terminus.SOURCE
        link.open()
        if link.is_receiver:
            link.flow(self._credit)

    def _delivery(self, delivery: Any) -> bool:
        link = delivery.link
        if link.is_receiver and delivery.readable and not delivery.partial:
            message = Message()
            message.decode(link.recv(delivery.pending))
            link.advance()
            self.published.append(message)
            if self._state is not None:
                delivery.update(self._state)
            delivery.settle()
            return True
        if link.is_sender and delivery.remote_state:
            self.settled.append((delivery.remote_state.name, delivery.settled))
            if delivery.settled:  # there is no answer to it, but to what follows it
                self.confirmed_at = self._sent + 1
                return False
            delivery.update(delivery.remote_state)
            delivery.settle()
            return True
        return False
