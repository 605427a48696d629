"""What came of the tests that prove requirements: test -> its last outcome, with the date and the commit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from harness.reproductions.checkout import commit_of

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "outcomes.json"
"""The outcomes of soak tests, committed: a fresh clone has no others. `make soak` writes them."""

Outcome = dict[str, str]
"""``outcome`` (passed, failed or skipped), ``at`` (ISO date, or date and time in UTC) and ``commit``."""


def outcome_now(outcome: str) -> Outcome:
    """The outcome of a test that has ended just now in this checkout."""
    return {"outcome": outcome, "at": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit_of(ROOT)}


def read_record(path: Path) -> dict[str, Outcome]:
    """Test -> its last outcome; nothing where there is no such file."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def write_record(path: Path, fresh: Mapping[str, Outcome]) -> None:
    """Note outcomes in place of those before; a test that was skipped keeps what it had."""
    known = read_record(path) | {test: each for test, each in fresh.items() if each["outcome"] != "skipped"}
    lines = [f" {json.dumps(test)}: {json.dumps(each)}" for test, each in sorted(known.items())]
    part = path.with_name(f"{path.name}.part")
    part.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    part.replace(path)


def newer(one: Mapping[str, Outcome], other: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """Of two records the later outcome of each test; a skip never hides that a test has run."""
    merged = dict(one)
    for test, each in other.items():
        if test not in merged or _rank(each) > _rank(merged[test]):
            merged[test] = each
    return merged


def _rank(each: Outcome) -> tuple[bool, str]:
    return each["outcome"] != "skipped", each["at"]
