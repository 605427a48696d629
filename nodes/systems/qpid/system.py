"""Qpid active-passive: its settings, its guarantees, and what its logs tell."""

from __future__ import annotations

from nodes.reference.designs.qpid.manager.options import ManagerOptions
from nodes.reference.designs.qpid.options import LEVELS, MANAGERS, STORES, Options
from nodes.systems.qpid.admin import COMMANDS
from nodes.systems.qpid.guarantees import GUARANTEES
from nodes.systems.qpid.states import STATES, role_change, state_transfer
from nodes.systems.reference.system import BUG, Events, ReferenceSystem
from stormproof.contracts.cluster import Cluster, Deployment
from stormproof.contracts.option import Option


class Qpid(ReferenceSystem):
    """One primary and its hot standbys, kept by managers."""

    def cluster(self, deployment: Deployment) -> Cluster:
        """Brokers, and a manager beside each."""
        from nodes.systems.qpid.cluster import QpidCluster

        return QpidCluster(self.layout(deployment.test, deployment.demands), deployment)


QPID = Qpid(
    "qpid",
    replicated=True,
    reported=STATES,
    min_nodes=2,
    provides=frozenset({"queues", "transactions", "exchanges"}),
    guarantees=GUARANTEES,
    read_options=lambda config: (Options.from_config(config), ManagerOptions.from_options(config.options)),
    events=Events(role_change, state_transfer),
    commands=COMMANDS,
    options=(
        Option("manager", MANAGERS[0], "who starts brokers and promotes one: a manager of ours on each node, or a "
               "person", MANAGERS),
        Option("manager_lease", 1.0, "seconds for which a broker may go on after most managers have last heard its "
               "own; as long may a manager be silent"),
        Option("replicate", LEVELS[0], "what is replicated of queues and exchanges that say nothing themselves",
               LEVELS),
        Option("patterns", "", "PATTERN=LEVEL joined by commas: what is replicated, by name"),
        Option("catchup_timeout", 5.0, "seconds for which completions wait for a backup that is not caught up"),
        Option("detection_timeout", 1.0, "seconds of silence after which a connection between brokers is broken"),
        Option("sequence_bits", 32, "width of the numbers of messages that brokers tell each other"),
        Option("store", STORES[0], "whether the store is on disk before a message counts as stored", STORES),
        Option("as_documented", "", "limitations that are left as the document leaves them, joined by commas"),
        BUG,
    ),
)  # fmt: skip
