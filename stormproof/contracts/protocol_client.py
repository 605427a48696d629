"""A protocol client: how to connect to any broker that speaks a standard protocol, prepare it, and ask it."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stormproof.contracts.backend import Credentials
from stormproof.contracts.guarantee import Guarantee
from stormproof.contracts.option import Option
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError
from stormproof.text import reason

ADMITTED_SECONDS = 5.0
"""The time for one connection of ``admitted``: a broker that runs answers in less than a second."""


@dataclass(frozen=True)
class Tls:
    """TLS of clients: paths of the certificate authority, the client's certificate and its key, and the name that the
    broker's certificate must have. An empty ``ca`` stands for the system's authorities, an empty ``cert`` for no client
    certificate, an empty ``name`` for the broker's host name."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    name: str = ""

    def context(self) -> ssl.SSLContext:
        """Return a context that verifies the broker's certificate.

        Raises:
            OSError, ssl.SSLError: a file can't be read, or is no certificate or key.
        """
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.cert:
            context.load_cert_chain(self.cert, self.key or None)
        return context


@dataclass(frozen=True)
class Access:
    """How clients get into a broker: credentials, virtual host, SASL mechanism, and TLS (None: plain connections).

    ``sasl`` is the mechanism's registered name (``PLAIN``, ``SCRAM-SHA-256``); empty: the protocol's usual one.
    """

    credentials: Credentials = field(default_factory=Credentials)
    vhost: str = ""
    sasl: str = ""
    tls: Tls | None = None


@dataclass(frozen=True)
class Broker:
    """A replica as clients reach it: its node's name, and host and port."""

    node: str
    host: str
    port: int


@dataclass(frozen=True)
class BrokerSetup:
    """What a protocol client works with: the replicas, the access to them, the names of the objects that the workload
    uses, and the values of the protocol client's options. ``hosts`` are the addresses of host names by which the broker
    refers to its machines, as client places resolve them.

    For clients that are programs: ``place_command`` returns the words that precede a program's command so that it runs
    in the network of the client place with that address (empty: of the first one), and ``tell`` takes the lines that
    programs write to their standard error.
    """

    brokers: Sequence[Broker]
    access: Access = field(default_factory=Access)
    demands: Demands = field(default_factory=Demands)
    options: Mapping[str, Any] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    place_command: Callable[[str], Sequence[str]] = lambda local: ()
    tell: Callable[[str], None] = lambda line: None

    def resolve(self, host: str) -> str:
        """Return the address of a host name that the broker told a client; unknown names are returned as they are."""
        nodes = {broker.node: broker.host for broker in self.brokers}
        return self.hosts.get(host) or nodes.get(host) or host


class ProtocolClient(ABC):
    """A kind of client, for all brokers that speak its protocol. It holds no state of a run.

    ``port`` is the protocol's registered port, ``tls_port`` the one for TLS. ``provides`` are the features that
    workloads may need (``queues``, ``logs``, ``registers``, ``locks``). ``options`` are its settings, ``defaults`` its
    defaults for options of workloads, and ``guarantees`` state what the protocol itself does not promise.
    ``distributions`` are the Python packages that it needs, in the extra ``extra``. ``binds``: the library connects
    from the address that ``connect`` names; otherwise its connections must run inside the client place's network.
    ``one_leader``: one replica leads all objects, so that it is the system's leader.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    port: ClassVar[int]
    tls_port: ClassVar[int] = 0
    provides: ClassVar[frozenset[str]] = frozenset({"queues"})
    options: ClassVar[tuple[Option, ...]] = ()
    defaults: ClassVar[Mapping[str, Any]] = {}
    guarantees: ClassVar[tuple[Guarantee, ...]] = ()
    distributions: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str] = "systems"
    binds: ClassVar[bool] = True
    one_leader: ClassVar[bool] = False

    def settings(self, setup: BrokerSetup) -> dict[str, Any]:
        """Return the values of all options; those that the setup leaves out have their defaults."""
        return {option.name: option.default for option in self.options} | dict(setup.options)

    def features(self, options: Mapping[str, Any]) -> frozenset[str]:
        """Return the features that clients have under these options. Raises UsageError if that can't be determined."""
        return self.provides

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise UsageError if clients can't do what the options of the test ask for."""

    def port_of(self, options: Mapping[str, Any], tls: bool) -> int:
        """Return the port of brokers whose user names none. Raises UsageError if there is no usual one."""
        return self.tls_port if tls and self.tls_port else self.port

    @abstractmethod
    def connection(self, setup: BrokerSetup) -> Any:
        """Return a new connection, not open yet: one of the protocols of ``stormproof.contracts.client`` for each
        feature in ``provides``."""

    def own_connection(self, setup: BrokerSetup) -> Any:
        """Return a new connection for the harness itself, in this process: no fault may cut it off."""
        return self.connection(setup)

    async def admitted(self, setup: BrokerSetup, local: str = "") -> Any:
        """Return a connection, made by ``connection``, to the first broker that lets the client in within
        ``ADMITTED_SECONDS``; for ``prepare`` and the other requests.

        Raises:
            BackendError: none did; the text has the last answer.
        """
        trouble = "no broker is named"
        for broker in setup.brokers:
            connection = self.connection(setup)
            try:
                await asyncio.wait_for(connection.connect(broker.host, broker.port, local), ADMITTED_SECONDS)
            except Exception as error:
                trouble = f"{broker.node}: {reason(error)}"
                await connection.close()
            else:
                return connection
        raise BackendError(f"{self.name}: no broker lets a client in: {trouble}")

    async def prepare(self, setup: BrokerSetup) -> None:
        """Create the queues, logs or streams that the workload uses; existing ones are accepted.

        First offsets are the earliest, and delivery limits are lifted, wherever the protocol has a request for it.
        """

    async def leaders(self, setup: BrokerSetup) -> Mapping[str, str]:
        """Return the node that leads each object, by the object's name, if the protocol tells."""
        return {}

    async def move_leader(self, setup: BrokerSetup, name: str, node: str) -> None:
        """Ask the broker to hand the leadership of an object over to a node, if the protocol has a request for it.

        Raises:
            Exception: it refused.
        """
        raise BackendError(f"{self.name} has no request to move a leader")

    def why_no_move(self, options: Mapping[str, Any]) -> str:
        """Return why nobody can move leaders by the protocol under these options; empty: it has a request."""
        has_request = type(self).move_leader is not ProtocolClient.move_leader
        return "" if has_request else f"the client {self.name} has no request to move a leader"

    async def time_of(self, setup: BrokerSetup, broker: Broker) -> float | None:
        """Return the time of day that a broker tells, in seconds since 1970; None if the protocol has no request for
        it."""
        return None

    async def advertised(self, setup: BrokerSetup) -> Mapping[str, tuple[str, int]]:
        """Return the host and port under which each node tells clients to reach it, if the protocol has that."""
        return {}

    async def clear(self, setup: BrokerSetup, names: Sequence[str]) -> Sequence[str]:
        """Delete objects of these names that clients created on a broker that continues to run; return those left."""
        return names
