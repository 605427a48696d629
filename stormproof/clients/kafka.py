"""Kafka: logs, each a topic of one partition, and queues, each a topic with a consumer group that commits.

An entry's offset is Kafka's plus one. A queue's consumers share its partitions; an acknowledgement commits the offset
after the message, so that the queue's depth is the number of records after the committed offsets.

Every append is one Produce request, which nothing repeats: neither this client nor its library. Outcomes, by Kafka's
documentation of its protocol, "Error codes", and "Producer configs":

* Certainly not done: 19 NOT_ENOUGH_REPLICAS ("Messages are rejected since there are fewer in-sync replicas than
  required"); 10 MESSAGE_TOO_LARGE ("The request included a message larger than the max message size the server will
  accept"); 18 RECORD_LIST_TOO_LARGE; 29 and 31, TOPIC_ and CLUSTER_AUTHORIZATION_FAILED; 17 INVALID_TOPIC_EXCEPTION; 87
  INVALID_RECORD; every request for which there is no connection to the partition's leader.
* May have happened: 6 NOT_LEADER_OR_FOLLOWER, which can come after the append; 7 REQUEST_TIMED_OUT; 20
  NOT_ENOUGH_REPLICAS_AFTER_APPEND ("Messages are written to the log, but to fewer in-sync replicas than required"); 45
  OUT_OF_ORDER_SEQUENCE_NUMBER; every other code; the end of the connection; no answer in time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from stormproof.contracts.client import Delivery, LogEntry, NotDone
from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import BrokerSetup, ProtocolClient
from stormproof.errors import BackendError
from stormproof.text import reason

BROKER_PORT = 9092
ANSWER_MILLISECONDS = 5000
"""The time limit of a request, for the client and for the broker."""
FETCH_MILLISECONDS = 50
"""The time that a broker may wait for new records before it answers a fetch."""
SESSION_MILLISECONDS = 6000
"""A consumer that is silent for so long leaves its group: the smallest value that brokers accept by default."""
PREPARE_SECONDS, PREPARE_PAUSE_SECONDS = 30.0, 0.5
"""The time that brokers have to join, and the pause between two attempts to create a topic."""
_REJECTED = {10: "MESSAGE_TOO_LARGE", 17: "INVALID_TOPIC_EXCEPTION", 18: "RECORD_LIST_TOO_LARGE",
             19: "NOT_ENOUGH_REPLICAS", 29: "TOPIC_AUTHORIZATION_FAILED", 31: "CLUSTER_AUTHORIZATION_FAILED",
             87: "INVALID_RECORD"}  # fmt: skip
"""Codes of a Produce response that certainly mean that nothing was appended."""
_EXISTS = 36
_NO_LEADER = -1


class KafkaConnection:
    """One client's connection: it bootstraps from one broker, and then also reaches those that lead."""

    prefetch = 1

    def __init__(self, setup: BrokerSetup) -> None:
        self._setup, self._options = setup, KAFKA.settings(setup)
        self._common: dict[str, Any] = {}
        self._client: Any = None
        self._readers: dict[str, Any] = {}
        self._takers: dict[str, Any] = {}
        self._turn = 0

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, and ask for the cluster's brokers and topics."""
        from aiokafka.client import AIOKafkaClient

        self._common = _common(self._setup, f"{host}:{port}", local)
        self._client = AIOKafkaClient(**self._common, metadata_max_age_ms=2000, request_timeout_ms=ANSWER_MILLISECONDS)
        await self._client.bootstrap()
        self._client.set_topics([*self._setup.demands.logs, *self._setup.demands.queues])

    async def append(self, name: str, body: bytes) -> int:
        """Append to a log."""
        return await self._produce(name, 0, body) + 1

    async def send(self, queue: str, body: bytes) -> None:
        """Append to the queue's next partition."""
        partitions = sorted(self._client.cluster.partitions_for_topic(queue) or ()) or [0]
        self._turn += 1
        await self._produce(queue, partitions[self._turn % len(partitions)], body)

    async def read(self, name: str, after: int, limit: int) -> Sequence[LogEntry]:
        """Fetch from the log's leader. The end offset is asked for first: a fetch alone does not tell an end from a
        leader that does not answer."""
        from aiokafka import AIOKafkaConsumer, TopicPartition

        place = TopicPartition(name, 0)
        if (reader := self._readers.get(name)) is None:
            reader = self._readers[name] = AIOKafkaConsumer(
                **self._common, auto_offset_reset="none", enable_auto_commit=False, metadata_max_age_ms=2000,
                request_timeout_ms=ANSWER_MILLISECONDS, fetch_max_wait_ms=FETCH_MILLISECONDS)  # fmt: skip
            await reader.start()
            reader.assign([place])
            reader.seek(place, after)
        if after >= (await reader.end_offsets([place]))[place]:
            return []
        if await reader.position(place) != after:
            reader.seek(place, after)
        while True:
            found = (await reader.getmany(place, timeout_ms=500, max_records=limit)).get(place)
            if found:
                return [LogEntry(each.offset + 1, each.value) for each in found]

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Return the next record of the partitions that the group gives this consumer."""
        from aiokafka.structs import TopicPartition

        taker = await self._taker(queue)
        found = await taker.getmany(timeout_ms=max(1, round(timeout * 1000)), max_records=1)
        record = next((each for records in found.values() for each in records), None)
        if record is None:
            return None
        place = TopicPartition(record.topic, record.partition)

        async def ack() -> None:
            await taker.commit({place: record.offset + 1})

        async def give_back() -> None:
            taker.seek(place, record.offset)

        return Delivery(record.value, ack, give_back)

    async def depth(self, queue: str) -> int:
        """Return the number of records after the group's committed offsets."""
        from aiokafka import AIOKafkaConsumer, TopicPartition

        reader = AIOKafkaConsumer(**self._common, group_id=_group(queue), enable_auto_commit=False,
                                  request_timeout_ms=ANSWER_MILLISECONDS)  # fmt: skip
        await reader.start()
        try:
            places = [TopicPartition(queue, each) for each in sorted(
                self._client.cluster.partitions_for_topic(queue) or ())]
            reader.assign(places)
            ends, begins = await reader.end_offsets(places), await reader.beginning_offsets(places)
            done = {place: await reader.committed(place) for place in places}
            return sum(ends[place] - (begins[place] if done[place] is None else done[place]) for place in places)
        finally:
            await reader.stop()

    async def close(self) -> None:
        """Leave the groups and disconnect."""
        for each in (*self._readers.values(), *self._takers.values()):
            with contextlib.suppress(Exception):
                await asyncio.wait_for(each.stop(), 1.0)
        if self._client is not None:
            with contextlib.suppress(Exception):
                await self._client.close()

    async def _taker(self, queue: str) -> Any:
        from aiokafka import AIOKafkaConsumer

        if queue not in self._takers:
            taker = AIOKafkaConsumer(
                queue, **self._common, group_id=_group(queue), auto_offset_reset="earliest", enable_auto_commit=False,
                session_timeout_ms=SESSION_MILLISECONDS, heartbeat_interval_ms=SESSION_MILLISECONDS // 6,
                metadata_max_age_ms=2000, request_timeout_ms=2 * SESSION_MILLISECONDS,
                fetch_max_wait_ms=FETCH_MILLISECONDS)  # fmt: skip
            await taker.start()
            self._takers[queue] = taker
        return self._takers[queue]

    async def _produce(self, topic: str, partition: int, body: bytes) -> int:
        """Send one Produce request to the partition's leader; return the record's offset in Kafka.

        Raises:
            NotDone: the request was not sent, or certainly rejected.
            Exception: anything else; the record may have been appended.
        """
        from aiokafka.protocol.produce import ProduceRequest
        from aiokafka.record.default_records import DefaultRecordBatchBuilder
        from aiokafka.structs import TopicPartition

        leader = self._client.cluster.leader_for_partition(TopicPartition(topic, partition))
        if leader is None or leader == _NO_LEADER:
            await self._client.force_metadata_update()
            raise NotDone(f"nobody leads {topic} as far as this client knows")
        if not await self._client.ready(leader):
            raise NotDone(f"no connection to broker {leader}, which leads {topic}")
        batch = DefaultRecordBatchBuilder(magic=2, compression_type=0, is_transactional=0, producer_id=-1,
                                          producer_epoch=-1, base_sequence=-1, batch_size=len(body) + 1024)  # fmt: skip
        batch.append(0, timestamp=None, key=None, value=body, headers=[])
        request = ProduceRequest(transactional_id=None, required_acks=-1 if self._options["acks"] == "all" else 1,
                                 timeout=ANSWER_MILLISECONDS, topics=[(topic, [(partition, batch.build())])])
        response = await self._client.send(leader, request)
        ((_, ((_, code, offset, *_),)),) = response.topics
        if code in _REJECTED:
            raise NotDone(_REJECTED[code])
        if code:
            self._client.force_metadata_update()
            raise RuntimeError(f"the broker answered with code {code}")
        return int(offset)


