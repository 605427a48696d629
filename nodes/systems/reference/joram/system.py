"""HA Joram: its settings, its guarantees, and the events in its logs."""

from __future__ import annotations

from nodes.reference.designs.joram.options import SEND_WINDOW, Options
from nodes.reference.replication.transfer import CHUNK_BYTES
from nodes.systems.reference.feature_coverage import of_surface
from nodes.systems.reference.joram.admin import COMMANDS
from nodes.systems.reference.joram.guarantees import GUARANTEES, MODES, TRIAL
from nodes.systems.reference.joram.rules.bounds import BOUNDS, WORK
from nodes.systems.reference.joram.rules.deadlines import JORAM_DEADLINES
from nodes.systems.reference.joram.rules.draws import DRAWING
from nodes.systems.reference.joram.rules.invariants import INVARIANTS
from nodes.systems.reference.joram.rules.resting_state import KEEPS
from nodes.systems.reference.joram.rules.state_abstraction import ABSTRACTION
from nodes.systems.reference.joram.rules.states import STATES
from nodes.systems.reference.log_events import Line
from nodes.systems.reference.standalone.system import STANDALONE
from nodes.systems.reference.system import (
    ANSWER_PAGE,
    BUG,
    FLOW,
    LIMITS,
    MEMORY,
    MESSAGING,
    REMEMBERED,
    Events,
    ReferenceSystem,
)
from stormproof.contracts.option import Option
from stormproof.contracts.system import GroupChange, RoleChange, StateTransfer
from stormproof.test import Test

_ROLES = {"following": ("slave", True), "promoted: serving as master": ("master", True),
          "master lost": ("electing", False), "stepped down": ("electing", False), "proposing": ("electing", False),
          "joining the group": ("starting", False)}  # fmt: skip


def role_change(line: Line) -> RoleChange | None:
    """Parse a log line about a replica's role; a view that a master changes may have a new epoch."""
    if line.event == "view installed" and "why" in line.fields:
        return RoleChange("master", f"epoch {line.fields.get('epoch', '?')}", serving=True, leads=True)
    if line.event not in _ROLES:
        return None
    role, serving = _ROLES[line.event]
    epoch = f"epoch {line.fields.get('epoch', '?')}" if serving else ""
    return RoleChange(role, epoch, serving, leads=role == "master")


def state_transfer(line: Line) -> StateTransfer | None:
    """Parse the end of a transfer, logged by the replica whose state was replaced."""
    if line.event != "state transfer end" or "source" not in line.fields:
        return None
    index = line.fields.get("index", "?")
    return StateTransfer(line.fields["source"], "", f"up to entry {index}", int(index) if index.isdecimal() else None)


def group_change(line: Line) -> GroupChange | None:
    """Parse a master's log line about the view that it installs."""
    if line.event != "view installed" or "members" not in line.fields:
        return None
    return GroupChange(f"epoch {line.fields.get('epoch', '?')}", tuple(line.fields["members"].split(",")))


class Joram(ReferenceSystem):
    """A group that can add and remove replicas; no removal if each side of a partition may install its own view."""

    def gives_up_replicas(self, test: Test) -> bool:
        """Tell whether a replica can be removed."""
        return test.options.get("partitions") != "unspecified"


JORAM = Joram(
    "joram",
    replicated=True,
    leading_roles=("master",),
    joined_roles=("slave",),
    reported=STATES,
    min_nodes=2,
    provides=MESSAGING,
    guarantees=(*GUARANTEES, *of_surface(GUARANTEES)),
    read_options=Options.from_config,
    modes=MODES,
    trial=TRIAL,
    events=Events(role_change, state_transfer, group=group_change),
    commands=COMMANDS,
    local=STANDALONE,
    invariants=INVARIANTS,
    bounds=BOUNDS,
    work=WORK,
    keeps=KEEPS,
    abstraction=ABSTRACTION,
    deadlines=JORAM_DEADLINES,
    drawing=DRAWING,
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
