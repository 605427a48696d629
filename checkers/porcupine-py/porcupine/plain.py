"""The general search in plain Python, for models without a compiled form, nondeterministic ones included.

Wing & Gong's search with Lowe's memoisation. It shares its key with ``kernels.search``: (first operation that has not
returned, mask of linearised ones, crashed ones used, state).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from .models.base import Model
from .types import NO_OUTPUT, CheckResult, Operation


@dataclass(slots=True)
class Searched:
    """Outcome of a search; ``order`` and ``stuck`` hold indices of operations."""

    verdict: CheckResult
    steps: int
    order: list[int]


def search(
    model: Model,
    operations: Sequence[Operation],
    call: Sequence[int],
    ret: Sequence[int | None],
    max_steps: int,
    max_states: int,
    deadline: float | None,
) -> Searched:
    """Search one partition. ``call`` and ``ret`` are different positions (None: it never returned)."""
    done = sorted((i for i in range(len(operations)) if ret[i] is not None), key=lambda i: ret[i] or 0)
    crashed = sorted((i for i in range(len(operations)) if ret[i] is None), key=lambda i: call[i])
    ranked = done + crashed
    outputs = [o.output if ret[i] is not None else NO_OUTPUT for i, o in enumerate(operations)]
    ends = [ret[i] or 0 for i in done]
    state = model.init()
    # A frame: level, mask over ranks of the operations linearised above the level, state, iterator over candidates.
    seen = {(0, 0, model.key(state))}
    path: list[int] = []
    best: list[int] = []
    best_level = 0
    steps = 0

    def successors(level: int, mask: int, state: object):  # type: ignore[no-untyped-def]
        for rank in range(level, len(ranked)):
            at = ranked[rank]
            if mask >> rank & 1 or call[at] > ends[level]:
                continue
            for after in model.steps(state, operations[at].input, outputs[at]):
                yield rank, after

    if not done:
        return Searched(CheckResult.OK, 0, [])
    frames = [(0, 0, successors(0, 0, state))]
    while frames:
        level, mask, rest = frames[-1]
        following = next(rest, None)
        if following is None:
            frames.pop()
            if path:
                path.pop()
            continue
        steps += 1
        if (
            steps > max_steps
            or len(seen) > max_states
            or (deadline and steps % 64 == 0 and time.monotonic() > deadline)
        ):
            return Searched(CheckResult.UNKNOWN, steps, best)
        rank, after = following
        mask |= 1 << rank
        while level < len(done) and mask >> level & 1:
            mask &= ~(1 << level)
            level += 1
        if level > best_level or level == len(done):
            best_level, best = level, [*path, ranked[rank]]
        if level == len(done):
            return Searched(CheckResult.OK, steps, best)
        key = (level, mask, model.key(after))
        if key not in seen:
            seen.add(key)
            path.append(ranked[rank])
            frames.append((level, mask, successors(level, mask, after)))
    return Searched(CheckResult.ILLEGAL, steps, best)