class Kafka(ProtocolClient):
    """Kafka, and brokers that speak its protocol."""

    name = "kafka"
    summary = "Kafka: topics as logs, and as queues with consumer groups"
    port = BROKER_PORT
    tls_port = BROKER_PORT
    provides = frozenset({"queues", "logs"})
    distributions = ("aiokafka",)
    options = (
        Option("acks", "all", "replicas that must have a record before it is confirmed", ("all", "1")),
        Option("replication_factor", 0, "replicas of each topic; 0: three, or as many as there are brokers"),
        Option("min_insync_replicas", 0, "min.insync.replicas; 0: two of three replicas, otherwise one"),
        Option("partitions", 0, "partitions of each queue; 0: one for each consumer"),
        Option("flush_messages", 0, "flush.messages; 0: the broker's default"),
        Option("unclean_leader_election", "default", "unclean.leader.election.enable", ("default", "true", "false")),
    )
    guarantees = (
        Guarantee("duplicated", NOT_PROMISED, "Kafka's documentation, Message Delivery Semantics",
                  "a consumer that dies before it commits leaves its record to another: at least once"),
        Guarantee("order", NOT_PROMISED, "Kafka's documentation, Guarantees",
                  "records are ordered within a partition; a queue has several"),
    )  # fmt: skip
    """Loss is judged in every mode."""

    def connection(self, setup: BrokerSetup) -> KafkaConnection:
        """Return a new connection."""
        return KafkaConnection(setup)

    async def prepare(self, setup: BrokerSetup) -> None:
        """Create the topics. A consumer group begins with the earliest record.

        Raises:
            BackendError: the brokers do not create them within ``PREPARE_SECONDS``; the text has the last reason.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PREPARE_SECONDS
        while True:
            try:
                if await self._made(setup):
                    return
                trouble = "a topic has no leader yet"
            except Exception as error:  # brokers join one after the other: any of many errors
                trouble = reason(error)
            if loop.time() > deadline:
                raise BackendError(f"kafka: the topics can't be created: {trouble}")
            await asyncio.sleep(PREPARE_PAUSE_SECONDS)

    async def _made(self, setup: BrokerSetup) -> bool:
        """Create the topics that are missing; return whether all partitions have a leader."""
        from aiokafka.admin import NewTopic

        options, nodes = self.settings(setup), len(setup.brokers)
        replicas = int(options["replication_factor"]) or min(3, nodes)
        least = int(options["min_insync_replicas"]) or (2 if replicas >= 3 else 1)
        configs = {"min.insync.replicas": str(least)}
        if options["flush_messages"]:
            configs["flush.messages"] = str(options["flush_messages"])
        if options["unclean_leader_election"] != "default":
            configs["unclean.leader.election.enable"] = options["unclean_leader_election"]
        partitions = int(options["partitions"]) or max(1, int(options.get("consumers", 1)))
        names = (*setup.demands.queues, *setup.demands.logs)
        wanted = [NewTopic(name, partitions if name in setup.demands.queues else 1, replicas, topic_configs=configs)
                  for name in names]
        async with _admin(setup) as admin:
            made = await admin.create_topics(wanted)
            for topic, code, *text in made.topic_errors:
                if code not in (0, _EXISTS):
                    raise BackendError(f"topic {topic}: code {code} {' '.join(map(str, text))}")
            found = await admin.describe_topics(list(names))
        return all(part["leader"] >= 0 and len(part["isr"]) == len(part["replicas"])
                   for topic in found for part in topic["partitions"])

    async def leaders(self, setup: BrokerSetup) -> Mapping[str, str]:
        """Return the leader of each topic's first partition."""
        async with _client(setup) as client:
            found: dict[str, str] = {}
            for name in (*setup.demands.queues, *setup.demands.logs):
                leader = _first_leader(client, name)
                broker = None if leader is None else client.cluster.broker_metadata(leader)
                if broker is not None:
                    place = setup.resolve(broker.host), broker.port
                    nodes = [each.node for each in setup.brokers
                             if place in ((each.host, each.port), (each.node, each.port))]
                    found |= dict.fromkeys([name], nodes[0]) if nodes else {}
        return found

    async def advertised(self, setup: BrokerSetup) -> Mapping[str, tuple[str, int]]:
        """Return the brokers' advertised addresses, by their numbers."""
        async with _client(setup) as client:
            return {f"broker {each.nodeId}": (each.host, int(each.port)) for each in client.cluster.brokers()}

    async def clear(self, setup: BrokerSetup, names: Sequence[str]) -> Sequence[str]:
        """Delete the topics of these names."""
        async with _admin(setup) as admin:
            await admin.delete_topics(list(names))
        return ()


