"""Read-only probes of the reference broker's programs, for the invariants, deadlines and counts of simulated runs.

A node's code does not know them and never carries them: the simulator attaches the probe to a program that exposes
itself (``Runtime.expose``).
"""

from __future__ import annotations

import importlib
from typing import cast

from nodes.reference.api import Broker, Pending
from stormproof.contracts.invariant import Watched

PROBES: dict[str, str] = {}
"""``module:class`` of a program -> ``module:class`` of its probe, which is created from the program."""


def probe_of(program: object) -> Watched | None:
    """Return a probe of a program; None if the program has none."""
    kind = type(program)
    target = PROBES.get(f"{kind.__module__}:{kind.__qualname__}")
    if target is None:
        return cast("Watched", program) if hasattr(program, "observed") else None
    module, _, name = target.partition(":")
    return cast("Watched", getattr(importlib.import_module(module), name)(program))


class BrokerProbe:
    """The part of a broker that all designs share."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def pending(self) -> Pending:
        """Return the work that clients here wait for, or that a component has yet to do for them."""
        return self._broker.pending()

    def miscounted(self) -> str:
        """Describe a counter that is wrong or exceeds a limit; empty if there is none."""
        return self._broker.miscounted()

    def left_over(self) -> str:
        """Describe state that is left over from the time when this node served; empty if there is none."""
        return self._broker.left_over()

    def unlike_store(self) -> str:
        """Describe how this node's memory differs from its store; empty if it does not."""
        return self._broker.unlike_store()
