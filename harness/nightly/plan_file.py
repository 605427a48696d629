"""The plan of a night: a TOML file of cases, each a matrix of systems, workloads and nemeses."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.cli.config_file import INTEGER, NUMBER, STRING, SYSTEM, TABLE, Key, check_keys, near, read_toml
from harness.cli.named_system import NamedSystem, system_of
from harness.reference.feature_coverage import with_all_features
from harness.reference.mutants import case_of, exercised
from harness.reproductions.recipes import find_recipe, recipes
from harness.run import plugins
from harness.run.cases import Case
from harness.run.settings import with_new_names
from stormproof.contracts.check import INVALID, VALID
from stormproof.errors import UsageError
from stormproof.text import seeds_of

DEFAULTS, CASE = "defaults", "case"
_RENAMED = {"design": "system", "workloads": "workload", "nemeses": "nemesis", "backends": "backend",
            "time_limit": "time-limit"}
_KEYS = {
    "system": Key(SYSTEM, several=True), "workload": Key(STRING, several=True), "nemesis": Key(STRING, several=True),
    "backend": Key(STRING, several=True), "nodes": Key(INTEGER), "time-limit": Key(NUMBER), "rate": Key(NUMBER),
    "seeds": Key(STRING), "expected": Key(STRING), "set": Key(TABLE), "bug": Key(STRING),
    "mutants": Key(STRING, several=True), "reproductions": Key(STRING, several=True),
}  # fmt: skip
_ALL = "all"
_FRESH = re.compile(r"fresh:(\d{1,6})")
_FRESH_SEEDS = 10**6
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
EXPECTED = (VALID, INVALID)


@dataclass(frozen=True)
class Cell(Case):
    """One combination of a night's case, with the expected verdict of its runs."""

    case: str = ""
    expected: str = VALID
    seeds: Sequence[int] = ()

    @classmethod
    def of_case(cls, case: Case, name: str, expected: str, seeds: Sequence[int]) -> Cell:
        """Return a cell of the night's case of this name."""
        return cls(**vars(case), case=name, expected=expected, seeds=seeds)

    @property
    def name(self) -> str:
        """The cell's name for people. It is unique within its night."""
        bug = f" with {self.settings['bug']}" if self.settings.get("bug") else ""
        return f"{self.case}: {self.system} {self.workload} {self.nemesis} on {self.backend}{bug}"


@dataclass(frozen=True)
class Plan:
    """A night's cells, and a line for each impossible combination. ``digest`` is that of the file and of the plug-ins
    in use."""

    path: Path
    digest: str
    cells: Sequence[Cell] = ()
    left_out: Sequence[str] = field(default=())


def read_plan(path: Path, salt: str) -> Plan:
    """Return the plan in a file.

    Fresh seeds are drawn from ``salt``, so the same salt gives the same seeds.

    Raises:
        UsageError: the file is missing, is not TOML, or has invalid content; the message says where.
    """
    data = read_toml(path)
    for name in data:
        if name not in (DEFAULTS, CASE):
            raise UsageError(f"{path}: unknown key {name!r} (known: [{DEFAULTS}], [[{CASE}]])")
    defaults, cases = data.get(DEFAULTS, {}), data.get(CASE, [])
    if not isinstance(defaults, dict) or not isinstance(cases, list) or not all(isinstance(c, dict) for c in cases):
        raise UsageError(f"{path}: write one [{DEFAULTS}] and any number of [[{CASE}]]")
    if not cases:
        raise UsageError(f"{path}: there is no [[{CASE}]]")
    defaults = _checked(defaults, f"{path}: {DEFAULTS}")
    cells: list[Cell] = []
    left_out: list[str] = []
    names: set[str] = set()
    for number, each in enumerate(cases, 1):
        name = each.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(f"{path}: {CASE} {number}: name: letters, digits, `-`, `_` and `.`, 80 at most")
        if name in names:
            raise UsageError(f"{path}: {CASE} {name}: there are two of that name")
        names.add(name)
        given = _checked({key: value for key, value in each.items() if key != "name"}, f"{path}: {CASE} {name}")
        made, out = _cells(name, _joined(defaults, given), f"{path}: {CASE} {name}", salt, path.parent)
        cells += made
        left_out += out
    content = b"".join([path.read_bytes(), *(digest.encode() for digest in plugins.digests())])
    return Plan(path, hashlib.sha256(content).hexdigest(), cells, left_out)


