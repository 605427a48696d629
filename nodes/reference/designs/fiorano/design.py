"""The design ``fiorano``: one server of an enterprise server, with its HA channel and its clock."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from nodes.reference.api import Admission, Broker, Command, Config, ConfigError, Image, Pending
from nodes.reference.designs.fiorano.configuration import SHARED_MODE, Options
from nodes.reference.designs.fiorano.messages import Hello, Message, Stored, pack, unpack
from nodes.reference.designs.fiorano.pair import Pair
from nodes.reference.designs.fiorano.repository import Stamp
from nodes.reference.designs.fiorano.server import NOT_SERVING, Server
from nodes.reference.designs.fiorano.shared import SharedPair
from nodes.reference.designs.fiorano.standby import Sent
from nodes.reference.designs.fiorano.states import (
    ACTIVATING,
    ACTIVE_TRANSITION,
    PASSIVE_TRANSITION,
    SERVING,
    STANDALONE,
    WAITING,
)
from nodes.reference.designs.fiorano.transitions import View
from nodes.reference.engine.audit import Rows
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.replication.links import Links
from nodes.reference.wire import WireError

_PASSING = (WAITING, ACTIVATING, ACTIVE_TRANSITION, PASSIVE_TRANSITION)
"""Transitional states."""


class Observed(NamedTuple):
    """The values that invariants observe.

    - ``state`` and ``before``: the present and the previous state. ``changes`` is the number of state changes.
    - ``serves``: whether clients are admitted.
    - ``lock``: the epoch in which this server holds the lock (0: it does not); ``holds``: whether its lease runs.
    - ``stamp``: the repository's stamp.
    - ``asked`` and ``disowned``: the highest epoch that this server has asked for, and the highest that it has
      disowned; ``peer_disowned``: the highest that the other server says it has disowned.
    - ``alone``: whether it may confirm changes that only it has.
    - ``stored``: the newest change-set up to which its standby has everything, as far as this server knows.
    - ``confirmed``: epoch and number of the newest change-set that was confirmed to clients.
    - ``channel``: whether there is a channel; ``seeks``: whether it seeks or keeps the lock.
    - ``untold``: whether its standby has not yet been informed of its newest stamp."""

    state: str
    before: str
    serves: bool
    lock: int
    holds: bool
    stamp: Stamp
    asked: int
    disowned: int
    alone: bool
    stored: int = -1
    confirmed: tuple[int, int] = (0, 0)
    peer_disowned: int = 0
    channel: bool = False
    seeks: bool = False
    changes: int = 0
    untold: bool = False


class Fiorano:
    """A server of an active-passive pair. Options: ``nodes.reference.designs.fiorano.configuration.Options``."""

    has_topic_manager = False
    has_services = False

    def __init__(self, broker: Broker) -> None:
        if not isinstance(broker.engine, StoreEngine):
            raise TypeError("design fiorano needs an engine whose changed rows can be noted")
        config = broker.config
        self._broker, self._runtime, self._name = broker, broker.runtime, config.node
        self._options = options = Options.from_config(config)
        self._links = Links(self._runtime, self, self._name, config.peers, options.channel, silence=options.silence,
                            retry=options.heartbeat / 2, secret=options.secret)
        mode = SharedPair if options.mode == SHARED_MODE else Pair
        self._server: Server = mode(broker, broker.engine, options, self._send)
        self._ticker: asyncio.Task[None] | None = None

    @staticmethod
    def in_memory(config: Config) -> bool:
        """Tell whether the mode is shared: the database is then on another machine, and the server's own is a working
        copy.
        """
        return config.options.get("mode") == SHARED_MODE

    async def start(self) -> None:
        """Open the HA channel and seek the lock.

        Raises:
            ConfigError: the address of the HA channel can't be listened on.
        """
        try:
            await self._links.start()
        except OSError as error:
            host, port = self._broker.config.peers[self._name]
            raise ConfigError(
                f"peers.{self._name}: can't listen on {host}:{port} ({error.strerror or error})") from error
        self._server.start()
        self._ticker = self._runtime.spawn(self._tick_forever(), "fiorano timers")

    async def stop(self) -> None:
        """Stop; the other server notices that the channel is gone."""
        if self._ticker is not None:
            self._ticker.cancel()
        self._server.stop()
        await self._links.stop()

    def admission(self) -> Admission:
        """Admit clients if this server serves; otherwise redirect them to the serving server, if it is known."""
        server = self._server
        if server.serves:
            return Admission(True)
        serves = server.peer is not None and server.peer.state in SERVING
        return Admission(False, NOT_SERVING,
                         self._broker.config.client_addresses.get(self._options.peer) if serves else None)

    def submit(self, command: Command) -> None:
        """Have a command carried out if this server serves."""
        self._server.submit(command)

    def status(self) -> dict[str, Any]:
        """Return the status for an administrator."""
        server = self._server
        view = [self._name] if server.peer is None else sorted((self._name, self._options.peer))
        return {"role": server.state, "serving": server.serves, "epoch": server.stamp.epoch, "view": view,
                "mode": self._options.mode, "primary": self._options.layer.primary, **server.status()}

    async def administer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out ``status`` (report this server's status) or ``accept`` (``Server.accept``: declare its repository
        valid).

        Raises:
            ConfigError: the request is neither of these, or can't be carried out now.
        """
        match request.get("op"):
            case "status":
                return {**self.status(), "clients": dict(self._broker.config.client_addresses)}
            case "accept":
                self._server.accept(request.get("alone") is True)
                return {"state": self._server.state}
        raise ConfigError("no such request (known: status, accept)")

    def observed(self) -> Observed:
        """Return this server's state for invariants."""
        server, lock = self._server, self._server.lock
        return Observed(server.state, server.before, server.serves, lock.epoch, lock.holds(), server.stamp,
                        lock.asked, server.disowned, server.alone, server.stored, server.confirmed,
                        server.peer.asked if server.peer is not None else 0, server.peer is not None,
                        lock.seeks, server.changes, server.untold)  # fmt: skip

    def pending(self) -> Pending:
        """Return pending work: the server's actions and the messages it expects."""
        if self._broker.stopping:
            return {}
        server = self._server
        found: dict[str, Collection[Hashable]] = {**self._broker.pending(), **server.lock.pending(), **server.pending(),
                                                  **server.unsaid()}
        if missing := self._links.missing():
            found["link"] = missing
        elif server.peer is None:
            found["hello"] = [""]
        if unspoken := self._links.unspoken():
            found["greeting"] = unspoken
        if heard := self._links.last_heard():
            found["silent-peer"] = found["silent-channel"] = heard
        if to := server.undecided():
            found["undecided"] = [(server.state, to)]
        if to := server.overdue():
            found["overdue"] = [(server.state, to)]
        if not server.serves and self.admission().master != self._who_serves():
            found["unnamed"] = [self._who_serves()]
        if server.state in _PASSING or (server.state == STANDALONE and server.peer is not None):
            found["state"] = [server.state]
        return found

    def _who_serves(self) -> str | None:
        """Return the other server's client address if that server says that it serves."""
        peer = self._server.peer
        return self._broker.config.client_addresses.get(self._options.peer) if peer and peer.state in SERVING else None

    def miscounted(self) -> str:
        """Describe the first wrong counter; empty if all are right."""
        broker, server = self._broker, self._server
        return (broker.miscounted() if server.serves else broker.left_over()) or server.miscounted()

    def unlike_store(self) -> str:
        """Describe a difference between memory and store if this server serves; a standby writes to the store only."""
        return self._broker.unlike_store() if self._server.serves else ""

    @property
    def step(self) -> int:
        """The number of the last replicated step on this node, comparable with other nodes (``replicated``)."""
        return self._server.stamp.counter

    def replicated(self) -> tuple[Hashable, Image] | None:
        """Return the repository's position and its content; None while the other server's content may differ."""
        return self._server.replicated()

    @property
    def alone(self) -> bool:
        """Tell whether it may now confirm changes that only it has."""
        return self._server.alone

    @property
    def stamp(self) -> Stamp:
        """The repository's stamp."""
        return self._server.stamp

    @property
    def began(self) -> Stamp:
        """The repository's stamp when this server began to serve."""
        return self._server.began

    @property
    def accepts(self) -> int:
        """The number of times that an administrator declared this server's repository valid."""
        return self._server.accepts

    @property
    def reasons(self) -> Sequence[tuple[View, str]]:
        """The views at its latest state changes, each with the state that resulted."""
        return self._server.reasons

    def lease_left(self) -> float:
        """Return the seconds left of its lease of the lock, by its clock; negative without a lease."""
        return self._server.lock.lease_left()

    def in_database(self) -> tuple[tuple[int, int], Rows] | None:
        """Return the position and the content of the database if this is an active server in shared mode."""
        return self._server.in_database() if isinstance(self._server, SharedPair) else None

    def holds_lock(self) -> bool:
        """Tell whether its lease runs now."""
        return self._server.lock.epoch > 0 and self._server.lock.holds()

    async def _tick_forever(self) -> None:
        options = self._options
        last = self._runtime.now()
        while True:
            await asyncio.sleep(options.heartbeat)
            now = self._runtime.now()
            stood_still, last = now - last - options.heartbeat, now
            if stood_still > options.silence / 2:
                self._runtime.log("stood still", seconds=round(stood_still, 3))
                self._links.forgive(stood_still)
            self._links.cut_silent()
            self._server.tick()

    # The HA channel.

    def link_up(self, peer: str) -> None:
        """Report this server's state to the other server."""
        self._server.link_up()

    def link_down(self, peer: str) -> None:
        """Handle the loss of the channel."""
        self._server.link_down()

    def frames(self, peer: str, frames: Sequence[Any]) -> None:
        """Handle messages of the other server; raises LinkError for anything else."""
        sent: list[Sent] = []
        for message in map(unpack, frames):
            if isinstance(message, Hello | Stored):
                self._server.take_sent(sent)
                sent = []
            if isinstance(message, Hello):
                self._server.take_hello(message)
            elif isinstance(message, Stored):
                self._server.take_stored(message)
            else:
                sent.append(message)
        self._server.take_sent(sent)

    def _send(self, message: Message) -> None:
        try:
            self._links.send(self._options.peer, pack(message))
        except WireError as error:
            self._runtime.log("the other server can't be told", level="error", error=str(error))
            # Not cut at once, because the sender relies on the channel. After the cut, everything is sent page by page.
            asyncio.get_running_loop().call_soon(self._cut)

    def _cut(self) -> None:
        self._links.cut(self._options.peer, reason="what it has to be told is too much for a frame")
