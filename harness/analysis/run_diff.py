"""``stormproof compare``: the differences between two runs, or two nights."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from harness.nightly.record import Night, find_night
from reports.compare_page import Section, Side, SideBySide, write_comparison
from reports.folder import read_folder
from reports.run_page import explain
from stormproof.contracts.check import VALID
from stormproof.errors import HistoryError, UsageError
from stormproof.history.read_limits import read_small_text
from stormproof.history.schema import TYPE_NAMES, decode_pair
from stormproof.history.seal import read_history
from stormproof.run_folder import LOG_EVENTS, REPORT, TWIN, VERDICT_FILE, read_run, read_verdict
from stormproof.store import Store
from stormproof.text import amount

_ROWS = ("process", "type", "f", "key", "value", "text", "node", "error")
"""The columns in which two operations must agree to count as the same. Their times may differ."""
_SECOND = 1_000_000_000
_MOMENT = re.compile(r"(\d+\.\d+) s")
_SAME_TEST = ("system", "workload", "nemesis", "nodes", "backend")
MOST_RUNS = 500
"""The most recent runs of a store that are searched for a valid run of the same test."""


@dataclass(frozen=True)
class RunDifference:
    """The differences between two runs. ``settings`` and ``verdicts`` map names to (first, second). ``history`` and
    ``roles`` show where the two first diverge: a line for each run, empty if they never do."""

    runs: tuple[str, str]
    settings: Mapping[str, tuple[Any, Any]]
    verdicts: Mapping[str, tuple[str, str]]
    sentences: tuple[str, str]
    history: tuple[str, str]
    roles: tuple[str, str]
    parted: float | None = None
    """The time of the first divergence, in seconds of the run."""
    folders: tuple[Path, Path] | None = None

    def write_page(self, path: Path, store: Path) -> Path:
        """Write the comparison as a page; raises HistoryError when it can't be written."""
        picture = self._picture(path)
        parts = [(what, first or "its end", second or "its end")
                 for what, (first, second) in (("operations", self.history), ("roles", self.roles)) if first or second]
        return write_comparison(path, store, self.runs, self.sentences, (
            Section("Settings", "setting", [(name, str(a), str(b)) for name, (a, b) in self.settings.items()]),
            Section("Verdicts", "check", [(name, a, b) for name, (a, b) in self.verdicts.items()]),
            Section("Where they part", "in", parts, "Nowhere."),
        ), picture)  # fmt: skip

    def _picture(self, path: Path) -> SideBySide | None:
        if self.folders is None:
            return None
        first, second = (_side(folder, path) for folder in self.folders)
        parted = [side.since_load(moment) for side, lines in ((first, 0), (second, 1))
                  for moment in _moments((self.history[lines], self.roles[lines]))]
        return SideBySide((first, second), min(parted, default=None))

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as data for programs."""
        return {name: getattr(self, name) for name in ("runs", "settings", "verdicts", "sentences", "history", "roles",
                                                       "parted")}  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Yield the comparison as text for people."""
        yield f"A  {self.runs[0]}: {self.sentences[0]}"
        yield f"B  {self.runs[1]}: {self.sentences[1]}"
        for what, found in (("setting", self.settings), ("verdict of", self.verdicts)):
            for name, (first, second) in found.items():
                yield f"{what} {name}: {first} | {second}"
        for what, (first, second) in (("history", self.history), ("roles", self.roles)):
            if first or second:
                yield f"{what} part at"
                yield f"  A  {first or 'its end'}"
                yield f"  B  {second or 'its end'}"
            else:
                yield f"{what}: no difference"


