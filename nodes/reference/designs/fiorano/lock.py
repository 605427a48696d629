"""A server's side of the lock: seeks it, renews it, counts its lease, lets it go."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Hashable
from typing import Any, NamedTuple, Protocol

from nodes.reference.api import Pending, Runtime
from nodes.reference.bugs import LOCK_NOT_RECHECKED
from nodes.reference.designs.fiorano.configuration import Options
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
from nodes.reference.replication.links import Complaints, FrameParser, Handshake, LinkError, encode_frame
from nodes.timeouts import within

_RENEWALS = 5
"""Requests in the time of a lease."""
_LATE = 0.4
"""Share of a lease that is left when it has nearly ended."""


class Wish(NamedTuple):
    """What a server wants of the lock.

    ``low`` is the epoch in which its repository was up to date, ``other`` how far the other server may have asked, as
    that one says (``grants.Take``); ``above``: only an epoch later than this one will do.
    """

    low: int
    other: int
    above: int = 0


class Lock(Protocol):
    """The lock as a server sees it; ``epoch`` is that in which it holds the lock, 0 while it does not."""

    epoch: int

    @property
    def asked(self) -> int:
        """The highest epoch that this server has ever asked for."""
        ...

    @property
    def settled(self) -> int:
        """The highest epoch that this server has asked for and certainly will not come to use."""
        ...

    def holds(self) -> bool:
        """Whether this server holds the lock now."""
        ...

    def looked_at(self) -> bool:
        """The same, as far as was known when somebody last looked."""
        ...

    @property
    def seeks(self) -> bool:
        """Whether it is wanted."""
        ...

    def lease_left(self) -> float:
        """Seconds for which the lease will run; below 0 where none does, or none is needed."""
        ...

    def pending(self) -> Pending:
        """What is to be asked before long."""
        ...

    def want(self, wish: Wish | None) -> None:
        """Seek or keep the lock; None: let it go."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End; the lock is let go if there is time."""

    def tick(self) -> None:
        """Look whether the lease has ended."""


