"""Print every row of docs/REQUIREMENTS.md with the tests that prove it and their last outcome."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| ([A-Z]\d+) \| (.*) \|$")


def rows() -> list[tuple[str, str]]:
    """(id, text) of each requirement, in the order of the file."""
    lines = (ROOT / "docs" / "REQUIREMENTS.md").read_text(encoding="utf-8").splitlines()
    return [(match[1], match[2]) for line in lines if (match := ROW.match(line))]


@dataclass(frozen=True)
class Proof:
    """A test that carries a requirement; ``part`` if it proves only a part of the row."""

    test: str
    part: bool


def tests_by_row() -> dict[str, list[Proof]]:
    """Requirement id -> the tests that carry it."""
    with tempfile.NamedTemporaryFile("r", suffix=".tsv") as file:
        env = os.environ | {"STORMPROOF_COLLECTED": file.name}
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q"]
        subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
        found = defaultdict(list)
        for line in file.read().splitlines():
            row, part, test = line.split("\t")
            found[row].append(Proof(test, part == "True"))
    return found


def last_outcomes() -> dict[str, str]:
    """Test id -> passed, failed or skipped, from the tests' last runs on this machine."""
    path = ROOT / ".pytest_cache" / "v" / "stormproof" / "outcomes"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def state_of(proofs: list[Proof], outcomes: dict[str, str]) -> str:
    """``proven``, ``partly`` (by parts only), ``FAILED`` (some test of it failed) or ``open``."""
    passed = [proof for proof in proofs if outcomes.get(proof.test) == "passed"]
    if any(outcomes.get(proof.test) == "failed" for proof in proofs):
        return "FAILED"
    if not passed:
        return "open"
    return "partly" if all(proof.part for proof in passed) else "proven"


def main() -> None:
    """Print the table; a row without a passing test is open."""
    tests, outcomes = tests_by_row(), last_outcomes()
    states: Counter[str] = Counter()
    for row, text in rows():
        proofs = tests.get(row, [])
        state = state_of(proofs, outcomes)
        states[state] += 1
        print(f"{row:4} {state:7} {text[:100]}{'...' if len(text) > 100 else ''}")
        for proof in proofs:
            print(f"       {outcomes.get(proof.test, 'not run yet'):12} {proof.test}{' (part)' if proof.part else ''}")
    unknown = sorted(set(tests) - {row for row, _ in rows()})
    if unknown:
        raise SystemExit(f"tests name rows that docs/REQUIREMENTS.md does not have: {', '.join(unknown)}")
    print(", ".join(f"{count} {state}" for state, count in states.items()))


if __name__ == "__main__":
    main()
