"""Hash-consed pairs: the same contents always have the same id, so that states compare in one instruction.

A node is a pair (x, y) of integers with an auxiliary integer (a length or a sum). Node 0 is the empty structure at
every level. Lists are chains (rest, value); sets and bags are perfect binary trees over dense value ids whose leaves
are counts, copied along one path per update; counts are stored negated, which distinguishes leaves from ids of nodes
(Driscoll et al. 1989, *Making data structures persistent*; Filliâtre & Conchon 2006 on hash-consing). Contents decide
the id, exactly; no probabilistic hashing is involved.

The kernels pass three arrays: ``nodes`` (a row per node: x, y, aux, unused), ``table`` (open addressing, ids) and
``ctx`` (number of nodes, depth of trees, scratch space).
"""

from __future__ import annotations

import numpy as np
from numba import njit

MAX_NEW_NODES = 64
"""The most nodes that one change of a tree adds; a caller provides room for them first. Lists add one."""

COUNT = 0
"""Place in ``ctx`` of the number of nodes."""
DEPTH = 1
"""Place in ``ctx`` of the depth of trees."""
PATH = 2
"""First place in ``ctx`` of the scratch space of ``tree_set``."""
CTX_SIZE = PATH + 64

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xC2B2AE3D27D4EB4F)


@njit(cache=True)
def place_of(nodes, table, x, y):  # type: ignore[no-untyped-def]
    """Return the place in the table of the node (x, y), or of the gap where it belongs."""
    size = np.uint64(table.size - 1)
    h = np.uint64(x) * _MULTIPLIER + np.uint64(y)
    h ^= h >> np.uint64(29)
    h *= _SECOND
    place = (h ^ (h >> np.uint64(32))) & size
    while table[place] != 0 and (nodes[table[place], 0] != x or nodes[table[place], 1] != y):
        place = (place + np.uint64(1)) & size
    return place


@njit(cache=True)
def find(nodes, table, x, y):  # type: ignore[no-untyped-def]
    """Return the id of the node (x, y), or -1."""
    node = np.int64(table[place_of(nodes, table, x, y)])
    return node if node else np.int64(-1)


@njit(cache=True)
def intern(nodes, table, ctx, x, y, aux):  # type: ignore[no-untyped-def]
    """Return the id of the node (x, y), created if needed."""
    place = place_of(nodes, table, x, y)
    if table[place]:
        return np.int64(table[place])
    node = ctx[COUNT]
    ctx[COUNT] = node + 1
    nodes[node, 0] = x
    nodes[node, 1] = y
    nodes[node, 2] = aux
    table[place] = node
    return node


@njit(cache=True)
def make_table(nodes, count, size):  # type: ignore[no-untyped-def]
    """Build a table of all nodes; ``size`` is a power of two."""
    table = np.zeros(size, np.int32)
    for node in range(1, count):
        table[place_of(nodes, table, nodes[node, 0], nodes[node, 1])] = node
    return table


@njit(cache=True)
def tree_get(nodes, ctx, root, index):  # type: ignore[no-untyped-def]
    """Return the count stored at a leaf."""
    node = root
    for level in range(ctx[DEPTH] - 1, -1, -1):
        node = nodes[node, (index >> level) & 1]
    return -node


@njit(cache=True)
def tree_set(nodes, table, ctx, root, index, value):  # type: ignore[no-untyped-def]
    """Return the root of the tree with ``value`` at a leaf."""
    node = root
    for level in range(ctx[DEPTH] - 1, -1, -1):
        ctx[PATH + level] = node
        node = nodes[node, (index >> level) & 1]
    node = -value
    for level in range(ctx[DEPTH]):
        above = ctx[PATH + level]
        x = nodes[above, 0]
        y = nodes[above, 1]
        if (index >> level) & 1:
            y = node
        else:
            x = node
        if x == 0 and y == 0:
            node = 0
        else:
            node = intern(nodes, table, ctx, x, y, -x - y if level == 0 else nodes[x, 2] + nodes[y, 2])
    return node


@njit(cache=True)
def tree_min(nodes, ctx, root):  # type: ignore[no-untyped-def]
    """Return the index of the first leaf that is not zero, of a tree that is not empty."""
    node = root
    index = 0
    for _ in range(ctx[DEPTH]):
        side = 0 if nodes[node, 0] else 1
        index = index << 1 | side
        node = nodes[node, side]
    return index
