"""A base for systems whose clients speak a standard protocol: a file then needs only the command of the broker."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from stormproof.clients import PROTOCOLS
from stormproof.contracts.client import NotDone
from stormproof.contracts.cluster import NodeStatus
from stormproof.contracts.protocol_client import BrokerSetup, ProtocolClient
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.shell_system import Machine, ShellCluster, ShellSystem, status_by
from stormproof.test import Test


class ProtocolSystem(ShellSystem):
    """A system whose clients are those of the protocol ``client`` (``stormproof.clients``).

    The class's own ``port``, ``provides``, ``distributions`` and ``defaults`` come before the protocol's. The
    protocol's options and guarantees follow the class's own.
    """

    client: str = ""
    """The name of the protocol: ``amqp``, for example."""
    provides = frozenset()

    def __init__(self) -> None:
        """Take what the protocol declares.

        Raises:
            UsageError: there is no such protocol.
        """
        self.protocol: ProtocolClient = PROTOCOLS.load(self.client)
        own = {option.name for option in self.options}
        self.options = (*self.options, *(option for option in self.protocol.options if option.name not in own))
        self.defaults = {**self.protocol.defaults, **self.defaults}
        self.guarantees = (*self.guarantees, *self.protocol.guarantees)
        self.port = self.port or self.protocol.port
        self.provides = self.provides or self.protocol.provides
        self.distributions = self.distributions or self.protocol.distributions
        self.extra = self.protocol.extra

    def protocol_of(self, options: Mapping[str, Any]) -> ProtocolClient:
        """Return the protocol client of a test. Override it where an option chooses among several."""
        return self.protocol

    def check(self, test: Test, demands: Demands) -> None:
        """Raise UsageError if a Python package of the clients is not installed, or if they can't do what the test asks
        for."""
        super().check(test, demands)
        protocol = self.protocol_of(test.options)
        for name in protocol.distributions:
            try:
                importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                raise UsageError(f"{self.name}: its clients need the Python package {name}: pip install "
                                 f"'stormproof[{protocol.extra}]'") from None
        demand_of_protocol(protocol, test, demands)

    def setup(self, cluster: ShellCluster) -> BrokerSetup:
        """Return the cluster as the protocol client sees it. Override it to set access (TLS, a virtual host)."""
        given: Mapping[str, Any] = cluster.test.options
        names = (option.name for option in self.protocol_of(given).options)
        return cluster.broker_setup(**{name: given[name] for name in names if name in given})

    def clients_in_places(self, test: Test) -> bool:
        """Return whether the clients' library can't bind."""
        return not self.protocol_of(test.options).binds

    def connection(self, cluster: ShellCluster) -> Any:
        """Return a new connection of the protocol."""
        return self.protocol_of(cluster.test.options).connection(self.setup(cluster))

    async def status(self, machine: Machine) -> NodeStatus:
        """Return whether the replica lets a client in. One that answers and refuses clients is reachable, and does not
        serve.

        Raises:
            Exception: the replica does not answer.
        """
        try:
            return await self.attached_status(machine)
        except NotDone as error:
            return NodeStatus(machine.name, reachable=True, role="standby", detail={"error": str(error)})

    async def attached_status(self, machine: Machine) -> NodeStatus:
        """Return whether the replica accepts a client of the harness itself; raise what ``connect`` raises."""
        own = type(self).connection is ProtocolSystem.connection
        protocol = self.protocol_of(machine.cluster.test.options)
        connection = protocol.own_connection(self.setup(machine.cluster)) if own else self.connection(machine.cluster)
        return await status_by(connection, machine)

    async def prepare(self, cluster: ShellCluster) -> None:
        """Create the objects that the workload uses, by the protocol."""
        await self.protocol_of(cluster.test.options).prepare(self.setup(cluster))

    async def leaders(self, cluster: ShellCluster) -> Mapping[str, str]:
        """Return the leader of each object, if the protocol tells it."""
        return await self.protocol.leaders(self.setup(cluster))

    async def move_leader(self, cluster: ShellCluster, name: str, node: str) -> None:
        """Ask by the protocol to hand over the leadership of an object."""
        await self.protocol.move_leader(self.setup(cluster), name, node)

    def why_no_move(self, test: Test) -> str:
        """Return that neither the protocol nor a hook of the class moves leaders, if so."""
        own = type(self).move_leader is not ProtocolSystem.move_leader
        return "" if own else self.protocol.why_no_move(test.options)

    def leads_objects(self) -> bool:
        """Return whether the protocol, or a hook of the class, tells leaders."""
        kind, protocol = type(self), type(self.protocol)
        own = kind.leaders is not ProtocolSystem.leaders or kind.leaders_seen is not ShellSystem.leaders_seen
        return own or protocol.leaders is not ProtocolClient.leaders

    async def clear(self, cluster: ShellCluster) -> str:
        """Delete the objects that clients have created, by the protocol."""
        left = await self.protocol.clear(self.setup(cluster), sorted(cluster.own_names))
        return f"left there, since its clients can't delete them: {', '.join(left)}" if left else ""


def demand_of_protocol(protocol: ProtocolClient, test: Test, demands: Demands) -> None:
    """Raise UsageError if clients of the protocol can't do what the test asks for."""
    protocol.check(test.options)
    features = protocol.features(test.options)
    for feature in ("queues", "logs", "registers", "locks"):
        if getattr(demands, feature) and feature not in features:
            raise UsageError(f"--workload {test.workload} needs {feature}, which the client does not provide; it "
                             f"provides {', '.join(sorted(features))}")  # fmt: skip
