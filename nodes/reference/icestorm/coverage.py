"""Interesting states of a group of icestorm replicas."""

from __future__ import annotations

import itertools

from nodes.reference.coverage import BROKER_STATES, NodeLogs, State, logged

_FORMED = "group replicates"


def _new_coordinators(logs: NodeLogs) -> int:
    coordinators = [line.node for line in logs.of(_FORMED)]
    return sum(before != after for before, after in itertools.pairwise(coordinators))


STATES = (
    State("group-replicates", "a coordinator's group began to replicate", logged(_FORMED)),
    State("new-coordinator", "another coordinator's group than before began to replicate", _new_coordinators),
    State("members-lost", "a coordinator noticed that members of its group are gone", logged("members lost")),
    State("database-transferred", "a coordinator took over a member's more recent database",
          logged("database transfer")),
    State("delivery-failed", "a subscriber could not be reached", logged("delivery failed")),
    State("event-dropped", "an event was dropped, since too many waited for its subscriber", logged("event dropped")),
    State("subscriber-removed", "a subscriber was removed after failures", logged("subscriber removed")),
    *BROKER_STATES,
)  # fmt: skip
