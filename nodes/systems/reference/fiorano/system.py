"""FioranoMQ HA: its settings, its guarantees, and the events in its logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nodes.reference.api import Config
from nodes.reference.designs.fiorano.configuration import LIMITATIONS, MODES, SHARED_MODE, FioranoOptions
from nodes.reference.designs.fiorano.repository import STAMPS
from nodes.reference.designs.fiorano.states import PASSIVE, SERVING
from nodes.reference.replication.transfer import CHUNK_BYTES
from nodes.reference.storage.config import POSTGRES, SQLITE, STORES, StorageConfig
from nodes.reference.storage.postmaster import CAPABILITIES
from nodes.systems.reference.feature_coverage import of_surface
from nodes.systems.reference.fiorano.admin import COMMANDS
from nodes.systems.reference.fiorano.cluster import CHANNEL, DATABASE, FioranoCluster
from nodes.systems.reference.fiorano.guarantees import GUARANTEES
from nodes.systems.reference.fiorano.modes import MODES as COMPARED
from nodes.systems.reference.fiorano.modes import TRIAL
from nodes.systems.reference.fiorano.rules.states import disk_writes, grant, role_change, state_transfer
from nodes.systems.reference.fiorano.rules.table import CLIENT_ORDER, PRIMARY_FIRST, RULES
from nodes.systems.reference.system import (
    ANSWER_PAGE,
    BUG,
    FLOW,
    LIMITS,
    MEMORY,
    REMEMBERED,
    LogEvents,
    ReferenceSystem,
)
from stormproof.contracts.cluster import Cluster, Deployment
from stormproof.contracts.option import Option
from stormproof.contracts.system import GATEWAY
from stormproof.contracts.topology import Helper, Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.test import Test

_LAYER = {"Primary": True, "Lockfile": "lockfile", "BackupHAIPAddress": "peer", "BackupHAPort": 1,
          "GatewayServerIPAddress": "gateway", "GatewayServerPort": 1}  # fmt: skip


class FioranoSystem(ReferenceSystem):
    """Two servers, a private network between them, and the gateway."""

    def topology(self, test: Test, demands: Demands) -> Topology:
        """Lay out the machines: gateway and shared database are on the clients' network, the HA channel on a private
        one.
        """
        helpers = [Helper(GATEWAY, GATEWAY)]
        if test.options["mode"] == SHARED_MODE:
            helpers.append(Helper(DATABASE, DATABASE))
        topology = Topology(test.node_names, test.client_hosts, tuple(helpers), networks=(CHANNEL,))
        if test.options["mode"] == SHARED_MODE and test.options["store"] == POSTGRES:
            return replace(topology, packages=("postgresql",), capabilities=CAPABILITIES)
        return topology

    def helper_roles(self, test: Test) -> frozenset[str]:
        """Return the helper roles: the gateway unless the test has no lock, and the shared database in mode shared."""
        roles = {GATEWAY: test.options["lock"], DATABASE: test.options["mode"] == SHARED_MODE}
        return frozenset(role for role, needed in roles.items() if needed)

    def private_networks(self, test: Test) -> tuple[str, ...]:
        """Return the HA channel's network."""
        return (CHANNEL,)

    def only_real(self, options: Mapping[str, Any]) -> str:
        """Return the setting that needs a real cluster: a third-party database server."""
        return f"store={POSTGRES}" if options["store"] == POSTGRES else ""

    def cluster(self, deployment: Deployment) -> Cluster:
        """Create the pair with its gateway."""
        return FioranoCluster(self.layout(deployment.test, deployment.demands), deployment)


def _read_options(config: Config) -> FioranoOptions:
    """Read the options as a server would from a test's settings; the cluster fills in the HA layer."""
    node, other = config.peers
    peers = {node: ("self", 1), other: ("peer", 1)}
    options = {**config.options, **_LAYER, "database": ["database", 1]}
    return FioranoOptions.from_config(replace(config, peers=peers, options=options))


FIORANO = FioranoSystem(
    "fiorano",
    replicated=True,
    leading_roles=SERVING,
    joined_roles=(PASSIVE,),
    min_nodes=2,
    max_nodes=2,
    provides=frozenset({"queues", "topics", "transactions", "security", "registers"}),
    guarantees=(*GUARANTEES, *of_surface(GUARANTEES)),
    modes=COMPARED,
    trial=TRIAL,
    read_options=_read_options,
    events=LogEvents(role_change, state_transfer, disk_writes, grant=grant),
    commands=COMMANDS,
    rules=RULES,
    defaults={CLIENT_ORDER: PRIMARY_FIRST},
    options=(
        Option("mode", MODES[0], "two databases, of which one is replicated to the other, or a shared one", MODES),
        Option("lease", 1.0, "seconds for which the lock is held after its holder's last request"),
        Option("heartbeat", 0.25,
               "seconds between signs of life on the HA channel, which is broken when four are missing"),
        Option("start_alone", False, "whether a server that has not met its peer since its start may serve"),
        Option("lock", True, "whether there is a lock; false: as before the locking mechanism"),
        Option("fencing", True, "whether the lock has epochs and is checked before each confirmation"),
        Option("stamps", STAMPS[0], "the stamp that tells the newer of two repositories", STAMPS),
        Option("database_timeout", 1.0, "seconds without an answer after which the shared database is out of reach"),
        Option("page", CHUNK_BYTES, "approximate bytes of each page in which a standby receives the whole repository"),
        Option("page_window", FioranoOptions.page_window, "number of these pages that may be in flight"),
        Option("as_documented", "", "limitations that are left as the document leaves them, joined by commas: "
               f"{', '.join(LIMITATIONS)}"),
        Option("store", SQLITE, "database of the service behind mode shared; postgres: not in simulation",
               STORES),
        Option("database_page", StorageConfig.page_rows, "maximum number of rows of the shared database in one read"),
        Option("idle_timeout", 5.0, "seconds after which a detached reliable connection is closed"),
        *REMEMBERED,
        *FLOW,
        *MEMORY,
        *LIMITS,
        ANSWER_PAGE,
        BUG,
    ),
)  # fmt: skip
