"""A server's side of the lock: seeks and renews it, measures its lease, and releases it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from nodes.reference.api import Runtime
from nodes.reference.designs.fiorano.configuration import FioranoOptions
from nodes.reference.designs.fiorano.gateway.grants import ANY
from nodes.reference.designs.fiorano.gateway.protocol import (
    GRANTED,
    HELD,
    LOST,
    MAX_FRAME,
    OPEN,
    OPENED,
    PROTOCOL,
    REFUSED,
    RELEASE,
    RELEASED,
    RENEW,
    SERVICE,
    STALE,
    TAKE,
)
from nodes.reference.points import EPOCH_ASKED, LOCK_ENDS
from nodes.reference.points import GRANTED as LOCK_GRANTED
from nodes.reference.replication.handshake import ComplaintLog, FrameParser, Handshake, LinkError, encode_frame
from nodes.timeouts import within

_RENEWALS_PER_LEASE = 5
"""Requests per lease."""
_LATE_SHARE_OF_LEASE = 0.4
"""Share of a lease that is left when it has nearly ended."""


class Wish(NamedTuple):
    """A server's demand for the lock.

    ``low`` is the epoch in which its repository was up to date. ``other`` is the highest epoch that the other server
    may have asked for, as that server says (``grants.Take``). ``above``: only an epoch later than this one is
    acceptable.
    """

    low: int
    other: int
    above: int = 0


class GatewayLock:
    """The lock that the gateway grants.

    Args:
        asked: the highest epoch that was ever asked for, according to the repository.
        note: writes such an epoch to the repository; it is on disk when this returns.
        changed: called when the lock is obtained or lost.
    """

    def __init__(self, runtime: Runtime, node: str, options: FioranoOptions, asked: int, note: Callable[[int], None],
                 changed: Callable[[], None]) -> None:
        self._runtime, self._options = runtime, options
        self._handshake = Handshake(PROTOCOL, options.cluster, node, options.secret, runtime.random)
        self._complaints = ComplaintLog(runtime, "lock refused")
        self._asked = self._settled = asked
        self._note, self._changed = note, changed
        self.wish: Wish | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.until = -math.inf
        self._known = False
        self.number = 0
        self._outstanding = False
        self.awaited: int | None = None
        """The number of the unanswered request; None if there is none."""
        self._newest = 0
        """The highest epoch that the gateway has reported."""
        self.said: tuple[Hashable, ...] = ()
        """The subject of this connection's last request."""
        self.epoch = 0
        self.connected = False
        """Whether there is a connection with the gateway."""

    @property
    def asked(self) -> int:
        """The highest epoch that this server has ever asked for."""
        return self._asked

    @property
    def settled(self) -> int:
        """The highest disowned epoch; epochs that may still be granted, or that are held but not yet used, are
        excluded.
        """
        if not self._outstanding and self.epoch < self._asked:
            self._settled = self._asked
        return self._settled

    def use(self) -> None:
        """Note that the server serves in the epoch that it holds."""
        self._settled = max(self._settled, self.epoch)

    def holds(self) -> bool:
        """Tell whether the lease runs, by this server's clock, counted from when the request was sent."""
        return self.epoch > 0 and self._runtime.now() < self.until

    def looked_at(self) -> bool:
        """Tell whether the lease ran at the last ``tick``."""
        return self._known

    def want(self, wish: Wish | None) -> None:
        """Seek or keep the lock; None: release it."""
        if wish != self.wish:
            self.wish = wish
            self._wake.set()
        if wish is None:
            self._known = False

    def start(self) -> None:
        """Begin to talk to the gateway."""
        self._task = self._runtime.spawn(self._talk_forever(), "gateway")

    def stop(self) -> None:
        """Stop; the lease runs out by itself."""
        if self._task is not None:
            self._task.cancel()

    def tick(self) -> None:
        """Check whether the lease has ended."""
        if self._known and self.until - self._runtime.now() < _LATE_SHARE_OF_LEASE * self._options.lease:
            self._runtime.point(LOCK_ENDS)
        if self._known and not self.holds():
            self._known = False
            self._runtime.log("lock lost", epoch=self.epoch, why="the lease ended")
            self._changed()

    async def _talk_forever(self) -> None:
        lease = self._options.lease
        while True:
            try:
                async with within(lease):
                    reader, writer = await self._runtime.connect(*self._options.layer.gateway)
                try:
                    async with within(lease):
                        await self._handshake.dial(reader, writer, SERVICE)
                        parser = FrameParser(MAX_FRAME)
                        await self._open(reader, writer, parser)
                    self._complaints.forget(SERVICE)
                    self.connected = True
                    await self._talk(reader, writer, parser)
                finally:
                    self._outstanding, self.awaited, self.connected, self.said = False, None, False, ()
                    writer.transport.abort()
            except LinkError as error:
                self._complaints.tell(SERVICE, str(error))
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                pass  # the gateway is down or suspended: the lease runs out
            await asyncio.sleep(lease / _RENEWALS_PER_LEASE)

    async def _open(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parser: FrameParser) -> None:
        """Report the lock file that this server is configured for; raises LinkError if the gateway has another one."""
        self.number += 1
        writer.write(encode_frame([OPEN, self.number, self._options.layer.lockfile]))
        match await _read(reader, parser):
            case [str(kind), int(number)] if (kind, number) == (OPENED, self.number):
                pass
            case [str(kind), int(number), str(reason)] if (kind, number) == (REFUSED, self.number):
                raise LinkError(reason)
            case _:
                raise LinkError(f"the gateway's first answer is neither {OPENED} nor {REFUSED}")

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parser: FrameParser) -> None:
        lease = self._options.lease
        while True:
            self._wake.clear()
            request = self._request()
            if request is not None:
                sent, self.said = self._runtime.now(), self.about()
                self.number += 1
                asked, *arguments = request
                self._outstanding = asked == TAKE
                if asked == RELEASE:
                    # From now on the gateway may grant it to the other server, no matter when the answer arrives.
                    self.until = -math.inf
                writer.write(encode_frame([asked, self.number, *arguments]))
                self.awaited = self.number
                async with within(lease):
                    answer = await _read(reader, parser)
                self._outstanding, self.awaited = False, None
                self._take(request, sent, answer)
                if self._request() not in (None, request):
                    continue  # the next request need not wait
            try:
                async with within(lease / _RENEWALS_PER_LEASE):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def about(self) -> tuple[Hashable, ...]:
        """Return the subject of the next request; empty if there is nothing to ask."""
        wish = self.wish
        if wish is None:
            return (RELEASE, self.epoch) if self.epoch else ()
        return (RENEW, self.epoch) if self.epoch > wish.above else (TAKE, wish)

    def _request(self) -> list[Any] | None:
        wish = self.wish
        if wish is None:
            return [RELEASE, self.epoch] if self.epoch else None
        if self.epoch > wish.above:
            return [RENEW, self.epoch]
        return [TAKE, wish.low if self._options.fencing else ANY, self._asked, wish.other, self._proposal(wish)]

    def _proposal(self, wish: Wish) -> int:
        """Return an epoch to ask for that this server has not disowned; it is on disk before it is used."""
        if self._asked <= max(self._settled, wish.low, wish.other, wish.above, self._newest):
            self._asked = max(self._asked, wish.low, wish.other, wish.above, self._newest) + 1
            self._note(self._asked)
            self._runtime.point(EPOCH_ASKED)
        return self._asked

    def _take(self, request: list[Any], sent: float, answer: Any) -> None:
        match answer:
            case [str(kind), int(number), *rest] if number == self.number:
                pass
            case _:
                raise LinkError("the gateway's answer is malformed")
        match kind, rest:
            case "granted", [int(epoch)] if epoch == request[-1]:
                self._granted(request[0], epoch, sent)
            case "lost", [int(epoch)]:
                self._newest = max(self._newest, epoch)
                self._lose("the gateway says so")
            case "held" | "stale", [int(epoch)]:
                self._newest = max(self._newest, epoch)
                if kind == STALE:
                    self._complaints.tell("", "the lock was held since this repository was up to date", level="info",
                                          epoch=epoch, repository=request[1])
            case "released", []:
                self.epoch = 0
            case "refused", [str(reason)]:
                self._complaints.tell("", reason)
            case _:
                raise LinkError(f"the gateway's answer is none of {GRANTED}, {HELD}, {STALE}, {LOST}, {RELEASED}, "
                                f"{REFUSED}")

    def _granted(self, asked: str, epoch: int, sent: float) -> None:
        held, self.until = self.holds(), sent + self._options.lease
        self._newest = max(self._newest, epoch)
        if asked == TAKE:
            self.epoch = epoch
            self._runtime.log("lock obtained", epoch=epoch)
        self._runtime.point(LOCK_GRANTED)
        known, self._known = self._known, self.wish is not None
        # A renewed lease that had ended without ``tick`` noticing counts as a change.
        if self._known and (not known or not held or asked == TAKE):
            self._changed()

    def _lose(self, why: str) -> None:
        epoch, self.epoch, known, self._known = self.epoch, 0, self._known, False
        if known:
            self._runtime.log("lock lost", epoch=epoch, why=why)
            self._changed()


