"""The description of one test: an immutable value, stored with every run."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

DEFAULT_NODES = 3
ANY_KIND = "any"
"""The value of a fault family's option ``FAMILY_kind`` that allows all its kinds."""
SCHEDULE = "schedule"
"""The option with an explicit list of faults, as a person wrote it: ``FAMILY:KIND:START-END:SEED``, separated by
spaces."""

SERVICES = "services"
"""The option with the names of the replicas, joined by commas, where these are not ``n1`` to ``nN``."""


def replica_names(options: Mapping[str, Any], nodes: int) -> tuple[str, ...]:
    """Return the names of a test's replicas: those that the option ``services`` gives them, otherwise ``n1`` to
    ``nN``, in the order in which replicas are numbered from 0."""
    if named := options.get(SERVICES):
        return tuple(str(named).split(","))
    return tuple(f"n{i + 1}" for i in range(nodes))


def named_kinds(options: Mapping[str, Any], family: str) -> tuple[str, ...]:
    """Return the kinds of a family that a test's options name: by the option ``FAMILY_kind``, and in a written
    schedule.
    """
    written = (word.split(":") for word in str(options.get(SCHEDULE) or "").split())
    kinds = str(options.get(f"{family.replace('-', '_')}_kind", ANY_KIND)).split(",")
    return (*kinds, *(words[1] for words in written if words[0] == family and len(words) > 1))


@dataclass(frozen=True)
class Test:
    """A test's system, workload, faults, and duration.

    ``options`` are the ``--set name=value`` settings of system, workload, faults and backend, already converted to
    their declared types. ``time_limit`` is in seconds, ``rate`` in operations a second over all clients.
    """

    __test__ = False  # not a pytest class

    system: str
    workload: str
    nemesis: tuple[str, ...] = ()
    backend: str = "local"
    nodes: int = DEFAULT_NODES
    seed: int = 0
    time_limit: float = 30.0
    rate: float = 200.0
    concurrency: int = 6
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def node_names(self) -> tuple[str, ...]:
        """``n1`` ... ``nN``, in the order in which replicas are numbered from 0, or the names that the option
        ``services`` gives them."""
        return replica_names(self.options, self.nodes)

    @property
    def client_hosts(self) -> tuple[str, ...]:
        """``c1`` ... ``cN``: the hosts of the clients; ``cI`` is on the side of node ``nI``."""
        return tuple(f"c{i + 1}" for i in range(self.nodes))

    def has_fault(self, fault: str) -> bool:
        """Return whether a fault may strike: a family of faults, or one kind of it (``FAMILY:KIND``)."""
        family, _, kind = fault.partition(":")
        kinds = named_kinds(self.options, family)
        return family in self.nemesis and (not kind or kind in kinds or ANY_KIND in kinds)

    def rng(self, purpose: str) -> random.Random:
        """Return a separate random source for one purpose, derived from the run's seed."""
        return random.Random(f"{self.seed}/{purpose}")

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``run.json``."""
        return asdict(self) | {"nemesis": list(self.nemesis), "options": dict(self.options)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Test:
        """Return the test that ``to_json`` wrote."""
        return cls(**{**data, "nemesis": tuple(data["nemesis"])})
