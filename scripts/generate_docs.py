"""Write the parts of docs/ that are generated from the code: all names with their settings, the transitions of design
fiorano, the invariants, bounds and fault points of all systems, the reproductions on real systems, and the table of the
faults observed on each backend."""

from __future__ import annotations

from pathlib import Path

from harness.cli.listing import fault_matrix, listing
from harness.reference.feature_coverage import coverage_page
from harness.reproductions.page import SEEN_FILE, read_seen, reproductions_page
from harness.reproductions.recipes import recipes
from harness.sim.drawn_settings import drawn_settings_page
from harness.tools.fault_table import PAGE as BACKENDS_PAGE
from harness.tools.fault_table import read_seen as faults_seen
from harness.tools.fault_table import with_table
from nodes.systems.catalog import SYSTEMS
from nodes.systems.reference.fiorano.diagram import with_transitions
from stormproof.contracts.bounds import Bound, WorkBound
from stormproof.contracts.invariant import Invariant
from stormproof.contracts.system import System

DOCS = Path(__file__).resolve().parent.parent / "docs"
REFERENCE = DOCS / "reference"
PAGE = REFERENCE / "names.md"
INVARIANTS = REFERENCE / "invariants.md"
BOUNDS = REFERENCE / "bounds.md"
EXCEPTIONS = REFERENCE / "exceptions.md"
POINTS = REFERENCE / "points.md"
DRAWN_SETTINGS = REFERENCE / "drawn-settings.md"
FEATURE_COVERAGE = REFERENCE / "feature-coverage.md"
REPRODUCTIONS = REFERENCE / "reproductions.md"
FIORANO = DOCS / "designs" / "fiorano.md"


def names_page() -> str:
    """Return the page's text."""
    lines = ["# Names and settings", "",
             "Made by `make docs` from the registries; `stormproof list all` prints the same."]  # fmt: skip
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
    lines += ["", "## Faults and backends", "", "A backend refuses the faults for which it has no line.", ""]
    lines += ["| fault | backend | how |", "| --- | --- | --- |"]
    lines += [f"| `{fault}` | `{backend}` | {how} |" for fault, backend, how in fault_matrix()]
    return "\n".join(lines) + "\n"


def invariants_page() -> str:
    """Return the page of the rules that simulated nodes satisfy at every instant, by system."""
    lines = ["# Invariants", "", "Made by `make docs` from the declarations of the systems.",
             "[simulation.md](../simulation.md#invariants) explains when a simulated run checks them."]  # fmt: skip
    for system in (SYSTEMS.load(name) for name in SYSTEMS.names()):
        if not system.invariants and not system.deadlines:
            continue
        lines += ["", f"## {system.name}", ""]
        lines += ["| invariant | what holds | source | observed | claimed |", "| --- | --- | --- | --- | --- |"]
        for each in system.invariants:
            where, seen = _where(each), ", ".join(each.seen)
            lines.append(f"| `{each.name}` | {each.rule} | {each.source} | {seen} | {where} |")
        lines += _deadlines(system) + _waits(system)
    return "\n".join(lines) + "\n"


def _deadlines(system: System) -> list[str]:
    lines = ["", "| deadline | what holds | source | claimed |", "| --- | --- | --- | --- |"]
    for each in system.deadlines:
        lines.append(f"| `{each.name}` | {each.rule} | {each.source} | {_where(each)} |")
    return lines if system.deadlines else []


def _waits(system: System) -> list[str]:
    lines = ["", "| timer | what holds | set by | source |", "| --- | --- | --- | --- |"]
    lines += [f"| `{each.name}` | {each.rule} | {each.of}: `{each.place}` | {each.source} |" for each in system.waits]
    return lines if system.waits else []


