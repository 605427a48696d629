"""Run reproductions, and count how often each arm meets its expectation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkers.spark.session import SparkWarmup
from harness.reproductions.recipes import FAILS, TWIN, Arm, Recipe
from harness.run.cases import BROKEN, JudgedRun
from harness.run.many import run_on_nodes
from stormproof.contracts.check import UNKNOWN, VALID
from stormproof.errors import EXIT_ERROR, EXIT_INVALID, EXIT_UNKNOWN, EXIT_VALID

MIN_SHOWN_SHARE = 0.6
"""The share of its runs in which the failing arm must meet its expectation. A twin must pass in all of its runs."""
_SETTLING = ("drain", "depth")
"""Operations at the end of a run."""
MIN_CONFIRMED_RATIO = 0.5
"""The least ratio of operations that a twin confirmed to those that the failing arm confirmed."""


def shows(arm: Arm, run: JudgedRun) -> bool:
    """Return whether a run met the arm's expectation."""
    return run.verdict == VALID if not arm.expected else bool({*arm.expected} & {*run.broken})


@dataclass
class Reproduction:
    """The results of one recipe: the runs of each arm, by its name."""

    recipe: Recipe
    backend: str
    tries: dict[str, list[JudgedRun]] = field(default_factory=dict)

    def shown(self, arm: Arm) -> int:
        """Return the number of runs in which the arm met its expectation."""
        return sum(shows(arm, each) for each in self.tries.get(arm.name, ()))

    @property
    def busy_enough(self) -> bool:
        """Whether the twin confirmed at least half as many operations as the failing arm. A twin that does nothing
        would lose nothing."""
        fails, twin = (self.tries.get(name, []) for name in (FAILS, TWIN))
        if not fails or not twin:
            return True
        done = [statistics.median(confirmed_of(each.figures) for each in tries) for tries in (fails, twin)]
        return done[1] >= MIN_CONFIRMED_RATIO * done[0]

    def trouble(self) -> list[str]:
        """Describe the deviations from the expectations in words."""
        found = []
        for arm in self.recipe.arms:
            tries = self.tries.get(arm.name, [])
            least = len(tries) if not arm.expected else max(1, round(MIN_SHOWN_SHARE * len(tries)))
            if tries and self.shown(arm) < least:
                wanted = "valid" if not arm.expected else f"invalid ({' or '.join(arm.expected)})"
                found.append(f"{arm.name}: {wanted} in {self.shown(arm)} of {len(tries)} runs")
        if not self.busy_enough:
            found.append("the twin confirmed less than half of what the failing arm did")
        return found

    @property
    def exit_status(self) -> int:
        """The exit status. 0: as expected. 3: all deviating runs broke. 2: the only deviations are unknown verdicts. 1:
        any other deviation."""
        everything = [(arm, each) for arm in self.recipe.arms for each in self.tries.get(arm.name, ())]
        if not self.trouble():
            return EXIT_VALID
        odd = {each.verdict for arm, each in everything if not shows(arm, each)}
        if odd == {BROKEN}:
            return EXIT_ERROR
        return EXIT_UNKNOWN if odd == {UNKNOWN} else EXIT_INVALID

    def to_json(self) -> dict[str, Any]:
        """Return the data for ``--json`` and for the table in the docs."""
        return {
            "name": self.recipe.name, "backend": self.backend, "as_expected": not self.trouble(),
            "trouble": self.trouble(),
            "arms": [{
                "name": arm.name, "expected": arm.verdict, "checks": list(arm.expected), "shown": self.shown(arm),
                "of": len(self.tries.get(arm.name, ())), "runs": [_told(each) for each in self.tries.get(arm.name, ())],
            } for arm in self.recipe.arms],
        }  # fmt: skip


def reproduce(recipe: Recipe, arms: Sequence[Arm], times: int, backend: str, store: Path, spark: SparkWarmup,
              tell: Callable[[str], None], quiet: bool = True) -> Reproduction:
    """Run each arm ``times`` times. Arms take turns, so that none gets a quieter machine.

    Raises:
        KeyboardInterrupt: Ctrl-C; the runs so far are in the store.
    """
    outcome = Reproduction(recipe, backend)
    for number in range(times):
        for arm in arms:
            case, seed = recipe.case(arm, backend), recipe.seed + number
            found = run_on_nodes(case, seed, "asked for", store, spark, quiet=quiet)
            outcome.tries.setdefault(arm.name, []).append(found)
            word = "as expected" if shows(arm, found) else "NOT as expected"
            tell(f"{recipe.name} {arm.name} {number + 1} of {times}: {word}: {found.sentence} ({found.seconds:.0f} s)")
    return outcome


def confirmed_of(figures: Mapping[str, Any]) -> int:
    """Return the number of operations of the load that ended ``ok``, from a verdict's figures. The final reading is
    excluded: it takes longer the less was lost, so it does not show how busy a system was."""
    counts = figures.get("latency_ms", {})
    return sum(int(counts[f]["count"]) for f in counts if f not in _SETTLING)


def _told(each: JudgedRun) -> dict[str, Any]:
    return {"verdict": each.verdict, "sentence": each.sentence, "violated": list(each.broken),
            "confirmed": confirmed_of(each.figures), "seconds": round(each.seconds, 1),
            "run": each.run_dir.name if each.run_dir is not None else ""}  # fmt: skip
