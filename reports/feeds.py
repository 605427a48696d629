"""The feeds of a store's web server for programs: its runs as JSON, and counts in the text format of Prometheus."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from urllib.parse import parse_qsl

from reports.summaries import IndexRow

JSON_TYPE = "application/json"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FILTERS = ("verdict", "system", "workload", "nemesis", "backend", "seed", "status", "night")
"""Columns by which runs can be selected."""
MAX_ROWS = 1000
_DEFAULT_ROWS = 100


class BadQuery(Exception):
    """The query is invalid; the text gives the reason."""


def runs(rows: Sequence[IndexRow], query: str) -> bytes:
    """Return the runs that a query selects, newest first: ``?verdict=invalid&system=joram&limit=50&offset=100``.

    Raises:
        BadQuery: a name is unknown, or a number is invalid.
    """
    asked = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=20))
    limit, offset = _number(asked, "limit", _DEFAULT_ROWS, MAX_ROWS), _number(asked, "offset", 0, 1 << 40)
    for name in asked:
        if name not in FILTERS:
            known = ", ".join((*FILTERS, "limit", "offset"))
            raise BadQuery(f"unknown parameter {name[:40]!r} (known: {known})")
    found = [row for row in rows if all(getattr(row, name) == value for name, value in asked.items())]
    content = {"total": len(found), "offset": offset, "runs": [row._asdict() for row in found[offset : offset + limit]]}
    return json.dumps(content).encode()


def _number(asked: dict[str, str], name: str, usual: int, most: int) -> int:
    text = asked.pop(name, str(usual))
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise BadQuery(f"{name}: a whole number from 0 to {most}")
    return int(text)


def metrics(rows: Sequence[IndexRow], query: str) -> bytes:
    """Return the runs by verdict, and the start of the newest, for each system, workload and backend."""
    counts: Counter[tuple[str, ...]] = Counter()
    newest: dict[tuple[str, ...], float] = {}
    for row in rows:
        labels = row.system, row.workload, row.backend
        counts[*labels, row.verdict] += 1
        newest[labels] = max(newest.get(labels, 0.0), _seconds(row.started))
    lines = ["# HELP stormproof_runs Runs in the store by verdict.", "# TYPE stormproof_runs gauge"]
    lines += [f"stormproof_runs{_labels(key)} {count}" for key, count in sorted(counts.items())]
    lines += ["# HELP stormproof_newest_run_timestamp_seconds When the newest run began.",
              "# TYPE stormproof_newest_run_timestamp_seconds gauge"]
    lines += [f"stormproof_newest_run_timestamp_seconds{_labels(key)} {at:.0f}" for key, at in sorted(newest.items())]
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _labels(values: Sequence[str]) -> str:
    names = ("system", "workload", "backend", "verdict")
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=False)) + "}"


def _escaped(text: str) -> str:
    """Return a label's value, escaped as the format demands; the text may come from an untrusted store."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _seconds(started: str) -> float:
    try:
        return datetime.fromisoformat(started).timestamp()
    except (ValueError, OverflowError):
        return 0.0


FEEDS: Mapping[str, tuple[str, Callable[[Sequence[IndexRow], str], bytes]]] = {
    "/api/runs": (JSON_TYPE, runs), "/metrics": (METRICS_TYPE, metrics),
}
"""Path -> content type, and the function that returns the content."""


def feed(rows: Sequence[IndexRow], path: str, query: str) -> tuple[str, bytes]:
    """Return the content type and content of a feed over a store's rows, the newest first. Raises BadQuery."""
    kind, make = FEEDS[path]
    return kind, make(rows, query)
