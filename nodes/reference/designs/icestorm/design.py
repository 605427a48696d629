"""The design ``icestorm``: one replica, as its clients see it.

Every replica accepts publishers. Changes of topics, subscribers or links go to the coordinator, regardless of the
replica that received the request. While a replica is not in a group that replicates, requests wait (the client's view:
*inactive*).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from nodes.reference.api import Admission, Broker, Closed, Command, ConfigError, Done, Opened, Pending, Refused
from nodes.reference.designs.icestorm.decisions import Stamp, round_of
from nodes.reference.designs.icestorm.delivery import COST, EventDelivery
from nodes.reference.designs.icestorm.election import INACTIVE, NORMAL, InvitationElection
from nodes.reference.designs.icestorm.options import CHECKED, LOCAL, IceStormOptions
from nodes.reference.designs.icestorm.peers import PeerFailed, Peers
from nodes.reference.designs.icestorm.replication import Replication, Unavailable, Unknown
from nodes.reference.designs.icestorm.requests import (
    Request,
    answer_headers,
    answer_question,
    is_answer_to,
    read_request,
)
from nodes.reference.designs.icestorm.topics import RequestError, TopicDatabase, TopicSubscriber
from nodes.reference.engine.topics import TOPIC_MANAGER, TOPIC_PREFIX

IDLE = "idle"
"""The reason for closing unused connections."""
_TURN = 0.001
"""Seconds that may pass while a client's command is being confirmed."""
_AGAIN = 0.05
"""Seconds before a request that could not be carried out is tried again."""
_MAX_COST_DIGITS = 9


class _Wrong(Exception):
    """The command is unknown to this design: the client gets ERROR."""


@dataclass(eq=False)
class _Client:
    """A connected client; its commands are carried out one after the other."""

    conn: str
    used: float
    rested: float
    """The time of its last confirmation."""
    commands: asyncio.Queue[Command] = field(default_factory=asyncio.Queue)
    busy: bool = False
    task: asyncio.Task[None] | None = None


class IceStormObserved(NamedTuple):
    """The values that invariants observe: the replica's part in the election, its database's stamp and promise, the
    last change that it has agreed as coordinator, and the last request that it has answered (``Replication.answered``).
    ``members``: the size of its group, this replica included, as its coordinator knows it; 0 on other replicas."""

    state: str
    coordinator: str
    group: str
    epoch: int
    members: int
    max_seen: int
    promised: int
    stamp: Stamp
    agreed: Stamp
    answered: tuple[int, int]


