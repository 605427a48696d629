"""Probe of a broker without replicas."""

from __future__ import annotations

from typing import NamedTuple

from nodes.reference.api import Pending
from nodes.reference.designs.standalone import Standalone
from nodes.systems.reference.probes.broker import BrokerProbe


class StandaloneObserved(NamedTuple):
    """The values that invariants observe. ``unwoken``: whether commands wait, and nothing wakes up who carries them
    out.
    """

    unwoken: bool


class StandaloneProbe(BrokerProbe):
    """Probe of the design ``standalone``."""

    def __init__(self, design: Standalone) -> None:
        super().__init__(design.broker)
        self._design = design

    def observed(self) -> StandaloneObserved:
        """Return the broker's state."""
        return StandaloneObserved(self._design.unwoken)

    def pending(self) -> Pending:
        """Return pending work: clients' waits and uncommitted commands, identified by the number of commands done
        before.
        """
        design = self._design
        if design.broker.stopping:
            return {}
        waiting = {"uncommitted": [design.done]} if design.commands else {}
        return {**super().pending(), **waiting}
