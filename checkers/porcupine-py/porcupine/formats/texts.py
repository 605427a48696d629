"""Lines of large texts."""

from __future__ import annotations

from collections.abc import Iterator


def lines_of(text: str) -> Iterator[str]:
    """The lines of a text as ``split`` gives them, one at a time: a list of all could be larger than the text."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]
