"""The Spark job over runs in an object store: names go out, verdict rows come back, as in ``checkers.spark.job``.

A task downloads one run at a time into a folder of its executor, judges it there by the same function, and stores the
verdict next to the run. Workers need no common folder; each needs its own credentials.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers import memory
from checkers.lake.object_store import ObjectStore, StoredObject
from checkers.lake.table import packed
from checkers.memory import MemoryBudget, budget_of
from checkers.spark.job import (
    RUNS_A_JOB,
    TASKS_A_CORE,
    VERDICT_ROWS,
    Prepare,
    cores_of,
    judged,
    verdict_row,
)
from checkers.spark.task_log import tell
from checkers.spark.tasks import Progress, Work, carry_out
from checkers.verdict import Verdict, write_verdict
from checkers.verdict_cache import digest_of_checks, judged_already, other_version
from stormproof.errors import HistoryError, SparkFailed, StormproofError
from stormproof.history import read_limits
from stormproof.run_folder import HISTORY, NIGHT_FILE, RUN_FILE, VERDICT_FILE, pictures

_TAKEN = pa.field("taken", pa.string())
_ROWS = pa.schema([*VERDICT_ROWS, _TAKEN])

RunObjects = Mapping[str, StoredObject]
"""The objects of one run, by their names in its folder."""


@dataclass(frozen=True)
class ObjectVerdict:
    """The verdict on one run of an object store.

    ``taken``: it was judged before, by the same checks over the same records. ``trouble`` is the reason why it could
    not be stored, ``damage`` the reason why the run could not be judged; None otherwise. ``row`` is its row of the
    lake.
    """

    run: str
    verdict: str
    sentence: str
    anomalies: Mapping[str, int]
    taken: bool
    trouble: str | None
    damage: str | None
    row: Mapping[str, Any]


def check_objects(
    spark: Any, store: ObjectStore, runs: Mapping[str, RunObjects], progress: Progress | None = None, *,
    prepare: Prepare | None = None, again: bool = False,
) -> list[ObjectVerdict]:  # fmt: skip
    """Check runs of an object store, and store each verdict next to its run; each result holds the run's row of the
    lake.

    ``runs`` are the files by run as ``ObjectStore.runs`` returns them. A run that was judged by the same checks over
    the same records is not judged again unless ``again`` is set. Returns one row per run, in the order given.

    Raises:
        SparkFailed: the job failed, or a run's verdict did not come back.
    """
    found: dict[str, ObjectVerdict] = {}
    names = list(runs)
    for start in range(0, len(names), RUNS_A_JOB):
        part = names[start : start + RUNS_A_JOB]
        tasks = max(1, min(len(part), cores_of(spark) * TASKS_A_CORE))
        by_size = sorted(part, key=lambda run: _size(runs[run]), reverse=True)
        dealt = [(run, runs[run]) for task in range(tasks) for run in by_size[task::tasks]]
        table = carry_out(spark, _judging(store, dealt, prepare, again), len(dealt), tasks, _ROWS,
                          None if progress is None else _shifted(progress, start, len(names)))  # fmt: skip
        for row in table.to_pylist():
            if row["run"] in found:
                raise SparkFailed(f"{store}/{row['run']}: its verdict came back twice")
            found[row["run"]] = ObjectVerdict(
                row["run"], row["verdict"], row["sentence"], json.loads(row["anomalies"]), row["taken"] is not None,
                row["trouble"], row["damage"], json.loads(row["lake"]),
            )  # fmt: skip
    missing = [run for run in names if run not in found]
    if missing:
        raise SparkFailed(f"{len(missing)} of {len(names)} verdicts did not come back, first {store}/{missing[0]}")
    return [found[run] for run in names]


def _shifted(progress: Progress, done: int, total: int) -> Progress:
    return lambda part, _: progress(done + part, total)


def _size(files: RunObjects) -> int:
    return files[HISTORY].size if HISTORY in files else 0


def _judging(store: ObjectStore, dealt: Sequence[tuple[str, RunObjects]], prepare: Prepare | None, again: bool) -> Work:
    """Return the work of a task that judges runs by number."""
    bound = os.environ.get(read_limits.VARIABLE)
    budget = budget_of(secrets.token_hex(8), os.environ.get(memory.VARIABLE))
    ours = digest_of_checks()

    def judge(positions: Iterable[int]) -> Iterator[pa.RecordBatch]:
        read_limits.set_max_history(bound)
        if digest_of_checks() != ours:
            raise other_version()
        if prepare is not None:
            prepare()
        for position in positions:
            run, files = dealt[position]
            yield check_object(store, run, files, noted=prepare is None, again=again, budget=budget)

    return judge


def check_object(store: ObjectStore, run: str, files: RunObjects, *, noted: bool = True, again: bool = False,
                 budget: MemoryBudget | None = None) -> pa.RecordBatch:  # fmt: skip
    """Check one run of an object store, store its verdict next to it, and return its row.

    ``noted``: the verdict records what it rests on, and a stored verdict with such a note is reused unless ``again`` is
    set. ``budget`` bounds the memory that judging takes.

    Raises:
        StormproofError: the service can't be reached, or refuses to be read.
    """
    with _scratch() as scratch:
        run_dir = scratch / run
        try:
            store.fetch(run, run_dir, files)
        except HistoryError as error:  # the run is too large: only its small files were fetched
            return _row(store, run, _damaged(run, str(error)), None, None, run_dir)
        except FileNotFoundError:
            return _row(store, run, _damaged(run, f"{store}/{run}: it was removed meanwhile"), None, None, run_dir)
        known = judged_already(run_dir) if noted and not again else None
        if known is not None:
            return _row(store, run, known, None, _written(files), run_dir)
        note, verdict = judged(run_dir, budget)
        verdict = _of_there(store, run_dir, verdict)
        before = set(pictures(run_dir))
        trouble = None
        try:
            write_verdict(run_dir, verdict, note if noted else None)
            _put(store, run_dir, before)
        except StormproofError as error:
            trouble = str(error)
        except OSError as error:
            trouble = f"{run_dir}: {error.strerror or error}"
        except Exception as error:
            # A page that cannot be drawn is a defect of this program: it must not cost the other runs their verdicts.
            trouble = f"{store}/{run}: a page of its verdict can't be made ({type(error).__name__}: {error})"
        tell(verdict, trouble)
        return _row(store, run, verdict, trouble, None, run_dir)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Provide a folder that is removed afterwards, and at the executor's end at the latest."""
    from pyspark import SparkFiles

    place = getattr(SparkFiles, "_root_directory", None)  # there is none outside of tasks
    with tempfile.TemporaryDirectory(prefix="stormproof-", dir=place) as folder:
        yield Path(folder)


