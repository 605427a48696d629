"""``stormproof guarantees``: a system's guarantees in each mode, next to the results of runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.run import plugins
from harness.run.cases import EVENTFUL, Case, JudgedRun
from harness.run.settings import declared_options, make_test
from harness.sim.campaign import NONE, run_and_judge
from harness.sim.pool import worker_pool
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.check import UNKNOWN
from stormproof.contracts.guarantee import (
    KNOWN_VIOLATION,
    PROMISED,
    Guarantee,
    Trial,
    guarantee_for,
)
from stormproof.contracts.system import NO_BUG
from stormproof.errors import HistoryError, UsageError
from stormproof.run_folder import read_run, read_verdict
from stormproof.store import Store
from stormproof.test import Test
from workloads.catalog import WORKLOADS

CASE = Case("", "", "", None, 20.0, 40.0, EVENTFUL)
"""The campaign for each mode, before the adjustments of its system (``Trial``) and the mode's own settings."""

TITLE = "# What the systems guarantee, and what runs have shown"


@dataclass
class Observations:
    """Results of one guarantee in one mode: the number of runs, of runs that violated it, and of violations in all; and
    ``beyond``, the number of such anomalies outside the guarantee's scope."""

    runs: int = 0
    violated: int = 0
    count: int = 0
    beyond: int = 0

    def add(self, anomalies: int, beyond: int = 0) -> None:
        """Count one more run."""
        self.runs += 1
        self.violated += anomalies > 0
        self.count += anomalies
        self.beyond += beyond


@dataclass(frozen=True)
class Comparison:
    """One line: a guarantee in a mode, and the results of runs for it."""

    mode: str
    name: str
    guarantee: Guarantee
    seen: Observations

    @property
    def status(self) -> str:
        """The guarantee's status: ``promised``, ``known violation`` or ``not promised``."""
        return self.guarantee.status

    def shown(self) -> str:
        """Describe the results of the runs in words."""
        seen = self.seen
        if not seen.runs:
            return "no runs"
        beyond = f" (beyond it: {seen.beyond:,})" if seen.beyond else ""
        if not seen.violated:
            nothing = "**not shown**" if self.status == KNOWN_VIOLATION else "never violated"
            return f"{nothing} in {seen.runs} runs{beyond}"
        times = f"violated in {seen.violated} of {seen.runs} runs, {seen.count} times"
        return (f"**{times}: a defect**" if self.status == PROMISED else times) + beyond


class GuaranteeFindings:
    """Results of runs for a system's guarantees, by (mode, guarantee), with the workloads and faults of these runs."""

    def __init__(self, system: str, source: str) -> None:
        self.source = source
        self.counted: defaultdict[tuple[str, str], Observations] = defaultdict(Observations)
        self.workloads: set[str] = set()
        self.faults: set[str] = set()
        self._system = system
        self._promised = promised_in(system)

    def add(self, mode: str, test: Test, verdict: Mapping[str, Any]) -> None:
        """Count one more run of a mode, with its verdict as stored.

        A run does not count for a guarantee that its check could not judge. Nor does it count for one whose status
        under the run's settings and faults differs from the status shown.
        """
        self.workloads.add(test.workload)
        self.faults.update(test.nemesis)
        declared = SYSTEMS.load(self._system).guarantees
        guarantees = _compared(self._system, test.workload)
        for check in verdict["checks"]:
            name = check["check"]
            guarantee = self._promised.get((mode, name))
            if (name in guarantees and check["verdict"] != UNKNOWN and guarantee is not None
                    and guarantee_for(declared, name, test.options, test.nemesis) is guarantee):  # fmt: skip
                self.counted[mode, name].add(check["count"], check["figures"].get("not_promised", 0))

    def runs(self) -> str:
        """Describe in words which runs were counted."""
        if not self.workloads:
            return f"{self.source}, of which none tells anything"
        return f"{self.source}; workloads {', '.join(sorted(self.workloads))}; faults {', '.join(sorted(self.faults))}"


def modes_of(system: str) -> Mapping[str, Mapping[str, Any]]:
    """Return a system's modes by name, each with its settings.

    Raises:
        UsageError: the system declares no modes.
    """
    modes: Mapping[str, Mapping[str, Any]] = SYSTEMS.load(system).modes
    if not modes:
        raise UsageError(f"system {system} has no guarantees written down")
    return modes


