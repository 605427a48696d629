"""Folders for the nodes' data on this machine: outside the run folder, gone when the run is over."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from stormproof.errors import BackendError

_PREFIX = "stormproof-"
_OWNER_FILE = "run-dir"


def scratch_path(run_dir: Path) -> Path:
    """Where the run's nodes keep their data; the run's name makes it unique."""
    return Path(tempfile.gettempdir()) / f"{_PREFIX}{run_dir.resolve().name}"


def make_scratch(run_dir: Path) -> Path:
    """Create the run's folder, readable for this user only, with a note of the run folder in it.

    Raises:
        BackendError: it is there already or can't be made.
    """
    path = scratch_path(run_dir)
    try:
        path.mkdir(mode=0o700)
        (path / _OWNER_FILE).write_text(str(run_dir.resolve()))
    except OSError as error:
        raise BackendError(f"can't create the nodes' folder {path}: {error.strerror}; "
                           "remove it, or set TMPDIR to a folder that can be written") from None
    return path


def remove_scratch(path: Path) -> None:
    """Remove a run's folder if it is there."""
    shutil.rmtree(path, ignore_errors=True)


def scratch_folders() -> Iterator[tuple[Path, Path]]:
    """This user's (folder, run folder that it belongs to), in order of name."""
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        try:
            # Others may write here, too: only what this user made is his to remove.
            if not path.is_symlink() and path.stat().st_uid == os.getuid():
                yield path, Path((path / _OWNER_FILE).read_text())
        except OSError:
            continue  # gone meanwhile, or not one of ours
