"""Kafka: logs, each a topic of one partition, and queues, each a topic with a consumer group that commits.

An entry's offset is Kafka's plus one. A queue's consumers share its partitions. An acknowledgement commits the offset
of the first record that is not acknowledged, so that the queue's depth is the number of records after the committed
offsets.

Every append is one Produce request, which nothing repeats: neither this client nor its library. With ``repeats`` or
``idempotence=true`` appends go through the library's producer instead, which sends again after errors and broken
connections; then every error of an append may have happened. Otherwise outcomes are, by Kafka's documentation of its
protocol, "Error codes", and "Producer configs":

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
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from stormproof.clients.kafka_link import (
    FETCH_MILLISECONDS,
    Taker,
    common_settings,
    ended,
    group_of,
    stopped,
)
from stormproof.clients.preparing import until_done
from stormproof.contracts.client import Delivery, LogEntry, NotDone
from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import BrokerSetup, ProtocolClient
from stormproof.errors import BackendError, UsageError
from stormproof.text import reason

BROKER_PORT = 9092
ANSWER_MILLISECONDS = 5000
"""The time limit of a request, for the client and for the broker."""
TRANSACTION_MILLISECONDS = 5000
"""The time after which the coordinator aborts a transaction of a client that is gone. Readers of committed records wait
for it."""
READY_SECONDS, METADATA_SECONDS = 1.0, 0.7
"""The time limits for reaching a leader (the library may first try another broker) and for asking who leads: together
less than the usual time limit of an operation, 3 s."""
RECONNECT_SECONDS = 2.0
"""The time after a failed connection in which the broker is not tried again, as by Kafka's `reconnect.backoff.ms`:
longer than a try, so that operations on other brokers have their turn."""
REJECTED = {10: "MESSAGE_TOO_LARGE", 17: "INVALID_TOPIC_EXCEPTION", 18: "RECORD_LIST_TOO_LARGE",
             19: "NOT_ENOUGH_REPLICAS", 29: "TOPIC_AUTHORIZATION_FAILED", 31: "CLUSTER_AUTHORIZATION_FAILED",
             87: "INVALID_RECORD"}  # fmt: skip
"""Codes of a Produce response that certainly mean that nothing was appended."""
_MISSING, _EXISTS = 3, 36
_NO_LEADER = -1


class KafkaConnection:
    """One client's connection: it bootstraps from one broker, and then also reaches those that lead."""

    def __init__(self, setup: BrokerSetup) -> None:
        self._setup, self._options = setup, KAFKA.settings(setup)
        self._common: dict[str, Any] = {}
        self._client: Any = None
        self._producer: Any = None
        self._transactions = 0
        self._isolation = self._options[ISOLATION] if self._options[TRANSACTIONAL] else READ_UNCOMMITTED
        self._readers: dict[str, Any] = {}
        self._ends: Any = None
        self._takers: dict[str, Taker] = {}
        self._turn = 0
        self._not_before: dict[int, float] = {}

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, and ask for the cluster's brokers."""
        from aiokafka.client import AIOKafkaClient

        self._common = common_settings(self._setup, f"{host}:{port}", local)
        self._client = AIOKafkaClient(**self._common, metadata_max_age_ms=2000, request_timeout_ms=ANSWER_MILLISECONDS)
        await self._client.bootstrap()
        # The library would ask brokers in random order, and those that a cut hides would use up an operation's time.
        self._client.cluster.update_metadata(await _metadata(self._setup, host, port, local))
        self._client.set_topics(_topics(self._setup))
        if self._options[TRANSACTIONAL] or repeats(self._options):
            from aiokafka import AIOKafkaProducer

            transactional = self._options[TRANSACTIONAL]
            self._producer = AIOKafkaProducer(
                **self._common, acks=-1 if self._options["acks"] == "all" else 1, metadata_max_age_ms=2000,
                enable_idempotence=transactional or self._options["idempotence"] == "true",
                transactional_id=uuid.uuid4().hex if transactional else None,
                transaction_timeout_ms=TRANSACTION_MILLISECONDS, request_timeout_ms=ANSWER_MILLISECONDS)
            await self._producer.start()

    async def append(self, name: str, body: bytes) -> int:
        """Append to a log."""
        return await self._produce(name, 0, body) + 1

    async def send(self, queue: str, body: bytes) -> None:
        """Append to the queue's next partition."""
        partitions = await self._partitions(queue)
        self._turn += 1
        await self._produce(queue, partitions[self._turn % len(partitions)], body)

    async def read(self, name: str, after: int, limit: int) -> Sequence[LogEntry]:
        """Fetch from the log's leader. It first asks for the end offset: a fetch alone does not tell an end from a
        leader that does not answer."""
        from aiokafka import AIOKafkaConsumer, TopicPartition

        place, common = TopicPartition(name, 0), {**self._common, "metadata_max_age_ms": 2000}
        if (reader := self._readers.get(name)) is None:
            reader = self._readers[name] = AIOKafkaConsumer(
                **common, auto_offset_reset="none", enable_auto_commit=False, request_timeout_ms=ANSWER_MILLISECONDS,
                fetch_max_wait_ms=FETCH_MILLISECONDS, isolation_level=self._isolation)  # fmt: skip
            await reader.start()
            reader.assign([place])
            reader.seek(place, after)
        if self._ends is None:  # a reader of committed records would take the first open transaction for the end
            self._ends = AIOKafkaConsumer(**common, request_timeout_ms=ANSWER_MILLISECONDS)
            await self._ends.start()
        end = (await self._ends.end_offsets([place]))[place]
        if after >= end:
            return []
        if await reader.position(place) != after:
            reader.seek(place, after)
        while True:
            found = (await reader.getmany(place, timeout_ms=500, max_records=limit)).get(place)
            if found:
                return [LogEntry(each.offset + 1, each.value) for each in found]
            if await reader.position(place) >= end:  # only markers and aborted records follow
                return []

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Return the next record of the partitions that the group gives this consumer."""
        if queue not in self._takers:
            self._takers[queue] = Taker(self._common, queue)
        return await self._takers[queue].take(timeout)

    async def depth(self, queue: str) -> int:
        """Return the number of records after the group's committed offsets.

        Raises:
            NotDone: the topic is not known. RuntimeError: a log ends before its committed offset: whoever told its end
                no longer leads, or has lost records.
        """
        from aiokafka import AIOKafkaConsumer, TopicPartition

        places = [TopicPartition(queue, each) for each in await self._partitions(queue)]
        reader = AIOKafkaConsumer(**self._common, group_id=group_of(queue), enable_auto_commit=False,
                                  request_timeout_ms=ANSWER_MILLISECONDS)  # fmt: skip
        try:
            await reader.start()
            reader.assign(places)
            begins, count = await reader.beginning_offsets(places), 0
            done = {place: await reader.committed(place) for place in places}
            for place, end in (await reader.end_offsets(places)).items():
                first = max(begins[place], done[place] or 0)
                if first > end:
                    raise RuntimeError(f"{place.topic} ends at {end}, before its committed offset {first}")
                count += end - first
            return count
        finally:
            await stopped(reader)

    async def close(self) -> None:
        """Leave the groups and disconnect."""
        readers = [*self._readers.values(), *([] if self._ends is None else [self._ends])]
        await asyncio.gather(*map(stopped, readers), *(each.ended() for each in self._takers.values()))
        if self._producer is not None and not await ended(self._producer.stop()):
            await ended(self._producer.client.close())
        if self._client is not None:
            await ended(self._client.close())

    async def _partitions(self, topic: str) -> list[int]:
        """Return the numbers of a topic's partitions, also of those without a leader. Raises NotDone if unknown."""
        if not (found := self._client.cluster.partitions_for_topic(topic)):
            await asyncio.wait({self._client.force_metadata_update()}, timeout=METADATA_SECONDS)
            found = self._client.cluster.partitions_for_topic(topic)
        if not found:
            raise NotDone(f"this client can't learn of the topic {topic}")
        return sorted(found)

    async def _leader(self, topic: str, partition: int) -> int:
        """Return the number of a partition's leader, with a connection to it. Raises NotDone if there is none."""
        from aiokafka.structs import TopicPartition

        await self._partitions(topic)
        place, leader = TopicPartition(topic, partition), None
        for refreshed in (False, True):
            if refreshed:
                await asyncio.wait({self._client.force_metadata_update()}, timeout=METADATA_SECONDS)
            leader = self._client.cluster.leader_for_partition(place)
            if leader not in (None, _NO_LEADER):
                break
        else:
            raise NotDone(f"nobody leads {topic} as far as this client knows")
        now = asyncio.get_running_loop().time
        if now() >= self._not_before.get(leader, 0.0):
            with contextlib.suppress(TimeoutError):
                if await asyncio.wait_for(self._client.ready(leader), READY_SECONDS):
                    return int(leader)
            self._not_before[leader] = now() + RECONNECT_SECONDS
        raise NotDone(f"no connection to broker {leader}, which leads {topic}")

    async def _produce(self, topic: str, partition: int, body: bytes) -> int:
        """Send a record to the partition's leader, in one Produce request unless the library repeats; return its offset
        in Kafka.

        Raises:
            NotDone: the request was not sent, or certainly rejected.
            Exception: anything else; the record may have been appended.
        """
        if self._options[TRANSACTIONAL]:
            return await self._in_transaction(topic, partition, body)
        if self._producer is not None:
            await self._partitions(topic)
            offset = (await self._producer.send_and_wait(topic, body, partition=partition)).offset
            if offset < 0:  # an idempotent producer's record that the broker already had
                raise RuntimeError("the record is stored; the broker did not tell its offset")
            return int(offset)
        from aiokafka.errors import NodeNotReadyError
        from aiokafka.protocol.produce import ProduceRequest
        from aiokafka.record.default_records import DefaultRecordBatchBuilder

        leader = await self._leader(topic, partition)
        batch = DefaultRecordBatchBuilder(magic=2, compression_type=0, is_transactional=0, producer_id=-1,
                                          producer_epoch=-1, base_sequence=-1, batch_size=len(body) + 1024)  # fmt: skip
        batch.append(0, timestamp=None, key=None, value=body, headers=[])
        request = ProduceRequest(transactional_id=None, required_acks=-1 if self._options["acks"] == "all" else 1,
                                 timeout=ANSWER_MILLISECONDS, topics=[(topic, [(partition, batch.build())])])
        try:
            response = await self._client.send(leader, request)
        except NodeNotReadyError as error:  # raised before anything is written
            raise NotDone(f"no connection to broker {leader}, which leads {topic}") from error
        ((_, ((_, code, offset, *_),)),) = response.topics
        if code in REJECTED:
            raise NotDone(REJECTED[code])
        if code:
            self._client.force_metadata_update()
            raise RuntimeError(f"the broker answered with code {code}")
        return int(offset)


    async def _in_transaction(self, topic: str, partition: int, body: bytes) -> int:
        """Send a record in a separate transaction, which may be one to abort; return its offset in Kafka.

        Raises:
            NotDone: the coordinator confirmed that the transaction is aborted.
            Exception: anything else; the transaction may have been committed.
        """
        await self._partitions(topic)
        self._transactions += 1
        share = int(self._options[ABORTS])
        aborted = self._transactions * share // 100 > (self._transactions - 1) * share // 100
        await self._producer.begin_transaction()
        try:
            record = await self._producer.send_and_wait(topic, body, partition=partition)
        except Exception as error:
            await self._producer.abort_transaction()
            raise NotDone(f"its transaction was aborted, since it could not be sent: {reason(error)}") from error
        if aborted:
            await self._producer.abort_transaction()
            raise NotDone("its transaction was to be aborted, and was")
        await self._producer.commit_transaction()
        return int(record.offset)


