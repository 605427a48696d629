"""MQTT 3.1.1 and 5: queues, each a persistent session that is subscribed to a topic, at quality 1 or 2.

The broker keeps messages published to the topic for the session (MQTT 3.1.1, 3.1.2.4 *Clean Session*, 4.1 *Storing
state*); a client that takes from the queue connects as that session. A session allows only one connection at a time.
With ``shared`` (MQTT 5, 4.8.2 *Shared Subscriptions*), a queue has several sessions that share one subscription, for
consumers that compete; a session whose consumer is gone is emptied by the others.

Outcomes, by the standard:

* Certainly not done: PUBACK or PUBREC with a reason of 0x80 or more (MQTT 5, 2.4: "Reason Code values of 0x80 or
  greater indicate failure"); with reason 0x10 ("The message is accepted but there are no subscribers": no session has
  it); every request on a connection that is known to be lost (nothing was written).
* Done: another PUBACK; at quality 2, PUBCOMP.
* May have happened: the end of the connection before that (4.3.2: "MUST treat the PUBLISH packet as 'unacknowledged'
  until it has received the corresponding PUBACK packet"); PUBCOMP with a reason of 0x80 or more.
* A take removes nothing (4.4: "the Client and Server MUST resend any unacknowledged PUBLISH packets"). Nothing confirms
  PUBACK of a consumer, but brokers handle a connection's packets in order: the answer to a later SUBSCRIBE confirms it.
  At quality 2, PUBREC is the acknowledgement (4.3.3: the receiver has then accepted ownership), and PUBREL confirms it.

MQTT has no request for the number of messages in a session: ``depth`` is None.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from stormproof.contracts.client import Delivery, NotDone
from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import BrokerSetup, ProtocolClient
from stormproof.errors import UsageError

BROKER_PORT, TLS_PORT = 1883, 8883
MAX_INFLIGHT = 20
"""Messages that a broker sends a session ahead of their acknowledgement: Mosquitto's default."""
V3, V5 = "3.1.1", "5"
_SHARE = "$share/stormproof/"
_slots_lock = threading.Lock()
_slots: dict[tuple[object, ...], set[int]] = {}
"""The sessions of shared queues that connections of this process use, by brokers and queue."""


class MqttConnection:
    """One client's connection; it publishes without a session, and takes as a session of a queue."""

    def __init__(self, setup: BrokerSetup) -> None:
        self._setup = setup
        self._options = MQTT.settings(setup)
        self._place: tuple[str, int, str] = ("", 0, "")
        self._sender: Any = None
        self._own: dict[str, _Session] = {}
        self._adopted: dict[str, _Session] = {}

    @property
    def prefetch(self) -> int:
        """The largest number of messages that brokers have sent ahead of their acknowledgement."""
        return int(self._options["inflight"]) * max(1, len(self._own) + len(self._adopted))

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect, in order to publish."""
        self._place = (host, port, local)
        self._sender = await self._opened("")

    async def send(self, queue: str, body: bytes) -> None:
        """Publish a message; PUBACK or PUBCOMP confirms it."""
        await self._sender.publish(queue, body, int(self._options["qos"]))

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Take the next message of the queue's session; if that has none, of one whose consumer is gone."""
        if queue not in self._own:
            found = await self._session(queue)
            if found is None:
                raise NotDone(f"all sessions of {queue} are in use: set shared to the number of consumers")
            self._own[queue] = found
        if (delivery := await self._taken(self._own[queue], timeout)) or not int(self._options["shared"]):
            return delivery
        if queue not in self._adopted and (orphan := await self._session(queue)):
            self._adopted[queue] = orphan
        if queue not in self._adopted:
            return None
        if (delivery := await self._taken(self._adopted[queue], timeout)) is None:
            orphan = self._adopted[queue]
            if not orphan.mqtt.unacknowledged:
                del self._adopted[queue]
                await orphan.close()
        return delivery

    async def depth(self, queue: str) -> None:
        """Return None: MQTT has no request for it."""

    async def create(self, queue: str) -> None:
        """Create the queue's sessions, by connecting as each."""
        for name in self._names(queue):
            session = await self._opened(name)
            try:
                await session.subscribe(self._filter(queue), int(self._options["qos"]))
            finally:
                await session.close()

    async def forget(self, queue: str) -> None:
        """End a queue's sessions: a connection with a session's name that demands a clean one discards it (MQTT 3.1.1,
        3.1.2.4; MQTT 5, 3.1.2.4)."""
        for name in self._names(queue):
            await (await self._opened(name, clean=True)).close()

    async def close(self) -> None:
        """Disconnect; the sessions stay with the broker."""
        for session in (*self._own.values(), *self._adopted.values()):
            await session.close()
        self._own.clear()
        self._adopted.clear()
        if self._sender is not None:
            await self._sender.close()

    def _names(self, queue: str) -> list[str]:
        """Return the client identifiers of a queue's sessions."""
        count = int(self._options["shared"])
        return [f"stormproof-{queue}-{number}" for number in range(count)] if count else [f"stormproof-{queue}"]

    def _filter(self, queue: str) -> str:
        return f"{_SHARE}{queue}" if int(self._options["shared"]) else queue

    async def _session(self, queue: str) -> _Session | None:
        """Return an open session of the queue that no connection uses; None if there is none."""
        names = self._names(queue)
        key = (*((broker.host, broker.port) for broker in self._setup.brokers), queue)
        slot = 0
        if int(self._options["shared"]):
            with _slots_lock:
                used = _slots.setdefault(key, set())
                free = next((number for number in range(len(names)) if number not in used), None)
                if free is None:
                    return None
                used.add(free)
                slot = free
        session = _Session(key, slot)
        try:
            session.mqtt = await self._opened(names[slot])
            await session.mqtt.subscribe(self._filter(queue), int(self._options["qos"]))
        except BaseException as error:
            await session.close()
            if isinstance(error, OSError):
                raise NotDone(f"no session: {error}") from error
            raise
        return session

    async def _taken(self, session: _Session, timeout: float) -> Delivery | None:
        message = await session.mqtt.next(timeout)
        if message is None:
            return None
        return Delivery(bytes(message.payload), lambda: session.mqtt.acknowledge(message))

    async def _opened(self, name: str, *, clean: bool = False) -> Any:
        from stormproof.clients.mqtt_link import MqttLink

        link = MqttLink(name, self._setup.access, clean=clean or not name, newest=self._options["mqtt_version"] == V5,
                        inflight=int(self._options["inflight"]))  # fmt: skip
        try:
            await link.open(*self._place)
        except BaseException:
            await link.close()
            raise
        return link


