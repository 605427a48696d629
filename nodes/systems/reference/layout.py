"""Which nodes of a test are replicas of which server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SPARES = "spares"
"""The option that keeps nodes out of the group at first."""

WORKED_OUT = ("heartbeat_interval", "nb_cluster_expected")
"""Options that brokers work out from others unless they are set: a test's are 0 then."""


def broker_options(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The options of these names as brokers are given them; one that a test does not have is the broker's default."""
    return {name: options[name] for name in names if name in options and (options[name] or name not in WORKED_OUT)}


@dataclass(frozen=True)
class Group:
    """One server as the others see it: its number, its design, and the nodes that are its replicas.

    ``options`` are the settings that reach the configuration of its brokers.
    """

    server: int
    design: str
    replicated: bool
    options: tuple[str, ...]
    nodes: tuple[str, ...]
