"""The index over a store: STORE/index.html, a row per run, newest first.

The page holds the newest rows; older ones are in files of STORE/index/, each with a fixed number of rows, which the
page loads when it needs them. A file's name is a digest of its content: no file is ever changed, and files that no page
names are removed.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from reports.pack import inert_json
from reports.page import render, write_page
from reports.summaries import IndexRow, index_rows, locked, read_rows, run_stamps
from stormproof.errors import HistoryError
from stormproof.history.read_limits import read_small_text

__all__ = ["IndexRow", "index_rows", "is_part", "run_stamps", "write_index"]

STYLES = ("base.css", "index.css")
SCRIPTS = ("dom.js", "theme.js", "index_data.js", "index.js")
PARTS = "index"
"""The folder in a store."""
PART_ROWS = 500
LEAST_ROWS = 100
"""Lower bound of the rows that the page itself holds: the first that it shows."""
PAGES = {"trend.html": "Trends", "matrix.html": "Guarantees", "triage.html": "Kinds of failure"}
"""Other pages over the whole store, which the index links if they exist."""
_PART = re.compile(r"rows-[0-9a-f]{20}\.js", re.ASCII)
_WORDS = ("verdict", "system", "workload", "nemesis", "backend", "options", "status", "night")
"""Columns that hold few different values."""


def is_part(name: str) -> bool:
    """Return whether a file's name is one that a part of an index may have."""
    return _PART.fullmatch(name) is not None


def write_index(store: Path) -> Path:
    """Write STORE/index.html over all runs of the store.

    Raises:
        HistoryError: there is no such store, or the page can't be written.
    """
    with locked(store):
        entries = read_rows(store)
        full = max(0, len(entries) - LEAST_ROWS) // PART_ROWS * PART_ROWS
        parts = [entries[at : at + PART_ROWS] for at in range(0, full, PART_ROWS)]
        names = [_write_part(store / PARTS, part) for part in parts]
        rows = [row for row, _ in entries]
        page = write_page(store / "index.html", _page(store, rows, full, names))
        _remove_parts(store / PARTS, set(names))
    return page


def _page(store: Path, rows: Sequence[IndexRow], full: int, names: Sequence[str]) -> str:
    counts = Counter(row.verdict for row in rows)
    context = {
        "store": store.resolve().name,
        "total": len(rows),
        "counts": [(word, counts[word]) for word in ("invalid", "unknown", "valid", "none") if counts[word]],
        "pages": [(name, words) for name, words in PAGES.items() if (store / name).exists()],
    }
    data = {
        "parts": [{"file": f"{PARTS}/{name}", "rows": PART_ROWS} for name in names],
        "tail": packed(rows[full:]),
        "choices": {
            "system": _choices(row.system for row in rows),
            "nemesis": _choices(name for each in _choices(row.nemesis for row in rows) for name in each.split(",")),
            "backend": _choices(row.backend for row in rows),
            "night": _choices(row.night for row in rows)[::-1],
        },
    }
    return render("index.html", STYLES, SCRIPTS, data, context, loads=True)


def _choices(values: Iterable[str]) -> list[str]:
    return sorted(set(values) - {""})


def packed(rows: Sequence[IndexRow]) -> dict[str, Any]:
    """Return rows as short lists: recurring values are indices into a list of words."""
    words: dict[str, int] = {}

    def word(text: str) -> int:
        return words.setdefault(text, len(words))

    lists = [
        [row.run, row.sentence, row.seed, row.started, int(row.report), list(row.anomalies.items()),
         word(", ".join(f"{name} {shown}" for name, shown in row.guarantees.items())),
         *(word(getattr(row, name)) for name in _WORDS)]
        for row in rows
    ]  # fmt: skip
    return {"words": list(words), "columns": ["guarantees", *_WORDS], "rows": lists}


def _write_part(folder: Path, part: Sequence[tuple[IndexRow, int]]) -> str:
    told = "\n".join(f"{row.run} {crc:x}" for row, crc in part)
    digest = hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()[:20]
    name = f"rows-{digest}.js"
    path = folder / name
    if folder.is_symlink():
        raise HistoryError(f"{folder}: can't write the index there: it is a link")
    try:
        if not _is_whole(path):
            folder.mkdir(exist_ok=True)
            text = _script(name, packed([row for row, _ in part]))
            write_page(path, f"{text}\n//{zlib.crc32(text.encode()):08x}\n")
    except OSError as error:
        raise HistoryError(f"{path}: can't write the index ({error.strerror or error})") from error
    return name


def _script(name: str, rows: Any) -> str:
    return f"stormproofRows({inert_json(name)},{inert_json(rows)});"


def part_script(path: Path) -> bytes | None:
    """Return a part in a form that may be sent to a browser; None if the file is not a part.

    A store may be untrusted: for any content of the file, the result only passes data and has no other effect.
    """
    try:
        text = read_small_text(path).partition("\n")[0]
        before = f"stormproofRows({inert_json(path.name)},"
        if text.startswith(before) and text.endswith(");"):
            return _script(path.name, json.loads(text[len(before) : -2])).encode()
    except (OSError, ValueError, RecursionError, HistoryError):
        pass
    return None


def _is_whole(path: Path) -> bool:
    """Return whether a part is complete: its last line has the checksum of the text above."""
    try:
        text, _, crc = path.read_bytes().rstrip(b"\n").rpartition(b"\n//")
    except OSError:
        return False
    return b"%08x" % zlib.crc32(text) == crc


def _remove_parts(folder: Path, used: set[str]) -> None:
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.name not in used and (is_part(path.name) or path.name.startswith(".page-")):
            path.unlink(missing_ok=True)
    if not used and not any(folder.iterdir()):
        folder.rmdir()
