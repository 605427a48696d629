"""``stormproof promises``: what a design promises in each mode, beside what runs have shown."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from checkers.verdict import read_verdict
from harness.errors import HistoryError, UsageError
from harness.registry import DESIGNS
from harness.settings import make_test
from harness.sim.campaign import Plan, SeedResult, campaign
from harness.spec import Test
from harness.store import Store, read_run
from nodes.reference.promises import GAP, KEPT, Promise, standing_of

PLAN = Plan("joram", "queue", "partition,pause,kill", 3, 20.0, 40.0,
            {"fault_duration": "1.5", "fault_gap": "0.3", "detection_timeout": "0.5", "idle_timeout": "2",
             "min_ok": "20", "settle_timeout": "20", "drain_limit": "30"})  # fmt: skip
"""The campaign that each mode meets, but for its design and settings."""


@dataclass
class Seen:
    """What runs of one mode have shown of one guarantee: runs, runs in which it was broken, how often in all."""

    runs: int = 0
    broken: int = 0
    count: int = 0

    def add(self, anomalies: int) -> None:
        """One more run."""
        self.runs += 1
        self.broken += anomalies > 0
        self.count += anomalies


@dataclass(frozen=True)
class Comparison:
    """One line: a promise (None: the design says nothing) in a mode, and what was seen."""

    mode: str
    guarantee: str
    promise: Promise | None
    seen: Seen = field(default_factory=Seen)

    @property
    def standing(self) -> str:
        """``promised``, ``gap`` or ``not promised``."""
        return self.promise.standing if self.promise else KEPT

    def shown(self) -> str:
        """In words: what runs have shown."""
        seen = self.seen
        if not seen.runs:
            return "no runs"
        if not seen.broken:
            return f"never broken in {seen.runs} runs"
        times = f"broken in {seen.broken} of {seen.runs} runs, {seen.count} times"
        return f"**{times}: a defect**" if self.standing == KEPT else times


Counted = dict[tuple[str, str], Seen]


def promises_of(test: Test, guarantees: Sequence[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Which of the guarantees a run is judged by, and what the design says of each.

    A gap counts: the document demands the guarantee, so the run is to show that it is broken.
    """
    declared = DESIGNS.load(test.design).promises
    judged, standings = [], {}
    for guarantee in guarantees:
        promise = standing_of(declared, guarantee, test.options, test.nemesis)
        if promise is None or promise.standing in (KEPT, GAP):
            judged.append(guarantee)
        if promise is not None:
            standings[guarantee] = {"standing": promise.standing, "where": promise.where, "why": promise.why}
    return judged, standings


def modes_of(design: str) -> Mapping[str, Mapping[str, Any]]:
    """A design's modes by name, each as the settings that make it.

    Raises:
        UsageError: the design has none written down.
    """
    modes: Mapping[str, Mapping[str, Any]] = DESIGNS.load(design).modes
    if not modes:
        raise UsageError(f"design {design} has no promises written down")
    return modes


