"""Clients of standard protocols, for brokers of any kind: one module, and one connection class, a protocol.

``PROTOCOLS.load("amqp")`` is the protocol's ``ProtocolClient``. Which errors mean *certainly not done* is stated in
each module, with the sentence of the protocol's specification.
"""

from __future__ import annotations

from typing import TypeGuard

from stormproof.contracts.protocol_client import ProtocolClient
from stormproof.registry import Entry, Registry


def _is_protocol(found: object) -> TypeGuard[ProtocolClient]:
    return isinstance(found, ProtocolClient)


PROTOCOLS: Registry[ProtocolClient] = Registry(
    "client",
    _is_protocol,
    Entry("amqp", "AMQP 0-9-1: queues", "stormproof.clients.amqp:AMQP"),
    Entry("amqp1", "AMQP 1.0: queues", "stormproof.clients.amqp1:AMQP1"),
    Entry("stomp", "STOMP 1.2: queues", "stormproof.clients.stomp:STOMP"),
    Entry("http", "HTTP: requests that a mapping declares", "stormproof.clients.http:HTTP"),
    Entry("mqtt", "MQTT 3.1.1 and 5: persistent sessions as queues", "stormproof.clients.mqtt:MQTT"),
    Entry("kafka", "Kafka: topics as logs, and as queues with consumer groups", "stormproof.clients.kafka:KAFKA"),
    Entry("kafka-librdkafka", "Kafka by librdkafka: topics as logs",
          "stormproof.clients.kafka_librdkafka:KAFKA_LIBRDKAFKA"),
    Entry("nats", "NATS JetStream: streams as queues and logs", "stormproof.clients.nats:NATS"),
    Entry("redis", "Redis: streams as queues and logs, values as registers", "stormproof.clients.redis:REDIS"),
    Entry("exec", "a program in any language that speaks JSON lines (docs/clients.md)",
          "stormproof.clients.exec:EXEC"),
)
