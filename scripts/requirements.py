"""Print every row of docs/REQUIREMENTS.md with the tests that prove it and their last outcome."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| ([A-Z]\d+) \| (.*) \|$")


def rows() -> list[tuple[str, str]]:
    """(id, text) of each requirement, in the order of the file."""
    lines = (ROOT / "docs" / "REQUIREMENTS.md").read_text(encoding="utf-8").splitlines()
    return [(match[1], match[2]) for line in lines if (match := ROW.match(line))]


def tests_by_row() -> dict[str, list[str]]:
    """Requirement id -> ids of the tests that carry it."""
    with tempfile.NamedTemporaryFile("r", suffix=".tsv") as file:
        env = os.environ | {"STORMPROOF_COLLECTED": file.name}
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q"]
        subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
        found = defaultdict(list)
        for line in file.read().splitlines():
            row, test = line.split("\t")
            found[row].append(test)
    return found


def last_outcomes() -> dict[str, str]:
    """Test id -> passed, failed or skipped, from the tests' last runs on this machine."""
    path = ROOT / ".pytest_cache" / "v" / "stormproof" / "outcomes"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def main() -> None:
    """Print the table; a row without a passing test is open."""
    tests, outcomes = tests_by_row(), last_outcomes()
    open_rows = 0
    for row, text in rows():
        proofs = [(test, outcomes.get(test, "not run yet")) for test in tests.get(row, [])]
        proven = any(outcome == "passed" for _, outcome in proofs)
        broken = any(outcome == "failed" for _, outcome in proofs)
        state = "FAILED" if broken else "proven" if proven else "open"
        open_rows += state != "proven"
        print(f"{row:4} {state:7} {text[:100]}{'...' if len(text) > 100 else ''}")
        for test, outcome in proofs:
            print(f"       {outcome:12} {test}")
    unknown = sorted(set(tests) - {row for row, _ in rows()})
    if unknown:
        raise SystemExit(f"tests name rows that docs/REQUIREMENTS.md does not have: {', '.join(unknown)}")
    print(f"{len(rows()) - open_rows} rows proven, {open_rows} open")


if __name__ == "__main__":
    main()
