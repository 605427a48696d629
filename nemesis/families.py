"""The fault families of a test: the named ones, the kinds that its backend can inject, and the values of their
options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nemesis.catalog import FAULTS
from stormproof.contracts.backend import Backend
from stormproof.contracts.fault import Fault
from stormproof.contracts.option import Option
from stormproof.contracts.system import System
from stormproof.contracts.topology import Topology
from stormproof.errors import UsageError
from stormproof.test import ANY_KIND as ANY_KIND
from stormproof.test import Test

LEADER_OF = "leader-of-"
"""The prefix, followed by the name of a queue, of the kind that hits the queue's leader."""
FOLLOWER_OF = "a-follower-of-"
"""The prefix, followed by the name of a queue or log, of a written schedule's name for one of its other nodes."""
PRIMARY = "master"
"""The kind that hits the leading node."""
PRIMARY_FROM_MAJORITY = "master-from-majority"
"""The kind that cuts the leading node, and others with it up to a minority, off from the majority."""
LINK = "link"
"""The kind that hits the links between the leading node and one other node."""
BACKUP = "backup"
"""A node that does not lead."""
BY_LEADER = (PRIMARY, PRIMARY_FROM_MAJORITY, LINK, BACKUP)
"""Kinds and targets that depend on the identity of the leading node."""

MAX_DOWN = Option(
    "max_down",
    0,
    "most nodes that may be paused, killed or otherwise down at once; 0: a minority of the nodes (at least one)",
)


def families_of(test: Test) -> list[Fault]:
    """Return the fault families that a test names. Raise UsageError for an unknown one, or one named twice."""
    if len(set(test.nemesis)) != len(test.nemesis):
        raise UsageError(f"a nemesis is named twice in {','.join(test.nemesis)}")
    return [FAULTS.load(name)() for name in test.nemesis]


def honoured_kinds(abilities: Mapping[str, str], family: Fault | type[Fault]) -> tuple[str, ...]:
    """Return the kinds of a family that a backend with these abilities can inject: those whose needs it satisfies, in
    full or for that kind."""
    return tuple(kind for kind in family.kinds if is_honoured(abilities, family, kind))


def is_honoured(abilities: Mapping[str, str], family: Fault | type[Fault], kind: str) -> bool:
    """Return whether a backend with these abilities can inject a kind."""
    return all(need in abilities or f"{need}:{kind}" in abilities for need in needs_of(family, kind))


def needs_of(family: Fault | type[Fault], kind: str) -> tuple[str, ...]:
    """Return the abilities that a backend must have for a kind."""
    return (*family.needs, *family.kind_needs.get(kind, ()))


def abilities_needed(test: Test, abilities: Mapping[str, str]) -> set[str]:
    """Return the abilities that the faults of a test need from a backend that has ``abilities``."""
    found: set[str] = set()
    for family in families_of(test):
        wanted = wanted_kinds(test, family)
        kinds = honoured_kinds(abilities, family) if ANY_KIND in wanted else wanted
        found |= {ability for kind in ("", *kinds) for ability in needs_of(family, kind)}
    return found


def supported_families(backend: Backend | type[Backend], test: Test, topology: Topology, system: System
                       ) -> list[Fault]:  # fmt: skip
    """Return the families that a test names, each with the kinds that the backend can inject: these are the meaning of
    ``any``.

    Raises:
        UsageError: the backend can't inject a family, or the one kind asked for, or a fault aims at the leader of a
            system that does not report its leader; nothing is skipped silently.
    """
    families = families_of(test)
    lacking = backend.lacks() if families else {}
    abilities = {name: how for name, how in backend.abilities.items() if name.partition(":")[0] not in lacking}
    for family in families:
        kinds = honoured_kinds(abilities, family)
        if not kinds:
            names = [entry.name for entry in FAULTS if honoured_kinds(abilities, FAULTS.load(entry.name))]
            raise UsageError(
                f"backend {backend.name!r} can't inject the fault {family.name!r}{_why(lacking, family, family.kinds)} "
                f"(it can: {', '.join(names) or 'none'}); choose another --backend or --nemesis"
            )
        wanted = wanted_kinds(test, family)
        family.impossible = _impossible(family, test, topology, system)
        if family.aims_at_roles:
            kinds = (*kinds, *(role for role in topology.roles if role in wanted or role not in topology.only_aimed))
        target = canonical(str(test.options.get(setting(family.name, "target"), "")))
        for name, asked in ((setting(family.name, "kind"), wanted), (setting(family.name, "target"), (target,))):
            for each in asked:
                if why := why_impossible(family, each):
                    raise UsageError(f"--nemesis {family.name}, {name}={each}: {why}")
        reasons = [why_impossible(family, kind) for kind in kinds]
        if ANY_KIND in wanted and all(reasons):
            raise UsageError(f"--nemesis {family.name}: {reasons[0]}")
        kinds = tuple(kind for kind, why in zip(kinds, reasons, strict=True) if not why)
        kinds += tuple(kind for kind in wanted if _only_when_asked_for(kind, family)
                       and is_honoured(abilities, family, kind))
        for kind in wanted:
            if kind not in (ANY_KIND, *kinds):
                name = setting(family.name, "kind")
                raise UsageError(f"backend {backend.name!r} can't inject {name}={kind}{_why(lacking, family, [kind])} "
                                 f"(it can: {', '.join(kinds)}); choose another --backend or --set {name}")
        family.kinds = kinds
    return families


