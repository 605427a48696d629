"""The assertions of Antithesis's SDK over all runs of a store: which were broken, and which no run has reached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from checkers.checks.assertions import is_assertion, is_broken, is_missed
from stormproof.errors import HistoryError
from stormproof.run_folder import read_run
from stormproof.store import Store
from stormproof.text import amount, escaped


@dataclass
class AssertionRecord:
    """An assertion in all runs of one Compose project: the runs that had it, and those that reached or broke it.

    ``example`` is the last run that broke it.
    """

    project: str
    message: str
    kind: str
    location: str
    runs: int = 0
    reached: int = 0
    broken: int = 0
    example: str = ""

    @property
    def line(self) -> str:
        """The record in one line."""
        if self.broken:
            told = f"broken in {amount(self.broken, 'run')} of {self.runs}, the last is {self.example}"
        elif not self.reached:
            told = f"not reached in {amount(self.runs, 'run')}"
        else:
            told = f"reached in {self.reached} of {amount(self.runs, 'run')}"
        where = f" ({self.location})" if self.location else ""
        return escaped(f"{self.kind}: {self.message}{where}: {told}")


def assertions_over(store: Store) -> list[AssertionRecord]:
    """Return all assertions of a store, by project: broken ones first, then those that no run has reached."""
    found: dict[tuple[str, str], AssertionRecord] = {}
    for run_dir in store.runs():
        try:
            info = read_run(run_dir)
        except HistoryError:
            continue
        for project, each in _assertions(info):
            record = found.setdefault((project, str(each.get("id"))), AssertionRecord(
                project, str(each["message"]), str(each.get("kind") or each["type"]), str(each.get("location") or "")))
            record.runs += 1
            record.reached += not is_missed(each)
            if is_broken(each):
                record.broken += 1
                record.example = run_dir.name
    return sorted(found.values(), key=lambda each: (each.project, not each.broken, each.reached > 0, each.message))


def _assertions(info: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    told, test = info.get("assertions"), info.get("test")
    options = test.get("options") if isinstance(test, Mapping) else None
    project = str(options.get("compose") or "") if isinstance(options, Mapping) else ""
    return [(project, each) for each in told if is_assertion(each)] if isinstance(told, list) else []


def answer(store: Store) -> tuple[dict[str, Any], list[str]]:
    """Return the records as plain data and as lines for people."""
    found = assertions_over(store)
    lines, last = [], ""
    for each in found:
        if each.project != last:
            lines.append(escaped(each.project))
            last = each.project
        lines.append(f"  {each.line}")
    return {"assertions": [asdict(each) for each in found]}, lines or ["no run of this store has assertions"]
