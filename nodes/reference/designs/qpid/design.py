"""The design ``qpid``: one broker of an active-passive cluster, with its links and its clock."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from nodes.reference.api import Admission, Broker, Command, ConfigError, Image, Pending
from nodes.reference.bugs import switched_on
from nodes.reference.bugs.flags import INQUORATE_BROKER_LIVES
from nodes.reference.designs.qpid.administration import Administration
from nodes.reference.designs.qpid.configuration import Configuration
from nodes.reference.designs.qpid.lease_client import ManagerPermission
from nodes.reference.designs.qpid.messages import (
    Attach,
    Completed,
    Events,
    Hello,
    Message,
    Refuse,
    pack,
    unpack,
)
from nodes.reference.designs.qpid.options import BUILTIN, COLD, Options
from nodes.reference.designs.qpid.primary import Primary
from nodes.reference.designs.qpid.pushed_urls import PushedUrls
from nodes.reference.designs.qpid.roles import NOT_PRIMARY, Roles
from nodes.reference.designs.qpid.states import CATCHUP, CONNECTING, READY, STOPPED
from nodes.reference.designs.qpid.store_status import MAX_UUID
from nodes.reference.designs.qpid.urls import Urls
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.replication.handshake import LinkError
from nodes.reference.replication.links import Links
from nodes.reference.wire import WireError


class NoQuorum(Exception):
    """The manager no longer permits this broker to continue."""


class Observed(NamedTuple):
    """The values that invariants observe.

    - ``state``: the broker's state. ``term``: the term in which its manager made it primary (0: it did not).
    - ``confirms`` and ``until``: whether it may confirm and deliver, and until when by its clock.
    - ``store``, ``role`` and ``generation``: its store's status.
    - ``times_ready``: how often it has become ready. ``eligible``: whether it may be promoted; ``vouched``: whether an
      administrator's approval allows that.
    - ``number``: the last group that it has sent, or completed. ``held_back``: a backup whose catch-up is stalled
      although its window has room.
    - ``released``: as primary, the last group that clients know to be completed.
    - ``gave_up``: whether it has ended itself for lack of quorum although its manager had permitted it to continue."""

    state: str
    term: int
    confirms: bool
    until: float
    store: str
    role: str
    generation: int
    times_ready: int
    eligible: bool
    vouched: bool
    number: int
    held_back: str
    released: int
    gave_up: bool = False


class Qpid:
    """A broker of a hot-standby cluster. Options: ``nodes.reference.designs.qpid.options.Options``."""

    has_topic_manager = True
    has_services = False

    def __init__(self, broker: Broker) -> None:
        if not isinstance(broker.engine, StoreEngine):
            raise TypeError("design qpid needs an engine whose queues can be tapped")
        config = broker.config
        self._broker, self._runtime, self._name = broker, broker.runtime, config.node
        self._options = options = Options.from_config(config)
        self._bugs = switched_on(config.options)
        # Cold standbys do not run, so a running broker has no peers.
        peers = {self._name: config.peers[self._name]} if options.standby == COLD else dict(config.peers)
        self._urls = Urls(peers, config.client_addresses)
        pushed = PushedUrls(broker.database, self._urls)
        broker.engine.store_with(pushed.records)
        self._links = Links(self._runtime, self, self._name, self._urls.brokers, options.cluster,
                            silence=options.silence, retry=options.beat / 2, secret=options.secret)
        self._permission: ManagerPermission | None = None
        if options.manager == BUILTIN and options.manager_address is not None:
            self._permission = ManagerPermission(
                self._runtime, self._name, options.cluster, options.secret, options.manager_address,
                options.manager_lease, self._permitted,
            )
        self._roles = Roles(broker, broker.engine, options, self._urls, self._send, self._cut, self._permission)
        self._administration = Administration(broker, options, self._roles, self._urls, pushed, self._links,
                                              self._permission)  # fmt: skip
        self._ticker: asyncio.Task[None] | None = None
        self._gave_up = False

    # The design's protocol.

    async def start(self) -> None:
        """Open the links and search for the primary.

        Raises:
            ConfigError: the address for the links can't be listened on.
        """
        status = self._roles.store.now
        self._runtime.log(self._roles.state, store=status.state, generation=status.generation)
        self._roles.close_connections()
        try:
            await self._links.start()
        except OSError as error:
            host, port = self._broker.config.peers[self._name]
            raise ConfigError(
                f"peers.{self._name}: can't listen on {host}:{port} ({error.strerror or error})") from error
        if self._permission is not None:
            self._permission.start()
        self._ticker = self._runtime.spawn(self._tick_forever(), "qpid timers")

    async def stop(self) -> None:
        """Stop; the other brokers notice that the links are gone."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self._permission is not None:
            self._permission.stop()
        if self._roles.primary is not None:
            self._roles.primary.stop()
        await self._links.stop()

    def admission(self) -> Admission:
        """Admit clients on the primary only; backups redirect them to it, if they know it."""
        roles, clients = self._roles, self._urls.clients
        if roles.primary is not None and roles.primary.accepting:
            return Admission(True, replicas=tuple(clients.values()))
        ending = roles.state == STOPPED or roles.primary is not None
        reason = "the cluster is being shut down" if ending else NOT_PRIMARY
        return Admission(False, reason, clients.get(roles.serves_at or ""))

    def submit(self, command: Command) -> None:
        """Have the primary carry out a command; other brokers drop it (their clients are being dropped, too)."""
        if self._roles.primary is not None:
            self._roles.primary.submit(command)

    def status(self) -> dict[str, Any]:
        """Return the status for an administrator."""
        roles, primary = self._roles, self._roles.primary
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

    # Observations for invariants.

    def observed(self) -> Observed:
        """Return the broker's state for invariants."""
        roles, status = self._roles, self._roles.store.now
        primary = roles.primary
        leads = primary is not None
        term, until = 0, 0.0
        if leads and self._permission is not None:
            term, until = self._permission.term, self._permission.until
        return Observed(roles.state, term, leads and self.confirms(), until, status.state, status.role,
                        status.generation, roles.times_ready, roles.eligible, roles.forced, roles.number,
                        primary.held_back() if primary is not None else "",
                        primary.released if primary is not None else 0, self._gave_up)  # fmt: skip

    def confirms(self) -> bool:
        """Tell whether this broker is primary, and may confirm and deliver now."""
        return self._roles.primary is not None and self._roles.may_go_on()

    def lease_left(self) -> float:
        """Return the seconds for which its manager has permitted it to continue."""
        return self._permission.until - self._runtime.now() if self._permission is not None else 0.0

    def has_its_time(self) -> Sequence[str]:
        """Return the backups that lack a group which clients know to be completed, and still have time to catch up."""
        return self._roles.primary.has_its_time() if self._roles.primary is not None else ()

    def pending(self) -> Pending:
        """Return pending work: the broker's actions and the messages it expects."""
        if self._broker.stopping:
            return {}
        roles = self._roles
        found: dict[str, Collection[Hashable]] = dict(self._broker.pending())
        if missing := self._links.missing():
            found["link"] = missing
        if unspoken := self._links.unspoken():
            found["greeting"] = unspoken
        if heard := self._links.last_heard():
            found["silent-peer"] = heard
        if roles.state == CONNECTING and roles.eligible:  # if none is, an administrator has to choose the primary
            found["primary"] = [""]
        elif roles.state == CATCHUP:
            found["catchup"] = [roles.serves_at]
        if roles.primary is not None:
            found |= roles.primary.pending()
            if newer := roles.newer_primaries():
                found["gives-way"] = newer
            if self._permission is not None:
                found |= self._not_noted(roles.primary, self._permission)
        if self._permission is not None and (answer := self._permission.resting()):
            found["unasking"] = answer
        if roles.untold:
            found["untold"] = [roles.state]
        return found

    @staticmethod
    def _not_noted(primary: Primary, permission: ManagerPermission) -> dict[str, Collection[Hashable]]:
        """Return the notes that managers still have to take, and those that the primary still has to revoke."""
        found: dict[str, Collection[Hashable]] = {}
        if version := permission.unrecorded():
            found["noting"] = [version]
        noted = permission.asked_for
        if noted is None and not primary.expected:
            found["noted-though-ready"] = [""]
        elif noted and (there := [name for name in noted if name not in primary.excluded]):
            found["noted-though-ready"] = there
        return found

    def miscounted(self) -> str:
        """Describe the first wrong counter; empty if all are right."""
        primary = self._roles.primary
        return (primary.miscounted() if primary is not None else "") or self._broker.miscounted()

    def unlike_store(self) -> str:
        """Describe a difference between memory and store; empty if there is none."""
        return self._roles.unlike_store()

    @property
    def configuration(self) -> Configuration:
        """The objects that exist here."""
        return self._roles.configuration

    @property
    def step(self) -> int:
        """The number of the last replicated step on this node, comparable with other nodes (``replicated``)."""
        return self._roles.number

    def replicated(self) -> tuple[Hashable, Image] | None:
        """Return this broker's position (generation, number of the last group) and its replicated content; None for a
        backup that does not have everything."""
        return self._roles.replicated()

    @property
    def serves_at(self) -> str | None:
        """The primary that this backup is attached to."""
        return self._roles.serves_at

    def leads(self, backup: str) -> int:
        """Return the generation of which this broker is primary, if that backup is attached to it; else 0."""
        primary = self._roles.primary
        return primary.generation if primary is not None and backup in primary.browsers else 0

    def clean_image(self) -> tuple[str, Image] | None:
        """Return the identifier of its clean store, and the content common to all stores with that identifier; None if
        the store is not clean, or memory differs from it."""
        return self._roles.clean_image()

    def extent(self) -> dict[str, tuple[str, int, int]]:
        """Return for each queue with replicated messages its creation mark, its last position and its depth."""
        return self._roles.extent()

    def copies(self) -> dict[str, tuple[str, int, Mapping[int, Any]]]:
        """Return the same, with each message's content by position in place of the depth."""
        return self._roles.copies()

    # Time.

    def _permitted(self) -> None:
        if self._roles.primary is not None:
            self._roles.primary.release()

    async def _tick_forever(self) -> None:
        last = self._runtime.now()
        while True:
            await asyncio.sleep(self._options.beat)
            now = self._runtime.now()
            stood_still = now - last - self._options.beat
            last = now
            if stood_still > self._options.silence / 2:
                self._runtime.log("stood still", seconds=round(stood_still, 3))
                self._links.forgive(stood_still)
            self._links.cut_silent()
            if self._permission is not None and self._permission.lost() and INQUORATE_BROKER_LIVES not in self._bugs:
                self._gave_up = self._permission.was_let()
                self._runtime.log("no quorum: the manager's lease ran out", level="error")
                raise NoQuorum("the manager lets this broker go on no longer")
            self._roles.tick()

    # Links.

    def link_up(self, peer: str) -> None:
        """Report this broker's state to the peer."""
        self._roles.greet(peer)

    def link_down(self, peer: str) -> None:
        """Handle the loss of a backup or of the primary."""
        self._roles.gone(peer)

    def frames(self, peer: str, frames: Sequence[Any]) -> None:
        """Handle a peer's messages."""
        roles = self._roles
        groups: list[Events] = []
        for message in map(unpack, frames):
            if isinstance(message, Events):
                groups.append(message)
                continue
            roles.apply(peer, groups)
            groups = []
            if isinstance(message, Hello):
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
        self._links.cut(peer, reason=reason)

    def _send(self, peer: str, message: Message) -> None:
        try:
            self._links.send(peer, pack(message))
        except WireError as error:
            self._runtime.log("a backup can't be told", level="error", backup=peer, error=str(error))
            # Not cut at once, because the sender relies on the peer.
            asyncio.get_running_loop().call_soon(self._cut, peer, "what it has to be told is too much for a frame")
