"""The findings of a campaign so far: verdicts, failures, and the states that its runs reached."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from harness.reference.feature_coverage import CoverageTable
from harness.run.cases import JudgedRun
from harness.run.progress import duration
from nemesis.catalog import FAULTS
from nodes.systems.catalog import SYSTEMS


@dataclass
class Reached:
    """The number of runs in which a state was reached, and how often in total."""

    runs: int = 0
    times: int = 0


@dataclass
class CampaignTally:
    """Accumulated results. ``systems`` are those whose states are counted; ``left_out`` lists combinations not run."""

    systems: Sequence[str] = ()
    workloads: Sequence[str] = ()
    left_out: Sequence[str] = ()
    started: float = field(default_factory=time.monotonic)
    verdicts: dict[str, int] = field(default_factory=dict)
    simulated: float = 0.0
    failures: list[JudgedRun] = field(default_factory=list)
    unknown: list[JudgedRun] = field(default_factory=list)
    coverage: dict[str, dict[str, Reached]] = field(init=False)
    visits: dict[str, Counter[tuple[str, str]]] = field(default_factory=dict)
    """System -> the number of runs that visited each pair (state, fault family)."""
    struck: dict[str, Counter[str]] = field(default_factory=dict)
    """System -> the number of runs with each fault family."""
    surface: CoverageTable = field(init=False)

    def __post_init__(self) -> None:
        self.coverage = {
            system: {name: Reached() for name in SYSTEMS.load(system).states} for system in dict.fromkeys(self.systems)
        }
        self.surface = CoverageTable.of(self.systems, self.workloads)

    def add(self, result: JudgedRun) -> None:
        """Add one result."""
        self.verdicts[result.verdict] = self.verdicts.get(result.verdict, 0) + 1
        self.simulated += result.simulated
        self._cover(self.coverage.setdefault(result.case.system, {}), result.coverage)
        self.surface.add(result.surface)
        self.visits.setdefault(result.case.system, Counter()).update(result.visited)
        families = [name for name in result.case.nemesis.split(",") if name in FAULTS.names()]
        self.struck.setdefault(result.case.system, Counter()).update(families)
        if result.failed:
            self.failures.append(result)
        elif result.verdict == "unknown":
            self.unknown.append(result)

    @staticmethod
    def _cover(seen: dict[str, Reached], times: Mapping[str, int]) -> None:
        for name, count in times.items():
            state = seen.setdefault(name, Reached())
            state.runs += count > 0
            state.times += count

    @property
    def runs(self) -> int:
        """The number of finished runs."""
        return sum(self.verdicts.values())

    @property
    def seconds(self) -> float:
        """Real seconds so far."""
        return max(time.monotonic() - self.started, 1e-9)

    def line(self, total: int | None = None) -> str:
        """Return a one-line summary; ``total`` is the number of planned runs."""
        seconds = self.seconds
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self.verdicts.items()))
        runs = f"{self.runs}{f' of {total}' if total else ''} run{'s' if (total or self.runs) != 1 else ''}"
        return (f"{runs}{': ' if counts else ''}{counts}; {seconds:.0f} s, {self.runs / seconds * 60:.0f} runs a "
                f"minute, {self.simulated / seconds:.0f} simulated seconds a second")

    def left(self, total: int) -> str:
        """Return the estimated time left of ``total`` runs, for the end of the line; empty before the first run."""
        return f"; about {duration(self.seconds / self.runs * (total - self.runs))} left" if self.runs else ""

    def coverage_table(self) -> Table:
        """Return the table of reached states by system: the number of runs, and how often in total."""
        table = Table("state", "runs", "times", "", box=None)
        for system, states in self.coverage.items():
            summaries = SYSTEMS.load(system).states
            reached = [item for item in states.items() if item[1].runs]
            for name, state in sorted(reached, key=lambda item: item[1].runs, reverse=True):
                label = f"{system}: {name}" if len(self.coverage) > 1 else name
                table.add_row(label, str(state.runs), str(state.times), summaries.get(name, ""))
        return table

    def visits_page(self) -> str:
        """Return a page of tables, one a system: in how many runs each state was reached under each fault family."""
        lines = ["# States and faults that met", "",
                 f"Written by `stormproof simulate --visits FILE`: {self.runs} runs. A number is that of the runs in",
                 "which the state was reached while a fault of the family was in force, or within a second of its",
                 "heal. A pair that no run visited has the sign –."]  # fmt: skip
        for system, states in self.coverage.items():
            found, struck = self.visits.get(system, Counter()), self.struck.get(system, Counter())
            families = sorted(struck)
            lines += ["", f"## {system}", "", f"| state | {' | '.join(families)} |",
                      f"| --- |{' ---: |' * len(families)}",
                      f"| runs with the fault | {' | '.join(str(struck[name]) for name in families)} |"]  # fmt: skip
            for state in states:
                cells = (str(found[state, name] or "–") for name in families)
                lines.append(f"| `{state}` | {' | '.join(cells)} |")
            never = [state for state in states if not any(found[state, name] for name in families)]
            lines += ["", f"Never under any fault: {', '.join(f'`{state}`' for state in never) or 'none'}."]
        return "\n".join(lines) + "\n"

    def never(self) -> list[str]:
        """Return a line for each system with the states that were never reached."""
        missed = {
            system: ", ".join(name for name, state in states.items() if not state.runs)
            for system, states in self.coverage.items()
        }
        return [f"never reached, {system}: {names}" for system, names in missed.items() if names]

    def to_json(self, interrupted: bool = False) -> dict[str, Any]:
        """Return the object for ``--json``."""
        return {
            "runs": self.runs,
            "interrupted": interrupted,
            "verdicts": dict(sorted(self.verdicts.items())),
            "left_out": list(self.left_out),
            "seconds": round(self.seconds, 3),
            "simulated_seconds": round(self.simulated, 3),
            "coverage": {
                system: {name: {"runs": state.runs, "times": state.times} for name, state in states.items()}
                for system, states in self.coverage.items()
            },
            "surface": self.surface.to_json(),
            "failures": list(map(_told, self.failures)),
            "unknown": list(map(_told, self.unknown)),
        }


def _told(result: JudgedRun) -> dict[str, Any]:
    case = result.case
    return {
        "seed": result.seed, "system": case.system, "workload": case.workload, "nemesis": case.nemesis,
        "verdict": result.verdict, "sentence": result.sentence, "anomalies": dict(result.anomalies),
        "command": result.command, "run": result.run_dir.name if result.run_dir else None,
    }  # fmt: skip