TRANSACTIONAL, ABORTS, ISOLATION = "transactional", "abort_percent", "isolation_level"
READ_UNCOMMITTED = "read_uncommitted"
SHARED_OPTIONS = (
    Option("acks", "all", "replicas that must have a record before it is confirmed", ("all", "1")),
    Option("replication_factor", 0, "replicas of each topic; 0: three, or as many as there are brokers"),
    Option("min_insync_replicas", 0, "min.insync.replicas; 0: two of three replicas, otherwise one"),
    Option("partitions", 0, "partitions of each queue; 0: one for each consumer"),
    Option("flush_messages", 0, "flush.messages; 0: the broker's default"),
    Option("unclean_leader_election", "default", "unclean.leader.election.enable", ("default", "true", "false")),
    Option("idempotence", "false", "enable.idempotence; true: the library also repeats requests", ("false", "true")),
    Option("repeats", False, "the library sends a message again after an error or a silence, as by default"),
)
"""Options of all libraries."""


class Kafka(ProtocolClient):
    """Kafka, and brokers that speak its protocol."""

    name = "kafka"
    summary = "Kafka: topics as logs, and as queues with consumer groups"
    port = BROKER_PORT
    tls_port = BROKER_PORT
    provides = frozenset({"queues", "logs"})
    distributions: ClassVar[tuple[str, ...]] = ("aiokafka",)
    options: ClassVar[tuple[Option, ...]] = (
        *SHARED_OPTIONS,
        Option(TRANSACTIONAL, False, "clients send each record of a log in a separate transaction"),
        Option(ABORTS, 20, "of a hundred transactions, those that clients abort"),
        Option(ISOLATION, "read_committed", "isolation.level of readers", ("read_committed", READ_UNCOMMITTED)),
    )
    guarantees = (
        Guarantee("duplicated", NOT_PROMISED, "Kafka's documentation, Message Delivery Semantics",
                  "a consumer that dies before it commits leaves its record to another: at least once"),
        Guarantee("order", NOT_PROMISED, "Kafka's documentation, Guarantees",
                  "records are ordered within a partition; a queue has several"),
        Guarantee("log-offsets:from-nowhere", NOT_PROMISED, "Kafka's documentation, isolation.level",
                  "readers of uncommitted records get those of aborted transactions",
                  mode={TRANSACTIONAL: True, ISOLATION: READ_UNCOMMITTED}),
    )  # fmt: skip
    """Loss is judged in every mode."""

    def features(self, options: Mapping[str, Any]) -> frozenset[str]:
        """Return the features: transactions are those of logs."""
        return frozenset({"logs"}) if options.get(TRANSACTIONAL) else self.provides

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise UsageError for settings that all libraries refuse."""
        for name, value in (("idempotence", "true"), (TRANSACTIONAL, True)):
            if options.get(name) == value and options.get("acks") == "1":
                raise UsageError(f"{name}=true needs acks=all: producers refuse any other value")

    def connection(self, setup: BrokerSetup) -> KafkaConnection:
        """Return a new connection."""
        return KafkaConnection(setup)

    async def prepare(self, setup: BrokerSetup) -> None:
        """Create the topics. A consumer group begins with the earliest record.

        Raises:
            BackendError: the brokers do not create them within ``PREPARE_SECONDS``; the text has the last reason.
        """
        try:
            await until_done(lambda: self._make(setup))
        except Exception as error:
            raise BackendError(f"kafka: the topics can't be created: {reason(error)}") from error

    async def _make(self, setup: BrokerSetup) -> None:
        """Create the topics that are missing; raise BackendError while a partition has no leader or lacks replicas."""
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
        counts = [(name, partitions if name in setup.demands.queues else 1) for name in names]
        wanted = [NewTopic(name, count, replicas, topic_configs=configs) for name, count in counts]
        if options.get("assigned"):  # the system's word that the brokers' numbers are 1 to N: each leads as many
            wanted = [NewTopic(name, -1, -1, {part: [(place + part + each) % nodes + 1 for each in range(replicas)]
                                              for part in range(count)}, configs)
                      for place, (name, count) in enumerate(counts)]  # fmt: skip
        async with _admin(setup) as admin:
            made = await admin.create_topics(wanted)
            for topic, code, *text in made.topic_errors:
                if code not in (0, _EXISTS):
                    raise BackendError(f"topic {topic}: code {code} {' '.join(map(str, text))}")
            found = await admin.describe_topics(list(names))
        if not all(part["leader"] >= 0 and len(part["isr"]) == len(part["replicas"])
                   for topic in found for part in topic["partitions"]):  # fmt: skip
            raise BackendError("a topic has no leader yet, or lacks replicas")

    async def leaders(self, setup: BrokerSetup) -> Mapping[str, str]:
        """Return the leader of each topic's first partition, as most brokers that answer tell it: one that is cut off
        from the others does not know its successor."""
        seen = await views(setup)
        found: dict[str, str] = {}
        for name in (*setup.demands.queues, *setup.demands.logs):
            told = Counter(_leading_node(setup, view, name) for view in seen.values())
            ((node, count),) = told.most_common(1)
            if node is not None and 2 * count > len(seen):
                found[name] = node
        return found

    async def move_leader(self, setup: BrokerSetup, name: str, node: str) -> None:
        """Make a node the preferred leader of a topic's first partition, and have the preferred leader elected.

        Raises:
            BackendError: the node has no replica, or the controller refuses. Exception: the node does not answer.
        """
        from stormproof.clients import kafka_election

        (place,) = [broker for broker in setup.brokers if broker.node == node]
        view = (await views(replace(setup, brokers=[place])))[node]
        heir = next((each.nodeId for each in view.brokers() if _node_of(setup, each) == node), _NO_LEADER)
        replicas = list(view._partitions[name][0].replicas) if name in view._partitions else []
        if heir not in replicas:
            raise BackendError(f"{node} has no replica of {name}")
        ordered = [heir, *(each for each in replicas if each != heir)]
        for request in (kafka_election.order(name, ordered), kafka_election.election(name)):
            answer = await _asked(setup, place.host, place.port, "", request)
            parts = [part for _, found, *_ in getattr(answer, "responses", None) or answer.results for part in found]
            for code, text, *_ in ((answer.error_code, ""), *(part[1:] for part in parts)):
                if code not in (0, kafka_election.ELECTION_NOT_NEEDED):
                    raise BackendError(f"kafka: code {code} {text or ''}".rstrip())

    async def advertised(self, setup: BrokerSetup) -> Mapping[str, tuple[str, int]]:
        """Return the brokers' advertised addresses, by their numbers."""
        view = next(iter((await views(setup)).values()))
        return {f"broker {each.nodeId}": (each.host, int(each.port)) for each in view.brokers()}

    async def clear(self, setup: BrokerSetup, names: Sequence[str]) -> Sequence[str]:
        """Delete the topics of these names."""
        async with _admin(setup) as admin:
            done = await admin.delete_topics(list(names))
        return [topic for topic, code, *_ in done.topic_error_codes if code not in (0, _MISSING)]


