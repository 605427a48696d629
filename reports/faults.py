"""The faults of a run as its page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.folder import mapping, number, sequence
from reports.story import fault_name, flat
from stormproof.history.ledger import FaultWindow


@dataclass(frozen=True)
class FaultRow:
    """One fault as the page shows it: when, on what, its evidence, and how long recovery took (seconds)."""

    window: FaultWindow
    name: str
    start: float
    end: float | None
    injected: tuple[tuple[str, str], ...]
    healed: tuple[tuple[str, str], ...]
    recovery: str


def fault_rows(faults: Sequence[FaultWindow], verdict: Mapping[str, Any]) -> list[FaultRow]:
    """The ledger's faults with their evidence and the recovery time that the checks measured."""
    measured = {
        entry.get("fault_id"): entry.get("seconds")
        for entry in map(mapping, sequence(mapping(verdict.get("figures")).get("recovery_s")))
    }
    rows: list[FaultRow] = []
    for window in faults:
        took = number(measured.get(window.id))
        recovery = "not measured"
        if window.id in measured:
            recovery = f"{took:,.3g} s" if took is not None else "did not recover"
        rows.append(
            FaultRow(
                window=window,
                name=fault_name(window),
                start=window.start / 1e9,
                end=None if window.end is None else window.end / 1e9,
                injected=flat(mapping(window.inject_evidence)),
                healed=flat(mapping(window.heal_evidence)),
                recovery=recovery,
            )
        )
    return rows
