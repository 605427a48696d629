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
from harness.registry import DESIGNS, WORKLOADS
from harness.settings import declared_options, make_test
from harness.sim.campaign import Plan, SeedResult, campaign
from harness.spec import Test
from harness.store import Store, read_run
from nodes.reference.promises import GAP, KEPT, KIND, OPEN, Promise, Trial, standing_of

PLAN = Plan("", "", "", 3, 20.0, 40.0,
            {"fault_duration": "1.5", "fault_gap": "0.3", "detection_timeout": "0.5", "idle_timeout": "2",
             "min_ok": "20", "settle_timeout": "20", "drain_limit": "30"})  # fmt: skip
"""The campaign that each mode meets, but for what its design says (``Trial``) and its own settings."""


@dataclass
class Seen:
    """What runs of one mode have shown of one guarantee: runs, runs in which it was broken, how often in all; and how
    often what it is about went wrong where the guarantee does not reach."""

    runs: int = 0
    broken: int = 0
    count: int = 0
    beyond: int = 0

    def add(self, anomalies: int, beyond: int = 0) -> None:
        """One more run."""
        self.runs += 1
        self.broken += anomalies > 0
        self.count += anomalies
        self.beyond += beyond


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
        beyond = f" (beyond it: {seen.beyond:,})" if seen.beyond else ""
        if not seen.broken:
            return f"never broken in {seen.runs} runs{beyond}"
        times = f"broken in {seen.broken} of {seen.runs} runs, {seen.count} times"
        return (f"**{times}: a defect**" if self.standing == KEPT else times) + beyond


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


def excused_of(test: Test, guarantees: Sequence[str]) -> dict[str, list[str]]:
    """Of each guarantee, the kinds of anomalies that the design does not promise a run to be without."""
    declared = DESIGNS.load(test.design).promises
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(promise.guarantee for promise in declared):
        guarantee, _, kind = name.partition(KIND)
        promise = standing_of(declared, name, test.options, test.nemesis)
        if kind and guarantee in guarantees and promise is not None and promise.standing == OPEN:
            found.setdefault(guarantee, []).append(kind)
    return found


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
        others = [key for key in told if key in options and key not in settings]
        if all(options.get(key) == value for key, value in settings.items()) and all(
            options[key] == defaults.get(key) for key in others
        ):
            return name
    return ""


def plans_of(design: str, settings: Mapping[str, Any]) -> list[Plan]:
    """The campaigns of one of the design's modes: of each workload that has these settings."""
    trial: Trial = DESIGNS.load(design).trial
    strings = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}
    plans = []
    for workload in trial.workloads:
        declared = {option.name for option in declared_options(design, workload, trial.nemesis.split(","))}
        if declared.issuperset(settings):
            common = {name: value for name, value in {**PLAN.settings, **trial.settings}.items() if name in declared}
            plans.append(replace(PLAN, design=design, workload=workload, nemesis=trial.nemesis,
                                 settings={**common, **strings}))
    return plans


def simulate_modes(design: str, seeds: Sequence[int], jobs: int, report: Callable[[str], None]) -> Counted:
    """Simulate every mode of a design with the seeds; what was seen, by (mode, guarantee)."""
    counted: Counted = defaultdict(Seen)
    for mode, settings in modes_of(design).items():
        plans = plans_of(design, settings)

        def note(result: SeedResult, mode: str = mode) -> None:
            if result.verdict == "broken":
                report(f"{mode}: seed {result.seed}: {result.sentence}")
                return
            _count(counted, mode, design, result.plan.workload, result.anomalies, result.figures)

        with tempfile.TemporaryDirectory(prefix="stormproof-promises-") as store:
            campaign(plans, seeds, Path(store), jobs=jobs, collect=True, report=note)
        report(f"{design}, {mode}: {len(seeds)} seeds of {', '.join(plan.workload for plan in plans)}")
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
            _count(counted, mode, design, test.workload, verdict["anomalies"], verdict.get("figures", {}))
    return counted


