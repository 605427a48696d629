"""Verdicts: what a check found, what a run deserves, and how both are stored."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from checkers.folder import pictures
from harness.errors import HistoryError

VERDICT_SCHEMA = 1
VERDICT_FILE = "verdict.json"

VALID = "valid"
UNKNOWN = "unknown"
INVALID = "invalid"
LATTICE = (VALID, UNKNOWN, INVALID)

MAX_EXAMPLES = 50


def worst(verdicts: Iterable[str]) -> str:
    """The least favourable of some verdicts (valid < unknown < invalid); valid if there are none."""
    return max(verdicts, key=LATTICE.index, default=VALID)


def amount(count: int, one: str, more: str = "") -> str:
    """A number with its noun (and verb), as a person would write them: ``more`` is ``one`` with an s unless given."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


@dataclass(frozen=True)
class Anomaly:
    """One thing that should not have happened; ``ops`` are the rows of the history that prove it.

    ``value`` is the message as ``producer/sequence``, ``key`` the queue.
    """

    kind: str
    ops: tuple[int, ...]
    key: int | None = None
    value: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What one check found: ``count`` anomalies in all, of which ``anomalies`` are examples.

    ``pages`` makes, by file name, the pages that explain it; they are written into the run's folder.
    """

    verdict: str
    count: int
    summary: str
    anomalies: tuple[Anomaly, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    pages: Mapping[str, Callable[[], str]] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class CheckResult:
    """An outcome under its check's name; ``decides`` says whether it bears on the run's verdict.

    ``anomaly`` is the name under which the run counts what was found, None for a mere reading of the history.
    """

    check: str
    decides: bool
    outcome: Outcome
    anomaly: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data as it stands in verdict.json."""
        found = self.outcome
        return {
            "check": self.check,
            "anomaly": self.anomaly,
            "decides": self.decides,
            "verdict": found.verdict,
            "count": found.count,
            "summary": found.summary,
            "anomalies": [asdict(anomaly) for anomaly in found.anomalies[:MAX_EXAMPLES]],
            "figures": dict(found.figures),
        }


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run: the worst of the checks that decide."""

    run: str
    sentence: str
    checks: tuple[CheckResult, ...]
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """``valid``, ``unknown`` or ``invalid``."""
        return worst(check.outcome.verdict for check in self.checks if check.decides)

    @property
    def anomalies(self) -> dict[str, int]:
        """How often each kind of anomaly was found; kinds that were not are left out."""
        return {
            check.anomaly: check.outcome.count
            for check in self.checks
            if check.anomaly is not None and check.outcome.count > 0
        }

    def to_json(self) -> dict[str, Any]:
        """Plain data as it stands in verdict.json."""
        return {
            "schema": VERDICT_SCHEMA,
            "run": self.run,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "checks": [check.to_json() for check in self.checks],
            "anomalies": self.anomalies,
            "figures": dict(self.figures),
        }


def write_verdict(run_dir: Path, verdict: Verdict) -> None:
    """Store a verdict in the run's folder, and its pages in place of those of an earlier one; each file whole or not
    at all.

    Raises:
        OSError: the folder can't be written to.
    """
    text = json.dumps(verdict.to_json(), separators=(",", ":"), default=str)
    # Checked again with the same outcome: to replace a file costs a flush to the disk.
    same = _stored(run_dir / VERDICT_FILE) == text
    if not same:
        _replace(run_dir / VERDICT_FILE, text)
    pages = {name: make for check in verdict.checks for name, make in check.outcome.pages.items()}
    here = pictures(run_dir)
    for name in here:
        if name not in pages:
            (run_dir / name).unlink(missing_ok=True)
    for name, make in pages.items():
        if not (same and name in here):
            _replace(run_dir / name, make())


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _stored(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def read_verdict(run_dir: Path) -> dict[str, Any]:
    """The stored verdict of a run as plain data.

    Raises:
        HistoryError: there is none or it can't be read.
    """
    path = run_dir / VERDICT_FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HistoryError(f"{path}: no verdict ({error}); run `stormproof check {run_dir.name}`") from error
    if not isinstance(data, dict) or data.get("schema") != VERDICT_SCHEMA:
        raise HistoryError(f"{path}: not a verdict of schema {VERDICT_SCHEMA}; check the run again")
    return data
