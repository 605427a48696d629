"""The commit of the checkout with which outcomes are measured."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

UNKNOWN = "unknown"


@functools.cache
def commit_of(folder: Path) -> str:
    """Return the short name of the commit, followed by ``+`` where files differ from it; ``unknown`` outside a
    checkout.

    Records of outcomes in ``docs/`` do not count as differences: a run writes them itself.
    """
    try:
        name = _git(folder, "rev-parse", "--short=8", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".",
                       ":!docs/outcomes.json", ":!docs/reproductions.json")  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return f"{name}+" if changed else name


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(("git", "-C", str(folder), *words), check=True, capture_output=True, text=True)
    return done.stdout.strip()
