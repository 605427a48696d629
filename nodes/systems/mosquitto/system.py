"""Mosquitto: one MQTT broker with its sessions in memory, written to disk from time to time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from nodes.systems.clients import demand_client
from nodes.systems.mosquitto.guarantees import GUARANTEES
from stormproof.clients.mqtt import BROKER_PORT, MAX_INFLIGHT, MqttConnection
from stormproof.clients.mqtt import MQTT as PROTOCOL
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import BrokerSetup
from stormproof.contracts.system import RoleChange
from stormproof.contracts.workload_requirements import Demands
from stormproof.node_logs import LogLine
from stormproof.shell_system import BINARY, Machine, ShellCluster, ShellSystem
from stormproof.test import Test

_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d): (.*)")


class Mosquitto(ShellSystem):
    """Mosquitto from Debian's packages; a queue is a persistent session."""

    name = "mosquitto"
    packages = ("mosquitto",)
    distributions = PROTOCOL.distributions
    defaults = PROTOCOL.defaults
    port = BROKER_PORT
    max_nodes = 1
    guarantees = GUARANTEES
    options = (
        BINARY,
        Option("persistence", True, "whether sessions are written to disk at all"),
        Option("autosave_interval", 1800, "seconds between two writes of all sessions (changes: autosave_on_changes)"),
        Option("autosave_on_changes", False, "whether autosave_interval counts changes instead of seconds"),
        *(option for option in PROTOCOL.options if option.name != "inflight"),
    )

    def stores_nothing(self, machine: Machine) -> str:
        """Return why nothing is on disk: persistence is off, or the first interval is longer than the test."""
        if not machine.option("persistence"):
            return "persistence=False"
        interval = float(str(machine.option("autosave_interval")))
        late = not machine.option("autosave_on_changes") and interval > machine.cluster.test.time_limit
        return f"autosave_interval={interval:g}: nothing is written before that" if late else ""

    def command(self, machine: Machine, program: str) -> Sequence[str]:
        """Return the command of the broker with its configuration file."""
        return [machine.binary("mosquitto"), "-c", f"{machine.folder}/mosquitto.conf"]

    def files(self, machine: Machine) -> Mapping[str, str]:
        """Return the configuration; ``user root``, since the folder belongs to the user that runs the test."""
        def word(value: object) -> str:
            return str(value).lower()

        return {"mosquitto.conf": "\n".join([
            f"listener {self.port} {machine.address}", "allow_anonymous true", "user root",
            f"persistence {word(machine.option('persistence'))}", f"persistence_location {machine.data}/",
            f"autosave_interval {machine.option('autosave_interval')}",
            f"autosave_on_changes {word(machine.option('autosave_on_changes'))}",
            "max_queued_messages 0", f"max_inflight_messages {MAX_INFLIGHT}", "log_dest stdout", "log_timestamp true",
            "log_timestamp_format %Y-%m-%dT%H:%M:%S", "",
        ])}  # fmt: skip

    async def prepare(self, cluster: ShellCluster) -> None:
        """Create the queues' sessions, by connecting as each once."""
        await PROTOCOL.prepare(self._setup(cluster))

    def connection(self, cluster: ShellCluster) -> MqttConnection:
        """Create a client that publishes, and takes as a queue's session."""
        return PROTOCOL.connection(self._setup(cluster))

    async def clear(self, cluster: ShellCluster) -> str:
        """End the queues' sessions."""
        await PROTOCOL.clear(self._setup(cluster), cluster.demands.queues)
        return ""

    def _setup(self, cluster: ShellCluster) -> BrokerSetup:
        return cluster.broker_setup(**cluster.test.options)

    def check(self, test: Test, demands: Demands) -> None:
        """Raise UsageError if the clients' package is missing, or if consumers would share a session."""
        demand_client(self.name, "paho")
        PROTOCOL.check(test.options)

    def parse_line(self, line: str) -> LogLine:
        """Parse a line ``2026-11-23T16:00:00: text``, by the machine's clock, which is in UTC."""
        match = _LINE.fullmatch(line)
        if match is None:
            return LogLine(None, line)
        return LogLine(datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp(), match[2])

    def role_change(self, text: str) -> RoleChange | None:
        """Parse a role change: logged when the broker is up."""
        return RoleChange("up", serving=True, leads=True) if text.endswith(" running") else None


MOSQUITTO = Mosquitto()