KAFKA = Kafka()


def repeats(options: Mapping[str, Any]) -> bool:
    """Return whether the library may send a message again."""
    return bool(options["repeats"]) or options["idempotence"] == "true"


def _leading_node(setup: BrokerSetup, view: Any, topic: str) -> str | None:
    """Return the node that leads a topic's first partition by one broker's metadata; None if nobody does."""
    from aiokafka.structs import TopicPartition

    leader = view.leader_for_partition(TopicPartition(topic, 0))
    broker = None if leader in (None, _NO_LEADER) else view.broker_metadata(leader)
    if broker is None:
        return None
    return _node_of(setup, broker)


def _node_of(setup: BrokerSetup, broker: Any) -> str | None:
    """Return the node of a broker in a cluster's metadata; None if it is none of the replicas."""
    place = setup.resolve(broker.host), broker.port
    return next((each.node for each in setup.brokers
                 if place in ((each.host, each.port), (each.node, each.port))), None)  # fmt: skip


async def views(setup: BrokerSetup) -> dict[str, Any]:
    """Return the cluster's metadata as each broker that answers tells it, by the brokers' nodes.

    Raises:
        BackendError: no broker answers; the text has the last reason.
    """
    from aiokafka.cluster import ClusterMetadata

    async def view(host: str, port: int) -> Any:
        told = ClusterMetadata()
        told.update_metadata(await _metadata(setup, host, port, ""))
        return told

    told = await asyncio.gather(*(view(each.host, each.port) for each in setup.brokers), return_exceptions=True)
    found = {broker.node: each for broker, each in zip(setup.brokers, told, strict=True)
             if not isinstance(each, BaseException)}  # fmt: skip
    if not found:
        raise BackendError("kafka: " + (reason(told[-1]) if told else "no broker is named"))
    return found


