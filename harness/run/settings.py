"""Conversion of user input to a ``Test``: look up names, convert options, fill in defaults."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from harness.backends.catalog import BACKENDS
from harness.cli.config_file import BOOLEAN, INTEGER, NUMBER, STRING, near
from harness.run import plugins
from harness.run.deployment import demand_places, lacks_places
from harness.run.system_calls import START_TIMEOUT
from nemesis.catalog import FAULTS
from nemesis.explicit_schedule import with_canonical_kinds
from nemesis.families import families_of, split_aims, supported_families
from nemesis.partition import CLIENTS, CLIENTS_OUTSIDE
from nemesis.schedule import SCHEDULE_OPTIONS, schedule
from nodes.systems.any_broker.system import PREFIX
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
"""The number of seeds. A seed must fit into an integer column of tables."""
NO_FAULTS = "none"


SETTLE_TIMEOUT = Option(
    "settle_timeout", 60.0,
    "seconds for the healed cluster to become healthy, and then for its clients to settle the confirmed operations")
"""An option of every test."""


def parse_assignments(texts: Iterable[str]) -> dict[str, str]:
    """Return ``name=value`` settings as a mapping.

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
    """Return all options that ``--set`` takes for this combination, each name once.

    Raises:
        UsageError: two places declare different options of one name.
    """
    names = list(nemesis)
    families = [FAULTS.load(name)() for name in names]
    places = [
        (f"the system {plugins.typed(plugins.SYSTEM, system)}", SYSTEMS.load(system).options),
        (f"the workload {plugins.typed(plugins.WORKLOAD, workload)}",
         _by_system(system, WORKLOADS.load(workload).options)),
        ("every test", _by_system(system, (SETTLE_TIMEOUT, START_TIMEOUT))),
        *((f"the nemesis {plugins.typed(plugins.NEMESIS, name)}", family.options)
          for name, family in zip(names, families, strict=True)),
        ("every test with faults", SCHEDULE_OPTIONS if families else ()),
        (f"the backend {backend}", BACKENDS.load(backend).options),
    ]  # fmt: skip
    found: dict[str, tuple[str, Option]] = {}
    for place, options in places:
        for option in options:
            first, same = found.setdefault(option.name, (place, option))
            if same != option or type(same.default) is not type(option.default):
                both = f"twice by {place}" if first == place else f"by {first} and by {place}"
                raise UsageError(f"the option {option.name} is declared {both}, with different meanings: rename one")
    return [option for _, option in found.values()]


def _by_system(system: str, options: Iterable[Option]) -> list[Option]:
    """Return options with the system's defaults for them."""
    defaults = SYSTEMS.load(system).defaults
    return [replace(option, default=defaults.get(option.name, option.default)) for option in options]


def with_new_names(system: str, workload: str, nemesis: str, backend: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a person's settings under the new names of renamed options (``Option.was``).

    For one release, an old name also sets the renamed option, and a line on standard error reports it. If both names
    are given, they must agree. But if another option has taken the old name, each name sets its own option.

    Raises:
        UsageError: two options of one name are declared, or the old and the new name of one option differ.
    """
    declared = declared_options(system, workload, parse_nemesis(split_aims(nemesis)[0]), backend)
    kept, found = {option.name: option for option in declared}, dict(given)
    for option in declared:
        if not option.was or option.was not in given:
            continue
        old, value = kept.get(option.was), given[option.was]
        if old is None:
            found.pop(option.was, None)
            if found.setdefault(option.name, value) != value:
                raise UsageError(f"--set {option.was} is --set {option.name} now; give one of them")
            _tell_once(f"--set {option.was} is --set {option.name} now")
        elif option.name not in given and _fits(option, value):
            found[option.name] = value
            if _fits(old, value):
                _tell_once(f"--set {option.was}={value} also sets {option.name} in this release, and will not in the "
                           f"next; give both to set them apart")  # fmt: skip
            else:
                del found[option.was]
                _tell_once(f"--set {option.was} is --set {option.name} now")
    return found


def repeated(system: str, workload: str, nemesis: Iterable[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a command that repeats a test. Renamed options are added, so that no old name sets one of
    them."""
    declared = declared_options(system, workload, nemesis)
    return {**{option.name: option.default for option in declared if option.was in settings}, **settings}


@functools.cache
def _tell_once(line: str) -> None:
    print(f"stormproof: {line}", file=sys.stderr)


def _fits(option: Option, value: Any) -> bool:
    try:
        _convert(option, value)
    except UsageError:
        return False
    return True


def parse_nemesis(text: str) -> tuple[str, ...]:
    """Return the families of faults that a text names, joined by commas.

    Raises:
        UsageError: one is unknown or named twice.
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
    """Return the named families, and the settings extended by the families' targets (``pause:leader``).

    Raises:
        UsageError: a setting gives a different target.
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
    """Return the test that these settings describe, validated as a whole.

    Raises:
        UsageError: a name, a number or a combination is invalid.
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
    if lacks_places(test, BACKENDS.load(backend)) and CLIENTS.name in options and CLIENTS.name not in settings:
        _tell_once(f"--set {CLIENTS.name}={CLIENTS_OUTSIDE}: clients of {system} can't bind to an address, and "
                   f"--backend {backend} has no separate networks for them; partitions leave them connected")
        test = replace(test, options={**options, CLIENTS.name: CLIENTS_OUTSIDE})
    for family in families_of(test):
        family.check(test, tested)
    tested.check(test, demands)
    demand_places(test, BACKENDS.load(backend))
    topology = tested.topology(test, demands)
    families_here = supported_families(BACKENDS.load(backend), test, topology, tested)
    if not BACKENDS.load(backend).in_process and (why := BACKENDS.load(backend).cannot(test, topology)):
        raise UsageError(why)
    schedule(test, families_here)  # refuses times that leave no room for the faults
    return replace(test, options=with_canonical_kinds(test, families_here))


def _check_fits(system: System, work: type[Workload]) -> None:
    """Raise UsageError when a system lacks something that a workload needs; the message names systems that have it."""
    missing = [need for need in work.needs if need not in system.provides]
    if missing:
        fitting = [entry.name for entry in SYSTEMS if set(work.needs) <= SYSTEMS.load(entry.name).provides]
        name, option = system.name, "--system"
        if name.startswith(PREFIX):  # of a Compose file, or attached: the user named a client
            name, option = f"--client {name.removeprefix(PREFIX)}", "--client"
            fitting = [each.removeprefix(PREFIX) for each in fitting if each.startswith(PREFIX)]
        raise UsageError(f"--workload {work.name} needs {' and '.join(missing)}, which {name} does not provide; "
                         f"choose {f'{option} ' + ' or '.join(fitting) if fitting else 'another workload'}")


def convert_options(declared: Iterable[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of every declared option: the given value, in the type of the default, or the default.

    Raises:
        UsageError: a name is not declared, or a value is not of its option's type or choices.
    """
    known = {option.name: option for option in declared}
    for name in given:
        if name not in known:
            raise UsageError(f"--set {name}=...: no such option{near(name, known)} (known: {', '.join(known)})")
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
    if kind in (int, float):
        least = f"{option.least:g}" if option.default >= option.least else "-1e9"
        if not float(least) <= converted < 1e9:  # larger numbers are mistakes, and do not fit into nodes' integers
            raise UsageError(f"--set {option.name}={value}: must be between {least} and 1e9 ({option.help})")
    return converted
