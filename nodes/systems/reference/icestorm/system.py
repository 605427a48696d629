"""HA IceStorm: its settings, its guarantees, and the events in its logs."""

from __future__ import annotations

from nodes.reference.designs.icestorm.options import IceStormOptions
from nodes.systems.reference.icestorm.admin import COMMANDS
from nodes.systems.reference.icestorm.guarantees import GUARANTEES, MODES, TRIAL
from nodes.systems.reference.icestorm.rules.states import group_change, role_change, state_transfer
from nodes.systems.reference.icestorm.rules.table import RULES
from nodes.systems.reference.system import ANSWER_PAGE, BUG, FLOW, LogEvents, ReferenceSystem
from stormproof.contracts.option import Option

ICESTORM = ReferenceSystem(
    "icestorm",
    replicated=True,
    leading_roles=("master",),
    joined_roles=("slave",),
    guarantees=GUARANTEES,
    read_options=IceStormOptions.from_config,
    modes=MODES,
    trial=TRIAL,
    min_nodes=3,
    provides=frozenset({"topic manager", "events"}),
    events=LogEvents(role_change, state_transfer, group=group_change),
    commands=COMMANDS,
    rules=RULES,
    options=(
        Option("election_timeout", 1.0, "seconds that invitations may take; also between coordinators' searches"),
        Option("master_timeout", 1.0, "seconds between a slave's questions to its coordinator"),
        Option("response_timeout", 0.5, "seconds that a replica has to answer another"),
        Option("stamp", "counter", "the stamp that tells the most recent database", ("counter", "wall-clock")),
        Option("reads", "confirmed", "replica that answers reads: the coordinator, after a majority confirmed it, or "
               "any replica from its own database", ("confirmed", "local")),
        Option("step_down", "checked", "when a coordinator finds that its majority is gone: at its next check, or when "
               "it can't make a change", ("checked", "on-write")),
        Option("retry_interval", 0.2, "seconds between attempts to deliver to a subscriber that failed"),
        Option("delivery_timeout", 1.0, "seconds that a subscriber has to acknowledge an event"),
        Option("offline_events", "kept", "events for a subscriber that can't be reached: kept until it is removed, or "
               "discarded", ("kept", "discarded")),
        Option("publisher_endpoints", "all", "answer of getPublisher: a proxy with the endpoints of all replicas, or "
               "with that of the answering replica, as from getNonReplicatedPublisher", ("all", "one")),
        Option("acm_timeout", 0.0, "seconds after which idle connections are closed; 0: never"),
        Option("max_waiting", 100_000, "events that wait for one subscriber; beyond, the oldest are dropped"),
        ANSWER_PAGE,
        *FLOW,
        BUG,
    ),
)  # fmt: skip