async def _metadata(setup: BrokerSetup, host: str, port: int, local: str) -> Any:
    """Return one broker's answer about the brokers and the load's topics."""
    from aiokafka.protocol.metadata import MetadataRequest

    request = MetadataRequest(_topics(setup), allow_auto_topic_creation=False)
    return await _asked(setup, host, port, local, request)


async def _asked(setup: BrokerSetup, host: str, port: int, local: str, request: Any) -> Any:
    """Return one broker's answer to a request, on a separate connection."""
    from aiokafka.conn import create_conn

    common = common_settings(setup, "", local)
    del common["bootstrap_servers"], common["retry_backoff_ms"]
    connection = await create_conn(host, port, **common, request_timeout_ms=2000)
    try:
        return await connection.send(request)
    finally:
        connection.close()


def _topics(setup: BrokerSetup) -> list[str]:
    return [*setup.demands.logs, *setup.demands.queues]


@contextlib.asynccontextmanager
async def _admin(setup: BrokerSetup) -> AsyncIterator[Any]:
    """Have an administrator's client."""
    from aiokafka.admin import AIOKafkaAdminClient

    servers = ",".join(f"{broker.host}:{broker.port}" for broker in setup.brokers)
    admin = AIOKafkaAdminClient(**common_settings(setup, servers, ""), request_timeout_ms=10_000)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()