@dataclass(frozen=True)
class NightDifference:
    """The differences between two nights: the kinds of failure that only one has, each with its number of runs; and the
    combinations whose share of valid runs changed, with (valid, all) of both nights."""

    nights: tuple[str, str]
    gone: Mapping[str, tuple[str, int]]
    come: Mapping[str, tuple[str, int]]
    both: Mapping[str, tuple[str, int, int]]
    cells: Mapping[str, tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as data for programs."""
        return asdict(self)

    def write_page(self, path: Path, store: Path) -> Path:
        """Write the comparison as a page; raises HistoryError when it can't be written."""
        kinds = [(f"{words} ({code})", 0, runs) for code, (words, runs) in self.come.items()]
        kinds += [(f"{words} ({code})", runs, 0) for code, (words, runs) in self.gone.items()]
        kinds += [(f"{words} ({code})", first, second) for code, (words, first, second) in self.both.items()]
        pairs = [(first, second) for _, first, second in kinds]
        told = [f"{amount(sum(kind[side] > 0 for kind in pairs), 'kind')} of failure" for side in (0, 1)]
        return write_comparison(path, store, self.nights, (told[0], told[1]), (
            Section("Kinds of failure", "kind (runs that had it)",
                    [(words, str(first), str(second)) for words, first, second in kinds], "There were none."),
            Section("Combinations of which another share was valid", "combination (valid runs of all)",
                    [(name, "{} of {}".format(*one), "{} of {}".format(*other))
                     for name, (one, other) in self.cells.items()]),
        ))  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Yield the comparison as text for people."""
        yield f"A  night {self.nights[0]}"
        yield f"B  night {self.nights[1]}"
        for what, found in (("only in A", self.gone), ("only in B", self.come)):
            for code, (words, runs) in found.items():
                yield f"{what}: {code} ({runs}): {words}"
        for code, (words, first, second) in self.both.items():
            yield f"in both: {code} ({first} | {second}): {words}"
        for name, (one, other) in self.cells.items():
            yield f"valid: {one[0]} of {one[1]} | {other[0]} of {other[1]}: {name}"
        if not (self.gone or self.come or self.cells):
            yield "no difference"


def compare(store: Path, first: str, second: str | None = None) -> RunDifference | NightDifference:
    """Compare two nights if both names are names of nights, else two runs. A single run is compared with the last valid
    run of the same test.

    Raises:
        UsageError: there is no such run, or several. HistoryError: one can't be read.
    """
    if second is None:
        run_dir = Store(store).resolve(first)
        twin = last_valid_like(store, run_dir)
        if twin is None:
            raise UsageError(f"{run_dir.name}: the store {store} has no valid run of the same test; name another run")
        return compare_runs(run_dir, twin)
    try:
        return compare_nights(find_night(store, first), find_night(store, second))
    except UsageError:
        runs = Store(store)
        return compare_runs(runs.resolve(first), runs.resolve(second))


def compare_runs(first: Path, second: Path) -> RunDifference:
    """Compare two runs' settings, verdicts, operations and roles; raises HistoryError if one can't be read."""
    settings = _differences(*(_settings(run_dir) for run_dir in (first, second)))
    verdicts = [_verdict(run_dir) for run_dir in (first, second)]
    checks = _differences(*({check["check"]: check["verdict"] for check in each.get("checks", ())}
                            for each in verdicts))
    sentences = [str(each.get("sentence", "not checked")) for each in verdicts]
    history, roles = _first_operations(first, second), _first_roles(first, second)
    return RunDifference((first.name, second.name), settings, checks, (sentences[0], sentences[1]), history, roles,
                         min(_moments((*history, *roles)), default=None), (first, second))


def _moments(lines: Iterable[str]) -> list[float]:
    """Return the times at the start of lines about two runs, in seconds of their run."""
    return [float(found[1]) for line in lines if (found := _MOMENT.match(line))]


def last_valid_like(store: Path, run_dir: Path) -> Path | None:
    """Return the last valid run of the same test: the same system, workload and faults, on as many nodes of the same
    backend. Among several, prefer the run with the fewest different settings, and then the newest.

    Raises:
        StormproofError: the store, or the run, can't be read.
    """
    test = _settings(run_dir)
    found: list[tuple[int, str, Path]] = []
    for other in Store(store).runs()[-MOST_RUNS:]:
        try:
            like = _settings(other)
            if other.name != run_dir.name and all(like.get(name) == test.get(name) for name in _SAME_TEST) and (
                    _verdict(other).get("verdict") == VALID):
                found.append((-len(_differences(test, like)), other.name, other))
        except HistoryError:
            continue
    return max(found)[2] if found else None


def write_twin(store: Path, run_dir: Path, twin: Path | None = None) -> Path | None:
    """Write RUN/twin.html: a run next to ``twin``, or next to the last valid run of the same test; None if there is
    none.

    Raises:
        StormproofError: the page can't be written, or one of the runs can't be read.
    """
    twin = twin or last_valid_like(store, run_dir)
    return None if twin is None else compare_runs(run_dir, twin).write_page(run_dir / TWIN, store)


def _side(run_dir: Path, page: Path) -> Side:
    told = explain(read_folder(run_dir))
    reasons = []
    for check in told.checks:
        causes = [cause for group in check.groups for _, cause in group.causes]
        if check.decides and check.verdict != VALID and causes:
            reasons.append((check.name, causes[0].text))
    link = f"../{run_dir.name}/{REPORT}" if page.resolve().parent.parent == run_dir.resolve().parent else ""
    verdict = str(_verdict(run_dir).get("verdict", "none"))
    return Side(run_dir.name, verdict, told.facts.roles, told.facts.faults, told.duration, reasons, link,
                told.start)


def _settings(run_dir: Path) -> dict[str, Any]:
    test = read_run(run_dir).get("test")
    if not isinstance(test, dict):
        raise HistoryError(f"{run_dir}: its description holds no test")
    options = test.get("options")
    return {**{name: value for name, value in test.items() if name != "options"},
            **(options if isinstance(options, dict) else {})}  # fmt: skip


def _verdict(run_dir: Path) -> Mapping[str, Any]:
    return read_verdict(run_dir) if (run_dir / VERDICT_FILE).exists() else {}


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = dict.fromkeys((*first, *second))
    return {name: (first.get(name, "-"), second.get(name, "-")) for name in names
            if first.get(name, "-") != second.get(name, "-")}


def _first_operations(first: Path, second: Path) -> tuple[str, str]:
    tables = [read_history(run_dir) for run_dir in (first, second)]
    length = min(table.num_rows for table in tables)
    place = length
    for name in _ROWS:
        one, other = (_plain(table.column(name).slice(0, length)) for table in tables)
        same = pc.or_kleene(pc.fill_null(pc.equal(one, other), False),
                            pc.and_(pc.is_null(one), pc.is_null(other)))
        at = pc.index(same, False).as_py()
        if at >= 0:
            place = min(place, at)
    told = [_operation(table, place) for table in tables]
    return told[0], told[1]


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _operation(table: pa.Table, row: int) -> str:
    if row >= table.num_rows:
        return ""
    given = {name: table.column(name)[row].as_py() for name in ("time", *_ROWS)}
    return (f"{given['time'] / _SECOND:.3f} s, operation {row}: process {given['process']} "
            f"{TYPE_NAMES[given['type']]} {given['f']} {_value(given['value'], given['text'])}".rstrip()
            + (f" at {given['node']}" if given["node"] else "") + (f" ({given['error']})" if given["error"] else ""))


def _value(value: int, text: str | None) -> str:
    if value < 0:
        return text or ""
    return "{}/{}".format(*decode_pair(value)) if value >> 32 else str(value)


def _first_roles(first: Path, second: Path) -> tuple[str, str]:
    for one, other in zip_longest(*(_roles(run_dir) for run_dir in (first, second)), fillvalue=("", "")):
        if one[0] != other[0]:
            return one[1], other[1]
    return "", ""


def _roles(run_dir: Path) -> list[tuple[str, str]]:
    """Return each role change in order of time: the change, and its text for people."""
    found = []
    try:
        lines = read_small_text(run_dir / LOG_EVENTS).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HistoryError(f"{run_dir / LOG_EVENTS} can't be read: {error.strerror}") from error
    for line in lines:
        try:
            event = json.loads(line)
            if event["event"] == "role":
                what = f"{event['node']} {event['role']} {event['group']}".rstrip()
                found.append((float(event["time"]), what))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return [(what, f"{at:.3f} s: {what}") for at, what in sorted(found)]


def compare_nights(first: Night, second: Night) -> NightDifference:
    """Compare two nights' kinds of failure, and each combination's share of valid runs."""
    kinds = [Counter(result.fingerprint for result in night.results if result.fingerprint) for night in (first, second)]
    words = {result.fingerprint: result.words for night in (first, second) for result in night.results}
    one, other = kinds
    shares = [_shares(night) for night in (first, second)]
    cells = {name: (shares[0].get(name, (0, 0)), shares[1].get(name, (0, 0))) for name in dict.fromkeys(
        (*shares[0], *shares[1]))}  # fmt: skip
    return NightDifference(
        (first.name, second.name),
        {code: (words[code], one[code]) for code in one if code not in other},
        {code: (words[code], other[code]) for code in other if code not in one},
        {code: (words[code], one[code], other[code]) for code in one if code in other},
        {name: pair for name, pair in cells.items() if pair[0][0] * pair[1][1] != pair[1][0] * pair[0][1]},
    )


def _shares(night: Night) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for result in night.results:
        valid, runs = found.get(result.cell, (0, 0))
        found[result.cell] = valid + (result.verdict == "valid"), runs + 1
    return found
