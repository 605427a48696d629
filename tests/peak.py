"""The most memory that this process has had since some moment."""

from __future__ import annotations

from pathlib import Path


def forget() -> int:
    """What was the most until now counts no longer; returns the MiB that it has now."""
    Path("/proc/self/clear_refs").write_text("5")
    return most_mib()


def most_mib() -> int:
    """The most since then."""
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1]) >> 10
