"""One MQTT connection by paho's client, whose network thread calls back into the connection's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from paho.mqtt.client import Client, MQTTMessage, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from stormproof.contracts.client import NotDone
from stormproof.contracts.protocol_client import Access

KEEPALIVE = 10
"""Seconds without a packet after which a client sends PINGREQ."""
ANSWER_SECONDS = 5.0
"""The time limit for CONNACK, SUBACK and PUBREL."""
_FAILURE, _NO_SUBSCRIBERS = 0x80, 0x10
"""Reasons of MQTT 5 (2.4): the least that means failure, and the one for messages that no session gets."""
_FOREVER = 0xFFFFFFFF
"""A session expiry interval of MQTT 5 (3.1.2.11.2): the session does not expire."""


class _Client(Client):
    """paho's client, with two changes at quality 2.

    It passes on the reason of PUBREC, and ends a publish that PUBREC refuses (MQTT 5, 4.3.3), which paho ignores. It
    sends PUBREC for a message only when the message is acknowledged: paho does it when the message arrives, and a
    message in a client that then dies would be lost.
    """

    on_received: Callable[[int, int], object]
    """Called with a packet's identifier and the reason of its PUBREC."""
    on_released: Callable[[int], object]
    """Called with the identifier of a packet for which PUBREL came."""
    _held: int | None = None

    def _handle_publish(self) -> Any:
        done = super()._handle_publish()
        held, self._held = self._held, None
        if held is not None and self.on_message is not None:
            self.on_message(self, self._userdata, self._in_messages[held])
        return done

    def _send_pubrec(self, mid: int) -> MQTTErrorCode:
        self._held = mid
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def receive(self, mid: int) -> None:
        """Send PUBREC."""
        super()._send_pubrec(mid)

    def _handle_pubrel(self) -> MQTTErrorCode:
        mid = int.from_bytes(bytes(self._in_packet["packet"])[:2], "big")
        self._in_messages.pop(mid, None)
        done = self._send_pubcomp(mid)
        self.on_released(mid)
        return done

    def _handle_pubrec(self) -> MQTTErrorCode:
        packet = bytes(self._in_packet["packet"])
        mid, reason = int.from_bytes(packet[:2], "big"), packet[2] if len(packet) > 2 else 0
        self.on_received(mid, reason)
        if reason < _FAILURE:
            return super()._handle_pubrec()
        with self._out_message_mutex:
            if self._out_messages.pop(mid, None) is not None:
                self._inflight_messages -= 1
        return MQTTErrorCode.MQTT_ERR_SUCCESS