def mode_of(modes: Mapping[str, Mapping[str, Any]], options: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """The mode that a run's settings make; empty when none fits exactly."""
    told = {name for settings in modes.values() for name in settings}
    for name, settings in modes.items():
        if all(options.get(key) == settings.get(key, defaults.get(key)) for key in told):
            return name
    return ""


def simulate_modes(design: str, seeds: Sequence[int], jobs: int, report: Callable[[str], None]) -> Counted:
    """Simulate every mode of a design with the seeds; what was seen, by (mode, guarantee)."""
    counted: Counted = defaultdict(Seen)
    for mode, settings in modes_of(design).items():
        strings = {name: str(value).lower() if isinstance(value, bool) else str(value)
                   for name, value in settings.items()}
        plan = replace(PLAN, design=design, settings={**PLAN.settings, **strings})

        def note(result: SeedResult, mode: str = mode) -> None:
            if result.verdict == "broken":
                report(f"{mode}: seed {result.seed}: {result.sentence}")
                return
            for guarantee in _guarantees(design):
                counted[mode, guarantee].add(result.anomalies.get(_anomaly(guarantee), 0))

        with tempfile.TemporaryDirectory(prefix="stormproof-promises-") as store:
            campaign([plan], seeds, Path(store), jobs=jobs, collect=True, report=note)
        report(f"{mode}: {len(seeds)} seeds")
    return counted


def read_store(design: str, store: Path) -> Counted:
    """What the checked runs of a store have shown, by (mode, guarantee); runs of no mode are left out."""
    counted: Counted = defaultdict(Seen)
    modes, defaults = modes_of(design), _defaults(design)
    for run in Store(store).runs():
        try:
            test = Test.from_json(read_run(run)["test"])
            verdict = read_verdict(run)
        except HistoryError:
            continue
        mode = mode_of(modes, test.options, defaults) if test.design == design and test.nemesis else ""
        if mode:
            for guarantee in _guarantees(design):
                counted[mode, guarantee].add(verdict["anomalies"].get(_anomaly(guarantee), 0))
    return counted


def compare(design: str, counted: Counted) -> Iterator[Comparison]:
    """Every guarantee in every mode, under the faults of the campaign."""
    declared, defaults = DESIGNS.load(design).promises, _defaults(design)
    faults = PLAN.nemesis.split(",")
    for mode, settings in modes_of(design).items():
        for guarantee in _guarantees(design):
            promise = standing_of(declared, guarantee, {**defaults, **settings}, faults)
            if promise is None:
                continue  # it is about other workloads
            yield Comparison(mode, guarantee, promise, counted.get((mode, guarantee), Seen()))


def page(design: str, counted: Counted, source: str) -> str:
    """The comparison as a page; ``source`` says where the runs come from."""
    lines = [
        f"# What {design} promises, and what runs have shown",
        "",
        f"Made by `stormproof promises --design {design}` from the promises as data"
        f" (`nodes/reference/{design}/promises.py`). A guarantee is named by the check that would find it broken.",
        "A *gap* is what the document demands and a mode can't keep: runs are judged by it, and are to show it. What"
        " is *not promised* is reported and does not decide.",
        "",
        f"Shown by: {source}.",
        "",
        "| mode | guarantee | standing | shown | section | why |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for line in compare(design, counted):
        where, why = (line.promise.where, line.promise.why) if line.promise else ("", "")
        lines.append(f"| {line.mode} | `{line.guarantee}` | {line.standing} | {line.shown()} | {where} | {why} |")
    lines += ["", "## All promises", "", "The first line that fits a run's settings and faults holds.", "",
              "| guarantee | standing | settings | faults | section | why |", "| --- | --- | --- | --- | --- | --- |"]
    for promise in DESIGNS.load(design).promises:
        mode = ", ".join(f"`{name}={str(value).lower()}`" for name, value in promise.mode.items()) or "all"
        faults = "any fault" if promise.faults == ("*",) else ", ".join(promise.faults) or "with or without"
        lines.append(f"| `{promise.guarantee}` | {promise.standing} | {mode} | {faults} | {promise.where} "
                     f"| {promise.why} |")
    return "\n".join(lines) + "\n"


def _guarantees(design: str) -> list[str]:
    return list(dict.fromkeys(promise.guarantee for promise in DESIGNS.load(design).promises))


def _anomaly(guarantee: str) -> str:
    """The name under which a run counts what the guarantee's check found."""
    from checkers.catalog import CHECKS

    return next((check.anomaly or check.name for check in CHECKS if check.name == guarantee), guarantee)


def _defaults(design: str) -> dict[str, Any]:
    test = make_test(design=design, workload=PLAN.workload, nemesis="", backend="sim", nodes=None, time_limit=10.0,
                     rate=10.0, seed=1, settings={})  # fmt: skip
    return dict(test.options)
