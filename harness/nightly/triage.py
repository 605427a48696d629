"""The kinds of failure over many nights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from harness.nightly.known import KnownFailure
from harness.nightly.record import Night, NightResult
from reports.triage_page import TriageKind
from stormproof.contracts.check import INVALID
from stormproof.errors import HistoryError
from stormproof.run_folder import environment_read, read_run

NEW, SEEN, KNOWN, OVERDUE = "new", "seen before", "known", "known, but overdue"
ORDER = (NEW, OVERDUE, SEEN, KNOWN)
"""The order in which kinds are reported."""


@dataclass(frozen=True)
class FailureHistory:
    """One kind of failure. ``first`` and ``last`` are nights. ``example`` is the best run to examine: the shortest."""

    fingerprint: str
    words: str
    status: str
    runs: Sequence[NightResult]
    first: str
    last: str
    example: NightResult
    known: KnownFailure | None = None
    confirmed: tuple[int, int] | None = None


def kinds_over(nights: Sequence[Night], chosen: Collection[str], knowns: Mapping[str, KnownFailure],
               today: date | None = None) -> list[FailureHistory]:
    """Return the kinds of failure of the chosen nights: new kinds first, then the others by their last occurrence.

    Failures of twins do not count, since twins should fail.

    ``nights`` are all nights of the store, the oldest first. A kind is new if it did not occur before the last of the
    chosen nights.
    """
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    runs: dict[str, list[NightResult]] = {}
    confirmed: dict[str, tuple[int, int]] = {}
    for night in nights:
        wanted = {cell.get("name") for cell in night.head.get("cells", []) if cell.get("expected") == INVALID}
        for result in night.results:
            code = result.fingerprint
            if not code:
                continue
            first.setdefault(code, night.name)
            last[code] = night.name
            if night.name in chosen and not (result.cell in wanted and result.verdict == INVALID):
                runs.setdefault(code, []).append(result)
        if night.name in chosen:
            confirmed |= night.confirmed
    newest = max(chosen, default="")
    kinds = []
    for code, found in runs.items():
        known = knowns.get(code)
        word = NEW if first[code] == newest else SEEN
        if known is not None:
            word = OVERDUE if known.is_over(today) else KNOWN
        example = min(found, key=lambda run: (not run.run, run.seconds))
        kinds.append(FailureHistory(code, found[-1].words, word, found, first[code], last[code], example, known,
                          confirmed.get(code)))  # fmt: skip
    kinds.sort(key=lambda kind: (kind.last, len(kind.runs), kind.fingerprint), reverse=True)
    return sorted(kinds, key=lambda kind: ORDER.index(kind.status))


def for_page(kinds: Sequence[FailureHistory], stored: Mapping[str, bool], store: Path) -> list[TriageKind]:
    """Return the kinds in the form that the page shows. ``stored`` maps the runs of ``store`` to whether each has a
    report."""
    return [
        TriageKind(
            kind.fingerprint, kind.words, kind.status, len(kind.runs), kind.first, kind.last, kind.example.sentence,
            kind.example.run, kind.example.command, kind.confirmed,
            "" if kind.known is None else ", ".join(filter(None, (
                kind.known.issue, kind.known.reason, f"until {kind.known.until}" if kind.known.until else ""))),
            tuple((run.run, stored[run.run]) for run in reversed(kind.runs) if run.run in stored),
            kind.status in (NEW, OVERDUE), reads_of(store, kind),
        )
        for kind in kinds
    ]  # fmt: skip


def reads_of(store: Path, kind: FailureHistory) -> str:
    """Return the environment variables that the Compose file of a kind's example reads; empty if there are none."""
    try:
        return environment_read(read_run(store / kind.example.run)) if kind.example.run else ""
    except HistoryError:  # the run is no longer in the store
        return ""
