"""The location of files that the checkers create once: compiled kernels, Spark's class archive, a Java shim."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_dir() -> Path | None:
    """Return a writable folder of this user that outlives the process, or None if none exists.

    ``$XDG_CACHE_HOME/stormproof``, else ``~/.cache/stormproof``, else a private folder under the system's temporary
    directory (for users without a home).
    """
    for candidate in _candidates():
        if _make_private(candidate):
            return candidate
    return None


def _candidates() -> list[Path]:
    found = []
    configured = os.environ.get("XDG_CACHE_HOME", "")
    if configured.startswith("/"):
        found.append(Path(configured) / "stormproof")
    try:
        found.append(Path.home() / ".cache" / "stormproof")
    except RuntimeError:  # no HOME and no entry in the password file
        pass
    found.append(Path(tempfile.gettempdir()) / f"stormproof-{os.getuid()}")
    return found


def _make_private(path: Path) -> bool:
    """Create the folder if needed; return False unless it belongs to this user and is writable.

    A folder of another user is refused: its files would be run as code.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path.stat().st_uid == os.getuid() and os.access(path, os.W_OK | os.X_OK)
    except OSError:
        return False
