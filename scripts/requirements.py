"""Print every row of docs/REQUIREMENTS.md with its tests, their last outcomes, and its open clauses.

A row is proven by a test that carries it as a whole, or by tests for each of its clauses: `docs/requirements.toml`
lists those. Outcomes are those of this machine, and those that `make soak` and `make reproduce` left in `docs/`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from outcome_record import RECORD, Outcome, newer, read_record  # noqa: E402

from harness.reproductions.page import SEEN_FILE, read_seen  # noqa: E402
from harness.reproductions.recipes import FAILS, TWIN  # noqa: E402

ROW = re.compile(r"^\| ([A-Z]\d+) \| (.*) \|$")
SOURCE = re.compile(r" \[[^\[\]]*\]$")
CONNECTIVES = {"and", "or", "so", "as", "with", "where"}
"""Words that may separate the clauses of a row."""
CACHE = ROOT / ".pytest_cache" / "v" / "stormproof" / "last_outcomes"

Clauses = Mapping[str, Any]
"""Clause -> the tests that prove it together; or the reason why it is open; or ``{reproductions = N}``."""


@dataclass(frozen=True)
class Proof:
    """A test that carries a requirement; ``part`` if it proves only a part of the row."""

    test: str
    part: bool


@dataclass(frozen=True)
class RequirementState:
    """``proven``, ``partly``, ``open`` or ``FAILED``; the runs besides `make test` that prove the row; its open
    clauses.
    """

    word: str
    by: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownRequirement:
    """The recorded results: the outcomes of tests, the tests recorded by `make soak`, and the results of reproductions.
    """

    outcomes: Mapping[str, Outcome]
    soak: set[str] = field(default_factory=set)
    seen: Mapping[str, Any] = field(default_factory=dict)

    def of(self, test: str) -> str:
        """Return the last outcome of a test."""
        return self.outcomes[test]["outcome"] if test in self.outcomes else "not run yet"

    def sources(self, tests: Sequence[str]) -> tuple[str, ...]:
        """Return the runs of `make soak` that recorded these tests, if any."""
        found = {f"make soak on {self.outcomes[test]['at'][:10]} at {self.outcomes[test]['commit']}"
                 for test in tests if test in self.soak}  # fmt: skip
        return tuple(sorted(found))


def rows() -> dict[str, str]:
    """Return id -> text of each requirement, in the order of the file."""
    lines = (ROOT / "docs" / "REQUIREMENTS.md").read_text(encoding="utf-8").splitlines()
    return {match[1]: match[2] for line in lines if (match := ROW.match(line))}


def clauses_by_row() -> dict[str, Clauses]:
    """Return the clauses of each row in docs/requirements.toml."""
    return tomllib.loads((ROOT / "docs" / "requirements.toml").read_text(encoding="utf-8"))


def left_out(text: str, clauses: Sequence[str]) -> str | None:
    """Return the part of a row's text that the clauses omit, or a clause that is missing at its position; None if
    neither.
    """
    at, gaps = 0, []
    for clause in clauses:
        start = text.find(clause, at)
        if start < 0:
            return f"{clause!r} does not follow"
        gaps.append(text[at:start])
        at = start + len(clause)
    gaps.append(SOURCE.sub("", text[at:]))
    return next((gap.strip() for gap in gaps if set(re.findall(r"\w+", gap.lower())) - CONNECTIVES), None)


def tests_by_row() -> dict[str, list[Proof]]:
    """Return the tests that carry each requirement, including those of `make soak`, by the requirement's id."""
    with tempfile.NamedTemporaryFile("r", suffix=".tsv") as file:
        env = os.environ | {"STORMPROOF_COLLECTED": file.name}
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "soak or not soak"]
        subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
        found = defaultdict(list)
        for line in file.read().splitlines():
            row, part, test = line.split("\t")
            found[row].append(Proof(test, part == "True"))
    return found


def known_outcomes() -> KnownRequirement:
    """Return all records, from this machine and from docs/."""
    here = dict(json.loads(CACHE.read_text(encoding="utf-8"))) if CACHE.exists() else {}
    recorded = read_record(RECORD)
    merged = newer(here, recorded)
    soak = {test for test in recorded if merged[test]["outcome"] == "passed"}
    return KnownRequirement(merged, soak, read_seen(SEEN_FILE))


