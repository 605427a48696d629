"""What runs came to, as JUnit's XML and as Markdown, whatever a broker said."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import Failure, JUnitXml, Skipped

from harness.cli.outcomes import ORDER, Outcome, Outcomes, junit, markdown, outcome_of
from harness.run.cases import BROKEN
from stormproof.errors import StormproofError, UsageError
from stormproof.test import Test

AGAIN = {"command": "stormproof test"}
BAD = Outcome("joram.queue", "kill, seed 1", "invalid", "1 message lost <b>|x|</b>", 2.5, AGAIN)
SEVERAL = [Outcome("g", "a", "valid", "fine"), BAD, Outcome("g", "b", "unknown", "no fault"),
           Outcome("g", "c", BROKEN, "it broke")]


@pytest.mark.requirement("H11")
def test_junit_tells_failures_from_errors() -> None:
    root = ElementTree.fromstring(junit(SEVERAL))
    (suite,) = root
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "time")} == {
        "tests": "4", "failures": "1", "errors": "2", "time": "2.500"}
    kinds = [[child.tag for child in case] for case in suite]
    assert kinds == [[], ["properties", "failure"], ["error"], ["error"]]
    failure = suite[1].find("failure")
    assert failure is not None
    assert failure.get("message") == BAD.sentence and "command: stormproof test" in (failure.text or "")


def test_a_failure_that_is_put_up_with_is_skipped() -> None:
    known = replace(BAD, excuse="known")
    (suite,) = JUnitXml.fromstring(junit([BAD, known]))
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (2, 1, 0, 1)
    first, second = (case.result[0] for case in suite)
    assert isinstance(first, Failure) and isinstance(second, Skipped) and second.message == f"known: {BAD.sentence}"
    assert "| known: 1 message lost" in markdown([known])


@given(st.lists(st.builds(Outcome, st.text(), st.text(), st.sampled_from(ORDER), st.text(),
                          told=st.dictionaries(st.just("command"), st.text())), max_size=4))
def test_any_text_makes_a_document(outcomes: list[Outcome]) -> None:
    suite = ElementTree.fromstring(junit(outcomes).encode())[0]
    assert [case.get("name") for case in suite] == [
        re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", each.name) for each in outcomes]
    table = [line for line in markdown(outcomes).splitlines() if line.startswith("| ")]
    assert len(table) == (len(outcomes) + 2 if outcomes else 0)
    assert all(len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 5 for line in table)


def test_markdown_has_the_worst_first_and_no_markup_of_others() -> None:
    text = markdown(SEVERAL)
    assert "4 runs: 1 invalid, 1 broken, 1 unknown, 1 valid" in text
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")][2:]
    assert rows == ["| invalid", "| broken", "| unknown", "| valid"]
    assert r"\<b\>\|x\|\</b\>" in text
    assert text.endswith("```sh\nstormproof test\n```\n")


def test_files_are_written_however_it_ends(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Outcomes(tmp_path / "j.xml", tmp_path / "m.md") as outcomes:
        outcomes.add(BAD)
        raise KeyboardInterrupt
    assert "1 message lost" in (tmp_path / "j.xml").read_text()
    assert "1 message lost" in (tmp_path / "m.md").read_text()


def test_files_without_a_place_are_told_before_anything_runs(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "j.xml"):
        with pytest.raises(UsageError, match="--junit"):
            Outcomes(path)
    with pytest.raises(StormproofError, match="can't write"), Outcomes(Path("/proc/j.xml")):
        pass


def test_a_test_has_a_name_that_says_what_was_run() -> None:
    test = Test("joram", "queue", ("kill", "pause"), backend="docker", seed=7)
    found = outcome_of(test, "valid", "fine", 1.0, run=None, command="x")
    assert (found.group, found.name) == ("joram.queue", "kill,pause on docker, seed 7")
    assert found.told == {"command": "x"}
