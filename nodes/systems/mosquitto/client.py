"""A client of queues on an MQTT broker: each is a persistent session that is subscribed to a topic at quality 1.

The broker keeps messages published to the topic for the session (MQTT 3.1.1, 3.1.2.4 *Clean Session*, 4.1 *Storing
state*); a client that takes from the queue connects as that session. A session allows only one connection at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from stormproof.contracts.backend import Credentials
from stormproof.contracts.client import Delivery, NotDone

BROKER_PORT = 1883
KEEPALIVE = 10
ANSWER_SECONDS = 5.0
MAX_INFLIGHT = 20
"""Messages that the broker sends a session ahead of their acknowledgement."""
FENCES, BETWEEN_FENCES = 3, 0.2
"""MQTT has no request for a session's length. A session counts as empty if it delivers nothing while the broker answers
``FENCES`` requests on the same connection, ``BETWEEN_FENCES`` seconds apart; a slow broker is waited for."""
AT_LEAST_ONCE = 1
NOBODY = Credentials()


class MqttConnection:
    """One client's connection; it publishes without a session, and takes as the session of a queue."""

    prefetch = MAX_INFLIGHT

    def __init__(self, credentials: Credentials = NOBODY) -> None:
        self._credentials = credentials
        self._place: tuple[str, int, str] = ("", 0, "")
        self._sender: _Mqtt | None = None
        self._sessions: dict[str, _Mqtt] = {}

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect, in order to publish."""
        self._place = (host, port, local)
        self._sender = _Mqtt("", self._credentials)
        await self._sender.open(*self._place)

    async def send(self, queue: str, body: bytes) -> None:
        """Publish a message; PUBACK confirms it."""
        assert self._sender is not None
        await self._sender.publish(queue, body)

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Take the next message of the queue's session."""
        session = await self._session(queue)
        message = await session.next(timeout)
        if message is None:
            return None

        async def ack() -> None:
            session.acknowledge(message)
            # Nothing confirms PUBACK; but the broker reads a connection's packets in order, and answers this one.
            await session.subscribe(queue)

        return Delivery(bytes(message.payload), ack)

    async def depth(self, queue: str) -> int:
        """Return 0 when the session has nothing to deliver, else the number of messages that are delivered and not
        acknowledged.
        """
        session = await self._session(queue)
        return await session.waiting(queue) + session.unacknowledged

    async def forget(self, queue: str) -> None:
        """End a queue's session: a connection with its name and a clean session discards it (MQTT 3.1.1, 3.1.2.4)."""
        session = _Mqtt(session_name(queue), self._credentials, clean=True)
        try:
            await session.open(*self._place)
        finally:
            await session.close()

    async def close(self) -> None:
        """Disconnect; the sessions stay with the broker."""
        for client in [*self._sessions.values(), *([self._sender] if self._sender else [])]:
            await client.close()
        self._sessions.clear()

    async def _session(self, queue: str) -> _Mqtt:
        if queue not in self._sessions:
            session = _Mqtt(session_name(queue), self._credentials)
            await session.open(*self._place)
            await session.subscribe(queue)
            self._sessions[queue] = session
        return self._sessions[queue]


def session_name(queue: str) -> str:
    """Return the client identifier of a queue's session."""
    return f"stormproof-{queue}"


class _Mqtt:
    """One connection of paho's client, whose callbacks run in a separate thread.

    Messages are acknowledged by hand, and nothing is resent automatically: a message published twice is two messages.
    """

    def __init__(self, name: str, credentials: Credentials, *, clean: bool = False) -> None:
        """Create the client. ``name``: of the session that the broker keeps; if it is empty, or with ``clean``, none is
        kept.
        """
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion

        self._loop = asyncio.get_running_loop()
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=clean or not name,
                              manual_ack=True, reconnect_on_failure=False)  # fmt: skip
        if credentials.login:
            self._client.username_pw_set(credentials.login, credentials.passcode or None)
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._subscribed: asyncio.Future[None] = self._loop.create_future()
        self._published: dict[int, asyncio.Future[None]] = {}
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self._lost: str = ""
        self.unacknowledged = 0
        """Messages that were taken, and not acknowledged."""
        here = self._here
        self._client.on_connect = lambda _, __, ___, code, ____: here(self._on_connect, code)
        self._client.on_disconnect = lambda _, __, ___, code, ____: here(self._on_lost, str(code))
        self._client.on_publish = lambda _, __, number, ___, ____: here(self._on_published, number)
        self._client.on_subscribe = lambda _, __, ___, codes, ____: here(self._on_subscribed, codes)
        self._client.on_message = lambda _, __, message: here(self._messages.put_nowait, message)

    async def open(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, and wait for CONNACK.

        Raises:
            OSError, TimeoutError: no answer. NotDone: the broker refused.
        """
        try:
            await self._loop.run_in_executor(None, lambda: self._client.connect(host, port, KEEPALIVE, local))
        finally:
            self._client.loop_start()
        await asyncio.wait_for(self._connected, ANSWER_SECONDS)

    async def publish(self, topic: str, body: bytes) -> None:
        """Publish at quality 1, and wait for PUBACK."""
        if self._lost:
            raise NotDone(self._lost)
        done = self._loop.create_future()
        info = self._client.publish(topic, body, AT_LEAST_ONCE)
        # The acknowledgement can't be handled before this line: callbacks run in this loop.
        self._published[info.mid] = done
        await done

    async def subscribe(self, topic: str) -> None:
        """Subscribe at quality 1, and wait for SUBACK; a repetition changes nothing."""
        if self._lost:
            raise ConnectionError(self._lost)
        self._subscribed = self._loop.create_future()
        self._client.subscribe(topic, AT_LEAST_ONCE)
        await asyncio.wait_for(self._subscribed, ANSWER_SECONDS)

    async def next(self, timeout: float) -> Any:
        """Return the next message; None when there is none in time.

        Raises:
            ConnectionError: the connection is lost, and its unacknowledged messages will be delivered to another one.
        """
        if self._lost:
            raise ConnectionError(self._lost)
        with contextlib.suppress(TimeoutError):
            message = await asyncio.wait_for(self._messages.get(), timeout)
            self.unacknowledged += 1
            return message
        return None

    async def waiting(self, topic: str) -> int:
        """Return the number of messages that have arrived and were not taken, as soon as there are any; 0 after
        ``FENCES`` answers.
        """
        for _ in range(FENCES):
            if not self._messages.empty():
                break
            await self.subscribe(topic)
            await asyncio.sleep(BETWEEN_FENCES)
        return self._messages.qsize()

    def acknowledge(self, message: Any) -> None:
        """Send PUBACK."""
        if self._lost:
            raise ConnectionError(self._lost)
        self._client.ack(message.mid, message.qos)
        self.unacknowledged -= 1

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
        for future in [self._connected, self._subscribed, *self._published.values()]:
            if not future.done():
                future.set_exception(ConnectionError(self._lost))
                future.exception()  # retrieve it: not every future is awaited

    def _on_published(self, number: int) -> None:
        future = self._published.pop(number, None)
        if future is not None and not future.done():
            future.set_result(None)

    def _on_subscribed(self, codes: Any) -> None:
        if self._subscribed.done():
            return
        if any(code.is_failure for code in codes):
            self._subscribed.set_exception(NotDone(f"the subscription was refused: {codes}"))
        else:
            self._subscribed.set_result(None)