_OF_BOUNDS = """# Bounds of time and work

Made by `make docs` from the declarations of the systems (`rules/table.py` of each, `stormproof/contracts/bounds.py`).

A system claims bounds as multiples of its settings. `run.json` has the bounds that are claimed for the run, with their
values (`bounds`). A claimed bound makes the check in the last column decide.

| bound | seconds | judged by |
| --- | --- | --- |
| `healthy` | from the last heal until the system reports that it is healthy | `availability` |
| `serves` | without any successful operation, with no fault in force | `availability` |
| `serves-with-majority` | the same, with a minority of the nodes down or paused | `availability` |
| `serves-with-one` | the same, with one node of an idle pair down or paused | `availability` |
| `keeps-roles` | until the last change of a role, with no fault in force | `stability` |

Time counts from the end of the last step of any fault. The checks draw no conclusion from these times:

- another fault is in force (a cut, a slow link, a wrong clock, a bad disk), or a fault failed or has no evidence;
- only one client waits, or the clients request nothing for a second.

Systems claim bounds for simulated runs only, because the delay that a busy machine adds to real nodes is unknown. They
do not claim the bounds about serving where each client stays with one node. They do not claim those with nodes down
where nodes are spare or in several groups. `icestorm`, `qpid` and `fiorano` claim the latter only if the role of a
remaining node allowed it to serve at that time: after a start of all nodes each waits for all others, and a backup that
is not ready cannot take over. A pair is idle when no fault has been in force for a second.

Bounds of work limit the frames (one hand-over of a program to its kernel) and bytes that the machines of a simulated
run send each other (`work` in `run.json`, next to `work_bounds`; judged by the check `work`). They are proportional to
the traffic from clients, to the number of other machines that may need it, to time, and to faults:

(machines - 1) x
((`each` + `again` x faults) x traffic from clients + machines x (`times` x seconds + `fixed` x (1 + faults)))

Their numbers are the maximum of 50 seeds of each design's default campaign, plus at least half of it.
"""


def bounds_page() -> str:
    """Return the page of the times within which systems serve again and have stable roles."""
    lines = [_OF_BOUNDS.rstrip()]
    for system in (SYSTEMS.load(name) for name in SYSTEMS.names()):
        if not system.bounds:
            continue
        lines += ["", f"## {system.name}", "", "| bound | at most | source | claimed |", "| --- | --- | --- | --- |"]
        for each in system.bounds:
            lines.append(f"| `{each.name}` | {each.formula} | {each.source} | {_where(each)} |")
        for work in system.work:
            lines.append(f"| `{work.name}` | {work.formula} | {work.source} | {_where(work)} |")
    return "\n".join(lines) + "\n"


def _where(rule: Invariant | Bound | WorkBound) -> str:
    """Return the tests for which a rule is claimed."""
    where = [f"with {name}={' or '.join(map(str, values))}" for name, values in (rule.where or {}).items()]
    not_under = (*rule.unless, *rule.excuses)
    where += [f"not under {' or '.join(not_under)}"] if not_under else []
    return ", ".join(where) or "always"


_OF_EXCEPTIONS = """# Exceptions from rules

Made by `make docs` from the declarations of the systems.

Each line is a fault under which a rule is not claimed, with the reason, and what still judges such runs. A rule without
a line is claimed under all faults. Where a disk loses or damages *synced* data, a rule that is claimed forgets only
what that node can't be asked for any longer (`Watcher.disk_lost`).
"""


def exceptions_page() -> str:
    """Return the page of the faults under which rules are not claimed."""
    lines = [_OF_EXCEPTIONS.rstrip()]
    for system in (SYSTEMS.load(name) for name in SYSTEMS.names()):
        rules: list[Invariant | Bound | WorkBound] = [*system.invariants, *system.deadlines, *system.bounds,
                                                      *system.work]
        found = [f"| `{each.name}` | {fault} | {why} |" for each in rules
                 for fault, why in (*((fault, "no reason is given") for fault in each.unless), *each.excuses.items())]
        if found:
            lines += ["", f"## {system.name}", "", "| rule | fault | reason, and what still judges |",
                      "| --- | --- | --- |", *dict.fromkeys(found)]
    return "\n".join(lines) + "\n"


_OF_POINTS = """# Fault points

Made by `make docs` from the declarations of the designs (`nodes/reference/points.py`). `stormproof list points` prints
them, too.

A point is a named place in a broker's code where a fault does harm: an entry is appended and not committed, written and
not answered, promised and not announced. The broker calls `runtime.point(NAME)` there, which does nothing on real
nodes. In simulation the nemesis `points` injects a fault exactly there ([nemeses.md](../nemeses.md#points)).
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
    EXCEPTIONS.write_text(exceptions_page(), encoding="utf-8")
    REPRODUCTIONS.write_text(reproductions_page(recipes(), read_seen(SEEN_FILE)), encoding="utf-8")
    DRAWN_SETTINGS.write_text(drawn_settings_page(), encoding="utf-8")
    FEATURE_COVERAGE.write_text(coverage_page(), encoding="utf-8")
