"""Brokers of any kind, known by the protocol that they speak: one system a protocol client, called ``any-PROTOCOL``.

Nothing is installed or started here. A Compose project or a running cluster provides the machines, and the protocol
client (``stormproof.clients``) provides connections, preparation and, where the protocol tells, leaders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nodes.systems.any_broker.cluster import LEADER, AnyBrokerCluster
from stormproof.clients import PROTOCOLS
from stormproof.contracts.cluster import Cluster, Deployment
from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee, Such
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import ProtocolClient
from stormproof.contracts.system import System
from stormproof.contracts.topology import Helper, Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.node_logs import LogLine, parse_time
from stormproof.protocol_system import demand_of_protocol
from stormproof.test import SERVICES, Test

PREFIX = "any-"
COMMANDS = "commands"
"""The feature of systems whose machines may have commands of the user's, and the name of the system that has no other.
"""
HELPERS = "helper_services"
"""The option of the backend with the names of the machines that are not replicas, joined by commas."""
HOOKS = "hooks"
"""The option of the backend with the names of the commands that the Compose file declares, joined by commas."""
_WAIVED = Option("not_promised", "", "guarantees that this broker does not give, joined by commas")
_GUARANTEES = ("lost", "phantom", "duplicated", "depth", "mutual-exclusion", "lost-update", "fencing", "lock-lost",
               "register", "log-lost", "log-offsets", "log-reads", "divergence", "recovery")  # fmt: skip
"""The guarantees of the workloads that protocol clients can carry out, and that of every system."""
_DOCKER_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,6})\d*(Z|[+-]\d\d:\d\d) ?(.*)", re.DOTALL)


def _waived(name: str) -> Guarantee:
    return Guarantee(name, NOT_PROMISED, "settings", "declared by the user of this broker", such=Such(
        f"not_promised contains {name}", lambda options: name in str(options.get(_WAIVED.name, "")).split(",")))


class AnyBroker(System):
    """All brokers that speak one protocol."""

    no_attaching = ""
    leading_roles = (LEADER,)

    def __init__(self, protocol: ProtocolClient) -> None:
        self.protocol = protocol
        self.name = PREFIX + protocol.name
        self.options = (*protocol.options, _WAIVED)
        self.defaults = protocol.defaults
        self.provides = protocol.provides | {COMMANDS}
        self.guarantees = (*map(_waived, _GUARANTEES), *protocol.guarantees)
        self.distributions = protocol.distributions
        self.extra = protocol.extra

    def cluster(self, deployment: Deployment) -> Cluster:
        """Return the cluster that the backend's machines form."""
        return AnyBrokerCluster(self.protocol, deployment)

    def node_count(self, asked: int | None, demands: Demands, options: Mapping[str, Any]) -> int:
        """Return the number of replicas that the Compose file has."""
        named = str(options.get(SERVICES, ""))
        return super().node_count(len(named.split(",")) if named else asked, demands, options)

    def topology(self, test: Test, demands: Demands) -> Topology:
        """Return the replicas, and the project's other machines as helpers with their own names as roles."""
        others = [name for name in str(test.options.get(HELPERS, "")).split(",") if name]
        helpers = tuple(Helper(name, name, only_aimed=True) for name in others)
        return Topology(test.node_names, test.client_hosts, helpers)

    def check(self, test: Test, demands: Demands) -> None:
        """Raise UsageError if nothing provides the machines."""
        if not test.options.get("compose") and not test.options.get("attach"):
            raise UsageError(f"--system {self.name}: say where the broker is: --compose FILE --client "
                             f"{self.protocol.name}, or --attach HOST:PORT")
        for name in filter(None, str(test.options[_WAIVED.name]).split(",")):
            if name not in _GUARANTEES:
                raise UsageError(f"--set {_WAIVED.name}={name}: no such guarantee (known: {', '.join(_GUARANTEES)})")
        demand_of_protocol(self.protocol, test, demands)

    def clients_in_places(self, test: Test) -> bool:
        """Return whether the clients' library can't bind."""
        return not self.protocol.binds

    def leads_objects(self) -> bool:
        """Return whether the protocol tells which replica leads each object, one or another."""
        return type(self.protocol).leaders is not ProtocolClient.leaders and not self.protocol.one_leader

    def why_no_move(self, test: Test) -> str:
        """Return why the protocol can't move leaders, if so."""
        return self.protocol.why_no_move(test.options)

    def tells_leader(self, test: Test) -> bool:
        """Return whether the protocol, or the user's command, tells the one leader."""
        return self.protocol.one_leader or "leader" in str(test.options.get(HOOKS, "")).split(",")

    def why_no_clock(self, test: Test) -> str:
        """Return that the protocol does not tell a broker's time, if so: no fault of a clock could be proven."""
        if type(self.protocol).time_of is ProtocolClient.time_of:
            return f"{self.protocol.name} has no request for a broker's own time, which would prove it"
        return ""

    def parse_line(self, line: str) -> LogLine:
        """Return the time that Docker's engine gave a line, and the line."""
        match = _DOCKER_STAMP.fullmatch(line)
        moment = parse_time(f"{match[1]}{match[2]}".replace("Z", "+00:00")) if match else None
        return LogLine(moment.timestamp(), match[3]) if match and moment else LogLine(None, line)


def __getattr__(name: str) -> Any:
    """Return the system of a protocol: ``AMQP`` is that of the protocol ``amqp``."""
    if name.lower() in PROTOCOLS:
        return _systems.setdefault(name, AnyBroker(PROTOCOLS.load(name.lower())))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_systems: dict[str, AnyBroker] = {}
