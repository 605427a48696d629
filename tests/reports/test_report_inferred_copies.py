"""Why a replica's copy of a log lacks entries: its disk was damaged, or lost its power; and what must not be said."""

from __future__ import annotations

from pathlib import Path

import pytest
from inferred_runs import Recorded, Step, only, unknown

from reports.root_cause import AnomalyGroup

pytestmark = pytest.mark.requirement("H25", part=True)

APPENDED = [Step("append", 1 + n, 1.1 + n, "n1", (n, 10 + n)) for n in range(4)]
"""Confirmed at 1.1, 2.1, 3.1 and 4.1 s."""


def read(node: str, *offsets: int, start: float = 20.0, process: int = 5) -> list[Step]:
    return [Step("copy", start + n / 10, start + n / 10 + 0.05, node, (n, 10 + n), process=process) for n in offsets]


def group(run: Recorded, folder: Path, *offsets: int) -> tuple[AnomalyGroup, ...]:
    """What the page says about entries that n1 and n2 have at these offsets, and another copy does not."""
    found = []
    for offset in offsets:
        have = [step for step in run.steps if step.f == "copy" and step.value[0] == offset]
        found.append(("missing", None, have, {"offset": offset, "value": 10 + offset}))
    return run.groups(folder, "divergence", found)


def three(*copies: Step) -> Recorded:
    return Recorded(("n1", "n2", "n3"), [*APPENDED, *read("n1", *range(4)), *read("n2", *range(4), process=6), *copies])


def test_a_damaged_disk_left_a_hole(tmp_path: Path) -> None:
    run = three(*read("n3", 0, 3, process=7)).fault("disk", 8.0, 9.0, "n3")
    cause = only(group(run, tmp_path, 1, 2))
    assert cause.inferred == (
        "After the fault of the disk, n3 had lost them, and did not get them from the other nodes.")  # fmt: skip
    assert cause.sentence == ("All 2 were confirmed from 2.100 to 3.100 s, before disk one #0 hit n3’s disk at 8.000 s."
                              " Other nodes have them.")  # fmt: skip


def test_a_loss_of_power_took_them_from_two_copies(tmp_path: Path) -> None:
    run = Recorded(("n1", "n2", "n3"), [*APPENDED, *read("n1", *range(4)), *read("n2", 0), *read("n3", 0, process=7)])
    cause = only(group(run.fault("power", 8.0, 9.0, "n1", "n2", "n3", lost=40), tmp_path, 3))
    assert cause.inferred == (
        "After the loss of power, n2 and n3 had lost it, and did not get it from the other nodes.")  # fmt: skip
    assert cause.sentence.startswith("It was confirmed at 4.100 s, before power one #0 hit n2 and n3’s disks at "
                                     "8.000 s, and 80 bytes were discarded.")  # fmt: skip


@pytest.mark.parametrize("copies", [[], read("n3", 0, 3, process=7)])
@pytest.mark.parametrize(("family", "start", "node", "lost"), [
    ("disk", 2.5, "n3", None),  # before the confirmation of the third
    ("disk", 8.0, "n2", None),  # another node's disk
    ("power", 8.0, "n3", 0),  # nothing was discarded
    ("kill", 8.0, "n3", None),
])  # fmt: skip
def test_a_fault_that_can_not_have_taken_it(family: str, start: float, node: str, lost: int | None, copies: list[Step],
                                            tmp_path: Path) -> None:  # fmt: skip
    """Nor is anything said of a copy that was never read."""
    assert unknown(group(three(*copies).fault(family, start, 9.0, node, lost=lost), tmp_path, 2)) == 1


def test_of_two_faults_neither_is_told(tmp_path: Path) -> None:
    run = three(*read("n3", 0, 3, process=7)).fault("disk", 8.0, 9.0, "n3").fault("power", 10.0, 11.0, "n3", lost=9)
    assert unknown(group(run, tmp_path, 2)) == 1


def test_of_entries_that_nobody_confirmed_nothing_is_told(tmp_path: Path) -> None:
    run = three(*read("n3", 0, 3, process=7)).fault("disk", 8.0, 9.0, "n3")
    run.steps = run.steps[4:]
    assert unknown(group(run, tmp_path, 2)) == 1