KAFKA = Kafka()


def _group(queue: str) -> str:
    return f"stormproof-{queue}"


def _first_leader(client: Any, topic: str) -> int | None:
    from aiokafka.structs import TopicPartition

    found = client.cluster.leader_for_partition(TopicPartition(topic, 0))
    return None if found in (None, _NO_LEADER) else int(found)


def _common(setup: BrokerSetup, server: str, local: str) -> dict[str, Any]:
    """Return the arguments of all of the library's clients. A client's name is the address that it connects from."""
    _bind_by_name()
    access = setup.access
    login = bool(access.credentials.login)
    found: dict[str, Any] = {"bootstrap_servers": server, "client_id": f"{_FROM}{local}" if local else "stormproof",
                             "retry_backoff_ms": 50}  # fmt: skip
    found["security_protocol"] = f"{'SASL_' if login else ''}{'SSL' if access.tls else 'PLAINTEXT'}"
    if access.tls:
        found["ssl_context"] = access.tls.context()
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
    """The part of a connection that binds it."""

    _client_id: str
    _loop: Any

    async def connect(self) -> Any:
        if self._client_id.startswith(_FROM):
            self._loop = _LoopFrom(self._loop, self._client_id.removeprefix(_FROM))
        return await super().connect()  # type: ignore[misc]


