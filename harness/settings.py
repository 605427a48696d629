"""From what a user typed to a ``Test``: names looked up, options converted, defaults filled in."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.protocols import Option
from harness.registry import BACKENDS, DESIGNS, NEMESES, WORKLOADS
from harness.spec import Test
from nemesis.api import families_of
from nemesis.schedule import options_of, schedule
from nodes.reference.api import ConfigError
from nodes.reference.bugs import BUGS, switched_on
from nodes.systems.reference import ha_servers, local_servers

DEFAULT_NODES = 3
SEEDS = 1 << 63
"""How many there are: a seed is a column of tables."""
NO_FAULTS = "none"

# Keys of a configuration file, which are the long options of `stormproof test`, with the types they take.
CONFIG_KEYS: Mapping[str, tuple[type, ...]] = {
    "design": (str,),
    "workload": (str,),
    "nemesis": (str, list),
    "backend": (str,),
    "ssh-config": (str,),
    "hosts": (str,),
    "nodes": (int,),
    "time-limit": (int, float),
    "rate": (int, float),
    "seed": (int,),
    "store": (str,),
    "set": (dict,),
}


def read_config(path: Path) -> dict[str, Any]:
    """The settings of a TOML file.

    Raises:
        UsageError: the file is missing or not TOML, a key is unknown, or a value has the wrong type.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give --config an existing TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    for key, value in data.items():
        if key not in CONFIG_KEYS:
            raise UsageError(f"{path}: unknown key {key!r}{_near(key, CONFIG_KEYS)}")
        if not isinstance(value, CONFIG_KEYS[key]) or isinstance(value, bool):
            names = " or ".join(kind.__name__ for kind in CONFIG_KEYS[key])
            raise UsageError(f"{path}: {key} must be {names}, not {value!r}")
    if isinstance(data.get("nemesis"), list):
        data["nemesis"] = ",".join(map(str, data["nemesis"])) or NO_FAULTS
    return data


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


def declared_options(design: str, workload: str, nemesis: Iterable[str], backend: str = "sim") -> list[Option]:
    """All options that ``--set`` takes for this combination, each name once."""
    families = [NEMESES.load(name)() for name in nemesis]
    of_backend = getattr(BACKENDS.load(backend), "options", ())
    declared = (*DESIGNS.load(design).options, *WORKLOADS.load(workload).options, *options_of(families), *of_backend)
    return list({option.name: option for option in reversed(declared)}.values())[::-1]


def make_test(
    *,
    design: str,
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
    families = () if nemesis.strip() == NO_FAULTS else tuple(name.strip() for name in nemesis.split(","))
    if not all(families) or NO_FAULTS in families:
        raise UsageError(f"--nemesis {nemesis}: families joined by commas, or {NO_FAULTS}")
    if len(set(families)) != len(families):
        raise UsageError(f"--nemesis {nemesis}: a family is named twice")
    work = WORKLOADS.load(workload)
    _check_fits(DESIGNS.load(design), work)
    for name in families:
        NEMESES.entry(name)
    if not 0 <= seed < SEEDS:
        raise UsageError(f"--seed {seed}: at least 0 and below 2**63")
    if not 1 <= time_limit <= 86400:
        raise UsageError(f"--time-limit {time_limit:g}: between 1 and 86400 seconds")
    if not 0 < rate <= 1e6:
        raise UsageError(f"--rate {rate:g}: more than 0 and at most 1000000 operations a second")
    options = convert_options(declared_options(design, workload, families, backend), settings)
    nodes = _nodes(design, nodes, options)
    _check_spares(design, nodes, options, families)
    test = Test(
        design=design,
        workload=workload,
        nemesis=families,
        backend=backend,
        nodes=nodes,
        seed=seed,
        time_limit=float(time_limit),
        rate=float(rate),
        concurrency=work.concurrency(options),
        options=options,
    )
    _check_bugs(design, options)
    DESIGNS.load(design).check(test)
    schedule(test, families_of(test))  # refuses times that leave no room for the faults
    return test


def _nodes(design: str, nodes: int | None, options: Mapping[str, Any]) -> int:
    """How many nodes all servers of the test have; some workloads have servers of their own besides the design's."""
    system, local, servers = DESIGNS.load(design), local_servers(options), ha_servers(options)
    if servers < 1:
        raise UsageError("--set ha_servers: at least 1")
    if nodes is None:
        return int(min(DEFAULT_NODES, system.max_nodes) * servers + local)
    replicas, rest = divmod(nodes - local, servers)
    least, most = system.min_nodes, system.max_nodes
    if rest or not least <= replicas <= most:
        takes = f"{least if least == most else f'{least} to {most}'}"
        takes += f" for each of {servers} servers" if servers > 1 else ""
        takes += f" and {local} local servers" if local else ""
        raise UsageError(f"--nodes {nodes}: design {design} takes {takes}")
    return nodes


def _check_spares(design: str, nodes: int, options: Mapping[str, Any], families: Sequence[str]) -> None:
    """Whether there are nodes to add to the group, and a group that they can be added to."""
    spares, servers = int(options.get("spares", 0)), ha_servers(options)
    replicas, least = (nodes - local_servers(options)) // servers, DESIGNS.load(design).min_nodes
    if replicas - spares < least:
        raise UsageError(f"--set spares={spares}: of {replicas} nodes, {least} at least must be replicas from the "
                         "beginning; ask for more --nodes")
    if "membership" in families:
        if "spares" not in options:
            raise UsageError(f"--nemesis membership: design {design} takes no replicas while it runs")
        if not spares:
            raise UsageError("--nemesis membership adds spare nodes: keep some with --set spares=1 and more --nodes")
        if options.get("partitions") == "unspecified":
            raise UsageError("--nemesis membership: with partitions=unspecified, a group takes no more replicas")


def _check_fits(system: Any, work: Any) -> None:
    """Raises UsageError when a design lacks what a workload needs; names those that have it."""
    missing = [need for need in work.needs if need not in system.provides]
    if missing:
        fitting = [entry.name for entry in DESIGNS if set(work.needs) <= entry.load().provides]
        raise UsageError(
            f"--workload {work.name} needs {' and '.join(missing)}, which design {system.name} has not; "
            f"choose --design {' or '.join(fitting)}"
        )


def _check_bugs(design: str, options: Mapping[str, Any]) -> None:
    try:
        bugs = switched_on(options)
    except ConfigError as error:
        raise UsageError(f"--bug: {str(error).removeprefix('options.bug: ')}") from None
    for name in sorted(bugs):
        if design not in (having := BUGS[name].designs):
            raise UsageError(f"--bug {name}: design {design!r} does not have it, only {' and '.join(having)}")


def convert_options(declared: Iterable[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Every declared option's value: the one given, in the type of the default, or the default.

    Raises:
        UsageError: a name is not declared, or a value is not of its option's type or choices.
    """
    known = {option.name: option for option in declared}
    for name in given:
        if name not in known:
            raise UsageError(f"--set {name}=...: no such option{_near(name, known)} (there are: {', '.join(known)})")
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
        raise UsageError(f"--set {option.name}={value}: not a {kind.__name__} ({option.help})") from None
    if option.choices and converted not in option.choices:
        raise UsageError(f"--set {option.name}={value}: one of {', '.join(option.choices)} ({option.help})")
    if kind in (int, float) and not option.least <= converted < 1e9:
        raise UsageError(f"--set {option.name}={value}: must be between {option.least:g} and 1e9 ({option.help})")
    return converted


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
