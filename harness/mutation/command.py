"""``stormproof mutants --generated``: draw the lists, hunt for the mutants, tell the results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.cli.output import print_json
from harness.mutation.drawing import MutantList, changed_source, list_file, read_list, write_list
from harness.mutation.equivalents import read_equivalents
from harness.mutation.hunting import Hunter, make_list
from harness.mutation.page import (
    CAUGHT,
    EQUIVALENT,
    ESCAPED,
    GONE,
    OPEN,
    Measured,
    diff_of,
    make_page,
    outcome_of,
    place_of,
    summary_line,
)
from harness.mutation.results import ResultFile, source_version
from harness.run.progress import console, duration
from stormproof.errors import EXIT_INVALID, EXIT_VALID, StormproofError, UsageError
from stormproof.text import amount

SYSTEMS = ("joram", "icestorm", "qpid", "fiorano")
"""The systems whose source is mutated: the designs of the reference broker."""
RESULTS = "mutants"
"""The folder of results, in the store."""


@dataclass(frozen=True)
class Order:
    """The mutants to hunt for, and the folders of lists and results."""

    systems: Sequence[str]
    number: int
    seed: int
    start: int
    budget: int
    jobs: int | None
    lists: Path
    store: Path
    only: Sequence[str] = ()
    """Ids of mutants; all of the list if it is empty."""


def run_generated(order: Order, *, list_only: bool, page: Path | None, as_json: bool) -> int:
    """Hunt for the mutants of each system's list, which is drawn if it is absent; return the exit status.

    The status is 0 when each mutant was caught, or is named as equivalent.

    Raises:
        UsageError: a number makes no sense, or a file or an id is not what it should be.
        StormproofError: a file can't be written, or the source changes meanwhile.
    """
    _check(order)
    to = console(as_json)

    def tell(line: str) -> None:
        to.print(line, markup=False, soft_wrap=True)

    lists = [_list(order, system, tell) for system in order.systems]
    known = {mutant.id for each in lists for mutant in each.mutants}
    if unknown := [name for name in order.only if name not in known]:
        raise UsageError(f"no such mutant in the list of {', '.join(order.systems)}: {', '.join(unknown)}")
    if page is not None and not page.parent.is_dir():
        raise UsageError(f"--page {page}: no such folder")
    if list_only:
        if as_json:
            print_json({each.system: asdict(each) for each in lists})
        else:
            for each in lists:
                for mutant in each.mutants:
                    tell(f"{mutant.id} {place_of(mutant)} ({mutant.operator})")
        return EXIT_VALID
    measures: list[Measured] = []
    try:
        for each in lists:
            _hunt(order, each, measures, tell)
    finally:
        if as_json:
            print_json({measured.listed.system: _json(measured) for measured in measures})
        for measured in measures:
            tell(summary_line(measured))
    if page is not None:
        try:
            page.write_text(make_page(measures), encoding="utf-8")
        except OSError as error:
            raise StormproofError(f"--page {page}: can't be written ({error.strerror})") from error
    caught = all(outcome in (CAUGHT, EQUIVALENT) for each in measures for *_, outcome in each.rows)
    return EXIT_VALID if caught else EXIT_INVALID


def _check(order: Order) -> None:
    for name in order.systems:
        if name not in SYSTEMS:
            raise UsageError(f"--system {name}: mutants are made of {', '.join(SYSTEMS)}")
    if order.number < 1 or order.budget < 1 or order.start < 0 or order.seed < 0:
        raise UsageError("--generated and --seeds: at least 1; --start and --seed: at least 0")


def _list(order: Order, system: str, tell: Callable[[str], None]) -> MutantList:
    """Return the system's list; draw and write it first if it is absent."""
    path = list_file(order.lists, system, order.seed)
    if not path.exists():
        if order.only:
            raise UsageError(f"{path}: no such list, so no ids of mutants: draw it with --list-only")
        tell(f"{path}: drawing {amount(order.number, 'mutant')} of {system}")
        drawn = make_list(system, order.number, order.seed)
        try:
            write_list(path, drawn)
        except OSError as error:
            raise StormproofError(f"{path}: can't be written ({error.strerror})") from error
    listed = read_list(path)
    if len(listed.mutants) < order.number:
        raise UsageError(
            f"{path} has {amount(len(listed.mutants), 'mutant')}: draw another list with --seed, "
            "or in another folder with --lists"
        )
    return MutantList(**{**vars(listed), "mutants": listed.mutants[: order.number]})


def _hunt(order: Order, listed: MutantList, measures: list[Measured], tell: Callable[[str], None]) -> None:
    """Hunt for a list's mutants, and add the measure of what was found, even if the hunt is interrupted."""
    version = source_version()
    equivalents = read_equivalents(order.lists)
    results = ResultFile(order.store / RESULTS / f"{listed.system}-{listed.seed}.jsonl", version)
    if results.of_others:
        tell(f"{listed.system}: {amount(results.of_others, 'result')} of another version of the source not used")
    mutants = [mutant for mutant in listed.mutants if not order.only or mutant.id in order.only]
    gone = {mutant.id for mutant in mutants if changed_source(mutant) is None}
    hunter = Hunter(listed.system, results, version)
    began = time.monotonic()
    try:
        hunts = hunter.hunt(mutants, order.start, order.budget, order.jobs or os.cpu_count() or 1)
        for number, (mutant, result) in enumerate(hunts, 1):
            outcome = outcome_of(mutant, result, order.budget, mutant.id in gone, equivalents)
            how = f"{', '.join(result.by)} after {amount(result.seeds, 'seed')}" if result.by else outcome.upper()
            left = duration((time.monotonic() - began) / number * (len(mutants) - number))
            where = f"hunt {number} of {len(mutants)}, about {left} left: " if number < len(mutants) else ""
            tell(f"{where}{mutant.id} {place_of(mutant)} ({mutant.operator}): {how} ({result.seconds:.1f} s)")
            if outcome in (ESCAPED, OPEN, GONE):
                for line in diff_of(mutant):
                    tell(f"    {line}")
    finally:
        rows = []
        for mutant in mutants:
            result = results.get(mutant.id, order.start)
            rows.append((mutant, result, outcome_of(mutant, result, order.budget, mutant.id in gone, equivalents)))
        measures.append(Measured(listed, order.start, order.budget, version, rows, equivalents))


def _json(measured: Measured) -> dict[str, object]:
    return {
        "seed": measured.listed.seed, "start": measured.start, "seeds": measured.budget, "source": measured.version,
        "summary": measured.summary(),
        "mutants": [asdict(mutant) | {"outcome": outcome, "by": result.by, "seeds": result.seeds,
                                      "unknown": result.unknown, "innocent": result.innocent, "seconds": result.seconds,
                                      "sentence": result.sentence, "command": result.command}
                    for mutant, result, outcome in measured.rows],
    }  # fmt: skip
