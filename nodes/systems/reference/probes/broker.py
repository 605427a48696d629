"""Probe of the part of a broker that all designs share."""

from __future__ import annotations

from nodes.reference.api import Broker, Pending


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
