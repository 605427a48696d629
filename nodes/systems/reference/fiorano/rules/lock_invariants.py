"""Invariants of the gateway and of its leases: docs/designs/fiorano.md, HA locking mechanism."""

from __future__ import annotations

from nodes.reference.designs.fiorano.gateway.protocol import HELD, RELEASED, SERVICE
from nodes.systems.reference.fiorano.probes import GATEWAY, FioranoObserved, FioranoProbe, GatewayObserved, GatewayProbe
from stormproof.contracts.invariant import BROKER, Invariant, Watcher

_LONGER = 1.25
"""The ratio of the gateway's lease to the holder's."""
_NEARLY = 0.002
"""The share of a lease by which healthy clocks may diverge during it."""


class RemembersWho(Watcher):
    """Tracks the holder of the newest epoch, as far as the gateway knew it."""

    def __init__(self) -> None:
        self._last: tuple[int, str] = (0, "")

    def look(self, node: str, program: GatewayProbe, now: GatewayObserved, before: GatewayObserved | None) -> str:
        """Check that epochs only grow while the gateway runs, and that each epoch keeps its holder."""
        last, self._last = self._last, (now.last.epoch, now.last.holder)
        if before is None or now.last.epoch > last[0] or self._last == last or not last[1]:
            return ""
        return f"the newest epoch was {last[0]}, of {last[1]}, and is {now.last.epoch}, of {now.last.holder or 'none'}"


class KeepsLonger(Watcher):
    """Tracks the gateway, and the servers that hold an epoch."""

    def __init__(self) -> None:
        self._gateway: GatewayProbe | None = None
        self._servers: dict[str, FioranoProbe] = {}

    def look(self, node: str, program: FioranoProbe | GatewayProbe, now: FioranoObserved | GatewayObserved,
             before: FioranoObserved | GatewayObserved | None) -> str:  # fmt: skip
        """Check that the gateway keeps the lock for a quarter of a lease beyond the end of each holder's lease."""
        if isinstance(program, GatewayProbe):
            self._gateway = program
        elif isinstance(now, FioranoObserved) and now.lock:
            self._servers[node] = program
        else:
            self._servers.pop(node, None)
        gateway = self._gateway
        if gateway is None or not gateway.observed().ready:
            return ""
        for name, server in self._servers.items():
            left, kept = server.lease_left(), gateway.keeps_for(name)
            if left > 0 and kept < left + (_LONGER - 1 - _NEARLY) * gateway.lease:
                return f"the lease of {name} runs for {left:.4g} s, and the gateway keeps the lock for {kept:.4g} s"
        return ""

    def ended(self, node: str) -> None:
        """Forget an ended program: a server holds no lock then, and a gateway grants none."""
        if self._servers.pop(node, None) is None and node == SERVICE:
            self._gateway = None


class AnswersAsItIs(Watcher):
    """Stateless check of the gateway."""

    def look(self, node: str, program: GatewayProbe, now: GatewayObserved, before: GatewayObserved | None) -> str:
        """Check that the gateway keeps a lock no longer than its lease, not after its release, and only from other
        servers.
        """
        left = now.until - program.now()
        if left > (_LONGER + _NEARLY) * program.lease:
            return f"it keeps the lock for {left:.4g} s, and a lease is {program.lease:g} s"
        if before is None or before.told == now.told:
            return ""
        kind, server, epoch = now.told
        if kind == HELD and (server == now.holder or left <= 0):
            return f"it tells {server} that somebody else holds the lock, which is {now.holder or 'nobody'}"
        if kind == RELEASED and (epoch, server) == (now.epoch, now.holder) and left > 0:
            return f"{server} has let go of the lock in epoch {epoch}, and it is kept for {left:.4g} s more"
        return ""


_LOCKED = {"lock": (True,), "fencing": (True,)}

LOCK_INVARIANTS = (
    Invariant("gateway-remembers", "as long as the gateway runs it knows who had the newest epoch",
              "the page: epochs only grow; what the gateway remembers though the lock file is gone", RemembersWho,
              where=_LOCKED, of=(GATEWAY,)),
    Invariant("kept-a-quarter-longer", "the gateway keeps the lock for a quarter of a lease beyond the holder's",
              "the page: the holder counts its lease from when it sent the request, the gateway a quarter longer from "
              "when it answered", KeepsLonger, unless=("clock", "lockfile", "disk"), where=_LOCKED,
              of=(BROKER, GATEWAY)),
    Invariant("lock-kept-no-longer", "the gateway keeps the lock as long as it says, and from others only",
              "the page: a lease; gateway/protocol.py: nobody has to wait for the end of a lease that was let go",
              AnswersAsItIs, where=_LOCKED, of=(GATEWAY,)),
)  # fmt: skip
