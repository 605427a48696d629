"""Which nodes of a test are replicas of which server."""

from __future__ import annotations

from dataclasses import dataclass

SPARES = "spares"
"""The option that keeps nodes out of the group at first."""


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
