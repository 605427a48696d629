"""Runs that were judged already: by the same checks, over the same records, with an unaltered stored verdict.

A verdict notes what it rests on: a digest of the code that judged, and one of the run's records. The run is judged
again unless both match the current ones and the note is signed with this user's key (``checkers.verdict_key``).
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import socket
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from checkers.verdict import JUDGED, Verdict, is_signed
from stormproof.errors import HistoryError, SparkFailed
from stormproof.history.read_limits import read_small
from stormproof.own_packages import PACKAGES
from stormproof.run_folder import HISTORY, LEDGER, LOGS, RUN_FILE, VERDICT_FILE, pictures

_ROOT = Path(__file__).resolve().parent.parent
_SOURCES = ("checkers", "stormproof", "nodes/systems/reference/log_events.py")
"""Code that affects a verdict: the checks and the readers of histories and logs."""
NO_CODE_OF_OURS = frozenset({"tests", "docs", "examples"})
"""Folders next to the code that no module of this project imports."""
_PACKAGES = ("numba", "numpy", "pyarrow")


@functools.cache
def digest_of_checks() -> str:
    """Digest all code that judges: this project's, and the versions of the interpreter and the libraries. Plug-ins are
    not included.
    """
    digest = hashlib.sha256(platform.python_version().encode())
    for name in _PACKAGES:
        digest.update(f"{name} {metadata.version(name)}\n".encode())
    for file in _sources():
        digest.update(f"{file.relative_to(_ROOT)}\n".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


@functools.cache
def digest_of_all() -> str:
    """Digest all code that simulates and judges: this project's, and the versions of the interpreter and the libraries.
    Plug-ins are not included.
    """
    digest = hashlib.sha256(digest_of_checks().encode())
    for file in _sources(PACKAGES):
        digest.update(f"{file.relative_to(_ROOT)}\n".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def other_version() -> SparkFailed:
    """Return the error of a worker whose version differs from its driver's."""
    return SparkFailed(f"the worker on {socket.gethostname()} has another version of Stormproof, or of what checks are "
                       "made with, than this driver: give all of them the same environment")


def _sources(sources: Iterable[str] = _SOURCES) -> Iterator[Path]:
    for source in sources:
        place = _ROOT / source
        found = [place] if place.is_file() else sorted(place.rglob("*.py"))
        yield from (file for file in found if not NO_CODE_OF_OURS.intersection(file.relative_to(_ROOT).parts))


def digest_of_records(run_dir: Path) -> str | None:
    """Digest all records on which a verdict on the run rests, and its name; return None if one cannot be read."""
    digest = hashlib.sha256(run_dir.name.encode())
    try:
        for name in (RUN_FILE, LEDGER, HISTORY):
            if not (run_dir / name).exists():
                continue
            digest.update(f"\n{name} ".encode())
            if not (run_dir / name).is_file():
                return None  # opening a pipe would block forever
            with (run_dir / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        for log in sorted((run_dir / LOGS).glob("**/*")):
            # Logs may be large, and few checks read them: sizes and modification times stand for their contents.
            if log.is_file():
                told = log.stat()
                digest.update(f"\n{log.relative_to(run_dir)} {told.st_size} {told.st_mtime_ns}".encode())
    except OSError:
        return None
    return digest.hexdigest()


def note_for(run_dir: Path) -> dict[str, Any] | None:
    """Return the note of what a verdict on the run will rest on; None if its records cannot be read.

    Call it before the run is judged.
    """
    records = digest_of_records(run_dir)
    return None if records is None else {"checks": digest_of_checks(), "records": records}


def judged_already(run_dir: Path) -> Verdict | None:
    """Return the stored verdict if nothing that it rests on has changed; None if the run must be judged.

    A verdict that the run is damaged is never reused: the obstacle may be gone.
    """
    try:
        data = json.loads(read_small(run_dir / VERDICT_FILE))
        note = data.pop(JUDGED)
        if note["checks"] != digest_of_checks() or not is_signed(note, data) or "damage" in data:
            return None
        if not set(note["pages"]) <= set(pictures(run_dir)) or note["records"] != digest_of_records(run_dir):
            return None
        return Verdict.from_json(data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, HistoryError):
        return None
