"""Verdicts: the outcome of a check, the verdict on a run, and their storage."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from checkers import verdict_key
from stormproof.contracts.check import MAX_EXAMPLES, Anomaly, CheckOutcome, worst
from stormproof.errors import HistoryError
from stormproof.history.read_limits import read_small
from stormproof.run_folder import VERDICT_FILE, VERDICT_SCHEMA, pictures
from stormproof.text import escaped

JUDGED = "judged"
"""The field of verdict.json that records what the verdict rests on."""


@dataclass(frozen=True)
class CheckVerdict:
    """An outcome under its check's name; ``decides`` tells whether it affects the run's verdict.

    ``anomaly`` is the name under which the run counts the check's findings, None for a mere reading of the history.
    """

    check: str
    decides: bool
    outcome: CheckOutcome
    anomaly: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data in the form of verdict.json."""
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

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CheckVerdict:
        """Rebuild an object from the result of ``to_json``."""
        examples = tuple(Anomaly(**{**anomaly, "ops": tuple(anomaly["ops"])}) for anomaly in data["anomalies"])
        outcome = CheckOutcome(data["verdict"], data["count"], data["summary"], examples, data["figures"])
        return cls(data["check"], data["decides"], outcome, data["anomaly"])


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run: the worst of the deciding checks. ``damage`` is the reason if it could not be judged at
    all.
    """

    run: str
    sentence: str
    checks: tuple[CheckVerdict, ...]
    figures: Mapping[str, Any] = field(default_factory=dict)
    damage: str | None = None

    @property
    def verdict(self) -> str:
        """``valid``, ``unknown`` or ``invalid``."""
        return worst(check.outcome.verdict for check in self.checks if check.decides)

    @property
    def anomalies(self) -> dict[str, int]:
        """The number of findings of each kind of anomaly; kinds without findings are left out."""
        return {
            check.anomaly: check.outcome.count
            for check in self.checks
            if check.anomaly is not None and check.outcome.count > 0
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain data in the form of verdict.json."""
        return {
            "schema": VERDICT_SCHEMA,
            "run": self.run,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "checks": [check.to_json() for check in self.checks],
            "anomalies": self.anomalies,
            "figures": dict(self.figures),
            **({"damage": self.damage} if self.damage is not None else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Rebuild an object from the result of ``to_json``."""
        checks = tuple(map(CheckVerdict.from_json, data["checks"]))
        damage = data.get("damage")
        return cls(escaped(data["run"]), escaped(data["sentence"]), checks, data["figures"],
                   None if damage is None else escaped(damage))


def write_verdict(run_dir: Path, verdict: Verdict, note: Mapping[str, Any] | None = None) -> None:
    """Store a verdict in the run's folder, and replace the pages of an earlier one; each file whole or not at all.

    ``note`` records what the verdict rests on (``checkers.verdict_cache``); without it the run is always judged again.

    Raises:
        OSError: the folder can't be written to.
    """
    pages = {name: make for check in verdict.checks for name, make in check.outcome.pages.items()}
    data = verdict.to_json()
    if note is not None:
        data |= signed({**note, "pages": sorted(pages)}, data)
    text = _text(data)
    # A repeated check may have the same outcome: replacing a file costs a flush to the disk.
    same = _stored(run_dir / VERDICT_FILE) == text
    if not same:
        _replace(run_dir / VERDICT_FILE, text)
    here = pictures(run_dir)
    for name in here:
        if name not in pages:
            (run_dir / name).unlink(missing_ok=True)
    for name, make in pages.items():
        if not (same and name in here):
            _replace(run_dir / name, make())


def signed(note: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field that records what a verdict (as plain data) rests on, with this user's signature; none without a
    key.
    """
    mac = verdict_key.sign(_text([note, data]))
    return {} if mac is None else {JUDGED: {**note, "mac": mac}}


def is_signed(note: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
    """Return whether this user signed the note of what a verdict rests on, for this verdict."""
    told = {name: value for name, value in note.items() if name != "mac"}
    return verdict_key.is_ours(_text([told, data]), note.get("mac"))


def _text(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), default=str)


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _stored(path: Path) -> str | None:
    try:
        return read_small(path).decode()
    except (OSError, ValueError, HistoryError):
        return None
