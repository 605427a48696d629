"""Qpid active-passive: its settings, its guarantees, and the events in its logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nodes.reference.api import Config
from nodes.reference.designs.qpid.manager.options import ManagerOptions
from nodes.reference.designs.qpid.options import (
    BUILTIN,
    BY_HAND,
    COLD,
    COUNTED,
    FENCING,
    LEVELS,
    MANAGERS,
    STANDBYS,
    STORE_ERRORS,
    STORES,
    QpidOptions,
)
from nodes.reference.designs.qpid.states import PRIMARY, READY
from nodes.systems.reference.feature_coverage import of_surface
from nodes.systems.reference.qpid.addresses import AUTO, BROKERS, LIST, NAME, NETWORKS, OWN, WAYS
from nodes.systems.reference.qpid.admin import COMMANDS
from nodes.systems.reference.qpid.copying import PERSONS
from nodes.systems.reference.qpid.guarantees import COUNTS_ANEW, GUARANTEES
from nodes.systems.reference.qpid.managers import OUTSIDE
from nodes.systems.reference.qpid.modes import MODES, TRIAL
from nodes.systems.reference.qpid.programs import STORE, disaster_nodes, program_roles
from nodes.systems.reference.qpid.rules.states import role_change, state_transfer
from nodes.systems.reference.qpid.rules.table import RULES
from nodes.systems.reference.system import ANSWER_PAGE, BUG, FLOW, MEMORY, LogEvents, ReferenceSystem
from stormproof.contracts.cluster import Cluster, Deployment
from stormproof.contracts.option import Option
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.test import Test


class QpidSystem(ReferenceSystem):
    """One primary and its standbys, kept by managers."""

    def check(self, test: Test, demands: Demands) -> None:
        """Check the settings: raises UsageError for those that brokers refuse, and for a virtual address that cannot
        move or be found.
        """
        super().check(test, demands)
        if test.options.get("transactions") == "xa":
            raise UsageError("--set transactions=xa: prepared transactions are not replicated here, and the brokers "
                             "refuse them; use transactions=plain")
        address, way = test.options["virtual_address"], test.options["clients_find"]
        if way != LIST and not address:
            raise UsageError(f"--set clients_find={way} needs a virtual address: --set virtual_address={AUTO}")
        if address and test.options["manager"] == BY_HAND:
            raise UsageError("--set virtual_address: needs managers, which move it")
        away, latency = test.options["dr_nodes"], test.options["dr_latency"]
        if not 0 <= away <= max(0, len(test.node_names) - 2):
            raise UsageError(f"--set dr_nodes={away}: of {len(test.node_names)} nodes, two at least must not be for "
                             "disaster recovery")
        if not 0 <= latency <= 10:
            raise UsageError(f"--set dr_latency={latency}: is not a number of seconds from 0 to 10")
        if away and (test.options["manager"] in OUTSIDE or test.options["standby"] == COLD):
            raise UsageError("--set dr_nodes: hot standbys under managers of ours, or without any, have such nodes")
        if test.options["broker_network"] == OWN and test.options["manager"] in FENCING:
            raise UsageError(f"--set broker_network={OWN}: manager={test.options['manager']} fences no broker that is "
                             "cut off from that network only")
        if test.options["standby"] == COLD and test.options["manager"] != BUILTIN:
            raise UsageError(f"--set standby={COLD}: only managers of ours start another broker; use manager={BUILTIN}")

    def shuts_down(self, test: Test) -> bool:
        """Tell whether an orderly shutdown is possible: it needs backups, which have everything before all brokers
        stop.
        """
        return bool(test.options["standby"] != COLD)

    def gives_up_replicas(self, test: Test) -> bool:
        """Tell whether a broker can be removed: this needs backups, and built-in managers or an administrator who
        promotes. Other managers may promote, or leave running, a broker that the broker URL no longer names."""
        return self.shuts_down(test) and test.options["manager"] in (BUILTIN, BY_HAND)

    def only_real(self, options: Mapping[str, Any]) -> str:
        """Return the setting that needs a real cluster: a third-party manager."""
        manager = options["manager"]
        return f"manager={manager}" if manager in OUTSIDE else ""

    def topology(self, test: Test, demands: Demands) -> Topology:
        """Lay out the brokers' machines, with their managers' requirements; a manager that moves an address announces
        it by raw packets."""
        topology = super().topology(test, demands)
        address, outside = test.options["virtual_address"], OUTSIDE.get(test.options["manager"])
        return replace(topology, networks=(BROKERS,) if test.options["broker_network"] == OWN else (),
                       packages=outside.packages if outside else topology.packages,
                       capabilities=outside.capabilities if outside else ("NET_RAW",) if address else (),
                       addresses=(NAME,) if address == AUTO else (),
                       shared=(STORE,) if test.options["standby"] == COLD else (),
                       far=tuple((node, test.options["dr_latency"]) for node in disaster_nodes(test)))

    def program_roles(self, test: Test) -> Mapping[str, str]:
        """Return the managers' roles, if there are any."""
        return program_roles(test.options)

    def cluster(self, deployment: Deployment) -> Cluster:
        """Create the brokers, with a manager next to each."""
        from nodes.systems.reference.qpid.cluster import QpidCluster

        outside = OUTSIDE.get(deployment.test.options["manager"])
        kind = QpidCluster if outside is None else outside.load()
        return kind(self.layout(deployment.test, deployment.demands), deployment)


