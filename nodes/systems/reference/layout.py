"""The assignment of a test's nodes to servers, as their replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SPARES = "spares"
"""The option that keeps nodes out of the group at first."""

WORKED_OUT = ("heartbeat_interval", "nb_cluster_expected")
"""Options that brokers derive from others unless they are set: a test has 0 in that case."""


def broker_options(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the options of these names for brokers; one that a test does not have gets the broker's default."""
    return {name: options[name] for name in names if name in options and (options[name] or name not in WORKED_OUT)}


@dataclass(frozen=True)
class ReplicaGroup:
    """One server as the others see it: its number, its design, and the nodes that are its replicas.

    ``options`` are the settings that are copied to the configuration of its brokers.
    """

    server: int
    design: str
    replicated: bool
    options: tuple[str, ...]
    nodes: tuple[str, ...]
