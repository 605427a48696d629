"""What can be named on the command line, as data: for ``stormproof list`` and the generated documentation."""

from __future__ import annotations

from typing import Any

from checkers.catalog import CHECKS
from harness.coverage import states_of
from harness.errors import UsageError
from harness.registry import BACKENDS, DESIGNS, NEMESES, WORKLOADS, Registry
from nodes.reference.bugs import BUGS

REGISTRIES = {"designs": DESIGNS, "workloads": WORKLOADS, "nemeses": NEMESES, "backends": BACKENDS}


def listing(kind: str) -> dict[str, list[dict[str, Any]]]:
    """Title -> entries (name, summary, options) of one kind, or of all.

    Raises:
        UsageError: there is no such kind.
    """
    kinds = [*REGISTRIES, "checks", "bugs", "states"]
    if kind not in (*kinds, "all"):
        raise UsageError(f"list {kind}: there are {', '.join(kinds)} and all")
    return {name: _entries(name) for name in kinds if kind in (name, "all")}


def fault_matrix() -> list[tuple[str, str, str]]:
    """(family, backend, how): the family is ``family:kind`` where a backend can inject some kinds only; what it can't
    inject at all is left out."""
    rows = []
    for family in NEMESES:
        for backend in BACKENDS:
            for fault, how in backend.load().faults.items():
                if fault.partition(":")[0] == family.name:
                    rows.append((fault, backend.name, how))
    return rows


def _entries(kind: str) -> list[dict[str, Any]]:
    if kind == "bugs":
        return [{"name": bug.name, "summary": f"{bug.summary} [{bug.test}]", "options": []} for bug in BUGS.values()]
    if kind == "checks":
        return [{"name": check.name, "summary": check.summary, "options": []} for check in CHECKS]
    if kind == "states":
        return [
            {"name": f"{design.name}: {state.name}", "summary": state.summary, "options": []}
            for design in DESIGNS for state in states_of(design.name)
        ]  # fmt: skip
    return [
        {"name": entry.name, "summary": entry.summary, "options": _options(REGISTRIES[kind], entry.name)}
        for entry in REGISTRIES[kind]
    ]


def _options(registry: Registry, name: str) -> list[dict[str, Any]]:
    owner = registry.load(name)
    return [
        {"name": option.name, "default": option.default, "choices": list(option.choices), "help": option.help}
        for option in getattr(owner, "options", ())
    ]