class NoLock:
    """The behaviour before the locking mechanism: every server acts as if it held the lock."""

    def __init__(self, asked: int, note: Callable[[int], None]) -> None:
        self.epoch = self._asked = asked
        self._note = note

    @property
    def asked(self) -> int:
        """The highest epoch so far."""
        return self._asked

    @property
    def settled(self) -> int:
        """Every epoch, because no gateway grants any."""
        return self._asked

    def use(self) -> None:
        """Do nothing: uses of an epoch need not be tracked."""

    def holds(self) -> bool:
        """Return True: every server acts as if it held the lock."""
        return True

    looked_at = holds

    def want(self, wish: Wish | None) -> None:
        """Adopt a later epoch at once if one is wanted."""
        if wish is not None and self.epoch <= max(wish.low, wish.above):
            self.epoch = self._asked = max(self._asked, wish.low, wish.above) + 1
            self._note(self._asked)

    def start(self) -> None:
        """Do nothing: no connection has to be opened."""

    def stop(self) -> None:
        """Do nothing: no connection has to be closed."""

    def tick(self) -> None:
        """Do nothing: the lock can't be lost."""


ServerLock = GatewayLock | NoLock
"""A server's side of the lock."""


async def _read(reader: asyncio.StreamReader, parser: FrameParser) -> Any:
    frames: list[Any] = []
    while not frames:
        data = await reader.read(MAX_FRAME)
        if not data:
            raise LinkError("the gateway hung up")
        frames = parser.feed(data)
    if len(frames) > 1:
        raise LinkError("the gateway answers what it was not asked")
    return frames[0]
