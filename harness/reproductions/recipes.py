"""The available reproductions: ``reproductions.toml`` in the folder of each system that has one.

A reproduction is one test under two settings. The *arm* must fail: its history must violate a guarantee in
``expected``. The *twin* must pass under the same schedule. Further arms are settings that people believe to be safe.
Each of them declares its own expectation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.cli.config_file import INTEGER, NUMBER, STRING, TABLE, Key, check_keys, near, read_toml
from harness.run import plugins
from harness.run.cases import Case
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.check import INVALID, VALID
from stormproof.errors import UsageError

FILE = "reproductions.toml"
SYSTEMS_FOLDER = Path(__file__).parents[2] / "nodes" / "systems"
FAILS, TWIN = "fails", "twin"
_TABLES = {FAILS, TWIN, "arm"}
_TEXTS = ("name", "title", "source", "claim", "fault")
_KEYS = {
    **{name: Key(STRING) for name in _TEXTS}, "expected": Key(STRING, several=True), "workload": Key(STRING),
    "nemesis": Key(STRING), "nodes": Key(INTEGER), "time-limit": Key(NUMBER), "rate": Key(NUMBER),
    "seed": Key(INTEGER), "set": Key(TABLE), "prefix": Key(STRING),
}  # fmt: skip
_ARM_KEYS = {"name": Key(STRING), "title": Key(STRING), "system": Key(STRING), "set": Key(TABLE),
             "nodes": Key(INTEGER), "rate": Key(NUMBER), "expected": Key(STRING, several=True)}  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """One setting of a reproduction, of its system or of another one. ``expected`` are guarantees, at least one of
    which must be violated; if empty, the run must be valid."""

    name: str
    title: str
    system: str
    expected: tuple[str, ...]
    nodes: int | None
    rate: float
    settings: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """The expected verdict."""
        return INVALID if self.expected else VALID


@dataclass(frozen=True)
class Recipe:
    """One reproduction. ``source`` is the publication of the misbehaviour, ``claim`` its statement, ``fault`` the fault
    in words. ``arms`` are the failing one, its twin, and others, in this order."""

    name: str
    title: str
    system: str
    source: str
    claim: str
    fault: str
    workload: str
    nemesis: str
    time_limit: float
    seed: int
    arms: Sequence[Arm] = field(default=())

    def case(self, arm: Arm, backend: str) -> Case:
        """Return the tests of an arm. Repetitions have the seeds that follow ``seed``."""
        return Case(arm.system, self.workload, self.nemesis, arm.nodes, self.time_limit, arm.rate, arm.settings,
                    backend)


def recipes(folder: Path = SYSTEMS_FOLDER) -> list[Recipe]:
    """Return all reproductions, ordered by the names of their systems.

    Raises:
        UsageError: a file has invalid content; the message says where.
    """
    return [recipe for path in sorted(folder.glob(f"*/{FILE}")) for recipe in read_recipes(path)]


def find_recipe(name: str, known: Sequence[Recipe]) -> Recipe:
    """Return the reproduction of that name, in any capitalisation; raises UsageError when none has it."""
    for recipe in known:
        if recipe.name.lower() == name.lower():
            return recipe
    names = [recipe.name for recipe in known]
    raise UsageError(f"unknown reproduction {name!r}{near(name, names)} (known: {', '.join(names)})")


def recipes_of(system: str) -> list[Recipe]:
    """Return the reproductions of a system of the user's own: those in the file that its attribute ``reproductions``
    names, by default ``reproductions.toml``, beside the system's file.

    Raises:
        UsageError: the file is missing, or has invalid content.
    """
    folder = plugins.folder_of(plugins.SYSTEM, system)
    assert folder is not None, "a plug-in"
    path = folder / str(getattr(SYSTEMS.load(system), "reproductions", FILE))
    if not path.is_file():
        raise UsageError(f"{system}: no file {path}; write its reproductions there, or name the file by the class's "
                         "attribute `reproductions`")
    return list(read_recipes(path, system))


def read_recipes(path: Path, owner: str = "") -> Iterator[Recipe]:
    """Yield the reproductions in one file, all of ``owner``, by default the system of the file's folder; raises
    UsageError."""
    data = read_toml(path)
    entries = data.pop("reproduction", None)
    if data or not isinstance(entries, list) or not entries:
        raise UsageError(f"{path}: write any number of [[reproduction]], and nothing else")
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise UsageError(f"{path}: write any number of [[reproduction]], and nothing else")
        yield _recipe(entry, owner or path.parent.name.replace("_", "-"),
                      f"{path}: reproduction {entry.get('name', number)}")  # fmt: skip


def _recipe(entry: dict[str, Any], system: str, where: str) -> Recipe:
    """Return a reproduction from its entry. ``prefix`` replaces the system's name at the beginning of its name."""
    tables = {name: entry.pop(name) for name in _TABLES & entry.keys()}
    given = check_keys(entry, _KEYS, where)
    missing = [name for name in (*_TEXTS, "expected", "workload", "nemesis") if name not in given]
    missing += [name for name in (FAILS, TWIN) if name not in tables]
    if missing:
        raise UsageError(f"{where}: there is no {missing[0]}")
    arms = [_arm(tables[FAILS], FAILS, system, given, where),
            _arm({"expected": [], **tables[TWIN]}, TWIN, system, given, where)]  # fmt: skip
    arms += [_arm(each, each.get("name", "?"), system, given, where) for each in tables.get("arm", ())]
    return Recipe(
        f"{given.get('prefix', system)}-{given['name']}", given["title"], system, given["source"], given["claim"],
        given["fault"], given["workload"], given["nemesis"], float(given.get("time-limit", 30.0)),
        int(given.get("seed", 1)), tuple(arms),
    )  # fmt: skip


def _arm(table: dict[str, Any], name: str, system: str, given: Mapping[str, Any], where: str) -> Arm:
    table = check_keys(table, _ARM_KEYS, f"{where}, {name}")
    expected = table.get("expected", given["expected"])
    return Arm(
        name, table.get("title", ""), table.get("system", system),
        tuple([expected] if isinstance(expected, str) else expected),
        table.get("nodes", given.get("nodes")), float(table.get("rate", given.get("rate", 17.0))),
        {**given.get("set", {}), **table.get("set", {})},
    )  # fmt: skip