def read_options(config: Config) -> None:
    """Check the settings; raises ConfigError when brokers or managers would refuse one."""
    options = {name: value for name, value in config.options.items() if (name, value) != ("virtual_address", AUTO)}
    QpidOptions.from_config(replace(config, options=options))
    ManagerOptions.from_options(options)


QPID = QpidSystem(
    "qpid",
    replicated=True,
    leading_roles=(PRIMARY,),
    joined_roles=(READY,),
    min_nodes=2,
    provides=frozenset({"queues", "transactions", "exchanges", "registers"}),
    guarantees=(*GUARANTEES, COUNTS_ANEW, *of_surface(GUARANTEES)),
    modes=MODES,
    trial=TRIAL,
    read_options=read_options,
    events=LogEvents(role_change, state_transfer),
    commands=COMMANDS,
    rules=RULES,
    options=(
        Option("manager", MANAGERS[0], "the party that starts brokers and promotes one: our manager on each node, a "
               "person, or another manager", MANAGERS),
        Option("manager_lease", 1.0, "seconds for which a broker may serve after most managers last heard its "
               "manager; also the longest silence of a manager"),
        Option("eviction_timeout", 10.0, "seconds within which a fencing manager ends the brokers that it has lost; "
               "until then nothing is confirmed without a lost backup"),
        Option("replicate", LEVELS[0], "replication level of queues and exchanges that name none",
               LEVELS),
        Option("patterns", "", "PATTERN=LEVEL joined by commas: replication levels by name"),
        Option("catchup_timeout", 5.0, "seconds for which completions wait for a backup that is not caught up"),
        Option("dr_nodes", 0, "number of nodes, the last ones, for disaster recovery: at another site, without a "
               "manager, promoted by a person only"),
        Option("dr_counted", COUNTED[0], "whether completions wait for these nodes as for any other backup", COUNTED),
        Option("dr_latency", 0.0, "seconds that packets take to these nodes (simulated networks only)"),
        Option("catchup_backlog", 64 << 20, "bytes of new events that wait for a backup that catches up"),
        Option("catchup_chunk", 64 << 10, "approximate bytes of messages in one batch to a backup that catches up"),
        Option("detection_timeout", 1.0, "seconds of silence after which a connection between brokers is broken"),
        Option("sequence_bits", 32, "width in bits of the message numbers that brokers exchange"),
        Option("store", STORES[0], "whether the store is on disk before a message counts as stored", STORES),
        Option("store_errors", STORE_ERRORS[0], "action of a backup whose store fails: end, or continue in memory; "
               "for queues that name no action", STORE_ERRORS),
        Option("standby", STANDBYS[0], "whether backups run and copy the primary's queues, or the primary runs alone, "
               "on a store that all nodes reach", STANDBYS),
        Option("broker_network", NETWORKS[0], f"whether brokers' links share the clients' network or have a separate "
               f"one, {BROKERS!r}; managers hear each other on the clients'", NETWORKS),
        Option("virtual_address", "", "the IPv4 address that moves with the primary, auto for a free one; empty: none"),
        Option("clients_find", WAYS[0], "clients' way to the primary: a list of all brokers, the virtual address, or "
               "half of the clients each way", WAYS),
        Option("as_documented", "", "limitations that are left as the document leaves them, joined by commas"),
        Option("person", PERSONS[0], "action of a person with the best store after the loss of all brokers: accept "
               "it, or copy it to all others", PERSONS),
        ANSWER_PAGE,
        *FLOW,
        *MEMORY,
        BUG,
    ),
)  # fmt: skip
