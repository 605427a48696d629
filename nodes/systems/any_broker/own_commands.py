"""A system that no client of ours speaks to: the commands of its test templates use it."""

from __future__ import annotations

from typing import Any, ClassVar

from nodes.systems.any_broker.cluster import HEALTHY, AnyBrokerCluster
from nodes.systems.any_broker.system import COMMANDS, AnyBroker
from stormproof.contracts.backend import RUNNING
from stormproof.contracts.cluster import Cluster, Deployment, NodeStatus
from stormproof.contracts.protocol_client import BrokerSetup, ProtocolClient
from stormproof.contracts.system import System
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.test import Test


class NoProtocol(ProtocolClient):
    """A stand-in for a protocol, without connections."""

    name = COMMANDS
    summary = "no client: the system is used by the commands of its test templates"
    port = 0
    provides: ClassVar[frozenset[str]] = frozenset({COMMANDS})

    def connection(self, setup: BrokerSetup) -> Any:
        """Refuse: there is no protocol."""
        raise UsageError("say which protocol clients speak: --client NAME")


class CommandedCluster(AnyBrokerCluster):
    """The services of a project whose protocol is unknown."""

    async def _served(self, node: str) -> NodeStatus:
        """Return whether the service is healthy: by its health check, or if it runs."""
        if self._project is not None and (health := await self._project.health(node)):
            return NodeStatus(node, reachable=health == HEALTHY, role=health, serving=health == HEALTHY,
                              detail={"error": f"its health check says {health}"})
        state = (await self.backend.process(node, self.programs(node)[0])).state
        return NodeStatus(node, reachable=state == RUNNING, role="up" if state == RUNNING else state,
                          serving=state == RUNNING, detail={"error": f"its container is {state}"})

    def queue_connection(self) -> Any:
        """Return None: only commands use the system."""
        return None


class OwnCommands(AnyBroker):
    """Systems of any kind that are used by commands."""

    def cluster(self, deployment: Deployment) -> Cluster:
        """Return the cluster that the project's services form."""
        return CommandedCluster(self.protocol, deployment)

    def check(self, test: Test, demands: Demands) -> None:
        """Raise UsageError if nothing provides the machines."""
        if not test.options.get("compose"):
            raise UsageError(f"--system {self.name}: say where the system is: --compose FILE --test-commands SERVICE")


SYSTEM: System = OwnCommands(NoProtocol())
