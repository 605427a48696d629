"""The number of disk writes on a run's machines per stored message, from their programs' logs."""

from __future__ import annotations

from pathlib import Path

from reports.folder import json_lines, number
from stormproof.run_folder import LOG_EVENTS


def disk_facts(run_dir: Path) -> list[tuple[str, str, str]]:
    """Return (label, figure, remark) for the top of the page; none where no log reports disk writes."""
    writes, changes, messages = 0, 0, 0
    for row in json_lines(run_dir / LOG_EVENTS):
        if row.get("event") == "disk":
            counts = [int(number(row.get(name)) or 0) for name in ("writes", "changes", "messages")]
            writes, changes, messages = writes + counts[0], changes + counts[1], messages + counts[2]
    if not messages or not changes:
        return []
    return [("Disk writes", f"{writes / messages:,.2f}",
             f"per stored message; {writes / changes:,.2f} per store operation, {writes:,} on all machines")]
