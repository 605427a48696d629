"""Folders for the nodes' data on this machine: outside the run folder, gone when the run is over."""

from __future__ import annotations

import tempfile
from pathlib import Path

from stormproof.errors import BackendError
from stormproof.resource_log import FOLDER, PREFIX, OwnFolder, note_made


def scratch_path(run_dir: Path) -> Path:
    """Where the run's nodes keep their data; the run's name makes it unique."""
    return Path(tempfile.gettempdir()).absolute() / f"{PREFIX}{run_dir.resolve().name}"


def make_scratch(run_dir: Path) -> OwnFolder:
    """Create the run's folder, which is locked for as long as this process lives; noted in the run folder first.

    Raises:
        BackendError: it is there already or can't be made.
    """
    path = scratch_path(run_dir)
    note_made(run_dir, FOLDER, str(path))
    try:
        return OwnFolder.make(path, run_dir)
    except OSError as error:
        raise BackendError(f"can't create the nodes' folder {path}: {error.strerror}; "
                           "remove it, or set TMPDIR to a folder that can be written") from None
