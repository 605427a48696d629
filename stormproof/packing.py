"""A run as a single file, to send or to archive: a ZIP archive of its folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path

from stormproof.errors import HistoryError, StormproofError, UsageError
from stormproof.history.read_limits import max_history
from stormproof.history.undo import pending_undos
from stormproof.run_folder import (
    DEEPEST,
    HISTORY,
    JOURNAL,
    LOCK_FILE,
    LOGS,
    MADE_FILE,
    PARTIAL,
    PIN_FILE,
    PLUGIN_COPIES,
    REMOTE_FILE,
    RUN_ID,
    RunLock,
    is_alive,
    read_run,
)
from stormproof.store import Store
from stormproof.text import size

ENDING = ".zip"
_OF_THIS_MACHINE = frozenset({LOCK_FILE, MADE_FILE, REMOTE_FILE, PIN_FILE})
"""Files without meaning elsewhere: the run's lock, the objects created on this machine, the access to hosts, the pin.
"""
_STORED = (HISTORY, JOURNAL)
"""Files that are already compressed."""
_MOST_FILES = 10_000
_UNPACKING = ".unpacking-"
"""The prefix of a folder that is being filled from an archive."""
_PIECE = 1 << 20


def demand_ended(run_dir: Path) -> None:
    """Check that a run's folder may be exported: no work on it is pending on this machine.

    Raises:
        UsageError: some work is pending. HistoryError: it is not a run.
    """
    if is_alive(run_dir):
        raise UsageError(f"run {run_dir.name} is under way; pack it when it has ended")
    if not RUN_ID.fullmatch(run_dir.resolve().name):
        raise UsageError(f"{run_dir}: the folder's name is not a run id, which unpacking needs")
    read_run(run_dir)
    if (run_dir / REMOTE_FILE).exists() or pending_undos(run_dir):
        raise UsageError(f"run {run_dir.name} left something that is not healed: run `stormproof heal` first")


def pack(run_dir: Path, path: Path) -> None:
    """Write a run's folder to a file, atomically: the file is complete or does not exist.

    Raises:
        UsageError: the run is under way, or the file exists already. HistoryError: it is not a run. StormproofError:
            the file can't be written.
    """
    demand_ended(run_dir)
    if path.exists():
        raise UsageError(f"{path} is there already; name another file with --output")
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    name = run_dir.resolve().name
    try:
        with partial.open("xb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
                for each in files_of(run_dir):
                    kind = zipfile.ZIP_STORED if each.name in _STORED else None
                    archive.write(each, f"{name}/{each.relative_to(run_dir)}", kind)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise StormproofError(f"can't write {path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def files_of(run_dir: Path) -> list[Path]:
    """Return the files of a run: those in its folder, its logs, and the copies of its plug-ins, without symbolic
    links."""
    found = [path for folder, pattern in ((run_dir, "*"), (run_dir / LOGS, "*"), (run_dir / PLUGIN_COPIES, "**/*.py"))
             if folder == run_dir or not folder.is_symlink() for path in sorted(folder.glob(pattern))]  # fmt: skip
    return [path for path in found if path.is_file() and not path.is_symlink()
            and path.name not in _OF_THIS_MACHINE and not path.name.endswith(PARTIAL)
            and (path.suffix != ".py" or _is_place(list(path.relative_to(run_dir).parts)))]


def unpack(path: Path, store: Store, most: int | None = None) -> Path:
    """Unpack a packed run, which may come from a stranger, into a store; return its folder there.

    ``most``: the maximum number of unpacked bytes, by default ``max_history``.

    Raises:
        HistoryError: the file holds no run, or a larger one. UsageError: the run is in the store already.
            StormproofError: the store can't be written.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            run, members = _members(archive, path)
            if (store.path / run).exists():
                raise UsageError(f"run {run} is in the store {store.path} already")
            return _fill(archive, path, store.path / run, members, max_history() if most is None else most)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise HistoryError(f"{path} can't be unpacked: {reason}") from error
    except OSError as error:
        where = error.filename or path
        raise StormproofError(f"{where}: {error.strerror or error}") from error


def _members(archive: zipfile.ZipFile, path: Path) -> tuple[str, dict[zipfile.ZipInfo, tuple[str, ...]]]:
    """Return the run's id, and its files with their places below its folder."""
    files = archive.infolist()
    if not files or len(files) > _MOST_FILES:
        raise HistoryError(f"{path} holds no packed run: it has {len(files)} files")
    run = files[0].filename.partition("/")[0]
    found = {}
    for each in files:
        first, *parts = each.filename.split("/")
        if first != run or not RUN_ID.fullmatch(run) or not _is_place(parts):
            raise HistoryError(f"{path} holds no packed run: the name {each.filename[:100]!r} is none of a run's files")
        if parts[-1] not in _OF_THIS_MACHINE:
            found[each] = tuple(parts)
    return run, found


def _is_place(parts: list[str]) -> bool:
    if not parts or len(parts) > DEEPEST or not all(map(_is_plain, parts)):
        return False
    if parts[0] == PLUGIN_COPIES:
        return len(parts) > 2 and parts[-1].endswith(".py")  # also the plug-in's folder
    return (len(parts) == 1 and parts[0] != LOGS) or (len(parts) == 2 and parts[0] == LOGS)


def _is_plain(name: str) -> bool:
    return bool(name) and name.isprintable() and not name.startswith(".") and "\\" not in name and \
        len(name.encode()) <= 200


def _fill(archive: zipfile.ZipFile, path: Path, run_dir: Path, members: dict[zipfile.ZipInfo, tuple[str, ...]],
          most: int) -> Path:
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=_UNPACKING, dir=run_dir.parent))
    try:
        with RunLock(draft):
            (draft / LOGS).mkdir()
            left = most
            for member, parts in members.items():
                place = draft.joinpath(*parts)
                place.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, place.open("xb") as target:
                    while piece := source.read(_PIECE):
                        left -= len(piece)
                        if left < 0:
                            raise HistoryError(f"{path}: unpacked it would take more than {size(most)}; "
                                               "`--max-size` raises the bound")
                        target.write(piece)
            read_run(draft)
            draft.chmod(0o755)
            draft.rename(run_dir)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    with contextlib.suppress(OSError):
        (run_dir / LOCK_FILE).unlink()
    return run_dir


def remove_unfinished(store: Store) -> list[Path]:
    """Remove folders whose unpacking was interrupted."""
    found = []
    for draft in sorted(store.path.glob(f"{_UNPACKING}*")):
        try:
            with RunLock(draft):
                shutil.rmtree(draft)
        except (StormproofError, OSError):
            continue  # it is being filled, or this user may not remove it
        found.append(draft)
    return found
