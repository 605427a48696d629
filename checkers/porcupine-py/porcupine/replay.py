"""Replay of an order of operations against a plain model: a check of the checker."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .kernels.codes import PENDING
from .models.base import Ints, Model
from .types import NO_OUTPUT, Operation


def first_fault(
    model: Model, operations: Sequence[Operation], call: Ints, ret: Ints, members: Sequence[int], order: Sequence[int]
) -> str:
    """Return the defect of a linearisation of ``members``, or "" if it has none.

    It must hold every operation that returned, once; respect the order of time; and the model must admit each
    operation.
    """
    placed = set(order)
    if len(placed) != len(order) or not placed.issubset(members):
        return "an operation is in it twice, or is none of the history's"
    if len(placed) != len(members):
        missing = [i for i in members if i not in placed and ret[i] != PENDING]
        if missing:
            return f"operation {min(missing)} is missing"
    at = np.array(order, np.int64)
    latest = np.maximum.accumulate(call[at])
    early = np.nonzero(ret[at[1:]] < latest[:-1])[0]
    if early.size:
        return f"operation {order[early[0] + 1]} returned before one that is placed before it began"
    place = model.replay(operations, order)
    return f"no state admits operation {order[place]}" if place >= 0 else ""


def outcome(operation: Operation) -> object:
    """Return the output that ``Model.step`` gets."""
    return NO_OUTPUT if operation.ret is None else operation.output


def admitted(model: Model, operation: Operation, states: Sequence[object]) -> bool:
    """Return whether some of the states admits an operation."""
    return any(True for s in states for _ in model.steps(s, operation.input, outcome(operation)))


def states_after(model: Model, operations: Sequence[Operation], order: Sequence[int]) -> list[object]:
    """Return the states in which an order may end; none if it is not admitted."""
    states: list[object] = [model.init()]
    for i in order:
        following = [after for s in states for after in model.steps(s, operations[i].input, outcome(operations[i]))]
        states = list({model.key(s): s for s in following}.values())
    return states


def states_along(model: Model, operations: Sequence[Operation], order: Sequence[int]) -> list[str]:
    """Describe the state before the first operation of an order and after each.

    The list is shorter if some operation is not admitted.
    """
    states = [model.init()]
    out = [model.describe_state(states[0])]
    for i in order:
        following = [after for s in states for after in model.steps(s, operations[i].input, outcome(operations[i]))]
        if not following:
            break
        states = list({model.key(s): s for s in following}.values())
        out.append(" or ".join(model.describe_state(s) for s in states[:3]))
    return out


def open_after(
    operations: Sequence[Operation], call: Ints, ret: Ints, members: Sequence[int], order: Sequence[int]
) -> list[int]:
    """Return the completed operations that time allows next after a partial order, by their return."""
    placed = set(order)
    left = sorted((i for i in members if i not in placed and ret[i] != PENDING), key=lambda i: int(ret[i]))
    return [i for i in left if call[i] < ret[left[0]]]