def _of_there(store: ObjectStore, run_dir: Path, verdict: Verdict) -> Verdict:
    """Return the verdict with damaged files named by their address in the store: this machine's folder is temporary."""
    if verdict.damage is None:
        return verdict
    text = json.dumps(verdict.to_json(), default=str).replace(str(run_dir.parent), store.url)
    return Verdict.from_json(json.loads(text))


def _damaged(run: str, reason: str) -> Verdict:
    from checkers.run_check import unjudged

    return unjudged(run, reason, reason)


def _put(store: ObjectStore, run_dir: Path, before: set[str]) -> None:
    """Store the verdict's pages, then the verdict; remove pages of an earlier verdict."""
    pages = pictures(run_dir)
    store.put(run_dir.name, [(name, run_dir / name) for name in pages])
    store.put(run_dir.name, [(VERDICT_FILE, run_dir / VERDICT_FILE)])
    for name in before.difference(pages):
        store.remove(f"{run_dir.name}/{name}")


def _row(store: ObjectStore, run: str, verdict: Verdict, trouble: str | None, taken: int | None, run_dir: Path
         ) -> pa.RecordBatch:  # fmt: skip
    """Return a run's row; ``taken`` is when the verdict was written if it is a reused one."""
    row = verdict_row(run_dir, verdict, trouble)
    when = taken
    if when is None:
        when = _written({name: item for name in (VERDICT_FILE, NIGHT_FILE)
                         if (item := store.item(f"{run}/{name}")) is not None})  # fmt: skip
    told = json.loads(row["lake"]) | {"written": when}
    row |= {"run_dir": f"{store}/{run}", "lake": packed(told), _TAKEN.name: None if taken is None else "yes"}
    return pa.RecordBatch.from_pylist([row], schema=_ROWS)


def _written(files: RunObjects) -> int:
    return max((files[name].written for name in (VERDICT_FILE, NIGHT_FILE) if name in files), default=0)


def description(store: ObjectStore, run: str) -> Mapping[str, Any] | None:
    """Return a run's ``run.json`` as it is stored; None if it can't be read."""
    try:
        data = json.loads(store.read(f"{run}/{RUN_FILE}"))
    except (OSError, ValueError, RecursionError, StormproofError):
        return None
    return data if isinstance(data, Mapping) else None