class MqttLink:
    """One connection. Messages are acknowledged by hand, and nothing is resent automatically: a message published twice
    is two messages."""

    def __init__(self, name: str, access: Access, *, clean: bool, newest: bool, inflight: int) -> None:
        """Create the client.

        Args:
            name: the name of the session.
            clean: the broker discards the session, and keeps none.
            newest: speak MQTT 5, not 3.1.1.
            inflight: the number of unacknowledged messages that the broker may send, if it is asked (MQTT 5).
        """
        self._loop = asyncio.get_running_loop()
        self._clean, self._newest, self._inflight = clean, newest, inflight
        login = access.credentials
        self._client = _Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=None if newest else clean,
                               manual_ack=True, reconnect_on_failure=False,
                               protocol=MQTTv5 if newest else MQTTv311)  # fmt: skip
        if login.login:
            self._client.username_pw_set(login.login, login.passcode or None)
        if access.tls:
            context = access.tls.context()
            if access.tls.name:
                context.wrap_socket = _naming(context.wrap_socket, access.tls.name)  # type: ignore[method-assign]
            self._client.tls_set_context(context)
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._subscribed: asyncio.Future[None] = self._loop.create_future()
        self._published: dict[int, asyncio.Future[None]] = {}
        self._released: dict[int, asyncio.Future[None]] = {}
        self._received: set[int] = set()
        """Packets for which PUBREC has come."""
        self._empty: set[int] = set()
        """Packets whose PUBREC reported that no session gets their message."""
        self._messages: asyncio.Queue[MQTTMessage | None] = asyncio.Queue()
        self._lost = ""
        self._topic, self._quality = "", 1
        self.unacknowledged = 0
        """Messages that were taken, and not acknowledged."""
        here = self._here
        self._client.on_connect = lambda _, __, ___, code, ____: here(self._on_connect, code)
        self._client.on_disconnect = lambda _, __, ___, code, ____: here(self._on_lost, str(code))
        self._client.on_publish = lambda _, __, mid, code, ____: here(self._on_published, mid, code.value)
        self._client.on_subscribe = lambda _, __, ___, codes, ____: here(self._on_subscribed, codes)
        self._client.on_message = lambda _, __, message: here(self._messages.put_nowait, message)
        self._client.on_received = lambda mid, reason: here(self._on_received, mid, reason)
        self._client.on_released = lambda mid: here(self._on_released, mid)

    async def open(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, and wait for CONNACK.

        Raises:
            OSError, TimeoutError: no answer. NotDone: the broker refused.
        """
        more: dict[str, Any] = {}
        if self._newest:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.ReceiveMaximum = self._inflight
            properties.SessionExpiryInterval = 0 if self._clean else _FOREVER
            more = {"clean_start": self._clean, "properties": properties}
        try:
            await self._loop.run_in_executor(None, lambda: self._client.connect(host, port, KEEPALIVE, local, **more))
            sock: Any = self._client.socket()
            if sock is not None:  # otherwise the second of two small packets waits for 40 ms
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        finally:
            self._client.loop_start()
        await asyncio.wait_for(self._connected, ANSWER_SECONDS)

    async def publish(self, topic: str, body: bytes, quality: int) -> None:
        """Publish, and wait for PUBACK or PUBCOMP.

        Raises:
            NotDone: the broker refused it, or nothing was written. RuntimeError, ConnectionError: it may have it.
        """
        if self._lost:
            raise NotDone(f"{self._lost}; nothing was sent")
        done = self._loop.create_future()
        info = self._client.publish(topic, body, quality)
        if info.rc in (MQTTErrorCode.MQTT_ERR_NO_CONN, MQTTErrorCode.MQTT_ERR_QUEUE_SIZE):
            raise NotDone(f"{info.rc.name}; nothing was sent")
        # The acknowledgement can't be handled before this line: callbacks run in this loop.
        self._published[info.mid] = done
        await done

    async def subscribe(self, topic: str, quality: int) -> None:
        """Subscribe, and wait for SUBACK; a repetition changes nothing."""
        if self._lost:
            raise ConnectionError(self._lost)
        self._subscribed = self._loop.create_future()
        self._topic, self._quality = topic, quality
        self._client.subscribe(topic, quality)
        await asyncio.wait_for(self._subscribed, ANSWER_SECONDS)

    async def next(self, timeout: float) -> MQTTMessage | None:
        """Return the next message; None when there is none in time.

        Raises:
            NotDone: the connection is lost, and its unacknowledged messages will be delivered to another one.
        """
        message: MQTTMessage | None = None
        if not self._lost:
            try:
                message = await asyncio.wait_for(self._messages.get(), timeout)
            except TimeoutError:
                pass
        if self._lost:
            raise NotDone(f"{self._lost}; a message that was not acknowledged is delivered again")
        self.unacknowledged += message is not None
        return message

    async def acknowledge(self, message: MQTTMessage) -> None:
        """Acknowledge a message, and wait until the broker has handled that."""
        if self._lost:
            raise ConnectionError(self._lost)
        self.unacknowledged -= 1
        if message.qos == 2:
            self._released[message.mid] = released = self._loop.create_future()
            self._client.receive(message.mid)
            await asyncio.wait_for(released, ANSWER_SECONDS)
        else:
            self._client.ack(message.mid, message.qos)
            await self.subscribe(self._topic, self._quality)

    async def close(self) -> None:
        """Disconnect in order."""
        self._client.disconnect()
        await self._loop.run_in_executor(None, self._client.loop_stop)

    def _here(self, call: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(call, *arguments)

    def _on_connect(self, code: Any) -> None:
        if self._connected.done():
            return
        if code.is_failure:
            self._connected.set_exception(NotDone(f"refused: {code}"))
        else:
            self._connected.set_result(None)

    def _on_lost(self, reason: str) -> None:
        self._lost = f"the connection was lost: {reason}"
        self._messages.put_nowait(None)
        waiting = (self._connected, self._subscribed, *self._published.values(), *self._released.values())
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionError(self._lost))
                future.exception()  # retrieve it: not every future is awaited

    def _on_published(self, mid: int, reason: int) -> None:
        """PUBACK or PUBCOMP has come; only the former's failure says that the broker has not taken the message."""
        future = self._published.pop(mid, None)
        if future is None or future.done():
            return
        if mid in self._empty or reason == _NO_SUBSCRIBERS:
            self._empty.discard(mid)
            future.set_exception(NotDone("the broker has no subscriber for it"))
        elif reason < _FAILURE:
            future.set_result(None)
        elif mid in self._received:
            future.set_exception(RuntimeError(f"PUBCOMP has reason 0x{reason:02x}"))
        else:
            future.set_exception(NotDone(f"refused with reason 0x{reason:02x}"))
        self._received.discard(mid)

    def _on_received(self, mid: int, reason: int) -> None:
        self._received.add(mid)
        if reason >= _FAILURE:
            self._received.discard(mid)
            self._on_published(mid, reason)
        elif reason == _NO_SUBSCRIBERS:
            self._empty.add(mid)

    def _on_released(self, mid: int) -> None:
        future = self._released.pop(mid, None)
        if future is not None and not future.done():
            future.set_result(None)

    def _on_subscribed(self, codes: Any) -> None:
        if self._subscribed.done():
            return
        if any(code.is_failure for code in codes):
            self._subscribed.set_exception(NotDone(f"the subscription was refused: {codes}"))
        else:
            self._subscribed.set_result(None)


def _naming(wrap: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that wraps sockets for a server of that name, which paho can't be given."""
    return lambda sock, **settings: wrap(sock, **{**settings, "server_hostname": name})
