"""Memory limits for stored histories, which may come from strangers: a small file can expand to a huge history."""

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
"""The environment variable that raises the limit for every command, and for the processes that a command starts."""
DEFAULT = 6 << 30
"""Bytes; enough to judge 50 million rows."""
ROW_BYTES = 100
"""The measured memory for judging a row, without its texts."""
OBJECT_BYTES = 300
"""The maximum memory of a row in the form of objects: in reports, exports and data frames."""
_COLUMNS = 64
"""The part of ROW_BYTES that a row takes as arrays; the byte counts in a footer include these columns, too."""
FOOTER_LIMITS: Mapping[str, int] = MappingProxyType({"thrift_string_size_limit": 16 << 20,
                                                     "thrift_container_size_limit": 20_000})  # fmt: skip
"""Limits for opening a Parquet file: the reader allocates lists of a footer by their declared length. 20,000 row groups
are 5,000,000,000 rows in our files."""
JSON_TIMES = 32
"""The approximate maximum ratio of a parsed JSON text's memory to the text's size."""

_PIECE = 1 << 20
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def read_size(text: str, option: str = "--max-history") -> int:
    """Return the number of bytes in a size such as ``6G``, ``500M`` or a plain number.

    Raises:
        UsageError: the text is not a size.
    """
    found = re.fullmatch(r"(\d{1,15})\s*([KMGT]?)(i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if found is None or not int(found[1]):
        raise UsageError(f"{option} {text}: write a size as 500M or 6G")
    return int(found[1]) * _UNITS[found[2].upper()]


def max_history() -> int:
    """Return the maximum bytes of memory for one history."""
    text = os.environ.get(VARIABLE)
    return read_size(text) if text else DEFAULT


def set_max_history(text: str | None) -> None:
    """Set the limit for this process, and for those that it starts from now on."""
    if text:
        os.environ[VARIABLE] = str(read_size(text))


def demand_small(footer: Any, where: object, row_bytes: int = ROW_BYTES) -> None:
    """Check by a Parquet file's footer that the content may be read, if that takes ``row_bytes`` for each row.

    Raises:
        HistoryError: reading would take more than the limit.
    """
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    rows, stored = max(0, footer.num_rows), sum(max(0, group.total_byte_size) for group in groups)
    demand_bytes(max(rows * row_bytes, rows * _COLUMNS + stored), where)


def demand_bytes(needed: int, where: object) -> None:
    """Check that a history that takes ``needed`` bytes may be read; raise HistoryError as ``demand_small`` does."""
    bound = max_history()
    if needed > bound:
        raise HistoryError(f"{where}: unpacked it would take {size(needed)}, and {size(bound)} is the bound; "
                           f"`--max-history` (or {VARIABLE}) raises it")  # fmt: skip


def demand_file(path: Path) -> None:
    """Raise HistoryError if the path is something other than a file: reading a pipe could block forever."""
    if path.exists() and not path.is_file():
        raise HistoryError(f"{path} can't be read: it is not a file")


def read_small(path: Path, times: int = JSON_TIMES) -> bytes:
    """Return the bytes of a file that takes ``times`` its size in memory once parsed.

    Raises:
        HistoryError: it would take more than the limit, or is not a file: a pipe could block forever, a device could be
            read without end. OSError: it can't be read.
    """
    # O_NONBLOCK opens a pipe at once even if it has no writer.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise HistoryError(f"{path} can't be read: it is not a file")
        demand_bytes(os.fstat(file.fileno()).st_size * times, path)
        data = bytearray()
        while piece := file.read(_PIECE):
            data += piece
            demand_bytes(len(data) * times, path)
    return bytes(data)


def read_small_text(path: Path, times: int = JSON_TIMES) -> str:
    """Return the text of a file, read as by ``read_small``; invalid UTF-8 is replaced."""
    return read_small(path, times).decode("utf-8", "replace")
