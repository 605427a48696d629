"""Configurations of a search: rows of words with bit masks, and the hash table of the known ones."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(inline="always")
def has_bit(row, base, place):  # type: ignore[no-untyped-def]
    """Return whether a bit of the mask that starts at word ``base`` is set."""
    return (row[base + (place >> 6)] >> (place & 63)) & 1 != 0


@njit(inline="always")
def set_bit(row, base, place):  # type: ignore[no-untyped-def]
    """Set a bit of a mask."""
    row[base + (place >> 6)] |= np.int64(1) << (place & 63)


@njit(inline="always")
def clear_bit(row, base, place):  # type: ignore[no-untyped-def]
    """Clear a bit of a mask."""
    row[base + (place >> 6)] &= ~(np.int64(1) << (place & 63))


@njit(cache=True)
def copy_row(target, source):  # type: ignore[no-untyped-def]
    """Copy a row. This is a loop because a slice uses Numba's broadcasting, which takes seconds to compile."""
    for i in range(source.size):
        target[i] = source[i]


@njit(cache=True)
def copy_rows(target, source, low, high):  # type: ignore[no-untyped-def]
    """Copy some rows of a table."""
    for i in range(low, high):
        for j in range(source.shape[1]):
            target[i, j] = source[i, j]


@njit(inline="always")
def hash_row(row, length):  # type: ignore[no-untyped-def]
    """Return a mixed hash of the first words of a row."""
    h = np.uint64(0x9E3779B97F4A7C15)
    for i in range(length):
        h = (h ^ np.uint64(row[i])) * np.uint64(0xC2B2AE3D27D4EB4F)
        h ^= h >> np.uint64(29)
    h *= np.uint64(0x9E3779B97F4A7C15)
    return h ^ (h >> np.uint64(32))


@njit(cache=True)
def known(rows, seen, row, crash):  # type: ignore[no-untyped-def]
    """Return the place in ``seen`` for a new row, or -1 if a known row makes it redundant.

    Such a row is equal except for crashed operations, and used no others than the new one.
    """
    size = np.uint64(seen.size - 1)
    place = hash_row(row, crash) & size
    while seen[place] != 0:
        old = seen[place] - 1
        i = 0
        while i < crash and rows[old, i] == row[i]:
            i += 1
        if i == crash:
            while i < row.size and not rows[old, i] & ~row[i]:
                i += 1
            if i == row.size:
                return np.int64(-1)
        place = (place + np.uint64(1)) & size
    return np.int64(place)


@njit(cache=True)
def larger_seen(rows, n_rows, size, crash):  # type: ignore[no-untyped-def]
    """Return a larger table of the known rows."""
    seen = np.zeros(size, np.int32)
    mask = np.uint64(size - 1)
    for i in range(n_rows):
        place = hash_row(rows[i], crash) & mask
        while seen[place] != 0:
            place = (place + np.uint64(1)) & mask
        seen[place] = i + 1
    return seen


@njit(inline="always")
def doubled(old, used):  # type: ignore[no-untyped-def]
    """Return a copy of the first ``used`` rows with twice the room."""
    new = np.empty((old.shape[0] * 2, old.shape[1]), np.int64)
    copy_rows(new, old, 0, used)
    return new
