"""Operations that are open at a level of the search, by slot: a bit of each mask in a configuration."""

from __future__ import annotations

import numpy as np
from numba import njit

from .layout import BY_CALL, SLOT, START
from .pool import CTX_SIZE

M, SLOTS, WORDS, COVER, CRASH = range(CTX_SIZE, CTX_SIZE + 5)
"""Places of a search's data in ``ctx``, after the pool's part.

The number of completed operations and of slots, words of a mask, whether a mask of covered operations exists, and the
first word of the mask of crashed operations.
"""


@njit(cache=True)
def open_first(ops, ctx, opened):  # type: ignore[no-untyped-def]
    """Set ``opened`` to level 0."""
    opened.fill(-1)
    if ctx[M]:
        for i in range(ops[0, START]):
            o = ops[i, BY_CALL]
            opened[ops[o, SLOT]] = o


@njit(cache=True)
def move_back(ops, ctx, opened, level, target):  # type: ignore[no-untyped-def]
    """Move ``opened`` back from a level to an earlier one."""
    while level > target:
        if level < ctx[M]:
            for i in range(ops[level - 1, START], ops[level, START]):
                opened[ops[ops[i, BY_CALL], SLOT]] = -1
        level -= 1
        opened[ops[level, SLOT]] = level


@njit(cache=True)
def assign_slots(ops, m):  # type: ignore[no-untyped-def]
    """Give each operation the last freed slot; return the number of slots."""
    free = np.empty(m + 1, np.int64)
    n_free = 0
    used = 0
    at = 0
    for level in range(m):
        while at < ops[level, START]:
            o = ops[at, BY_CALL]
            if n_free:
                n_free -= 1
                ops[o, SLOT] = free[n_free]
            else:
                ops[o, SLOT] = used
                used += 1
            at += 1
        free[n_free] = ops[level, SLOT]
        n_free += 1
    return used
