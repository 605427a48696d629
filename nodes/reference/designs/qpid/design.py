"""The design ``qpid``: one broker of an active-passive cluster, its states and its links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nodes.reference.api import Admission, Broker, Command, ConfigError
from nodes.reference.bugs import INQUORATE_BROKER_LIVES, switched_on
from nodes.reference.designs.qpid.backup import Backup
from nodes.reference.designs.qpid.configuration import Configuration
from nodes.reference.designs.qpid.messages import (
    Attach,
    Completed,
    Events,
    Hello,
    Message,
    Refuse,
    Shutdown,
    check_attach,
    pack,
    unpack,
)
from nodes.reference.designs.qpid.options import ASYNC, BUILTIN, LM6B, NO_STORE, Options
from nodes.reference.designs.qpid.permission import ManagerPermission
from nodes.reference.designs.qpid.positions import Generations
from nodes.reference.designs.qpid.primary import Primary
from nodes.reference.designs.qpid.states import CATCHUP, CONNECTING, PRIMARY, READY, STOPPED
from nodes.reference.designs.qpid.store_status import CLEAN, DIRTY, EMPTY, PRIMARY_STORE, StoreStatus
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.replication.links import Links

NOT_PRIMARY = "not primary"
_POLL = 0.05
"""Seconds between looks at whether a shutdown can go on."""


class NoQuorum(Exception):
    """The manager lets this broker go on no longer."""


class Refused(Exception):
    """The primary refuses this backup, which ends itself."""


class Qpid:
    """A broker of a hot-standby cluster. Options: ``nodes.reference.designs.qpid.options.Options``."""

    has_topic_manager = True
    has_services = False

    def __init__(self, broker: Broker) -> None:
        if not isinstance(broker.engine, StoreEngine):
            raise TypeError("design qpid needs an engine whose queues can be tapped")
        self._broker, self._engine, self._runtime = broker, broker.engine, broker.runtime
        self._options = options = Options.from_config(broker.config)
        self._bugs = switched_on(broker.config.options)
        self._name = broker.config.node
        self._store = StoreStatus(broker.database)
        self._configuration = Configuration(broker.database)
        self._generations = Generations(broker.database)
        if options.store in (ASYNC, NO_STORE):
            broker.database.execute("PRAGMA synchronous=OFF")
        self._check_store()
        if options.store == NO_STORE:
            self._erase()
        self.state = CONNECTING
        self._was_ready = False
        self._backup = self._as_backup(discard=self._store.now.state == DIRTY)
        self._forced = False
        """Whether a person has vouched for its data."""
        self._primary: Primary | None = None
        self._serves_at: str | None = None
        """The primary that this backup is attached to."""
        self._heard: dict[str, Hello] = {}
        self._brokers = dict(broker.config.peers)
        """The broker URL: name -> address of its links; and the client URL."""
        self._clients = dict(broker.config.client_addresses)
        self._links = Links(self._runtime, self, self._name, broker.config.peers, options.cluster,
                            silence=options.silence, retry=options.beat / 2, secret=options.secret)
        self._permission: ManagerPermission | None = None
        if options.manager == BUILTIN and options.manager_address is not None:
            self._permission = ManagerPermission(
                self._runtime, self._name, options.cluster, options.secret, options.manager_address,
                options.manager_lease, self._permitted,
            )
        self._ticker: asyncio.Task[None] | None = None
        self._operations: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "status": self._tell_status, "promote": self._promote, "shutdown": self._shutdown,
            "accept-store": self._accept_store, "erase-store": self._erase_store,
            "set-broker-url": self._set_broker_url, "set-client-url": self._set_client_url,
        }

    def _as_backup(self, discard: bool) -> Backup:
        return Backup(self._broker, self._engine, self._options, self._store, self._configuration, self._generations,
                      discard)

    def _check_store(self) -> None:
        """A store that was not left in order is not started from [Interaction with the store]."""
        status = self._store.now
        if status.state == DIRTY and LM6B in self._options.as_documented:
            raise ConfigError(f"data: the store is dirty (its broker was not shut down in order; generation "
                              f"{status.generation}, {status.role}); erase it, or accept it as the best one")

    def _erase(self) -> None:
        with self._broker.transaction():
            self._engine.load([])
            self._configuration.clear()
            self._generations.clear()
            self._store.write(state=EMPTY, generation=0, uuid="")

    # The design's protocol.

    async def start(self) -> None:
        """Open the links and look for the primary.

        Raises:
            ConfigError: the address for the links can't be listened on.
        """
        status = self._store.now
        self._runtime.log("connecting", store=status.state, generation=status.generation)
        self._close_connections()
        try:
            await self._links.start()
        except OSError as error:
            host, port = self._broker.config.peers[self._name]
            raise ConfigError(
                f"peers.{self._name}: can't listen on {host}:{port} ({error.strerror or error})") from error
        if self._permission is not None:
            self._permission.start()
        self._ticker = self._runtime.spawn(self._tick_forever(), "qpid timers")

    def _close_connections(self) -> None:
        """Connections end with their broker: what their clients had not acknowledged goes back into the queues."""
        if self._backup.discard:
            return
        connections = list(self._engine.connections())
        if connections:
            with self._broker.transaction():
                for conn in connections:
                    self._engine.apply(Command("close", conn, 0, {"reason": "restart"}))

    async def stop(self) -> None:
        """End; the others see that the links are gone."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self._permission is not None:
            self._permission.stop()
        if self._primary is not None:
            self._primary.stop()
        await self._links.stop()

    def admission(self) -> Admission:
        """Clients are let in by the primary only; backups say where it is, if they know it."""
        if self._primary is not None and self._primary.accepting:
            return Admission(True, replicas=tuple(self._clients.values()))
        address = self._clients.get(self._serves_at or "")
        reason = "the cluster is being shut down" if self.state == STOPPED or self._primary is not None else NOT_PRIMARY
        return Admission(False, reason, address)

    def submit(self, command: Command) -> None:
        """Have the primary carry it out; dropped elsewhere (there, clients are being dropped too)."""
        if self._primary is not None:
            self._primary.submit(command)

    def status(self) -> dict[str, Any]:
        """What a person needs to see."""
        primary = self._primary
        return {
            "role": "primary" if primary is not None else self.state,
            "serving": primary is not None and primary.accepting and self._may_go_on(),
            "epoch": self._generation,
            "view": sorted({self._name, *primary.browsers} if primary is not None else {self._name}),
            "master": self._name if primary is not None else self._serves_at,
            **self._description(),
        }

    async def administer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out what an administrator or a manager asks for."""
        operation = self._operations.get(str(request.get("op")))
        if operation is None:
            raise ConfigError(f"there is no operation {request.get('op')!r} (there are: {', '.join(self._operations)})")
        answer = operation(request)
        return dict(await answer if asyncio.iscoroutine(answer) else answer)

    # Administrators.

    def _description(self) -> dict[str, Any]:
        primary = self._primary
        return {
            "state": self.state,
            "eligible": self._eligible(),
            "forced": self._forced and self.state == CONNECTING,
            "generation": self._generation,
            "store": self._store.now.describe(),
            "primary": self._name if primary is not None else self._serves_at,
            "backups": {name: browser.state for name, browser in primary.browsers.items()} if primary else {},
            "clients": dict(self._clients),
            "brokers": {name: list(address) for name, address in self._brokers.items()},
        }

    def _tell_status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._description()

    def _eligible(self) -> bool:
        """Whether this backup has everything, by what it knows (requirement Q10)."""
        return self.state == READY or (self.state == CONNECTING and self._was_ready)

    def _promote(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Take over as primary [Failover]."""
        term = _read_term(request)
        if self._permission is not None and term is not None and term < self._permission.term:
            raise ConfigError(f"term {term} is over: this broker is primary of term {self._permission.term}")
        if self._primary is not None:
            if self._permission is not None and term is not None:
                self._permission.lead(term)
            return {}
        if self._permission is not None and term is None:
            return self._vouch(request)
        store = self._store.now.state
        bootstrap = bool(request.get("bootstrap")) and store in (EMPTY, CLEAN) and self.state == CONNECTING
        if not (self._eligible() or bootstrap or request.get("force")):
            raise ConfigError(f"{self._name} is not eligible as primary: {self._why_not()}")
        if self.state == STOPPED:
            raise ConfigError("the cluster has been shut down: start the brokers again")
        if self._permission is not None and not self._permission.holds():
            raise ConfigError(f"{self._name} has no quorum")
        if self._permission is not None:
            self._permission.lead(term or 0)
        self._become_primary()
        return {}

    def _vouch(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """A person's word, where there are managers: theirs promotes this broker, if nobody else is primary."""
        if not request.get("force"):
            raise ConfigError(f"{self._name} has a manager, which promotes it when it may; --force says that its data "
                              "are good enough")
        if self.state != CONNECTING:
            raise ConfigError(f"{self._name} is {self.state}: only the data of a broker that is connecting can be "
                              "vouched for")
        if self._backup.discard:
            self._accept_store(request)
        self._was_ready = self._forced = True
        return {}

    def _accept_store(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """A person says that a dirty store is the best one: this broker may be promoted with it [LM6]."""
        if self.state != CONNECTING or not self._backup.discard:
            raise ConfigError(f"{self._name} is {self.state}: only a broker that was started from a dirty store, and "
                              "has found no primary, can have it accepted")
        self._backup = self._as_backup(discard=False)
        self._was_ready = True
        self._close_connections()
        self._runtime.log("store accepted", generation=self._generation)
        return {"generation": self._generation}

    def _erase_store(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Forget everything: this broker starts again from nothing, and catches up."""
        if self.state != CONNECTING:
            raise ConfigError(f"{self._name} is {self.state}: only the store of a broker that is connecting is erased")
        self._erase()
        self._was_ready = False
        self._backup = self._as_backup(discard=False)
        self._runtime.log("store erased")
        return {}

    def _set_broker_url(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The addresses of all brokers are these from now on [Failback]."""
        addresses = _read_addresses(request)
        if self._name not in addresses:
            raise ConfigError(f"addresses: {self._name!r}, this broker, is missing")
        for name, (host, _) in addresses.items():
            if host == self._options.virtual_address:
                raise ConfigError(f"addresses: {name} is at the virtual address {host}; brokers need real addresses")
        self._brokers = addresses
        order = list(addresses)
        for place, (name, address) in enumerate(addresses.items()):
            if name != self._name:
                self._links.add(name, address, dial=place > order.index(self._name))
        self._links.retain(self._peers)
        if self._primary is not None:
            self._primary.peers = tuple(self._peers)
        return {}

    def _set_client_url(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Clients find brokers at these addresses from now on."""
        self._clients = {name: f"{host}:{port}" for name, (host, port) in _read_addresses(request).items()}
        return {}

    def _why_not(self) -> str:
        if self.state == CATCHUP:
            return "it is catching up"
        if self._backup.discard:
            return "it was started from a dirty store"
        return "it has not been ready since it was started"

    async def _shutdown(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """End the whole cluster in order: all stores are left clean, with one identifier."""
        if self.state == STOPPED:
            return {"uuid": self._store.now.uuid}
        primary = self._primary
        if primary is None:
            raise ConfigError(f"{self._name} is not primary; ask {self._clients.get(self._serves_at or '', 'that')}")
        primary.accepting = False
        self._broker.drop_clients("the cluster is being shut down")
        while not primary.idle():
            await asyncio.sleep(_POLL)
            if self._primary is not primary:
                raise ConfigError("this broker is primary no longer; ask the new one")
        uuid = f"{self._runtime.random.getrandbits(128):032x}"
        caught_up = [name for name, browser in primary.browsers.items() if browser.state == READY]
        for name in caught_up:
            self._send(name, Shutdown(uuid))
        primary.stop()
        self._primary = None
        self._come_to_rest(uuid)
        return {"uuid": uuid, "clean": sorted([self._name, *caught_up])}

    def _come_to_rest(self, uuid: str) -> None:
        with self._broker.transaction():
            for conn in list(self._engine.connections()):
                self._engine.apply(Command("close", conn, 0, {"reason": "shutdown"}))
            self._store.write(state=CLEAN, uuid=uuid)
        self._change_state(STOPPED)

    # States.

    @property
    def _generation(self) -> int:
        return self._store.now.generation

    def _change_state(self, state: str, **fields: Any) -> None:
        self.state = state
        self._runtime.log(state, generation=self._generation, **fields)
        for peer in self._peers:
            self._greet(peer)

    @property
    def _peers(self) -> list[str]:
        return [name for name in self._brokers if name != self._name]

    def _become_primary(self) -> None:
        generation = max([self._generation, *(hello.generation for hello in self._heard.values())]) + 1
        with self._broker.transaction():
            self._store.write(state=DIRTY, role=PRIMARY_STORE, generation=generation)
        self._serves_at = None
        self._primary = Primary(
            self._broker, self._engine, self._options, self._configuration, self._generations, generation,
            self._peers, self._send, self._permission,
        )
        self._primary.start()
        self._change_state(PRIMARY)
        self._broker.began_serving()

    def _step_down(self, why: str) -> None:
        """Another primary is newer: what this one has beyond it was never complete, or is lost."""
        primary = self._primary
        assert primary is not None
        primary.stop()
        self._primary = None
        self._broker.drop_clients(NOT_PRIMARY)
        if self._permission is not None:
            self._permission.lead(0)
        self._was_ready = False
        self._backup = self._as_backup(discard=True)
        self._change_state(CONNECTING, why=why)

    def _may_go_on(self) -> bool:
        return self._permission is None or self._permission.holds() or INQUORATE_BROKER_LIVES in self._bugs

    def _permitted(self) -> None:
        if self._primary is not None:
            self._primary.release()

    async def _tick_forever(self) -> None:
        last = self._runtime.now()
        while True:
            await asyncio.sleep(self._options.beat)
            now = self._runtime.now()
            stood_still = now - last - self._options.beat
            last = now
            if stood_still > self._options.silence / 2:
                self._runtime.log("stood still", seconds=round(stood_still, 3))
                self._links.forgive(stood_still)
            self._links.cut_silent()
            if self._permission is not None and self._permission.lost() and INQUORATE_BROKER_LIVES not in self._bugs:
                self._runtime.log("no quorum: the manager's lease ran out", level="error")
                raise NoQuorum("the manager lets this broker go on no longer")
            for peer in self._peers:
                self._greet(peer)
            if self._primary is not None:
                self._primary.tick()

    # Links.

    def link_up(self, peer: str) -> None:
        """Say how things stand here."""
        self._greet(peer)

    def link_down(self, peer: str) -> None:
        """A backup, or the primary, is gone."""
        self._heard.pop(peer, None)
        if self._primary is not None:
            self._primary.detached(peer)
        elif peer == self._serves_at:
            self._lose_primary()

    def _lose_primary(self) -> None:
        """Go back to connecting; whoever was ready stays eligible until it begins to catch up with another."""
        lost, self._serves_at = self._serves_at, None
        if self.state in (CATCHUP, READY):
            self._was_ready = self.state == READY
            self._change_state(CONNECTING, lost=lost)

    def frames(self, peer: str, frames: Sequence[Any]) -> None:
        """What a peer says."""
        groups: list[Events] = []
        for message in map(unpack, frames):
            if isinstance(message, Events):
                groups.append(message)
                continue
            self._apply(peer, groups)
            groups = []
            if isinstance(message, Hello):
                self._take_hello(peer, message)
            elif isinstance(message, Completed):
                if self._primary is not None:
                    self._primary.completed(peer, message.number, message.groups)
            elif isinstance(message, Attach):
                self._take_attach(peer, message)
            elif isinstance(message, Refuse):
                self._take_refusal(peer, message)
            elif peer == self._serves_at:
                self._come_to_rest(message.uuid)
        self._apply(peer, groups)

    def _apply(self, peer: str, groups: list[Events]) -> None:
        if not groups or peer != self._serves_at or self.state not in (CATCHUP, READY):
            return
        caught_up = self._backup.apply(groups)
        self._send(peer, Completed(self._backup.completed, len(groups)))
        if caught_up and self.state == CATCHUP:
            self._change_state(READY)

    def _take_hello(self, peer: str, hello: Hello) -> None:
        self._heard[peer] = hello
        if hello.state != PRIMARY or self.state == STOPPED:
            if peer == self._serves_at:
                self._lose_primary()
            return
        if self._serves_at not in (None, peer) and hello.generation > self._generation:
            self._lose_primary()
        if self._primary is not None:
            if (hello.generation, self._rank(self._name)) > (self._primary.generation, self._rank(peer)):
                self._step_down(f"{peer} is primary of generation {hello.generation}")
            return
        if self.state == CONNECTING and (self._backup.discard or hello.generation >= self._generation):
            self._serves_at = peer
            self.state = CATCHUP
            self._runtime.log(CATCHUP, primary=peer, generation=hello.generation)
            self._send(peer, self._backup.attach(self._generation))

    def _rank(self, name: str) -> int:
        return list(self._brokers).index(name) if name in self._brokers else len(self._brokers)

    def _take_attach(self, peer: str, message: Attach) -> None:
        check_attach(message)
        primary = self._primary
        if primary is None:
            return
        if message.uuid and message.uuid != self._store.now.uuid:
            self._send(peer, Refuse(f"its store is of another shutdown ({message.uuid}) than this cluster's"))
            return
        primary.attached(peer, message)

    def _take_refusal(self, peer: str, message: Refuse) -> None:
        if peer == self._serves_at:
            self._runtime.log("refused by the primary", level="error", primary=peer, reason=message.reason)
            self._runtime.spawn(_end(Refused(message.reason)), "refusal")

    def _greet(self, peer: str) -> None:
        self._send(peer, Hello(self.state, self._generation if self._primary is None else self._primary.generation,
                               self._store.now.uuid))

    def _send(self, peer: str, message: Message) -> None:
        self._links.send(peer, pack(message))


def _read_term(request: Mapping[str, Any]) -> int | None:
    """The managers' term in which they promote; None where a person asks. Raises ConfigError for what is no number."""
    term = request.get("term")
    if term is not None and (type(term) is not int or term < 0):
        raise ConfigError("term: is not a whole number from 0")
    return term


def _read_addresses(request: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Name -> host and port; raises ConfigError for anything else."""
    found = request.get("addresses")
    if not isinstance(found, dict) or not found or not all(
        isinstance(address, list) and list(map(type, address)) == [str, int] and 0 < address[1] < 65536
        for address in found.values()
    ):
        raise ConfigError('addresses: is not {"NAME": ["HOST", PORT], ...}')
    return {name: (host, port) for name, (host, port) in found.items()}


async def _end(reason: Exception) -> None:
    """End the broker."""
    raise reason
