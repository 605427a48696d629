"""File systems in user space that a dead process has left mounted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_LIMIT_S = 10.0
_ESCAPED = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}


def unmount_below(folder: Path) -> None:
    """Unmount the FUSE file systems in a folder, even if they are in use; those that can't be unmounted stay."""
    for point in _mounted_below(folder):
        command = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
        try:
            subprocess.run([*command, "--", str(point)], stdin=subprocess.DEVNULL, capture_output=True, check=False,
                           timeout=_LIMIT_S)  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            pass  # the removal of the folder will report the obstacle


def _mounted_below(folder: Path) -> Iterator[Path]:
    """Yield mount points of FUSE, the innermost first (proc_pid_mountinfo(5))."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in reversed(lines):
        words = line.split(" ")
        kind = words[words.index("-") + 1]
        point = Path(_plain(words[4]))
        if kind.startswith("fuse") and folder in point.parents:
            yield point


def _plain(word: str) -> str:
    for escaped, sign in _ESCAPED.items():
        word = word.replace(escaped, sign)
    return word
