"""``stormproof push`` and ``pull``: copy runs to an object store and back."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from checkers.lake.object_store import ObjectStore
from harness.run.progress import console
from harness.store.recheck_objects import chosen
from reports.index_page import write_index
from stormproof.errors import EXIT_ERROR, StormproofError
from stormproof.packing import demand_ended, files_of
from stormproof.store import Store, make_store
from stormproof.text import amount, escaped

_PULLING = ".pulling-"


def push(store: Path, to: ObjectStore, names: Sequence[str], *, again: bool) -> int:
    """Copy the named runs, or all, to an object store. Return the exit status: 3 when some could not be copied.

    Runs that are already complete there are left unchanged, unless ``again`` is set. A run's description is copied
    last. So a run whose copying was interrupted does not count as present, and the same command continues with it.

    Raises:
        UsageError: a run does not exist. StormproofError: the service does not answer.
    """
    runs_of = Store(store)
    runs = [runs_of.resolve(name) for name in names] if names else runs_of.runs()
    to.demand_bucket()
    there = set() if again else set(to.runs())
    left = [run for run in runs if run.resolve().name not in there]
    failed: list[str] = []
    with console(errors=True).status("copying") as status:
        for number, run in enumerate(left, 1):
            status.update(f"copying run {number} of {len(left)}")
            try:
                demand_ended(run)
                to.put(run.resolve().name, [(str(path.relative_to(run)), path) for path in files_of(run)])
            except (StormproofError, OSError) as error:
                failed.append(f"{run.name}: {error}")
    for line in failed:
        print(f"not copied: {escaped(line)}", file=sys.stderr)
    print(f"{to}: {amount(len(left) - len(failed), 'run')} copied, {len(runs) - len(left)} were there already")
    return EXIT_ERROR if failed else 0


def pull(store: Path, source: ObjectStore, names: Sequence[str]) -> int:
    """Copy the named runs, or all, from an object store. Runs that exist here already are left unchanged. Return 0.

    Raises:
        UsageError: a run does not exist. StormproofError: the service refuses, or the store can't be written.
    """
    runs, _ = chosen(source, names)
    make_store(store)
    left = [run for run in runs if not (store / run).exists()]
    with console(errors=True).status("copying") as status:
        for number, run in enumerate(left, 1):
            status.update(f"copying run {number} of {len(left)}")
            draft = store / f"{_PULLING}{secrets.token_hex(4)}"
            try:
                source.fetch(run, draft, runs[run], all_files=True)
                draft.rename(store / run)
            except OSError as error:
                raise StormproofError(f"{store / run}: can't be written ({error.strerror or error})") from error
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    write_index(store)
    print(f"{store}: {amount(len(left), 'run')} copied, {len(runs) - len(left)} were here already")
    return 0
