"""The broker URL and the client URL, as an administrator pushes them while brokers run [Failback]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from nodes.reference.designs.qpid.store_status import CLEAN
from nodes.stomp import ProtocolError
from nodes.systems.reference.cluster import CLIENT_PORT, LINK_PORT
from stormproof.contracts.backend import Backend
from stormproof.contracts.cluster import NodeStatus

_TROUBLE = (OSError, TimeoutError, EOFError, ProtocolError, ValueError)


class _Cluster(Protocol):
    """The interface of a cluster that an administrator needs."""

    backend: Backend

    @property
    def node_names(self) -> Sequence[str]: ...

    def link_address(self, node: str) -> str: ...

    async def primary(self) -> str | None: ...

    async def statuses(self) -> list[NodeStatus]: ...

    async def ask(self, node: str, **request: Any) -> Mapping[str, Any]: ...

    def note_by_hand(self, done: str) -> None: ...


class Pushed:
    """The membership of the brokers that their administrator wants. Every broker is informed, including those that were
    away during the change, and those that have reread their configuration since."""

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        self.gone: set[str] = set()
        """The brokers that are no longer to be named."""
        self._changed = False

    async def change(self, node: str, *, gone: bool) -> str | None:
        """Change a broker's membership: gone for good, or back. None if the primary has been informed, otherwise the
        reason why not.
        """
        primary = await self._cluster.primary()
        if gone and primary in (None, node):
            return f"{node} is primary" if primary else "nobody serves"
        self._changed = True
        statuses = await self._cluster.statuses()
        if not gone and primary is not None:
            await self._forget_shutdown(node, primary, {status.node: status.detail or {} for status in statuses})
        (self.gone.add if gone else self.gone.discard)(node)
        refusals = await self.tell(statuses)
        if primary in {status.node for status in statuses if status.reachable}:
            refusal = refusals.get(str(primary))
        else:
            refusal = f"{primary} does not answer" if primary else "nobody serves"
        if refusal and gone:
            self.gone.discard(node)
        return refusal

    async def _forget_shutdown(self, node: str, primary: str, found: Mapping[str, Mapping[str, Any]]) -> None:
        """Erase the store of a returning broker that was away while an administrator had the others start from copies.
        Its store is clean from an earlier shutdown, so the primary would refuse it; it starts from nothing."""
        mine, theirs = (found.get(name, {}).get("store", {}) for name in (node, primary))
        if mine.get("state") != CLEAN or theirs.get("uuid") in (None, mine.get("uuid")):
            return
        try:
            _check(await self._cluster.ask(node, op="erase-store"))
        except _TROUBLE:
            return  # no retry: the primary keeps refusing it
        self._cluster.note_by_hand(f"erased the store of {node}")

    async def tell(self, statuses: Iterable[NodeStatus]) -> Mapping[str, str]:
        """Inform the reachable brokers that know other addresses; return broker -> the reason of a failure."""
        if not self._changed:
            return {}
        there = [name for name in self._cluster.node_names if name not in self.gone]
        brokers = {name: [self._cluster.link_address(name), LINK_PORT] for name in there}
        clients = {name: [self._cluster.backend.address(name), CLIENT_PORT] for name in there}
        refusals: dict[str, str] = {}
        for status in statuses:
            if status.node in self.gone or not status.reachable:
                continue  # a removed broker is not informed: its view of the cluster stays as it was
            known = status.detail or {}
            try:
                if list(known.get("brokers", {}).items()) != list(brokers.items()):
                    _check(await self._cluster.ask(status.node, op="set-broker-url", addresses=brokers))
                if known.get("clients") != {name: f"{host}:{port}" for name, (host, port) in clients.items()}:
                    _check(await self._cluster.ask(status.node, op="set-client-url", addresses=clients))
            except _TROUBLE as error:
                refusals[status.node] = str(error) or type(error).__name__
        return refusals


def _check(answer: Mapping[str, Any]) -> None:
    if not answer.get("ok"):
        raise ValueError(answer.get("error", "refused"))
