"""Reproductions: recipes are data that makes sense, and what counts as shown."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.app import app
from harness.reproductions.checkout import commit_of
from harness.reproductions.page import SEEN_FILE, note_seen, read_seen, reproductions_page
from harness.reproductions.recipes import FAILS, TWIN, find_recipe, read_recipes, recipes
from harness.reproductions.run import Reproduction, confirmed_of
from harness.run import many
from harness.run.cases import BROKEN, Case, JudgedRun
from stormproof.errors import StormproofError, UsageError
from stormproof.test import Test

GOOD = """[[reproduction]]
name = "X1"
title = "t"
source = "s"
claim = "c"
fault = "f"
workload = "consume-last"
nemesis = "kill"
expected = ["lost"]
set = { schedule = "kill:one:4-5.5:1" }
[reproduction.fails]
set = { appendonly = "no" }
[reproduction.twin]
set = { appendonly = "yes" }
"""


def made(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "redis" / "reproductions.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.requirement("H12", part=True)
def test_every_recipe_is_a_test_that_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec  # the real IceStorm's client is in an extra of its own
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: find(name, *rest) or object())
    known = recipes()
    assert {"redis-D1", "redis-D2", "mosquitto-M1"} <= {recipe.name for recipe in known}
    for recipe in known:
        assert recipe.source and recipe.claim and recipe.fault
        assert [arm.name for arm in recipe.arms][:2] == [FAILS, TWIN]
        assert recipe.arms[0].expected and not recipe.arms[1].expected, "one fails and its twin does not"
        tests = [recipe.case(arm, "local").test(1) for arm in recipe.arms]
        assert len({test.options.get("schedule") for test in tests}) == 1, "all under the same faults"


@pytest.mark.parametrize(("text", "told"), [
    ("", "write any number of [[reproduction]]"),
    (GOOD.replace('claim = "c"\n', ""), "reproduction X1: there is no claim"),
    (GOOD.split("[reproduction.twin]")[0], "there is no twin"),
    (GOOD.replace("workload", "workloat"), "unknown key 'workloat'; did you mean 'workload'?"),
    (GOOD + "rates = 3\n", "reproduction X1, twin: unknown key 'rates'"),
    (GOOD.replace('"lost"', "7"), "expected must be a string"),
    ("x = ", "not TOML"),
])  # fmt: skip
def test_a_file_that_makes_no_sense_says_where(tmp_path: Path, text: str, told: str) -> None:
    path = made(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        list(read_recipes(path))
    assert told in str(caught.value) and str(path) in str(caught.value)


def test_an_arm_may_be_of_another_system(tmp_path: Path) -> None:
    other = GOOD.replace("[[reproduction]]", '[[reproduction]]\nprefix = "p"') + (
        '[[reproduction.arm]]\nname = "other"\nsystem = "mosquitto"\nset = { persistence = false }\n')
    text = other.replace("set = { schedule", "set = { min_ok = 9, schedule")
    path = made(tmp_path, text.replace('set = { appendonly = "no" }', "").replace('set = { appendonly = "yes" }', ""))
    (recipe,) = read_recipes(path)
    assert recipe.name == "p-X1" and recipe.system == "redis"
    tests = [recipe.case(arm, "local").test(1) for arm in recipe.arms]
    assert [test.system for test in tests] == ["redis", "redis", "mosquitto"]
    assert {test.options["min_ok"] for test in tests} == {9}
    assert "`--system mosquitto min_ok=9 persistence=False`" in reproductions_page([recipe], {})


def ended(verdict: str, *violated: str, confirmed: int = 100) -> JudgedRun:
    figures = {"latency_ms": {"enqueue": {"count": confirmed}}}
    return JudgedRun(Case("redis", "consume-last", "kill", None, 30.0, 17.0), 1, verdict, f"{verdict}.",
                     broken=violated, figures=figures, seconds=20.0)  # fmt: skip


def outcome(tmp_path: Path, fails: list[JudgedRun], twin: list[JudgedRun]) -> Reproduction:
    (recipe,) = read_recipes(made(tmp_path, GOOD))
    return Reproduction(recipe, "local", {FAILS: fails, TWIN: twin})


LOST, VALID, UNKNOWN = ended("invalid", "lost"), ended("valid"), ended("unknown")


@pytest.mark.parametrize(("fails", "twin", "status", "told"), [
    ([LOST] * 5, [VALID] * 5, 0, []),
    ([LOST] * 3 + [VALID] * 2, [VALID] * 5, 0, []),
    ([LOST] * 2 + [VALID] * 3, [VALID] * 5, 1, ["fails: invalid (lost) in 2 of 5 runs"]),
    ([ended("invalid", "phantom")], [VALID], 1, ["fails: invalid (lost) in 0 of 1 runs"]),
    ([LOST] * 5, [VALID] * 4 + [LOST], 1, ["twin: valid in 4 of 5 runs"]),
    ([LOST] * 5, [VALID] * 4 + [UNKNOWN], 2, ["twin: valid in 4 of 5 runs"]),
    ([ended("broken")], [ended("broken")], 3, ["fails: invalid (lost) in 0 of 1 runs", "twin: valid in 0 of 1 runs"]),
    ([LOST], [ended("valid", confirmed=49)], 1, ["the twin confirmed less than half of what the failing arm did"]),
    ([LOST], [ended("valid", confirmed=50)], 0, []),
])  # fmt: skip
def test_what_counts_as_shown(
    tmp_path: Path, fails: list[JudgedRun], twin: list[JudgedRun], status: int, told: list[str]
) -> None:
    found = outcome(tmp_path, fails, twin)
    assert (found.exit_status, found.trouble()) == (status, told)
    assert found.to_json()["as_expected"] == (not told)


def test_what_is_read_in_the_end_is_no_load() -> None:
    counts = {"enqueue": {"count": 990}, "dequeue": {"count": 10}, "drain": {"count": 1132}, "depth": {"count": 1}}
    assert confirmed_of({"ok": 2133, "latency_ms": counts}) == 1000 and confirmed_of({"ok": 0}) == 0


def test_the_page_tells_what_was_seen(tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    note_seen(outcome(tmp_path, [LOST, VALID], [VALID, VALID]), seen)
    found = outcome(tmp_path, [LOST, LOST, LOST], [])
    note_seen(found, seen)
    page = reproductions_page([found.recipe], read_seen(seen))
    assert "| `redis-X1` on local | t | f | 3 of 3 | 2 of 2 | 20 s |" in page
    today, commit = datetime.now(UTC).date().isoformat(), commit_of(SEEN_FILE.parents[1])
    assert f"| fails | `appendonly=no` | invalid: lost | 3 of 3 on local ({today}, {commit}) | invalid. |" in page
    before = seen.read_text()
    note_seen(outcome(tmp_path, [ended(BROKEN)], []), seen)
    assert seen.read_text() == before, "a run that could not be made says nothing"
    seen.write_text("{")
    with pytest.raises(UsageError, match=r"seen\.json.*record again"):
        read_seen(seen)


@pytest.mark.parametrize(("words", "told"), [
    (["redis-D9"], "unknown reproduction 'redis-D9'; did you mean 'redis-D"),
    (["redis-D1", "--all"], "give names of reproductions, or --all"),
    (["redis-D1", "--times", "0"], "--times 0: at least 1"),
    (["redis-D1", "--arm", "x"], "redis-D1 has no such arm"),
])
def test_mistakes_are_told_before_anything_starts(words: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["reproduce", *words])
    assert isinstance(result.exception, UsageError) and told in str(result.exception)


def test_without_a_name_they_are_listed() -> None:
    result = CliRunner().invoke(app, ["reproduce"])
    assert result.exit_code == 0 and "redis-D1" in result.output and "min-replicas-to-write" in result.output
    assert find_recipe("REDIS-d1", recipes()).name == "redis-D1"
    names = json.loads(CliRunner().invoke(app, ["reproduce", "--json"]).output)["reproductions"]
    assert {each["name"] for each in names} == {recipe.name for recipe in recipes()}


def test_find_recipe_knows_only_what_there_is() -> None:
    with pytest.raises(UsageError, match="known: "):
        find_recipe("x", recipes())


def test_an_outcome_names_the_commit_of_a_checkout(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        return subprocess.run(("git", "-C", str(tmp_path), *who, *words), check=True, capture_output=True,
                              text=True).stdout.strip()  # fmt: skip

    assert commit_of(tmp_path / "nowhere") == "unknown"
    git("init", "-q")
    (tmp_path / "docs").mkdir()
    for name in ("a", "docs/outcomes.json"):
        (tmp_path / name).write_text("one")
    git("add", "-A")
    git("commit", "-q", "-m", "x")
    commit = git("rev-parse", "--short=8", "HEAD")
    (tmp_path / "docs" / "outcomes.json").write_text("two")
    assert commit_of.__wrapped__(tmp_path) == commit
    (tmp_path / "a").write_text("two")
    assert commit_of.__wrapped__(tmp_path) == f"{commit}+"


def test_a_run_on_real_nodes_that_breaks_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(test: Test, *_: object, **__: object) -> None:
        raise StormproofError(f"seed {test.seed}: no room")

    monkeypatch.setattr(many, "run_test", broken)
    case = Case("joram", "queue", "none", 3, 5.0, 20.0, backend="local")
    found = many.run_on_nodes(case, 3, "asked for", tmp_path, object())  # type: ignore[arg-type]
    assert (found.verdict, found.sentence, found.run_dir, found.failed) == (BROKEN, "seed 3: no room", None, True)
