"""The broker: listener, sessions, engine and design combined."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nodes.reference.api import (
    Administered,
    Admission,
    Arrived,
    ClientEffect,
    Closed,
    Command,
    Config,
    ConfigError,
    Declined,
    Deployed,
    Design,
    Effect,
    Growing,
    Opened,
    Refused,
    Runtime,
    Waiting,
)
from nodes.reference.bugs import edits as bug_edits
from nodes.reference.bugs import switched_on
from nodes.reference.designs import is_in_memory, make_design
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.limits import Limits
from nodes.reference.engine.server_queues import FAILED
from nodes.reference.engine.threads import is_collocated, thread_of
from nodes.reference.engine.trace import MessageTrace
from nodes.reference.option_values import seconds
from nodes.reference.points import RELEASING, WRITTEN
from nodes.reference.server.budget import HeldMemory, Turns
from nodes.reference.server.collocated import CollocatedChannel, Thread
from nodes.reference.server.connections import Connections
from nodes.reference.server.frames import Greeting
from nodes.reference.server.guard import Guard
from nodes.reference.server.listeners import Listeners
from nodes.reference.server.login import master_header
from nodes.reference.server.networks import Networks
from nodes.reference.server.services import SERVICES, DeploymentFailed, ServiceFactory, Services
from nodes.reference.server.sessions import Session
from nodes.reference.trust import NO_SECRET, check_trust, demand_secret, has_secret
from nodes.timeouts import within

DATABASE = "broker"
NO_SERVICES = "the services are not started yet"
_NETWORK_TIMEOUT_SECONDS = 2.0
"""Default time after which a silent connection with another server is cut."""
_FAILED_LINGER_SECONDS = 0.2
"""Seconds that clients have to read their ERROR when the store has failed."""
_MAX_ADMINS = 64
"""Maximum number of administrators' connections, in addition to those of clients."""
_MAX_LEAVING_SESSIONS = 1024
"""Ended sessions whose clients may still read the reason; beyond this number the oldest is cut off."""


