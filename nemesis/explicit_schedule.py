"""Explicit schedules: lists of faults with their times, instead of faults drawn from the seed.

``partition:master:5.2-8.1:77 kill@n2:9-10.5`` is ``FAMILY[:KIND][@NODE]:FROM-TO[:SEED]``, with seconds of injection and
heal, and the seed that decides random targets. NODE is a node's name, ``leader``, ``backup``, ``leader-of-NAME`` or
``a-follower-of-NAME``. This is the form in which a schedule found in simulation is reported, shortened, and tried
elsewhere.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nemesis.families import (
    BACKUP,
    FOLLOWER_OF,
    LEADER_OF,
    PRIMARY,
    canonical,
    kind_of,
    setting,
    wanted_kinds,
    why_impossible,
)
from stormproof.contracts.fault import Fault
from stormproof.errors import UsageError
from stormproof.test import SCHEDULE, Test

FORM = "FAMILY[:KIND][@NODE]:FROM-TO[:SEED]"
_FAULT = re.compile(r"([a-z-]+)(?::([\w.-]+))?(?:@([\w.-]+))?:([0-9.]+)-([0-9.]+)(?::([0-9]+))?")
_ONE = "one"
_DEFAULT_SEED = 1


@dataclass(frozen=True)
class ExplicitFault:
    """One fault of a schedule; times in seconds of the main phase. ``node`` is empty if the kind chooses the target."""

    family: str
    kind: str
    start: float
    end: float
    seed: int
    node: str = ""

    def __str__(self) -> str:
        return f"{self.aim}:{self.start:g}-{self.end:g}:{self.seed}"

    @property
    def aim(self) -> str:
        """The family and the kind, and the node if it is named."""
        return f"{self.family}:{self.kind}{f'@{self.node}' if self.node else ''}"


def write_schedule(faults: Iterable[ExplicitFault]) -> str:
    """Return the text of a schedule."""
    return " ".join(map(str, faults))


def read_schedule(text: str, families: Sequence[Fault], time_limit: float, nodes: Sequence[str] = ()
                  ) -> list[ExplicitFault]:  # fmt: skip
    """Return the faults that a text names, in order of injection; ``nodes`` are the names that it may use.

    Raises:
        UsageError: a fault can't be read, does not fit the test, or overlaps with another of its conflict group.
    """
    known = {family.name: family for family in families}
    faults = sorted((_read(word, known, time_limit, nodes) for word in text.split()), key=lambda fault: fault.start)
    for place, fault in enumerate(faults):
        group = known[fault.family].conflict_group
        for other in faults[:place]:
            if known[other.family].conflict_group != group or other.end <= fault.start:
                continue
            if not all(known[each.family].overlaps for each in (fault, other)) or not fault.node or not other.node:
                raise UsageError(f"schedule: {fault} begins before {other} (of {group!r}, too) has ended; such faults "
                                 "overlap only if they name different nodes, as in pause@n1:1-5 kill@n2:2-4")
            if fault.node == other.node:
                raise UsageError(f"schedule: {fault} begins before {other} on the same node has ended")
    return faults


def with_canonical_kinds(test: Test, families: Iterable[Fault]) -> dict[str, Any]:
    """Return the options of a test with the canonical name of each kind of a fault, as in evidence."""
    found, known = dict(test.options), {family.name: family for family in families}
    for family in known.values():
        if (name := setting(family.name, "kind")) in found:
            found[name] = ",".join(wanted_kinds(test, family))
    if given := str(found.get(SCHEDULE) or ""):
        found[SCHEDULE] = " ".join(_canonical(word, known, test) for word in given.split())
    return found


def _canonical(word: str, known: dict[str, Fault], test: Test) -> str:
    """Return a fault's text with its kind and seed, and with the times exactly as they are written."""
    fault = _read(word, known, test.time_limit, test.node_names)
    times = re.search(r":([0-9.]+-[0-9.]+)", word)
    assert times is not None
    return f"{fault.aim}:{times[1]}:{fault.seed}"


def _read(word: str, known: dict[str, Fault], time_limit: float, nodes: Sequence[str]) -> ExplicitFault:
    match = _FAULT.fullmatch(word)
    if match is None:
        several = "; separate several by spaces" if "," in word else ""
        raise UsageError(f"schedule: {word!r} is not {FORM}, like partition:one:5-8.5:7 or kill@n2:5-8.5{several}")
    name, kind, node, start, end, seed = match.groups(default="")
    try:
        fault = ExplicitFault(name, kind, float(start), float(end), int(seed or _DEFAULT_SEED), canonical(node))
    except ValueError:
        raise UsageError(f"schedule: {word!r} has a time that is not a number") from None
    if fault.family not in known:
        raise UsageError(f"schedule: {word!r}: --nemesis must name {fault.family!r} (it names: {', '.join(known)})")
    family = known[fault.family]
    fault = replace(fault, kind=kind_of(family, fault.kind) if kind else _default_kind(word, family, fault))
    if why := why_impossible(family, fault.kind):
        raise UsageError(f"schedule: {word!r}: {why}")
    kinds = dict.fromkeys((*family.kinds, *family.aimed_kinds))
    of_leader = family.aims_at_roles and fault.kind.startswith(LEADER_OF)
    if fault.kind not in kinds and not of_leader:
        raise UsageError(f"schedule: {word!r}: kinds of {fault.family}: {', '.join(kinds)}"
                         f"{f', {LEADER_OF}NAME' if family.aims_at_roles else ''}")
    if why := _why_not_named(family, fault, nodes):
        raise UsageError(f"schedule: {word!r}: {why}")
    if not 0 <= fault.start < fault.end <= time_limit:
        raise UsageError(f"schedule: {word!r} must begin before it ends, and end within {time_limit:g} s")
    return fault


def _default_kind(word: str, family: Fault, fault: ExplicitFault) -> str:
    """Return the kind of a fault that names none: on a node, the kind for one node; otherwise a drawn one."""
    if not fault.node:
        return random.Random(fault.seed).choice(family.kinds)
    if _ONE in family.named_kinds:
        return _ONE
    if len(family.named_kinds) > 1:
        raise UsageError(f"schedule: {word!r}: name the kind: {', '.join(family.named_kinds)}")
    return next(iter((*family.named_kinds, *family.kinds)))


def _why_not_named(family: Fault, fault: ExplicitFault, nodes: Sequence[str]) -> str:
    """Return why a fault can't name its node; empty if it can, or names none."""
    if not fault.node:
        return ""
    if fault.kind not in family.named_kinds:
        can = f" ({', '.join(family.named_kinds)} can)" if family.named_kinds else ""
        return f"{family.name}:{fault.kind} can't be aimed at a node{can}"
    if fault.node in (PRIMARY, BACKUP):
        return why_impossible(family, fault.node)
    if fault.node.startswith((LEADER_OF, FOLLOWER_OF)):
        return why_impossible(family, LEADER_OF)
    if fault.node in nodes:
        return ""
    return f"no node {fault.node!r} (nodes: {', '.join(nodes)}; or leader, backup, {LEADER_OF}NAME, {FOLLOWER_OF}NAME)"