class _LoopFrom:
    """An event loop whose connections come from one address."""

    def __init__(self, loop: Any, local: str) -> None:
        self._loop, self._local = loop, local

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, *arguments: Any, **named: Any) -> Any:
        return await self._loop.create_connection(*arguments, local_addr=(self._local, 0), **named)


@contextlib.asynccontextmanager
async def _client(setup: BrokerSetup) -> AsyncIterator[Any]:
    """Have a client with the metadata of the first broker that answers."""
    from aiokafka.client import AIOKafkaClient

    trouble: Exception = BackendError("kafka: no broker is named")
    for broker in setup.brokers:
        client = AIOKafkaClient(**_common(setup, f"{broker.host}:{broker.port}", ""), request_timeout_ms=2000)
        try:
            await asyncio.wait_for(client.bootstrap(), 3.0)
        except Exception as error:
            trouble = error
            await client.close()
            continue
        try:
            client.set_topics([*setup.demands.queues, *setup.demands.logs])
            await asyncio.wait_for(client.force_metadata_update(), 3.0)
            yield client
        finally:
            await client.close()
        return
    raise trouble


@contextlib.asynccontextmanager
async def _admin(setup: BrokerSetup) -> AsyncIterator[Any]:
    """Have an administrator's client."""
    from aiokafka.admin import AIOKafkaAdminClient

    servers = ",".join(f"{broker.host}:{broker.port}" for broker in setup.brokers)
    admin = AIOKafkaAdminClient(**_common(setup, servers, ""), request_timeout_ms=10_000)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()
