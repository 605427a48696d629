"""A page about a system without modes: what held and what broke in a store's runs, setting by fault."""

from __future__ import annotations

import contextlib
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.analysis.guarantee_matrix import judged_runs
from harness.run.describe import changed, command_line
from nodes.systems.catalog import SYSTEMS
from reports.folder import read_folder
from reports.root_cause import LeadingCause
from reports.run_page import explain
from stormproof.contracts.check import INVALID, VALID
from stormproof.errors import UsageError
from stormproof.run_folder import REPORT
from stormproof.test import Test
from stormproof.text import amount, listed, markdown_cell

NO_FAULT = "no fault"
TITLE = ": what held, and what broke"
_REPORT = "witness-{}.html"


@dataclass(frozen=True)
class Shown:
    """One run with a verdict. ``broken`` are the guarantees that it violated, ``faults`` the number of faults whose
    effect was confirmed."""

    path: Path
    test: Test
    verdict: str
    sentence: str
    broken: tuple[str, ...]
    faults: int
    day: str


@dataclass(frozen=True)
class Row:
    """The key of a row: a workload, a number of nodes and the settings that differ from the defaults."""

    workload: str
    nodes: int
    settings: tuple[tuple[str, str], ...]


Witness = tuple[Shown, LeadingCause | None]
"""A run, and the cause on its page."""
Cells = Mapping[Row, Mapping[str, Sequence[Shown]]]
"""Row -> faults -> runs."""


def runs_of(system: str, store: Path) -> list[Shown]:
    """Return the runs of a system in a store that have a verdict (``judged_runs``)."""
    found = []
    for path, info, test, verdict in judged_runs(system, store):
        broken = tuple(check["check"] for check in verdict["checks"]
                       if check["verdict"] == INVALID and check["check"] in info["guarantees"])  # fmt: skip
        confirmed = verdict["figures"].get("faults_confirmed") or 0
        found.append(Shown(path, test, verdict["verdict"], verdict["sentence"], broken, confirmed,
                           str(info.get("started") or "")[:10]))  # fmt: skip
    return found


def cells_of(system: str, runs: Sequence[Shown], also: Sequence[str]) -> Cells:
    """Sort runs into rows and columns. Settings of the system make rows, and those named in ``also``.

    Raises:
        UsageError: no run has a setting of ``also``.
    """
    named = {option.name for option in SYSTEMS.load(system).options} | set(also)
    cells: dict[Row, dict[str, list[Shown]]] = defaultdict(lambda: defaultdict(list))
    for shown in runs:
        test = shown.test
        settings = tuple((name, _told(test.options[name])) for name in changed(test) if name in named)
        row = Row(test.workload, test.nodes, tuple(sorted(settings)))
        cells[row][" + ".join(sorted(test.nemesis)) or NO_FAULT].append(shown)
    for name in also:
        if all(name not in shown.test.options for shown in runs):
            raise UsageError(f"--by {name}: no run of {system} in this store has such a setting")
    return {row: dict(cells[row]) for row in sorted(cells, key=lambda r: (r.workload, len(r.settings), r.settings))}