def compare(design: str, counted: Counted) -> Iterator[Comparison]:
    """Every guarantee in every mode, under the faults of the campaign."""
    system, defaults = DESIGNS.load(design), _defaults(design)
    for mode, settings in modes_of(design).items():
        found = (name for plan in plans_of(design, settings) for name in _guarantees(design, plan.workload))
        for guarantee in dict.fromkeys(found):
            options = {**defaults, **settings}
            promise = standing_of(system.promises, guarantee, options, system.trial.nemesis.split(","))
            if promise is not None:
                yield Comparison(mode, guarantee, promise, counted.get((mode, guarantee), Seen()))


def page(sections: Mapping[str, tuple[Counted, str]]) -> str:
    """The comparison as a page: by design what was counted, and where the runs come from."""
    lines = [
        "# What the designs promise, and what runs have shown",
        "",
        "Made by `stormproof promises` from the promises as data (`promises.py` beside each design's code). A guarantee"
        " is named by the check that would find it broken.",
        "A *gap* is what the document demands and a mode can't keep: runs are judged by it, and are to show it. What"
        " is *not promised* is reported and does not decide. What a promise leaves open may go wrong all the same:"
        " where a check counts that, the number stands in brackets.",
    ]
    for design, (counted, source) in sections.items():
        lines += ["", *_section(design, counted, source)]
    return "\n".join(lines) + "\n"


def _section(design: str, counted: Counted, source: str) -> Iterator[str]:
    trial: Trial = DESIGNS.load(design).trial
    yield f"## {design}"
    yield ""
    yield (f"Shown by: {source}; workloads {' and '.join(trial.workloads)}, faults"
           f" {trial.nemesis.replace(',', ', ')}.")  # fmt: skip
    yield from ("", "| mode | guarantee | standing | shown | section | why |", "| --- | --- | --- | --- | --- | --- |")
    for line in compare(design, counted):
        where, why = (line.promise.where, line.promise.why) if line.promise else ("", "")
        yield f"| {line.mode} | `{line.guarantee}` | {line.standing} | {line.shown()} | {where} | {why} |"
    yield from ("", "| mode | settings |", "| --- | --- |")
    for mode, settings in modes_of(design).items():
        yield f"| {mode} | {_told(settings) or 'the defaults'} |"
    yield from ("", f"### All promises of {design}", "", "The first line that fits a run's settings and faults holds.",
                "", "| guarantee | standing | settings | faults | section | why |",
                "| --- | --- | --- | --- | --- | --- |")  # fmt: skip
    for promise in DESIGNS.load(design).promises:
        faults = "any fault" if promise.faults == ("*",) else ", ".join(promise.faults) or "with or without"
        yield (f"| `{promise.guarantee}` | {promise.standing} | {_told(promise.mode) or 'all'} | {faults} "
               f"| {promise.where} | {promise.why} |")  # fmt: skip


def _told(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}={str(value).lower()}`" for name, value in settings.items())


def designs_compared() -> list[str]:
    """The designs that have modes to compare."""
    return [design for design in DESIGNS.names() if DESIGNS.load(design).modes]


def _count(counted: Counted, mode: str, design: str, workload: str, anomalies: Mapping[str, int],
           figures: Mapping[str, Any]) -> None:
    for guarantee in _guarantees(design, workload):
        beyond = figures.get("not_promised", {}).get(guarantee, 0)
        counted[mode, guarantee].add(anomalies.get(_anomaly(guarantee), 0), beyond)


def _guarantees(design: str, workload: str) -> list[str]:
    """What the design says something about and runs of the workload show."""
    shown = {*WORKLOADS.load(workload).promises, "recovery"}
    return [name for name in dict.fromkeys(p.guarantee for p in DESIGNS.load(design).promises) if name in shown]


def _anomaly(guarantee: str) -> str:
    """The name under which a run counts what the guarantee's check found."""
    from checkers.catalog import CHECKS

    return next((check.anomaly or check.name for check in CHECKS if check.name == guarantee), guarantee)


def _defaults(design: str) -> dict[str, Any]:
    """The defaults of all settings that tests of the design's workloads have."""
    found: dict[str, Any] = {}
    for workload in DESIGNS.load(design).trial.workloads:
        test = make_test(design=design, workload=workload, nemesis="", backend="sim", nodes=None, time_limit=10.0,
                         rate=10.0, seed=1, settings={})  # fmt: skip
        found |= test.options
    return found
