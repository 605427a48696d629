"""The table of a design's rules."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodes.systems.reference.log_events import BROKER_STATES, State
from nodes.systems.reference.rules.deadlines import DEADLINES
from nodes.systems.reference.rules.resting_state import ENGINE, REMEMBERED
from nodes.systems.reference.rules.waits import CONNECTIONS, WAITS
from stormproof.contracts.bounds import Bound, WorkBound
from stormproof.contracts.deadline import Deadline
from stormproof.contracts.draw import Drawing
from stormproof.contracts.invariant import Invariant
from stormproof.contracts.resting_state import RestingLimit
from stormproof.contracts.state_abstraction import Abstraction
from stormproof.contracts.wait import Wait


@dataclass(frozen=True)
class Rules:
    """All rules of one design; the fields have the names of ``System``'s.

    ``states`` are the states of interest that logs show; the default campaign counts how often each was reached.
    """

    invariants: tuple[Invariant, ...] = ()
    deadlines: tuple[Deadline, ...] = DEADLINES
    bounds: tuple[Bound, ...] = ()
    work: tuple[WorkBound, ...] = ()
    keeps: tuple[RestingLimit, ...] = (*ENGINE, *REMEMBERED)
    drawing: Drawing = field(default_factory=Drawing)
    abstraction: Abstraction | None = None
    states: tuple[State, ...] = BROKER_STATES
    waits: tuple[Wait, ...] = (*WAITS, *CONNECTIONS)
