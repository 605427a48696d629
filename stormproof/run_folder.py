"""A run's folder: the names of what lies in it, and the readers and writers of its ``run.json`` and ``verdict.json``.

Histories and ledgers have readers of their own (``stormproof.history``), which take their paths from here.
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
"""What the run makes outside of its folder."""
VERDICT_FILE = "verdict.json"
REPORT = "report.html"
TWIN = "twin.html"
"""An invalid run beside the last valid run of the same test, where there is one."""
LOGS = "logs"
PLUGIN_COPIES = "plugins"
"""The folder with copies of the plug-ins' files that the run was made with: for people, nothing imports them."""
DEEPEST = 12
"""Names in the path of a file below a run's folder, at most: helpers of a plug-in may lie in packages."""
LOG_EVENTS = "log-events.jsonl"
"""What the nodes' logs say of roles and transfers of state."""
MESSAGE_TRACE = "message-trace.jsonl"
"""Where each message stood, as the nodes' logs say; only of systems that trace messages, and were asked to."""
LEADERS = "leaders.jsonl"
"""Who led which queue, as nodes told while the run went on; only of systems whose nodes tell."""
COSTS = "costs.jsonl"
"""What each machine used while the run went on (``stormproof.history.costs``)."""
HARNESS_LOG = "harness.log"
"""What the harness had to say while a run went on, if anything."""
REMOTE_FILE = "remote.json"
"""In the run's folder for as long as something of the run may be left on hosts that are not ours."""
SCENARIO = "scenario.toml"
"""The smallest test that fails in the same way, where one was looked for."""
PIN_FILE = "pinned.json"
"""In the folder of a run that is kept, however old it gets."""
NIGHT_FILE = "night.json"
"""Which night made the run; run.json is as it was when the run was judged."""

IMPORTED = "imported"
"""What stands for the backend of a run that was recorded elsewhere."""

RUN_SCHEMA = 4
"""Since 3 the ledger has a digest in it, since 4 it has one of itself; ``upgraded`` tells what 1 was like."""
SEALED_SINCE = 4
SEAL = "description_sha256"
"""The field with the digest of all other fields. A description gets it when its history is sealed."""
RUNNING, RECORDED, BROKEN = "running", "recorded", "broken"
"""What a description's ``status`` may be."""
VERDICT_SCHEMA = 1

PARTIAL = ".partial"
"""What names of files end with while they are written."""
RUN_ID = re.compile(r"\d{8}T\d{6}-[A-Za-z0-9_.-]+-[0-9a-f]{4}")
_PICTURE = re.compile(r"linearizability-(?:\d+|none)\.html", re.ASCII)


def picture_name(key: int) -> str:
    """The file that shows why the queue or object with this key (negative: none) is not linearizable."""
    return f"linearizability-{key if key >= 0 else 'none'}.html"


def is_picture(name: str) -> bool:
    """Whether a file's name is one that ``picture_name`` gives."""
    return _PICTURE.fullmatch(name) is not None


def pictures(run_dir: Path) -> list[str]:
    """The pictures in a run's folder, in the order of their keys."""
    found = [path.name for path in run_dir.glob("linearizability-*.html") if is_picture(path.name)]
    return sorted(found, key=lambda name: (len(name), name))


def node_logs(run_dir: Path) -> list[Path]:
    """The logs of a run's machines, in order of their names."""
    return sorted(path for path in (run_dir / LOGS).glob("*.log") if path.is_file())


class Lock:
    """The mark that a run's harness is alive: it ends with the process, however that ends."""

    def __init__(self, run_dir: Path) -> None:
        """Take it. Raises StormproofError when another process has it, or the folder can't be written."""
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
        """The descriptor that holds it; a child that inherits it holds it too."""
        return self._fd

    def release(self) -> None:
        """Give it back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def is_alive(run_dir: Path) -> bool:
    """Whether a process holds the run's lock."""
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
    """The JSON object in a file.

    Raises:
        HistoryError: it is missing, can't be read, or is something else.
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
    """A JSON object whose names all differ: of two values of one name, readers take different ones."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {json.dumps(doubled)[:40]} comes twice in one object")
    return found


