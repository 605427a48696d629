"""Kafka by the library of the Kafka project itself: a program of ours in Java (``Client.java``), with the jars of the
Kafka that is tested.

Preparation of topics, leaders and the table of codes are those of ``stormproof.clients.kafka``. Outcomes, in the
library's terms:

* Certainly not done: the library counted no transmitted record; with ``idempotence=false`` and without ``repeats``, the
  exceptions of the codes that ``kafka`` lists as such.
* May have happened: everything else, and every error where the library sends again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stormproof.clients import java
from stormproof.clients.exec import program_connection
from stormproof.clients.kafka import Kafka, KafkaConnection
from stormproof.clients.kafka_librdkafka import LIBRDKAFKA
from stormproof.clients.preparing import until_done
from stormproof.clients.program import LOGS, QUEUES, Hello
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import BrokerSetup
from stormproof.errors import BackendError, UsageError
from stormproof.text import reason

SOURCE = Path(__file__).with_name("Client.java")
EXPIRY_SECONDS = 2.0
"""The time that a broker may take to offer a record whose lock has expired."""
MOST = {"share_record_lock_duration_ms": 60_000, "share_delivery_count_limit": 25}
"""The largest values that Kafka accepts for a group."""
DROPPED = "#dropped"
"""What the program adds to a queue's name for the records that the queue's share group has dropped at its limit. Kafka
keeps them in the topic, and tells in ``__share_group_state`` which they are."""
JARS = "jars"
"""The entry of a setup's options with the folder of Kafka's jars."""


def command(jars: str) -> Sequence[str]:
    """Return the program's command; compile it if need be."""
    return java.command("kafka", SOURCE, jars, "64m", 17)


class JavaKafka(Kafka):
    """Kafka by its own library."""

    name = "kafka-java"
    summary = "Kafka by its own library, in Java: topics as logs, and as queues with share groups"
    provides = frozenset({LOGS, QUEUES})
    binds = False
    options = (
        *LIBRDKAFKA.options,
        Option("share_record_lock_duration_ms", 5000, "share.record.lock.duration.ms: time after which a share group "
               "delivers a record again that nobody acknowledged; by default 30000, at most 60000", least=1000),
        Option("share_delivery_count_limit", 25, "share.delivery.count.limit: deliveries after which a share group "
               "drops a record; by default 5, at most 25", least=2),
    )  # fmt: skip

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise UsageError if Java is missing, or if the library refuses the settings."""
        super().check(options)
        for name, most in MOST.items():
            if int(options.get(name, 0)) > most:
                raise UsageError(f"--set {name}={options[name]}: Kafka's largest value is {most}")
        if trouble := java.missing_compiler():
            raise UsageError(f"library=java: {trouble}")

    def connection(self, setup: BrokerSetup) -> Any:
        """Return a new connection, which starts the program. Raises BackendError for a broker with access control."""
        if setup.access.credentials.login or setup.access.tls:
            raise BackendError("library=java has neither credentials nor TLS here; library=aiokafka has")
        argv = command(str(setup.options[JARS]))
        options = self.settings(setup)
        hello = Hello(self.provides, prefetch=1,
                      redelivers_within=options["share_record_lock_duration_ms"] / 1000 + EXPIRY_SECONDS)  # fmt: skip
        connection = program_connection(argv, replace(setup, options=options), hello)
        connection.dead_letter_queue = "{queue}" + DROPPED
        connection.delivery_limit = f"share.delivery.count.limit={options['share_delivery_count_limit']}"
        return connection

    async def prepare(self, setup: BrokerSetup) -> None:
        """Create the topics, then the share groups. Raises BackendError if that fails for ``PREPARE_SECONDS``."""
        await super().prepare(setup)
        try:
            await until_done(lambda: self._make_groups(setup))
        except Exception as error:
            raise BackendError(f"kafka: the share groups can't be created: {reason(error)}") from error

    async def _make_groups(self, setup: BrokerSetup) -> None:
        if setup.demands.queues:
            connection = await self.admitted(setup)
            try:
                await connection.prepare()
            finally:
                await connection.close()

    def own_connection(self, setup: BrokerSetup) -> Any:
        """Return a connection of the client ``kafka``."""
        return KafkaConnection(setup)


KAFKA_JAVA = JavaKafka()
