"""Chaos tests as pytest tests, in a project outside of this repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormproof.errors import UsageError
from stormproof.text import seeds_of

PROJECT = """
import pytest

QUICK = {"backend": "sim", "time_limit": 4}
BUG = {"bug": "requeued-twice"}


@pytest.mark.storm("standalone", nemesis="none", seeds="1-2", **QUICK)
def test_good(storm):
    assert storm.verdict["verdict"] == "valid" and storm.result.report.exists()


@pytest.mark.storm("standalone", nemesis="kill", seeds=3, settings=BUG, backend="sim", time_limit=10)
def test_bad(storm):
    raise RuntimeError("the body is not reached")


@pytest.mark.storm("standalone", nemesis="kill", seeds=3, settings=BUG, backend="sim", time_limit=10,
                   expected="invalid")
def test_twin(storm):
    assert storm.verdict["anomalies"]


@pytest.mark.storm("standalone", nemesis="none", seeds=1, settings={"min_ok": 1_000_000}, **QUICK)
def test_unknown(storm):
    pass


@pytest.mark.storm("nosuch")
def test_typing_error(storm):
    pass


@pytest.mark.storm("standalone", tme_limit=3)
def test_wrong_option(storm):
    pass


def test_called(storm):
    storm("standalone", nemesis="none", seed=5, **QUICK)
    assert storm.result.run_dir.is_dir()


def test_nothing_run(storm):
    storm.result
"""


def run_pytest(folder: Path, content: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A project of this one file, run as somebody does who has installed Stormproof."""
    (folder / "test_project.py").write_text(content)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    words = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *words)
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=150)


@pytest.mark.requirement("H14")
def test_a_project_has_its_chaos_tests(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, PROJECT, "--junitxml=junit.xml")
    cases = {case.get("name", ""): case for case in ElementTree.parse(tmp_path / "junit.xml").iter("testcase")}
    failed = {name: "".join(failure.itertext()) for name, case in cases.items()
              if (failure := case.find("failure")) is not None}
    assert done.returncode == 1, done.stdout
    assert set(cases) - set(failed) == {"test_good[seed-1]", "test_good[seed-2]", "test_twin[seed-3]", "test_called"}
    bad = failed["test_bad[seed-3]"]
    properties = {each.get("name"): each.get("value") or "" for each in cases["test_bad[seed-3]"].iter("property")}
    assert bad.startswith("Invalid: ")
    assert properties["report"] in bad and Path(properties["report"]).is_file()
    assert properties["command"] in bad and "--seed 3 " in properties["command"]
    assert Path(properties["run"]).parent == tmp_path / "runs"
    assert failed["test_unknown[seed-1]"].startswith("Unknown: ")
    assert failed["test_typing_error"].startswith("no system 'nosuch'")
    assert failed["test_wrong_option"].startswith("storm: unknown option 'tme_limit'")
    assert "nothing was run" in failed["test_nothing_run"]
    assert "Traceback" not in bad + failed["test_typing_error"]


@pytest.mark.parametrize(("content", "told"), [
    ("@pytest.mark.storm('standalone')\ndef test_it(): pass", "takes the argument storm"),
    ("@pytest.mark.storm(seeds='5-1')\ndef test_it(storm): pass", "from the lower to the higher"),
    ("@pytest.mark.storm(seeds='')\ndef test_it(storm): pass", "write them as 7, 1-20 or 1-5,9"),
])  # fmt: skip
def test_a_mark_that_means_nothing_is_told(content: str, told: str, tmp_path: Path) -> None:
    done = run_pytest(tmp_path, f"import pytest\n{content}\n")
    assert done.returncode != 0 and told in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.soak
@pytest.mark.requirement("H14")
def test_processes_of_xdist_share_a_store(tmp_path: Path) -> None:
    content = """
import pytest

@pytest.mark.storm("standalone", nemesis="kill", seeds="1-6", backend="sim", time_limit=8)
def test_good(storm):
    pass
"""
    done = run_pytest(tmp_path, content, "-n", "2", "--storm-store", "there")
    assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout
    assert len([run for run in (tmp_path / "there").glob("*-standalone-*") if (run / "report.html").exists()]) == 6


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=5))
def test_seeds_that_a_person_writes(ranges: list[tuple[int, int]]) -> None:
    text = ",".join(f"{first}-{first + more}" if more else str(first) for first, more in ranges)
    found = seeds_of(text)
    assert set(found) == {seed for first, more in ranges for seed in range(first, first + more + 1)}
    assert len(set(found)) == len(found)
    assert seeds_of(found) == found


@pytest.mark.parametrize("given", ["", "-1", "1-", "a", "5-1", "0-99999999", "1,,2", [], [-1], [True], -1, ["1"]])
def test_what_is_no_seed_is_told(given: str | list[int] | int) -> None:
    with pytest.raises(UsageError, match="seeds"):
        seeds_of(given)
