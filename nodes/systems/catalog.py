"""All systems by name. A new one is one folder next to the others and one line here."""

from __future__ import annotations

from typing import TypeGuard

from stormproof.clients import PROTOCOLS
from stormproof.contracts.system import System
from stormproof.registry import Entry, Registry


def _is_system(found: object) -> TypeGuard[System]:
    return isinstance(found, System)


SYSTEMS: Registry[System] = Registry(
    "system",
    _is_system,
    Entry("standalone", "one broker, no replication", "nodes.systems.reference.standalone.system:STANDALONE"),
    Entry("joram", "HA Joram: group view, master is first of the view, eager atomic multicast",
          "nodes.systems.reference.joram.system:JORAM"),
    Entry("icestorm", "HA IceStorm: invitation election, replicated topics and subscribers, events from any replica",
          "nodes.systems.reference.icestorm.system:ICESTORM"),
    Entry("qpid", "Qpid active-passive: hot standbys browse the primary's queues, a cluster manager promotes",
          "nodes.systems.reference.qpid.system:QPID"),
    Entry("fiorano", "FioranoMQ HA: two servers that act as one, and a lock on a third machine",
          "nodes.systems.reference.fiorano.system:FIORANO"),
    Entry("redis", "Redis: one server, or three with Sentinel; streams as queues", "nodes.systems.redis.system:REDIS"),
    Entry("mosquitto", "Mosquitto: one MQTT broker; persistent sessions as queues",
          "nodes.systems.mosquitto.system:MOSQUITTO"),
    Entry("rabbitmq", "RabbitMQ: classic, mirrored or quorum queues", "nodes.systems.rabbitmq.system:RABBITMQ"),
    Entry("activemq", "ActiveMQ Classic: one broker, or two that share a store",
          "nodes.systems.activemq.system:ACTIVEMQ"),
    Entry("artemis", "ActiveMQ Artemis: one broker, or a primary and a backup",
          "nodes.systems.artemis.system:ARTEMIS"),
    Entry("broker-j", "Qpid Broker-J: one broker, or a group that replicates by Berkeley DB JE",
          "nodes.systems.broker_j.system:BROKER_J"),
    Entry("joram-real", "OW2 JORAM: one server, several with store and forward, or the replicated one of 5.0.9",
          "nodes.systems.joram_real.system:JORAM_REAL"),
    Entry("kafka", "Kafka with KRaft: topics as logs, and as queues with consumer groups",
          "nodes.systems.kafka.system:KAFKA"),
    Entry("etcd", "etcd: one member or several; keys as registers, and its lock service",
          "nodes.systems.etcd.system:ETCD"),
    Entry("zeroc-icestorm", "ZeroC's IceStorm: one server, or a replicated group; topics of events",
          "nodes.systems.zeroc_icestorm.system:ZEROC_ICESTORM"),
    Entry("nats", "NATS JetStream: one server to five; streams as queues, and as logs",
          "nodes.systems.nats.system:NATS"),
    Entry("zookeeper", "ZooKeeper: one server or an ensemble; a queue, locks, nodes as registers",
          "nodes.systems.zookeeper.system:ZOOKEEPER"),
    *(Entry(f"any-{entry.name}", f"any broker in a Compose file, or that runs: {entry.summary}",
            f"nodes.systems.any_broker.system:{entry.name}") for entry in PROTOCOLS),
    Entry("any-commands", "any system in a Compose file, used by the commands of its test templates",
          "nodes.systems.any_broker.own_commands:SYSTEM"),
)  # fmt: skip
