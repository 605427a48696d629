"""The decorator that compiles a kernel, and the types of the columns that kernels take.

Arrow hands out read-only buffers, which Numba treats as a separate type. A kernel declared over read-only arrays
accepts both, so every input is declared so. Explicit signatures make the import of a kernel module load (or fill) the
cache on disk, so no call ever compiles.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import types

from stormproof.caches import cache_dir

Function = TypeVar("Function", bound=Callable[..., Any])

I8 = types.Array(types.int8, 1, "C", readonly=True)
I32 = types.Array(types.int32, 1, "C", readonly=True)
I64 = types.Array(types.int64, 1, "C", readonly=True)

OUT_I8 = types.Array(types.int8, 1, "C")
OUT_I32 = types.Array(types.int32, 1, "C")
OUT_I64 = types.Array(types.int64, 1, "C")


def _place_cache() -> bool:
    """Let Numba store machine code next to the sources if it may, else in the user's cache; return False if neither
    works.
    """
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
    """Compile a function for one signature, ahead of its first call, cached on disk if possible.

    Kernels are compiled without bounds checks: their caller must have validated every index in their inputs.
    """

    def compile_it(function: Function) -> Function:
        compiled: Function = numba.njit(signature, cache=_CACHED, nogil=True)(function)
        return compiled

    return compile_it
