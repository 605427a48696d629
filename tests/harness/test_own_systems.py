"""A system in a user's own file wherever a system is named: nights, lists, the doctor, reproductions, hints."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.app import app
from harness.nightly.plan_file import read_plan
from harness.reproductions.recipes import recipes_of
from harness.run import plugins
from stormproof.errors import UsageError

ROOT = Path(__file__).parents[2]
TWO_TIER = ROOT / "tests" / "systems" / "two_tier.py"
RECIPES = """
[[reproduction]]
name = "K1"
title = "A kill loses messages"
source = "nobody"
claim = "none"
fault = "a kill"
expected = "lost"
workload = "queue"
nemesis = "kill"
fails = { set = { durability = "never" } }
twin = {}
"""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    plugins.forget()


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A user's file beside a folder of nights."""
    file = tmp_path / "own" / "mine.py"
    file.parent.mkdir()
    file.write_bytes((ROOT / "docs" / "examples" / "beanstalkd.py").read_bytes())
    return file


def night(folder: Path, text: str) -> Path:
    file = folder / "night.toml"
    file.write_text(f'[[case]]\nname = "mine"\nbackend = "local"\n{text}\n')
    return file


def test_paths_in_a_night_start_from_its_folder(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    plan = read_plan(night(tmp_path, 'system = ["own/mine.py:Beanstalkd", "redis"]\nnemesis = "kill"'), "salt")
    assert [cell.system for cell in plan.cells] == ["beanstalkd", "redis"] and not plan.left_out
    assert plugins.typed(plugins.SYSTEM, "beanstalkd") == f"{mine}:Beanstalkd", "so commands that repeat a run have it"


def test_a_night_with_another_file_is_another_night(mine: Path, tmp_path: Path) -> None:
    file = night(tmp_path, 'system = "own/mine.py:Beanstalkd"\nnemesis = "kill"')
    before = read_plan(file, "salt").digest
    plugins.forget()
    assert read_plan(file, "another").digest == before
    plugins.forget()
    mine.write_text(mine.read_text() + "\n")
    assert read_plan(file, "salt").digest != before


@pytest.mark.parametrize(("line", "why"), [
    ('system = "own/none.py:X"', "none.py: no such Python file"),
    ('system = "own/mine.py:Nobody"', "has no 'Nobody'"),
    ('system = "own/mine.py:Connection"', "is no system"),
    ('system = "own/mine.py"', "write it as FILE.py:CLASS"),
    ('system = ["redis", 3]', "system must be a string or a table or an array of these, not an array with an integer"),
    ('workload = "own/mine.py:Connection"', "is no workload"),
    ('nemesis = "kill,own/none.py:X"', "none.py: no such Python file"),
    ("system = { client = 'redis' }", "name the Compose file"),
    ("system = { compose = 'none.yml', client = 'redis' }", "none.yml: no such file"),
    ("system = { compose = 'none.yml', cliend = 'redis' }", "did you mean 'client'?"),
])  # fmt: skip
def test_a_night_with_a_wrong_system_is_told_in_one_line(line: str, why: str, mine: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as told:
        read_plan(night(tmp_path, line), "salt")
    assert str(told.value).startswith(f"{tmp_path / 'night.toml'}: case mine: ") and why in str(told.value)
    assert "\n" not in str(told.value)


def test_a_fault_that_can_not_be_is_left_out_of_a_night_with_the_reason(mine: Path, tmp_path: Path) -> None:
    plan = read_plan(night(tmp_path, 'system = "own/mine.py:Beanstalkd"\n'
                                     'nemesis = ["partition", "kill:leader-of-q0", "partition:from-clients"]'), "salt")
    assert [cell.nemesis for cell in plan.cells] == ["partition:from-clients"]
    assert ["use --nodes 2 or more, or partition:from-clients" in line or "does not tell who leads" in line
            for line in plan.left_out] == [True, True]  # fmt: skip


def test_a_simulated_night_of_an_own_system_and_the_command_that_repeats_its_run(tmp_path: Path) -> None:
    file = tmp_path / "night.toml"
    file.write_text(f'[[case]]\nname = "two"\nsystem = "{TWO_TIER}:TwoTier"\nnemesis = "kill"\ntime-limit = 8\n')
    done = CliRunner().invoke(app, ["nightly", str(file), "--store", str(tmp_path / "runs"), "--jobs", "1"])
    assert done.exit_code in (0, 1, 2), done.output
    (results,) = (tmp_path / "runs" / "nights").glob("*/results.jsonl")
    rows = map(json.loads, results.read_text().splitlines())
    (result,) = (row["result"] for row in rows if "result" in row)
    assert f"--system {TWO_TIER}:TwoTier" in result["command"]
    plugins.forget()
    again = CliRunner().invoke(app, [*shlex.split(result["command"])[1:], "--json"])
    told = json.loads(again.stdout)
    assert (told["verdict"], told["sentence"]) == (result["verdict"], result["sentence"])


def test_lists_and_the_doctor_show_it(mine: Path) -> None:
    told = CliRunner().invoke(app, ["list", f"{mine}:Beanstalkd", "--json"])
    (entry,) = json.loads(told.stdout)["systems"]
    assert entry["name"] == "beanstalkd" and [option["name"] for option in entry["options"]] == ["durability"]
    found = CliRunner().invoke(app, ["doctor", f"{mine}:Beanstalkd", "--json"])
    assert "beanstalkd" in {item["name"] for item in json.loads(found.stdout)["capabilities"]}


def test_reproductions_stand_beside_the_file_or_where_the_class_says(mine: Path) -> None:
    name = plugins.resolve(plugins.SYSTEM, f"{mine}:Beanstalkd")
    with pytest.raises(UsageError, match=r"beanstalkd: no file .*own/reproductions\.toml"):
        recipes_of(name)
    (mine.parent / "reproductions.toml").write_text(RECIPES)
    (recipe,) = recipes_of(name)
    assert recipe.name == "beanstalkd-K1" and {arm.system for arm in recipe.arms} == {name}
    assert recipe.case(recipe.arms[0], "local").test(1).options["durability"] == "never"
    plugins.forget()
    (mine.parent / "reproductions.toml").rename(mine.parent / "known.toml")
    named = '    max_nodes = 1\n    reproductions = "known.toml"\n'
    mine.write_text(mine.read_text().replace("    max_nodes = 1\n", named))
    assert [each.name for each in recipes_of(plugins.resolve(plugins.SYSTEM, f"{mine}:Beanstalkd"))] == [recipe.name]


def test_the_hint_after_an_interruption_names_the_plug_ins(mine: Path, tmp_path: Path) -> None:
    plugins.resolve(plugins.SYSTEM, f"{mine}:Beanstalkd")
    assert plugins.check_command(tmp_path) == f"stormproof check {tmp_path} --system {mine}:Beanstalkd"
