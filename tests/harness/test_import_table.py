"""Histories of others with their right verdicts, by ``stormproof import``: the rows of tests/imports/import.json.

tests/imports/porcupine.json has those of ``porcupine check``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli.app import app
from stormproof.errors import HistoryError

FOLDER = Path(__file__).parent.parent / "imports"
ROWS: list[dict[str, Any]] = json.loads((FOLDER / "import.json").read_text())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join([row["file"], row["workload"], *row["options"]]))
def test_a_foreign_history_has_its_right_verdict(tmp_path: Path, row: dict[str, Any]) -> None:
    words = ["import", str(FOLDER / row["file"]), "--workload", row["workload"], *row["options"]]
    result = CliRunner().invoke(app, [*words, "--store", str(tmp_path / "runs")])
    if row["status"] == 3:
        assert isinstance(result.exception, HistoryError) and f"{row['file']}:" in str(result.exception)
        return
    assert result.exit_code == row["status"], result.output


def test_every_file_is_judged() -> None:
    files = {path.name for path in FOLDER.iterdir() if path.suffix != ".json"}
    assert files == {row["file"] for row in ROWS}
