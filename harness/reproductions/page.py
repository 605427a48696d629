"""The page of reproductions: the published misbehaviours, the expectations, and the results of runs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.reproductions.checkout import commit_of
from harness.reproductions.recipes import FAILS, TWIN, Recipe
from harness.reproductions.run import Reproduction, confirmed_of, shows
from harness.run.cases import BROKEN
from stormproof.errors import UsageError

DOCS = Path(__file__).parents[2] / "docs"
SEEN_FILE = DOCS / "reproductions.json"
"""The recorded results, by reproduction, backend and arm: the number of runs as expected, and the number of runs."""

_HEAD = """# Reproductions

Published misbehaviours of real systems, which `stormproof reproduce NAME` shows. Each has a twin: the same system, load
and faults under safe settings. `make docs` generates this page from `nodes/systems/*/reproductions.toml` (the
expectations) and `docs/reproductions.json` (the results). `stormproof reproduce --all --times 5 --record` writes the
results.

```sh
stormproof reproduce                        # list them
stormproof reproduce redis-D2 --times 3     # one of them, and its twin
stormproof reproduce --all --times 5        # all; `make reproduce` also records them
```

*Seen* is the number of runs with the expected result, of all runs, with the date and the commit of the record. *Time*
is the median of one run, with set-up and checks.
"""


def note_seen(outcome: Reproduction, path: Path) -> None:
    """Store the results of a reproduction, in place of earlier results for these arms. Runs that could not be made or
    judged do not count.

    Raises:
        UsageError: the file can't be read or written.
    """
    seen = read_seen(path)
    place = seen.setdefault(outcome.recipe.name, {}).setdefault(outcome.backend, {})
    for arm in outcome.recipe.arms:
        tries = [each for each in outcome.tries.get(arm.name, ()) if each.verdict != BROKEN]
        if tries:
            place[arm.name] = {
                "shown": outcome.shown(arm), "of": len(tries),
                "seconds": round(statistics.median(each.seconds for each in tries)),
                "confirmed": round(statistics.median(confirmed_of(each.figures) for each in tries)),
                "sentence": next((each.sentence for each in tries if shows(arm, each)), tries[0].sentence),
                "date": datetime.now(UTC).date().isoformat(), "commit": commit_of(DOCS.parent),
            }  # fmt: skip
    try:
        path.write_text(json.dumps(seen, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: can't be written: {error.strerror}; --record is for a checkout of the project"
                         ) from error  # fmt: skip


def read_seen(path: Path) -> dict[str, Any]:
    """Return the recorded results; raises UsageError when the file is invalid."""
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}; remove it, and record again") from error


def reproductions_page(known: Sequence[Recipe], seen: Mapping[str, Any]) -> str:
    """Return the page in Markdown."""
    lines = [_HEAD, "| | what goes wrong | fault | seen | twin valid | time |", "| --- | --- | --- | --- | --- | --- |"]
    for recipe in known:
        for backend, arms in sorted(seen.get(recipe.name, {}).items()) or [("", {})]:
            lines.append(f"| `{recipe.name}`{f' on {backend}' if backend else ''} | {recipe.title} | {recipe.fault} | "
                         f"{_count(arms.get(FAILS))} | {_count(arms.get(TWIN))} | {_time(arms.get(FAILS))} |")
    for recipe in known:
        lines += ["", *_section(recipe, seen.get(recipe.name, {}))]
    return "\n".join(lines) + "\n"


def _section(recipe: Recipe, seen: Mapping[str, Any]) -> list[str]:
    lines = [f"## {recipe.name}: {recipe.title}", "", recipe.claim, "", f"* Published: {recipe.source}",
             f"* Workload `{recipe.workload}`, fault: {recipe.fault}", ""]  # fmt: skip
    lines += ["| arm | settings | expected | seen | one of them |", "| --- | --- | --- | --- | --- |"]
    for arm in recipe.arms:
        settings = " ".join(f"{name}={value}" for name, value in arm.settings.items() if name != "schedule")
        if arm.system != recipe.system:
            settings = f"--system {arm.system} {settings}".rstrip()
        expected = f"invalid: {', '.join(arm.expected)}" if arm.expected else "valid"
        title = f"{arm.name}: {arm.title}" if arm.title else arm.name
        found = {backend: arms[arm.name] for backend, arms in sorted(seen.items()) if arm.name in arms}
        counts = "; ".join(f"{_count(each)} on {backend}{_recorded(each)}" for backend, each in found.items())
        sentence = next((each["sentence"] for each in found.values()), "")
        lines.append(f"| {title} | `{settings}` | {expected} | {counts or 'not run yet'} | {sentence} |")
    return lines


def _count(arm: Mapping[str, Any] | None) -> str:
    return "" if arm is None else f"{arm['shown']} of {arm['of']}"


def _time(arm: Mapping[str, Any] | None) -> str:
    return "" if arm is None else f"{arm['seconds']} s"


def _recorded(arm: Mapping[str, Any]) -> str:
    return f" ({arm['date']}, {arm['commit']})" if "date" in arm else ""
