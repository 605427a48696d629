"""`stormproof systems check`: the contract that an adapter has to keep, on real processes."""

from __future__ import annotations

import json

import pytest
from system_runs import HERE, TWO_TIER, Ran, possible, stormproof

from harness.contract.command import lines
from harness.contract.core import FAILED, SKIPPED, ItemOutcome

BROKEN = HERE / "broken_adapters.py"
real = pytest.mark.skipif("local" not in possible(), reason="stormproof doctor tells what backend local lacks")


def check(system: str, *words: str) -> dict[str, ItemOutcome]:
    """How each item ended, by its name."""
    ran = stormproof("systems", "check", system, "--backend", "local", "--nodes", "2", "--json", *words)
    answer = json.loads(ran.out)
    items = {item["name"]: ItemOutcome(**item) for item in answer["items"]}
    failed = sum(each.status == FAILED for each in items.values())
    assert (answer["failed"], ran.status) == (failed, 1 if failed else 0), ran.err
    return items


def test_outcomes_as_a_person_reads_them() -> None:
    broken = ItemOutcome("depth", FAILED, "it is 1, not 2", "mine.py:3 (Mine.depth)",
                         "add those that are with consumers")
    first, where, advice = lines(broken)
    assert first.split(maxsplit=2) == ["failed", "depth", "it is 1, not 2"]
    assert where.strip() == "where: mine.py:3 (Mine.depth)" and advice.strip() == "-> add those that are with consumers"
    assert lines(ItemOutcome("cas", SKIPPED, "it does not provide registers")) == [
        "not claimed  cas                  it does not provide registers"]


@pytest.mark.requirement("H20", part=True)
def test_systems_are_listed() -> None:
    ran = stormproof("systems", "--json")
    found = {system["name"]: system for system in json.loads(ran.out)["systems"]}
    assert found["mosquitto"]["provides"] == ["queues"] and found["redis"]["packages"]
    assert found["fiorano"]["nodes"] == [2, 2] and found["fiorano"]["simulated"]


@pytest.mark.parametrize(("words", "told"), [
    (("nosuch",), "no system 'nosuch'"),
    ((TWO_TIER, "--backend", "sim"), "real processes are checked"),
    ((TWO_TIER, "--set", "nosuch=1"), "nosuch"),
    ((TWO_TIER, "--workload", "register", "--backend", "local"), "registers"),
])  # fmt: skip
def test_what_is_refused(words: tuple[str, ...], told: str) -> None:
    ran: Ran = stormproof("systems", "check", *words)
    assert ran.status == 3 and told in ran.err and len(ran.err.splitlines()) == 1, ran.err


@real
@pytest.mark.soak
@pytest.mark.requirement("H20", part=True)
def test_an_adapter_that_keeps_it() -> None:
    items = check(TWO_TIER)
    assert not [each for each in items.values() if each.status == FAILED]
    assert items["redelivery"].told.startswith("comes again after an operator has released")
    assert {name for name, each in items.items() if each.status == SKIPPED} == {
        "give-back", "read-write", "cas", "lock", "log", "events", "watch", "time_of",
        "tokens", "tokens-kept", "heartbeat", "data"}


@real
@pytest.mark.soak
@pytest.mark.requirement("H20", part=True)
def test_each_mistake_is_told_where_it_was_made() -> None:
    items = check(f"{BROKEN}:Mistaken")
    failed = {name: each for name, each in items.items() if each.status == FAILED}
    assert set(failed) == {"connect-from", "depth-unacknowledged", "redelivery", "close", "leaders", "pause-status",
                           "kill", "send-to-dead", "parse_line", "role_change", "leader-serves"}  # fmt: skip
    assert "broken_adapters.py" in failed["connect-from"].where and "local_addr" in failed["connect-from"].advice
    assert "Connection.send" in failed["send-to-dead"].where


@real
@pytest.mark.soak
def test_what_goes_by_a_failure_is_not_counted_as_one() -> None:
    items = check(f"{BROKEN}:Raising")
    assert items["take-empty"].status == items["kill"].status == FAILED
    assert items["lost-connection"].status == SKIPPED and "kill" in items["lost-connection"].told
    assert items["stop"].status == items["logs"].status == "ok"


@real
@pytest.mark.soak
def test_programs_that_end_at_once() -> None:
    items = check(f"{BROKEN}:Dead")
    assert items["start"].status == FAILED and "has ended" in items["start"].told
    assert all(each.status == SKIPPED for name, each in items.items() if name != "start")