def _checked(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    return check_keys({_RENAMED.get(name, name): value for name, value in table.items()}, _KEYS, where)


def _joined(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    settings = {**defaults.get("set", {}), **given.get("set", {})}
    return {**defaults, **given, "set": settings}


def _cells(name: str, given: Mapping[str, Any], where: str, salt: str, folder: Path
           ) -> tuple[list[Cell], list[str]]:  # fmt: skip
    settings = dict(given["set"]) | ({"bug": given["bug"]} if "bug" in given else {})
    expected = given.get("expected", VALID)
    if expected not in EXPECTED:
        raise UsageError(f"{where}: expected: {expected!r} is none of {', '.join(EXPECTED)}")
    seeds = _seeds(str(given.get("seeds", "1")), where, f"{salt}/{name}")
    if "mutants" in given:
        # A bug that is switched on in the campaign that exercises it is a twin, which must fail.
        return [Cell.of_case(case_of(bug), name, INVALID, seeds) for bug in _bugs(given["mutants"], where)], []
    if "reproductions" in given:
        return _reproduced(name, given, where, seeds)
    systems, workloads, nemeses, backends = _named(given, where, folder)
    cells, left_out = _possible(
        Cell(system.name, workload, nemesis, given.get("nodes"), float(given.get("time-limit", 30.0)),
             float(given.get("rate", 17.0)), _with_all_features(workload, backend, {**system.settings, **settings},
                                                                expected), backend, name, expected, seeds)
        for system in systems for workload, nemesis, backend in itertools.product(
            workloads, nemeses, [system.backend] if system.backend else backends)
    )
    if not cells:
        raise UsageError(f"{where}: none of its combinations can be: {left_out[0]}")
    return cells, left_out


def _named(given: Mapping[str, Any], where: str, folder: Path
           ) -> tuple[list[NamedSystem], list[str], list[str], list[str]]:  # fmt: skip
    """Return a case's systems, workloads, nemeses and backends; paths of plug-ins start from the plan's folder."""
    try:
        systems = [system_of(each, folder) for each in _several(given.get("system", "joram"))]
        workloads = [plugins.resolve(plugins.WORKLOAD, each, folder) for each in
                     _several(given.get("workload", "queue"))]  # fmt: skip
        nemeses = [plugins.resolve_all(plugins.NEMESIS, each, folder) for each in
                   _several(given.get("nemesis", "partition"))]  # fmt: skip
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    workloads, nemeses, backends = (list(dict.fromkeys(each)) for each in (
        workloads, nemeses, _several(given.get("backend", "sim"))))
    return [each for number, each in enumerate(systems) if each not in systems[:number]], workloads, nemeses, backends


def _with_all_features(workload: str, backend: str, settings: dict[str, Any], expected: str) -> dict[str, Any]:
    """Return the settings of a cell. Those of twins stay as they were found."""
    valid = backend == "sim" and expected == VALID and "bug" not in settings
    return with_all_features(workload, settings) if valid else settings


def _possible(cells: Iterable[Cell]) -> tuple[list[Cell], list[str]]:
    """Return the cells whose tests can be, and a line for each other one."""
    found: list[Cell] = []
    left_out: list[str] = []
    for cell in cells:
        try:
            its = with_new_names(cell.system, cell.workload, cell.nemesis, cell.backend, cell.settings)
            cell = replace(cell, settings=its)
            cell.test(cell.seeds[0])
        except UsageError as error:
            left_out.append(f"{cell.name}: {error}")
        else:
            found.append(cell)
    return found, left_out


def _reproduced(name: str, given: Mapping[str, Any], where: str, seeds: Sequence[int]) -> tuple[list[Cell], list[str]]:
    """Return the failing arms of real systems' reproductions, and their twins."""
    known = recipes()
    backend = next(_several(given.get("backend", "docker")))
    try:
        chosen = known if given["reproductions"] == _ALL else [find_recipe(each, known)
                                                                 for each in _several(given["reproductions"])]
    except UsageError as error:
        raise UsageError(f"{where}: reproductions: {error}") from None
    return _possible(
        Cell.of_case(recipe.case(arm, backend), f"{name}-{recipe.name}-{arm.name}", arm.verdict, seeds)
        for recipe in chosen for arm in recipe.arms[:2]
    )


def _bugs(value: str | list[str], where: str) -> list[str]:
    bugs = exercised()
    names = [name for name, tested in bugs.items() if tested] if value == _ALL else list(_several(value))
    for name in names:
        if name not in bugs:
            raise UsageError(f"{where}: mutants: unknown bug {name!r}{near(name, bugs)} (`stormproof list bugs` "
                             f"names them, {_ALL!r} means all)")
        if not bugs[name]:
            raise UsageError(f"{where}: mutants: {name!r} has no test that exercises it; `stormproof mutants {name}` "
                             "hunts it by the default campaign")
    return names


def _several(value: Any) -> Iterator[Any]:
    yield from value if isinstance(value, list) else [value]


def _seeds(text: str, where: str, salt: str) -> list[int]:
    fresh = _FRESH.fullmatch(text.strip())
    if fresh is None:
        try:
            return seeds_of(text)
        except UsageError as error:
            raise UsageError(f"{where}: {error}, or `fresh:5`") from None
    if not int(fresh[1]):
        raise UsageError(f"{where}: seeds {text!r}: at least one")
    rng = random.Random(salt)
    return list(dict.fromkeys(rng.randrange(1, _FRESH_SEEDS) for _ in range(int(fresh[1]))))