def is_broker_page(page: Path) -> bool:
    """Return whether a file is a page of this kind."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return page.read_text(encoding="utf-8").split("\n", 1)[0].endswith(TITLE)
    return False


def broker_page(system: str, store: Path, also: Sequence[str], folder: Path | None) -> tuple[str, int]:
    """Return the page and the number of broken cells. With a ``folder``, copy the report of each cell's witness there,
    and link to it.

    Raises:
        UsageError: the store has no run of the system with a verdict, or no run has a setting of ``also``.
    """
    runs = runs_of(system, store)
    if not runs:
        raise UsageError(f"--store {store}: no run of {system} with a verdict")
    cells = cells_of(system, runs, also)
    witnesses = _witnesses_of(cells)
    numbers = {cell: number for number, cell in enumerate(witnesses, 1)}
    lines = [*_head(system, runs), *_tables(cells, numbers), *_told_witnesses(witnesses, folder)]
    return "\n".join(lines) + "\n", len(witnesses)


def _head(system: str, runs: Sequence[Shown]) -> Iterator[str]:
    days = sorted({shown.day for shown in runs})
    places = listed(sorted({shown.test.backend for shown in runs}))
    yield f"# {system}{TITLE}"
    yield ""
    yield (f"Made by `stormproof guarantees --system {system}` from {amount(len(runs), 'run')} on {places}, "
           f"{' to '.join(dict.fromkeys((days[0], days[-1])))}.")  # fmt: skip
    yield ""
    yield ("A row is a setting that differs from the default, a column the faults of a run. *Broken* means that a run "
           "was invalid, and names the violated guarantees. *Held* means that no run showed a violation: it is no "
           "proof. Faults count if their effect was confirmed.")  # fmt: skip


def _witnesses_of(cells: Cells) -> dict[tuple[Row, str], Witness]:
    """Return one run for each cell that has invalid ones: the first whose page infers a cause, otherwise the first."""
    found = {}
    for row, columns in cells.items():
        for faults, runs in columns.items():
            bad = [shown for shown in runs if shown.verdict == INVALID]
            if bad:
                causes = ((shown, explain(read_folder(shown.path)).why) for shown in bad)
                found[row, faults] = next((each for each in causes if each[1]), (bad[0], None))
    return found


def _tables(cells: Cells, numbers: Mapping[tuple[Row, str], int]) -> Iterator[str]:
    several = len({row.nodes for row in cells}) > 1
    for workload in dict.fromkeys(row.workload for row in cells):
        rows = [row for row in cells if row.workload == workload]
        columns = sorted({faults for row in rows for faults in cells[row]}, key=lambda name: (" + " in name, name))
        yield from ("", f"## {workload}", "", f"| settings | {' | '.join(columns)} |",
                    f"{'| --- ' * (len(columns) + 1)}|")  # fmt: skip
        for row in rows:
            told = [_cell(cells[row].get(faults, ()), numbers.get((row, faults), 0)) for faults in columns]
            nodes = f"{amount(row.nodes, 'node')}: " if several else ""
            yield f"| {nodes}{_settings(row)} | {' | '.join(told)} |"


def _cell(runs: Sequence[Shown], number: int) -> str:
    """Return a cell in words; ``number`` is that of its witness."""
    if not runs:
        return ""
    words = []
    bad = [shown for shown in runs if shown.verdict == INVALID]
    held = [shown for shown in runs if shown.verdict == VALID]
    if bad:
        names = listed([*dict.fromkeys(name for shown in bad for name in shown.broken)])
        words.append(f"**broken** in {len(bad)} of {len(runs)}: {names} ([witness {number}](#witness-{number}))")
    if held:
        faults = sum(shown.faults for shown in held)
        under = f" under {amount(faults, 'confirmed fault')}" if faults else ""
        words.append(f"held in {amount(len(held), 'run')}{under}")
    unknown = len(runs) - len(bad) - len(held)
    return ", ".join([*words, *([f"unknown in {unknown}"] if unknown else [])])


def _told_witnesses(witnesses: Mapping[tuple[Row, str], Witness], folder: Path | None) -> Iterator[str]:
    """Yield a section on each witness. Copy its report to ``folder``."""
    for old in folder.glob(_REPORT.format("*")) if folder is not None else ():
        old.unlink()
    if witnesses:
        yield from ("", "## Witnesses", "", "One run of each broken cell, and the command that runs it again.")
    for number, ((row, faults), (shown, cause)) in enumerate(witnesses.items(), 1):
        yield from ("", f"### Witness {number}", "", f"{row.workload}, {_settings(row)}, {faults}: "
                    f"{markdown_cell(shown.sentence)}")  # fmt: skip
        if cause is not None:
            yield from ("", f"{markdown_cell(cause.which.capitalize())}: {markdown_cell(cause.cause.text)}")
        report = shown.path / REPORT
        if folder is not None and report.exists():
            copy = folder / _REPORT.format(number)
            folder.mkdir(exist_ok=True)
            shutil.copyfile(report, copy)
            yield from ("", f"[The run's report]({folder.name}/{copy.name})")
        yield from ("", "```sh", command_line(shown.test, Path("runs"), brief=True), "```")


def _told(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings(row: Row) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in row.settings).replace("|", "\\|") or "the defaults"