class IceStormDesign:
    """A replica of highly available IceStorm. Options: ``nodes.reference.designs.icestorm.options.IceStormOptions``."""

    has_topic_manager = True
    has_services = False

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._options = options = IceStormOptions.from_config(broker.config)
        self._database = TopicDatabase(broker)
        self._peers = Peers(broker, options, self._answer)
        self._election = InvitationElection(broker, options, self._database, self._peers, self._changed)
        wall = broker.runtime.time_of_day if options.stamp == "wall-clock" else None
        self._replication = Replication(broker.runtime, self._election, self._database, self._peers, wall)
        self._delivery = EventDelivery(broker.config, broker.runtime, options, self._database, self._failed,
                                  broker.engine.message_trace)
        self._database.changed = self._delivery.forget_gone
        self._removals: dict[asyncio.Task[None], None] = {}
        self._clients: dict[str, _Client] = {}
        self._ended_busy: list[str] = []
        """Connections that were closed as idle while they were in use; must stay empty."""
        self._active = asyncio.Event()
        self._early: list[str] = []
        """Topics of which events were delivered while this replica was outside a replicating group; must stay empty."""
        self._blocked = 0
        """The number of requests and events that wait until this replica is in a group that replicates."""
        self._attempts = 0
        self._resting: dict[int, None] = {}
        """Request attempts that wait to be repeated."""
        self._ticker: asyncio.Task[None] | None = None
        election, replication = self._election, self._replication
        self._questions: dict[str, Callable[..., Any]] = {
            "are-you-coordinator": lambda peer: election.are_you_coordinator(),
            "are-you-there": election.are_you_there, "are-you-mine": election.are_you_mine,
            "invitation": election.invited, "accept": election.accepted,
            "promised": lambda peer: self._database.promised, "promise": election.asked_to_promise,
            "database": election.asked_for_database, "install": election.told_to_install,
            "ready": election.told_ready, "update": replication.told_to_update, "request": self._forwarded,
        }

    # The design's protocol.

    async def start(self) -> None:
        """Open the links and begin as a group of one.

        Raises:
            ConfigError: the address for the links can't be listened on.
        """
        try:
            await self._peers.start()
        except OSError as error:
            host, port = self._broker.config.peers[self._election.name]
            raise ConfigError(
                f"peers.{self._election.name}: can't listen on {host}:{port} ({error.strerror or error})"
            ) from error
        self._election.start()
        if self._options.acm_timeout:
            self._ticker = self._broker.runtime.spawn(self._close_idle(), "icestorm connection management")
        self._broker.began_serving()

    async def stop(self) -> None:
        """Leave the group."""
        self._election.stop()
        self._delivery.stop()
        if self._ticker is not None:
            self._ticker.cancel()
        for client in self._clients.values():
            if client.task is not None:
                client.task.cancel()
        for task in list(self._removals):
            task.cancel()
        await self._peers.stop()

    def admission(self) -> Admission:
        """Admit every client on every replica: requests wait while the replica is inactive."""
        return Admission(True)

    def submit(self, command: Command) -> None:
        """Queue a client's command behind the others of its connection."""
        if command.kind == "open":
            self._open(command)
            return
        client = self._clients.get(command.conn)
        if client is None:
            if command.kind == "close":
                self._broker.release([Closed(command.conn, str(command.args.get("reason", "")))])
            return
        if command.kind == "close" and command.args.get("receipt") is None:
            self._forget(client, str(command.args.get("reason", "")))
            return
        client.used = self._broker.runtime.now()
        client.commands.put_nowait(command)

    def status(self) -> dict[str, Any]:
        """Return the status that ``admin replica`` shows, in the terms that all designs share and in this design's
        terms.
        """
        election = self._election
        role = election.state
        if election.state == NORMAL:
            role = "master" if election.leads else "slave"
        return {
            "role": role,
            "serving": election.state == NORMAL and election.leads,
            "epoch": round_of(election.epoch),
            "view": sorted(election.members, key=election.replicas.index),
            "master": election.coordinator if election.state == NORMAL else None,
            "state": election.state,
            "id": election.ident,
            "coord": election.idents[election.coordinator],
            "group": election.group,
            "up": sorted(election.idents[name] for name in election.up),
            "max": election.max_seen,
            "addresses": list(self._broker.config.client_addresses.values()),
            "stamp": list(self._database.stamp),
            "waiting": self._delivery.waiting(),
        }

    # Observations for invariants.

    def observed(self) -> IceStormObserved:
        """Return the replica's state for invariants."""
        election, database = self._election, self._database
        members = 1 + len(election.up) if election.leads else 0
        return IceStormObserved(election.state, election.coordinator, election.group, election.epoch, members,
                        election.max_seen, database.promised, database.stamp, self._replication.agreed,
                        self._replication.answered)  # fmt: skip

    def pending(self) -> Pending:
        """Return pending work: the replica's actions and the messages it expects."""
        if self._broker.stopping:
            return {}
        election = self._election
        found: dict[str, Collection[Hashable]] = {**self._broker.pending(), **election.pending(),
                                                  **self._peers.pending(), **self._delivery.pending(), **self._looks()}
        if missing := self._peers.missing():
            found["link"] = missing
        if silent := self._peers.silent():
            found["silent-link"] = silent
        if election.state != NORMAL:
            found["group"] = [""]
        elif election.leads and (away := [name for name in self._peers.names if name not in election.up]):
            found["away"] = away
        if self._early:
            found["early"] = list(self._early)
        if self._resting:
            found["again"] = list(self._resting)
        if self._blocked and election.state == NORMAL:
            found["blocked"] = [election.group]
        if self._ended_busy:
            found["ended-busy"] = self._ended_busy
        if self._options.acm_timeout and (unused := [(client.conn, client.rested) for client in self._clients.values()
                                                     if not client.busy and client.commands.empty()]):
            found["unused"] = unused
        if busy := [(client.conn, client.used) for client in self._clients.values() if client.busy]:
            found["request"] = busy
        return found

    def _looks(self) -> Pending:
        """Return the due checks: whether other replicas are alive, and whether they would join this one's group."""
        election, peers = self._election, self._peers
        if election.state not in (NORMAL, INACTIVE):
            return {}
        found: dict[str, list[Hashable]] = {}
        checked = election.leads and election.up and self._options.step_down == CHECKED
        for question, due in (("are-you-there", not election.leads), ("are-you-mine", checked),
                              ("are-you-coordinator", election.leads and len(election.up) < len(peers.names))):
            asked = peers.asked(question)
            if not due:
                continue
            if asked < election.entered or question == "are-you-mine":  # requests lead to that question, too
                found.setdefault("first-look", []).append((question, election.group, max(asked, election.entered)))
            else:
                found.setdefault("look" if election.state == NORMAL else "look-alone", []).append((question, asked))
        return found

    def miscounted(self) -> str:
        """Describe the first wrong counter; empty if all are right."""
        return self._delivery.miscounted() or self._broker.miscounted()

    def unlike_store(self) -> str:
        """Describe a difference between memory and store; empty if there is none."""
        return self._database.unlike_store() or self._delivery.unlike_store()

    @property
    def database(self) -> TopicDatabase:
        """The replicated database."""
        return self._database

    def strangers(self) -> str:
        """Describe events that wait for subscribers missing in the database."""
        return self._delivery.unlike_store()

    @property
    def election(self) -> InvitationElection:
        """This replica's part in elections."""
        return self._election

    @property
    def begun(self) -> int:
        """The number of changes and questions that it has begun to carry out as coordinator."""
        return self._replication.begun

    @property
    def options(self) -> IceStormOptions:
        """The replica's options."""
        return self._options

    def failures(self) -> Mapping[str, int]:
        """Return the number of questions that each of the other replicas has not answered."""
        return self._peers.failures()

    @property
    def members(self) -> Sequence[str]:
        """The other members of the group that this replica coordinates."""
        return tuple(self._election.up)

    def linked(self) -> Mapping[str, int]:
        """Return the replicas to which there is a link, each with the number of links that have broken before."""
        return self._peers.linked()

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return len(self._election.replicas)

    # Clients.

    def _open(self, command: Command) -> None:
        if command.args.get("resume"):
            self._broker.release([Closed(command.conn, "unknown", opening=True)])
            return
        now = self._broker.runtime.now()
        client = self._clients[command.conn] = _Client(command.conn, now, now)
        client.task = self._broker.runtime.spawn(self._serve(client), f"client {command.conn}")
        self._broker.release([Opened(command.conn, 0)])

    def _forget(self, client: _Client, reason: str) -> None:
        unused = self._broker.runtime.now() - client.rested
        if reason == IDLE and (client.busy or unused < self._options.acm_timeout - _TURN):
            self._ended_busy.append(client.conn)
        del self._clients[client.conn]
        if client.task is not None:
            client.task.cancel()
        self._broker.release([Closed(client.conn, reason)])

    async def _serve(self, client: _Client) -> None:
        """Carry out a client's commands in their order."""
        while True:
            client.busy = False
            command = await client.commands.get()
            client.busy = True
            receipt = command.args.get("receipt")
            headers: Mapping[str, str] = {}
            if command.kind == "close":
                del self._clients[client.conn]
                self._broker.release([Done(client.conn, command.seq, receipt), Closed(client.conn, "client")])
                return
            try:
                headers = await self._carry_out(command)
            except RequestError as mistake:
                headers = {"x-error": str(mistake)}
            except Unknown:
                headers = {"x-error": "unknown"}
            except _Wrong as error:
                del self._clients[client.conn]
                self._broker.release([Refused(client.conn, receipt, str(error))])
                return
            client.used = self._broker.runtime.now()
            client.rested = self._broker.runtime.now()
            self._broker.release([Done(client.conn, command.seq, receipt, headers=headers)])

    async def _carry_out(self, command: Command) -> Mapping[str, str]:
        if command.kind == "request":
            request = read_request(command.args["headers"], command.args["body"])
            request = request._replace(replica=self._broker.config.node, page=self._options.answer_page)
            return answer_headers(request, await self._request(request))
        destination = str(command.args.get("destination", ""))
        if command.kind != "send" or command.args.get("tx") is not None:
            raise _Wrong(f"{command.kind.upper()}: this design takes SEND only, to topics and to {TOPIC_MANAGER}")
        if not destination.startswith(TOPIC_PREFIX):
            raise _Wrong(f"SEND: there are topics only here, not {destination}")
        await self._publish(destination.removeprefix(TOPIC_PREFIX), command)
        return {}

    async def _publish(self, topic: str, command: Command) -> None:
        headers = command.args["headers"]
        cost = headers.get(COST, "0")
        if not cost.isdecimal() or len(cost) > _MAX_COST_DIGITS:
            raise RequestError("bad-cost")
        await self._until_active()
        while topic not in self._database.topics:
            # A replica that its group has left behind may not know the topic for a while: ask the coordinator.
            await self._request(Request("retrieve", topic, replica=self._broker.config.node))
            await self._again()
            await self._until_active()
        self._delivery.publish(topic, headers, command.args["body"])
        if self._election.state != NORMAL:
            self._early.append(topic)

    async def _request(self, request: Request) -> Any:
        """Carry out a request, or have the coordinator do it; waits while no coordinator exists.

        Raises:
            CommandError: the request can't be carried out. Unknown: it cannot be determined whether it was.
        """
        while True:
            await self._until_active()
            if self._options.reads == LOCAL and not request.changes:
                return answer_question(self._database, self._broker.config, request)
            try:
                if self._election.leads:
                    # A change that some replicas already have must not be interrupted, not even by the client's end.
                    kind, value = await asyncio.shield(self._begin(request))
                else:
                    # The coordinator may be waiting for a slow slave; other questions check whether it is alive.
                    kind, value = await self._peers.ask(self._election.coordinator, "request", list(request),
                                                        patient=True, shape=partial(is_answer_to, request))
            except PeerFailed as error:
                if error.sent and request.changes:
                    raise Unknown from None
            else:
                if kind == "done":
                    return value
                if kind == "mistake":
                    raise RequestError(value)
                if kind == "unknown":
                    raise Unknown
            await self._again()

    async def _again(self) -> None:
        self._attempts += 1
        number = self._attempts
        self._resting[number] = None
        try:
            await asyncio.sleep(_AGAIN)
        finally:
            del self._resting[number]

    async def _carry_out_here(self, request: Request) -> Any:
        if request.changes:
            await self._replication.change(request.change)
            return True
        return await self._replication.read(lambda: answer_question(self._database, self._broker.config, request))

    def _forwarded(self, peer: str, content: list[Any]) -> asyncio.Future[Any]:
        """Carry out a request that a client sent to another replica."""
        return self._begin(Request(*content))

    def _begin(self, request: Request) -> asyncio.Future[Any]:
        """Begin to carry out a request as coordinator; return a future of its outcome and its answer or mistake."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def carry_out() -> None:
            try:
                done = ["done", await self._carry_out_here(request)]
            except RequestError as mistake:
                done = ["mistake", str(mistake)]
            except Unknown:
                done = ["unknown", ""]
            except Unavailable:
                done = ["unavailable", ""]
            if not answer.done():
                answer.set_result(done)

        self._broker.runtime.spawn(carry_out(), "request")
        return answer

    async def _until_active(self) -> None:
        self._blocked += 1
        try:
            while self._election.state != NORMAL:
                self._active.clear()
                await self._active.wait()
        finally:
            self._blocked -= 1

    async def _close_idle(self) -> None:
        """Close unused connections: active connection management."""
        timeout = self._options.acm_timeout
        while True:
            await asyncio.sleep(timeout / 4)
            now = self._broker.runtime.now()
            for client in list(self._clients.values()):
                if not client.busy and client.commands.empty() and now - client.used >= timeout:
                    self._broker.runtime.log("idle client closed", conn=client.conn)
                    self._forget(client, IDLE)

    # The group.

    def _answer(self, peer: str, question: str, arguments: list[Any]) -> Any:
        return self._questions[question](peer, *arguments)

    def _changed(self) -> None:
        """Wake waiting requests if the replica's new state allows them."""
        if self._election.state == NORMAL:
            self._active.set()

    def _failed(self, topic: str, subscriber: TopicSubscriber) -> None:
        """Remove a subscriber that could not be reached."""
        self._broker.runtime.log("subscriber removed", topic=topic, subscriber=subscriber.ident)
        request = Request("remove", topic, subscriber.ident, since=subscriber.since)
        task = self._broker.runtime.spawn(self._remove(request), "removal")
        self._removals[task] = None
        task.add_done_callback(self._removals.pop)

    async def _remove(self, request: Request) -> None:
        """Repeat the removal until it is done; a subscriber that has subscribed again since then has another
        subscription.
        """
        while True:
            try:
                await self._request(request)
            except Unknown:
                continue
            return