def why_impossible(family: Fault, kind: str) -> str:
    """Return why a kind or target can't occur in the test, once ``supported_families`` has determined that; empty: it
    can."""
    return family.impossible.get(LEADER_OF if kind.startswith(LEADER_OF) else kind, "")


def _impossible(family: Fault, test: Test, topology: Topology, system: System) -> dict[str, str]:
    """Return what can't occur in the test -> the reason."""
    kinds = {*family.kinds, *family.aimed_kinds, *wanted_kinds(test, family), *topology.roles}
    found = {kind: why for kind in sorted(kinds) if (why := family.why_impossible(kind, test, topology))}
    if why := leader_unknown(test, system):
        found |= {kind: why for kind in BY_LEADER if kind not in found}
    if test.nodes == 1:
        found.setdefault(BACKUP, "a single node is no backup of another one")
    if not system.leads_objects():
        hint = "; choose another kind" if leader_unknown(test, system) else f"; say {family.name}:leader"
        found[LEADER_OF] = f"{system.name} does not tell who leads a queue or log (leaders in docs/systems.md){hint}"
    return found


def leader_unknown(test: Test, system: System) -> str:
    """Return why faults can't aim at the leading node, and the alternative; empty if they can."""
    if system.tells_leader(test) or test.nodes == 1:
        return ""
    if system.leads_objects():
        return (f"each queue or log of {system.name} has a leader, and no node leads them all; "
                f"say {LEADER_OF}NAME, as in --nemesis kill:{LEADER_OF}q0")
    return (f"the nodes of {system.name} don't tell which of them leads (leading_roles in docs/systems.md); "
            "choose another kind")


def _why(lacking: Mapping[str, str], family: Fault, kinds: Iterable[str]) -> str:
    """Return what this machine lacks for that, if the machine is the reason."""
    needs = {need: None for kind in kinds for need in needs_of(family, kind)}
    return "".join(f": {lacking[need]}" for need in needs if need in lacking)


def _only_when_asked_for(kind: str, family: Fault) -> bool:
    return kind in family.aimed_kinds or (family.aims_at_roles and kind.startswith(LEADER_OF))


def wanted_kinds(test: Test, family: Fault) -> tuple[str, ...]:
    """Return the kinds of a family that a test asks for; ``any`` stands for all but the aimed ones."""
    for option in family.options:
        if option.name == setting(family.name, "kind"):
            given = str(option_value(test.options, option)).split(",")
            return tuple(kind_of(family, kind) for kind in given)
    return (ANY_KIND,)


def kind_of(family: Fault, word: str) -> str:
    """Return the kind that a word means: an exact name (such as a role of helper machines) takes precedence."""
    return word if word in (*family.kinds, *family.aimed_kinds) else canonical(word)


def setting(family: str, what: str) -> str:
    """Return the name of an option of a family: ``shared_db_kind`` for ``shared-db`` and ``kind``."""
    return f"{family.replace('-', '_')}_{what}"


def kind_option(name: str, kinds: tuple[str, ...], default: str = ANY_KIND, *, roles: bool = False,
                several: bool = False) -> Option:  # fmt: skip
    """Return the option ``<family>_kind`` that limits a family to one kind, or to ``several``; ``roles``: several
    kinds, and the family also aims at roles and leaders that systems have."""
    meaning = f"kind of {name}: one of these, or any in turn"
    if several:
        meaning = f"kinds of {name}, joined by commas: of these, or any in turn"
    if roles:
        meaning = f"kinds of {name}, joined by commas: of these, or any in turn; or a role of the system's helpers, " \
                  "or `leader-of-NAME` of a queue"
    return Option(setting(name, "kind"), default, meaning, (ANY_KIND, *kinds), extensible=roles or several)


LEADERS = ("leader", "coordinator", "primary")
"""Synonyms for the leading node."""


def split_aims(text: str) -> tuple[str, dict[str, str]]:
    """Return the families in a person's list of faults, and the settings for their kinds.

    ``pause:leader,kill:random`` is ``pause,kill`` with ``pause_kind=master`` and ``kill_kind=random``; a family that is
    named with several kinds has all of them. ``leader``, ``coordinator`` and ``primary`` are the leading node.

    Raises:
        UsageError: a family is listed both with a kind and without, or has no kinds.
    """
    kinds: dict[str, list[str]] = {}
    for part in text.split(","):
        family, colon, kind = part.strip().partition(":")
        if not colon or "/" in family or family.endswith(".py"):
            family, colon, kind = part.strip(), "", ""
        given = kinds.setdefault(family, [])
        if "" in (*given, kind) and given:
            raise UsageError(f"--nemesis {text}: {family} is named twice")
        if colon and not kind:
            raise UsageError(f"--nemesis {text}: write it as FAMILY or FAMILY:KIND")
        given.append(canonical(kind))
    aims = {setting(family, "kind"): ",".join(given) for family, given in kinds.items() if given != [""]}
    return ",".join(kinds), aims


def canonical(kind: str) -> str:
    """Return a kind with ``master`` in place of its synonyms."""
    for word in LEADERS:
        if kind == word or kind.startswith(f"{word}-from-"):
            return f"{PRIMARY}{kind.removeprefix(word)}"
    return kind


def option_value(options: Mapping[str, Any], option: Option) -> Any:
    """Return the value that was set for an option, or its default.

    Raises:
        UsageError: it is not one of the choices.
    """
    value = options.get(option.name, option.default)
    if option.choices and not option.extensible and value not in option.choices:
        raise UsageError(f"{option.name}={value} is not possible; choose one of {', '.join(option.choices)}")
    return value
