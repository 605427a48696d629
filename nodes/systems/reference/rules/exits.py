"""The rule about the end of a program after a signal to stop: its exit status, and the sockets that it leaves open."""

from __future__ import annotations

from stormproof.contracts.invariant import SYSTEM, Exit, Invariant, Watcher

STOP_SECONDS = 2.3
"""The seconds that an orderly stop takes at most: clients have 2 s to read their ERROR (``linger``)."""


class StopsInOrder(Watcher):
    """Stateless check of a program's end."""

    def exited(self, node: str, how: Exit) -> str:
        """Check the status of an orderly stop, and that no socket is left open; that of any other end as well."""
        if how.took is None:
            return "" if how.status else "it ends with status 0, and nobody asked it to"
        if how.sound and how.took > STOP_SECONDS:
            return f"it still runs {how.took:.3f} s after it was asked to stop"
        if how.sound and how.status:
            return f"it ends with status {how.status} though it was asked to stop"
        return f"it has stopped, and leaves open {', '.join(how.left)}" if how.sound and how.left else ""


STOPS_IN_ORDER = Invariant(
    "stops-in-order", "a program that is asked to stop closes its listeners and connections, and ends with status 0 "
    "within 2.3 s; one that ends for another reason has another status", "docs/stomp.md, Running a broker: it stops in "
    "order on SIGTERM (status 0); a broker whose disk fails ends (status 1)", StopsInOrder, seen=(SYSTEM,))
