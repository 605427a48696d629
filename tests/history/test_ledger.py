"""The fault ledger: windows and repairs, as they are written now and as they were written once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nemesis.catalog import FAULTS
from stormproof.contracts.fault import ENDS_PROCESS, FROM_HEAL, STRIKES_LATER
from stormproof.errors import HistoryError
from stormproof.history.ledger import LedgerLine, Repair, read_ledger, read_repairs

CUT = LedgerLine(3, "partition", "primary", "inject", 1_000, ("n1", "c1"), {"links": 4}, False, None, 2_000,
                 ("cuts links",))  # fmt: skip
HEALED = LedgerLine(3, "partition", "primary", "heal", 9_000, ("n1", "c1"), {"dropped": 42}, True)
REPAIRED = Repair("the queues were told to synchronise", 10_000, 12_000)


def old_lines(fault: str) -> list[dict[str, Any]]:
    """A fault as it was written when ledgers did not tell effects."""
    common = {"id": 0, "fault": fault, "kind": "one", "targets": ["n1"], "error": None}
    return [
        {**common, "phase": "inject", "time": 5, "evidence": {"pid": 4711}, "proven": True, "done": 6},
        {**common, "phase": "heal", "time": 8, "evidence": {}, "proven": False, "done": 9},
    ]


def written(path: Path, *lines: LedgerLine | Repair | dict[str, Any] | str) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) if isinstance(line, dict) else line.to_json()
             for line in lines]  # fmt: skip
    path.write_text("\n".join(texts) + "\n")
    return path


def test_a_window_is_an_injection_and_its_heal(tmp_path: Path) -> None:
    (window,) = read_ledger(written(tmp_path / "ledger.jsonl", CUT, HEALED))
    assert (window.id, window.fault, window.kind, window.targets) == (3, "partition", "primary", ("n1", "c1"))
    assert (window.start, window.in_force, window.end) == (1_000, 2_000, 9_000)
    assert window.confirmed, "by its heal"
    assert (window.inject_evidence, window.heal_evidence) == ({"links": 4}, {"dropped": 42})
    assert window.effects == {"cuts links"}


@pytest.mark.requirement("H8")
def test_a_strike_while_a_fault_is_healed_is_within_its_window(tmp_path: Path) -> None:
    second = 1_000_000_000
    armed = LedgerLine(9, "points", "kill", "inject", second, ("n1", "n2"), {}, False, None, second,
                       (ENDS_PROCESS, STRIKES_LATER))  # fmt: skip
    healed = LedgerLine(9, "points", "kill", "heal", 2 * second, ("n1",), {FROM_HEAL: 1.5}, True, None, 4 * second,
                        armed.effects)  # fmt: skip
    (window,) = read_ledger(written(tmp_path / "ledger.jsonl", armed, healed))
    assert (window.targets, window.struck, window.end, window.healed) == (
        ("n1",), 3_500_000_000, 4 * second, 4 * second)  # fmt: skip
    (window,) = read_ledger(written(tmp_path / "ledger.jsonl", armed, replace(healed, evidence={FROM_HEAL: -0.25})))
    assert (window.struck, window.end) == (1_750_000_000, 4 * second)
    (window,) = read_ledger(written(tmp_path / "ledger.jsonl", armed, replace(healed, evidence={})))
    assert (window.struck, window.end) == (None, 4 * second)
    (window,) = read_ledger(written(tmp_path / "ledger.jsonl", armed))
    assert (window.struck, window.end) == (None, None)
    (window,) = read_ledger(written(tmp_path / "ledger.jsonl", CUT, replace(HEALED, evidence={FROM_HEAL: 1})))
    assert (window.struck, window.end) == (None, 9_000)


def test_a_line_says_proven_as_it_always_did() -> None:
    assert json.loads(HEALED.to_json())["proven"] is True
    assert "confirmed" not in json.loads(HEALED.to_json())


ALWAYS_TELL = ("rolling", "crash", "manager", "quorum", "gateway", "lockfile", "channel", "shared-db")
"""Families that are younger than ledgers without effects."""


@pytest.mark.parametrize("fault", [name for name in FAULTS.names() if name not in ALWAYS_TELL])
def test_a_ledger_without_effects_has_those_of_its_families(fault: str, tmp_path: Path) -> None:
    (window,) = read_ledger(written(tmp_path / "ledger.jsonl", *old_lines(fault)))
    assert window.effects == FAULTS.load(fault).effects
    assert (window.confirmed, window.inject_evidence, window.in_force, window.end) == (True, {"pid": 4711}, 6, 8)


def test_what_is_not_known_of_a_foreign_family_is_nothing(tmp_path: Path) -> None:
    (window,) = read_ledger(written(tmp_path / "ledger.jsonl", *old_lines("moonlight")))
    assert window.effects == frozenset()


def test_repairs_are_no_faults(tmp_path: Path) -> None:
    path = written(tmp_path / "ledger.jsonl", CUT, HEALED, REPAIRED)
    assert [window.id for window in read_ledger(path)] == [3]
    assert read_repairs(path) == [REPAIRED]


def test_there_may_be_no_ledger(tmp_path: Path) -> None:
    assert read_ledger(tmp_path / "ledger.jsonl") == read_repairs(tmp_path / "ledger.jsonl") == []


def test_a_torn_last_line_is_left_out_and_any_other_is_told(tmp_path: Path) -> None:
    path = written(tmp_path / "ledger.jsonl", CUT, HEALED.to_json()[:40])
    (window,) = read_ledger(path)
    assert window.end is None
    written(path, '{"phase": "repair"}', CUT, HEALED)
    with pytest.raises(HistoryError, match=r"ledger\.jsonl:1: not a ledger line"):
        read_ledger(path)
    with pytest.raises(HistoryError, match=r"ledger\.jsonl:1: not a ledger line"):
        read_repairs(path)
