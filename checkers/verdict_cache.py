"""Runs that were judged already: by the same checks, over the same records, with a verdict that is as it was stored.

A verdict notes what it rests on: a digest of the code that judged, and one of the run's records. Both must be as they
are now, and the note must be signed with this user's key (``checkers.verdict_key``), or the run is judged again.
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
"""What bears on a verdict: the checks and what they read histories and logs with."""
NO_CODE_OF_OURS = frozenset({"tests", "docs", "examples"})
"""Folders beside the code that nothing of ours imports."""
_PACKAGES = ("numba", "numpy", "pyarrow")


@functools.cache
def digest_of_checks() -> str:
    """Of all code that judges: ours, the interpreter's and the libraries' versions. Plug-ins are not in it."""
    digest = hashlib.sha256(platform.python_version().encode())
    for name in _PACKAGES:
        digest.update(f"{name} {metadata.version(name)}\n".encode())
    for file in _sources():
        digest.update(f"{file.relative_to(_ROOT)}\n".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


@functools.cache
def digest_of_all() -> str:
    """Of all code that simulates and judges: ours, the interpreter's and the libraries' versions, without plug-ins."""
    digest = hashlib.sha256(digest_of_checks().encode())
    for file in _sources(PACKAGES):
        digest.update(f"{file.relative_to(_ROOT)}\n".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def other_version() -> SparkFailed:
    """What a worker says that is of another version than its driver."""
    return SparkFailed(f"the worker on {socket.gethostname()} has another version of Stormproof, or of what checks are "
                       "made with, than this driver: give all of them the same environment")


def _sources(sources: Iterable[str] = _SOURCES) -> Iterator[Path]:
    for source in sources:
        place = _ROOT / source
        found = [place] if place.is_file() else sorted(place.rglob("*.py"))
        yield from (file for file in found if not NO_CODE_OF_OURS.intersection(file.relative_to(_ROOT).parts))


def digest_of_records(run_dir: Path) -> str | None:
    """Of all that a verdict on the run rests on, and of its name; None where something can't be read."""
    digest = hashlib.sha256(run_dir.name.encode())
    try:
        for name in (RUN_FILE, LEDGER, HISTORY):
            if not (run_dir / name).exists():
                continue
            digest.update(f"\n{name} ".encode())
            if not (run_dir / name).is_file():
                return None  # opening a pipe would wait without end
            with (run_dir / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        for log in sorted((run_dir / LOGS).glob("**/*")):
            # Logs may be large, and few checks read them: their places in time stand for their contents.
            if log.is_file():
                told = log.stat()
                digest.update(f"\n{log.relative_to(run_dir)} {told.st_size} {told.st_mtime_ns}".encode())
    except OSError:
        return None
    return digest.hexdigest()


def note_for(run_dir: Path) -> dict[str, Any] | None:
    """What a verdict on the run will rest on; to be made before it is judged. None where its records can't be told."""
    records = digest_of_records(run_dir)
    return None if records is None else {"checks": digest_of_checks(), "records": records}


def judged_already(run_dir: Path) -> Verdict | None:
    """The stored verdict, if nothing that it rests on has changed; None: the run is to be judged.

    A verdict that says that the run is damaged is never taken over: what was in the way may be gone.
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
