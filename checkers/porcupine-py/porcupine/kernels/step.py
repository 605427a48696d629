"""The compiled sequential specifications: one step for each family of built-in models.

A step returns the state after an operation, or NEVER (-1) when the state does not admit it. States are integers: values
of a register or counter, or ids of hash-consed structures (``pool``). ``wild`` is the number of dequeues that never
returned and have begun by now (bags only). A step never gets operations with negative value ids: encoders validate.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from . import signatures as sig
from .codes import (
    ANY,
    APPEND_TEXT,
    BAG_PUT,
    BAG_TAKE,
    BAG_WILD,
    CAS,
    CAS_FAILED,
    COUNTER_ADD,
    COUNTER_ADD_GET,
    COUNTER_READ,
    DEAD,
    LOCK_NOT_OWNER,
    LOCK_REFUSED,
    LOCK_RELEASE,
    LOG_APPEND,
    LOG_BEYOND,
    LOG_READ_ALL,
    NEVER,
    PQ_EMPTY,
    PQ_INSERT,
    PQ_POP,
    PQ_POP_ANY,
    READ,
    SET_ADD,
    SET_HAS,
    SET_LACKS,
    SET_READ,
    STACK_EMPTY,
    STACK_POP,
    STACK_POP_ANY,
    STACK_PUSH,
    TXN,
    UNSEEN,
    WRITE,
)
from .pool import find, intern, tree_get, tree_min, tree_set

OWNER_SHIFT = 20
"""A lock's first word is owner << 20 | depth of re-entrance."""


@njit(cache=True)
def register_step(nodes, table, ctx, data, wild, state, f, a, b):  # type: ignore[no-untyped-def]
    """Apply an operation of registers of values or texts."""
    if f == READ:
        return a if state in (a, ANY) else NEVER
    if f == WRITE:
        return a
    if f == CAS:
        return b if state in (a, ANY) else NEVER
    if f == CAS_FAILED:
        return state if state != a else NEVER
    # APPEND_TEXT: a = start of the piece in ``data``, b = its length
    if state == ANY:
        return ANY
    node = state
    for place in range(a, a + b):
        if node < 0:
            return DEAD
        node = find(nodes, table, node, data[place])
    return node if node >= 0 else DEAD


@njit(cache=True)
def set_step(nodes, table, ctx, data, wild, state, f, a, b):  # type: ignore[no-untyped-def]
    """Apply an operation of sets; b of an add or remove: 1 it changed the set, 0 it did not, UNSEEN unknown."""
    if f == SET_READ:
        return state if state == a else NEVER
    has = tree_get(nodes, ctx, state, a)
    if f == SET_HAS:
        return state if has else NEVER
    if f == SET_LACKS:
        return NEVER if has else state
    changes = has == 0 if f == SET_ADD else has != 0
    if b != UNSEEN and (b == 1) != changes:
        return NEVER
    if not changes:
        return state
    return tree_set(nodes, table, ctx, state, a, 1 if f == SET_ADD else 0)


@njit(cache=True)
def bag_step(nodes, table, ctx, data, wild, state, f, a, b):  # type: ignore[no-untyped-def]
    """Apply an operation of bags. Leaf 0 counts the crashed dequeues used.

    They only help to make the bag empty, so they are taken when it must be empty.
    """
    if f == BAG_PUT:
        return tree_set(nodes, table, ctx, state, a, tree_get(nodes, ctx, state, a) + 1)
    if f == BAG_TAKE:
        have = tree_get(nodes, ctx, state, a)
        if have == 0:
            return NEVER
        return tree_set(nodes, table, ctx, state, a, have - 1)
    used = tree_get(nodes, ctx, state, 0)
    left = nodes[state, 2] - used if state != 0 else 0
    if left == 0:
        return state
    if used + left > wild:
        return NEVER
    return tree_set(nodes, table, ctx, 0, 0, used + left)


@njit(cache=True)
def priority_step(nodes, table, ctx, data, wild, state, f, a, b):  # type: ignore[no-untyped-def]
    """Apply an operation of priority queues: the smallest id is first."""
    if f == PQ_INSERT:
        return tree_set(nodes, table, ctx, state, a, tree_get(nodes, ctx, state, a) + 1)
    if f == PQ_EMPTY:
        return state if state == 0 else NEVER
    if state == 0:
        return NEVER
    first = tree_min(nodes, ctx, state)
    if f == PQ_POP and first != a:
        return NEVER
    return tree_set(nodes, table, ctx, state, first, tree_get(nodes, ctx, state, first) - 1)


