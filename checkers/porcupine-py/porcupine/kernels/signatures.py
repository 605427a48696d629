"""Numba types of the kernels' arguments. Callers' arrays are read-only in the signatures, as Arrow's buffers are."""

from __future__ import annotations

from numba import types

COLUMN = types.Array(types.int64, 1, "C", readonly=True)
"""A caller's array of 64-bit integers."""
BUFFER = types.Array(types.int64, 1, "C")
"""An array that a kernel writes."""
ROWS = types.Array(types.int64, 2, "C")
"""A table that a kernel writes."""
ROWS_IN = types.Array(types.int64, 2, "C", readonly=True)
"""A caller's table."""
IDS = types.Array(types.int32, 1, "C")
"""A hash table of places."""
I64 = types.int64
BOOL = types.boolean
VOID = types.void
SEARCH = (ROWS, COLUMN, COLUMN, COLUMN, I64, COLUMN, ROWS_IN, I64, I64, COLUMN, BUFFER, ROWS)
"""The arguments of the search after the step."""
FOUND = types.UniTuple(types.int64, 4)
"""A monitor's pattern and places."""
STEP_SIGNATURE = I64(ROWS, IDS, BUFFER, COLUMN, I64, I64, I64, I64, I64)
"""(nodes, table, ctx, data, wild, state, f, a, b) -> state."""
STEP = types.FunctionType(STEP_SIGNATURE)
"""A sequential specification, passed to the search as a pointer: a new model compiles its step only, not the search."""
