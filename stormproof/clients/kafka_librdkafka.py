"""Kafka by librdkafka: the protocol client ``kafka`` with connections that are programs.

Only connections are librdkafka's: preparation, settings, leaders and the table of codes are those of
``stormproof.clients.kafka``. The library can't bind to an address, so each connection is a program in its client
place's network (``stormproof.clients.exec.in_program``).

There are no queues: the library's share consumer is a preview, and a share group drops a record after a number of
deliveries, which a group's own setting can't raise above the broker's limit (KIP-1240).

With ``idempotence=false`` nothing is sent twice, unless ``repeats`` lets the library do as it does by default.
``retries=0`` alone does not achieve that: after a code such as 6 NOT_LEADER_OR_FOLLOWER librdkafka sends a message
again without counting a retry. So ``retry.backoff.ms`` exceeds ``message.timeout.ms``. Outcomes are those of ``kafka``,
and in the library's terms (librdkafka's documentation, "Message reliability", and rdkafka.h, rd_kafka_purge):

* Certainly not done: ``produce`` refuses the message; the message was purged from the queue, and the library's counter
  of transmitted messages did not change.
* May have happened: _TRANSPORT, _MSG_TIMED_OUT, every other error of the library; every error where it repeats, since
  it may have sent the message more than once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from stormproof import blocking
from stormproof.clients.exec import in_program
from stormproof.clients.kafka import (
    ANSWER_MILLISECONDS,
    READY_SECONDS,
    REJECTED,
    SHARED_OPTIONS,
    Kafka,
    KafkaConnection,
    repeats,
)
from stormproof.clients.kafka_link import CONNECT_SECONDS, FETCH_MILLISECONDS, security_protocol
from stormproof.contracts.client import LogEntry, NotDone
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import BrokerSetup
from stormproof.errors import UsageError

BACKOFF_MILLISECONDS = 60_000
"""The time before the library would send a message again: beyond ``message.timeout.ms``, so never."""
METADATA_MILLISECONDS = 1000
"""The time between two requests for metadata: a new leader is known within the time limit of one operation."""
STATISTICS_MILLISECONDS = 100
"""The time between two reports of the library's counters."""
POLL_SECONDS = 0.05
"""The time that one wait for the library's events takes."""
NAME = "kafka-librdkafka"


class LibrdkafkaConnection:
    """One client's connection; its methods block."""

    def __init__(self, setup: BrokerSetup) -> None:
        self._setup, self._options = setup, LIBRDKAFKA.settings(setup)
        self._common: dict[str, Any] = {}
        self._producer: Any = None
        self._reader: Any = None
        self._at: tuple[str, int] | None = None
        self._answered = 0
        self._transmitted: list[int] = []

    def connect(self, host: str, port: int, local: str) -> None:
        """Ask a broker for the cluster's brokers."""
        from confluent_kafka import Producer

        self._common = _common_settings(self._setup, f"{host}:{port}")
        settings = {
            **self._common, "acks": self._options["acks"], "linger.ms": 0, "message.timeout.ms": ANSWER_MILLISECONDS,
            "request.timeout.ms": ANSWER_MILLISECONDS, "statistics.interval.ms": STATISTICS_MILLISECONDS,
            "stats_cb": self._count,
        }  # fmt: skip
        settings["enable.idempotence"] = self._options["idempotence"] == "true"
        if repeats(self._options):
            settings["socket.timeout.ms"] = self._options["socket_timeout_ms"]
        else:
            settings |= {"retries": 0, "retry.backoff.ms": BACKOFF_MILLISECONDS,
                         "retry.backoff.max.ms": BACKOFF_MILLISECONDS}  # fmt: skip
        self._producer = Producer(settings)
        self._producer.list_topics(timeout=CONNECT_SECONDS)

    def append(self, name: str, body: bytes) -> int:
        """Append to a log.

        Raises:
            NotDone: it was not sent, or certainly rejected.
            Exception: anything else; it may have been appended.
        """
        offset = self._produce(name, 0, body)
        if offset < 0:  # an idempotent producer's message that the broker already had
            raise RuntimeError("the message is stored; the broker did not tell its offset")
        return offset + 1

    def read(self, name: str, after: int, limit: int) -> Sequence[LogEntry]:
        """Fetch from the log's leader. It first asks for the end offset: a fetch alone does not tell an end from a
        leader that does not answer."""
        from confluent_kafka import Consumer, TopicPartition

        if self._reader is None:
            self._reader = Consumer({
                **self._common, "group.id": "stormproof", "enable.auto.commit": False, "auto.offset.reset": "error",
                "fetch.wait.max.ms": FETCH_MILLISECONDS})  # fmt: skip
        place = TopicPartition(name, 0, after)
        if self._at != (name, after):  # the library's own position is unknown until it has returned a record
            self._reader.assign([place])
        self._at = name, after
        _, end = self._reader.get_watermark_offsets(place, timeout=ANSWER_MILLISECONDS / 1000)
        if after >= end:
            return []
        self._at = None
        first = self._reader.poll(ANSWER_MILLISECONDS / 1000)
        if first is None:
            raise TimeoutError(f"the leader of {name} sends no records in time")
        found = [first, *self._reader.consume(limit - 1, 0)] if limit > 1 else [first]
        for each in found:
            if each.error() is not None:
                raise RuntimeError(each.error().str())
        self._at = name, found[-1].offset() + 1
        return [LogEntry(each.offset() + 1, each.value()) for each in found]

    def close(self) -> None:
        """Disconnect."""
        if self._reader is not None:
            self._reader.close()
        if self._producer is not None:
            self._producer.purge(blocking=False)
            self._producer.poll(0)

    def _produce(self, topic: str, partition: int, body: bytes) -> int:
        """Send a message to the partition's leader; return its offset in Kafka. Raises as ``append``."""
        from confluent_kafka import KafkaError, KafkaException

        reports: list[tuple[Any, Any]] = []
        try:
            self._producer.produce(topic, body, partition=partition,
                                   on_delivery=lambda error, message: reports.append((error, message)))  # fmt: skip
        except (BufferError, KafkaException) as refusal:
            raise NotDone(f"the library refused the message: {refusal}") from refusal
        once, waits_until = not repeats(self._options), time.monotonic() + READY_SECONDS
        while not reports:
            self._producer.poll(POLL_SECONDS)
            if once and time.monotonic() > waits_until:
                self._producer.purge(in_queue=True, in_flight=False, blocking=False)
                waits_until = float("inf")
        ((error, message),) = reports
        if error is None:
            self._answered += 1
            return int(message.offset())
        code = error.code()
        if once and code in REJECTED:
            self._answered += 1
            raise NotDone(REJECTED[code])
        if once and code == KafkaError._PURGE_QUEUE and not self._was_transmitted():
            raise NotDone(f"no connection to the leader of {topic}")
        raise RuntimeError(error.str())

    def _was_transmitted(self) -> bool:
        """Return whether the library has transmitted more messages than were answered, or does not tell."""
        self._transmitted.clear()
        until = time.monotonic() + 10 * STATISTICS_MILLISECONDS / 1000
        while len(self._transmitted) < 2:  # the first may be older than the last event
            if time.monotonic() > until:
                return True
            self._producer.poll(POLL_SECONDS)
        return self._transmitted[-1] != self._answered

    def _count(self, statistics: str) -> None:
        """Take the library's counters (librdkafka's STATISTICS.md, ``txmsgs``)."""
        topics = json.loads(statistics)["topics"].values()
        self._transmitted.append(sum(part["txmsgs"] for topic in topics for part in topic["partitions"].values()))


