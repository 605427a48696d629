"""The permission to continue, which a broker requests from its manager.

The manager answers while it has quorum. A grant counts from the time of the request, by the broker's clock, so that a
late answer never grants more than was meant.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from nodes.reference.api import Runtime
from nodes.reference.points import PERMISSION_ENDS, PERMITTED
from nodes.reference.replication.handshake import ComplaintLog, FrameParser, Handshake, LinkError, encode_frame
from nodes.timeouts import within

PROTOCOL = "stormproof-qpid-manager/1"
_FIRST_GRANT_LEASES = 5
"""Leases for which a broker that was just started waits for the first grant."""
_MAX_FRAME_BYTES = 1 << 16
"""Maximum size in bytes of a manager's frame."""
_LATE_SHARE_OF_LEASE = 0.5
"""Share of a lease that is left when it has nearly ended."""
_ROUNDING_FACTOR = 1.001
"""Tolerance for rounding errors, because times are floats."""


class ManagerPermission:
    """The lease that a manager grants, and the manager's records; ``changed`` is called at each answer."""

    def __init__(self, runtime: Runtime, node: str, cluster: str, secret: str, address: tuple[str, int], lease: float,
                 changed: Callable[[], None]) -> None:
        self._runtime, self._node, self._address, self._lease = runtime, node, address, lease
        self._handshake = Handshake(PROTOCOL, cluster, node, secret, runtime.random)
        self._complaints = ComplaintLog(runtime, "no word of the manager")
        self._changed = changed
        self._patience = runtime.now() + _FIRST_GRANT_LEASES * lease
        self.until = self.let_until = -math.inf
        """The end of the permission, and the end of any earlier one, regardless of role changes since."""
        self.term = 0
        """The term in which this broker was promoted; 0: it is a backup, and any grant applies."""
        self.version = 0
        self.wanted: tuple[str, ...] = ()
        self.versions: dict[int, tuple[str, ...]] = {}
        self.known: tuple[str, ...] | None = None
        """The backups that are recorded as excluded; None until a record is confirmed."""
        self.times_asked = 0
        self.rests = False
        """Whether it has an answer, and is due to ask again by itself."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._task = self._runtime.spawn(self._ask_forever(), "manager's permission")

    def stop(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()

    def lead(self, term: int) -> None:
        """Make the broker primary of this term (0: a backup again); grants and records of other terms lose effect."""
        if term == self.term:
            return
        self.term = term
        self.until, self._patience = -math.inf, self._runtime.now() + 2 * self._lease
        self.version, self.wanted, self.known = 0, (), None
        self.versions.clear()

    def holds(self) -> bool:
        """Tell whether the broker may confirm and deliver now."""
        return self._runtime.now() < self.until

    def knows(self, excluded: Sequence[str]) -> bool:
        """Tell whether the promoting manager knows, by every outstanding request, that these backups may lack confirmed
        data.
        """
        return self.known is not None and all(set(excluded) <= set(names) for names in self.versions.values())

    def lost(self) -> bool:
        """Tell whether it must end itself: its lease has run out, or it has had no permission for a while since its
        start.
        """
        return not self.holds() and self._runtime.now() > self._patience

    def recorded(self, excluded: Sequence[str]) -> bool:
        """Tell whether the promoting manager knows that these backups may lack confirmed data; if not, request a
        record.
        """
        wanted = tuple(excluded)
        if wanted != self.wanted or not self.version:
            self.wanted = wanted
            self.version += 1
            self.versions[self.version] = wanted
        # A version that was requested later may be recorded at any time, and apply until the next one is.
        return self.knows(wanted)

    def missing(self, excluded: Sequence[str]) -> None:
        """Revoke the records of other backups. A missing backup is recorded only when something is to be confirmed
        without it: if the primary dies before that, it leaves backups which may be promoted."""
        if not self.version:
            self.recorded(excluded)  # an earlier primary's record, whose content is unknown here, must be replaced
        elif not set(self.wanted) <= set(excluded):
            self.recorded([name for name in self.wanted if name in excluded])

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
                pass  # the manager is down or suspended: the lease runs out
            await asyncio.sleep(self._lease / 8)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with within(2 * self._lease):
            await self._handshake.dial(reader, writer, f"{self._node}.manager")
        self._complaints.forget("manager")
        parser = FrameParser(_MAX_FRAME_BYTES)
        while True:
            if self.term and 0 < self.until - self._runtime.now() < _LATE_SHARE_OF_LEASE * self._lease:
                self._runtime.point(PERMISSION_ENDS)
            self.rests, self.times_asked = False, self.times_asked + 1
            writer.write(encode_frame(["renew", self._runtime.now(), self.term, self.version, list(self.wanted)]))
            async with within(2 * self._lease):
                answers: list[Any] = []
                while not answers:
                    data = await reader.read(_MAX_FRAME_BYTES)
                    if not data:
                        raise LinkError("the manager hung up")
                    answers = parser.feed(data)
            for answer in answers:
                self._take(answer)
            self.rests = True
            behind = self.version not in self.versions or self.known != self.wanted
            await asyncio.sleep(self._lease / (16 if behind and self.version else 4))

    def _take(self, answer: Any) -> None:
        if not (isinstance(answer, list) and list(map(type, answer)) == [str, float, float, int, int]):
            raise LinkError("a manager's answer is malformed")
        kind, sent, seconds, term, version = answer
        if kind != "granted":
            raise LinkError(f"a manager's answer is {kind[:20]!r}")
        if not (sent <= self._runtime.now() and seconds <= self._lease * _ROUNDING_FACTOR):
            raise LinkError("a manager grants more than a lease from when it was asked")
        if self.term not in (0, term):
            return
        self.until = max(self.until, sent + seconds)
        self.let_until = max(self.let_until, self.until)
        if version in self.versions:
            self.known = self.versions[version]
            self.versions = {each: names for each, names in self.versions.items() if each >= version}
        self._runtime.point(PERMITTED)
        self._changed()
