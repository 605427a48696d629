"""Services (HA Joram, 4.6.1): started on the master only, with a flag for the first start.

Whether a start is the first is part of the replicated state, the *deployment*, which changes through the log:

``NEW`` --first master--> ``BEGUN`` --all services initialised--> ``DONE``
``BEGUN`` --the master failed, or a service did--> ``FAILED`` --all replicas stopped and started again--> ``BEGUN``

A replica whose deployment has failed stops with an error. Because agents that a service deploys have reserved
identifiers, the next attempt finds those that exist already, on the same disks.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from nodes.reference.api import Command, ConfigError
from nodes.reference.engine.server_queues import BEGUN, DONE, FAILED, ServicesDeployment
from nodes.reference.server.reaction import REACTION, ReactionService
from nodes.reference.server.service import Service, ServiceHost

CONNECTION_MANAGER = "org.objectweb.joram.mom.proxies.ConnectionManager"
TCP_PROXY = "org.objectweb.joram.mom.proxies.tcp.TcpProxyService"
DESTINATIONS = "stormproof.Destinations"

DEFAULT_SERVICES: Sequence[Sequence[str]] = ((CONNECTION_MANAGER,), (TCP_PROXY,))
"""The services of a node whose configuration names none."""

RESERVED_EACH = 1000
"""Number of reserved identifiers of one service. They are negative; the identifiers that replicas generate are
positive."""


class DeploymentFailed(Exception):
    """The services were not initialised; all replicas have to be stopped and started again."""


class ConnectionManager:
    """The clients' account is part of every replica's configuration, so this service has nothing to start."""

    def __init__(self, host: ServiceHost, reserved: int, arguments: Sequence[str]) -> None:
        if len(arguments) not in (0, 2):
            raise ConfigError(f"services: {CONNECTION_MANAGER} takes a name and a password")

    def init(self, first_time: bool) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class TcpProxyService:
    """The clients' entry point: open while this replica is master.

    Every replica has the listener itself, so that an administrator can query a slave's status and a client learns from
    a slave which node is the master; only the master admits clients.
    """

    def __init__(self, host: ServiceHost, reserved: int, arguments: Sequence[str]) -> None:
        if len(arguments) > 1:
            raise ConfigError(f"services: {TCP_PROXY} takes a port")
        self._host = host

    def init(self, first_time: bool) -> None:
        """Admit clients."""
        self._host.entry_open = True

    def stop(self) -> None:
        """Stop admitting clients."""
        self._host.entry_open = False


class DestinationsService:
    """Creates destinations when the server is started for the first time."""

    def __init__(self, host: ServiceHost, reserved: int, arguments: Sequence[str]) -> None:
        if len(arguments) > RESERVED_EACH or not all(name.startswith("/queue/") for name in arguments):
            raise ConfigError(f"services: {DESTINATIONS} takes at most {RESERVED_EACH} names /queue/NAME")
        self._host, self._reserved, self._names = host, reserved, arguments

    def init(self, first_time: bool) -> None:
        """Create the destinations, each with its own reserved identifier."""
        if first_time:
            for place, name in enumerate(self._names):
                self._host.submit(Command("deploy", "", 0, {"id": self._reserved - place, "destination": name}))

    def stop(self) -> None:
        """Do nothing: the destinations remain."""


ServiceFactory = Callable[[ServiceHost, int, Sequence[str]], Service]

SERVICES: dict[str, ServiceFactory] = {
    CONNECTION_MANAGER: ConnectionManager,
    TCP_PROXY: TcpProxyService,
    DESTINATIONS: DestinationsService,
    REACTION: ReactionService,
}
"""Class name in the descriptor -> factory of the service."""

IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""A service outside this table: ``package.module:Class``, on the broker's import path."""


def factory_of(name: str, factories: Mapping[str, ServiceFactory]) -> ServiceFactory:
    """Return the factory of a service class, given by its class name or import path.

    Raises:
        ConfigError: there is no such class, or it lacks the methods of a service.
    """
    if name in factories:
        return factories[name]
    if not IMPORT_PATH.fullmatch(name):
        raise ConfigError(f"services: there is no {name!r} (there are: {', '.join(factories)}; or name one of your "
                          "own: package.module:Class)")
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module may raise anything while it is imported
        raise ConfigError(f"services: {name} can't be imported ({type(error).__name__}: {error}); is its folder on "
                          "PYTHONPATH, on every replica?") from error
    if not callable(found) or not all(callable(getattr(found, each, None)) for each in ("init", "stop")):
        raise ConfigError(f"services: {name} is not a class with the methods init(first_time) and stop()")
    return cast("ServiceFactory", found)


class Services:
    """The services of one node; ``ready`` once all are started. ``opened`` is called each time that happens.

    ``alone``: the node has no replicas, so that its restart is a restart of all replicas.

    Raises:
        ConfigError: a service has no such class, or wrong arguments.
    """

    def __init__(self, host: ServiceHost, node: str, wanted: Sequence[Sequence[str]], opened: Callable[[], None],
                 factories: Mapping[str, ServiceFactory] = SERVICES, *, alone: bool = False) -> None:
        self.ready = False
        self._alone = alone
        self._host, self._node, self._opened = host, node, opened
        self.services: list[tuple[str, Service]] = []
        for place, (name, *arguments) in enumerate(wanted or DEFAULT_SERVICES):
            factory = factory_of(name, factories)
            self.services.append((name, factory(host, -1 - place * RESERVED_EACH, arguments)))
        self.started: list[Service] = []

    def promoted(self, deployment: ServicesDeployment) -> None:
        """Start the services on this replica, which serves from now on; ``deployment`` is that of the replicated
        state."""
        if deployment.phase == DONE:
            self._start(first_time=False)
            self._open()
        elif deployment.phase == BEGUN and not self._alone:
            self._decide(FAILED, f"{deployment.note} failed while it initialised the services for the first time")
        else:
            self._decide(BEGUN, self._node)

    def decided(self, phase: int) -> None:
        """React to the replication of a phase that this master decided on."""
        if phase == BEGUN:
            try:
                self._start(first_time=True)
            except Exception as error:  # after any failure, the group must not run without the agents
                self._host.log("service failed", level="error", error=repr(error))
                self._decide(FAILED, f"{self._node}: {error}")
            else:
                self._decide(DONE, self._node)
        elif phase == DONE:
            self._open()

    def demoted(self) -> None:
        """Stop the started services in reverse order, because this replica no longer serves."""
        self.ready = False
        while self.started:
            self.started.pop().stop()

    def _start(self, first_time: bool) -> None:
        for name, service in self.services:
            self.started.append(service)
            service.init(first_time)
            self._host.log("service initialised", service=name, first_time=first_time)

    def _open(self) -> None:
        self.ready = True
        self._opened()

    def _decide(self, phase: int, note: str) -> None:
        self._host.submit(Command("deployment", "", 0, {"phase": phase, "note": note}))
