"""States of interest of a group of icestorm replicas."""

from __future__ import annotations

import itertools

from nodes.systems.reference.log_events import BOOT, BROKER_STATES, EventLine, NodeLogs, State, logged
from stormproof.contracts.system import GroupChange, RoleChange, StateTransfer

_STATE = "replica state"
_REPLICATES = "group replicates"


def role_change(line: EventLine) -> RoleChange | None:
    """Parse a log line about a replica's state, group and coordinator."""
    if line.event != "replica state":
        return None
    state = line.fields.get("state", "?")
    if state != "normal":
        return RoleChange(state, line.fields.get("group", ""))
    leads = line.fields.get("leads") == "True"
    return RoleChange("master" if leads else "slave", line.fields.get("group", ""), serving=True, leads=leads)


def state_transfer(line: EventLine) -> StateTransfer | None:
    """Parse a coordinator's log line about taking over its group's most recent database."""
    if line.event != "database transfer":
        return None
    return StateTransfer(line.fields.get("source", "?"), "", f"stamp {line.fields.get('stamp', '?')}")


def group_change(line: EventLine) -> GroupChange | None:
    """Parse a coordinator's log line about the group that it has formed."""
    if line.event not in ("group replicates", "group waits") or "members" not in line.fields:
        return None
    return GroupChange(line.fields.get("group", ""), tuple(line.fields["members"].split(",")))


def _says(*words: str) -> dict[str, object]:
    """Return the fields of a state line whose reason contains all these words."""
    return {"why": lambda why: all(word in why for word in words)}


def _changes_of_coordinator(logs: NodeLogs) -> int:
    leaders = [line.node for line in logs.of(_REPLICATES)]
    return sum(before != after for before, after in itertools.pairwise(leaders))


def _two_coordinators(logs: NodeLogs) -> int:
    """Count the times that a group began to replicate while another coordinator, which logged a later line, still led
    one.
    """
    leading: dict[str, str] = {}
    last = {line.node: line.time for line in logs.lines}
    found = 0
    for line in logs.lines:
        if line.event == _REPLICATES:
            found += any(node != line.node and last[node] > line.time for node in leading)
            leading[line.node] = line.time
        elif line.event == BOOT or (line.event == _STATE and line.fields.get("state") != "normal"):
            leading.pop(line.node, None)
    return found


STATES: tuple[State, ...] = (
    State("group-replicates", "a group formed that is large enough to replicate", logged(_REPLICATES)),
    State("group-too-small", "a group formed that is too small to replicate",
          logged(_STATE, state="inactive", **_says("group of"))),
    State("coordinator-changed", "a different replica became coordinator", _changes_of_coordinator),
    State("two-coordinators", "a group began to replicate while a former coordinator still led one", _two_coordinators),
    State("majority-lost", "a coordinator lost its majority", logged(_STATE, **_says("majority is lost"))),
    State("member-lost", "a coordinator continued without a failed member", logged("members lost")),
    State("coordinator-lost", "a slave lost its coordinator", logged(_STATE, **_says("does not answer"))),
    State("member-forgotten", "a slave found that its coordinator no longer counted it",
          logged(_STATE, **_says("no longer counts"))),
    State("invitation-withdrawn", "an accepted invitation was withdrawn", logged(_STATE, **_says("withdrew"))),
    State("election-unfinished", "an election did not end in time", logged(_STATE, **_says("does not end"))),
    State("group-fell-apart", "a group fell apart while it was reorganized", logged(_STATE, **_says("fell apart"))),
    State("database-transferred", "a coordinator took over the more recent database of a slave",
          logged("database transfer")),
    State("delivery-failed", "an event could not be delivered at once", logged("delivery failed")),
    State("event-dropped", "an event was dropped because too many waited for its subscriber", logged("event dropped")),
    State("subscriber-removed", "a subscriber was removed after its last attempt", logged("subscriber removed")),
    State("idle-client-closed", "an idle connection was closed", logged("idle client closed")),
    *(state for state in BROKER_STATES if state.name == "client-silent"),
)
