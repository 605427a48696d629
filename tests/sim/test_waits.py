"""Waits: a timer that is longer or shorter than its system declares ends the run; those that are right do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.run.cases import Case
from harness.sim.campaign import ALL, run_and_judge
from harness.sim.waits import Instants, Waits
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.invariant import INVARIANTS
from stormproof.contracts.wait import Instant, Wait
from stormproof.run_folder import read_run

KILLED = Case("qpid", "dialogue", "partition,pause,kill", None, 20.0, 17.0,
              {"min_ok": "1", INVARIANTS: "true", "virtual_address": "auto", "clients_find": "both"})
PAIR = Case("fiorano", "dialogue", "partition,pause,kill,gateway", None, 20.0, 17.0,
            {"min_ok": "1", INVARIANTS: "true", "idle_timeout": "2"})
GROUP = Case("joram", "dialogue", "partition,pause,kill", None, 20.0, 17.0,
             {"min_ok": "1", INVARIANTS: "true", "idle_timeout": "2"})
SERVERS = Case("joram", "store-and-forward", "partition,pause,kill", None, 20.0, 17.0,
               {"min_ok": "1", INVARIANTS: "true", "idle_timeout": "2", "propagation": "asynchronous",
                "heartbeat_interval": "0.15"})
TOPICS = Case("icestorm", "topic-dialogue", "partition,pause,kill", None, 20.0, 17.0,
              {"min_ok": "1", INVARIANTS: "true", "acm_timeout": "1"})
EVENTS = replace(TOPICS, workload="events")
CASES = {"joram": (GROUP, SERVERS), "icestorm": (TOPICS, EVENTS), "qpid": (KILLED,),
         "fiorano": (PAIR, replace(PAIR, settings={**PAIR.settings, "mode": "shared"}))}
RARE = ("output-timer", "note-timer", "network-refusal-timer", "network-dial-timer", "network-redial-timer",
        "look-timer", "search-timer", "released-until")
"""Waits that these tests do not meet often enough, that share their place and their length with another, or that have
no length."""
DECLARED = [(system, each.name) for system in CASES for each in SYSTEMS.load(system).waits if each.name not in RARE]


def broken(case: Case, path: Path) -> str:
    found, *_ = run_and_judge(case, 3, path, path, ALL)
    assert found.run_dir is not None
    return str(read_run(found.run_dir).get("invariant_broken", {}).get("name", ""))


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize("case", [case for cases in CASES.values() for case in cases])
def test_right_timers_break_no_rule(case: Case, tmp_path: Path) -> None:
    assert broken(case, tmp_path) == ""


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize(("system", "name"), DECLARED)
def test_a_timer_of_half_or_twice_its_length_ends_the_run(
    system: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = SYSTEMS.load(system)
    (wait,) = (each for each in tested.waits if each.name == name)
    monkeypatch.setattr(tested, "invariants", ())
    monkeypatch.setattr(tested, "deadlines", ())
    # Where a wait has no lower bound, only one that is longer than declared is wrong.
    for factor in (0.5, 2) if wait.least else (0.5,):
        times = {setting: each * factor for setting, each in wait.times.items()}
        other = replace(wait, times=times, fixed=wait.fixed * factor)
        same = [each for each in tested.waits if each.place == wait.place and each.of == wait.of and each is not wait]
        monkeypatch.setattr(tested, "waits", (other, *same))
        # Another of the same place may be nearer to the timer.
        places = {wait.name, *(each.name for each in same)}
        assert any(broken(case, tmp_path / f"{factor:g}-{number}") in places
                   for number, case in enumerate(CASES[system]))  # fmt: skip


def test_a_wait_tells_its_length() -> None:
    wait = Wait("timer", "Place.waits", {"lease": 0.2}, 1.0, "a paper", "it is asked after {}", 0.5)
    assert wait.rule == "it is asked after 0.5 to 1 times (0.2 x lease + 1 s)"
    assert replace(wait, least=0.0).rule == "it is asked after at most 0.2 x lease + 1 s"
    assert replace(wait, least=1.0, times={}, fixed=0.75, unit="interval").rule == "it is asked after 0.75 x interval"
    assert wait.claimed({"lease": 2}) and not wait.claimed({})


def test_only_waits_of_the_kind_of_program_are_judged() -> None:
    wait = Wait("timer", "Place.waits", {}, 1.0, "a paper", "it is asked after {}", of="manager")
    assert Waits((wait,), {}, "manager")
    assert not Waits((wait,), {}, "broker")


def test_an_instant_is_judged_when_it_is_noted() -> None:
    lease = Instant("lease", "lock.until", {"lease": 2}, 0.0, "a paper", "it is held for {}")
    turn = Instant("turn", "turn", {}, 1.0, "a paper", "it waits {}", 0.0)
    timer = Wait("timer", "Place.waits", {}, 1.0, "a paper", "")
    program = SimpleNamespace(lock=SimpleNamespace(until=float("-inf")), turn=None)
    instants = Instants((lease, turn, timer), {"lease": 1.5}, "broker", program)
    assert instants.look(9.0, 9.0) is None
    program.lock.until, program.turn = 13.0, ("group", 10.5)
    assert instants.look(10.0, 10.1) is None  # The callback took a tenth of a second.
    program.turn = ("group", 20.0)
    assert instants.look(18.9, 19.0) is None
    program.turn = ("group", 21.0)
    assert instants.look(19.0, 19.0) == (turn, "it waits 1 s; it is to end after 2 s")
    assert instants.look(19.0, 19.0) is None  # It was told.
    program.lock.until = 22.0
    assert instants.look(20.0, 20.0) == (lease, "it is held for 3 s; it is to end after 2 s")
    assert Instants((lease,), {"lease": 1.5}, "manager", program).look(0.0, 0.0) is None
    lacking = Instants((lease,), {"lease": 1.5}, "broker", SimpleNamespace(lock=None))
    assert lacking.look(0.0, 0.0) is None, "a broker without a lock notes no end of it"


def test_a_missing_part_notes_no_instant_and_a_misnamed_place_is_an_error() -> None:
    lease = Instant("lease", "lock.until", {}, 2.0, "a paper", "it is held for {}")
    assert Instants((lease,), {}, "broker", SimpleNamespace(lock=None)).look(0.0, 0.0) is None
    with pytest.raises(AttributeError, match="until"):
        Instants((lease,), {}, "broker", SimpleNamespace(lock=SimpleNamespace(till=1.0))).look(0.0, 0.0)
