"""A broker asks its manager whether it may go on.

The manager answers while it has quorum. What it grants counts from when the broker asked, by the broker's own clock, so
that a late answer never grants more than was meant.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from nodes.reference.api import Runtime
from nodes.reference.points import PERMISSION_ENDS, PERMITTED
from nodes.reference.replication.links import Complaints, FrameParser, Handshake, LinkError, encode_frame
from nodes.timeouts import within

PROTOCOL = "stormproof-qpid-manager/1"
_PATIENCE = 5
"""Leases for which a broker that was just started waits for the first grant."""
_MOST = 1 << 16
"""Bytes of a manager's frame."""
_LATE = 0.5
"""Share of a lease that is left when it has nearly ended."""
_ROUNDING = 1.001
"""Times are floats."""


class ManagerPermission:
    """The lease that a manager gives, and what it has recorded; ``changed`` is called at each answer."""

    def __init__(self, runtime: Runtime, node: str, cluster: str, secret: str, address: tuple[str, int], lease: float,
                 changed: Callable[[], None]) -> None:
        self._runtime, self._node, self._address, self._lease = runtime, node, address, lease
        self._handshake = Handshake(PROTOCOL, cluster, node, secret, runtime.random)
        self._complaints = Complaints(runtime, "no word of the manager")
        self._changed = changed
        self._patience = runtime.now() + _PATIENCE * lease
        self._until = self._let_until = -math.inf
        """Until when it may go on, and until when it was let go on whatever it has become since."""
        self.term = 0
        """The term in which this broker was promoted; 0: it is a backup, and any grant will do."""
        self._version = 0
        self._wanted: tuple[str, ...] = ()
        self._recorded: dict[int, tuple[str, ...]] = {}
        self._known: tuple[str, ...] | None = None
        """Who is recorded as excluded; None until a record is confirmed."""
        self._times_asked = 0
        self._rests = False
        """Whether it has an answer, and is to ask again by itself."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._task = self._runtime.spawn(self._ask_forever(), "manager's permission")

    def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    def lead(self, term: int) -> None:
        """The broker is primary of this term (0: a backup again): grants and records of others count no longer."""
        if term == self.term:
            return
        self.term = term
        self._until, self._patience = -math.inf, self._runtime.now() + 2 * self._lease
        self._version, self._wanted, self._known = 0, (), None
        self._recorded.clear()

    def holds(self) -> bool:
        """Whether the broker may confirm and deliver now."""
        return self._runtime.now() < self._until

    @property
    def until(self) -> float:
        """By this broker's clock, until when it may."""
        return self._until

    def resting(self) -> list[int]:
        """The answer after which it is to ask again by itself, told by its number, if it has that."""
        return [self._times_asked] if self._rests else []

    def unrecorded(self) -> int:
        """The newest version that was asked for, if it is not known to be recorded; else 0."""
        known = min(self._recorded) if self._known is not None else 0
        return self._version if self._version > known else 0

    @property
    def asked_for(self) -> tuple[str, ...] | None:
        """Whom it asked to be recorded last; None: nobody yet, so that an earlier primary's record counts."""
        return self._wanted if self._version else None

    def knows(self, excluded: Sequence[str]) -> bool:
        """Whether whoever promotes knows that these backups may lack what is confirmed, by all that was asked for."""
        return self._known is not None and all(set(excluded) <= set(names) for names in self._recorded.values())

    def lost(self) -> bool:
        """Whether it must end itself: its lease has run out, or nobody has let it go on for a while after its start."""
        return not self.holds() and self._runtime.now() > self._patience

    def was_let(self) -> bool:
        """Whether some grant that it was given still runs, be it for what it was before."""
        return self._runtime.now() < self._let_until

    def recorded(self, excluded: Sequence[str]) -> bool:
        """Whether whoever promotes knows that these backups may lack what is confirmed; asks for it if not."""
        wanted = tuple(excluded)
        if wanted != self._wanted or not self._version:
            self._wanted = wanted
            self._version += 1
            self._recorded[self._version] = wanted
        # A version that was asked for since may be taken later, and hold until the next one is.
        return self.knows(wanted)

    def missing(self, excluded: Sequence[str]) -> None:
        """Have taken back what is recorded of others; who else is missing is recorded when something is to be confirmed
        without them. A primary that dies before that leaves backups which may be promoted."""
        if not self._version:
            self.recorded(excluded)  # an earlier primary's record is to be replaced, and who is in it is not known here
        elif not set(self._wanted) <= set(excluded):
            self.recorded([name for name in self._wanted if name in excluded])

    async def _ask_forever(self) -> None:
        while True:
            try:
                async with within(2 * self._lease):
                    reader, writer = await self._runtime.connect(*self._address)
                try:
                    await self._ask(reader, writer)
                finally:
                    writer.transport.abort()
            except LinkError as error:
                self._complaints.tell("manager", str(error))
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                pass  # it is not there, or stands still: the lease runs out
            await asyncio.sleep(self._lease / 8)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with within(2 * self._lease):
            await self._handshake.dial(reader, writer, f"{self._node}.manager")
        self._complaints.forget("manager")
        parser = FrameParser(_MOST)
        while True:
            if self.term and 0 < self._until - self._runtime.now() < _LATE * self._lease:
                self._runtime.point(PERMISSION_ENDS)
            self._rests, self._times_asked = False, self._times_asked + 1
            writer.write(encode_frame(["renew", self._runtime.now(), self.term, self._version, list(self._wanted)]))
            async with within(2 * self._lease):
                answers: list[Any] = []
                while not answers:
                    data = await reader.read(_MOST)
                    if not data:
                        raise LinkError("the manager hung up")
                    answers = parser.feed(data)
            for answer in answers:
                self._take(answer)
            self._rests = True
            behind = self._version not in self._recorded or self._known != self._wanted
            await asyncio.sleep(self._lease / (16 if behind and self._version else 4))

    def _take(self, answer: Any) -> None:
        if not (isinstance(answer, list) and list(map(type, answer)) == [str, float, float, int, int]):
            raise LinkError("a manager's answer is malformed")
        kind, sent, seconds, term, version = answer
        if kind != "granted":
            raise LinkError(f"a manager's answer is {kind[:20]!r}")
        if not (sent <= self._runtime.now() and seconds <= self._lease * _ROUNDING):
            raise LinkError("a manager grants more than a lease from when it was asked")
        if self.term not in (0, term):
            return
        self._until = max(self._until, sent + seconds)
        self._let_until = max(self._let_until, self._until)
        if version in self._recorded:
            self._known = self._recorded[version]
            self._recorded = {each: names for each, names in self._recorded.items() if each >= version}
        self._runtime.point(PERMITTED)
        self._changed()
