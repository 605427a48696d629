"""What ``stormproof check --json`` says of a run."""

from __future__ import annotations

from pathlib import Path

from checkers.spark.job import VerdictRow
from harness.store.recheck import _json
from stormproof.run_folder import REPORT


def test_only_a_report_that_exists_is_named(tmp_path: Path) -> None:
    row = VerdictRow("run", tmp_path, "valid", "fine", {}, {})
    assert _json(row)["report"] is None
    (tmp_path / REPORT).touch()
    assert _json(row)["report"] == str(tmp_path / REPORT)