class ReferenceBroker:
    """One node. Call ``start`` to run it, and ``stop`` when it is no longer needed.

    Raises:
        ConfigError: the configuration names no known design, or the data folder can't be used.
    """

    def __init__(self, config: Config, runtime: Runtime,
                 service_classes: Mapping[str, ServiceFactory] = SERVICES) -> None:
        self.config = config
        self.runtime = runtime
        self.port = config.port
        self.limits = Limits.from_options(config.options)
        self._in_memory = is_in_memory(config)
        self.database: sqlite3.Connection = (
            sqlite3.connect(":memory:", isolation_level=None) if self._in_memory
            else runtime.open_database(DATABASE))
        self.disk_writes = 0
        self.stopping = self.serving = False
        bug_edits.switch(switched_on(config.options))
        self.engine = StoreEngine(self.database, self.limits, config)
        if config.options.get("trace"):
            self.engine.trace(MessageTrace(runtime.log))
        self.guard = Guard(self.engine.security, config.options, runtime.random, runtime.now)
        self.entry_open = False
        self.collocated: dict[str, tuple[CollocatedChannel, Thread]] = {}
        self._threads: list[asyncio.Task[None]] = []
        self.networks = Networks(self, lambda: self.engine.server_queues,
                                 seconds(config.options, "network_timeout", _NETWORK_TIMEOUT_SECONDS))
        self.services = Services(self, config.node, config.services, self._admit_all, service_classes,
                                 alone=not config.peers)
        self._known_phase = self.engine.server_queues.deployment.phase
        self._failed = False
        self.store_failed = False
        self.design: Design = make_design(self)
        runtime.expose(f"{config.design}/{config.server}", config.node, self.design)
        self.has_topic_manager = self.design.has_topic_manager
        if self.guard.enabled and self.has_topic_manager:
            raise ConfigError(f"options.security: design {config.design} has no principals; leave it out")
        self._listeners = Listeners(runtime, config, self.limits)
        self.sessions: dict[Session, None] = {}
        self.logins: dict[Session, None] = {}
        """Sessions that have not logged in yet, the oldest first."""
        self._seated: dict[Session, None] = {}
        self.budget = HeldMemory(self.limits.max_memory, lambda: self.sessions)
        self.turns = Turns(self.limits.max_bytes_under_way)
        self.connections = Connections(self)
        self.silences: deque[tuple[str | None, float, float]] = deque(maxlen=20)
        """Latest sessions that were ended as silent: connection, limit and silence, both in seconds."""
        self._nobody = asyncio.Event()
        self._nobody.set()

    async def start(self) -> None:
        """Listen (port 0 takes a free one; the log names it), and start the design.

        Raises:
            ConfigError: the address can't be listened on, or strangers could take part because there is no secret.
        """
        try:
            if check_trust(self.config):
                self.runtime.log(NO_SECRET, level="warning")
            self.port = await self._listeners.open(self._accept)
        except ConfigError:
            self.database.close()
            raise
        await self.networks.start()
        for name, (channel, thread) in self.collocated.items():
            self._threads.append(self.runtime.spawn(thread(channel), f"collocated {name}"))
        await self.design.start()
        config = self.config
        self.runtime.log("started", node=config.node, design=config.design, address=f"{config.host}:{self.port}")

    async def stop(self) -> None:
        """End all sessions, then the design, then close the database.

        When the store has failed, end only the sessions, and quickly: a broker that can't store anything must stop
        communicating. The others notice when the process is gone.
        """
        self.stopping = True
        self._listeners.close()
        for thread in self._threads:
            thread.cancel()
        self.drop_clients("the broker is shutting down")
        for session in list(self.sessions):
            session.end("the broker is shutting down")
        if not self.store_failed:
            await self.networks.stop()
            await self.design.stop()
        try:
            async with within(_FAILED_LINGER_SECONDS if self.store_failed else self.limits.linger):
                await self._nobody.wait()
        except TimeoutError:
            self.runtime.log("clients did not leave", count=len(self.sessions))
        if not self.store_failed:
            self.runtime.withdraw()
            self.database.close()
        self.runtime.log("stopped", node=self.config.node)

    # For designs.

    @contextmanager
    def transaction(self, forgives: Callable[[sqlite3.Error], bool] | None = None) -> Iterator[None]:
        """Commit all writes inside the block together; see ``api.Broker``.

        Raises:
            RuntimeError: an earlier transaction failed, so memory and store may differ.
        """
        if self.store_failed:
            raise RuntimeError("a transaction failed before; the broker has to be started again")
        try:
            self.database.execute("BEGIN IMMEDIATE")
            yield
            if forgives is None:
                self.engine.flush()
                self.database.execute("COMMIT")
                self.disk_writes += not self._in_memory
            else:
                self._try_to_commit(forgives)
        except BaseException as error:
            self.store_failed = True
            # The caller may survive the exception (one peer's connection, say); the broker must not.
            self.runtime.spawn(_fail(error), "store")
            if self.database.in_transaction:
                self.database.execute("ROLLBACK")
            raise
        self.runtime.point(WRITTEN)
        self._watch_deployment()

    def _try_to_commit(self, forgives: Callable[[sqlite3.Error], bool]) -> None:
        try:
            self.engine.write()
            self.database.execute("COMMIT")
        except sqlite3.Error as error:
            if not forgives(error):
                raise
            if self.database.in_transaction:
                self.database.execute("ROLLBACK")
        else:
            self.disk_writes += not self._in_memory
            self.engine.saved()

    def began_serving(self) -> None:
        """Start the services; once they run, clients and other servers are admitted."""
        self.serving = True
        if not self.design.has_services:
            self.connections.take_over()
        elif not self._failed:
            self.services.promoted(self.engine.server_queues.deployment)

    def _admit_all(self) -> None:
        """Admit other servers and clients, because the services run."""
        self.networks.open()
        self.connections.take_over()

    def release(self, effects: Iterable[Effect]) -> None:
        """Hand effects to the sessions of the clients connected here; those of others are dropped."""
        self.runtime.point(RELEASING)
        connections = self.connections
        touched: dict[Session, None] = {}
        for effect in effects:
            if isinstance(effect, (Waiting, Arrived, Declined)):
                self.networks.apply(effect)
                continue
            if isinstance(effect, Deployed):
                self.services.decided(effect.phase)
                continue
            if self._tell_thread(effect):
                continue
            ends = isinstance(effect, (Refused, Closed))
            if isinstance(effect, Opened):
                session = connections.attach(effect)
            elif isinstance(effect, (Refused, Closed)) and effect.opening:
                session = connections.refused(effect.conn)
            else:
                session = connections.attached.get(effect.conn)
                if ends:
                    connections.forget(effect.conn)
            if session is not None:
                session.receive(effect)
                touched[session] = None
        for session in touched:
            session.flush()
        self.networks.flush()

    def observe(self, effects: Iterable[Effect]) -> None:
        """Hand a slave's effects to the collocated threads on it."""
        if self.collocated:
            for effect in effects:
                if not isinstance(effect, (Waiting, Arrived, Declined, Deployed)):
                    self._tell_thread(effect)

    def drop_clients(self, reason: str) -> None:
        """End all ordinary client sessions with an ERROR (this node no longer serves)."""
        self.serving = False
        self.networks.close()
        self.services.demoted()
        self.connections.clear()
        headers = master_header(self.design.admission())
        for session in list(self.sessions):
            if not session.admin:
                session.depose(reason, headers)

    # For sessions.

    def submit(self, command: Command) -> None:
        """Hand a command to the design."""
        self.design.submit(command)

    def admission(self) -> Admission:
        """Return whether ordinary clients are admitted now: the master admits them once its services run."""
        admission = self.design.admission()
        if admission.accepted and not self.runs_services():
            return Admission(False, NO_SERVICES)
        return admission

    def runs_services(self) -> bool:
        """Return whether the services of this node run, if it has any."""
        return not self.design.has_services or (self.services.ready and self.entry_open)

    def master_place(self) -> int | None:
        """Return the master's index among the replicas; None if this node does not know the master."""
        addresses, master = self.config.client_addresses, self.design.admission().master
        for place, name in enumerate(self.config.peers):
            if master is not None and addresses.get(name) == master:
                return place
        return None

    def log(self, event: str, **fields: Any) -> None:
        """Write one line to the node's log."""
        self.runtime.log(event, **fields)

    def run_collocated(self, name: str, thread: Thread) -> CollocatedChannel:
        """Run a thread on this replica; see ``services.Host``."""
        if name in self.collocated:
            raise ConfigError(f"services: two collocated clients are called {name}")
        channel = CollocatedChannel(self, name)
        self.collocated[name] = channel, thread
        return channel

    def add_replica(self, name: str, link: tuple[str, int], client: str) -> None:
        """Add a replica to the group.

        Raises:
            ConfigError: the design can't, or not now.
        """
        if not isinstance(self.design, Growing):
            raise ConfigError(f"design {self.config.design} can't add replicas at run time")
        if not has_secret(self.config):
            demand_secret(name, link[0])
        self.design.add_replica(name, link, client)

    def administer(self, request: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], None]) -> None:
        """Pass an administrator's request to the design; ``answer`` is called with the result."""
        self.runtime.spawn(self._administer(request, answer), "administrator's request")

    async def _administer(self, request: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], None]) -> None:
        if not isinstance(self.design, Administered):
            answer({"ok": False, "error": f"design {self.config.design} takes no such requests"})
            return
        try:
            answer({"ok": True, **await self.design.administer(request)})
        except ConfigError as error:
            answer({"ok": False, "error": str(error)})

    def weight(self, command: Command) -> int:
        """Return the approximate work of a command."""
        return self.engine.weight(command)

    def told(self, conn: str, seq: int, answer: Mapping[str, str]) -> None:
        """Record in the trace the answer that a receipt carries in addition to its confirmation."""
        if self.engine.message_trace is not None:
            self.engine.message_trace.told(conn, seq, answer)

    def seat(self, session: Session) -> bool:
        """Give a session that has logged in a place among the logged-in sessions; return whether there was one."""
        self.logins.pop(session, None)
        alike = sum(each.admin == session.admin for each in self._seated)
        if alike >= (_MAX_ADMINS if session.admin else self.limits.max_connections):
            return False
        self._seated[session] = None
        return True

    def time_of_day(self) -> float:
        """Return seconds since 1970 by the node's clock, which may be wrong."""
        return self.runtime.time_of_day()

    def status(self) -> dict[str, Any]:
        """Return the status for an administrator's connection."""
        state = self.design.status()
        state["serving"] = state["serving"] and self.runs_services()
        return {"node": self.config.node, "design": self.config.design, "depths": self.engine.depths(),
                "connections": len(self.engine.connections()), "sessions": len(self.sessions),
                "server": self.config.server, "networks": self.networks.status(),
                "collocated": {name: {"dropped": channel.dropped, "witnessed": channel.witnessed}
                               for name, (channel, _) in self.collocated.items()}, **state}

    def open(self, session: Session, greeting: Greeting) -> None:
        """Open or resume a connection context for a session; the answer follows as an effect."""
        conn = greeting.resume
        if conn is not None and is_collocated(conn):
            session.end("connection closed", {"x-closed": "unknown"})  # no client outside the broker has such an id
            return
        args: dict[str, Any] = {"reliable": greeting.reliable, "login": greeting.login}
        if session.login.principal:
            args["principal"] = session.login.principal
        if conn is None:
            conn = self.connections.new_id()
        else:
            args |= {"resume": True, "received": greeting.received}
            self.connections.stop_idle_timer(conn)
        self.connections.request(conn, session)
        self.submit(Command("open", conn, 0, args))

    def leave(self, session: Session) -> None:
        """Remove a session that is over: close its context, or keep it for a resumption."""
        self.logins.pop(session, None)
        self._seated.pop(session, None)
        self.connections.leave(session)

    @property
    def gives_up(self) -> bool:
        """Tell whether the first initialisation of the services has failed, so that this replica is about to end."""
        return self._failed

    # Inner workings.

    def _channel_of(self, conn: str) -> CollocatedChannel | None:
        """Return the channel of the collocated client that has this connection, if it runs here."""
        if not is_collocated(conn):
            return None
        channel, _ = self.collocated.get(thread_of(conn), (None, None))
        return channel

    def has_thread(self, conn: str) -> bool:
        """Return whether a collocated client that runs here has this connection."""
        return self._channel_of(conn) is not None

    def _tell_thread(self, effect: ClientEffect) -> bool:
        """Hand an effect to the collocated thread that has its connection; return whether there is one."""
        channel = self._channel_of(effect.conn)
        if channel is not None:
            channel.put(effect)
        return channel is not None

    def _watch_deployment(self) -> None:
        """React to a failure of the deployment since the last call; every replica learns of it by applying it."""
        phase = self.engine.server_queues.deployment.phase
        if phase == FAILED and self._known_phase != FAILED:
            self.runtime.spawn(self._give_up(), "give up")
        self._known_phase = phase

    async def _give_up(self) -> None:
        """End this replica after the others have had time to learn the reason, unless a new attempt has begun."""
        self._failed = True
        await asyncio.sleep(self.limits.linger)
        deployment = self.engine.server_queues.deployment
        if deployment.phase == FAILED:
            raise DeploymentFailed(f"the first initialisation of the services failed ({deployment.note}): "
                                   "stop all replicas and start them again")
        self._failed = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self.logins) >= self.limits.max_logins:
            # Clients log in right after connecting; the one that has taken longest gives way to the newest.
            next(iter(self.logins)).yield_place("too many connections are about to log in, and this one took longest")
        if len(self.sessions) >= len(self.logins) + len(self._seated) + _MAX_LEAVING_SESSIONS:
            oldest = next((session for session in self.sessions if session.ended), None)
            if oldest is not None:
                oldest.cut_off()
        session = Session(self, reader, writer)
        self.sessions[session] = self.logins[session] = None
        self._nobody.clear()
        try:
            await session.run()
        finally:
            del self.sessions[session]
            if not self.sessions:
                self._nobody.set()


async def _fail(error: BaseException) -> None:
    raise error
