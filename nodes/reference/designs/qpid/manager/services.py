"""The services of one node: ``backup``, which runs the broker, and ``primary``, the role to which it is promoted.

The broker asks four times per lease for permission to continue (``Lessor``); it ends itself after a lease without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from nodes.reference.api import Runtime
from nodes.reference.designs.qpid.control import Control, RequestDeclined, RequestUnanswered
from nodes.reference.designs.qpid.manager.membership import NEVER, Answers, ManagerMembership
from nodes.reference.designs.qpid.manager.note import Note
from nodes.reference.designs.qpid.manager.options import ManagerOptions
from nodes.reference.designs.qpid.manager.programs import BROKER, ProgramError, Programs
from nodes.reference.designs.qpid.manager.record import ManagerRecord, RecordStore
from nodes.reference.designs.qpid.manager.report import STOPPED, Report, of_status
from nodes.reference.points import NOTE_TAKEN, PROMOTING

BACK_OFF = 1.0
"""Seconds between the end of a broker and its next start."""
STOP_SECONDS = 3.0
"""Time limit for a broker to end in order when its manager is stopped."""
_UNABLE = 3
"""Leases for which a broker that should be promoted may fail to answer."""
_REST_POLLS = 2
"""The number of successive reports of being stopped after which the requester of the shutdown must have its answer."""
_PRIMARY = "primary"


class BrokerSupervisor:
    """Starts, watches, promotes and ends this node's broker, and limits the time for which it may continue."""

    def __init__(self, runtime: Runtime, options: ManagerOptions, programs: Programs, control: Control,
                 store: RecordStore, membership: ManagerMembership, answers: Answers,
                 changed: Callable[[], None]) -> None:
        """Create the supervisor. ``changed`` is called when others should learn at once of a change here."""
        self._changed = changed
        self._runtime, self._options, self._programs, self._control = runtime, options, programs, control
        self._store, self._membership, self._answers = store, membership, answers
        self._began = runtime.now()
        self.process = ""
        self._seen_at = 0.0
        self.asked_at: float | None = None
        self._stamp = NEVER
        """The time at which this manager sent the newest heartbeat on which a grant to the present process rests."""
        self.starts = 0
        self.polls = 0
        """The number of status requests to the broker."""
        self._start_at = NEVER
        self.cleared = 0
        self._cleared_at = 0.0
        self._bootstrap = False
        self._lacking: tuple[str, ...] = ()
        self.promoting = False
        self._serving = ("", 0)
        """The process that has reported itself primary, and the term in which it was promoted."""
        self._let_until = NEVER
        self._declined = 0
        self.left = False
        self._rest_polls = 0
        """The number of successive reports in which the broker is stopped."""
        self._report = Report()
        self.wake = asyncio.Event()
        self.heeded = 0
        """The last term for which it has checked whether to promote the broker."""
        self.rests = False
        """Whether it waits for a reason to check again."""

    @property
    def promoted(self) -> int:
        """The term in which the present process was promoted, or is being promoted; 0 if it is a backup."""
        record = self._store.record
        return record.promoted if self.process and record.process == self.process else 0

    def report(self) -> Report:
        """Return the report for other managers."""
        return replace(self._report, promoted=self.promoted, finished=self._store.record.finished,
                       declined=self._declined)  # fmt: skip

    def has_quorum(self, now: float) -> bool:
        """Tell whether a majority of managers has recently heard this one."""
        return self._membership.quorum_since(now) + self._options.lease >= now

    def primary_until(self) -> float:
        """Return the end of the permission of this node's broker as primary, provided that it reports so; NEVER without
        one.
        """
        term = self.promoted
        right = term and self._serving == (self.process, term) and self._is_primary_of(term)
        return self._let_until if right else NEVER

    def clear(self, term: int, bootstrap: bool, lacking: Sequence[str]) -> None:
        """Note that the coordinator permits this node's broker to be promoted in that term (``Beat``)."""
        if term != self.cleared:
            self.cleared, self._cleared_at = term, self._runtime.now()
            self.wake.set()
        self._bootstrap, self._lacking = bootstrap, tuple(lacking)

    def grant(self, told: int, version: int, excluded: Sequence[str]) -> tuple[float, int, int] | None:
        """Return the seconds from now for which the broker may continue, the term of which it is primary (0: as a
        backup), and the version of its note that a majority has stored. None: it may not continue.

        Args:
            told: the term of which it believes to be primary. Another term is that of an earlier process, whose last
                messages may arrive late: its note is not this one's.
            version: the version of the note that it requests, 0 for none.
            excluded: the backups without which it is about to confirm.
        """
        now, term = self._runtime.now(), self.promoted
        self.asked_at = now
        if not self.process or (term and not self._is_primary_of(term)):
            return None
        since = self._membership.backed_since(term, now) if term else self._membership.quorum_since(now)
        seconds = since + self._options.lease - now
        if seconds <= 0:
            return None
        if term:
            self._answers.backed(now)
            self._let_until = since + self._options.lease
        self._stamp = max(self._stamp, since)
        return seconds, term, self._note(term, version, excluded) if term and told == term else 0

    def _note(self, term: int, version: int, excluded: Sequence[str]) -> int:
        """Store a primary's note; return the newest version that a majority has."""
        record = self._store.record
        if (term, version) > record.note.order:
            self._store.save(record._replace(note=Note(term, version, tuple(excluded))))
            self._runtime.point(NOTE_TAKEN)
            self._changed()
        noted = self._store.record.note
        return self._membership.noted_version(term, noted.version if noted.term == term else 0)

    @property
    def at_rest(self) -> bool:
        """Tell whether the broker is stopped because the whole cluster was shut down in order."""
        return self._rest_polls >= _REST_POLLS

    def leave(self) -> None:
        """Note the orderly shutdown of the whole cluster: the broker is neither restarted nor promoted."""
        self.left = True

    async def supervise(self) -> None:
        """Keep the broker running as long as there is quorum, until this is cancelled."""
        while True:
            await self._look()
            await asyncio.sleep(self._options.heartbeat / 2)

    async def converse(self) -> None:
        """Poll the broker's status, and promote it when it is time, until this is cancelled."""
        while True:
            await self._poll()
            self.wake.clear()  # before the check: news that arrives during a promotion is checked next
            await self._promote_if_due()
            self.rests = True
            try:
                await asyncio.wait_for(self.wake.wait(), self._options.heartbeat)
            except TimeoutError:
                continue
            finally:
                self.rests = False

    async def stop(self) -> None:
        """End the broker in order."""
        self._control.close()
        try:
            await self._programs.stop(BROKER, STOP_SECONDS)
        except ProgramError as error:
            self._runtime.log("broker does not end", level="error", error=str(error))

    def _is_wanted(self) -> bool:
        """Tell whether this node's broker is to be promoted now."""
        term = self.cleared
        return term > self._store.record.finished and self._is_primary_of(term)

    def _is_primary_of(self, term: int) -> bool:
        record = self._store.record
        return (record.term, record.primary) == (term, self._membership.node)

    # The process.

    async def _look(self) -> None:
        state = await self._programs.state(BROKER)
        now = self._runtime.now()
        process = state.process if state.running else ""
        if process != self.process:
            if self.process:
                self._runtime.log("broker ended", process=self.process, term=self.promoted)
                self._start_at = now + BACK_OFF
            self.process, self._seen_at, self.asked_at, self._stamp = process, now, None, NEVER
            self._let_until = NEVER
            self._report = Report()
            self._control.close()
        if self._store.record.process not in ("", process):
            self._finish(self._store.record.promoted)
        if not process:
            await self._start_if_due(now)
        elif why := self._must_end(now):
            self._runtime.log("ending broker", level="warning", why=why, term=self.promoted)
            await self._end()

    def _must_end(self, now: float) -> str:
        """Return why the broker has to be ended; empty if it may continue."""
        options, term = self._options, self.promoted
        if term and not self._is_primary_of(term):
            return f"{self._store.record.primary} is primary"
        if self._options.cold and not term and not self._is_wanted() and now > self._began + options.lease:
            return "it is not to be primary"
        if self._report.state == _PRIMARY and not term:
            return "it is primary without having been promoted by a manager"
        if self.asked_at is None and now > self._seen_at + options.start_limit:
            return "it never asked whether it may go on"
        if now <= self._began + options.lease:
            return ""  # no member has had the time to answer this manager
        if not self.has_quorum(now):
            return "no quorum"
        if term and self._membership.backed_since(term, now) + options.lease < now:
            return "the primary's lease ran out"
        # It has ended itself already, unless it hangs.
        if self.asked_at is not None and now > self.asked_at + options.caution + options.lease:
            return "it does not ask whether it may go on"
        return ""

    async def _start_if_due(self, now: float) -> None:
        if self.left or self.promoting or now < self._start_at or not self.has_quorum(now):
            return
        if self._options.cold and not self._is_wanted():
            return
        try:
            await self._programs.start(BROKER)
        except ProgramError as error:
            self._runtime.log("broker does not start", level="error", error=str(error))
        else:
            self.starts += 1
            self._runtime.log("broker started" if self.starts == 1 else "broker restarted", starts=self.starts)
        self._start_at = self._runtime.now() + BACK_OFF

    async def _end(self) -> None:
        try:
            await self._programs.kill(BROKER)
        except ProgramError as error:
            self._runtime.log("broker does not end", level="error", error=str(error))

    # Its roles.

    async def _poll(self) -> None:
        process, record = self.process, self._store.record
        if not process:
            return
        try:
            status = await self._control.ask({"op": "status"}, self._options.lease)
            report = of_status(status, record.ballot, self.promoted, record.finished)
        except (RequestUnanswered, RequestDeclined, ValueError):
            status, report = {}, Report()
        self.polls += 1
        if process == self.process:
            rests = report.state == STOPPED and status.get("shutting_down") is not True
            self._rest_polls = self._rest_polls + 1 if rests else 0
            self._report = report
            if report.up:
                self._serving = (process, self.promoted) if report.state == _PRIMARY else ("", 0)

    async def _promote_if_due(self) -> None:
        now, record, term = self._runtime.now(), self._store.record, self.cleared
        self.heeded = term
        if self.left:
            return
        if self.promoted and self._is_primary_of(self.promoted):
            if self._report.up and self._report.state not in (_PRIMARY, STOPPED):
                await self._promote(self.promoted)  # an earlier manager may have died before its request
            return
        if not term or not self._is_primary_of(term) or term <= max(record.promoted, record.finished):
            return
        if record.process:
            return  # primary of an earlier term, which has to end first
        if not self.process or not self._report.up or self._stamp == NEVER:
            # A cold one may have to read a large store.
            limit = self._options.start_limit if self._options.cold and self.process else _UNABLE * self._options.lease
            if now > self._cleared_at + limit:
                self._declined = term
                self._refuse(term, "the broker does not answer, or has not asked whether it may go on")
            return
        # Its grant as a backup must not reach beyond the grant of the majority that backs this term.
        if self._membership.backed_since(term, now) < max(self._stamp, now - self._options.lease):
            return
        # If the other members have not learned of a later note of an earlier primary by now, they never will.
        note = max(record.note, Note(term, 0, self._lacking), key=lambda each: each.order)
        self._store.save(record._replace(promoted=term, process=self.process, note=note))
        self._answers.backed(now)
        self._runtime.point(PROMOTING)
        await self._promote(term)

    async def _promote(self, term: int) -> None:
        request = {"op": "promote", "term": term, "bootstrap": self._bootstrap, "force": False}
        self.promoting = True  # no other process may take the place of the one that got the request
        try:
            await self._control.ask(request, self._options.promotion_limit)
        except RequestDeclined as error:
            self._declined = term
            self._refuse(term, str(error))
        except RequestUnanswered as error:
            self._runtime.log("promotion failed", level="warning", term=term, error=str(error))
            await self._end()
        else:
            self._runtime.log("primary started", term=term, bootstrap=request["bootstrap"])
            self._serving = (self.process, term)
            self._changed()
        finally:
            self.promoting = False

    def _refuse(self, term: int, why: str) -> None:
        self._runtime.log("primary refused", level="warning", term=term, why=why)
        self._finish(term)

    def _finish(self, term: int) -> None:
        """Note that the broker is not primary in that term, and never will be."""
        record: ManagerRecord = self._store.record
        self._store.save(record._replace(finished=max(term, record.finished), process=""))
        self._changed()
