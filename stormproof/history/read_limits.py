"""How much memory a stored history may take: it may come from strangers, and a small file can hold a huge one."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from stormproof.errors import HistoryError, UsageError
from stormproof.text import size

VARIABLE = "STORMPROOF_MAX_HISTORY"
"""The environment variable that raises the bound for every command, and for the processes that a command starts."""
DEFAULT = 6 << 30
"""Bytes; enough to judge 50 million rows."""
ROW_BYTES = 100
"""What judging takes for a row, its texts aside, as measured."""
OBJECT_BYTES = 300
"""What a row takes at most where it becomes objects: in reports, exports and data frames."""
_COLUMNS = 64
"""Of ROW_BYTES, what a row takes as arrays; the bytes that a footer tells are of these columns, too."""
FOOTER_LIMITS: Mapping[str, int] = MappingProxyType({"thrift_string_size_limit": 16 << 20,
                                                     "thrift_container_size_limit": 20_000})  # fmt: skip
"""For whoever opens a Parquet file: room for lists of a footer is made by what it says of their length. 20,000 groups
of rows are 5,000,000,000 rows as we write them."""
JSON_TIMES = 32
"""What a JSON text takes once it is read, as a multiple of its size: at most about this."""

_PIECE = 1 << 20
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def read_size(text: str, option: str = "--max-history") -> int:
    """The bytes that a person means by ``6G``, ``500M`` or a plain number.

    Raises:
        UsageError: it is no size.
    """
    found = re.fullmatch(r"(\d{1,15})\s*([KMGT]?)(i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if found is None or not int(found[1]):
        raise UsageError(f"{option} {text}: write a size as 500M or 6G")
    return int(found[1]) * _UNITS[found[2].upper()]


def max_history() -> int:
    """Bytes that one history may take in memory."""
    text = os.environ.get(VARIABLE)
    return read_size(text) if text else DEFAULT


def set_max_history(text: str | None) -> None:
    """Let this process, and those that it starts from now on, take as much for a history."""
    if text:
        os.environ[VARIABLE] = str(read_size(text))


def demand_small(footer: Any, where: object, row_bytes: int = ROW_BYTES) -> None:
    """See by a Parquet file's footer that what it holds may be read, where that takes ``row_bytes`` for each row.

    Raises:
        HistoryError: it would take more than the bound.
    """
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    rows, stored = max(0, footer.num_rows), sum(max(0, group.total_byte_size) for group in groups)
    demand_bytes(max(rows * row_bytes, rows * _COLUMNS + stored), where)


def demand_bytes(needed: int, where: object) -> None:
    """See that a history that takes so many bytes may be read; raises HistoryError as ``demand_small`` does."""
    bound = max_history()
    if needed > bound:
        raise HistoryError(f"{where}: unpacked it would take {size(needed)}, and {size(bound)} is the bound; "
                           f"`--max-history` (or {VARIABLE}) raises it")  # fmt: skip


def demand_file(path: Path) -> None:
    """Raises HistoryError where something else than a file has this path: a pipe would be waited for without end."""
    if path.exists() and not path.is_file():
        raise HistoryError(f"{path} can't be read: it is no file")


def read_small(path: Path, times: int = JSON_TIMES) -> bytes:
    """The bytes of a file that will take ``times`` its size once it is read.

    Raises:
        HistoryError: it would take more than the bound, or is something else than a file: a pipe could be waited for
            without end, a device be read without end. OSError: it can't be read.
    """
    # A pipe is opened at once then, though nobody writes to it.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise HistoryError(f"{path} can't be read: it is no file")
        demand_bytes(os.fstat(file.fileno()).st_size * times, path)
        data = bytearray()
        while piece := file.read(_PIECE):
            data += piece
            demand_bytes(len(data) * times, path)
    return bytes(data)


def read_small_text(path: Path, times: int = JSON_TIMES) -> str:
    """As ``read_small``, as text; what is no UTF-8 is replaced."""
    return read_small(path, times).decode("utf-8", "replace")
