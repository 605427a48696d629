"""The faults of a run for its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.folder import mapping, number, sequence
from reports.narrative import fault_name, flat
from stormproof.history.ledger import FaultWindow


@dataclass(frozen=True)
class FaultRow:
    """One fault for the page: its time, targets, evidence, and recovery time (seconds)."""

    window: FaultWindow
    name: str
    start: float
    end: float | None
    injected: tuple[tuple[str, str], ...]
    healed: tuple[tuple[str, str], ...]
    recovery: str

    @property
    def status(self) -> str:
        """The certainty that the fault took effect, in the state that it expects."""
        if self.window.skipped:
            return "skipped"
        if self.window.confirmed:
            return "confirmed" if self.window.counts else "does not count"
        return "claimed" if self.window.claimed else "not confirmed"

    @property
    def vacuous(self) -> str:
        """The reason why an effective fault does not count, as a sentence; empty if it counts, or took no effect."""
        if not self.window.confirmed or not self.window.unmet:
            return ""
        lacks = "it was not orderly" if self.window.forced else "the cluster was not in the state that it requires"
        return f"It took effect, but {lacks} ({self.window.unmet})."


def fault_rows(faults: Sequence[FaultWindow], verdict: Mapping[str, Any]) -> list[FaultRow]:
    """Return the ledger's faults with their evidence and the recovery time that the checks measured."""
    told = {entry.get("fault_id"): entry
            for entry in map(mapping, sequence(mapping(verdict.get("figures")).get("recovery_s")))}  # fmt: skip
    measured = {ident: entry.get("seconds") for ident, entry in told.items()}
    rows: list[FaultRow] = []
    for window in faults:
        took = number(measured.get(window.id))
        recovery = "not measured"
        if window.id in measured:
            unproven = "too short to tell" if sequence(told[window.id].get("too_short")) else "did not recover"
            recovery = f"{took:,.3g} s" if took is not None else unproven
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
