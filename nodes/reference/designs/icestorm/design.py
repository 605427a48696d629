"""The design ``icestorm``: one replica, as its clients see it.

Every replica accepts publishers. Changes of topics, subscribers or links go to the coordinator, regardless of the
replica that received the request. While a replica is not in a group that replicates, requests wait (the client's view:
*inactive*).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from nodes.reference.api import Admission, Broker, Closed, Command, ConfigError, Done, Opened, Refused
from nodes.reference.designs.icestorm.decisions import round_of
from nodes.reference.designs.icestorm.delivery import COST, EventDelivery
from nodes.reference.designs.icestorm.election import NORMAL, InvitationElection
from nodes.reference.designs.icestorm.options import LOCAL, IceStormOptions
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
_RETRY_SECONDS = 0.05
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


class IceStormDesign:
    """A replica of highly available IceStorm. Options: ``nodes.reference.designs.icestorm.options.IceStormOptions``."""

    has_topic_manager = True
    has_services = False

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.options = options = IceStormOptions.from_config(broker.config)
        self.database = TopicDatabase(broker)
        self.peers = Peers(broker, options, self._answer)
        self.election = InvitationElection(broker, options, self.database, self.peers, self._changed)
        wall = broker.runtime.time_of_day if options.stamp == "wall-clock" else None
        self.replication = Replication(broker.runtime, self.election, self.database, self.peers, wall)
        self.delivery = EventDelivery(broker.config, broker.runtime, options, self.database, self._failed,
                                  broker.engine.message_trace)
        self.database.changed = self.delivery.forget_gone
        self._removals: dict[asyncio.Task[None], None] = {}
        self.clients: dict[str, _Client] = {}
        self.ended_busy: list[str] = []
        """Connections that were closed as idle while they were in use; must stay empty."""
        self._active = asyncio.Event()
        self.early: list[str] = []
        """Topics of which events were delivered while this replica was outside a replicating group; must stay empty."""
        self.blocked = 0
        """The number of requests and events that wait until this replica is in a group that replicates."""
        self._attempts = 0
        self.resting: dict[int, None] = {}
        """Request attempts that wait to be repeated."""
        self._ticker: asyncio.Task[None] | None = None
        election, replication = self.election, self.replication
        self._questions: dict[str, Callable[..., Any]] = {
            "are-you-coordinator": lambda peer: election.are_you_coordinator(),
            "are-you-there": election.are_you_there, "are-you-mine": election.are_you_mine,
            "invitation": election.invited, "accept": election.accepted,
            "promised": lambda peer: self.database.promised, "promise": election.asked_to_promise,
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
            await self.peers.start()
        except OSError as error:
            host, port = self.broker.config.peers[self.election.name]
            raise ConfigError(
                f"peers.{self.election.name}: can't listen on {host}:{port} ({error.strerror or error})"
            ) from error
        self.election.start()
        if self.options.acm_timeout:
            self._ticker = self.broker.runtime.spawn(self._close_idle(), "icestorm connection management")
        self.broker.began_serving()

    async def stop(self) -> None:
        """Leave the group."""
        self.election.stop()
        self.delivery.stop()
        if self._ticker is not None:
            self._ticker.cancel()
        for client in self.clients.values():
            if client.task is not None:
                client.task.cancel()
        for task in list(self._removals):
            task.cancel()
        await self.peers.stop()

    def admission(self) -> Admission:
        """Admit every client on every replica: requests wait while the replica is inactive."""
        return Admission(True)

    def submit(self, command: Command) -> None:
        """Queue a client's command behind the others of its connection."""
        if command.kind == "open":
            self._open(command)
            return
        client = self.clients.get(command.conn)
        if client is None:
            if command.kind == "close":
                self.broker.release([Closed(command.conn, str(command.args.get("reason", "")))])
            return
        if command.kind == "close" and command.args.get("receipt") is None:
            self._forget(client, str(command.args.get("reason", "")))
            return
        client.used = self.broker.runtime.now()
        client.commands.put_nowait(command)

    def status(self) -> dict[str, Any]:
        """Return the status that ``admin replica`` shows, in the terms that all designs share and in this design's
        terms.
        """
        election = self.election
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
            "addresses": list(self.broker.config.client_addresses.values()),
            "stamp": list(self.database.stamp),
            "waiting": self.delivery.waiting(),
        }

    # Clients.

    def _open(self, command: Command) -> None:
        if command.args.get("resume"):
            self.broker.release([Closed(command.conn, "unknown", opening=True)])
            return
        now = self.broker.runtime.now()
        client = self.clients[command.conn] = _Client(command.conn, now, now)
        client.task = self.broker.runtime.spawn(self._serve(client), f"client {command.conn}")
        self.broker.release([Opened(command.conn, 0)])

    def _forget(self, client: _Client, reason: str) -> None:
        unused = self.broker.runtime.now() - client.rested
        if reason == IDLE and (client.busy or unused < self.options.acm_timeout - _TURN):
            self.ended_busy.append(client.conn)
        del self.clients[client.conn]
        if client.task is not None:
            client.task.cancel()
        self.broker.release([Closed(client.conn, reason)])

    async def _serve(self, client: _Client) -> None:
        """Carry out a client's commands in their order."""
        while True:
            client.busy = False
            command = await client.commands.get()
            client.busy = True
            receipt = command.args.get("receipt")
            headers: Mapping[str, str] = {}
            if command.kind == "close":
                del self.clients[client.conn]
                self.broker.release([Done(client.conn, command.seq, receipt), Closed(client.conn, "client")])
                return
            try:
                headers = await self._carry_out(command)
            except RequestError as mistake:
                headers = {"x-error": str(mistake)}
            except Unknown:
                headers = {"x-error": "unknown"}
            except _Wrong as error:
                del self.clients[client.conn]
                self.broker.release([Refused(client.conn, receipt, str(error))])
                return
            client.used = self.broker.runtime.now()
            client.rested = self.broker.runtime.now()
            self.broker.release([Done(client.conn, command.seq, receipt, headers=headers)])

    async def _carry_out(self, command: Command) -> Mapping[str, str]:
        if command.kind == "request":
            request = read_request(command.args["headers"], command.args["body"])
            request = request._replace(replica=self.broker.config.node, page=self.options.answer_page)
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
        while topic not in self.database.topics:
            # A replica that its group has left behind may not know the topic for a while: ask the coordinator.
            await self._request(Request("retrieve", topic, replica=self.broker.config.node))
            await self._again()
            await self._until_active()
        self.delivery.publish(topic, headers, command.args["body"])
        if self.election.state != NORMAL:
            self.early.append(topic)

    async def _request(self, request: Request) -> Any:
        """Carry out a request, or have the coordinator do it; waits while no coordinator exists.

        Raises:
            CommandError: the request can't be carried out. Unknown: it cannot be determined whether it was.
        """
        while True:
            await self._until_active()
            if self.options.reads == LOCAL and not request.changes:
                return answer_question(self.database, self.broker.config, request)
            try:
                if self.election.leads:
                    # A change that some replicas already have must not be interrupted, not even by the client's end.
                    kind, value = await asyncio.shield(self._begin(request))
                else:
                    # The coordinator may be waiting for a slow slave; other questions check whether it is alive.
                    kind, value = await self.peers.ask(self.election.coordinator, "request", list(request),
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
        self.resting[number] = None
        try:
            await asyncio.sleep(_RETRY_SECONDS)
        finally:
            del self.resting[number]

    async def _carry_out_here(self, request: Request) -> Any:
        if request.changes:
            await self.replication.change(request.change)
            return True
        return await self.replication.read(lambda: answer_question(self.database, self.broker.config, request))

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

        self.broker.runtime.spawn(carry_out(), "request")
        return answer

    async def _until_active(self) -> None:
        self.blocked += 1
        try:
            while self.election.state != NORMAL:
                self._active.clear()
                await self._active.wait()
        finally:
            self.blocked -= 1

    async def _close_idle(self) -> None:
        """Close unused connections: active connection management."""
        timeout = self.options.acm_timeout
        while True:
            await asyncio.sleep(timeout / 4)
            now = self.broker.runtime.now()
            for client in list(self.clients.values()):
                if not client.busy and client.commands.empty() and now - client.used >= timeout:
                    self.broker.runtime.log("idle client closed", conn=client.conn)
                    self._forget(client, IDLE)

    # The group.

    def _answer(self, peer: str, question: str, arguments: list[Any]) -> Any:
        return self._questions[question](peer, *arguments)

    def _changed(self) -> None:
        """Wake waiting requests if the replica's new state allows them."""
        if self.election.state == NORMAL:
            self._active.set()

    def _failed(self, topic: str, subscriber: TopicSubscriber) -> None:
        """Remove a subscriber that could not be reached."""
        self.broker.runtime.log("subscriber removed", topic=topic, subscriber=subscriber.ident)
        request = Request("remove", topic, subscriber.ident, since=subscriber.since)
        task = self.broker.runtime.spawn(self._remove(request), "removal")
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
