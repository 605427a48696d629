"""Write the parts of docs/ that are generated from the code: all names with their settings, the transitions of design
fiorano, the invariants, bounds and fault points of all systems, the reproductions on real systems, and the table of the
faults observed on each backend."""

from __future__ import annotations

from pathlib import Path

from harness.cli.listing import fault_matrix, listing
from harness.reference.feature_coverage import surface_page
from harness.reproductions.page import SEEN_FILE, read_seen, reproductions_page
from harness.reproductions.recipes import recipes
from harness.tools.fault_table import PAGE as BACKENDS_PAGE
from harness.tools.fault_table import read_seen as faults_seen
from harness.tools.fault_table import with_table
from nodes.systems.catalog import SYSTEMS
from nodes.systems.reference.fiorano.diagram import with_transitions
from stormproof.contracts.bounds import Bound, WorkBound
from stormproof.contracts.system import System

DOCS = Path(__file__).resolve().parent.parent / "docs"
REFERENCE = DOCS / "reference"
PAGE = REFERENCE / "names.md"
INVARIANTS = REFERENCE / "invariants.md"
BOUNDS = REFERENCE / "bounds.md"
POINTS = REFERENCE / "points.md"
FEATURE_COVERAGE = REFERENCE / "feature-coverage.md"
REPRODUCTIONS = REFERENCE / "reproductions.md"
FIORANO = DOCS / "designs" / "fiorano.md"


def names_page() -> str:
    """Return the page's text."""
    lines = ["# Names and settings", "", "Made by `make docs` from the registries; `stormproof list` prints the same."]
    for kind, entries in listing("all").items():
        lines += ["", f"## {kind.capitalize()}"]
        for entry in entries:
            shown_by = f": `{entry['command']}`" if "command" in entry else ""
            lines += ["", f"**`{entry['name']}`** {entry['summary']}{shown_by}"]
            if entry["options"]:
                lines += ["", "| `--set` | default | meaning |", "| --- | --- | --- |"]
            for option in entry["options"]:
                named = ", ".join(f"`{choice}`" for choice in option["choices"])
                choices = f" One of {named}." if named else ""
                lines.append(f"| `{option['name']}` | `{option['default']}` | {option['help']}.{choices} |")
    lines += ["", "## Faults and backends", "", "A fault that is missing for a backend is refused there.", ""]
    lines += ["| fault | backend | how |", "| --- | --- | --- |"]
    lines += [f"| `{fault}` | `{backend}` | {how} |" for fault, backend, how in fault_matrix()]
    return "\n".join(lines) + "\n"


def invariants_page() -> str:
    """Return the page of the rules that simulated nodes satisfy at every instant, by system."""
    lines = ["# Invariants", "", "Made by `make docs` from what the systems declare. How they are looked at:",
             "[simulation.md](../simulation.md#invariants)."]  # fmt: skip
    for system in (SYSTEMS.load(name) for name in SYSTEMS.names()):
        if not system.invariants and not system.deadlines:
            continue
        lines += ["", f"## {system.name}", ""]
        lines += ["| invariant | what holds | source | claimed |", "| --- | --- | --- | --- |"]
        for each in system.invariants:
            where = [f"with {name}={' or '.join(map(str, values))}" for name, values in (each.where or {}).items()]
            where += [f"not under {' or '.join(each.unless)}"] if each.unless else []
            lines.append(f"| `{each.name}` | {each.rule} | {each.source} | {', '.join(where) or 'always'} |")
        lines += _deadlines(system)
    return "\n".join(lines) + "\n"


def _deadlines(system: System) -> list[str]:
    lines = ["", "| deadline | what holds | source | claimed |", "| --- | --- | --- | --- |"]
    for each in system.deadlines:
        where = [f"with {name}={' or '.join(map(str, values))}" for name, values in each.where.items()]
        where += [f"not under {' or '.join(each.unless)}"] if each.unless else []
        lines.append(f"| `{each.name}` | {each.rule} | {each.source} | {', '.join(where) or 'always'} |")
    return lines if system.deadlines else []


