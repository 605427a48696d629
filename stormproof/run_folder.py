"""A run's folder: the names of its files, and the readers and writers of its ``run.json`` and ``verdict.json``.

Histories and ledgers have separate readers (``stormproof.history``), which take their paths from here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stormproof.errors import HistoryError, StormproofError
from stormproof.history.read_limits import read_small
from stormproof.text import escaped

RUN_FILE = "run.json"
LOCK_FILE = "lock"
JOURNAL = "journal.bin"
HISTORY = "history.parquet"
LEDGER = "ledger.jsonl"
UNDO_FILE = "undo.jsonl"
MADE_FILE = "made.jsonl"
"""The objects that the run creates outside of its folder."""
VERDICT_FILE = "verdict.json"
REPORT = "report.html"
TWIN = "twin.html"
"""An invalid run next to the last valid run of the same test, if one exists."""
LOGS = "logs"
COMPOSE_OVERRIDE = "compose-override.yml"
"""The file with all that was added to a user's Compose project."""
PLUGIN_COPIES = "plugins"
"""The folder with copies of the files of the run's plug-ins: for people, the program does not import them."""
DEEPEST = 12
"""The maximum number of names in the path of a file below a run's folder: helpers of a plug-in may be in packages."""
LOG_EVENTS = "log-events.jsonl"
"""The changes of role and transfers of state in the nodes' logs."""
MESSAGE_TRACE = "message-trace.jsonl"
"""The places of each message according to the nodes' logs; only for systems that trace messages, on request."""
LEADERS = "leaders.jsonl"
"""The leader of each queue during the run, as reported by nodes; only for systems whose nodes report it."""
COSTS = "costs.jsonl"
"""The resource usage of each machine during the run (``stormproof.history.costs``)."""
HARNESS_LOG = "harness.log"
"""The harness's log messages during the run, if any."""
CLIENT_LOG = "clients.log"
"""The standard error of client programs, if clients are programs."""
REMOTE_FILE = "remote.json"
"""In the run's folder for as long as the run may have left something on hosts of other owners."""
SCENARIO = "scenario.toml"
"""The smallest test that fails in the same way, if a search for it was made."""
PIN_FILE = "pinned.json"
"""In the folder of a run that is kept regardless of its age."""
NIGHT_FILE = "night.json"
"""The night that made the run; it is separate because run.json stays as it was when the run was judged."""

IMPORTED = "imported"
"""The backend name of a run that was recorded elsewhere."""

RUN_SCHEMA = 4
"""Schema 3 added the ledger's digest, schema 4 the digest of the description itself; ``upgraded`` describes schema
1."""
SEALED_SINCE = 4
SEAL = "description_sha256"
"""The field with the digest of all other fields. A description gets it when its history is sealed."""
RUNNING, RECORDED, BROKEN = "running", "recorded", "broken"
"""The values of a description's ``status``."""
VERDICT_SCHEMA = 1

PARTIAL = ".partial"
"""The suffix of files that are being written."""
RUN_ID = re.compile(r"\d{8}T\d{6}-[A-Za-z0-9_.-]+-[0-9a-f]{4}")
_PICTURE = re.compile(r"linearizability-(?:\d+|none)\.html", re.ASCII)


def picture_name(key: int) -> str:
    """Return the name of the file that shows why the queue or object with this key (negative: none) is not
    linearizable.
    """
    return f"linearizability-{key if key >= 0 else 'none'}.html"


def is_picture(name: str) -> bool:
    """Return whether a file's name has the form of ``picture_name``."""
    return _PICTURE.fullmatch(name) is not None


def pictures(run_dir: Path) -> list[str]:
    """Return the pictures in a run's folder, in the order of their keys."""
    found = [path.name for path in run_dir.glob("linearizability-*.html") if is_picture(path.name)]
    return sorted(found, key=lambda name: (len(name), name))


def node_logs(run_dir: Path) -> list[Path]:
    """Return the logs of a run's machines, in order of their names."""
    return sorted(path for path in (run_dir / LOGS).glob("*.log") if path.is_file())


