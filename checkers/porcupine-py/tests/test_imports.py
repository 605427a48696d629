"""Histories of others with their right verdicts, by the command; ``tests/imports`` of Stormproof holds them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import porcupine

DATA = Path(__file__).resolve().parents[3] / "tests" / "imports"
ROWS = json.loads((DATA / "porcupine.json").read_text())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join([row["model"], *row["options"], row["file"]]))
def test_the_command_gives_the_right_verdict(row):
    line = [sys.executable, "-m", "porcupine", "check", "--model", row["model"], *row["options"]]
    line.append(str(DATA / row["file"]))
    environment = {**os.environ, "PYTHONPATH": str(Path(porcupine.__file__).parent.parent)}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == row["status"], done
    assert done.stderr.count("\n") == (row["status"] == 3)
