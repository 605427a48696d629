"""The user's key, which proves that a stored verdict was given here.

A store may come from anyone, and anyone can compute a note of digests. The note therefore carries an HMAC under a key
that is stored outside of every store, readable by its owner alone. Machines that share a store and reuse each other's
verdicts need the same key file; without it each judges once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

VARIABLE = "STORMPROOF_VERDICT_KEY"
"""The variable that names another key file."""
_BYTES = 32


def key_file() -> Path | None:
    """Return the path of the key, existing or not; None for a user without a home."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME", "")
    if state.startswith("/"):
        return Path(state) / "stormproof" / "verdict.key"
    with contextlib.suppress(RuntimeError):
        return Path.home() / ".local" / "state" / "stormproof" / "verdict.key"
    return None


def sign(text: str) -> str | None:
    """Return the HMAC-SHA256 of a text under the user's key; None if there can be no key."""
    path = key_file()
    key = None if path is None else _key(path)
    return None if key is None else hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def is_ours(text: str, mac: object) -> bool:
    """Return whether a text was signed with the user's key."""
    found = sign(text)
    return found is not None and isinstance(mac, str) and mac.isascii() and hmac.compare_digest(found, mac)


@functools.cache
def _key(path: Path) -> bytes | None:
    """Return the key in a file, which is created if it is missing.

    Returns None if the file cannot be created, or if others than this user may read it.
    """
    try:
        if not path.exists():
            _make(path)
        told = path.stat()
        if told.st_uid != os.getuid() or stat.S_IMODE(told.st_mode) & 0o077:
            return None
        key = path.read_bytes()
    except OSError:
        return None
    return key if len(key) >= _BYTES else None


def _make(path: Path) -> None:
    """Create the key whole or not at all; of two processes that create it, one wins."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)
