"""Explicit schedules: lists of faults with their times, instead of faults drawn from the seed.

``partition:master:5.2-8.1:77 kill:one:9-10.5:12`` is family, kind, seconds of injection and heal, and the seed that
decides random targets. This is the form in which a schedule found in simulation is reported, shortened, and tried
elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nemesis.families import LEADER_OF, kind_of, setting, wanted_kinds, why_impossible
from stormproof.contracts.fault import Fault
from stormproof.errors import UsageError
from stormproof.test import SCHEDULE, Test

_FAULT = re.compile(r"([a-z-]+):([\w.-]+):([0-9.]+)-([0-9.]+):([0-9]+)")


@dataclass(frozen=True)
class ExplicitFault:
    """One fault of a schedule; times in seconds of the main phase."""

    family: str
    kind: str
    start: float
    end: float
    seed: int

    def __str__(self) -> str:
        return f"{self.family}:{self.kind}:{self.start:g}-{self.end:g}:{self.seed}"


def write_schedule(faults: Iterable[ExplicitFault]) -> str:
    """Return the text of a schedule."""
    return " ".join(map(str, faults))


def read_schedule(text: str, families: Sequence[Fault], time_limit: float) -> list[ExplicitFault]:
    """Return the faults that a text names, in order of injection.

    Raises:
        UsageError: a fault can't be read, does not fit the test, or overlaps with another of its conflict group.
    """
    known = {family.name: family for family in families}
    faults = sorted((_read(word, known, time_limit) for word in text.split()), key=lambda fault: fault.start)
    busy_until: dict[str, float] = {}
    for fault in faults:
        group = known[fault.family].conflict_group
        if fault.start < busy_until.get(group, 0.0):
            raise UsageError(f"schedule: {fault} begins before its predecessor (of {group!r}, too) has ended")
        busy_until[group] = fault.end
    return faults


def with_canonical_kinds(test: Test, families: Iterable[Fault]) -> dict[str, Any]:
    """Return the options of a test with the canonical name of each kind of a fault, as in evidence."""
    found, known = dict(test.options), {family.name: family for family in families}
    for family in known.values():
        if (name := setting(family.name, "kind")) in found:
            found[name] = ",".join(wanted_kinds(test, family))
    if given := str(found.get(SCHEDULE) or ""):
        faults = (word.split(":") for word in given.split())
        found[SCHEDULE] = " ".join(":".join((name, kind_of(known[name], kind), *rest)) for name, kind, *rest in faults)
    return found


def _read(word: str, known: dict[str, Fault], time_limit: float) -> ExplicitFault:
    match = _FAULT.fullmatch(word)
    if match is None:
        raise UsageError(f"schedule: {word!r} is not family:kind:start-end:seed, like partition:one:5-8.5:7")
    try:
        fault = ExplicitFault(match[1], match[2], float(match[3]), float(match[4]), int(match[5]))
    except ValueError:
        raise UsageError(f"schedule: {word!r} has a time that is not a number") from None
    if fault.family not in known:
        raise UsageError(f"schedule: {word!r}: --nemesis must name {fault.family!r} (it names: {', '.join(known)})")
    family = known[fault.family]
    kinds = dict.fromkeys((*family.kinds, *family.aimed_kinds))
    fault = replace(fault, kind=kind_of(family, fault.kind))
    if why := why_impossible(family, fault.kind):
        raise UsageError(f"schedule: {word!r}: {why}")
    of_leader = family.aims_at_roles and fault.kind.startswith(LEADER_OF)
    if fault.kind not in kinds and not of_leader:
        raise UsageError(f"schedule: {word!r}: kinds of {fault.family}: {', '.join(kinds)}"
                         f"{f', {LEADER_OF}NAME' if family.aims_at_roles else ''}")
    if not 0 <= fault.start < fault.end <= time_limit:
        raise UsageError(f"schedule: {word!r} must begin before it ends, and end within {time_limit:g} s")
    return fault
