"""Compilation of user-defined models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Step = Callable[[int, int, int, int], int]


def compile_step(step: Step) -> Any:
    """Compile ``step(state, f, a, b) -> state``, for ``CompiledModel.kernel`` to return; all are 64-bit integers.

    It returns the state after the operation, or -1 if the state does not admit it; so -1 and -3 must not be states.
    ``f`` is the operation's code, 100 or more; ``a`` and ``b`` are the values that ``encode`` stored. Only the step's
    code is compiled (about a second, in each process): the search calls it through a pointer. Raises Numba's
    TypingError for code that Numba can't compile.
    """
    from numba import njit

    from .kernels import signatures as sig

    inner = njit(step)

    @njit(sig.STEP_SIGNATURE)
    def compiled(nodes, table, ctx, data, wild, state, f, a, b):  # type: ignore[no-untyped-def]
        return inner(state, f, a, b)

    return compiled
