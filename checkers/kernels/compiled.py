"""The one decorator that compiles a kernel, and the types in which kernels take their columns.

Arrow hands out read-only buffers, which Numba takes for another type; a kernel declared over read-only
arrays accepts both, so every input is declared so. Explicit signatures make the import of a kernel module load
(or fill) the cache on disk, and no call ever compiles.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import types

from checkers.caches import cache_dir

Function = TypeVar("Function", bound=Callable[..., Any])

I8 = types.Array(types.int8, 1, "C", readonly=True)
I32 = types.Array(types.int32, 1, "C", readonly=True)
I64 = types.Array(types.int64, 1, "C", readonly=True)

OUT_I8 = types.Array(types.int8, 1, "C")
OUT_I32 = types.Array(types.int32, 1, "C")
OUT_I64 = types.Array(types.int64, 1, "C")


def _place_cache() -> bool:
    """Let Numba keep machine code beside the sources if it may, else in the user's cache; false if nowhere."""
    if numba.config.CACHE_DIR:
        return True
    beside = Path(__file__).parent / "__pycache__"
    if os.access(beside if beside.exists() else beside.parent, os.W_OK):
        return True
    place = cache_dir()
    if place is None:
        return False
    numba.config.CACHE_DIR = str(place / "numba")
    return True


_CACHED = _place_cache()


def kernel(signature: Any) -> Callable[[Function], Function]:
    """Compile a function for one signature, ahead of its first call, cached on disk where that is possible.

    Kernels are compiled without bounds checks: whoever calls one has validated every index in its inputs.
    """

    def compile_it(function: Function) -> Function:
        compiled: Function = numba.njit(signature, cache=_CACHED, nogil=True)(function)
        return compiled

    return compile_it
