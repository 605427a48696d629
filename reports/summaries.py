"""A row per run of a store, kept in a table next to the runs, so that only new or changed runs are read.

The table is a file of lines, each with its checksum. A new or changed run adds a line, which supersedes the earlier
one. A truncated or damaged line is ignored, and its run is read again. A writer holds the store's lock, which ends with
the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reports.folder import mapping, named_options, number, read_object, sequence
from reports.pack import shorten
from reports.page import write_page
from stormproof.contracts.check import INVALID, VALID, VERDICTS
from stormproof.contracts.guarantee import PROMISED
from stormproof.errors import HistoryError
from stormproof.run_folder import NIGHT_FILE, REPORT, RUN_FILE, VERDICT_FILE, upgraded

TABLE = ".index-rows.jsonl"
LOCK = ".index-lock"
_OLD = ".index-cache.json"
"""The table's predecessor of version 0.1."""
_FORMAT = 1
_LONGEST = 1 << 20
"""Upper bound of the bytes of a line; a longer one was not written by this module."""
_BATCH = 1000
_SLACK = 500
"""The number of superseded lines, in excess of the number of runs, at which the table is rewritten."""
KEPT, VIOLATED, OPEN = "kept", "violated", "open"
"""The results of a run for a guarantee; ``open``: its check could not decide."""

Stamp = list[int]


class IndexRow(NamedTuple):
    """One run. ``verdict`` is ``none`` without one; ``anomalies`` maps names to counts.

    ``guarantees`` maps each guarantee on which the run's system makes a statement to ``kept``, ``violated`` or
    ``open``, a blank, and its status in this run; ``night`` is the night that produced the run, if there is one.
    """

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
    night: str
    guarantees: dict[str, str]

    @property
    def place(self) -> tuple[str, str]:
        """The key by which runs are sorted, the oldest first."""
        return self.started, self.run


_TYPES = (str,) * 11 + (dict, bool, str, dict)


def index_rows(store: Path) -> list[IndexRow]:
    """Return a row per run folder of the store, newest first.

    Raises:
        HistoryError: the store is not a readable folder, or its table can't be written.
    """
    with locked(store):
        rows = read_rows(store)
    return [row for row, _ in reversed(rows)]


