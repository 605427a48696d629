"""``stormproof promises``: what a design promises in each mode, beside what runs have shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from checkers.verdict import UNKNOWN, read_verdict
from harness.errors import HistoryError, UsageError
from harness.registry import DESIGNS, WORKLOADS
from harness.settings import declared_options, make_test
from harness.sim.campaign import NONE, Plan, SeedResult, run_and_judge
from harness.sim.pool import workshop
from harness.spec import Test
from harness.store import Store, read_run
from nodes.reference.bugs import NONE as NO_BUG
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
    """One line: a promise in a mode, and what was seen."""

    mode: str
    guarantee: str
    promise: Promise
    seen: Seen

    @property
    def standing(self) -> str:
        """``promised``, ``gap`` or ``not promised``."""
        return self.promise.standing

    def shown(self) -> str:
        """In words: what runs have shown."""
        seen = self.seen
        if not seen.runs:
            return "no runs"
        beyond = f" (beyond it: {seen.beyond:,})" if seen.beyond else ""
        if not seen.broken:
            return ("**not shown**" if self.standing == GAP else "never broken") + f" in {seen.runs} runs{beyond}"
        times = f"broken in {seen.broken} of {seen.runs} runs, {seen.count} times"
        return (f"**{times}: a defect**" if self.standing == KEPT else times) + beyond


class Evidence:
    """What runs have shown of a design's promises, by (mode, guarantee); and which workloads and faults they had."""

    def __init__(self, design: str, source: str) -> None:
        self.source = source
        self.counted: defaultdict[tuple[str, str], Seen] = defaultdict(Seen)
        self.workloads: set[str] = set()
        self.faults: set[str] = set()
        self._design = design
        self._promised = promised_in(design)

    def add(self, mode: str, test: Test, verdict: Mapping[str, Any]) -> None:
        """One more run of a mode, with its verdict as it is stored.

        It says nothing about a guarantee that its check could not judge, or that its settings and faults give another
        standing than the one that is shown.
        """
        self.workloads.add(test.workload)
        self.faults.update(test.nemesis)
        declared = DESIGNS.load(self._design).promises
        guarantees = _guarantees(self._design, test.workload)
        for check in verdict["checks"]:
            name = check["check"]
            promise = self._promised.get((mode, name))
            if (name in guarantees and check["verdict"] != UNKNOWN and promise is not None
                    and standing_of(declared, name, test.options, test.nemesis) is promise):  # fmt: skip
                self.counted[mode, name].add(check["count"], check["figures"].get("not_promised", 0))

    def runs(self) -> str:
        """In words: which runs they were."""
        if not self.workloads:
            return f"{self.source}, of which none tells anything"
        return f"{self.source}; workloads {', '.join(sorted(self.workloads))}; faults {', '.join(sorted(self.faults))}"


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


def simulate_modes(design: str, seeds: Sequence[int], jobs: int, report: Callable[[str], None]) -> Evidence:
    """Simulate every mode of a design with the seeds."""
    evidence = Evidence(design, f"{len(seeds)} simulated runs of each mode and workload")
    with workshop(jobs) as (workers, scratch):
        for mode, settings in modes_of(design).items():
            plans = plans_of(design, settings)
            for result, verdict in workers.each(_judged, ((plan, seed, scratch) for seed in seeds for plan in plans)):
                if verdict is None or result.verdict == UNKNOWN:
                    report(f"{mode}: seed {result.seed}: not counted: {result.sentence}")
                else:
                    evidence.add(mode, result.plan.test(result.seed), verdict)
            report(f"{design}, {mode}: {len(seeds)} seeds of {', '.join(plan.workload for plan in plans)}")
    return evidence


def _judged(plan: Plan, seed: int, scratch: Path) -> tuple[SeedResult, dict[str, Any] | None]:
    """A simulated run and its verdict as it would be stored, which goes from process to process, unlike its pages."""
    result, verdict = run_and_judge(plan, seed, scratch, scratch, NONE)
    return result, None if verdict is None else verdict.to_json()