def mode_of(modes: Mapping[str, Mapping[str, Any]], options: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return the mode that a run's settings match exactly, or an empty string."""
    told = {name for settings in modes.values() for name in settings}
    for name, settings in modes.items():
        others = [key for key in told if key in options and key not in settings]
        if all(options.get(key) == value for key, value in settings.items()) and all(
            options[key] == defaults.get(key) for key in others
        ):
            return name
    return ""


def cases_of(system: str, settings: Mapping[str, Any]) -> list[Case]:
    """Return the campaigns of one of the system's modes: one for each workload that has these settings."""
    usual, trial = SYSTEMS.load(system).trial.settings, trial_of(system, settings)
    strings = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}
    nodes = min(3, SYSTEMS.load(system).max_nodes)
    cases = []
    for workload in trial.workloads:
        declared = {option.name for option in declared_options(system, workload, trial.nemesis.split(","))}
        if declared.issuperset(settings):
            common = {name: value for name, value in {**CASE.settings, **usual, **trial.settings}.items()
                      if name in declared}  # fmt: skip
            cases.append(replace(CASE, system=system, workload=workload, nemesis=trial.nemesis, nodes=nodes,
                                 time_limit=trial.seconds or CASE.time_limit, rate=trial.rate or CASE.rate,
                                 settings={**common, **strings}))
    return cases


def trial_of(system: str, settings: Mapping[str, Any]) -> Trial:
    """Return the trial (workloads, faults and settings) of the mode with these settings."""
    tested = SYSTEMS.load(system)
    trial: Trial = tested.trial
    modes = [mode for mode, its in tested.modes.items() if its == settings]
    return next((trial.of_mode[mode] for mode in modes if mode in trial.of_mode), trial)


def simulate_modes(system: str, seeds: Sequence[int], jobs: int, report: Callable[[str], None]) -> GuaranteeFindings:
    """Simulate every mode of a system with the seeds."""
    findings = GuaranteeFindings(system, f"{len(seeds)} simulated runs of each mode and workload")
    with worker_pool(jobs) as (workers, scratch):
        for mode, settings in modes_of(system).items():
            cases = cases_of(system, settings)
            for result, verdict in workers.each(_judged, ((case, seed, scratch) for seed in seeds for case in cases)):
                if verdict is None or result.verdict == UNKNOWN:
                    report(f"{mode}: seed {result.seed}: not counted: {result.sentence}")
                else:
                    findings.add(mode, result.case.test(result.seed), verdict)
            report(f"{system}, {mode}: {len(seeds)} seeds of {', '.join(case.workload for case in cases)}")
    return findings


def _judged(case: Case, seed: int, scratch: Path) -> tuple[JudgedRun, dict[str, Any] | None]:
    """Return a simulated run and its verdict as it would be stored. Unlike the run's pages, the stored form can be sent
    from process to process."""
    result, verdict = run_and_judge(case, seed, scratch, scratch, NONE)
    return result, None if verdict is None else verdict.to_json()


def read_store(system: str, store: Path) -> GuaranteeFindings:
    """Return the results of the checked runs of a store. Runs are left out if they match no mode, had no faults, had a
    bug switched on, had an unknown verdict, or used a plug-in other than the system itself, as it is here."""
    findings = GuaranteeFindings(system, f"the runs under faults in the store `{store}`")
    modes, defaults = modes_of(system), _defaults(system)
    for _, _, test, verdict in judged_runs(system, store):
        known = test.nemesis and verdict["verdict"] != UNKNOWN
        if known and (mode := mode_of(modes, test.options, defaults)):
            findings.add(mode, test, verdict)
    return findings


def judged_runs(system: str, store: Path) -> Iterator[tuple[Path, Mapping[str, Any], Test, Mapping[str, Any]]]:
    """Yield the runs of a system in a store that have a verdict: folder, description, test, verdict. Runs are left out
    if they had a bug switched on, or used a plug-in other than the system itself, as it is here."""
    for run in Store(store).runs():
        try:
            info = read_run(run)
            test = Test.from_json(info["test"])
            verdict = read_verdict(run)
            plugins.demand_same(info, str(run))
        except HistoryError:
            continue
        own = all(each["kind"] == plugins.SYSTEM for each in info.get("plugins") or ())
        if own and test.system == system and test.options.get("bug", NO_BUG) == NO_BUG:
            yield run, info, test, verdict


def promised_in(system: str) -> dict[tuple[str, str], Guarantee]:
    """Return the declared guarantees, by (mode, guarantee), under the faults of each mode's trial."""
    tested, defaults = SYSTEMS.load(system), _defaults(system)
    found: dict[tuple[str, str], Guarantee] = {}
    for mode, settings in modes_of(system).items():
        options, faults = {**defaults, **settings}, trial_of(system, settings).nemesis.split(",")
        for name in [name for case in cases_of(system, settings) for name in _compared(system, case.workload)]:
            guarantee = guarantee_for(tested.guarantees, name, options, faults)
            if guarantee is not None:
                found[mode, name] = guarantee
    return found


