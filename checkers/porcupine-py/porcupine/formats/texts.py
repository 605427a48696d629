"""Lines of large texts."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE = re.compile(r"[^\n]+")
_NOTHING = re.compile(r"(?:\s++|;[^\n]*+)*+")


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbers (from 1) and lines of a text, without empty ones, one at a time.

    A list of all lines could be larger than the text.
    """
    number, after = 1, 0
    for found in _LINE.finditer(text):
        start = found.start()
        number += start - after  # only line breaks separate two matches
        after = found.end()
        yield number, found.group()


def first_line(text: str) -> tuple[int, str]:
    """Return number and beginning of the first line with more than blanks and a comment; 0 and an empty text without
    one.
    """
    found = _NOTHING.match(text)
    start = found.end() if found else 0
    if start == len(text):
        return 0, ""
    end = text.find("\n", start)
    return text.count("\n", 0, start) + 1, text[start : end if end >= 0 else len(text)]
