"""How the Kafka client uses its library: bound connections, members of a queue's group, and their end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping
from typing import Any

from stormproof.contracts.client import Delivery, NotDone
from stormproof.contracts.protocol_client import Access, BrokerSetup

CONNECT_SECONDS = 1.5
"""The time limit for one connection: less than that of an operation, 3 s by default."""
STOP_SECONDS = 1.0
"""The time that a consumer has to leave its group."""
FETCH_MILLISECONDS = 50
"""The time that a broker may wait for new records before it answers a fetch."""
SESSION_MILLISECONDS = 6000
"""A consumer that is silent for so long leaves its group: the smallest value that brokers accept by default."""


def group_of(queue: str) -> str:
    """Return the name of a queue's consumer group."""
    return f"stormproof-{queue}"


def security_protocol(access: Access) -> str:
    """Return Kafka's name for the way to get in."""
    return f"{'SASL_' if access.credentials.login else ''}{'SSL' if access.tls else 'PLAINTEXT'}"


def common_settings(setup: BrokerSetup, server: str, local: str) -> dict[str, Any]:
    """Return the arguments of all of the library's clients. A client's name is the address that it connects from."""
    _bind_by_name()
    access = setup.access
    login = bool(access.credentials.login)
    found: dict[str, Any] = {"bootstrap_servers": server, "client_id": f"{_FROM}{local}" if local else "stormproof",
                             "retry_backoff_ms": 50}  # fmt: skip
    found["security_protocol"] = security_protocol(access)
    if access.tls:
        found["ssl_context"] = access.tls.context()
        found["ssl_context"].server_name = access.tls.name
    if login:
        found |= {"sasl_mechanism": access.sasl or "PLAIN", "sasl_plain_username": access.credentials.login,
                  "sasl_plain_password": access.credentials.passcode}  # fmt: skip
    return found


_FROM = "stormproof-from-"


def _bind_by_name() -> None:
    """Let the library's connections come from the address that is part of their client's name: it has no setting for
    that."""
    from aiokafka import conn

    if issubclass(conn.AIOKafkaConnection, _Bound):
        return

    class BoundConnection(_Bound, conn.AIOKafkaConnection):  # type: ignore[misc]
        """A connection that may be bound."""

    conn.AIOKafkaConnection = BoundConnection


class _Bound:
    """The part of a connection that binds it, limits its time, and checks the certificate for the name of the user."""

    _client_id: str
    _loop: Any

    async def connect(self) -> Any:
        local = self._client_id.removeprefix(_FROM) if self._client_id.startswith(_FROM) else ""
        self._loop = _LoopFrom(self._loop, local)
        async with asyncio.timeout(CONNECT_SECONDS):
            return await super().connect()  # type: ignore[misc]


class _LoopFrom:
    """An event loop whose connections come from one address (empty: from any)."""

    def __init__(self, loop: Any, local: str) -> None:
        self._loop, self._local = loop, local

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, *arguments: Any, **named: Any) -> Any:
        if self._local:
            named["local_addr"] = self._local, 0
        if name := getattr(named.get("ssl"), "server_name", ""):
            named["server_hostname"] = name
        return await self._loop.create_connection(*arguments, **named)


class Taker:
    """A consumer in a queue's group, with the records that it has returned and not yet acknowledged.

    It joins the group in the background: a join waits for members that died, longer than an operation may take.
    """

    def __init__(self, common: Mapping[str, Any], queue: str) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.abc import ConsumerRebalanceListener

        held: dict[Any, set[int]] = {}

        class Revoked(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                held.clear()  # a group member gives back all its partitions before each assignment

            def on_partitions_assigned(self, assigned: Any) -> None:
                pass

        self._held, self._reached = held, Counter[Any]()
        self.consumer = AIOKafkaConsumer(
            **common, group_id=group_of(queue), auto_offset_reset="earliest", enable_auto_commit=False,
            session_timeout_ms=SESSION_MILLISECONDS, heartbeat_interval_ms=SESSION_MILLISECONDS // 6,
            metadata_max_age_ms=2000, request_timeout_ms=2 * SESSION_MILLISECONDS,
            fetch_max_wait_ms=FETCH_MILLISECONDS)  # fmt: skip
        self.consumer.subscribe([queue], listener=Revoked())
        self._started = asyncio.ensure_future(self.consumer.start())

    async def take(self, timeout: float) -> Delivery | None:
        """Return the next record; None if there was none, or the group gave no partition, within ``timeout`` seconds.

        Raises:
            ConnectionError: there is none, and no broker is connected.
        """
        from aiokafka.structs import TopicPartition

        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        await asyncio.wait({self._started}, timeout=timeout)
        if not self._started.done():
            self._demand_a_broker()
            return None
        self._started.result()
        left = max(1, round((until - loop.time()) * 1000))
        try:
            async with asyncio.timeout_at(until):  # its own limit does not count the time of an assignment
                found = await self.consumer.getmany(timeout_ms=left, max_records=1)
        except TimeoutError:
            found = {}
        record = next((each for records in found.values() for each in records), None)
        if record is None:
            self._demand_a_broker()
            return None
        place, offset = TopicPartition(record.topic, record.partition), record.offset
        held = self._held.setdefault(place, set())
        held.add(offset)
        self._reached[place] = offset + 1

        async def ack() -> None:
            if self._held.get(place) is not held:
                raise NotDone("the group has assigned the partition again since; nothing was sent")
            held.discard(offset)  # a commit stands for all records before it: stop before one that is not acknowledged
            await self.consumer.commit({place: min(held, default=self._reached[place])})

        async def give_back() -> None:
            if self._held.get(place) is held:  # it stays among those held until it is taken again
                self.consumer.seek(place, offset)

        return Delivery(record.value, ack, give_back)

    def _demand_a_broker(self) -> None:
        """Raise ConnectionError unless a broker is connected that could have sent a record."""
        if not any(each.connected() for each in self.consumer._client._conns.values()):
            raise ConnectionError("no broker is connected")

    async def ended(self) -> None:
        """Leave the group."""
        self._started.cancel()
        await ended(self._started)
        await stopped(self.consumer)


async def stopped(consumer: Any) -> None:
    """Stop a consumer, if need be without leaving its group: one that continued in the background would keep its
    partitions from others."""
    if await ended(consumer.stop()):
        return
    coordinator = consumer._coordinator
    for name in ("_coordination_task", "_heartbeat_task", "_commit_refresh_task"):
        if (task := getattr(coordinator, name, None)) is not None:
            task.cancel()
    for part in (consumer._fetcher, consumer._client):
        if part is not None:
            await ended(part.close())


async def ended(work: Awaitable[Any]) -> bool:
    """Await ``work`` for ``STOP_SECONDS``; return whether it succeeded. It is a task, since the library's ``stop`` may
    end with the cancellation of its own parts."""
    task = asyncio.ensure_future(work)
    if not (await asyncio.wait({task}, timeout=STOP_SECONDS))[0]:
        task.cancel()
        return False
    return not task.cancelled() and task.exception() is None