@contextlib.contextmanager
def locked(store: Path) -> Iterator[None]:
    """Hold the lock for writing the store's table and index.

    Raises:
        HistoryError: the store is not a writable folder.
    """
    try:
        fd = os.open(store / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise HistoryError(f"{store}: can't read this store of runs ({error.strerror or error})") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def read_rows(store: Path) -> list[tuple[IndexRow, int]]:
    """Return a row per run folder with its line's checksum, the oldest first; the caller holds the lock.

    Raises:
        HistoryError: the store can't be read, or its table can't be written.
    """
    stamps = run_stamps(store)
    known, lines = _read_table(store / TABLE, stamps)
    found: dict[str, tuple[IndexRow, int]] = {}
    new: list[bytes] = []
    for name, stamp in stamps.items():
        entry = known.get(name)
        if entry is not None and entry[0] == stamp:
            found[name] = entry[1], entry[2]
            continue
        row = _row(store / name)
        line, crc = _line([name, stamp, row])
        found[name] = row, crc
        new.append(line)
    if lines < 0 or lines + len(new) > 2 * len(found) + _SLACK:
        _rewrite(store / TABLE, stamps, found)
    elif new:
        _append(store / TABLE, new)
    return sorted(found.values(), key=lambda entry: entry[0].place)


def run_stamps(store: Path) -> dict[str, Stamp]:
    """Return, per run folder, its time, and times and sizes of the files that its row depends on: equal stamps, equal
    row.

    Raises:
        HistoryError: the store is not a readable folder.
    """
    stamps: dict[str, Stamp] = {}
    try:
        with os.scandir(store) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise HistoryError(f"{store}: can't read this store of runs ({error.strerror or error})") from error
    for name in names:
        folder = f"{store}/{name}/"
        run = _stamp(folder + RUN_FILE)
        if run[1] >= 0:
            # The folder's time changes when files are added or removed.
            stamps[name] = [*run, *_stamp(folder + VERDICT_FILE), _stamp(folder)[0]]
    return stamps


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return 0, -1
    return status.st_mtime_ns, status.st_size


def _read_table(path: Path, wanted: Mapping[str, Stamp]) -> tuple[dict[str, tuple[Stamp, IndexRow, int]], int]:
    """Return the table's entries of these runs, and the number of its lines; -1 where there is no usable table."""
    known: dict[str, tuple[Stamp, IndexRow, int]] = {}
    lines = -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(fd, "rb") as file:
            if file.readline(_LONGEST) != _HEADER_LINE:
                return {}, -1
            lines = 0
            while batch := list(itertools.islice(iter(lambda: file.readline(_LONGEST), b""), _BATCH)):
                lines += len(batch)
                for (name, stamp, values), crc in _contents(batch):
                    if name in wanted and tuple(map(type, values)) == _TYPES:
                        known[name] = stamp, IndexRow._make(values), crc
    except (OSError, TypeError, ValueError, RecursionError):
        return {}, -1
    return known, lines


def _contents(lines: Sequence[bytes]) -> Iterator[tuple[Any, int]]:
    """Yield the content of lines, each with its checksum; truncated or damaged lines are omitted."""
    crcs = [zlib.crc32(line[9:-1]) for line in lines]
    whole = [at for at, line in enumerate(lines) if line[:9] == b"%08x " % crcs[at] and line[-1:] == b"\n"]
    texts = b",".join(lines[at][9:-1] for at in whole)
    yield from zip(json.loads(f"[{texts.decode('ascii')}]"), (crcs[at] for at in whole), strict=True)


def _line(content: Any) -> tuple[bytes, int]:
    text = json.dumps(content, separators=(",", ":")).encode()
    crc = zlib.crc32(text)
    return b"%08x %s\n" % (crc, text), crc


_HEADER_LINE, _ = _line({"format": _FORMAT, "columns": IndexRow._fields})


def _append(path: Path, lines: Sequence[bytes]) -> None:
    try:
        with path.open("ab+") as file:
            file.seek(-1, os.SEEK_END)
            torn = file.read(1) != b"\n"  # by a process that was killed
            file.write((b"\n" if torn else b"") + b"".join(lines))
    except OSError as error:
        raise HistoryError(f"{path}: can't write the table of runs ({error.strerror or error})") from error


def _rewrite(path: Path, stamps: Mapping[str, Stamp], found: Mapping[str, tuple[IndexRow, int]]) -> None:
    lines = [_line([name, stamps[name], row])[0]
             for name, (row, _) in found.items()]  # fmt: skip
    write_page(path, (_HEADER_LINE + b"".join(lines)).decode("ascii"))
    with contextlib.suppress(OSError):
        path.with_name(_OLD).unlink()


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
        nemesis=",".join(shorten(str(name), 80) for name in sequence(test.get("nemesis"))[:20]) or "none",
        backend=_text(mapping(run.get("backend")), "name"),
        seed=_text(test, "seed"),
        options=shorten(" ".join(named_options(test))),
        started=_text(run, "started"),
        status=shorten(status, 80),
        anomalies=_counts(mapping(verdict.get("anomalies"))),
        report=(run_dir / REPORT).exists(),
        night=_text(read_object(run_dir / NIGHT_FILE, []) or {}, "night"),
        guarantees=guarantees_shown(run, verdict),
    )


def guarantees_shown(run: Mapping[str, Any], verdict: Mapping[str, Any]) -> dict[str, str]:
    """Return a run's result for each guarantee that it is judged by, or on which its system makes a statement."""
    statuses, judged_by = mapping(run.get("statuses")), sequence(run.get("guarantees"))
    words = {VALID: KEPT, INVALID: VIOLATED}
    shown: dict[str, str] = {}
    for check in map(mapping, sequence(verdict.get("checks"))[:200]):
        name = str(check.get("check"))
        told = mapping(statuses.get(name)).get("status") or (PROMISED if name in judged_by else None)
        if told is not None:
            shown[shorten(name, 60)] = f"{words.get(str(check.get('verdict')), OPEN)} {shorten(str(told), 40)}"
    return shown


def _counts(anomalies: Mapping[str, Any]) -> dict[str, int]:
    counted = {shorten(str(name), 60): number(count) for name, count in list(anomalies.items())[:200]}
    return {name: int(count) for name, count in counted.items() if count}


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    return "" if value is None else shorten(str(value), 80)
