"""Stores and runs as pandas DataFrames, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from checkers.lake.object_store import ObjectStore, is_address, object_store
from stormproof.errors import HistoryError, UsageError
from stormproof.history.ledger import FaultWindow, read_ledger
from stormproof.history.seal import history_frame
from stormproof.run_folder import VERDICT_FILE, read_run, read_verdict
from stormproof.store import Store


@dataclass(frozen=True)
class RunFrames:
    """One run. ``info`` is its run.json."""

    path: Path
    info: Mapping[str, Any]

    def history(self) -> pd.DataFrame:
        """Return a row per invocation and completion: the columns of the history schema, with the names of ``type``.

        Raises:
            HistoryError: the run has no readable history.
        """
        return history_frame(self.path)

    def ledger(self) -> pd.DataFrame:
        """Return a row per fault: family, kind, targets, start and end (nanoseconds of the run), proven, evidence."""
        windows = read_ledger(self.path / "ledger.jsonl")
        columns = pd.Index([field.name for field in fields(FaultWindow)])
        return pd.DataFrame([asdict(window) for window in windows], columns=columns)

    def verdict(self) -> Mapping[str, Any]:
        """Return the verdict, as stored in verdict.json.

        Raises:
            HistoryError: the run has not been checked.
        """
        return read_verdict(self.path)


@dataclass(frozen=True)
class StoreFrames:
    """A store of runs."""

    store: Store

    def run(self, name: str) -> RunFrames:
        """Return the run with this id, unique prefix of an id, or path, or the newest run for ``latest``.

        Raises:
            UsageError: no run matches, or several do.
        """
        path = self.store.resolve(name)
        return RunFrames(path, read_run(path))

    def query(self, sql: str) -> pd.DataFrame:
        """Return the result of a DuckDB query over the store's views (docs/spark.md).

        Raises:
            UsageError: the query is refused; the message says why.
        """
        from harness.store.query import query

        frame: pd.DataFrame = query(self.store.path, sql).to_pandas()
        return frame

    def runs(self) -> pd.DataFrame:
        """Return a row per run: id, start, status, every field of its test, verdict (None when not checked).

        A run whose description is damaged has the status ``damaged`` and no other fields.
        """
        rows = [_row_of(path) for path in self.store.runs()]
        return pd.DataFrame(rows)

    def verdicts(self) -> pd.DataFrame:
        """Return a row per run and check: verdict, whether it decides, count of anomalies, summary."""
        rows = []
        for path in self.store.runs():
            try:
                checks = read_verdict(path)["checks"] if (path / VERDICT_FILE).exists() else []
            except HistoryError:
                continue
            for check in checks:
                named = ("check", "verdict", "decides", "count", "summary")
                rows.append({"run": path.name, **{name: check[name] for name in named}})
        return pd.DataFrame(rows, columns=pd.Index(["run", "check", "verdict", "decides", "count", "summary"]))


@dataclass(frozen=True)
class ObjectFrames:
    """A store in an object store: tables over all judged runs. A single run can only be read from a folder."""

    store: ObjectStore

    def run(self, name: str) -> RunFrames:
        """Raise UsageError: a run can only be read from a folder."""
        raise UsageError(f"a run is read from a folder: stormproof pull --from {self.store} {name}")

    def query(self, sql: str) -> pd.DataFrame:
        """Return the result of a DuckDB query over the store's views; raises UsageError where it is refused."""
        from harness.store.query import query

        frame: pd.DataFrame = query(self.store, sql).to_pandas()
        return frame

    def runs(self) -> pd.DataFrame:
        """Return the view ``runs`` (docs/spark.md)."""
        return self.query("SELECT * FROM runs ORDER BY run")

    def verdicts(self) -> pd.DataFrame:
        """Return the view ``verdicts`` (docs/spark.md)."""
        return self.query("SELECT * FROM verdicts ORDER BY run, check_name")


def _row_of(path: Path) -> dict[str, Any]:
    try:
        info = read_run(path)
        row = {"run": info["run"], "started": pd.Timestamp(info["started"]), "status": info["status"]}
        row |= {key: value for key, value in info["test"].items() if key != "options"}
        row |= {f"option.{name}": value for name, value in info["test"]["options"].items()}
    except (HistoryError, KeyError, TypeError, ValueError, AttributeError):
        return {"run": path.name, "status": "damaged", "verdict": None}
    try:
        row["verdict"] = read_verdict(path)["verdict"] if (path / VERDICT_FILE).exists() else None
    except HistoryError:
        row["verdict"] = None
    return row


def load(store: str | Path) -> StoreFrames | ObjectFrames:
    """Open a store: ``load("runs").runs()``, ``load("runs").run("latest").history()``; or ``load("s3://bucket/runs")``.

    Raises:
        UsageError: the text is not a valid address of an object store.
    """
    if is_address(store):
        return ObjectFrames(object_store(str(store)))
    return StoreFrames(Store(Path(store)))