def read_run(run_dir: Path) -> dict[str, Any]:
    """The run's ``run.json``, in today's words if an earlier version wrote it.

    Raises:
        HistoryError: it is missing or damaged.
    """
    path = run_dir / RUN_FILE
    if not path.exists():
        raise HistoryError(f"{run_dir} is no run: it has no {RUN_FILE} (its harness was killed before the first write, "
                           "or somebody removed it; `stormproof heal` removes an empty folder)")  # fmt: skip
    data = read_object(path)
    schema = data.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int) or schema not in range(1, RUN_SCHEMA + 1):
        told = json.dumps(schema)[:40] if "schema" in data else "missing"
        raise HistoryError(f"{path} is not a run description of schema 1 to {RUN_SCHEMA}: its schema is {told}")
    if not isinstance(data.get("status"), str):
        raise HistoryError(f"{path}: the field status is {json.dumps(data.get('status'))[:40]}, not a text")
    return upgraded(data)


def written_by(run_dir: Path) -> object:
    """The schema in which the run's ``run.json`` was written; raises HistoryError as ``read_run`` does."""
    return read_object(run_dir / RUN_FILE).get("schema")


def upgraded(data: Mapping[str, Any]) -> dict[str, Any]:
    """A run description in today's words, whichever version of Stormproof wrote it."""
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


def update_run(run_dir: Path, **changes: Any) -> dict[str, Any]:
    """Change fields of ``run.json`` atomically, and seal it where the run has ended; returns the whole.

    Raises:
        HistoryError: it can't be read, or is not what was sealed: a change would make its damage look right.
    """
    data = read_run(run_dir)
    demand_seal(run_dir / RUN_FILE, data)
    data = with_seal(data | changes)
    write_json(run_dir / RUN_FILE, data)
    return data


def with_seal(data: Mapping[str, Any]) -> dict[str, Any]:
    """A description with its seal, if its run has ended and its format has one."""
    fields = {name: value for name, value in data.items() if name != SEAL}
    if data.get("status") == RUNNING or data["schema"] < SEALED_SINCE:
        return fields
    return {**fields, SEAL: description_sha256(fields)}


def description_sha256(data: Mapping[str, Any]) -> str:
    """SHA-256 of a description's fields without the seal, as JSON with sorted names."""
    # As they are read again: names of fields, say, are texts then.
    fields = json.loads(json.dumps({name: value for name, value in data.items() if name != SEAL}, default=str))
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def demand_seal(path: Path, data: Mapping[str, Any]) -> bool:
    """Whether a description is sealed; False for a run that has not ended, and for a format that knew no seal.

    Raises:
        HistoryError: it was sealed, and was changed or has lost its seal since.
    """
    if SEAL in data:
        if data[SEAL] == description_sha256(data):
            return True
        raise HistoryError(f"{path} was changed after the run was recorded: it does not fit its seal ({SEAL})")
    if data.get("status") == RUNNING or data["schema"] < SEALED_SINCE:
        return False
    raise HistoryError(f"{path} has lost its seal ({SEAL}): it was changed after the run was recorded")


def read_verdict(run_dir: Path) -> dict[str, Any]:
    """The stored verdict of a run as plain data.

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
    # It is printed as it is, and may come from strangers.
    return data | {"sentence": escaped(data["sentence"])} if "sentence" in data else data


def write_json(path: Path, data: Any) -> None:
    """Replace a JSON file atomically. Raises StormproofError when the disk is full or can't be written."""
    write_text(path, json.dumps(data, indent=1, default=str))


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically. Raises StormproofError when the disk is full or can't be written."""
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            _hold(file.fileno())
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            partial.unlink()
        raise StormproofError(f"can't write {path}: {error.strerror}") from error


def _hold(fd: int) -> None:
    """Tell `heal` that somebody makes this, until that ends; where nothing can be locked, nobody is told."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX)


@contextlib.contextmanager
def being_made(run_dir: Path) -> Iterator[None]:
    """A new run's folder, which is not to be removed for having no description yet; raises OSError."""
    fd = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _hold(fd)
        yield
    finally:
        os.close(fd)


def remove_unborn(run_dir: Path) -> bool:
    """Remove a run's folder whose maker was killed before it had described the run; whether there was one."""
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
        return False  # it is being made, or not ours to remove
    finally:
        os.close(fd)
    return True


def remove_partials(folder: Path) -> list[Path]:
    """Remove files that a process was writing when it was killed; those that were removed."""
    removed = []
    for path in sorted(folder.glob(f"*{PARTIAL}")):
        try:
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        except OSError:
            continue  # it is being written, has its name by now, or is not ours to remove
        removed.append(path)
    return removed