class _Session:
    """A connection as one of a queue's sessions."""

    mqtt: Any = None

    def __init__(self, key: tuple[object, ...], slot: int) -> None:
        self._key, self._slot = key, slot

    async def close(self) -> None:
        """Disconnect; another connection may then use the session."""
        if self.mqtt is not None:
            await self.mqtt.close()
        with _slots_lock:
            _slots.get(self._key, set()).discard(self._slot)


class Mqtt(ProtocolClient):
    """MQTT brokers."""

    name = "mqtt"
    summary = "MQTT 3.1.1 and 5: persistent sessions as queues"
    port = BROKER_PORT
    tls_port = TLS_PORT
    provides = frozenset({"queues"})
    distributions = ("paho-mqtt",)
    defaults: ClassVar[Mapping[str, Any]] = {"consumers": 1}
    options = (
        Option("mqtt_version", V3, "version of the protocol", (V3, V5)),
        Option("qos", "1", "quality of service of publishers and subscribers", ("1", "2")),
        Option("shared", 0, "consumers that compete for a queue by a shared subscription (of MQTT 5; some brokers have "
                            "them in 3.1.1, too); 0: one session, for --set consumers=1"),
        Option("inflight", MAX_INFLIGHT, "messages that the broker sends ahead: asked for by MQTT 5, otherwise its own "
                                         "setting"),
    )  # fmt: skip
    guarantees = (
        Guarantee("duplicated", NOT_PROMISED, "MQTT 3.1.1, 4.3.2 QoS 1: At least once delivery",
                  "what was not acknowledged is delivered again"),
        Guarantee("order", NOT_PROMISED, "MQTT 3.1.1, 4.6 Message ordering", "what is delivered again comes late"),
    )  # fmt: skip
    """Loss is judged in every mode. MQTT 3.1.1, 4.1, demands that sessions are kept, "for as long as the network
    connection lasts" at least, and leaves it to administrators what survives a crash; a publisher sees PUBACK either
    way."""

    def check(self, options: Mapping[str, Any]) -> None:
        """Refuse more consumers than sessions: they would take the session from each other."""
        consumers, queues, shared = (int(options.get(name, 0)) for name in ("consumers", "queues", "shared"))
        if consumers > max(1, shared) * max(1, queues):
            raise UsageError(f"--set consumers={consumers}: an MQTT session has one connection at a time; add --set "
                             f"shared={consumers} (shared subscriptions), or use --set consumers={max(1, queues)}")

    def connection(self, setup: BrokerSetup) -> MqttConnection:
        """Return a connection to one broker."""
        return MqttConnection(setup)

    async def prepare(self, setup: BrokerSetup) -> None:
        """Create the queues' sessions. A session has no limit of deliveries."""
        connection = await self.admitted(setup)
        try:
            for queue in setup.demands.queues:
                await connection.create(queue)
        finally:
            await connection.close()

    async def clear(self, setup: BrokerSetup, names: Sequence[str]) -> Sequence[str]:
        """End the queues' sessions."""
        connection = await self.admitted(setup)
        try:
            for name in names:
                await connection.forget(name)
        finally:
            with contextlib.suppress(Exception):
                await connection.close()
        return ()


MQTT = Mqtt()
