"""The design ``fiorano``: one server of an enterprise server, with its HA channel and its clock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from nodes.reference.api import Admission, Broker, Command, Config, ConfigError
from nodes.reference.designs.fiorano.configuration import SHARED_MODE, FioranoOptions
from nodes.reference.designs.fiorano.messages import Message, ServerStatus, StoredUpTo, pack, unpack
from nodes.reference.designs.fiorano.pair import Pair
from nodes.reference.designs.fiorano.server import NOT_SERVING, HAServer
from nodes.reference.designs.fiorano.shared import SharedPair
from nodes.reference.designs.fiorano.standby import Sent
from nodes.reference.designs.fiorano.states import (
    SERVING,
)
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.replication.links import Links
from nodes.reference.wire import WireError


class FioranoDesign:
    """A server of an active-passive pair. Options: ``nodes.reference.designs.fiorano.configuration.FioranoOptions``."""

    has_topic_manager = False
    has_services = False

    def __init__(self, broker: Broker) -> None:
        if not isinstance(broker.engine, StoreEngine):
            raise TypeError("design fiorano needs an engine whose changed rows can be noted")
        config = broker.config
        self.broker, self._runtime, self._name = broker, broker.runtime, config.node
        self.options = options = FioranoOptions.from_config(config)
        self.links = Links(self._runtime, self, self._name, config.peers, options.channel, silence=options.silence,
                            retry=options.heartbeat / 2, secret=options.secret)
        mode = SharedPair if options.mode == SHARED_MODE else Pair
        self.server: HAServer = mode(broker, broker.engine, options, self._send)
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
            await self.links.start()
        except OSError as error:
            host, port = self.broker.config.peers[self._name]
            raise ConfigError(
                f"peers.{self._name}: can't listen on {host}:{port} ({error.strerror or error})") from error
        self.server.start()
        self._ticker = self._runtime.spawn(self._tick_forever(), "fiorano timers")

    async def stop(self) -> None:
        """Stop; the other server notices that the channel is gone."""
        if self._ticker is not None:
            self._ticker.cancel()
        self.server.stop()
        await self.links.stop()

    def admission(self) -> Admission:
        """Admit clients if this server serves; otherwise redirect them to the serving server, if it is known."""
        server = self.server
        if server.serves:
            return Admission(True)
        serves = server.peer is not None and server.peer.state in SERVING
        return Admission(False, NOT_SERVING,
                         self.broker.config.client_addresses.get(self.options.peer) if serves else None)

    def submit(self, command: Command) -> None:
        """Have a command carried out if this server serves."""
        self.server.submit(command)

    def status(self) -> dict[str, Any]:
        """Return the status for an administrator."""
        server = self.server
        view = [self._name] if server.peer is None else sorted((self._name, self.options.peer))
        return {"role": server.state, "serving": server.serves, "epoch": server.stamp.epoch, "view": view,
                "mode": self.options.mode, "primary": self.options.layer.primary, **server.status()}

    async def administer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out ``status`` (report this server's status) or ``accept`` (``HAServer.accept``: declare its repository
        valid).

        Raises:
            ConfigError: the request is neither of these, or can't be carried out now.
        """
        match request.get("op"):
            case "status":
                return {**self.status(), "clients": dict(self.broker.config.client_addresses)}
            case "accept":
                self.server.accept(request.get("alone") is True)
                return {"state": self.server.state}
        raise ConfigError("no such request (known: status, accept)")

    async def _tick_forever(self) -> None:
        options = self.options
        last = self._runtime.now()
        while True:
            await asyncio.sleep(options.heartbeat)
            now = self._runtime.now()
            stood_still, last = now - last - options.heartbeat, now
            if stood_still > options.silence / 2:
                self._runtime.log("process stalled", seconds=round(stood_still, 3))
                self.links.forgive(stood_still)
            self.links.cut_silent()
            self.server.tick()

    # The HA channel.

    def link_up(self, peer: str) -> None:
        """Report this server's state to the other server."""
        self.server.link_up()

    def link_down(self, peer: str) -> None:
        """Handle the loss of the channel."""
        self.server.link_down()

    def frames(self, peer: str, frames: Sequence[Any]) -> None:
        """Handle messages of the other server; raises LinkError for anything else."""
        sent: list[Sent] = []
        for message in map(unpack, frames):
            if isinstance(message, ServerStatus | StoredUpTo):
                self.server.take_sent(sent)
                sent = []
            if isinstance(message, ServerStatus):
                self.server.take_hello(message)
            elif isinstance(message, StoredUpTo):
                self.server.take_stored(message)
            else:
                sent.append(message)
        self.server.take_sent(sent)

    def _send(self, message: Message) -> None:
        if self.broker.store_failed:
            return  # memory is ahead of the store, which the other server must not learn
        try:
            self.links.send(self.options.peer, pack(message))
        except WireError as error:
            self._runtime.log("the other server can't be told", level="error", error=str(error))
            # Not cut at once, because the sender relies on the channel. After the cut, everything is sent page by page.
            asyncio.get_running_loop().call_soon(self._cut)

    def _cut(self) -> None:
        self.links.cut(self.options.peer, reason="what it has to be told is too much for a frame")
