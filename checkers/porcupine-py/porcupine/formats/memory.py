"""The limit on the memory of a history while it is read: a small file can unpack to a huge one."""

from __future__ import annotations

import re
import sys
from typing import Any

from ..types import PorcupineError
from ..values import Typed

MAX_HISTORY = 4 << 30
"""Default limit in bytes."""
ROW_BYTES = 400
"""Memory of an event: its row and its half of an operation, without its value."""
MAX_DEPTH = 100
"""Maximum depth of nested values: no value of a history is nested deeper."""

COLLECTION_BYTES, ITEM_BYTES = 240, 64
"""Lower bounds of the memory of a list, map or set, and of each of its entries, small ones included."""
_SMALL_TEXT = 4096
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def read_size(text: str) -> int:
    """Parse a size as users write it (``6G``, ``500M`` or a plain number) to bytes. Raises ValueError if the text is
    not a size.
    """
    found = re.fullmatch(r"(\d{1,15})\s*([KMGT]?)(i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if found is None or not int(found[1]):
        raise ValueError("write a size as 500M or 6G")
    return int(found[1]) * _UNITS[found[2].upper()]


def _shown(size: int) -> str:
    power = min(4, max(0, size.bit_length() - 1) // 10)
    return f"{size / (1 << 10 * power):.3g} {('', 'Ki', 'Mi', 'Gi', 'Ti')[power]}B"


class MemoryMeter:
    """Counts the memory that reading one file takes, and stops it before it exceeds the limit."""

    def __init__(self, most: int, name: str) -> None:
        self.most, self.name = most, name
        self._taken = 0

    @property
    def left(self) -> int:
        """Bytes that may still be taken."""
        return self.most - self._taken

    def demand(self, size: int, line: int = 0) -> None:
        """Verify that ``size`` more bytes may be taken. Raises PorcupineError, with the line, if they may not."""
        if size > self.left:
            where = f"{self.name}:{line}" if line else self.name
            raise PorcupineError(f"{where}: read, it would take more than {_shown(self.most)}; --max-history raises "
                                 "the bound")  # fmt: skip

    def take(self, size: int, line: int = 0) -> None:
        """Count bytes that are kept. Raises PorcupineError as ``demand`` does."""
        self.demand(size, line)
        self._taken += size

    def give_back(self, size: int) -> None:
        """Subtract bytes that are no longer kept."""
        self._taken -= size

    def take_row(self, value: Any, line: int) -> None:
        """Count an event with its value.

        Raises PorcupineError as ``demand`` does, or for a value that is nested deeper than MAX_DEPTH.
        """
        if value is None or type(value) in (int, float, bool, str):
            self.take(ROW_BYTES + sys.getsizeof(value), line)
            return
        size, depth = weight(value)
        if depth > MAX_DEPTH:
            raise PorcupineError(f"{self.name}:{line}: nested too deeply")
        self.take(ROW_BYTES + 2 * size, line)  # in the form that was read, and in the form that models keep


def weight(value: Any) -> tuple[int, int]:
    """Return the bytes that a value takes, and the depth of its nesting."""
    size, depth, level = 0, 0, [value]
    while level:
        below: list[Any] = []
        for each in level:
            size += sys.getsizeof(each)
            if isinstance(each, dict):
                below += each.keys()
                below += each.values()
            elif isinstance(each, list | tuple | frozenset):
                below += each
            elif isinstance(each, Typed):
                below.append(each.value)
        level = below
        depth += 1
    return size, depth


def json_size(text: str) -> int:
    """Return a lower bound of the bytes that the values of a JSON text take; 0 for a short one, which takes little."""
    if len(text) < _SMALL_TEXT:
        return 0
    collections = text.count("[") + text.count("{")
    return collections * COLLECTION_BYTES + (text.count(",") + text.count(":")) * ITEM_BYTES + 2 * sys.getsizeof(text)
