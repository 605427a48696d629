"""The command ``stormproof reproduce``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from checkers.spark.session import SparkWarmup
from harness.backends.probe import choose_backend
from harness.cli.output import print_answer, print_json, teller
from harness.reproductions.page import SEEN_FILE, note_seen
from harness.reproductions.recipes import TWIN, Arm, Recipe, find_recipe, recipes, recipes_of
from harness.reproductions.run import Reproduction, reproduce
from harness.run import plugins
from stormproof.errors import EXIT_VALID, UsageError


def run_reproduce(names: Sequence[str], everything: bool, times: int, arms: Sequence[str], backend: str | None,
                  store: Path, record: bool, as_json: bool) -> int:
    """Run reproductions and their twins; without names, list all. Return the exit status of the worst.

    Raises:
        UsageError: a name does not exist, or a number is invalid. KeyboardInterrupt: Ctrl-C; the results of earlier
            runs
            have been reported.
    """
    own, names = _of_own_systems(names)
    known = [*recipes(), *own]
    if everything and names:
        raise UsageError("give names of reproductions, or --all, not both")
    if times < 1:
        raise UsageError(f"--times {times}: at least 1")
    if not everything and not names and not own:
        _list(known, as_json)
        return EXIT_VALID
    chosen = known if everything else [find_recipe(name, known) for name in names] or own
    wanted = [_arms_of(recipe, arms) for recipe in chosen]
    tell = teller(as_json)
    place, why = choose_backend(backend)
    tell(f"backend {place}: {why}")
    for recipe, some in zip(chosen, wanted, strict=True):
        for arm in some:
            for number in range(times):
                recipe.case(arm, place).test(recipe.seed + number)
    spark = SparkWarmup()
    outcomes: list[Reproduction] = []
    try:
        for recipe, some in zip(chosen, wanted, strict=True):
            tell(f"{recipe.name}: {recipe.title}\n  {recipe.claim}")
            outcome = reproduce(recipe, some, times, place, store, spark, tell)
            outcomes.append(outcome)
            tell("\n".join(_summary(outcome, some)))
            if record:
                note_seen(outcome, SEEN_FILE)
    finally:
        spark.abandon()
        if as_json:
            print_json({"reproductions": [outcome.to_json() for outcome in outcomes], "asked": len(chosen)})
    return max(outcome.exit_status for outcome in outcomes)


def _of_own_systems(names: Sequence[str]) -> tuple[list[Recipe], list[str]]:
    """Return the reproductions of the systems of the user's own among these names, and the other names."""
    own: list[Recipe] = []
    others: list[str] = []
    for name in names:
        if plugins.is_file(name) or plugins.is_entry_point(plugins.SYSTEM, name):
            own += recipes_of(plugins.resolve(plugins.SYSTEM, name))
        else:
            others.append(name)
    return own, others


def _arms_of(recipe: Recipe, names: Sequence[str]) -> list[Arm]:
    if not names:
        return list(recipe.arms)
    known = {arm.name: arm for arm in recipe.arms}
    for name in names:
        if name not in known:
            raise UsageError(f"--arm {name}: {recipe.name} has no such arm (known: {', '.join(known)})")
    return [known[name] for name in names]


def _summary(outcome: Reproduction, arms: Sequence[Arm]) -> list[str]:
    lines = []
    for arm in arms:
        of = len(outcome.tries.get(arm.name, ()))
        wanted = "valid" if not arm.expected else f"invalid ({' or '.join(arm.expected)})"
        kind = "twin" if arm.name == TWIN else f"arm {arm.name}"
        lines.append(f"  {kind}: {outcome.shown(arm)} of {of} {wanted}, as expected")
    return lines + [f"  NOT as expected: {text}" for text in outcome.trouble()]


def _list(known: Sequence[Recipe], as_json: bool) -> None:
    data = {"reproductions": [
        {"name": recipe.name, "title": recipe.title, "claim": recipe.claim, "source": recipe.source,
         "arms": [arm.name for arm in recipe.arms]} for recipe in known
    ]}  # fmt: skip
    width = max(len(recipe.name) for recipe in known)
    print_answer(as_json, data, (f"{recipe.name:{width}}  {recipe.title} (arms: "
                                 f"{', '.join(arm.name for arm in recipe.arms)})" for recipe in known))  # fmt: skip