_OF_BOUNDS = """# Bounds of time and work

Made by `make docs` from what the systems declare (`nodes/systems/*/bounds.py`, `stormproof/contracts/bounds.py`).

A system claims bounds as multiples of its own settings. `run.json` has those that are claimed of the run, with their
values (`bounds`); the checks `availability` and `stability` decide where one of theirs is there.

| bound | seconds | judged by |
| --- | --- | --- |
| `healthy` | from the last heal until the system says that it is well | `availability` |
| `serves` | in which nothing succeeds that clients ask for, with no fault in force | `availability` |
| `serves-with-majority` | the same with a minority of the nodes down or standing still | `availability` |
| `serves-with-one` | the same with one of a pair that was at rest down or standing still | `availability` |
| `keeps-roles` | after which, with no fault in force, no node changes its role any more | `stability` |

Time counts from the last step of any fault, when that was complete. Nothing is concluded from times in which another
fault is in force (a cut, a slow link, a wrong clock, a bad disk), in which one was not shown to have taken effect, or
failed; nor from one client that waits alone, or from clients that ask for nothing for a second. Bounds are claimed of
simulated runs only: what a busy machine adds to the times of real nodes nobody knows. Those about serving are not
claimed where clients stay with the node beside them, nor those with nodes down where nodes are spare or in several
groups. `icestorm`, `qpid` and `fiorano` claim these where one of the nodes that stay was of use when that began, by its
role: after a start of all, all are waited for, and a backup that is not ready takes nothing over. A pair was at rest
when no fault had been in force for a second.

Bounds of work say how many frames (what a program hands to its kernel at once) and bytes the machines of a simulated
run may send each other (`work` in `run.json`, beside `work_bounds`; the check `work` decides). They are in proportion
to what clients sent to machines, to the other machines that may have to have it, to time, and to faults:

(machines - 1) x
((`each` + `again` x faults) x what clients sent + machines x (`times` x seconds + `fixed` x (1 + faults)))

Their numbers are what 50 seeds of the default campaign of each design needed at most, and half as much again or more.
"""


def bounds_page() -> str:
    """Return the page of the times within which systems serve again and have stable roles."""
    lines = [_OF_BOUNDS.rstrip()]
    for system in (SYSTEMS.load(name) for name in SYSTEMS.names()):
        if not system.bounds:
            continue
        lines += ["", f"## {system.name}", "", "| bound | at most | source | claimed |", "| --- | --- | --- | --- |"]
        for each in system.bounds:
            lines.append(f"| `{each.name}` | {each.formula} | {each.source} | {_claimed(each)} |")
        for work in system.work:
            lines.append(f"| `{work.name}` | {work.formula} | {work.source} | {_claimed(work)} |")
    return "\n".join(lines) + "\n"


def _claimed(bound: Bound | WorkBound) -> str:
    """Return the tests for which a bound is claimed."""
    where = [f"with {name}={' or '.join(map(str, values))}" for name, values in bound.where.items()]
    where += [f"not under {' or '.join(bound.unless)}"] if bound.unless else []
    return ", ".join(where) or "always"


_OF_POINTS = """# Fault points

Made by `make docs` from what the designs declare (`nodes/reference/points.py`); `stormproof list points` prints them.

A point is a named place in a broker's code where a fault hurts: something is appended and not committed, written and
not answered, promised and not told. There the broker says `runtime.point(NAME)`, which does nothing on real nodes. In
simulation the nemesis `points` strikes a program exactly there ([nemeses.md](../nemeses.md#points)).
"""


def points_page() -> str:
    """Return the page of the points that the nemesis `points` strikes, by design; a shared point is described once."""
    lines = [_OF_POINTS.rstrip()]
    told: dict[str, str] = {}
    for system in (SYSTEMS.load(name) for name in SYSTEMS.names()):
        own = {name: what for name, what in system.fault_points.items() if name not in told}
        shared = [f"`{name}`" for name in system.fault_points if name in told]
        if not system.fault_points:
            continue
        lines += ["", f"## {system.name}", ""]
        lines += [f"Also {', '.join(shared)}.", ""] if shared else []
        lines += ["| point | what it means |", "| --- | --- |"] if own else []
        lines += [f"| `{name}` | {what} |" for name, what in own.items()]
        told |= own
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    POINTS.write_text(points_page(), encoding="utf-8")
    PAGE.write_text(names_page(), encoding="utf-8")
    BACKENDS_PAGE.write_text(with_table(BACKENDS_PAGE.read_text(encoding="utf-8"), faults_seen()), encoding="utf-8")
    FIORANO.write_text(with_transitions(FIORANO.read_text(encoding="utf-8")), encoding="utf-8")
    BOUNDS.write_text(bounds_page(), encoding="utf-8")
    INVARIANTS.write_text(invariants_page(), encoding="utf-8")
    REPRODUCTIONS.write_text(reproductions_page(recipes(), read_seen(SEEN_FILE)), encoding="utf-8")
    FEATURE_COVERAGE.write_text(surface_page(), encoding="utf-8")
