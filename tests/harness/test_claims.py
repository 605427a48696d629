"""Faults that an imported history claims, by what its nemesis says that it did."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.store.claims import Action, claimed_faults
from stormproof.history.ledger import read_ledger


def windows(tmp_path: Path, *actions: str) -> list[tuple[str, str, int, int | None]]:
    """Family, kind, start and end of the faults that these actions claim, one in each nanosecond."""
    path = tmp_path / "ledger.jsonl"
    told = [text.partition(" ") for text in actions]
    lines = claimed_faults(Action(f, value or None, time) for time, (f, _, value) in enumerate(told))
    path.write_text("".join(f"{line.to_json()}\n" for line in lines))
    found = read_ledger(path)
    assert all(each.claimed and not each.confirmed for each in found)
    return [(each.fault, each.kind, each.start, each.end) for each in found]


@pytest.mark.parametrize(
    ("actions", "found"),
    [
        ([], []),
        (["start-partition majority"], [("partition", "majority", 0, None)]),
        (["start-partition", "start-partition {n1 #{n2}}", "stop-partition", "stop-partition"],
         [("partition", "", 0, 2)]),
        (["kill", "kill", "start", "start", "pause", "pause", "resume", "resume"],
         [("kill", "", 0, 2), ("pause", "", 4, 6)]),
        (["start", "start", "stop", "stop", "start", "start"], [("start", "", 0, 2), ("start", "", 4, None)]),
        (["start", "stop", "start"], [("start", "", 0, 1), ("start", "", 2, None)]),
        (["kill", "kill", "start-partition", "start-partition", "stop-partition", "stop-partition", "start", "start"],
         [("kill", "", 0, 6), ("partition", "", 2, 4)]),
        (["partition", "partition", "heal", "heal"], [("partition", "", 0, 2)]),
        (["bump", "bump"], [("bump", "", 0, None)]),
        (["partition.inject", "partition.inject", "partition.heal", "partition.heal"], [("partition", "", 0, 2)]),
    ],
)  # fmt: skip
def test_what_begins_and_what_ends(
    tmp_path: Path, actions: list[str], found: list[tuple[str, str, int, int | None]]
) -> None:
    assert windows(tmp_path, *actions) == found


def test_evidence_is_what_the_nemesis_says() -> None:
    lines = claimed_faults([Action("start-partition", "majority", 3), Action("start-partition", {"n1": ["n2"]}, 5)])
    assert [(line.time, line.done, line.evidence) for line in lines] == [
        (3, 5, {"action": "start-partition", "told": ["majority", {"n1": ["n2"]}]})]  # fmt: skip