class GatewayLock:
    """The lock that the gateway grants.

    Args:
        asked: the highest epoch that was ever asked for, as the repository has it.
        note: writes such a number to the repository, which is on disk when it returns.
        changed: called when the lock was obtained, or is lost.
    """

    def __init__(self, runtime: Runtime, node: str, options: Options, asked: int, note: Callable[[int], None],
                 changed: Callable[[], None], bugs: frozenset[str] = frozenset()) -> None:
        self._runtime, self._options = runtime, options
        self._rechecked = LOCK_NOT_RECHECKED not in bugs
        self._handshake = Handshake(PROTOCOL, options.cluster, node, options.secret, runtime.random)
        self._complaints = Complaints(runtime, "lock refused")
        self._asked = self._settled = asked
        self._note, self._changed = note, changed
        self._wish: Wish | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._until = -math.inf
        self._known = False
        self._number = 0
        self._outstanding = False
        self._awaited: int | None = None
        """The number of the request that is not answered yet."""
        self._newest = 0
        """The highest epoch that the gateway has told of."""
        self._said: tuple[Hashable, ...] = ()
        """What this connection's last request was about."""
        self.epoch = 0
        self.connected = False
        """Whether there is a connection with the gateway."""

    @property
    def asked(self) -> int:
        """The highest epoch that this server has ever asked for."""
        return self._asked

    @property
    def settled(self) -> int:
        """What may not be used: nothing that was asked for and may yet be granted, or is held and not used yet."""
        if not self._outstanding and self.epoch < self._asked:
            self._settled = self._asked
        return self._settled

    def use(self) -> None:
        """The server serves in the epoch that it holds."""
        self._settled = max(self._settled, self.epoch)

    def holds(self) -> bool:
        """Whether the lease runs, by this server's clock, counted from when it was asked for."""
        return self.epoch > 0 and (self._runtime.now() < self._until or not self._rechecked)

    def looked_at(self) -> bool:
        """Whether it ran when ``tick`` last looked."""
        return self._known

    @property
    def seeks(self) -> bool:
        """Whether the gateway is asked for it."""
        return self._wish is not None

    def lease_left(self) -> float:
        """Seconds for which the lease will run, by this server's clock; below 0 where none does."""
        return self._until - self._runtime.now() if self.epoch else -math.inf

    def pending(self) -> Pending:
        """What the gateway is to be asked before long."""
        found: dict[str, Collection[Hashable]] = {}
        if self.connected and self._awaited is None and (about := self._about()):
            found["asking"] = [self._number]
            if about != self._said:
                found["unasked"] = [about[0]]
        if not self.connected:
            found["gateway"] = [""]
        elif self.epoch and self._wish is not None:
            found["renewal"] = [self._until]
        elif self._wish is not None:
            found["taking"] = [self._number]
        if self._awaited is not None:
            found["answer"] = [self._awaited]
        return found

    def want(self, wish: Wish | None) -> None:
        """Seek or keep the lock; None: let it go."""
        if wish != self._wish:
            self._wish = wish
            self._wake.set()
        if wish is None:
            self._known = False

    def start(self) -> None:
        """Begin to talk with the gateway."""
        self._task = self._runtime.spawn(self._talk_forever(), "gateway")

    def stop(self) -> None:
        """End; the lease runs out by itself."""
        if self._task is not None:
            self._task.cancel()

    def tick(self) -> None:
        """Look whether the lease has ended."""
        if self._known and self._until - self._runtime.now() < _LATE * self._options.lease:
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
                    self._outstanding, self._awaited, self.connected, self._said = False, None, False, ()
                    writer.transport.abort()
            except LinkError as error:
                self._complaints.tell(SERVICE, str(error))
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                pass  # it is not there, or stands still: the lease runs out
            await asyncio.sleep(lease / _RENEWALS)

    async def _open(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parser: FrameParser) -> None:
        """Name the lock file that this server is configured for; raises LinkError where the gateway has another one."""
        self._number += 1
        writer.write(encode_frame([OPEN, self._number, self._options.layer.lockfile]))
        match await _read(reader, parser):
            case [str(kind), int(number)] if (kind, number) == (OPENED, self._number):
                pass
            case [str(kind), int(number), str(reason)] if (kind, number) == (REFUSED, self._number):
                raise LinkError(reason)
            case _:
                raise LinkError(f"the gateway's first answer is neither {OPENED} nor {REFUSED}")

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parser: FrameParser) -> None:
        lease = self._options.lease
        while True:
            self._wake.clear()
            request = self._request()
            if request is not None:
                sent, self._said = self._runtime.now(), self._about()
                self._number += 1
                asked, *arguments = request
                self._outstanding = asked == TAKE
                if asked == RELEASE:
                    # From now on it may be granted to the other server, whenever the answer comes.
                    self._until = -math.inf
                writer.write(encode_frame([asked, self._number, *arguments]))
                self._awaited = self._number
                async with within(lease):
                    answer = await _read(reader, parser)
                self._outstanding, self._awaited = False, None
                self._take(request, sent, answer)
                if self._request() not in (None, request):
                    continue  # what comes next need not wait
            try:
                async with within(lease / _RENEWALS):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _about(self) -> tuple[Hashable, ...]:
        """What the next request is about; empty: nothing is to be asked."""
        wish = self._wish
        if wish is None:
            return (RELEASE, self.epoch) if self.epoch else ()
        return (RENEW, self.epoch) if self.epoch > wish.above else (TAKE, wish)

    def _request(self) -> list[Any] | None:
        wish = self._wish
        if wish is None:
            return [RELEASE, self.epoch] if self.epoch else None
        if self.epoch > wish.above:
            return [RENEW, self.epoch]
        return [TAKE, wish.low if self._options.fencing else ANY, self._asked, wish.other, self._proposal(wish)]

    def _proposal(self, wish: Wish) -> int:
        """An epoch to ask for, which nobody has been told that this server will not use; it is on disk."""
        if self._asked <= max(self._settled, wish.low, wish.other, wish.above, self._newest):
            self._asked = max(self._asked, wish.low, wish.other, wish.above, self._newest) + 1
            self._note(self._asked)
            self._runtime.point(EPOCH_ASKED)
        return self._asked

    def _take(self, request: list[Any], sent: float, answer: Any) -> None:
        match answer:
            case [str(kind), int(number), *rest] if number == self._number:
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
        held, self._until = self.holds(), sent + self._options.lease
        self._newest = max(self._newest, epoch)
        if asked == TAKE:
            self.epoch = epoch
            self._runtime.log("lock obtained", epoch=epoch)
        self._runtime.point(LOCK_GRANTED)
        known, self._known = self._known, self._wish is not None
        # A lease that had ended, unseen by ``tick``, begins anew.
        if self._known and (not known or not held or asked == TAKE):
            self._changed()

    def _lose(self, why: str) -> None:
        epoch, self.epoch, known, self._known = self.epoch, 0, self._known, False
        if known:
            self._runtime.log("lock lost", epoch=epoch, why=why)
            self._changed()


class NoLock:
    """As before the locking mechanism: every server acts as if it held the lock."""

    def __init__(self, asked: int, note: Callable[[int], None]) -> None:
        self.epoch = self._asked = asked
        self._note = note

    @property
    def asked(self) -> int:
        """The highest epoch that there was."""
        return self._asked

    @property
    def settled(self) -> int:
        """All: nobody grants anything."""
        return self._asked

    def use(self) -> None:
        """Nothing has to be known of that."""

    def holds(self) -> bool:
        """Always."""
        return True

    looked_at = holds

    @property
    def seeks(self) -> bool:
        """Nobody is asked for it."""
        return False

    def lease_left(self) -> float:
        """There is no lease."""
        return -math.inf

    def pending(self) -> Pending:
        """Nobody is asked."""
        return {}

    def want(self, wish: Wish | None) -> None:
        """A later epoch at once, where one is wanted."""
        if wish is not None and self.epoch <= max(wish.low, wish.above):
            self.epoch = self._asked = max(self._asked, wish.low, wish.above) + 1
            self._note(self._asked)

    def start(self) -> None:
        """There is nothing to begin."""

    def stop(self) -> None:
        """There is nothing to end."""

    def tick(self) -> None:
        """Nothing can be lost."""


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
