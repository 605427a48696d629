"""One reference broker without replicas."""

from __future__ import annotations

from nodes.systems.reference.feature_coverage import of_surface
from nodes.systems.reference.log_events import EventLine
from nodes.systems.reference.rules.answers import ANSWERS_ONCE, ENDED_HOLD_NOTHING
from nodes.systems.reference.rules.audits import (
    COUNTS_ADD_UP,
    ENDS_REMEMBERED,
    NO_MISTAKES,
    PASSES_NOTHING_ON,
    STORE_HOLDS,
)
from nodes.systems.reference.rules.deadlines import (
    CALLED,
    CALLS,
    CONNECTIONS,
    DEADLINES,
    NETWORKS,
    REACTIONS,
    WRONG_CLOCK,
)
from nodes.systems.reference.rules.exits import STOPS_IN_ORDER
from nodes.systems.reference.rules.flow import WORK_UNDER_WAY
from nodes.systems.reference.rules.greetings import TELLS_CLIENTS
from nodes.systems.reference.rules.guards import GUARDS
from nodes.systems.reference.rules.table import Rules
from nodes.systems.reference.rules.wakes import WAKES_FOR_WORK
from nodes.systems.reference.standalone.guarantees import GUARANTEES
from nodes.systems.reference.standalone.rules.draws import DRAWING
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
from stormproof.contracts.deadline import Deadline
from stormproof.contracts.option import Option
from stormproof.contracts.system import RoleChange

_NETWORK_TIMEOUT = 2.0
"""The default of ``network_timeout``, in seconds."""

BY_ITSELF = (
    Deadline(
        "uncommitted",
        {},
        0.02,
        "standalone.py: the commands that are there share one transaction, in the turn of the event loop in which they "
        "come",
        requirement="a command is carried out within {}",
    ),
    Deadline(
        "network-beat",
        {},
        0.3 * _NETWORK_TIMEOUT + 0.2,
        NETWORKS,
        requirement="a connected server is sent something within {}",
    ),
    Deadline(
        "network-silent",
        {},
        1.3 * _NETWORK_TIMEOUT + 0.3,
        NETWORKS,
        requirement="a connection from which another server sends nothing is closed within {}",
    ),
    Deadline("network-call", {}, 0.15 * _NETWORK_TIMEOUT + 0.05, CALLS, requirement=CALLED),
    Deadline("collocated", {}, 0.5, REACTIONS, requirement="a client inside the broker has a connection within {}"),
    Deadline(
        "reaction", {}, 0.5, REACTIONS,
        requirement="a client inside the broker settles a message that it has taken within {}"
    ),
)
"""Deadlines that depend on this broker only."""
FORWARDING = Deadline(
    "forwarding",
    {},
    11,
    "HA Joram, 4.2.1: a message for another server is kept, and sent, until it is there; four times the broker's own "
    "network_timeout, 2 s",
    excuses={**WRONG_CLOCK, **dict.fromkeys(("disk:empty", "disk:corrupt"),
                                            "a server that has lost its storage is refused by the others for good, "
                                            "and tells so: `lost` and `depth` judge what arrives")},
    requirement="a message for another server is acknowledged by that server within {}",
    calm=True,
)


def role_change(line: EventLine) -> RoleChange | None:
    """Parse a role change: logged when the broker is up."""
    return RoleChange("up", serving=True, leads=True) if line.event == "started" else None


STANDALONE = ReferenceSystem(
    "standalone",
    replicated=False,
    max_nodes=1,
    leading_roles=("master",),
    provides=MESSAGING | {"security"},
    guarantees=(*GUARANTEES, *of_surface(GUARANTEES)),
    events=LogEvents(role=role_change),
    rules=Rules((ANSWERS_ONCE, ENDED_HOLD_NOTHING, STORE_HOLDS, COUNTS_ADD_UP, NO_MISTAKES, PASSES_NOTHING_ON,
                 ENDS_REMEMBERED, STOPS_IN_ORDER, TELLS_CLIENTS, *WORK_UNDER_WAY, *GUARDS, WAKES_FOR_WORK),
                (*DEADLINES, *CONNECTIONS, *BY_ITSELF, FORWARDING), drawing=DRAWING),
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