def read_store(design: str, store: Path) -> Evidence:
    """What the checked runs of a store have shown. Those of no mode, without faults, with a bug switched on, or with an
    unknown verdict are left out."""
    evidence = Evidence(design, f"the runs under faults in the store `{store}`")
    modes, defaults = modes_of(design), _defaults(design)
    for run in Store(store).runs():
        try:
            test = Test.from_json(read_run(run)["test"])
            verdict = read_verdict(run)
        except HistoryError:
            continue
        sound = test.options.get("bug", NO_BUG) == NO_BUG and verdict["verdict"] != UNKNOWN
        if test.design == design and test.nemesis and sound and (mode := mode_of(modes, test.options, defaults)):
            evidence.add(mode, test, verdict)
    return evidence


def promised_in(design: str) -> dict[tuple[str, str], Promise]:
    """What is promised, by (mode, guarantee), under the faults with which the modes are tried."""
    system, defaults = DESIGNS.load(design), _defaults(design)
    found: dict[tuple[str, str], Promise] = {}
    for mode, settings in modes_of(design).items():
        options, faults = {**defaults, **settings}, system.trial.nemesis.split(",")
        for guarantee in [name for plan in plans_of(design, settings) for name in _guarantees(design, plan.workload)]:
            promise = standing_of(system.promises, guarantee, options, faults)
            if promise is not None:
                found[mode, guarantee] = promise
    return found


def compare(design: str, evidence: Evidence) -> Iterator[Comparison]:
    """Every guarantee in every mode, beside what was seen of it."""
    for (mode, guarantee), promise in promised_in(design).items():
        yield Comparison(mode, guarantee, promise, evidence.counted.get((mode, guarantee), Seen()))


def page(sections: Mapping[str, Evidence]) -> str:
    """The comparison as a page: by design what runs have shown."""
    lines = [
        "# What the designs promise, and what runs have shown",
        "",
        "Made by `stormproof promises` from the promises as data (`promises.py` beside each design's code). A guarantee"
        " is named by the check that would find it broken.",
        "A *gap* is what the document demands and a mode can't keep: runs are judged by it, and are to show it; a gap"
        " that none has shown is marked. What"
        " is *not promised* is reported and does not decide. What a promise leaves open may go wrong all the same:"
        " where a check counts that, the number stands in brackets.",
        "A run counts for a guarantee if its check could judge it, and if the run's settings and faults give it the"
        " standing that is shown. Runs with a bug switched on, or with an unknown verdict, do not count.",
    ]
    for design, evidence in sections.items():
        lines += ["", *_section(design, evidence)]
    return "\n".join(lines) + "\n"


def _section(design: str, evidence: Evidence) -> Iterator[str]:
    trial: Trial = DESIGNS.load(design).trial
    yield f"## {design}"
    yield ""
    yield f"Standing: under the faults {trial.nemesis.replace(',', ', ')}. Shown by: {evidence.runs()}."
    yield from ("", "| mode | guarantee | standing | shown | section | why |", "| --- | --- | --- | --- | --- | --- |")
    for line in compare(design, evidence):
        yield (f"| {line.mode} | `{line.guarantee}` | {line.standing} | {line.shown()} | {line.promise.where} "
               f"| {line.promise.why} |")  # fmt: skip
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


def _guarantees(design: str, workload: str) -> list[str]:
    """What the design says something about and runs of the workload show."""
    shown = {*WORKLOADS.load(workload).promises, "recovery"}
    return [name for name in dict.fromkeys(p.guarantee for p in DESIGNS.load(design).promises) if name in shown]


def _defaults(design: str) -> dict[str, Any]:
    """The defaults of all settings that tests of the design's workloads have."""
    found: dict[str, Any] = {}
    for workload in DESIGNS.load(design).trial.workloads:
        test = make_test(design=design, workload=workload, nemesis="none", backend="sim", nodes=None, time_limit=10.0,
                         rate=10.0, seed=1, settings={})  # fmt: skip
        found |= test.options
    return found
