"""The names that can be used on the command line, as data: for ``stormproof list`` and the generated documentation."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from checkers.catalog import CHECKS
from harness.backends.catalog import BACKENDS
from harness.run.settings import SETTLE_TIMEOUT
from harness.run.system_calls import START_TIMEOUT
from nemesis.catalog import FAULTS
from nemesis.families import honoured_kinds, needs_of
from nemesis.schedule import SCHEDULE_OPTIONS
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.option import Option
from stormproof.contracts.system import KnownBug
from stormproof.errors import UsageError
from stormproof.registry import Registry
from workloads.catalog import ALIASES as WORKLOAD_ALIASES
from workloads.catalog import WORKLOADS

KINDS = ("systems", "workloads", "nemeses", "backends", "tests", "checks", "bugs", "states", "points")
LONG_KINDS = ("bugs", "states", "points")
"""Kinds with so many entries that an overview gives their number alone."""
_ALIASES = {"designs": "systems", "faults": "nemeses", **WORKLOAD_ALIASES}


def listing(what: str) -> dict[str, list[dict[str, Any]]]:
    """Return title -> entries (name, summary, options) of one kind, of all kinds, or of the entry with this name.

    Raises:
        UsageError: there is no such kind, and no entry of that name.
    """
    what = _ALIASES.get(what, what)
    if what in (*KINDS, "all"):
        return {kind: _entries(kind) for kind in KINDS if what in (kind, "all")}
    named = {kind: [entry for entry in _entries(kind) if entry["name"] == what] for kind in KINDS}
    found = {kind: entries for kind, entries in named.items() if entries}
    if not found:
        known = [*KINDS, *(str(entry["name"]) for kind in KINDS for entry in _entries(kind))]
        near = difflib.get_close_matches(what, dict.fromkeys(known), n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise UsageError(f"list {what}: there are {', '.join(KINDS)}, all, and what these list{hint}")
    return found


def fault_matrix() -> list[tuple[str, str, str]]:
    """Return rows (family, backend, how). The family is ``family:kind`` if the backend can inject only some kinds.
    Faults that a backend can't inject are left out."""
    rows = []
    for family in FAULTS:
        fault = FAULTS.load(family.name)
        for backend in BACKENDS:
            abilities = BACKENDS.load(backend.name).abilities
            for name, kind in _honoured(family.name, fault.kinds, honoured_kinds(abilities, fault)):
                rows.append((name, backend.name, _how(needs_of(fault, kind), kind, abilities)))
    return rows


def _honoured(family: str, kinds: tuple[str, ...], honoured: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return (name in the matrix, a kind) for the honoured kinds: one row if all are honoured, else a row for each."""
    if not honoured:
        return []
    return [(family, kinds[0])] if honoured == kinds else [(f"{family}:{kind}", kind) for kind in honoured]


def _how(needs: Iterable[str], kind: str, abilities: Mapping[str, str]) -> str:
    how = [abilities.get(need) or abilities[f"{need}:{kind}"] for need in needs]
    return "; ".join(how) or "a command of the system's own administrators"


def known_bugs() -> dict[str, KnownBug]:
    """Return the bugs of all systems that can be switched on, each once."""
    return {bug.name: bug for system in SYSTEMS for bug in SYSTEMS.load(system.name).bugs}


def fault_points() -> dict[str, str]:
    """Return the named points of all systems at which the nemesis `points` can strike, each once, with its meaning."""
    return {name: what for system in SYSTEMS for name, what in SYSTEMS.load(system.name).fault_points.items()}


def _entries(kind: str) -> list[dict[str, Any]]:
    match kind:
        case "systems":
            return _registered(SYSTEMS, lambda name: SYSTEMS.load(name).options)
        case "workloads":
            return _registered(WORKLOADS, lambda name: WORKLOADS.load(name).options)
        case "nemeses":
            return _registered(FAULTS, lambda name: FAULTS.load(name).options)
        case "backends":
            return _registered(BACKENDS, lambda name: BACKENDS.load(name).options)
        case "tests":
            return [_entry("every test", "settings of any test", (SETTLE_TIMEOUT, START_TIMEOUT)),
                    _entry("every test with faults", "times and durations of faults", SCHEDULE_OPTIONS)]
        case "checks":
            return _registered(CHECKS, lambda name: ())
        case "bugs":
            return [_entry(bug.name, bug.summary, command=bug.command) for bug in known_bugs().values()]
        case "points":
            return [_entry(name, summary) for name, summary in fault_points().items()]
        case _:
            states = {system.name: SYSTEMS.load(system.name).states for system in SYSTEMS}
            return [_entry(f"{system}: {name}", summary) for system, known in states.items()
                    for name, summary in known.items()]  # fmt: skip


def _registered(registry: Registry[Any], options: Any) -> list[dict[str, Any]]:
    return [_entry(entry.name, entry.summary, options(entry.name)) for entry in registry]


def _entry(name: str, summary: str, options: Iterable[Option] = (), command: str = "") -> dict[str, Any]:
    told = [
        {"name": option.name, "default": option.default, "choices": list(option.choices), "help": option.help}
        for option in options
    ]
    return {"name": name, "summary": summary, "options": told} | ({"command": command} if command else {})