def compare(system: str, findings: GuaranteeFindings) -> Iterator[Comparison]:
    """Yield every guarantee in every mode, with the results of runs for it."""
    for (mode, name), guarantee in promised_in(system).items():
        yield Comparison(mode, name, guarantee, findings.counted.get((mode, name), Observations()))


def sections_of(text: str) -> dict[str, str]:
    """Return system -> its section, from a page that ``page`` has generated.

    Raises:
        UsageError: the text is not such a page.
    """
    head, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    if not head.startswith(TITLE):
        raise UsageError(f"is there already, and no page of guarantees: it does not begin with {TITLE!r}")
    return {section.splitlines()[0].removeprefix("## "): section.strip() for section in sections}


def page(sections: Mapping[str, GuaranteeFindings], others: Mapping[str, str] | None = None) -> str:
    """Return the comparison as a page, with the results of runs by system. ``others`` are sections that stay
    unchanged."""
    lines = [
        TITLE,
        "",
        "Made by `stormproof guarantees` from the guarantees as data (`guarantees.py` of each system). A guarantee has"
        " the name of the check that finds its violations.",
        "A *known violation* is a demand of the design's document that a mode cannot meet. It decides the verdict of a"
        " run, and runs must show it; the page marks one that no run has shown. A *not promised* guarantee is reported"
        " and does not decide. A number in brackets counts anomalies that a guarantee does not cover.",
        "A run counts for a guarantee if its check could judge the run, and if the run's settings and faults give the"
        " guarantee this status. Runs with a bug switched on or with an unknown verdict do not count.",
    ]
    texts = {**(others or {}), **{system: "\n".join(_section(system, found)) for system, found in sections.items()}}
    order = [*systems_compared(), *texts]
    for system in sorted(texts, key=order.index):
        lines += ["", texts[system]]
    return "\n".join(lines) + "\n"


def _section(system: str, findings: GuaranteeFindings) -> Iterator[str]:
    trial: Trial = SYSTEMS.load(system).trial
    yield f"## {system}"
    yield ""
    others = ", or those that the mode is tried with" if trial.of_mode else ""
    yield f"Status: under the faults {trial.nemesis.replace(',', ', ')}{others}. Shown by: {findings.runs()}."
    yield from ("", "| mode | guarantee | status | shown | section | why |", "| --- | --- | --- | --- | --- | --- |")
    for line in compare(system, findings):
        yield (f"| {line.mode} | `{line.name}` | {line.status} | {line.shown()} | {line.guarantee.where} "
               f"| {line.guarantee.why} |")  # fmt: skip
    yield from ("", "| mode | settings |", "| --- | --- |")
    for mode, settings in modes_of(system).items():
        its = trial.of_mode.get(mode)
        tried = f"; tried with {', '.join(its.workloads)} under {its.nemesis} and {_told(its.settings)}" if its else ""
        yield f"| {mode} | {_told(settings) or 'the defaults'}{tried} |"
    yield from ("", f"### All guarantees of {system}", "",
                "The first line that fits a run's settings and faults holds.",
                "", "| guarantee | status | settings | faults | section | why |",
                "| --- | --- | --- | --- | --- | --- |")  # fmt: skip
    for guarantee in SYSTEMS.load(system).guarantees:
        faults = "any fault" if guarantee.faults == ("*",) else ", ".join(guarantee.faults) or "with or without"
        where = ", ".join(filter(None, (_told(guarantee.mode), guarantee.such.words if guarantee.such else "")))
        yield (f"| `{guarantee.name}` | {guarantee.status} | {where or 'all'} | {faults} "
               f"| {guarantee.where} | {guarantee.why} |")  # fmt: skip


def _told(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}={str(value).lower() if isinstance(value, bool) else value}`"
                     for name, value in settings.items())


def systems_compared() -> list[str]:
    """Return the systems that have modes to compare."""
    return [system for system in SYSTEMS.names() if SYSTEMS.load(system).modes]


def _compared(system: str, workload: str) -> list[str]:
    """Return the guarantees that the system declares and that runs of the workload can show."""
    shown = {*WORKLOADS.load(workload).guarantees, "recovery"}
    return [name for name in dict.fromkeys(p.name for p in SYSTEMS.load(system).guarantees) if name in shown]


def _defaults(system: str) -> dict[str, Any]:
    """Return the defaults of all settings that tests of the system's workloads have."""
    found: dict[str, Any] = {}
    trial: Trial = SYSTEMS.load(system).trial
    for workload in dict.fromkeys(name for each in (trial, *trial.of_mode.values()) for name in each.workloads):
        test = make_test(system=system, workload=workload, nemesis="none", backend="sim", nodes=None, time_limit=10.0,
                         rate=10.0, seed=1, settings={})  # fmt: skip
        found |= test.options
    return found
