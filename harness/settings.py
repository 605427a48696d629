"""From what a user typed to a ``Test``: names looked up, options converted, defaults filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness.backends.catalog import BACKENDS
from harness.config_file import BOOLEAN, INTEGER, NUMBER, STRING, near
from nemesis.catalog import FAULTS
from nemesis.families import families_of, split_aims, supported_families
from nemesis.schedule import options_of, schedule
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.backend import Attached
from stormproof.contracts.option import Option
from stormproof.contracts.system import System
from stormproof.contracts.workload import Workload
from stormproof.errors import UsageError
from stormproof.test import Test
from workloads.catalog import ALIASES as WORKLOAD_ALIASES
from workloads.catalog import WORKLOADS

SEEDS = 1 << 63
"""How many there are: a seed is a column of tables."""
NO_FAULTS = "none"


SETTLE_TIMEOUT = Option(
    "settle_timeout", 60.0,
    "seconds that the healed cluster has to become healthy, and then its clients to settle what was confirmed to them")
"""An option of every test."""


def parse_assignments(texts: Iterable[str]) -> dict[str, str]:
    """``name=value`` settings as a mapping.

    Raises:
        UsageError: one has no equals sign.
    """
    given = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--set {text}: write it as name=value")
        given[name.strip().replace("-", "_")] = value.strip()
    return given


def declared_options(system: str, workload: str, nemesis: Iterable[str], backend: str = "sim") -> list[Option]:
    """All options that ``--set`` takes for this combination, each name once."""
    families = [FAULTS.load(name)() for name in nemesis]
    declared = (*SYSTEMS.load(system).options, *WORKLOADS.load(workload).options, SETTLE_TIMEOUT, *options_of(families),
                *BACKENDS.load(backend).options)  # fmt: skip
    return list({option.name: option for option in reversed(declared)}.values())[::-1]


def parse_nemesis(text: str) -> tuple[str, ...]:
    """The families of faults that a text names, joined by commas.

    Raises:
        UsageError: one is not known or named twice.
    """
    families = () if text.strip() == NO_FAULTS else tuple(name.strip() for name in text.split(","))
    if not all(families) or NO_FAULTS in families:
        raise UsageError(f"--nemesis {text}: families joined by commas, or {NO_FAULTS}")
    if len(set(families)) != len(families):
        raise UsageError(f"--nemesis {text}: a family is named twice")
    for name in families:
        FAULTS.entry(name)
    return families


def with_aims(nemesis: str, settings: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The families that a person named, and the settings with what they are aimed at (``pause:leader``).

    Raises:
        UsageError: that is given by a setting, too.
    """
    families, aims = split_aims(nemesis)
    for name, value in aims.items():
        if settings.get(name, value) != value:
            raise UsageError(f"--nemesis {nemesis} and --set {name}={settings[name]} say different things")
    return families, {**settings, **aims}


def make_test(
    *,
    system: str,
    workload: str,
    nemesis: str,
    backend: str,
    nodes: int | None,
    time_limit: float,
    rate: float,
    seed: int,
    settings: Mapping[str, Any],
) -> Test:
    """The test that these settings describe, checked as a whole.

    Raises:
        UsageError: a name, a number or a combination makes no sense.
    """
    workload = WORKLOAD_ALIASES.get(workload, workload)
    nemesis, settings = with_aims(nemesis, settings)
    families = parse_nemesis(nemesis)
    tested, work = SYSTEMS.load(system), WORKLOADS.load(workload)
    _check_fits(tested, work)
    if BACKENDS.load(backend).in_process and not tested.simulated:
        raise UsageError(f"--backend {backend}: {system} has no programs that can be simulated; choose another")
    if issubclass(BACKENDS.load(backend), Attached) and (why := getattr(tested, "no_attaching", "")):
        raise UsageError(f"{system} can't be attached to: {why}")
    if not 0 <= seed < SEEDS:
        raise UsageError(f"--seed {seed}: at least 0 and below 2**63")
    if not 1 <= time_limit <= 86400:
        raise UsageError(f"--time-limit {time_limit:g}: between 1 and 86400 seconds")
    if not 0 < rate <= 1e6:
        raise UsageError(f"--rate {rate:g}: more than 0 and at most 1000000 operations a second")
    options = convert_options(declared_options(system, workload, families, backend), settings)
    BACKENDS.load(backend).check_settings(options)
    if BACKENDS.load(backend).in_process and (asked := tested.only_real(options)):
        raise UsageError(f"--backend {backend}: {asked} asks for programs that can't be simulated; choose another")
    concurrency, demands = work.concurrency(options), work.demands(options)
    test = Test(
        system=system,
        workload=workload,
        nemesis=families,
        backend=backend,
        nodes=tested.node_count(nodes, demands, options),
        seed=seed,
        time_limit=float(time_limit),
        rate=float(rate),
        concurrency=concurrency,
        options=options,
    )
    for family in families_of(test):
        family.check(test, tested)
    tested.check(test, demands)
    families_here = supported_families(BACKENDS.load(backend), test, tested.topology(test, demands))
    schedule(test, families_here)  # refuses times that leave no room for the faults
    return test


def _check_fits(system: System, work: type[Workload]) -> None:
    """Raises UsageError when a system lacks what a workload needs; names those that have it."""
    missing = [need for need in work.needs if need not in system.provides]
    if missing:
        fitting = [entry.name for entry in SYSTEMS if set(work.needs) <= SYSTEMS.load(entry.name).provides]
        raise UsageError(
            f"--workload {work.name} needs {' and '.join(missing)}, which {system.name} does not provide; "
            f"choose --system {' or '.join(fitting)}"
        )


def convert_options(declared: Iterable[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Every declared option's value: the one given, in the type of the default, or the default.

    Raises:
        UsageError: a name is not declared, or a value is not of its option's type or choices.
    """
    known = {option.name: option for option in declared}
    for name in given:
        if name not in known:
            raise UsageError(f"--set {name}=...: no such option{near(name, known)} (there are: {', '.join(known)})")
    return {name: _convert(option, given.get(name, option.default)) for name, option in known.items()}


def _convert(option: Option, value: Any) -> Any:
    kind = type(option.default)
    try:
        if kind is bool:
            converted: Any = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                str(value).lower()
            ]
        elif kind is int:
            converted = int(value if isinstance(value, int) and not isinstance(value, bool) else str(value))
        else:
            converted = kind(value)
    except (ValueError, KeyError, TypeError):
        wanted = {bool: BOOLEAN, int: INTEGER, float: NUMBER}.get(kind, STRING)
        raise UsageError(f"--set {option.name}={value}: not {wanted} ({option.help})") from None
    if option.choices and not option.extensible and converted not in option.choices:
        raise UsageError(f"--set {option.name}={value}: one of {', '.join(option.choices)} ({option.help})")
    if kind in (int, float) and not option.least <= converted < 1e9:
        raise UsageError(f"--set {option.name}={value}: must be between {option.least:g} and 1e9 ({option.help})")
    return converted
