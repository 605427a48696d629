"""Formatting of texts for people."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Sequence

from stormproof.errors import UsageError

MAX_SEEDS = 1_000_000
"""The maximum number of seeds in a list."""


def escaped(text: object) -> str:
    """Return a text on one line without characters that move a terminal's cursor: control characters, line breaks,
    marks of writing direction and lone surrogates are written as escapes."""
    told = str(text)
    return told if told.isprintable() else "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in told)


def amount(count: int, one: str, more: str = "") -> str:
    """Return a number with its noun (and verb) in natural form: ``more`` is ``one`` with an s unless given."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def listed(names: Sequence[str]) -> str:
    """Return ``n1, n2 and n3``."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def size(count: int) -> str:
    """Return a number of bytes in readable form: ``512 bytes``, ``1.5 GiB``."""
    if count < 1 << 10:
        return amount(count, "byte")
    power = min(4, (count.bit_length() - 1) // 10)
    return f"{count / (1 << 10 * power):.3g} {'KMGT'[power - 1]}iB"


def elapsed(seconds: float) -> str:
    """Return a duration in readable form, never rounded to zero: ``37 ms``, ``0.412 s``, ``12.3 s``, ``1,830 s``."""
    if 0 < seconds < 0.001:
        return "less than 1 ms"
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"


_FRAME = re.compile(r"\s+(at \S+\(.*\)( ~?\[.*\])?|\.\.\. \d+ (more|common frames omitted))\s*")
"""A line of a stack trace of Java's, which says nothing without the exception above."""


def last_words(log: bytes) -> str:
    """Return the last line of a log outside the frames of stack traces; empty if there is none."""
    lines = [line for line in log.decode(errors="replace").splitlines() if line.strip()]
    return next((line.strip() for line in reversed(lines) if not _FRAME.fullmatch(line)), "")


LONGEST_REASON = 500
"""The maximum number of characters kept from an error."""


def markdown_cell(text: str) -> str:
    """Return a text as one cell of a Markdown table, with all markup escaped."""
    return re.sub(r"([\\`*_{}\[\]<>#!|~&])", r"\\\1", " ".join(text.split()))


def printable(text: str, most: int = LONGEST_REASON) -> str:
    """Return a foreign text on one line that every encoding can write, cut to ``most`` characters."""
    line = " ".join(text[: 4 * most].split())
    line = line.encode("utf-8", "backslashreplace").decode()
    return line if len(line) <= most else f"{line[: most - 1]}…"


def words_of(error: BaseException) -> str:
    """Return an error's text, as ``printable`` does; empty if it has none, or if producing it fails."""
    try:
        return printable(str(error))
    except Exception:
        return ""


def reason(error: BaseException) -> str:
    """Return an error as its type and its text."""
    words = words_of(error)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def place_of(error: BaseException) -> str:
    """Return ``FILE:LINE`` of the statement that raised an error; empty if unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def seeds_of(given: str | int | Iterable[int]) -> list[int]:
    """Return the seeds in a text such as ``7``, ``1-20``, ``1-5,9``, or in several numbers, each once.

    Raises:
        UsageError: they are not seeds.
    """
    if isinstance(given, str):
        found: list[int] = []
        for part in given.split(","):
            match = re.fullmatch(r"\s*(\d{1,19})\s*(?:-\s*(\d{1,19})\s*)?", part, re.ASCII)
            if match is None:
                raise UsageError(f"seeds {given!r}: write them as 7, 1-20 or 1-5,9")
            first, last = int(match[1]), int(match[2] or match[1])
            if not 0 <= last - first < MAX_SEEDS:
                raise UsageError(f"seeds {given!r}: from the lower to the higher, and at most {MAX_SEEDS:,}")
            found += range(first, last + 1)
    else:
        found = [given] if isinstance(given, int) else list(given)
    if not found or not all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in found):
        raise UsageError(f"seeds {given!r}: whole numbers from 0, at least one")
    return list(dict.fromkeys(found))