@njit(cache=True)
def stack_step(nodes, table, ctx, data, wild, state, f, a, b):  # type: ignore[no-untyped-def]
    """Apply an operation of stacks."""
    if f == STACK_PUSH:
        return intern(nodes, table, ctx, state, a, nodes[state, 2] + 1)
    if f == STACK_EMPTY:
        return state if state == 0 else NEVER
    if state == 0 or (f == STACK_POP and nodes[state, 1] != a):
        return NEVER
    return nodes[state, 0]


@njit(cache=True)
def lock_step(nodes, table, ctx, data, wild, state, f, a, b):  # type: ignore[no-untyped-def]
    """Apply an operation of locks. a = owner << 20 | deepest re-entrance; b = fencing token, or UNSEEN.

    A token must exceed the last one; that of a crashed acquire (b = 0) is the smallest possible.
    """
    limit = a & ((1 << OWNER_SHIFT) - 1)
    owner = a >> OWNER_SHIFT
    held = nodes[state, 0]
    token = nodes[state, 1]
    mine = held != 0 and held >> OWNER_SHIFT == owner
    depth = held & ((1 << OWNER_SHIFT) - 1)
    can = held == 0 or (mine and depth < limit)
    if f == LOCK_REFUSED:
        return NEVER if can else state
    if f == LOCK_NOT_OWNER:
        return NEVER if mine else state
    if f == LOCK_RELEASE:
        if not mine:
            return NEVER
        held = held - 1 if depth > 1 else 0
        if held == 0 and token == 0:
            return 0  # the empty node, which is not in the table
        return intern(nodes, table, ctx, held, token, 0)
    if not can:
        return NEVER
    if b == 0:
        token += 1
    elif b != UNSEEN:
        if b <= token:
            return NEVER
        token = b
    return intern(nodes, table, ctx, (owner << OWNER_SHIFT) + depth + 1, token, 0)


@njit(cache=True)
def log_step(nodes, table, ctx, data, wild, state, f, a, b):  # type: ignore[no-untyped-def]
    """Apply an operation of logs: append a at offset b (or UNSEEN); read a at offset b; read all (a = the list); offset
    b is beyond the end.
    """
    length = nodes[state, 2]
    if f == LOG_APPEND:
        if b != UNSEEN and b != length:
            return NEVER
        return intern(nodes, table, ctx, state, a, length + 1)
    if f == LOG_READ_ALL:
        return state if state == a else NEVER
    if f == LOG_BEYOND:
        return state if b >= length else NEVER
    if b >= length:
        return NEVER
    node = state
    for _ in range(length - 1 - b):
        node = nodes[node, 0]
    return state if nodes[node, 1] == a else NEVER


@njit(cache=True)
def counter_step(nodes, table, ctx, data, wild, state, f, a, b):  # type: ignore[no-untyped-def]
    """Apply an operation of counters: add a; read a; add a and get b."""
    if f == COUNTER_ADD:
        return state + a
    if f == COUNTER_READ:
        return state if state == a else NEVER
    return b if state + a == b else NEVER


@njit(cache=True)
def transaction_step(nodes, table, ctx, data, wild, state, f, a, b):  # type: ignore[no-untyped-def]
    """Apply a transaction to a tree of registers.

    For partitions with a single register, the codes of one register are used (``search`` handles reads and writes
    itself).
    """
    if f == CAS:
        return b if state == a else NEVER
    at = a + 1
    for _ in range(data[a]):
        if tree_get(nodes, ctx, state, data[at]) != data[at + 1]:
            return NEVER
        at += 2
    writes = data[at]
    at += 1
    for _ in range(writes):
        state = tree_set(nodes, table, ctx, state, data[at], data[at + 1])
        at += 2
    return state


_FAMILIES = (
    (APPEND_TEXT, register_step),
    (SET_READ, set_step),
    (BAG_WILD, bag_step),
    (PQ_POP_ANY, priority_step),
    (STACK_POP_ANY, stack_step),
    (LOCK_NOT_OWNER, lock_step),
    (COUNTER_ADD_GET, counter_step),
    (LOG_BEYOND, log_step),
    (TXN, transaction_step),
)


def step_for(f: int) -> Any:
    """Return the step of the family to which a code belongs, compiled or loaded from the cache at its first use."""
    step: Any = next(step for last, step in _FAMILIES if f <= last)
    if not step.signatures:
        step.compile(sig.STEP_SIGNATURE)
    return step
