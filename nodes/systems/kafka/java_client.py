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
from stormproof.clients.kafka_librdkafka import LIBRDKAFKA, check_idempotence
from stormproof.clients.program import LOGS, Hello
from stormproof.contracts.protocol_client import BrokerSetup
from stormproof.errors import BackendError, UsageError

SOURCE = Path(__file__).with_name("Client.java")
JARS = "jars"
"""The entry of a setup's options with the folder of Kafka's jars."""


def command(jars: str) -> Sequence[str]:
    """Return the program's command; compile it if need be."""
    return java.command("kafka", SOURCE, jars, "64m")


class JavaKafka(Kafka):
    """Kafka by its own library."""

    name = "kafka-java"
    summary = "Kafka by its own library, in Java: topics as logs"
    provides = frozenset({LOGS})
    binds = False
    options = LIBRDKAFKA.options

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise UsageError if Java is missing, or if the library refuses the settings."""
        check_idempotence(options)
        if trouble := java.missing_compiler():
            raise UsageError(f"library=java: {trouble}")

    def connection(self, setup: BrokerSetup) -> Any:
        """Return a new connection, which starts the program. Raises BackendError for a broker with access control."""
        if setup.access.credentials.login or setup.access.tls:
            raise BackendError("library=java has neither credentials nor TLS here; library=aiokafka has")
        argv = command(str(setup.options[JARS]))
        return program_connection(argv, replace(setup, options=self.settings(setup)), Hello(self.provides))

    def own_connection(self, setup: BrokerSetup) -> Any:
        """Return a connection of the client ``kafka``."""
        return KafkaConnection(setup)


KAFKA_JAVA = JavaKafka()
