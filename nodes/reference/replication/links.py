"""Persistent all-to-all TCP links between the brokers of one group.

A frame is a 32-bit length and that many bytes, the ``wire`` encoding of a list. A link begins with a hello in each
direction (protocol, cluster, name of the node, a number used once) and a proof in each direction that both know the
same secret (HMAC-SHA256 over all of that); the traffic after that is neither encrypted nor signed. Of two nodes, the
one that is first in the group's order dials. Any byte received proves that the peer is alive. A link that is silent for
``silence`` seconds, or on which more than ``MAX_UNSENT`` bytes wait, is cut and dialled again: after a partition, TCP
would take much longer to detect a dead connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nodes.reference.api import Runtime
from nodes.reference.points import HEARD, LINKED
from nodes.reference.replication.handshake import (
    PROTOCOL,
    ComplaintLog,
    FrameParser,
    Handshake,
    LinkError,
    UnauthenticatedPeers,
)
from nodes.timeouts import within

MAX_UNSENT = 128 << 20
class LinkEvents(Protocol):
    """Receives the events of the links; called on the event loop, in order for each peer."""

    def link_up(self, peer: str) -> None:
        """Take note that the link to the peer is ready for frames."""

    def link_down(self, peer: str) -> None:
        """Take note that the link is gone; frames under way may or may not have arrived."""

    def frames(self, peer: str, frames: Sequence[Any]) -> None:
        """Take all frames that were read at once, in order; raise LinkError to have the link cut."""


class _Reading(asyncio.Protocol):
    """Hands on input as it arrives: a reading task would cost two turns of the loop for each read.

    ``over`` is done when no more input can arrive, with the exception that ended it, if any.
    """

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._take = take

    def data_received(self, data: bytes) -> None:
        if data and not self.over.done():
            try:
                self._take(data)
            except Exception as error:  # any error must reach the waiter of `over`
                self.over.set_exception(error)

    def eof_received(self) -> bool:
        self._end(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)


@dataclass(eq=False)
class _Link:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    parser: FrameParser

    def cut(self) -> None:
        self.writer.transport.abort()


class Links:
    """The links of one node to all its peers.

    Args:
        node: name of this node.
        peers: every node of the group in configured order -> (host, port) of its listener for links.
        cluster: links between nodes of differently named clusters are refused.
        silence: seconds after which a link without any input is cut.
        retry: seconds between attempts to connect.
        secret: links between nodes with different secrets are refused.
    """

    def __init__(
        self,
        runtime: Runtime,
        events: LinkEvents,
        node: str,
        peers: Mapping[str, tuple[str, int]],
        cluster: str,
        silence: float,
        retry: float,
        secret: str = "",
    ) -> None:
        self._runtime = runtime
        self._events = events
        self._node = node
        self._addresses = dict(peers)
        self._silence = silence
        self._retry = retry
        self._handshake = Handshake(PROTOCOL, cluster, node, secret, runtime.random)
        order = list(peers)
        self._dialled = order[order.index(node) + 1 :]
        self._complaints = ComplaintLog(runtime, "link refused")
        self._links: dict[str, _Link] = {}
        self._heard: dict[str, float] = {}
        self._times_heard: dict[str, int] = {}
        self._exempt_until: dict[str, float] = {}
        self.silent_cut = ("", float("inf"))
        """The peer whose link was last cut for its silence, and the seconds of that silence."""
        self._unspoken: dict[str, None] = {}
        """Peers to which nothing was sent since their link came up."""
        self._dials: dict[str, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._strangers = UnauthenticatedPeers()
        self._accepted: dict[asyncio.Task[None], None] = {}
        self._stopping = False

    async def start(self) -> None:
        """Listen, and begin to dial; raises OSError when the port is not available."""
        host, port = self._addresses[self._node]
        self._server = await self._runtime.serve(self._accept, host, port)
        for peer in self._dialled:
            self._begin_to_dial(peer)

    def add(self, peer: str, address: tuple[str, int], dial: bool) -> None:
        """Add a peer, which this node dials, or which dials it; a known one keeps its address, and its link."""
        self._addresses.setdefault(peer, address)
        if not dial and peer in self._dialled:
            self._dialled.remove(peer)
        elif dial and peer not in self._dialled:
            self._dialled.append(peer)
            if self._server is not None:
                self._begin_to_dial(peer)

    def move(self, peer: str, address: tuple[str, int]) -> None:
        """Change the address of a known peer; a link that was dialled to another address is cut."""
        if self._addresses[peer] != address:
            self._addresses[peer] = address
            if peer in self._dialled:
                self.cut(peer, reason="at another address")

    def retain(self, peers: Collection[str]) -> None:
        """Forget all other peers: they are no longer dialled or admitted."""
        for peer in [name for name in self._others() if name not in peers]:
            del self._addresses[peer]
            if peer in self._dialled:
                self._dialled.remove(peer)
            if peer in self._dials:
                self._dials.pop(peer).cancel()
            self.cut(peer, reason="not of this group")
            self._heard.pop(peer, None)

    def _others(self) -> list[str]:
        return [name for name in self._addresses if name != self._node]

    def _begin_to_dial(self, peer: str) -> None:
        if peer not in self._dials:
            self._dials[peer] = self._runtime.spawn(self._dial(peer), f"link to {peer}")

    async def stop(self) -> None:
        """Flush the output that can be flushed at once, then close every link and the listener."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for link in self._links.values():
            link.writer.close()
        self._strangers.cut()
        if self._accepted:
            await asyncio.wait(list(self._accepted), timeout=self._silence)
        dials = list(self._dials.values())
        for task in [*dials, *self._accepted]:
            task.cancel()
        if dials:
            await asyncio.wait(dials)

    def send(self, peer: str, frame: bytes) -> bool:
        """Queue an encoded frame; return False when there is no link, or it had to be cut because the peer is too
        slow."""
        link = self._links.get(peer)
        if link is None or (transport := link.writer.transport).is_closing():
            return False
        self._unspoken.pop(peer, None)
        transport.write(frame)
        if transport.get_write_buffer_size() > MAX_UNSENT:
            self._runtime.log("link cut: too much unsent", level="warning", peer=peer)
            link.cut()
            return False
        return True

    def missing(self) -> list[str]:
        """Return the peers without a link."""
        return [name for name in self._others() if name not in self._links]

    def unspoken(self) -> list[str]:
        """Return the peers to which nothing was sent since their link came up."""
        return list(self._unspoken)

    def last_heard(self) -> list[tuple[str, float]]:
        """Return the peers with a link, each with the time by this node's clock when it was heard last."""
        return [(peer, self._heard[peer]) for peer in self._links if peer in self._heard]

    def _note_heard(self, peer: str) -> None:
        self._heard[peer] = self._runtime.now()
        self._times_heard[peer] = self._times_heard.get(peer, 0) + 1

    def times_heard(self, peer: str) -> int:
        """Return the number of times that the peer was heard."""
        return self._times_heard.get(peer, 0)

    def silent_for(self, peer: str) -> float:
        """Return the seconds since the peer was heard last; infinite when it never was."""
        return self._runtime.now() - self._heard.get(peer, float("-inf"))

    def forgive(self, seconds: float) -> None:
        """Exclude ``seconds`` in which this node itself was stopped from the peers' silence."""
        now = self._runtime.now()
        for peer in self._heard:
            self._heard[peer] = min(now, self._heard[peer] + seconds)

    def forget(self, peer: str) -> None:
        """Treat the peer, which has announced that it stops, as if it had never been heard."""
        self._heard.pop(peer, None)

    def exempt(self, peer: str, seconds: float) -> None:
        """Don't cut the link with a peer for its silence until then: it is busy with the state it was sent."""
        self._exempt_until[peer] = self._runtime.now() + seconds

    def exempted(self) -> list[str]:
        """Return the peers whose links are not cut for their silence now."""
        now = self._runtime.now()
        return [peer for peer, until in self._exempt_until.items() if until > now]

    def cut_silent(self) -> None:
        """Cut every link that has been silent for too long."""
        now = self._runtime.now()
        for peer, link in list(self._links.items()):
            silent = now - self._heard.get(peer, float("-inf"))
            if silent > self._silence and now >= self._exempt_until.get(peer, now):
                self.silent_cut = peer, silent
                self.cut(peer, link, "silent")

    def cut(self, peer: str, link: _Link | None = None, reason: str = "") -> None:
        """Cut the link to a peer, if there is one (or if it still is ``link``); it will be dialled again."""
        current = self._links.get(peer)
        if current is not None and link in (None, current):
            del self._links[peer]
            self._exempt_until.pop(peer, None)
            self._unspoken.pop(peer, None)
            current.cut()
            self._runtime.log("link down", peer=peer, reason=reason)
            self._events.link_down(peer)

    async def _dial(self, peer: str) -> None:
        while peer in self._dialled:
            # The peer may have dialled while the two disagree on who dials, until both logs have the change.
            if peer not in self._links:
                host, port = self._addresses[peer]
                try:
                    async with within(max(self._silence / 2, 0.05)):
                        link = await self._open(peer, host, port)
                except (OSError, TimeoutError, UnicodeError, LinkError, asyncio.IncompleteReadError) as error:
                    if isinstance(error, (LinkError, UnicodeError)):  # UnicodeError: not a valid host name
                        self._complaints.tell(peer, str(error))
                else:
                    await self._run(peer, link)
            await asyncio.sleep(self._retry * (0.5 + self._runtime.random.random() / 2))
        del self._dials[peer]

    async def _open(self, peer: str, host: str, port: int) -> _Link:
        reader, writer = await self._runtime.connect(host, port)
        try:
            await self._handshake.dial(reader, writer, peer)
        except BaseException:
            writer.transport.abort()
            raise
        return _Link(reader, writer, FrameParser())

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with self._strangers.waiting(writer):
                async with within(max(self._silence, 0.1)):
                    peer = await self._handshake.accept(reader, writer, self._others())
        except (OSError, TimeoutError, LinkError, asyncio.IncompleteReadError) as error:
            if isinstance(error, LinkError):
                self._complaints.tell("", str(error))
            writer.transport.abort()
            return
        if peer not in self._addresses:  # forgotten while it introduced itself (``retain``)
            writer.transport.abort()
            return
        task = asyncio.current_task()
        if task is not None:
            self._accepted[task] = None
        try:
            await self._run(peer, _Link(reader, writer, FrameParser()))
        finally:
            if task is not None:
                del self._accepted[task]

    async def _run(self, peer: str, link: _Link) -> None:
        if self._stopping:
            link.cut()
            return
        self.cut(peer, reason="replaced by a new link")
        self._links[peer] = link
        self._unspoken[peer] = None
        self._note_heard(peer)
        self._complaints.forget(peer)
        self._runtime.log("link up", peer=peer)
        self._runtime.point(LINKED)
        self._events.link_up(peer)
        reading = _Reading(lambda data: self._take(peer, link, data))
        reason = "closed by the peer"
        try:
            over = link.reader.at_eof() or link.writer.transport.is_closing()
            link.writer.transport.set_protocol(reading)
            link.reader.feed_eof()
            reading.data_received(await link.reader.read())  # input that arrived with the end of the handshake
            if not over or reading.over.done():
                await reading.over
        except OSError as error:
            reason = str(error) or type(error).__name__
        except LinkError as error:
            reason = str(error)
        finally:
            link.cut()
            self.cut(peer, link, reason)

    def _take(self, peer: str, link: _Link, data: bytes) -> None:
        if self._links.get(peer) is link:
            self._runtime.point(HEARD)
            self._note_heard(peer)
            frames = link.parser.feed(data)
            if frames:
                self._events.frames(peer, frames)
