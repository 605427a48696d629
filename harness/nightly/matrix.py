"""The results of runs for each guarantee of each system under each fault, from the store and from its nights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from harness.nightly.record import Night
from harness.run.cases import BROKEN
from nemesis.catalog import FAULTS
from nodes.systems.catalog import SYSTEMS
from reports.matrix_page import STATUSES, MatrixCell, Shown, SystemMatrix
from reports.summaries import KEPT, VIOLATED, IndexRow
from stormproof.contracts.check import UNKNOWN, VERDICTS
from stormproof.contracts.guarantee import KIND
from stormproof.contracts.system import NO_BUG
from stormproof.errors import UsageError

NO_FAULT = "none"
EXAMPLES = 5
"""The most runs that a cell names: first those that violated the guarantee, then the newest."""
_BUG = "bug="


def matrix(rows: Sequence[IndexRow], nights: Iterable[Night]) -> list[SystemMatrix]:
    """Return the matrix of each system that has runs.

    Runs with a bug switched on, with an unknown verdict or without a verdict are left out, and so are guarantees that a
    run's check could not judge. A run with several faults counts for each of them.

    ``rows`` are the store's, the newest first. Runs of nights that are no longer in the store, or never were, count by
    the night's record of them.
    """
    cells: dict[tuple[str, str, str], MatrixCell] = {}
    skipped: dict[str, int] = {}
    for row in rows:
        sound = row.verdict in VERDICTS and row.verdict != UNKNOWN and not row.options.startswith(_BUG)
        if not sound:
            skipped[row.system] = skipped.get(row.system, 0) + 1
            continue
        _count(cells, row.system, row.nemesis.split(","), row.guarantees, row.run, row.report)
    for system, faults, guarantees in _unstored(nights, {row.run for row in rows}):
        _count(cells, system, faults, guarantees, "", False)
    systems = dict.fromkeys([*SYSTEMS.names(), *sorted(system for system, _, _ in cells)])
    return [_system(system, cells, skipped.get(system, 0)) for system in systems
            if any(each == system for each, _, _ in cells)]  # fmt: skip


def _count(cells: dict[tuple[str, str, str], MatrixCell], system: str, faults: Sequence[str],
           guarantees: Mapping[str, str], run: str, report: bool) -> None:
    for name, told in guarantees.items():
        what, _, status = told.partition(" ")
        if what not in (KEPT, VIOLATED):
            continue
        for fault in faults:
            cell = cells.setdefault((system, fault, name), MatrixCell(fault, {}))
            shown = cell.shown.setdefault(status, Shown())
            shown.runs += 1
            shown.violated += what == VIOLATED
            shown.stored += bool(run)
            examples = shown.worst if what == VIOLATED else shown.others
            if run and len(examples) < EXAMPLES:
                examples.append((run, report))


def _unstored(nights: Iterable[Night], stored: set[str]) -> Iterator[tuple[str, Sequence[str], Mapping[str, str]]]:
    """Yield system, faults and guarantees of runs that nights recorded and the store doesn't hold."""
    for night in nights:
        cells = {str(cell.get("name")): cell for cell in night.head.get("cells", []) if isinstance(cell, dict)}
        for result in night.results:
            cell = cells.get(result.cell)
            if cell is None or not result.guarantees or result.verdict in (UNKNOWN, BROKEN) or result.run in stored:
                continue
            settings = cell.get("settings")
            if isinstance(settings, dict) and settings.get("bug", NO_BUG) != NO_BUG:
                continue
            yield str(cell.get("system")), str(cell.get("nemesis")).split(","), result.guarantees


def _system(system: str, cells: Mapping[tuple[str, str, str], MatrixCell], skipped: int) -> SystemMatrix:
    mine = {(fault, name): cell for (each, fault, name), cell in cells.items() if each == system}
    faults = sorted({fault for fault, _ in mine}, key=lambda fault: (fault != NO_FAULT, fault))
    declared = _declared(system)
    tried = {name for _, name in mine}
    names = [*(name for name in declared if name in tried), *sorted(tried - set(declared))]
    table = {name: [mine.get((fault, name), MatrixCell(fault, {})) for fault in faults] for name in names}
    return SystemMatrix(system, tuple(faults), table, declared, tuple(name for name in declared if name not in tried),
                        tuple(name for name in FAULTS.names() if name not in faults), skipped)


def _declared(system: str) -> dict[str, str]:
    """Return the guarantees that a system declares, each with its statuses over all modes."""
    try:
        guarantees = SYSTEMS.load(system).guarantees
    except UsageError:  # the plug-in is not available here
        return {}
    found: dict[str, dict[str, None]] = {}
    for guarantee in guarantees:
        found.setdefault(guarantee.name.partition(KIND)[0], {})[guarantee.status] = None
    return {name: ", ".join(status for status in STATUSES if status in statuses) for name, statuses in found.items()}