def state_of(proofs: Sequence[Proof], clauses: Clauses | None, known: KnownRequirement) -> RequirementState:
    """Return the state of a row: by its clauses if it has some, else by the tests that carry it as a whole."""
    failed = [proof.test for proof in proofs if known.of(proof.test) == "failed"]
    if failed:
        return RequirementState("FAILED", missing=tuple(f"{test} failed" for test in failed))
    passed = [proof for proof in proofs if known.of(proof.test) == "passed"]
    whole = [proof.test for proof in passed if not proof.part]
    if clauses is None:
        if whole:
            here = [test for test in whole if test not in known.soak]
            return RequirementState("proven", known.sources(whole) if not here else ())
        if passed:
            return RequirementState("partly", missing=("no test carries the row as a whole",))
        return RequirementState("open")
    by: set[str] = set()
    missing = []
    for clause, proof in clauses.items():
        why, sources = _clause(proof, [proof.test for proof in proofs], known)
        by |= set(sources)
        if why:
            missing.append(f"{clause}: {why}")
    if not missing:
        return RequirementState("proven", tuple(sorted(by)))
    return RequirementState("open" if len(missing) == len(clauses) else "partly", tuple(sorted(by)), tuple(missing))


def _clause(proof: Any, carrying: Sequence[str], known: KnownRequirement) -> tuple[str, Sequence[str]]:
    """Return why a clause is open ("" if it is proven), and the runs besides `make test` that prove it."""
    if isinstance(proof, str):
        return proof, ()
    if isinstance(proof, Mapping):
        return _reproduced(int(proof["reproductions"]), known.seen)
    by: list[str] = []
    for name in proof:
        passed = [test for test in named(name, carrying) if known.of(test) == "passed"]
        if not passed:
            states = {known.of(test) for test in named(name, carrying)}
            return f"{name}: {', '.join(sorted(states))}", ()
        by += known.sources(passed) if all(test in known.soak for test in passed) else []
    return "", by


def _reproduced(wanted: int, seen: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    """Judge a clause that needs ``wanted`` misbehaviours shown on some backend, with a twin that passed each time
    there.
    """
    stand = [[each for each in places.values() if _stands(each)] for places in seen.values()]
    shown = [max(places, key=lambda arms: str(arms[FAILS]["date"])) for places in stand if places]
    runs = sorted({f"make reproduce on {arms[FAILS]['date']} at {arms[FAILS]['commit']}" for arms in shown})
    if len(shown) >= wanted:
        return "", runs
    return f"{len(shown)} of {wanted} are recorded in docs/reproductions.json ({', '.join(runs) or 'none'})", ()


def _stands(arms: Mapping[str, Any]) -> bool:
    fails, twin = arms.get(FAILS), arms.get(TWIN)
    return bool(fails and twin and fails["shown"] and twin["shown"] == twin["of"])


def named(name: str, tests: Sequence[str]) -> list[str]:
    """Return the tests that a name in docs/requirements.toml means: one, or all cases of a parametrised one."""
    return [test for test in tests if test == name or test.startswith(f"{name}[")]


def mistakes(texts: Mapping[str, str], table: Mapping[str, Clauses], tests: Mapping[str, Sequence[Proof]]) -> list[str]:
    """Return the inconsistencies between the rows, their clauses and the marks of tests."""
    nowhere = sorted({*tests, *table} - {*texts})
    found = [f"tests or docs/requirements.toml name row {row}, which docs/REQUIREMENTS.md does not have"
             for row in nowhere]  # fmt: skip
    for row, clauses in table.items():
        gap = left_out(texts.get(row, ""), list(clauses))
        if gap:
            found.append(f"docs/requirements.toml, {row}: clauses do not cover the row: {gap}")
        carrying = [proof.test for proof in tests.get(row, [])]
        names = [name for proof in clauses.values() if isinstance(proof, list) for name in proof]
        found += [f"docs/requirements.toml, {row}: no test {name} carries the row" for name in names
                  if not named(name, carrying)]  # fmt: skip
    return found


def main(arguments: Sequence[str]) -> None:
    """Print the table; with ``--short`` without the tests."""
    texts, table, tests, known = rows(), clauses_by_row(), tests_by_row(), known_outcomes()
    wrong = mistakes(texts, table, tests)
    if wrong:
        raise SystemExit("\n".join(wrong))
    states: Counter[str] = Counter()
    for row, text in texts.items():
        proofs = tests.get(row, [])
        state = state_of(proofs, table.get(row), known)
        states[state.word] += 1
        print(f"{row:4} {state.word:7} {text[:100]}{'...' if len(text) > 100 else ''}")
        if state.by:
            print(f"       {state.word} by {'; '.join(state.by)}")
        for line in state.missing:
            print(f"       OPEN {line}")
        for proof in () if "--short" in arguments else proofs:
            print(f"       {known.of(proof.test):12} {proof.test}{' (part)' if proof.part else ''}")
    print(", ".join(f"{count} {state}" for state, count in states.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
