"""Options of one name: none of what is shipped clash, a clash is refused, and old names go on for one release."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.api import plan
from harness.backends.catalog import BACKENDS
from harness.nightly.plan_file import read_plan
from harness.run import plugins, settings
from harness.run.cases import Case
from harness.run.describe import command_line
from harness.run.settings import convert_options, declared_options, make_test, parse_assignments, with_new_names
from harness.sim.campaign import repeating
from harness.sim.command import cases_of
from harness.sim.draw import Given, _drawn
from nemesis.catalog import FAULTS
from nodes.systems.catalog import SYSTEMS
from stormproof.errors import UsageError
from stormproof.test import Test
from workloads.catalog import WORKLOADS

OLD_NAMES = [
    ("fiorano", "lease", "lease", "lease_seconds"),
    ("fiorano", "lease", "fencing", "refuse_old_tokens"),
    ("qpid", "topic", "patterns", "topic_patterns"),
    ("qpid", "clustered-topic", "patterns", "topic_patterns"),
    ("zeroc-icestorm", "log", "copies", "read_copies"),
    ("icestorm", "register", "reads", "read_share"),
]
"""System and workload that had one option of this name, and what the workload's is called now."""
ADAPTER = """
from nodes.systems.redis.system import Redis
from stormproof.contracts.option import Option

class Mine(Redis):
    name = "mine"
    options = (*Redis.options, Option("producers", 7, "threads of the broker that write"))

class Twice(Redis):
    name = "twice"
    options = (*Redis.options, Option("depth", 1, "levels"), Option("depth", True, "levels"))
"""


def planned(system: str, workload: str, nemesis: str = "none", **given: Any) -> Test:
    """The test that ``stormproof test`` plans."""
    return plan(system=system, workload=workload, nemesis=nemesis, backend="sim", nodes=None, time_limit=5.0, rate=10.0,
                seed=1, settings=given)[0]  # fmt: skip


@pytest.fixture(autouse=True)
def told_again() -> Iterator[None]:
    """Each test hears each line, though a process says it once; later ones know nothing of its plug-ins."""
    settings._tell_once.cache_clear()
    yield
    plugins.forget()


def test_no_options_of_what_is_shipped_clash() -> None:
    """Every system with every workload, all nemeses and each backend."""
    every = FAULTS.names()
    for system, workload, backend in itertools.product(SYSTEMS.names(), WORKLOADS.names(), BACKENDS.names()):
        names = {option.name for option in declared_options(system, workload, every, backend)}
        for place in (SYSTEMS.load(system), WORKLOADS.load(workload), BACKENDS.load(backend)):
            assert names.issuperset(option.name for option in place.options)


@pytest.mark.parametrize(("system", "workload", "old", "new"), OLD_NAMES)
def test_each_has_an_option_of_its_own(system: str, workload: str, old: str, new: str) -> None:
    declared = {option.name: option for option in declared_options(system, workload, ())}
    of_system = {option.name: option for option in SYSTEMS.load(system).options}
    assert declared[old] == of_system[old] and declared[new] in WORKLOADS.load(workload).options
    assert convert_options(declared.values(), {})[new] == declared[new].default


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("Mine", "option producers is declared by the system .*mine.py:Mine and by the workload queue"),
        ("Twice", "option depth is declared twice by the system .*mine.py:Twice"),
    ],
)
def test_a_clash_names_both_places(tmp_path: Path, target: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(ADAPTER)
    with pytest.raises(UsageError, match=message):
        planned(f"{tmp_path}/mine.py:{target}", "queue")


def test_an_old_name_sets_both_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    test = planned("fiorano", "lease", lease="2.5", fencing="false")
    assert {name: test.options[name] for name in ("lease", "lease_seconds", "fencing", "refuse_old_tokens")} == {
        "lease": 2.5, "lease_seconds": 2.5, "fencing": False, "refuse_old_tokens": False}  # fmt: skip
    told = capsys.readouterr().err.splitlines()
    assert [line.split(" in this")[0] for line in told] == [
        "stormproof: --set lease=2.5 also sets lease_seconds", "stormproof: --set fencing=false also sets "
        "refuse_old_tokens"]  # fmt: skip


def test_both_names_set_them_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    test = planned("fiorano", "lease", lease="2.5", lease_seconds="1")
    assert (test.options["lease"], test.options["lease_seconds"]) == (2.5, 1.0)
    assert not capsys.readouterr().err
    for brief in (True, False):  # the default of one is not left out of the command, which would mean something else
        words = command_line(test, tmp_path, brief=brief).split()
        given = parse_assignments(words[i + 1] for i, word in enumerate(words) if word == "--set")
        assert planned("fiorano", "lease", **given) == test
    case = Case("fiorano", "lease", "none", 2, 5.0, 10.0, {"lease": 2.5})
    assert case.test(1).options["lease_seconds"] == 1.0, "what a campaign draws has today's names"
    words = repeating(case, 1, tmp_path).split()
    assert "lease=2.5" in words and "lease_seconds=1.0" in words


def test_an_old_name_alone_means_the_renamed_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert planned("joram", "lease", lease="3").options["lease_seconds"] == 3.0
    assert capsys.readouterr().err == "stormproof: --set lease is --set lease_seconds now\n"
    with pytest.raises(UsageError, match="--set lease is --set lease_seconds now; give one of them"):
        planned("joram", "lease", lease="3", lease_seconds="4")


@pytest.mark.parametrize(
    ("value", "reads", "share"), [("local", "local", 50), ("30", "confirmed", 30)]
)
def test_a_value_goes_to_the_option_that_takes_it(value: str, reads: str, share: int) -> None:
    """``reads`` of icestorm is a word, that of registers was a number."""
    given = with_new_names("icestorm", "register", "none", "sim", {"reads": value})
    found = convert_options(declared_options("icestorm", "register", ()), given)
    assert (found["reads"], found["read_share"]) == (reads, share)


def test_campaigns_and_nights_take_old_names(tmp_path: Path) -> None:
    cases, _ = cases_of(["joram"], ["register"], ["none"], nodes=None, time_limit=5.0, rate=10.0,
                        settings={"reads": "30"})  # fmt: skip
    assert cases[0].test(1).options["read_share"] == 30
    drawn = _drawn("joram", "register", Given(nemeses=("none",), settings={"reads": "30"}), Test("", "").rng(""))
    assert drawn.test(1).options["read_share"] == 30
    path = tmp_path / "night.toml"
    path.write_text("[[case]]\nname = 'a'\nworkload = 'register'\nnemesis = 'none'\nset = { reads = 30 }\n")
    assert read_plan(path, "salt").cells[0].test(1).options["read_share"] == 30
    with pytest.raises(UsageError, match="no such option"):
        make_test(system="joram", workload="queue", nemesis="none", backend="sim", nodes=None, time_limit=5.0,
                  rate=10.0, seed=1, settings={"reads": "30"})  # fmt: skip
