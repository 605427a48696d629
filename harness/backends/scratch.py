"""Folders for the nodes' data on this machine: outside the run folder, removed when the run is over."""

from __future__ import annotations

import tempfile
from pathlib import Path

from stormproof.errors import BackendError
from stormproof.resource_log import FOLDER, PREFIX, OwnFolder, note_made


def scratch_path(run_dir: Path) -> Path:
    """Return the path of the nodes' data; the run's name makes it unique."""
    return Path(tempfile.gettempdir()).absolute() / f"{PREFIX}{run_dir.resolve().name}"


def make_scratch(run_dir: Path) -> OwnFolder:
    """Create the run's folder, which is locked while this process lives; it is first noted in the run folder.

    Raises:
        BackendError: the folder exists already or cannot be created.
    """
    path = scratch_path(run_dir)
    note_made(run_dir, FOLDER, str(path))
    try:
        return OwnFolder.make(path, run_dir)
    except OSError as error:
        raise BackendError(f"can't create the nodes' folder {path}: {error.strerror}; "
                           "remove it, or set TMPDIR to a folder that can be written") from None
