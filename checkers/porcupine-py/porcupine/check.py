"""Checks of a history of operations or events against a model."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .bags import bag_illegal, bag_order
from .compiled import VERDICTS, SearchLimits, run_fifo, run_search
from .kernels import codes
from .kernels.codes import PENDING
from .kernels.prepare import rank_times
from .models import CompiledModel, Model
from .models.base import Encoded, Ints
from .monitoring import describe, run_monitor
from .plain import search as plain_search
from .replay import admitted, first_fault, open_after, outcome, states_after
from .types import CheckResult, Event, Operation, Partition, PorcupineError, Result

DEFAULT_MEMORY = 2 << 30


def check_operations(
    model: Model,
    operations: Sequence[Operation],
    *,
    timeout: float | None = None,
    max_steps: int | None = None,
    max_memory: int = DEFAULT_MEMORY,
) -> CheckResult:
    """Decide whether a history is linearizable: OK, ILLEGAL, or UNKNOWN when a limit was reached first.

    ``timeout`` in seconds, ``max_steps`` per partition, ``max_memory`` in bytes. Raises PorcupineError for operations
    that the model does not know. See ``check_operations_verbose`` for the evidence.
    """
    return check_operations_verbose(
        model, operations, timeout=timeout, max_steps=max_steps, max_memory=max_memory, evidence=False
    ).verdict


def check_operations_verbose(
    model: Model,
    operations: Sequence[Operation],
    *,
    timeout: float | None = None,
    max_steps: int | None = None,
    max_memory: int = DEFAULT_MEMORY,
    monitors: bool = True,
    evidence: bool = True,
) -> Result:
    """Check as ``check_operations`` does, and return the evidence.

    ``monitors=False`` leaves everything to the search (an OK then includes its linearisation). A compiled model's
    linearisation is accepted only after a replay against the plain model.
    """
    began = time.monotonic()
    limits = SearchLimits(None if timeout is None else began + timeout, max_steps or 1 << 62, min(max_memory, 1 << 62))
    call, ret = positions(operations)
    if isinstance(model, CompiledModel):
        parts = _check_compiled(model, operations, call, ret, limits, monitors, evidence)
    else:
        parts = _check_plain(model, operations, call, ret, limits)
    verdicts = {p.verdict for p in parts}
    worst = (v for v in (CheckResult.ILLEGAL, CheckResult.UNKNOWN) if v in verdicts)
    steps = sum(p.steps for p in parts)
    return Result(next(worst, CheckResult.OK), model.name, len(operations), parts, steps, time.monotonic() - began)


MAX_BATCHED_OPERATIONS = 2000
"""Largest number of operations of a history that is checked together with others."""


def check_histories(
    model: Model,
    histories: Sequence[Sequence[Operation]],
    *,
    timeout: float | None = None,
    max_steps: int | None = None,
    max_memory: int = DEFAULT_MEMORY,
) -> list[CheckResult]:
    """Check each history as ``check_operations`` does; ``timeout`` is for all together.

    Short histories of a register are checked in one call, which costs a fraction of separate calls.
    """
    began = time.monotonic()
    deadline = None if timeout is None else began + timeout
    short = max(map(len, histories), default=0) <= MAX_BATCHED_OPERATIONS
    if isinstance(model, CompiledModel) and model.one_register and short:
        limits = SearchLimits(deadline, max_steps or 1 << 62, min(max_memory, 1 << 62))
        try:
            return _check_together(model, histories, limits)
        except PorcupineError:
            pass  # one by one, so that the error names the history that caused it
    verdicts = []
    for history in histories:
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        verdicts.append(check_operations(model, history, timeout=left, max_steps=max_steps, max_memory=max_memory))
    return verdicts


def encode_together(
    model: CompiledModel, histories: Sequence[Sequence[Operation]]
) -> tuple[list[Operation], tuple[Ints, Ints], Encoded, Ints, Ints]:
    """Encode histories of one register each as partitions: (operations, their positions, the input of ``run_search``).

    The partitions share no state, so overlapping times do not matter.
    """
    operations = [operation for history in histories for operation in history]
    call, ret = positions(operations)
    encoded = model.encode(operations)
    n = len(histories)
    encoded.part = np.repeat(np.arange(n), [len(history) for history in histories])[encoded.source]
    encoded.keys, encoded.states = list(range(n)), np.repeat(encoded.states, n)
    return operations, (call, ret), encoded, call[encoded.source], ret[encoded.source]


def _check_together(
    model: CompiledModel, histories: Sequence[Sequence[Operation]], limits: SearchLimits
) -> list[CheckResult]:
    operations, (call, ret), encoded, at_call, at_ret = encode_together(model, histories)
    n = len(histories)
    found = run_search(encoded, at_call, at_ret, limits, True, model.kernel(), every=True)
    ends = np.searchsorted(encoded.part, np.arange(n + 1)).tolist()
    sources = encoded.source.tolist()
    verdicts = [VERDICTS[verdict] for verdict in found.verdicts.tolist()]
    for p, verdict in enumerate(verdicts):
        if verdict is CheckResult.OK:
            order = encoded.source[found.orders[p]].tolist()
            _believe(model, operations, call, ret, sources[ends[p] : ends[p + 1]], order)
    return verdicts


def check_events(model: Model, events: Sequence[Event], **limits: Any) -> CheckResult:
    """Check a sequence of calls and returns in order of time, as ``check_operations`` does.

    A call without a return never returned.
    """
    return check_operations(model, pair_events(events), **limits)


def check_events_verbose(model: Model, events: Sequence[Event], **limits: Any) -> Result:
    """Check a sequence of calls and returns, as ``check_operations_verbose`` does. Indices are those of calls, in
    order.
    """
    return check_operations_verbose(model, pair_events(events), **limits)


def pair_events(events: Sequence[Event]) -> list[Operation]:
    """Return the operations of a sequence of events, in order of their calls.

    Raises PorcupineError for a return without a call, or an id called twice.
    """
    opened: dict[Any, int] = {}
    returned: dict[int, tuple[int, Any]] = {}
    for at, event in enumerate(events):
        if event.kind == "call":
            if event.id in opened:
                raise PorcupineError(f"event {at}: operation {event.id!r} is called twice")
            opened[event.id] = at
        elif event.kind == "return":
            called = opened.get(event.id)
            if called is None:
                raise PorcupineError(f"event {at}: return of operation {event.id!r}, which was not called")
            if called in returned:
                raise PorcupineError(f"event {at}: operation {event.id!r} returns twice")
            returned[called] = (at, event.value)
        else:
            raise PorcupineError(f'event {at}: kind is {event.kind!r}, not "call" or "return"')
    operations = []
    for at in opened.values():
        ret, output = returned.get(at, (None, None))
        client = events[at].client_id if events[at].client_id is not None else events[at].id
        operations.append(Operation(client, events[at].value, output, at, ret))
    return operations


def positions(operations: Sequence[Operation]) -> tuple[Ints, Ints]:
    """Return different positions of calls and returns. Raises PorcupineError for a return before its call."""
    calls: list[Any] = [o.call for o in operations]
    returns: list[Any] = [o.ret for o in operations]
    crashed = [i for i, r in enumerate(returns) if r is None] if None in returns else []
    for i in crashed:
        returns[i] = calls[i]
    call, ret = np.array(calls), np.array(returns)
    if call.size and (call.dtype.kind not in "iuf" or ret.dtype.kind not in "iuf"):
        raise PorcupineError("times of calls and returns must be numbers")
    if (call.dtype.kind == "f" and np.isnan(call).any()) or (ret.dtype.kind == "f" and np.isnan(ret).any()):
        raise PorcupineError("a time is not a number (NaN)")
    late = ret < call
    if late.any():
        wrong = np.nonzero(late)[0]
        raise PorcupineError(f"operation {wrong[0]} returns at {ret[wrong[0]]}, before its call at {call[wrong[0]]}")
    if call.dtype == ret.dtype == np.int64 and call.size:
        low, high = int(call.min()), int(ret.max())
        if high - low <= 16 * call.size + 1024:
            from .kernels.rows import rank_dense

            position, returned = np.empty(call.size, np.int64), np.zeros(call.size, np.int64)
            returned[crashed] = PENDING
            rank_dense(call, ret, low, high, position, returned)
            return position, returned
    pending = np.zeros(call.size, np.bool_)
    pending[crashed] = True
    return rank_times(call, ret, pending)


def _check_plain(
    model: Model, operations: Sequence[Operation], call: Ints, ret: Ints, limits: SearchLimits
) -> list[Partition]:
    out: list[Partition] = []
    for key, part in enumerate(model.partition(operations)):
        mine = [operations[i] for i in part]
        returns = [None if ret[i] == PENDING else int(ret[i]) for i in part]
        # An entry of the set of known configurations takes at least 200 bytes.
        found = plain_search(
            model, mine, [int(call[i]) for i in part], returns, limits.steps, limits.memory // 200, limits.deadline
        )
        order = [part[i] for i in found.order]
        partition = Partition(key, list(part), found.verdict, "search (plain)", found.steps, order)
        out.append(_explain(model, operations, call, ret, partition))
    return out


def _check_compiled(
    model: CompiledModel,
    operations: Sequence[Operation],
    call: Ints,
    ret: Ints,
    limits: SearchLimits,
    monitors: bool,
    evidence: bool,
) -> list[Partition]:
    encoded = model.encode(operations)
    at_call, at_ret = call[encoded.source], ret[encoded.source]
    finding = run_monitor(encoded, at_call, at_ret) if monitors else None
    if finding is not None:
        everything = list(range(len(operations)))
        if finding.pattern == 0:
            return [Partition(None, everything, CheckResult.OK, "monitor")]
        culprits = [int(encoded.source[p]) for p in finding.places]

        def text(place: int) -> str:
            return operation_text(model, operations[int(encoded.source[place])])

        reason = describe(finding, text)
        return [Partition(None, everything, CheckResult.ILLEGAL, "monitor", reason=reason, culprits=culprits)]
    if encoded.monitor == "bag":
        bag = _check_bag(model, encoded, operations, call, ret)
        if bag is not None:
            return [bag]
    if encoded.monitor == "fifo":
        verdict, steps, order = run_fifo(encoded, at_call, at_ret, limits)
        taken = [int(encoded.source[i]) for i in order]
        whole = Partition(None, list(range(len(operations))), VERDICTS[verdict], "frontier search", steps, taken)
        return [_explain(model, operations, call, ret, whole) if evidence or verdict == codes.OK else whole]
    return _search(model, encoded, operations, call, ret, limits, evidence)


def _check_bag(
    model: Model, encoded: Encoded, operations: Sequence[Operation], call: Ints, ret: Ints
) -> Partition | None:
    """Decide a bag with repeated values if no search is needed."""
    at_call, at_ret = call[encoded.source], ret[encoded.source]
    everything = list(range(len(operations)))
    take = bag_illegal(encoded.f, encoded.a, at_call, at_ret)
    if take >= 0:
        culprit = int(encoded.source[take])
        reason = (
            f"more takes of a value had ended than puts of it had begun: {operation_text(model, operations[culprit])}"
        )
        return Partition(None, everything, CheckResult.ILLEGAL, "monitor", reason=reason, culprits=[culprit])
    said = bag_order(encoded.f, encoded.a, at_call, at_ret)
    if said is None:
        return None
    order, took = said
    placed = [int(encoded.source[place]) for place in order]
    # With the values that these dequeues took, the replay need not try every value.
    told = list(operations)
    for place, value in took.items():
        i = int(encoded.source[place])
        told[i] = replace(told[i], output=encoded.values[value], ret=math.inf)
    found = Partition(None, everything, CheckResult.OK, "greedy order", len(order), placed)
    _believe(model, told, call, ret, everything, placed)
    return found


def _search(
    model: CompiledModel,
    encoded: Encoded,
    operations: Sequence[Operation],
    call: Ints,
    ret: Ints,
    limits: SearchLimits,
    evidence: bool,
) -> list[Partition]:
    found = run_search(encoded, call[encoded.source], ret[encoded.source], limits, True, model.kernel())
    members: list[list[int]] = [[] for _ in encoded.keys]
    for source, part in zip(encoded.source.tolist(), encoded.part.tolist(), strict=True):
        members[part].append(source)
    out = []
    for p, key in enumerate(encoded.keys):
        verdict = VERDICTS[int(found.verdicts[p])]
        order = encoded.source[found.orders[p]].tolist()
        partition = Partition(key, members[p], verdict, "search", int(found.steps[p]), order)
        if evidence or verdict is CheckResult.OK:
            partition = _explain(model, operations, call, ret, partition)
        out.append(partition)
    return out


def _believe(
    model: Model, operations: Sequence[Operation], call: Ints, ret: Ints, members: list[int], order: list[int]
) -> None:
    """Replay the order of an OK; raise AssertionError if it is not a linearisation."""
    fault = first_fault(model, operations, call, ret, members, order)
    if fault:
        raise AssertionError(f"porcupine: the order found is not a linearisation ({fault}); please report this")


def _explain(model: Model, operations: Sequence[Operation], call: Ints, ret: Ints, found: Partition) -> Partition:
    """Replay the order of an OK, or explain for an ILLEGAL one which operations could not be next."""
    order = found.linearization or []
    if found.verdict is CheckResult.OK:
        _believe(model, operations, call, ret, found.operations, order)
        return found
    if found.verdict is CheckResult.UNKNOWN:
        return found
    left = open_after(operations, call, ret, found.operations, order)
    states = states_after(model, operations, order)
    stuck = [i for i in left if not admitted(model, operations[i], states)]
    state = " or ".join(model.describe_state(s) for s in states[:3])
    if len(state) > 200:
        state = state[:200] + "..."
    due = operation_text(model, operations[left[0]]) if left else "an operation"
    reason = (
        f"{due} can't be placed: the longest order found has {len(order)} operations and ends in state {state}; "
        f"no order of the operations open then admits it"
    )
    return Partition(
        found.key, found.operations, found.verdict, found.method, found.steps, order, stuck, reason, left[:1]
    )


def operation_text(model: Model, operation: Operation) -> str:
    """Describe an operation with its client and times, in one line."""
    returned = "never returned" if operation.ret is None else f"{operation.call} to {operation.ret}"
    if operation.ret is None:
        returned = f"called at {operation.call}, never returned"
    text = model.describe_operation(operation.input, outcome(operation))
    return f"{text} by {operation.client_id} ({returned})"
