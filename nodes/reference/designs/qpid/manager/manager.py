"""The complete manager: heartbeats among all members, decisions, and the services of this node."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from nodes.reference.api import Runtime
from nodes.reference.designs.qpid.control import Control
from nodes.reference.designs.qpid.manager.addresses import Addresses
from nodes.reference.designs.qpid.manager.config import ManagerConfig
from nodes.reference.designs.qpid.manager.coordinator import Coordinator
from nodes.reference.designs.qpid.manager.lease_server import LeaseServer
from nodes.reference.designs.qpid.manager.membership import Answers, ManagerMembership
from nodes.reference.designs.qpid.manager.messages import Beat, Echo, Message, Vote, VoteRequest, pack, unpack
from nodes.reference.designs.qpid.manager.note import decoded_note, is_list_of_names
from nodes.reference.designs.qpid.manager.options import ManagerOptions
from nodes.reference.designs.qpid.manager.programs import Programs
from nodes.reference.designs.qpid.manager.record import DATABASE, RecordStore
from nodes.reference.designs.qpid.manager.report import STOPPED, Report, decoded
from nodes.reference.designs.qpid.manager.services import BrokerSupervisor
from nodes.reference.designs.qpid.manager.virtual_address import VirtualAddress
from nodes.reference.points import NOTE_TAKEN
from nodes.reference.replication.handshake import LinkError
from nodes.reference.replication.links import Links

_LINGER_SECONDS = 3.0
"""Seconds from an orderly shutdown of the cluster to the end of a manager and its broker, during which the others learn
of the shutdown, and its requester gets the answer."""
_LATE_HEARTBEATS = 2
"""Upper bound of the time between ticks, in heartbeat intervals; a longer gap means that this process was suspended."""


class ClusterManager:
    """The manager of one node."""

    def __init__(self, config: ManagerConfig, runtime: Runtime, programs: Programs,
                 addresses: Addresses | None = None) -> None:
        """Create the manager; raises ConfigError when the configuration, or the data, can't be used.

        Args:
            addresses: moves the virtual address; needed if the configuration has one.
        """
        self.runtime, self.node = runtime, config.node
        self.options = options = ManagerOptions.from_options(config.options)
        self.store = RecordStore(runtime.open_database(DATABASE))
        self.membership = ManagerMembership(config.node, list(config.members))
        self.answers = Answers(earlier=runtime.now())
        self._control = Control(runtime, config.broker, config.login, config.passcode)
        self.services = BrokerSupervisor(runtime, options, programs, self._control, self.store, self.membership,
                                 self.answers, self._changed)  # fmt: skip
        self.coordinator = Coordinator(runtime, options, self.store, self.membership, self.answers, self)
        self._lessor = LeaseServer(runtime, self.services, config.listen, config.node, config.cluster, config.secret)
        self.links = Links(runtime, self, config.node, config.members, f"{config.cluster} managers", options.lease,
                            options.heartbeat, config.secret)  # fmt: skip
        self.address: VirtualAddress | None = None
        if config.virtual_address and addresses is not None:
            self.address = VirtualAddress(runtime, addresses, config.virtual_address, options.lease)
        self._reports: dict[str, Report] = {}
        self._quorum = False
        self.said = self.news()
        """The part of the last heartbeat that others act upon."""
        self._ticked = runtime.now()
        self.ending = False
        """Whether it is ending, and waits for its broker to end."""
        self.leaves_at = math.inf
        """The time at which it ends by itself, because the whole cluster was shut down in order."""
        runtime.expose("qpid/0", f"{config.node}.manager", self)

    def news(self) -> tuple[int, int, int, bool]:
        """Return the news that others must learn at once: that its broker is not primary, and its decisions as the
        coordinator.
        """
        record, coordinator = self.store.record, self.coordinator
        return record.finished, coordinator.ballot, record.term, coordinator.cleared

    async def run(self) -> None:
        """Manage until the task is cancelled, or the whole cluster was shut down in order; then end the broker.

        Raises:
            OSError: a listener can't be opened.
        """
        record = self.store.record
        self.runtime.log("manager started", promised=record.promised, term=record.term, primary=record.primary or "-")
        await self.links.start()
        await self._lessor.start()
        working = [self.runtime.spawn(self.services.supervise(), "supervise"),
                   self.runtime.spawn(self.services.converse(), "converse")]  # fmt: skip
        if self.address is not None:
            self.address.clean()
            working.append(self.runtime.spawn(self._keep(self.address), "virtual address"))
        try:
            while self.runtime.now() < self.leaves_at:
                self._tick()
                await asyncio.sleep(self.options.heartbeat)
        finally:
            self.ending = True
            for task in working:
                task.cancel()
            await asyncio.wait(working)
            await self.services.stop()
            if self.address is not None:
                self.address.release("the manager ends")
            self._lessor.stop()
            await self.links.stop()
            self.runtime.log("stopped")

    def _tick(self) -> None:
        if self.store.failure is not None:
            raise self.store.failure
        now, heartbeat = self.runtime.now(), self.options.heartbeat
        if now - self._ticked > _LATE_HEARTBEATS * heartbeat:
            self.links.forgive(now - self._ticked - heartbeat)
            self.runtime.log("process stalled", seconds=round(now - self._ticked, 3))
        self._ticked = now
        self.links.cut_silent()
        if self.services.at_rest:
            self._leave()
        self.coordinator.tick()
        self.beat()
        quorum = self.services.has_quorum(now)
        if quorum != self._quorum:
            self._quorum = quorum
            self.runtime.log("quorum" if quorum else "no quorum", alive=",".join(self.alive()))

    def _leave(self) -> None:
        """End together with the broker after an orderly shutdown of the whole cluster, once others had the time to
        learn of it.
        """
        if self.leaves_at == math.inf:
            self.runtime.log("cluster shut down in order", seconds=max(_LINGER_SECONDS, 2 * self.options.lease))
            self.services.leave()
            self.leaves_at = self.runtime.now() + max(_LINGER_SECONDS, 2 * self.options.lease)

    def _is_news(self, report: Report) -> bool:
        """Tell whether another member's broker reports a shutdown that is new here; a shutdown from before the start of
        this node's broker is over."""
        own = self.services.report()
        return report.state == STOPPED and (self.options.cold or (own.up and own.uuid != report.uuid))

    async def _keep(self, address: VirtualAddress) -> None:
        """Keep the virtual address as long as this node's broker is primary, until this is cancelled."""
        while True:
            until = self.services.primary_until()
            address.keep(until)
            left = until - self.runtime.now()
            pause = self.options.heartbeat / 2
            await asyncio.sleep(min(pause, left) if left > 0 else pause)

    def _changed(self) -> None:
        """Send a heartbeat at once, because this node's broker has ended, is primary, or has refused."""
        if self.address is not None:
            self.address.keep(self.services.primary_until())
        self.coordinator.react()
        self.beat()

    # The interface for the coordinator (Others).

    def send(self, peer: str, message: Message) -> None:
        """Send a message, if there is a link."""
        self.links.send(peer, pack(message))

    def beat(self) -> None:
        """Send a heartbeat to all members now, and act on it locally."""
        coordinator, record = self.coordinator, self.store.record
        cleared = coordinator.cleared
        bootstrap, lacking = coordinator.bootstrap, coordinator.lacking
        if cleared and record.primary == self.node:
            self.services.clear(record.term, bootstrap, lacking)
        frame = pack(Beat(self.runtime.now(), coordinator.ballot, record.term, record.primary, cleared, bootstrap,
                          lacking, record.note.encoded(), self.services.report().encoded()))  # fmt: skip
        for peer in self.membership.members:
            if peer != self.node:
                self.links.send(peer, frame)
        self.said = self.news()

    def alive(self) -> Sequence[str]:
        """Return the members heard within a lease, this one included, in order."""
        return [name for name in self.membership.members
                if name == self.node or self.links.silent_for(name) <= self.options.lease]  # fmt: skip

    def silent_for(self, peer: str) -> float:
        """Return the seconds of silence of another member; 0 for this one."""
        return 0.0 if peer == self.node else self.links.silent_for(peer)

    def reports(self) -> Mapping[str, Report]:
        """Return the latest broker reports of the live members, this one included."""
        own = {self.node: self.services.report()}
        return {name: report for name in self.alive() if (report := (own | self._reports).get(name)) is not None}

    # Link events (LinkEvents).

    def link_up(self, peer: str) -> None:
        """Do nothing: the next heartbeat is early enough."""

    def link_down(self, peer: str) -> None:
        """Do nothing: a member counts as gone after a lease of silence."""

    def frames(self, peer: str, frames: Sequence[Any]) -> None:
        """Handle messages; raises LinkError for anything else."""
        for frame in frames:
            match unpack(frame):
                case Beat() as beat:
                    self._heard(peer, beat)
                    self.coordinator.react()
                case Echo() as echo:
                    now = self.runtime.now()
                    decoded_note(echo.note)  # a malformed note cuts the link
                    self.membership.heard(peer, echo._replace(sent=min(echo.sent, now)), now)
                    self.coordinator.echoed(peer, echo)
                    self.coordinator.react()
                case VoteRequest() as ask:
                    self.coordinator.asked(peer, ask)
                case Vote() as vote:
                    self.coordinator.voted(peer, vote)

    def _heard(self, peer: str, beat: Beat) -> None:
        report, note = decoded(beat.report), decoded_note(beat.note)
        self._reports[peer] = report
        if self._is_news(report):
            self._leave()
        if beat.ballot:
            self.coordinator.heard(peer, beat)
        record, now = self.store.record, self.runtime.now()
        if (record.term, record.primary) == (note.term, peer) and note.order > record.note.order:
            record = record._replace(note=note)
            self.store.save(record)
            self.runtime.point(NOTE_TAKEN)
        if beat.cleared and (beat.ballot, beat.term, self.node) == (record.ballot, record.term, record.primary):
            if not is_list_of_names(beat.lacking):
                raise LinkError("a list of names is malformed")
            self.services.clear(beat.term, beat.bootstrap, beat.lacking)
        age = self.answers.age(now)
        if record.term and record.primary == peer:
            self.answers.backed(now)
        self.send(peer, Echo(beat.sent, record.promised, record.ballot, record.term, record.primary, age,
                             record.promoted, record.finished, record.note.encoded()))  # fmt: skip
