"""`make requirements`: clauses cover their rows, and tests and committed records decide what is proven."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from outcome_record import Outcome, newer, read_record, write_record

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import requirements as script  # noqa: E402
from requirements import KnownRequirement, Proof, RequirementState, left_out, mistakes, state_of  # noqa: E402

AT = {"at": "2026-11-27T01:00:00+00:00", "commit": "138799dc"}
TEXT = "A queue, a topic (as documented); and what is lost is told [Chapter 3]"
CLAUSES = {"A queue": ["t.py::test_queue"], "a topic (as documented)": ["t.py::test_topic"],
           "what is lost is told": "nothing tells it"}  # fmt: skip
PROOFS = [Proof("t.py::test_queue", True), Proof("t.py::test_topic[a]", True), Proof("t.py::test_topic[b]", True)]


def outcomes(**words: str) -> dict[str, Outcome]:
    names = {"queue": "t.py::test_queue", "a": "t.py::test_topic[a]", "b": "t.py::test_topic[b]",
             "all": "t.py::test_all"}  # fmt: skip
    return {names[name]: {"outcome": word, **AT} for name, word in words.items()}


def test_the_clauses_of_this_project_cover_their_rows_and_name_tests_that_exist() -> None:
    texts, table = script.rows(), script.clauses_by_row()
    assert len(texts) > 100 and {"F3", "H21"} < set(table)
    for row, clauses in table.items():
        assert left_out(texts[row], list(clauses)) is None, row
        for name in (name for proof in clauses.values() if isinstance(proof, list) for name in proof):
            path, _, function = name.partition("::")
            defined = {node.name for node in ast.walk(ast.parse((ROOT / path).read_text()))
                       if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}  # fmt: skip
            assert function.partition("[")[0] in defined, name


@pytest.mark.parametrize(("clauses", "missing"), [
    (list(CLAUSES), None),
    (["A queue", "what is lost is told"], ", a topic (as documented); and"),
    (["A queue", "a topic (as documented)"], "; and what is lost is told"),
    (["a topic (as documented)", "A queue"], "'A queue' does not follow"),
    (["A queue", "a topic", "what is lost is told"], "(as documented); and"),
])  # fmt: skip
def test_no_word_of_a_row_is_left_out(clauses: list[str], missing: str | None) -> None:
    assert left_out(TEXT, clauses) == missing


def test_what_is_open_of_a_row_is_named() -> None:
    known = KnownRequirement(outcomes(queue="passed", a="skipped"))
    assert state_of(PROOFS, CLAUSES, known) == RequirementState("partly", (), (
        "a topic (as documented): t.py::test_topic: not run yet, skipped", "what is lost is told: nothing tells it"))
    assert state_of(PROOFS, CLAUSES, KnownRequirement({})).word == "open"
    proven = {clause: proof for clause, proof in CLAUSES.items() if isinstance(proof, list)}
    both = KnownRequirement(outcomes(queue="passed", b="passed"))
    assert state_of(PROOFS, proven, both) == RequirementState("proven")
    failed = state_of(PROOFS, proven, KnownRequirement(outcomes(queue="passed", a="failed", b="passed")))
    assert failed == RequirementState("FAILED", missing=("t.py::test_topic[a] failed",))


def test_a_row_without_clauses_is_proven_by_a_test_of_the_whole_only() -> None:
    whole = Proof("t.py::test_all", False)
    assert state_of([], None, KnownRequirement({})).word == "open"
    assert state_of(PROOFS, None, KnownRequirement(outcomes(queue="passed"))).word == "partly"
    assert state_of([*PROOFS, whole], None, KnownRequirement(outcomes(queue="passed", all="skipped"))).word == "partly"
    assert state_of([*PROOFS, whole], None, KnownRequirement(outcomes(all="passed"))) == RequirementState("proven")


def test_a_proof_of_make_soak_comes_with_its_date_and_commit() -> None:
    soak = "make soak on 2026-11-27 at 138799dc"
    whole = [Proof("t.py::test_all", False)]
    soaked = KnownRequirement(outcomes(all="passed"), {"t.py::test_all"})
    assert state_of(whole, None, soaked) == RequirementState("proven", (soak,))
    here = {"A queue": ["t.py::test_queue"], "a topic (as documented)": ["t.py::test_topic[a]"]}
    known = KnownRequirement(outcomes(queue="passed", a="passed"), {"t.py::test_topic[a]"})
    assert state_of(PROOFS, here, known) == RequirementState("proven", (soak,))
    assert state_of(PROOFS, here, KnownRequirement(outcomes(queue="passed", a="passed"))) == RequirementState("proven")


def arms(shown: int, of: int, twin: int, date: str = "2026-11-25") -> dict[str, object]:
    return {"fails": {"shown": shown, "of": of, "date": date, "commit": "bfbf58a6"},
            "twin": {"shown": twin, "of": of, "date": date, "commit": "bfbf58a6"}}  # fmt: skip


def test_reproductions_are_counted_where_they_were_shown_and_their_twin_passed() -> None:
    clauses = {"Two": {"reproductions": 2}}
    seen = {"a": {"local": arms(4, 5, 5)}, "b": {"local": arms(5, 5, 4)}, "c": {"local": arms(0, 5, 5)}}
    found = state_of([], clauses, KnownRequirement({}, seen=seen))
    told = "Two: 1 of 2 are recorded in docs/reproductions.json (make reproduce on 2026-11-25 at bfbf58a6)"
    assert (found.word, found.missing) == ("open", (told,))
    seen["b"]["docker"] = arms(1, 1, 1, "2026-11-26")
    runs = ("make reproduce on 2026-11-25 at bfbf58a6", "make reproduce on 2026-11-26 at bfbf58a6")
    assert state_of([], clauses, KnownRequirement({}, seen=seen)) == RequirementState("proven", runs)


def test_what_does_not_fit_is_told() -> None:
    assert mistakes({"X1": TEXT}, {"X1": CLAUSES}, {"X1": PROOFS}) == []
    found = mistakes({"X1": TEXT}, {"X1": {"A queue": ["t.py::test_other"]}, "X2": {}}, {"X1": PROOFS, "X3": PROOFS})
    assert found == [
        "tests or docs/requirements.toml name row X2, which docs/REQUIREMENTS.md does not have",
        "tests or docs/requirements.toml name row X3, which docs/REQUIREMENTS.md does not have",
        "docs/requirements.toml, X1: clauses do not cover the row: , a topic (as documented); and what is lost is told",
        "docs/requirements.toml, X1: no test t.py::test_other carries the row",
    ]


def test_a_record_keeps_the_last_time_that_a_test_ran(tmp_path: Path) -> None:
    record = tmp_path / "outcomes.json"
    old, new = {"at": "2026-11-27", "commit": "a"}, {"at": "2026-11-28T00:00:01+00:00", "commit": "b"}
    write_record(record, {"x": {"outcome": "failed", **old}, "y": {"outcome": "passed", **old}})
    write_record(record, {"x": {"outcome": "passed", **new}, "y": {"outcome": "skipped", **new}})
    assert read_record(record) == {"x": {"outcome": "passed", **new}, "y": {"outcome": "passed", **old}}
    assert newer(read_record(record), {"x": {"outcome": "failed", **old}, "y": {"outcome": "skipped", **new}}) == (
        read_record(record))


TESTS = """
import pytest