def _common_settings(setup: BrokerSetup, server: str) -> dict[str, Any]:
    """Return the settings of all of the library's clients.

    Raises:
        UsageError: the broker's certificate has another name than its host.
    """
    access = setup.access
    found: dict[str, Any] = {
        "bootstrap.servers": server, "client.id": "stormproof", "security.protocol": security_protocol(access),
        "socket.timeout.ms": ANSWER_MILLISECONDS, "socket.connection.setup.timeout.ms": round(CONNECT_SECONDS * 1000),
        "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms":
        METADATA_MILLISECONDS, "allow.auto.create.topics": False, "log_level": 3,
    }  # fmt: skip
    if access.credentials.login:
        found |= {"sasl.mechanism": access.sasl or "PLAIN", "sasl.username": access.credentials.login,
                  "sasl.password": access.credentials.passcode}  # fmt: skip
    if access.tls:
        if access.tls.name:
            raise UsageError(f"{NAME}: librdkafka compares a broker's certificate with its host name only; leave out "
                             "the tls name, or use the client kafka")  # fmt: skip
        files = {"ssl.ca.location": access.tls.ca, "ssl.certificate.location": access.tls.cert,
                 "ssl.key.location": access.tls.key}  # fmt: skip
        found |= {name: path for name, path in files.items() if path}
    return found


class Librdkafka(Kafka):
    """Kafka by librdkafka."""

    name = NAME
    summary = "Kafka by librdkafka: topics as logs"
    provides = frozenset({"logs"})
    binds = False
    distributions = (*Kafka.distributions, "confluent-kafka")
    options = (
        *SHARED_OPTIONS,
        Option("socket_timeout_ms", 1000, "socket.timeout.ms (in Java request.timeout.ms): silence after which the "
               "library repeats; its default is 60000 (30000)", least=10),
    )  # fmt: skip

    def connection(self, setup: BrokerSetup) -> Any:
        """Return a new connection in this process, for the program that is in the client place."""
        return blocking.connection(LibrdkafkaConnection(setup))

    def own_connection(self, setup: BrokerSetup) -> Any:
        """Return a connection of the client ``kafka``."""
        return KafkaConnection(setup)


LIBRDKAFKA = Librdkafka()
KAFKA_LIBRDKAFKA = in_program(NAME, LIBRDKAFKA)
