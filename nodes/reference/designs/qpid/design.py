"""The design ``qpid``: one broker of an active-passive cluster, with its links and its clock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from nodes.reference.api import Admission, Broker, Command, ConfigError
from nodes.reference.designs.qpid.administration import Administration
from nodes.reference.designs.qpid.lease_client import ManagerPermission
from nodes.reference.designs.qpid.messages import (
    Attach,
    BrokerStatus,
    Completed,
    EventGroup,
    Message,
    Refuse,
    pack,
    unpack,
)
from nodes.reference.designs.qpid.options import BUILTIN, COLD, QpidOptions
from nodes.reference.designs.qpid.pushed_urls import PushedUrls
from nodes.reference.designs.qpid.roles import NOT_PRIMARY, Roles
from nodes.reference.designs.qpid.states import READY, STOPPED
from nodes.reference.designs.qpid.store_status import MAX_UUID
from nodes.reference.designs.qpid.urls import Urls
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.replication.handshake import LinkError
from nodes.reference.replication.links import Links
from nodes.reference.wire import WireError


class NoQuorum(Exception):
    """The manager no longer permits this broker to continue."""


class QpidDesign:
    """A broker of a hot-standby cluster. Options: ``nodes.reference.designs.qpid.options.QpidOptions``."""

    has_topic_manager = True
    has_services = False

    def __init__(self, broker: Broker) -> None:
        if not isinstance(broker.engine, StoreEngine):
            raise TypeError("design qpid needs an engine whose queues can be tapped")
        config = broker.config
        self.broker, self._runtime, self._name = broker, broker.runtime, config.node
        self.options = options = QpidOptions.from_config(config)
        # Cold standbys do not run, so a running broker has no peers.
        peers = {self._name: config.peers[self._name]} if options.standby == COLD else dict(config.peers)
        self._urls = Urls(peers, config.client_addresses)
        pushed = PushedUrls(broker.database, self._urls)
        broker.engine.store_with(pushed.records)
        self.links = Links(self._runtime, self, self._name, self._urls.brokers, options.cluster,
                            silence=options.silence, retry=options.beat / 2, secret=options.secret)
        self.permission: ManagerPermission | None = None
        if options.manager == BUILTIN and options.manager_address is not None:
            self.permission = ManagerPermission(
                self._runtime, self._name, options.cluster, options.secret, options.manager_address,
                options.manager_lease, self._permitted,
            )
        self.roles = Roles(broker, broker.engine, options, self._urls, self._send, self._cut, self.permission)
        self._administration = Administration(broker, options, self.roles, self._urls, pushed, self.links,
                                              self.permission)  # fmt: skip
        self._ticker: asyncio.Task[None] | None = None
        self.gave_up = False
        """Whether it has ended itself for lack of quorum although its manager had permitted it to continue."""

    # The design's protocol.

    async def start(self) -> None:
        """Open the links and search for the primary.

        Raises:
            ConfigError: the address for the links can't be listened on.
        """
        status = self.roles.store.now
        self._runtime.log(self.roles.state, store=status.state, generation=status.generation)
        self.roles.close_connections()
        try:
            await self.links.start()
        except OSError as error:
            host, port = self.broker.config.peers[self._name]
            raise ConfigError(
                f"peers.{self._name}: can't listen on {host}:{port} ({error.strerror or error})") from error
        if self.permission is not None:
            self.permission.start()
        self._ticker = self._runtime.spawn(self._tick_forever(), "qpid timers")

    async def stop(self) -> None:
        """Stop; the other brokers notice that the links are gone."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self.permission is not None:
            self.permission.stop()
        if self.roles.primary is not None:
            self.roles.primary.stop()
        await self.links.stop()

    def admission(self) -> Admission:
        """Admit clients on the primary only; backups redirect them to it, if they know it."""
        roles, clients = self.roles, self._urls.clients
        if roles.primary is not None and roles.primary.accepting:
            return Admission(True, replicas=tuple(clients.values()))
        ending = roles.state == STOPPED or roles.primary is not None
        reason = "the cluster is being shut down" if ending else NOT_PRIMARY
        return Admission(False, reason, clients.get(roles.serves_at or ""))

    def submit(self, command: Command) -> None:
        """Have the primary carry out a command; other brokers drop it (their clients are being dropped, too)."""
        if self.roles.primary is not None:
            self.roles.primary.submit(command)

    def status(self) -> dict[str, Any]:
        """Return the status for an administrator."""
        roles, primary = self.roles, self.roles.primary
        return {
            "role": "primary" if primary is not None else roles.state,
            "serving": primary is not None and primary.accepting and roles.may_go_on(),
            "epoch": roles.generation,
            "view": sorted({self._name, *primary.browsers} if primary is not None else {self._name}),
            "master": self._name if primary is not None else roles.serves_at,
            **self._administration.description(),
        }

    async def administer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out a request of an administrator or a manager."""
        return await self._administration.carry_out(request)

    # Time.

    def _permitted(self) -> None:
        if self.roles.primary is not None:
            self.roles.primary.release()

    async def _tick_forever(self) -> None:
        last = self._runtime.now()
        while True:
            await asyncio.sleep(self.options.beat)
            now = self._runtime.now()
            stood_still = now - last - self.options.beat
            last = now
            if stood_still > self.options.silence / 2:
                self._runtime.log("process stalled", seconds=round(stood_still, 3))
                self.links.forgive(stood_still)
            self.links.cut_silent()
            if self.permission is not None and self.permission.lost():
                self.gave_up = self._runtime.now() < self.permission.let_until
                self._runtime.log("no quorum: the manager's lease ran out", level="error")
                raise NoQuorum("the manager lets this broker go on no longer")
            self.roles.tick()

    # Links.

    def link_up(self, peer: str) -> None:
        """Report this broker's state to the peer."""
        self.roles.greet(peer)

    def link_down(self, peer: str) -> None:
        """Handle the loss of a backup or of the primary."""
        self.roles.gone(peer)

    def frames(self, peer: str, frames: Sequence[Any]) -> None:
        """Handle a peer's messages."""
        roles = self.roles
        groups: list[EventGroup] = []
        for message in map(unpack, frames):
            if isinstance(message, EventGroup):
                groups.append(message)
                continue
            roles.apply(peer, groups)
            groups = []
            if isinstance(message, BrokerStatus):
                roles.take_hello(peer, message)
            elif isinstance(message, Completed):
                if roles.primary is not None:
                    roles.primary.completed(peer, message.number, message.groups)
            elif isinstance(message, Attach):
                roles.take_attach(peer, message)
            elif isinstance(message, Refuse):
                roles.take_refusal(peer, message)
            elif peer == roles.serves_at:
                if roles.state != READY or not 0 < len(message.uuid) <= MAX_UUID:
                    raise LinkError("the end of the cluster is told to a backup that has not everything")
                roles.come_to_rest(message.uuid)
        roles.apply(peer, groups)

    def _cut(self, peer: str, reason: str) -> None:
        self.links.cut(peer, reason=reason)

    def _send(self, peer: str, message: Message) -> None:
        if self.broker.store_failed:
            return  # memory is ahead of the store, which peers must not learn
        try:
            self.links.send(peer, pack(message))
        except WireError as error:
            self._runtime.log("a backup can't be told", level="error", backup=peer, error=str(error))
            # Not cut at once, because the sender relies on the peer.
            asyncio.get_running_loop().call_soon(self._cut, peer, "what it has to be told is too much for a frame")
