"""The index over a store: STORE/index.html, one row per run, newest first."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from reports.folder import mapping, named_options, number, read_object, sequence
from reports.pack import shorten
from reports.page import render, write_page
from stormproof.contracts.check import VERDICTS
from stormproof.errors import HistoryError
from stormproof.run_folder import REPORT, RUN_FILE, VERDICT_FILE, upgraded

STYLES = ("base.css", "index.css")
SCRIPTS = ("dom.js", "theme.js", "index.js")

CACHE = ".index-cache.json"
CACHE_FORMAT = 2


@dataclass(frozen=True)
class IndexRow:
    """One run in the index. ``verdict`` is ``none`` without one; ``anomalies`` maps names to counts."""

    run: str
    verdict: str
    sentence: str
    system: str
    workload: str
    nemesis: str
    backend: str
    seed: str
    options: str
    started: str
    status: str
    anomalies: dict[str, int]
    report: bool


def write_index(store: Path) -> Path:
    """Write STORE/index.html over all runs of the store.

    What was read of a run is kept beside the index and read again only when the run's files changed.

    Raises:
        HistoryError: there is no such store, or the page can't be written.
    """
    rows = index_rows(store)
    counts = Counter(row.verdict for row in rows)
    context = {
        "store": store.resolve().name,
        "total": len(rows),
        "counts": [(word, counts[word]) for word in ("invalid", "unknown", "valid", "none") if counts[word]],
    }
    data = {"runs": [asdict(row) for row in rows]}
    return write_page(store / "index.html", render("index.html", STYLES, SCRIPTS, data, context))


def index_rows(store: Path) -> list[IndexRow]:
    """A row per run folder of the store, newest first.

    Raises:
        HistoryError: the store is no folder that can be read.
    """
    known = _read_cache(store)
    seen: dict[str, dict[str, Any]] = {}
    for name, stamp in run_stamps(store).items():
        entry = known.get(name)
        if entry is None or entry["stamp"] != stamp:
            entry = {"stamp": stamp, "row": asdict(_row(store / name))}
        seen[name] = entry
    if seen != known:
        write_page(store / CACHE, json.dumps({"format": CACHE_FORMAT, "runs": seen}))
    rows = [IndexRow(**entry["row"]) for entry in seen.values()]
    return sorted(rows, key=lambda row: (row.started, row.run), reverse=True)


def run_stamps(store: Path) -> dict[str, list[int]]:
    """Per run folder, times and sizes of the files its row is made of: equal stamps, equal row.

    Raises:
        HistoryError: the store is no folder that can be read.
    """
    stamps: dict[str, list[int]] = {}
    try:
        names = sorted(entry.name for entry in os.scandir(store) if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise HistoryError(f"{store}: can't read this store of runs ({error.strerror or error})") from error
    for name in names:
        stamp = [part for file in (RUN_FILE, VERDICT_FILE) for part in _stamp(store / name / file)]
        if stamp[1] >= 0:
            stamps[name] = [*stamp, int((store / name / REPORT).exists())]
    return stamps


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, -1
    return status.st_mtime_ns, status.st_size


def _read_cache(store: Path) -> dict[str, dict[str, Any]]:
    """What the last index knew; nothing when the cache is missing, broken or of another format."""
    cache = read_object(store / CACHE, []) or {}
    if cache.get("format") != CACHE_FORMAT or not isinstance(cache.get("runs"), dict):
        return {}
    columns = {field.name for field in fields(IndexRow)}
    entries = ((name, mapping(entry)) for name, entry in cache["runs"].items())
    return {
        name: dict(entry) for name, entry in entries if "stamp" in entry and set(mapping(entry.get("row"))) == columns
    }


def _row(run_dir: Path) -> IndexRow:
    notes: list[str] = []
    run = upgraded(read_object(run_dir / RUN_FILE, notes) or {})
    verdict = read_object(run_dir / VERDICT_FILE, notes) or {}
    test = mapping(run.get("test"))
    word = str(verdict.get("verdict"))
    status = str(run.get("status") or "")
    return IndexRow(
        run=run_dir.name,
        verdict=word if word in VERDICTS else "none",
        sentence=shorten(str(verdict.get("sentence") or run.get("failure") or (notes[0] if notes else status))),
        system=_text(test, "system"),
        workload=_text(test, "workload"),
        nemesis=",".join(str(name) for name in sequence(test.get("nemesis"))) or "none",
        backend=_text(mapping(run.get("backend")), "name"),
        seed=_text(test, "seed"),
        options=shorten(" ".join(named_options(test))),
        started=_text(run, "started"),
        status=status,
        anomalies=_counts(mapping(verdict.get("anomalies"))),
        report=(run_dir / REPORT).exists(),
    )


def _counts(anomalies: Mapping[str, Any]) -> dict[str, int]:
    counted = {shorten(str(name), 60): number(count) for name, count in anomalies.items()}
    return {name: int(count) for name, count in counted.items() if count}


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    return "" if value is None else shorten(str(value), 80)
