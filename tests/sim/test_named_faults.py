"""Simulated runs of written schedules that name nodes."""

from __future__ import annotations

from pathlib import Path

from simulated import simulated, small_test

from nemesis.explicit_schedule import with_canonical_kinds
from nemesis.process import KillFault
from stormproof.history.ledger import FaultWindow, read_ledger


def run(folder: Path, schedule: str, **settings: object) -> list[FaultWindow]:
    """The faults of a simulated run with that schedule."""
    nemesis = ",".join(dict.fromkeys(word.split(":")[0].split("@")[0] for word in schedule.split()))
    test = small_test(1, nemesis=nemesis, settings={"schedule": schedule, **settings})
    return read_ledger(simulated(test, folder) / "ledger.jsonl")


def test_times_are_kept_as_they_are_written() -> None:
    test = small_test(1, nemesis="kill", settings={"schedule": "kill@n1:1.23456789-3.5"})
    assert test.options["schedule"] == "kill:one@n1:1.23456789-3.5:1"
    assert with_canonical_kinds(test, [KillFault()])["schedule"] == test.options["schedule"]


def test_named_faults_of_one_group_overlap(tmp_path: Path) -> None:
    windows = run(tmp_path, "pause@n2:2-6:1 kill@n3:3-5:1")
    assert [(each.fault, each.targets, each.confirmed) for each in windows] == [
        ("pause", ("n2",), True), ("kill", ("n3",), True),
    ]  # fmt: skip
    assert windows[0].start < windows[1].start < windows[1].end < windows[0].end
    assert "beyond max_down=1" in windows[1].inject_evidence["note"], "which the ledger tells"


def test_named_partitions_overlap_and_heal_apart(tmp_path: Path) -> None:
    windows = run(tmp_path, "partition@n2:2-5 partition@n3:3-7", clients="outside")
    assert [(each.targets, each.confirmed) for each in windows] == [(("n2",), True), (("n3",), True)]
