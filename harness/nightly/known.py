"""Failures that a team knows: a TOML file that states how long each is tolerated, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from harness.cli.config_file import near, read_toml
from stormproof.errors import UsageError

FILE = "known.toml"
_CODE = re.compile("[0-9a-f]{10}")
_KEYS = ("fingerprint", "issue", "until", "reason")


@dataclass(frozen=True)
class KnownFailure:
    """One failure. ``until`` is the last day on which it is tolerated; None means without limit."""

    fingerprint: str
    issue: str = ""
    until: date | None = None
    reason: str = ""

    def is_over(self, today: date | None = None) -> bool:
        """Return whether the failure should have been fixed by now."""
        return self.until is not None and (today or datetime.now(UTC).date()) > self.until


def read_known(path: Path) -> dict[str, KnownFailure]:
    """Return fingerprint -> its entry in a file.

    Raises:
        UsageError: the file is missing, is not TOML, or has invalid content.
    """
    data = read_toml(path)
    for name in data:
        if name != "known":
            raise UsageError(f"{path}: unknown key {name!r}: write [[known]]")
    entries = data.get("known", [])
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise UsageError(f"{path}: known: write [[known]], once for each failure")
    found: dict[str, KnownFailure] = {}
    for number, entry in enumerate(entries, 1):
        known = _read(entry, f"{path}: known {number}")
        if known.fingerprint in found:
            raise UsageError(f"{path}: known {number}: {known.fingerprint} is there twice")
        found[known.fingerprint] = known
    return found


def _read(entry: Mapping[str, Any], where: str) -> KnownFailure:
    for name in entry:
        if name not in _KEYS:
            raise UsageError(f"{where}: unknown key {name!r}{near(name, _KEYS)} (known: {', '.join(_KEYS)})")
    code, until = entry.get("fingerprint"), entry.get("until")
    if not isinstance(code, str) or not _CODE.fullmatch(code):
        raise UsageError(f"{where}: fingerprint: ten of 0-9a-f, as `stormproof triage` prints it")
    if isinstance(until, datetime) or not isinstance(until, date | None):
        raise UsageError(f"{where}: until: a date, as 2026-12-31, without quotes")
    for name in ("issue", "reason"):
        if not isinstance(entry.get(name, ""), str):
            raise UsageError(f"{where}: {name}: a string")
    return KnownFailure(code, entry.get("issue", ""), until, entry.get("reason", ""))
