"""``stormproof gc``: apply a store's retention rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.run.progress import console
from reports.index_page import write_index
from stormproof.errors import StormproofError, UsageError
from stormproof.packing import remove_unfinished
from stormproof.retention import RetainedRun, RetentionRules, plan, remove_rests, remove_run, survey
from stormproof.store import Store


@dataclass(frozen=True)
class Collected:
    """The result of a collection: removed runs (in a dry run, those to be removed); runs that are kept despite the
    rules; failed removals with their reasons; and the number and size of the remaining runs."""

    going: Sequence[RetainedRun]
    staying: Sequence[RetainedRun]
    failed: Sequence[str]
    left: int
    left_size: int


def collect(store_dir: Path, rules: RetentionRules, dry_run: bool) -> Collected:
    """Remove the runs that the rules permit to remove.

    Raises:
        UsageError: there is no such store.
    """
    store = Store(store_dir)
    if not store_dir.is_dir():
        raise UsageError(f"{store_dir}: no such store; name one with --store")
    if not dry_run:
        remove_rests(store)
        remove_unfinished(store)
    runs = list(survey(store))
    going, failed = plan(runs, rules), []
    retained = [RetainedRun(each.run_dir, each.age, each.size, each.passed) for each in runs]
    allowed = {run.run_dir for run in plan(retained, rules)}
    staying = [run for run in runs if run.why and run.run_dir in allowed]
    gone = []
    if dry_run:
        gone = going
    else:
        with console(errors=True).status(f"removing {len(going)} runs"):
            for run in going:
                try:
                    remove_run(run.run_dir)
                    gone.append(run)
                except StormproofError as error:
                    failed.append(str(error))
        write_index(store_dir)
    return Collected(gone, staying, failed, len(runs) - len(gone),
                     sum(run.size for run in runs) - sum(run.size for run in gone))  # fmt: skip
