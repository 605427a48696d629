"""A client of a lease that is a key of a last-value queue, over STOMP."""

from __future__ import annotations

from stormproof.operation import Op
from workloads.lease_client import KEY, RegisterLease
from workloads.lock_client import Updates
from workloads.reference.connection import ConnectionBroken, NotSent
from workloads.reference.register_client import RegisterClient
from workloads.reference.stomp_client import StompCluster
from workloads.register_client import UNTOLD, RegisterContent


class Untold(ConnectionBroken):
    """The broker reports that it has carried out the request, but not the outcome."""


class LeaseClient(RegisterLease, RegisterClient):
    """A worker whose lease is a key of a last-value queue."""

    def __init__(self, cluster: StompCluster, host: str, first: int, updates: Updates) -> None:
        RegisterClient.__init__(self, cluster, host, first)
        RegisterLease.__init__(self, cluster.test.options, updates)

    async def carry_out(self, op: Op) -> Op:
        """Carry out ``acquire``, ``update`` or ``release``."""
        return await self.use_lock(op)

    async def look(self) -> RegisterContent:
        """Return the content of the key."""
        try:
            return await self.read(KEY)
        except (TimeoutError, ConnectionBroken) as error:
            raise NotSent(f"could not look: {error or 'no receipt in time'}") from None

    async def swap(self, seen: RegisterContent, value: int) -> RegisterContent | None:
        """Swap by the observed version."""
        told = await self.put(KEY, value, seen.version)
        if told is None:
            raise Untold(UNTOLD)
        return self._seen[KEY] if told else None