@pytest.mark.soak
@pytest.mark.requirement("X1")
@pytest.mark.parametrize("right", [True, False])
def test_it(right):
    assert right

@pytest.mark.requirement("X1")
def test_quick():
    pass

@pytest.mark.soak
def test_nothing_that_is_required():
    pass
"""


def test_soak_tests_are_recorded_as_they_end(tmp_path: Path) -> None:
    """By the suite's own plug-in; the cache of this machine has the outcomes of other tests, too."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "requirements.toml").write_text("")
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_them.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  soak:\n  docker:\n  requirement:\n")
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}", "STORMPROOF_RECORD": str(docs / "outcomes.json")}
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "soak or not soak", str(folder)],
                   cwd=tmp_path, env=environment, check=False, capture_output=True, timeout=150)  # fmt: skip
    record = json.loads((docs / "outcomes.json").read_text())
    assert {test: each["outcome"] for test, each in record.items()} == {
        "tests/test_them.py::test_it[True]": "passed", "tests/test_them.py::test_it[False]": "failed"}
    assert all(each["commit"] and each["at"] >= "2026" for each in record.values())
    cache = json.loads((tmp_path / ".pytest_cache" / "v" / "stormproof" / "last_outcomes").read_text())
    assert {test: each["outcome"] for test, each in cache.items()} == {
        **{test: each["outcome"] for test, each in record.items()}, "tests/test_them.py::test_quick": "passed"}
