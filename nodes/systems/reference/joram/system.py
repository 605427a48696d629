"""HA Joram: its settings, its guarantees, and the events in its logs."""

from __future__ import annotations

from nodes.reference.designs.joram.options import SEND_WINDOW, JoramOptions
from nodes.reference.replication.transfer import CHUNK_BYTES
from nodes.systems.reference.feature_coverage import of_surface
from nodes.systems.reference.joram.admin import COMMANDS
from nodes.systems.reference.joram.guarantees import GUARANTEES, MODES, TRIAL
from nodes.systems.reference.joram.rules.states import group_change, role_change, state_transfer
from nodes.systems.reference.joram.rules.table import RULES
from nodes.systems.reference.standalone.system import STANDALONE
from nodes.systems.reference.system import (
    ANSWER_PAGE,
    BUG,
    FLOW,
    LIMITS,
    MEMORY,
    MESSAGING,
    REMEMBERED,
    LogEvents,
    ReferenceSystem,
)
from stormproof.contracts.option import Option
from stormproof.test import Test


class JoramSystem(ReferenceSystem):
    """A group that can add and remove replicas; no removal if each side of a partition may install its own view."""

    def gives_up_replicas(self, test: Test) -> bool:
        """Tell whether a replica can be removed."""
        return test.options.get("partitions") != "unspecified"


JORAM = JoramSystem(
    "joram",
    replicated=True,
    leading_roles=("master",),
    joined_roles=("slave",),
    min_nodes=2,
    provides=MESSAGING,
    guarantees=(*GUARANTEES, *of_surface(GUARANTEES)),
    read_options=JoramOptions.from_config,
    modes=MODES,
    trial=TRIAL,
    events=LogEvents(role_change, state_transfer, group=group_change),
    commands=COMMANDS,
    local=STANDALONE,
    rules=RULES,
    options=(
        Option("partitions", "primary-partition", "replicas that may serve when the network splits",
               ("primary-partition", "unspecified")),
        Option("ack", "all", "which replicas must have a command before it is confirmed", ("all", "majority")),
        Option("propagation", "synchronous", "asynchronous: a message is confirmed once the master has it on disk",
               ("synchronous", "asynchronous")),
        Option("sync_interval", 0.05, "seconds between synchronisations of the replicas (asynchronous propagation)"),
        Option("detection_timeout", 1.0, "seconds of silence after which a replica is suspected"),
        Option("heartbeat_interval", 0.0, "seconds between heartbeats of replicas; 0: a fifth of detection_timeout"),
        Option("network_timeout", 2.0, "seconds of silence after which a connection with another server is cut"),
        Option("nb_cluster_expected", 0, "replicas that must have joined before the group starts, and starts again; "
               "0: all for the first start"),
        Option("transfer", "two-step", "transfer of the whole state to a new or late replica",
               ("two-step", "held-back")),
        Option("transfer_chunk", CHUNK_BYTES, "approximate bytes of each piece of a transfer of the whole state"),
        Option("send_window", SEND_WINDOW, "bytes of unacknowledged entries in flight to a replica"),
        Option("spares", 0, "nodes that don't belong to the group at first; the nemesis `membership` adds them"),
        Option("log_keep", 10_000, "entries kept for returning replicas; one further behind gets the whole state"),
        Option("idle_timeout", 5.0, "seconds after which a detached reliable connection is closed"),
        *REMEMBERED,
        *FLOW,
        *MEMORY,
        *LIMITS,
        ANSWER_PAGE,
        BUG,
    ),
)  # fmt: skip