class RunLock:
    """The lock that marks a run's harness as alive: it ends with the process, in whatever way the process ends."""

    def __init__(self, run_dir: Path) -> None:
        """Take the lock. Raise StormproofError if another process holds it, or the folder can't be written."""
        path = run_dir / LOCK_FILE
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StormproofError(f"can't open {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise StormproofError(f"run {run_dir.name} is in use by another process; wait until it ends") from error

    def fileno(self) -> int:
        """Return the file descriptor that holds the lock; a child process that inherits it holds the lock, too."""
        return self._fd

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def is_alive(run_dir: Path) -> bool:
    """Return whether a process holds the run's lock."""
    try:
        fd = os.open(run_dir / LOCK_FILE, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StormproofError(f"can't open {run_dir / LOCK_FILE}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        HistoryError: the file is missing, can't be read, or holds anything else.
    """
    try:
        data = json.loads(read_small(path).decode(), object_pairs_hook=_names_once)
    except OSError as error:
        raise HistoryError(f"{path} can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise HistoryError(f"{path} can't be read: {error}") from error
    if not isinstance(data, dict):
        raise HistoryError(f"{path} can't be read: it holds no JSON object")
    return data


def _names_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, and refuse duplicate names: readers differ in which of the two values they take."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {json.dumps(doubled)[:40]} comes twice in one object")
    return found


def read_run(run_dir: Path) -> dict[str, Any]:
    """Return the run's ``run.json``, with today's names if an earlier version wrote it.

    Raises:
        HistoryError: it is missing or damaged.
    """
    path = run_dir / RUN_FILE
    if not path.exists():
        raise HistoryError(f"{run_dir} is not a run: it has no {RUN_FILE} (its harness was killed before the first "
                           f"write, or the file was removed; `stormproof heal` removes an empty folder)")  # fmt: skip
    data = read_object(path)
    schema = data.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int) or schema not in range(1, RUN_SCHEMA + 1):
        told = json.dumps(schema)[:40] if "schema" in data else "missing"
        raise HistoryError(f"{path} is not a run description of schema 1 to {RUN_SCHEMA}: its schema is {told}")
    if not isinstance(data.get("status"), str):
        raise HistoryError(f"{path}: the field status is {json.dumps(data.get('status'))[:40]}, not a text")
    return upgraded(data)


def written_by(run_dir: Path) -> object:
    """Return the schema in which the run's ``run.json`` was written; raise HistoryError as ``read_run`` does."""
    return read_object(run_dir / RUN_FILE).get("schema")


def upgraded(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run description with today's names, for any version of Stormproof that wrote it."""
    if data.get("schema") != 1:
        return dict(data)
    found = {_FIELDS.get(name, name): value for name, value in data.items()}
    test = found.get("test")
    if isinstance(test, dict):
        test = {_FIELDS.get(name, name): value for name, value in test.items()}
        if test.get("workload") == "events":
            found["subject"] = "events"
        test["workload"] = _WORKLOADS.get(str(test.get("workload")), test.get("workload"))
        found["test"] = test
    for name, words in (("statuses", {"standing": "status"}), ("gates", {"faults_proven": "faults_confirmed"})):
        if isinstance(found.get(name), dict):
            found[name] = _renamed(found[name], words)
    backend = found.get("backend")
    if isinstance(backend, dict):
        lateness, in_process = _BACKENDS.get(str(backend.get("name")), (None, False))
        found["backend"] = {"lateness": lateness, "in_process": in_process, **backend}
    found["schema"] = SEALED_SINCE - 1
    return found


_FIELDS = {"design": "system", "promises": "guarantees", "standings": "statuses", "excused": "exemptions"}
_WORKLOADS = {"reaction": "processing", "forward": "store-and-forward"}
_BACKENDS = {"sim": (0.25, True), "local": (5.0, False), "docker": (5.0, False)}


def _renamed(data: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            value = _renamed(value, words)
        found[words.get(name, name)] = "known violation" if value == "gap" else value
    return found


def environment_read(run: Mapping[str, Any]) -> str:
    """Return the names of the environment variables that a run's Compose file reads, from its description, and which of
    them were set; empty if there are none."""
    found = run.get("environment")
    if not isinstance(found, Mapping) or not found:
        return ""
    were = ", ".join(name for name, was_set in found.items() if was_set)
    return f"{', '.join(found)} (environment variables; {f'set in this run: {were}' if were else 'none was set'})"


def update_run(run_dir: Path, **changes: Any) -> dict[str, Any]:
    """Change fields of ``run.json`` atomically, and seal it if the run has ended; return the whole description.

    Raises:
        HistoryError: it can't be read, or does not match its seal: a change would make its damage look valid.
    """
    data = read_run(run_dir)
    demand_seal(run_dir / RUN_FILE, data)
    data = with_seal(data | changes)
    write_json(run_dir / RUN_FILE, data)
    return data


def with_seal(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with its seal, if its run has ended and its format has one."""
    fields = {name: value for name, value in data.items() if name != SEAL}
    if data.get("status") == RUNNING or data["schema"] < SEALED_SINCE:
        return fields
    return {**fields, SEAL: description_sha256(fields)}


def description_sha256(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a description's fields without the seal, as JSON with sorted names."""
    # Normalize the fields to their form after a reading: names of fields, for example, become strings.
    fields = json.loads(json.dumps({name: value for name, value in data.items() if name != SEAL}, default=str))
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def demand_seal(path: Path, data: Mapping[str, Any]) -> bool:
    """Verify the seal of a description and return True; return False for a run that has not ended, and for a format
    without seals.

    Raises:
        HistoryError: the description was changed after it was sealed, or has lost its seal.
    """
    if SEAL in data:
        if data[SEAL] == description_sha256(data):
            return True
        raise HistoryError(f"{path} was changed after the run was recorded: it does not fit its seal ({SEAL})")
    if data.get("status") == RUNNING or data["schema"] < SEALED_SINCE:
        return False
    raise HistoryError(f"{path} has lost its seal ({SEAL}): it was changed after the run was recorded")


def read_verdict(run_dir: Path) -> dict[str, Any]:
    """Return the stored verdict of a run as plain data.

    Raises:
        HistoryError: there is none or it can't be read.
    """
    path = run_dir / VERDICT_FILE
    try:
        data = json.loads(read_small(path).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise HistoryError(f"{path}: no verdict ({error}); run `stormproof check {run_dir.name}`") from error
    if not isinstance(data, dict) or data.get("schema") != VERDICT_SCHEMA:
        raise HistoryError(f"{path}: not a verdict of schema {VERDICT_SCHEMA}; check the run again")
    # The sentence is printed without further processing, and may come from strangers.
    return data | {"sentence": escaped(data["sentence"])} if "sentence" in data else data


def write_json(path: Path, data: Any) -> None:
    """Replace a JSON file atomically. Raise StormproofError if the disk is full or not writable."""
    write_text(path, json.dumps(data, indent=1, default=str))


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically. Raise StormproofError if the disk is full or not writable."""
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            _hold(file.fileno())
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the first error is the one to report
            partial.unlink()
        raise StormproofError(f"can't write {path}: {error.strerror}") from error


def _hold(fd: int) -> None:
    """Lock a file or folder so that `heal` recognizes it as being written, until it is closed; without lock support,
    `heal` gets no such sign.
    """
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX)


@contextlib.contextmanager
def being_made(run_dir: Path) -> Iterator[None]:
    """Protect a new run's folder, which has no description yet, from removal; may raise OSError."""
    fd = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _hold(fd)
        yield
    finally:
        os.close(fd)


def remove_unborn(run_dir: Path) -> bool:
    """Remove a run's folder whose process was killed before it wrote the description; return whether one was removed.
    """
    try:
        fd = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = [path for path in run_dir.rglob("*") if path.name != LOGS and not path.name.endswith(PARTIAL)]
        if found:
            return False
        shutil.rmtree(run_dir)
    except OSError:
        return False  # it is being created, or this user may not remove it
    finally:
        os.close(fd)
    return True


def remove_partials(folder: Path) -> list[Path]:
    """Remove the files that a killed process left half-written; return the removed ones."""
    removed = []
    for path in sorted(folder.glob(f"*{PARTIAL}")):
        try:
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        except OSError:
            continue  # it is being written, has got its final name, or this user may not remove it
        removed.append(path)
    return removed
