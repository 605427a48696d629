"""The page and the summary of hunts for generated mutants."""

from __future__ import annotations

import difflib
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.mutation.drawing import Listed, MutantList
from harness.mutation.equivalents import Equivalent
from harness.mutation.operators import OPERATORS
from harness.mutation.results import Result
from stormproof.text import amount

CAUGHT, ESCAPED, EQUIVALENT, OPEN, GONE = "caught", "escaped", "equivalent", "not finished", "gone"
"""The outcomes of a hunt. ``not finished``: seeds are left; ``gone``: the source no longer has the mutant's lines."""


@dataclass(frozen=True)
class Measured:
    """The hunts for one list."""

    listed: MutantList
    start: int
    budget: int
    version: str
    rows: Sequence[tuple[Listed, Result, str]]
    """Each mutant with its result and its outcome."""
    equivalents: Mapping[str, Equivalent]

    def of(self, outcome: str) -> list[tuple[Listed, Result]]:
        """Return the mutants with this outcome."""
        return [(mutant, result) for mutant, result, found in self.rows if found == outcome]

    def summary(self) -> dict[str, Any]:
        """Return the measure: shares, seeds and processor seconds."""
        counts = Counter(outcome for *_, outcome in self.rows)
        judged = counts[CAUGHT] + counts[ESCAPED]
        # An escaped mutant took more seeds than there were.
        seeds = sorted([*(result.seeds for _, result in self.of(CAUGHT)), *[math.inf] * counts[ESCAPED]])
        run = sum(result.seeds for _, result, _ in self.rows)
        seconds = sum(result.seconds for _, result, _ in self.rows)
        return {
            "mutants": len(self.rows),
            CAUGHT: counts[CAUGHT],
            ESCAPED: counts[ESCAPED],
            EQUIVALENT: counts[EQUIVALENT],
            OPEN: counts[OPEN],
            GONE: counts[GONE],
            "share": round(counts[CAUGHT] / judged, 3) if judged else None,
            "median_seeds": _finite(statistics.median_low(seeds)) if seeds else None,
            "seeds_90": _finite(seeds[math.ceil(0.9 * len(seeds)) - 1]) if seeds else None,
            "seeds_run": run,
            "core_seconds": round(seconds, 1),
            "core_seconds_a_seed": round(seconds / run, 2) if run else None,
        }


def _finite(value: float) -> int | None:
    """Return a number of seeds; None stands for more than the budget."""
    return int(value) if math.isfinite(value) else None


def outcome_of(mutant: Listed, result: Result, budget: int, gone: bool, equivalents: Mapping[str, Equivalent]) -> str:
    """Return the outcome of a hunt; an equivalent that a check catches after all is caught."""
    if result.by and result.seeds <= budget:
        return CAUGHT
    if mutant.id in equivalents:
        return EQUIVALENT
    if gone:
        return GONE
    return ESCAPED if result.seeds >= budget else OPEN


def summary_line(measured: Measured) -> str:
    """Return the summary for a terminal."""
    found, budget = measured.summary(), measured.budget

    def seeds(key: str) -> str:
        return f">{budget}" if found[key] is None else str(found[key])

    share = "-" if found["share"] is None else f"{100 * found['share']:.0f} %"
    rest = "".join(f", {found[name]} {name}" for name in (EQUIVALENT, OPEN, GONE) if found[name])
    return (
        f"{measured.listed.system}: {found[CAUGHT]} caught, {found[ESCAPED]} escaped{rest}; {share} of those that "
        f"are not equivalent; median {seeds('median_seeds')} seeds, 90th percentile {seeds('seeds_90')}; "
        f"{found['core_seconds']:.0f} s of a core, {found['core_seconds_a_seed'] or 0:.2f} s a seed"
    )


def place_of(mutant: Listed) -> str:
    """Return file, line and function of a mutant."""
    return f"{mutant.file}:{mutant.line}" + (f" {mutant.function}" if mutant.function else "")


def diff_of(mutant: Listed) -> list[str]:
    """Return the lines that a mutant removes and adds."""
    lines = difflib.ndiff(mutant.before.splitlines(), mutant.after.splitlines())
    return [line.rstrip() for line in lines if not line.startswith("?")]


def make_page(measures: Sequence[Measured]) -> str:
    """Return the page of several systems, as Markdown."""
    lines = [
        "# Generated mutants",
        "",
        "Written by `stormproof mutants --generated N --seed S --page FILE`; how it works: "
        "[simulation](../simulation.md#mutants-made-by-rule).",
        "",
        "| system | seed | mutants | caught | escaped | equivalent | other | share caught | median seeds "
        "| 90th percentile | core-seconds | a seed |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in measures:
        found = each.summary()
        more = f">{each.budget}"
        share = "-" if found["share"] is None else f"{100 * found['share']:.0f} %"
        cells = [
            each.listed.system, each.listed.seed, found["mutants"], found[CAUGHT], found[ESCAPED], found[EQUIVALENT],
            found[OPEN] + found[GONE], share, found["median_seeds"] or more, found["seeds_90"] or more,
            f"{found['core_seconds']:.0f}", f"{found['core_seconds_a_seed'] or 0:.2f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        "",
        "Share, median and percentile are of mutants that are not equivalent; an escaped one took more seeds than "
        "the budget. `other`: hunts that are not finished, and mutants whose lines the source no longer has. "
        "Core-seconds include the start of processes, and leave out the unchanged broker's runs.",
        "",
    ]
    for each in measures:
        lines += _section(each)
    lines += ["## Operators", "", "| operator | rule |", "| --- | --- |"]
    lines += [f"| `{name}` | {rule} |" for name, rule in OPERATORS.items()]
    return "\n".join(lines) + "\n"


def _section(measured: Measured) -> list[str]:
    listed = measured.listed
    lines = [
        f"## {listed.system}",
        "",
        f"Seed {listed.seed}; {len(measured.rows)} of {listed.mutations} mutations in the {listed.lines} lines that "
        f"seeds 1 to {listed.traced_seeds} of the default campaign execute. Hunted with at most "
        f"{amount(measured.budget, 'seed')} from {measured.start} on; source {measured.version}.",
        "",
    ]
    if caught := measured.of(CAUGHT):
        lines += ["| caught | operator | by | seeds | core-seconds |", "| --- | --- | --- | --- | --- |"]
        lines += [
            f"| `{mutant.id}` {place_of(mutant)} | {mutant.operator} | {', '.join(result.by)} | {result.seeds} | "
            f"{result.seconds:.1f} |"
            for mutant, result in caught
        ]
        lines.append("")
    for outcome, title in ((ESCAPED, "Escaped"), (EQUIVALENT, "Equivalent"), (OPEN, "Not finished"), (GONE, "Gone")):
        if found := measured.of(outcome):
            lines += [f"### {title}: {listed.system}", ""]
            for mutant, result in found:
                lines += _shown(mutant, result, measured.equivalents.get(mutant.id))
    return lines


def _shown(mutant: Listed, result: Result, equivalent: Equivalent | None) -> list[str]:
    unknown = f", {result.unknown} of them unknown" if result.unknown else ""
    lines = [
        f"`{mutant.id}` {place_of(mutant)}, {mutant.operator}, {amount(result.seeds, 'seed')}{unknown}:",
        "",
        "```diff",
        *diff_of(mutant),
        "```",
        "",
    ]
    if equivalent is not None:
        lines += [f"Equivalent: {equivalent.reason} Agreed by {equivalent.agreed}.", ""]
    return lines
