"""One reference broker, which nobody replicates."""

from __future__ import annotations

from nodes.systems.reference.audits import COUNTS_ADD_UP, STORE_HOLDS
from nodes.systems.reference.deadlines import CONNECTIONS, DEADLINES
from nodes.systems.reference.log_events import Line
from nodes.systems.reference.surface import of_surface
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
from nodes.systems.standalone.draws import DRAWING
from nodes.systems.standalone.guarantees import GUARANTEES
from stormproof.contracts.deadline import Deadline
from stormproof.contracts.option import Option
from stormproof.contracts.system import RoleChange

FORWARDING = Deadline(
    "forwarding",
    {},
    11,
    "HA Joram, 4.2.1: a message for another server is kept, and sent, until it is there; four times the broker's own "
    "network_timeout, 2 s",
    ("disk", "clock"),
    what="a message for another server is not known to be there",
    calm=True,
)


def role_change(line: Line) -> RoleChange | None:
    """It says when it is up."""
    return RoleChange("up", serving=True, leads=True) if line.event == "started" else None


STANDALONE = ReferenceSystem(
    "standalone",
    replicated=False,
    max_nodes=1,
    provides=MESSAGING | {"security"},
    guarantees=(*GUARANTEES, *of_surface(GUARANTEES)),
    events=Events(role=role_change),
    drawing=DRAWING,
    deadlines=(*DEADLINES, *CONNECTIONS, FORWARDING),
    invariants=(STORE_HOLDS, COUNTS_ADD_UP),
    options=(
        Option("idle_timeout", 5.0, "seconds after which a detached reliable connection is closed"),
        *REMEMBERED,
        *FLOW,
        *MEMORY,
        *LIMITS,
        ANSWER_PAGE,
        BUG,
    ),
)
