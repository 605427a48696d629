"""``stormproof check --store s3://...``: check the runs of an object store, and store the verdicts next to them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from checkers.lake.object_store import ObjectStore, StoredObject
from checkers.lake.table import append, refresh
from checkers.spark.job import summarize
from checkers.spark.masters import LOCAL_MASTER
from checkers.spark.object_job import ObjectVerdict, check_objects, description
from checkers.spark.session import SparkWarmup
from harness.cli.outcomes import Outcome, Outcomes, outcome_of_run
from harness.run import plugins
from harness.run.progress import console
from harness.store.recheck import outcome_word, report_verdicts
from stormproof.errors import HistoryError, StormproofError, UsageError
from stormproof.run_folder import HISTORY, RUN_FILE, upgraded, write_json
from stormproof.text import escaped

_READERS = 16
"""Descriptions that are read at a time."""


def check_in_objects(store: ObjectStore, names: Sequence[str], *, master: str | None, as_json: bool,
                     outcomes: Outcomes | None = None, again: bool = False) -> int:
    """Check the named runs of an object store, or all. Return the exit status of ``recheck.check_stored``.

    Verdicts, their pages and the lake are stored there. Reports and the index are written only for runs in a folder.

    Raises:
        UsageError: a run does not exist, or the store holds none. StormproofError: the service, or Spark, fails.
    """
    to = console(as_json)
    refused: list[str] = []
    with to.status(f"looking at {store}") as status:
        runs, lost = chosen(store, names)
        infos = _descriptions(store, list(runs))
        others = _of_other_plugins(infos)
        for run in others:
            del runs[run]
        for line in [*lost, *others.values()]:
            print(f"not checked: {escaped(line)}", file=sys.stderr)
        warm = SparkWarmup(master or LOCAL_MASTER)
        try:
            status.update(f"checking {len(runs)} runs")
            rows = check_objects(warm.context(), store, runs,
                                 lambda done, total: status.update(f"checked {done} of {total} runs"),
                                 prepare=plugins.preparation(), again=again)  # fmt: skip
            refused += [row.trouble for row in rows if row.trouble is not None]
            try:
                append(store, [row.row for row in rows if not row.taken and row.trouble is None])
                refresh(store)
                summary = [] if names else summarize(None, store)
            except StormproofError as error:
                refused.append(str(error))
                summary = []
        finally:
            warm.abandon()
    return report_verdicts(
        rows, summary, to, single=len(names) == 1, as_json=as_json, taken=sum(row.taken for row in rows),
        refused=refused, troubled=bool(lost or others), outcomes=outcomes,
        outcome=lambda row: _outcome(store, row, infos[row.run]),
    )  # fmt: skip


def chosen(store: ObjectStore, names: Sequence[str]) -> tuple[dict[str, dict[str, StoredObject]], list[str]]:
    """Return the runs that have a history, the named ones or all, with their files; and messages about the others.

    Raises:
        UsageError: the run does not exist, or the store holds none. StormproofError: the service refuses.
    """
    found = store.runs()
    if not found:
        store.demand_bucket()
    if names:
        wanted = {run: found[run] for run in (_resolved(store, list(found), name) for name in names)}
        for run, files in wanted.items():
            if HISTORY not in files:
                raise UsageError(f"run {run} has no sealed history in {store}")
        return wanted, []
    lost = [f"{store}/{run}: there is no {HISTORY}" for run, files in found.items() if HISTORY not in files]
    runs = {run: files for run, files in found.items() if HISTORY in files}
    if not runs:
        raise UsageError(f"{store} holds no recorded runs; `stormproof push --to {store}` copies some there")
    return runs, lost


def _resolved(store: ObjectStore, runs: Sequence[str], name: str) -> str:
    found = runs[-1:] if name == "latest" else [run for run in runs if name and run.startswith(name)]
    if len(found) != 1:
        told = f"the beginning of {len(found)} runs; give more of the id" if found else "no run"
        raise UsageError(f"{name!r} is {told} in {store}")
    return found[0]


def _descriptions(store: ObjectStore, runs: Sequence[str]) -> dict[str, Mapping[str, Any] | None]:
    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(runs, pool.map(lambda run: description(store, run), runs), strict=True))


def _of_other_plugins(infos: Mapping[str, Mapping[str, Any] | None]) -> dict[str, str]:
    """Return a message for each run that was made with plug-ins that are not in use here."""
    found = {}
    for run, info in infos.items():
        try:
            plugins.demand_same(upgraded(info or {}), run)
        except HistoryError as error:
            found[run] = str(error)
        except (TypeError, AttributeError):
            continue  # its description is damaged: the check reports it
    return found


def _outcome(store: ObjectStore, row: ObjectVerdict, info: Mapping[str, Any] | None) -> Outcome:
    """Return the outcome of a run from its description, which is read like that of a run in a folder."""
    with tempfile.TemporaryDirectory(prefix="stormproof-") as scratch:
        run_dir = Path(scratch) / row.run
        run_dir.mkdir()
        write_json(run_dir / RUN_FILE, info or {})
        found = outcome_of_run(run_dir, outcome_word(row), row.sentence)
    return replace(found, told={"run": f"{store}/{row.run}"})
