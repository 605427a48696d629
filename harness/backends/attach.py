"""A system that runs already: the harness only connects clients to it.

A setting (``attach``) gives its location. The clients' credentials are read from the environment, so that they appear
in no store, log or process list.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from harness.backends.ssh.clients import source_address
from stormproof.contracts.backend import (
    HOST_ROOT,
    KILL,
    LINKS,
    PACKETS,
    PAUSE,
    Backend,
    Capability,
    Credentials,
    Link,
    ProcessState,
)
from stormproof.contracts.option import Option
from stormproof.contracts.topology import Topology
from stormproof.errors import BackendError, UsageError
from stormproof.test import Test

LOGIN, PASSCODE = "STORMPROOF_LOGIN", "STORMPROOF_PASSCODE"
"""Environment variables with the user and the password of clients."""
ATTACH = Option("attach", "", "where the system runs: HOST:PORT of each replica, joined by commas")
_PLACE = re.compile(r"([^:@/\s\[\]]+):(\d{1,5})")


def read_places(text: str, option: str = "--attach") -> tuple[tuple[str, int], ...]:
    """Return the host and port of each replica. ``option`` is the one that the user gave, for messages.

    Raises:
        UsageError: the text is not of the form ``HOST:PORT[,HOST:PORT...]``; the message omits a possible password.
    """
    if not text.strip():
        raise UsageError(f"say where the system runs: {option} HOST:PORT[,HOST:PORT...]")
    if "@" in text or "//" in text:
        raise UsageError(f"{option} takes HOST:PORT alone; user and password come from {LOGIN} and {PASSCODE}")
    places = []
    for part in text.split(","):
        found = _PLACE.fullmatch(part.strip())
        if found is None or not 0 < int(found[2]) < 1 << 16:
            raise UsageError(f"{option} {part.strip()!r}: write it as HOST:PORT (a name, or an IPv4 address)")
        places.append((found[1], int(found[2])))
    if len(set(places)) < len(places):
        raise UsageError(f"{option} {text}: a replica is named twice")
    return tuple(places)


def resolve(host: str) -> str:
    """Return the IPv4 address of a host. Raises BackendError when it has none. Blocks."""
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BackendError(f"--attach {host}: {getattr(error, 'strerror', None) or error}; nothing was done there"
                           ) from None
    return str(found[0][4][0])


async def places_of(test: Test) -> dict[str, tuple[str, int]]:
    """Return the address and port of each replica.

    Raises:
        UsageError: their number differs from the test's number of replicas. BackendError: a name has no address.
    """
    places = read_places(str(test.options.get(ATTACH.name) or ""))
    if len(places) != len(test.node_names):
        raise UsageError(f"--attach names {len(places)} replicas, but the test has {len(test.node_names)}; leave out "
                         "--nodes")
    hosts = await asyncio.gather(*(asyncio.to_thread(resolve, host) for host, _ in places))
    found = [(host, port) for host, (_, port) in zip(hosts, places, strict=True)]
    if len(set(found)) < len(found):
        raise UsageError(f"--attach {test.options[ATTACH.name]}: a replica is named twice")
    return dict(zip(test.node_names, found, strict=True))


def credentials_from_environment() -> Credentials:
    """Return the credentials of clients; a system may need only a password."""
    return Credentials(os.environ.get(LOGIN, ""), os.environ.get(PASSCODE, ""))


class AttachBackend(Backend):
    """Replicas that are reached only at their ports: faults are impossible here."""

    name = "attach"
    root_folder = HOST_ROOT
    also_type = " --attach HOST:PORT"
    options = (ATTACH,)
    abilities: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self._places: dict[str, tuple[str, int]] = {}
        self._clients: dict[str, str] = {}

    @staticmethod
    def requirements() -> Sequence[Capability]:
        """Return a single capability: the backend needs nothing."""
        return [Capability("attach", True, "a system that runs already")]

    @staticmethod
    def lacks() -> Mapping[str, str]:
        """Return all faults as lacking: they need access to the hosts."""
        return dict.fromkeys((LINKS, PACKETS, PAUSE, KILL), "clients alone reach it; for faults, name its hosts: "
                             "--hosts FILE")  # fmt: skip

    @staticmethod
    def prepare_settings(given: Mapping[str, Any]) -> dict[str, Any]:
        """Check the addresses, to report a mistake before anything is created."""
        read_places(str(given.get(ATTACH.name) or ""))
        return dict(given)

    async def provision(self, test: Test, topology: Topology, run_dir: Path) -> None:
        """Resolve the addresses of the replicas and of the clients.

        Raises:
            UsageError: addresses and test do not match. BackendError: a name has no address, or no route.
        """
        self._places = await places_of(test)
        for client, (host, _) in zip(topology.client_hosts, self._places.values(), strict=True):
            self._clients[client] = source_address(host)

    def port(self, node: str) -> int:
        """Return a replica's port."""
        return self._places[node][1]

    def credentials(self) -> Credentials:
        """Return the credentials from the environment."""
        return credentials_from_environment()

    def address(self, name: str) -> str:
        """Return the address of a replica or of a client."""
        if name in self._places:
            return self._places[name][0]
        try:
            return self._clients[name]
        except KeyError:
            raise BackendError(f"{name!r} has no address") from None

    def node_dir(self, node: str) -> str:
        """Return an empty path: nodes have no folder."""
        return ""

    async def set_network(self, cut: frozenset[Link]) -> None:
        """Accept an empty cut; raises BackendError for any other."""
        if cut:
            raise _not_ours("its links can't be cut")

    async def dropped(self) -> Mapping[Link, int]:
        """Return no counts."""
        return {}

    async def probe(self, link: Link, timeout: float) -> str:
        """Return ``unknown``."""
        return "unknown"

    async def process(self, node: str, program: str) -> ProcessState:
        """Raise BackendError: processes cannot be observed."""
        raise _not_ours("its processes can't be seen")

    async def upload(self, node: str, content: bytes, path: str) -> None:
        """Raise BackendError."""
        raise _not_ours("it gets no files")

    async def download(self, node: str, path: str) -> bytes:
        """Raise BackendError."""
        raise _not_ours("its files can't be read")

    async def stop(self, node: str, program: str, timeout: float = 5.0) -> str:
        """Raise BackendError."""
        raise _not_ours("it is not stopped")

    async def kill(self, node: str, program: str) -> None:
        """Raise BackendError."""
        raise _not_ours("it is not killed")

    async def pause(self, node: str, program: str) -> None:
        """Raise BackendError."""
        raise _not_ours("it is not paused")

    async def resume(self, node: str, program: str) -> None:
        """Raise BackendError."""
        raise _not_ours("it is not resumed")

    async def release(self) -> None:
        """Do nothing: the backend has created nothing."""


def _not_ours(what: str) -> BackendError:
    return BackendError(f"the system runs elsewhere, without SSH hosts: {what}; give --hosts FILE")
