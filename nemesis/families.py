"""The fault families of a test: which it names, what of them its backend can inject, what their options say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemesis.catalog import FAULTS
from stormproof.contracts.backend import Backend
from stormproof.contracts.fault import Fault
from stormproof.contracts.option import Option
from stormproof.contracts.topology import Topology
from stormproof.errors import UsageError
from stormproof.test import Test

ANY_KIND = "any"
LEADER_OF = "leader-of-"
"""With the name of a queue behind it: the kind that hits the node that leads it."""

MAX_DOWN = Option(
    "max_down",
    0,
    "most nodes that may be paused, killed or otherwise down at once; 0: a minority of the nodes (at least one)",
)


def families_of(test: Test) -> list[Fault]:
    """The fault families that a test names. Raises UsageError for an unknown one, or one named twice."""
    if len(set(test.nemesis)) != len(test.nemesis):
        raise UsageError(f"a nemesis is named twice in {','.join(test.nemesis)}")
    return [FAULTS.load(name)() for name in test.nemesis]


def honoured_kinds(abilities: Mapping[str, str], family: Fault | type[Fault]) -> tuple[str, ...]:
    """The kinds of a family that a backend with these abilities can inject: those for which it has all that they need,
    whole or for that kind."""
    return tuple(kind for kind in family.kinds if is_honoured(abilities, family, kind))


def is_honoured(abilities: Mapping[str, str], family: Fault | type[Fault], kind: str) -> bool:
    """Whether a backend with these abilities can inject a kind."""
    return all(need in abilities or f"{need}:{kind}" in abilities for need in needs_of(family, kind))


def needs_of(family: Fault | type[Fault], kind: str) -> tuple[str, ...]:
    """The abilities that a backend must have for a kind."""
    return (*family.needs, *family.kind_needs.get(kind, ()))


def supported_families(backend: Backend | type[Backend], test: Test, topology: Topology) -> list[Fault]:
    """The families that a test names, each with the kinds that the backend can inject: these are what ``any`` means.

    Raises:
        UsageError: the backend can't inject a family, or the one kind asked for; nothing is skipped in silence.
    """
    families = families_of(test)
    for family in families:
        kinds = honoured_kinds(backend.abilities, family)
        if not kinds:
            names = [entry.name for entry in FAULTS if honoured_kinds(backend.abilities, FAULTS.load(entry.name))]
            raise UsageError(
                f"backend {backend.name!r} can't inject the fault {family.name!r} "
                f"(it can: {', '.join(names) or 'none'}); choose another --backend or --nemesis"
            )
        if family.aims_at_roles:
            kinds = (*kinds, *topology.roles)
        wanted = wanted_kinds(test, family)
        kinds += tuple(kind for kind in wanted if _only_when_asked_for(kind, family)
                       and is_honoured(backend.abilities, family, kind))
        for kind in wanted:
            if kind not in (ANY_KIND, *kinds):
                name = setting(family.name, "kind")
                raise UsageError(f"backend {backend.name!r} can't inject {name}={kind} (it can: {', '.join(kinds)}); "
                                 f"choose another --backend or --set {name}")
        family.kinds = kinds
    return families


def _only_when_asked_for(kind: str, family: Fault) -> bool:
    return kind in family.aimed_kinds or (family.aims_at_roles and kind.startswith(LEADER_OF))


def wanted_kinds(test: Test, family: Fault) -> tuple[str, ...]:
    """The kinds of a family that a test asks for; ``any`` stands for all but the aimed ones."""
    for option in family.options:
        if option.name == setting(family.name, "kind"):
            return tuple(str(option_value(test.options, option)).split(","))
    return (ANY_KIND,)


def setting(family: str, what: str) -> str:
    """The name of an option of a family: of ``shared-db`` and ``kind``, ``shared_db_kind``."""
    return f"{family.replace('-', '_')}_{what}"


def kind_option(name: str, kinds: tuple[str, ...], default: str = ANY_KIND, *, roles: bool = False) -> Option:
    """The option ``<family>_kind`` that limits a family to one kind; ``roles``: it aims at what systems have, too."""
    meaning = f"kind of {name}: one of these, or any in turn"
    if roles:
        meaning = f"kinds of {name}, joined by commas: of these, or any in turn; or a role of the system's helpers, " \
                  "or `leader-of-NAME` of a queue"
    return Option(setting(name, "kind"), default, meaning, (ANY_KIND, *kinds), extensible=roles)


def option_value(options: Mapping[str, Any], option: Option) -> Any:
    """The value that was set for an option, or its default.

    Raises:
        UsageError: it is not one of the choices.
    """
    value = options.get(option.name, option.default)
    if option.choices and not option.extensible and value not in option.choices:
        raise UsageError(f"{option.name}={value} is not possible; choose one of {', '.join(option.choices)}")
    return value
