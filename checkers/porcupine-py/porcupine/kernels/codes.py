"""Operation codes and flags shared by the encoders (Python) and the kernels (compiled).

Codes are unique over all models.
"""

from __future__ import annotations

from typing import Final

# A value register: one integer of state.
READ: Final = 0
WRITE: Final = 1
CAS: Final = 2
CAS_FAILED: Final = 3
# A text register: the state is a node of the trie of every text that was read.
APPEND_TEXT: Final = 4
# A set, as a persistent bit tree.
SET_ADD: Final = 10
SET_REMOVE: Final = 11
SET_HAS: Final = 12
SET_LACKS: Final = 13
SET_READ: Final = 14
# A bag (unordered queue), as a persistent tree of counts.
BAG_PUT: Final = 20
BAG_TAKE: Final = 21
BAG_EMPTY: Final = 22
BAG_WILD: Final = 23  # a dequeue that never returned; never stepped, only counted
# A priority queue, as a persistent tree of counts.
PQ_INSERT: Final = 30
PQ_POP: Final = 31
PQ_EMPTY: Final = 32
PQ_POP_ANY: Final = 33
# A stack, as a shared list.
STACK_PUSH: Final = 40
STACK_POP: Final = 41
STACK_EMPTY: Final = 42
STACK_POP_ANY: Final = 43
# A lock: owner, depth and last fencing token.
LOCK_ACQUIRE: Final = 50
LOCK_REFUSED: Final = 51
LOCK_RELEASE: Final = 52
LOCK_NOT_OWNER: Final = 53
# A counter: one integer of state.
COUNTER_ADD: Final = 60
COUNTER_READ: Final = 61
COUNTER_ADD_GET: Final = 62
# A log, as a shared list with its length.
LOG_APPEND: Final = 70
LOG_READ: Final = 71
LOG_READ_ALL: Final = 72
LOG_BEYOND: Final = 73
# A FIFO queue (frontier search and monitor only).
FIFO_ENQUEUE: Final = 80
FIFO_DEQUEUE: Final = 81
FIFO_EMPTY: Final = 82
# Registers under transactions, as a persistent tree of values. ``a`` is a place in ``data``: number of reads, (leaf,
# value) of each, number of writes, (leaf, value) of each.
TXN: Final = 90

PURE: Final = 1
"""Flag: the operation never changes the state, in any state that admits it."""
BLIND: Final = 2
"""Flag: every state admits the operation, and the state after it does not depend on the state before."""

PENDING: Final = (1 << 63) - 1
"""Return position of an operation that never returned."""

NEVER: Final = -1
"""The result of ``step`` for an operation that the state does not admit."""
DEAD: Final = -2
"""A text that no remaining read can extend: all such texts are one state."""
ANY: Final = -3
"""The unknown state at the start of a window; over-approximates every value."""
UNSEEN: Final = -4
"""``b`` of an operation whose result is unknown."""

COUNTER_ZERO: Final = 1 << 60
"""A counter's state is its value plus this, which keeps it clear of the special states above."""

NOT_DISTINCT: Final = -1
"""A monitor's result if it does not apply: some value was put or written twice."""

OK: Final = 1
ILLEGAL: Final = 0
UNKNOWN: Final = 2
