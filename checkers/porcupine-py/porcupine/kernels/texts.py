"""Texts as nodes of a trie, all built at once.

The distinguishable states of a text register are the prefixes of the texts that are read from it. A node is a pair
(parent, character) of the pool, so the search finds the result of an append in the same table.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from . import signatures as sig
from .codes import DEAD
from .pool import COUNT, CTX_SIZE, find, intern


@njit(
    types.Tuple((sig.ROWS, sig.BUFFER))(sig.I64, sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.COLUMN, sig.I64),
    cache=True,
    nogil=True,
)
def text_nodes(parts, part, kind, ends, units, observed):  # type: ignore[no-untyped-def]
    """Return (nodes, node of each text). Text i is ``units[ends[i - 1]:ends[i]]``, of partition ``part[i]``.

    If ``kind[i]`` is 1, an operation observes the text. If it is 0 the text is only looked up, and its node is DEAD if
    no observed text begins with it. ``observed``: units of all observed texts. Node ``p + 1`` is the empty text of
    partition p.
    """
    ctx = np.zeros(CTX_SIZE, np.int64)
    ctx[COUNT] = 1
    nodes = np.zeros((parts + observed + 2, 3), np.int64)
    size = 256
    while size < 2 * nodes.shape[0]:
        size *= 2
    table = np.zeros(size, np.int32)
    for p in range(parts):
        intern(nodes, table, ctx, -p - 1, 0, 0)
    found = np.empty(part.size, np.int64)
    for observing in (1, 0):
        begin = np.int64(0)
        for i in range(part.size):
            if kind[i] == observing:
                node = part[i] + 1
                for at in range(begin, ends[i]):
                    if observing:
                        node = intern(nodes, table, ctx, node, units[at], 0)
                    else:
                        node = find(nodes, table, node, units[at])
                        if node < 0:
                            node = np.int64(DEAD)
                            break
                found[i] = node
            begin = ends[i]
    return nodes[: ctx[COUNT]].copy(), found
