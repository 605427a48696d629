"""Records of what a run creates outside of its folder, written there by full name before the creation; and folders of
that kind.

``made.jsonl`` begins with the run's owner; one line for each folder, container or network follows.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from stormproof.errors import HistoryError, StormproofError
from stormproof.history.read_limits import read_small_text
from stormproof.mounts import unmount_below
from stormproof.process_owner import Leftover, Owner, is_held, lock_identity, this_namespace, this_process
from stormproof.run_folder import LOCK_FILE, MADE_FILE

FOLDER = "folder"
OWNER = "owner"

PREFIX = "stormproof-"
_LOCK = ".lock"
_NOTE = ".owner.json"
_DRAFT = ".owner.json.new"


def note_owner(run_dir: Path) -> None:
    """Record this process, which holds the run's lock, as the run's owner.

    Raises:
        StormproofError: the run's folder can't be written.
    """
    _append(run_dir, {OWNER: this_process(run_dir / LOCK_FILE).to_json()})


def note_made(run_dir: Path, kind: str, name: str) -> None:
    """Record an object before its creation. Raise StormproofError if the run's folder can't be written."""
    _append(run_dir, {kind: name})


def made_folders(run_dir: Path) -> list[Path]:
    """Return the folders that a run has created; empty if there is no readable record."""
    names = [line.get(FOLDER) for line in _lines(run_dir)]
    return [Path(name) for name in names if isinstance(name, str) and "\0" not in name and name.startswith("/")]


def owner_of(run_dir: Path) -> Owner:
    """Return the owner of what this process creates for a run: this process, and the recorded owner of the run."""
    ours = this_process(run_dir / LOCK_FILE)
    noted = next((Owner.from_json(data) for line in _lines(run_dir) if isinstance(data := line.get(OWNER), dict)), None)
    if noted is None or noted.lock != ours.lock:  # it belongs to another owner: the folder was copied
        return ours
    if noted.namespace != this_namespace():
        return noted
    return replace(noted, processes=tuple(dict.fromkeys((*noted.processes, *ours.processes))))


@dataclass
class OwnFolder:
    """A folder of this process, locked for as long as the process lives."""

    path: Path
    _fd: int = -1

    @classmethod
    def make(cls, path: Path, run_dir: Path | None = None) -> OwnFolder:
        """Create the folder, readable for this user only; ``run_dir`` is the run that it serves. Raises OSError."""
        path.mkdir(mode=0o700)
        fd = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The holder of the lock is the owner: this process's pid may belong to a separate pid namespace.
        owner = replace(this_process(), processes=(), lock=lock_identity(path / _LOCK))
        note = {"dir": str(run_dir.resolve()) if run_dir else "", **owner.to_json()}
        (path / _DRAFT).write_text(json.dumps(note), encoding="utf-8")
        (path / _DRAFT).rename(path / _NOTE)
        return cls(path, fd)

    @classmethod
    def temporary(cls, purpose: str, run_dir: Path | None = None) -> OwnFolder:
        """Create a folder among the temporary files, recorded in the run's folder before its creation.

        Raises:
            StormproofError: it can't be created, or the run's folder can't be written.
        """
        path = Path(tempfile.gettempdir()).absolute() / f"{PREFIX}{purpose}-{secrets.token_hex(8)}"
        if run_dir is not None:
            note_made(run_dir, FOLDER, str(path))
        try:
            return cls.make(path, run_dir)
        except OSError as error:
            raise StormproofError(f"can't create the folder {path}: {error.strerror}; set TMPDIR to a folder that can "
                                  "be written") from error

    def remove(self) -> None:
        """Remove the folder, unless that has been done, and release its lock."""
        unmount_below(self.path)
        with contextlib.suppress(OSError):
            for each in self.path.iterdir():
                if each.name not in (_LOCK, _NOTE):
                    _remove(each)
            (self.path / _NOTE).unlink()  # before the lock: without a lock, the owner's death could not be proven
        shutil.rmtree(self.path, ignore_errors=True)
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def folders(places: Iterable[Path] = ()) -> Iterator[Leftover]:
    """Yield this user's folders in these places and in the folder for temporary files."""
    for place in dict.fromkeys([Path(tempfile.gettempdir()), *places]):
        for path in sorted(place.glob(f"{PREFIX}*")):
            try:
                # Other users may write here, too: this user may remove only what this user created.
                if path.is_symlink() or path.stat().st_uid != os.getuid():
                    continue
                note = json.loads(read_small_text(path / _NOTE))
                owner = Owner.from_json(note)
                run_dir = Path(note["dir"]) if note["dir"] else None
            except (OSError, ValueError, KeyError, TypeError, RecursionError, HistoryError):
                continue  # it has disappeared, or does not belong to Stormproof
            # In a user namespace every owner appears as root.
            owner = replace(owner, uid=path.stat().st_uid) if owner else None
            run = run_dir.name if run_dir else ""
            yield Leftover(f"{FOLDER} {path}", run, run_dir, owner, path / _LOCK, partial(_removed, path),
                           partial(_is_gone, path))  # fmt: skip


def unfinished(run_dir: Path) -> list[Path]:
    """Return folders that a run was about to create when it ended: they are still empty."""
    found = []
    for path in made_folders(run_dir):
        if not path.name.startswith(PREFIX) or path.is_symlink() or (path / _NOTE).exists():
            continue
        try:
            names = {each.name for each in path.iterdir()}
            held = is_held(path / _LOCK, lock_identity(path / _LOCK))
            if path.stat().st_uid == os.getuid() and names <= {_LOCK, _DRAFT} and not held:
                found.append(path)
        except OSError:
            continue
    return found


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_gone(path: Path) -> bool:
    return not (path / _NOTE).exists()


def _removed(path: Path) -> bool:
    if not path.exists():
        return False
    unmount_below(path)
    shutil.rmtree(path)
    return True


def _append(run_dir: Path, line: dict[str, object]) -> None:
    path = run_dir / MADE_FILE
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(fd, (json.dumps(line) + "\n").encode())
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise StormproofError(f"can't write {path}: {error.strerror}; nothing is made") from error


def _lines(run_dir: Path) -> list[dict[str, object]]:
    try:
        text = read_small_text(run_dir / MADE_FILE)
    except (OSError, HistoryError):
        return []
    found = []
    for line in text.split("\n"):
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            continue  # cut off: the object that it names was never created
        if isinstance(data, dict):
            found.append(data)
    return found
