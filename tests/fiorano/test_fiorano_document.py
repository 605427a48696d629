"""Sentences of the document on real processes: two servers and their gateway on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from loopback import free_ports

from harness.run.settings import make_test
from nodes.reference.designs.fiorano.gateway.lockfile import holder_in
from nodes.stomp import Frame, Parser, ProtocolError, encode
from nodes.systems.reference.admin_connection import AdminConnection
from workloads.catalog import WORKLOADS

PATIENCE = 60.0
LEASE = 0.5
SERVERS = ("n1", "n2")
QUEUE = "/queue/q"
MANY = 1000
"""Messages that take some hundred pages of a synchronisation, which go one after the other."""
STAGED_BYTES = 1 << 20
"""What the standby has written to its log of transactions when some of the messages are there."""
SLOW = {"page": 500, "page_window": 1}


class Client:
    """A plain client of one server."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._parser, self._frames = Parser(), deque[Frame]()

    def __enter__(self) -> Client:
        self.write("CONNECT", {"accept-version": "1.2", "host": "/", "login": "guest", "passcode": "guest"})
        assert self.frame().command == "CONNECTED"
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def write(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.socket.sendall(encode(Frame(command, headers, body)))

    def frame(self) -> Frame:
        while not self._frames:
            data = self.socket.recv(1 << 16)
            assert data, "the server ended the connection"
            self._frames += [item for item in self._parser.feed(data) if isinstance(item, Frame)]
        return self._frames.popleft()


class Pair:
    """Programs by name; ``lockfiles`` says which Lockfile a server is configured for, if not the gateway's, and
    ``options`` what else is set at both servers."""

    def __init__(self, folder: Path, options: Mapping[str, Any], **lockfiles: str) -> None:
        self.folder, self.lockfile = folder, folder / "lockfile"
        gateway, *ports = free_ports(5)
        self.clients = dict(zip(SERVERS, ports, strict=False))
        links = dict(zip(SERVERS, ports[2:], strict=True))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        common = {"cluster": "fiorano", "secret": "s", "lease": LEASE}
        self._write("gateway", {"host": "127.0.0.1", "port": gateway, "Lockfile": str(self.lockfile),
                                "servers": list(SERVERS), **common})  # fmt: skip
        for name, other in (SERVERS, SERVERS[::-1]):
            layer = {"Primary": name == "n1", "Lockfile": lockfiles.get(name, str(self.lockfile)),
                     "BackupHAIPAddress": "127.0.0.1", "BackupHAPort": links[other],
                     "GatewayServerIPAddress": "127.0.0.1", "GatewayServerPort": gateway}  # fmt: skip
            self._write(name, {
                "node": name, "design": "fiorano", "data": str(folder / name), "port": self.clients[name],
                "peers": {each: ["127.0.0.1", port] for each, port in links.items()},
                "client_addresses": {each: f"127.0.0.1:{port}" for each, port in self.clients.items()},
                "options": {**layer, **common, "heartbeat": LEASE / 4, **options},
            })  # fmt: skip

    def _write(self, name: str, config: Mapping[str, Any]) -> None:
        (self.folder / f"{name}.json").write_text(json.dumps(config))

    def start(self, *names: str) -> None:
        for name in names:
            module = "nodes.reference.gateway" if name == "gateway" else "nodes.reference"
            with (self.folder / f"{name}.log").open("ab") as log:
                self.running[name] = subprocess.Popen([sys.executable, "-m", module, str(self.folder / f"{name}.json")],
                                                      stdout=log, stderr=log)  # fmt: skip

    def kill(self, *names: str) -> None:
        for name in names:
            self.running[name].kill()
            self.running[name].wait(PATIENCE)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def states(self) -> dict[str, str]:
        found = {}
        for name in SERVERS:
            with contextlib.suppress(OSError, EOFError, TimeoutError, ProtocolError, ValueError):
                found[name] = str(asyncio.run(self._ask(name, AdminConnection.design, {"op": "status"}))["state"])
        return found

    async def _ask(self, name: str, ask: Callable[..., Awaitable[Mapping[str, Any]]], *request: Any) -> dict[str, Any]:
        admin = AdminConnection("127.0.0.1", self.clients[name], "guest", "guest")
        try:
            return dict(await ask(admin, *request, 2.0))
        finally:
            admin.close()

    def until(self, so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not so():
            assert time.monotonic() < deadline, {name: self.log(name)[-2000:] for name in self.running}
            time.sleep(0.05)

    def signal(self, name: str, number: signal.Signals) -> None:
        self.running[name].send_signal(number)

    def last_state(self, name: str) -> str:
        """The newest state that the server's log tells."""
        return re.findall(r"present=(\w+)", self.log(name))[-1]

    def fill(self, name: str, count: int) -> None:
        """Have the server confirm so many messages."""
        with Client(self.clients[name]) as client:
            for number in range(count):
                client.write("SEND", {"destination": QUEUE, "receipt": str(number)}, b"x" * 200)
            for _ in range(count):
                assert client.frame().command == "RECEIPT"

    def empty(self, name: str, count: int) -> None:
        """Take so many messages from the server."""
        with Client(self.clients[name]) as client:
            client.write("SUBSCRIBE", {"id": "s", "destination": QUEUE, "ack": "client-individual",
                                       "x-prefetch": str(count)})  # fmt: skip
            for _ in range(count):
                client.write("ACK", {"id": client.frame().headers["ack"]})
            client.write("DISCONNECT", {"receipt": "last"})
            assert client.frame().headers["receipt-id"] == "last"

    def depth(self, name: str) -> int:
        """How many messages the queue holds, as the server counts them."""
        return int(asyncio.run(self._ask(name, AdminConnection.status))["depths"].get("q", 0))

    def holder(self) -> str:
        return holder_in(self.lockfile.read_bytes())


@contextmanager
def running(folder: Path, options: Mapping[str, Any] | None = None, **lockfiles: str) -> Iterator[Pair]:
    """A pair of which n1 is active, n2 its standby."""
    pair = Pair(folder, options or {}, **lockfiles)
    pair.start("gateway", *SERVERS)
    try:
        pair.until(lambda: pair.states() == {"n1": "ACTIVE", "n2": "PASSIVE"})
        yield pair
    finally:
        pair.kill(*pair.running)


@pytest.mark.requirement("F1", part=True)
@pytest.mark.requirement("F2", part=True)
def test_a_server_whose_lockfile_the_gateway_does_not_know_is_refused_by_name(tmp_path: Path) -> None:
    """Both say so at once, and not only when the server needs the lock: it never serves alone with that file."""
    with running(tmp_path, n2="/another/lockfile") as pair:
        reason = f"n2 is configured for the Lockfile '/another/lockfile', and this gateway has '{pair.lockfile}'"
        pair.until(lambda: reason in pair.log("gateway") and reason in pair.log("n2"))
        assert "is configured for" not in pair.log("n1")
        pair.kill("n1")
        pair.until(lambda: pair.holder() == "")
        time.sleep(4 * LEASE)
        assert pair.states() == {"n2": "PASSIVE"}


@pytest.mark.requirement("F3", part=True)
def test_the_lock_file_names_nobody_when_nobody_holds_the_lock(tmp_path: Path) -> None:
    """While a server holds it, the file names that one; when both are gone, nobody; who was last is told as that."""
    with running(tmp_path) as pair:
        pair.until(lambda: pair.holder() == "n1")
        pair.kill("n1")
        pair.until(lambda: pair.states() == {"n2": "STANDALONE"})
        assert pair.holder() == "n2"
        pair.kill("n2")
        pair.until(lambda: pair.holder() == "")
        assert pair.lockfile.read_text().endswith(" free, last holder n2\n")
        pair.start("n1", "n2")
        pair.until(lambda: pair.states() == {"n1": "PASSIVE", "n2": "ACTIVE"})
        assert pair.holder() == "n2"


@pytest.mark.requirement("F3", part=True)
def test_a_gateway_that_starts_again_empties_the_name_of_a_holder_that_is_gone(tmp_path: Path) -> None:
    """The holder of before may hold the lock until its lease has ended; then nobody does."""
    with running(tmp_path) as pair:
        pair.until(lambda: pair.holder() == "n1")
        pair.kill("gateway", *SERVERS)
        assert pair.holder() == "n1"
        pair.start("gateway")
        pair.until(lambda: pair.holder() == "")
        assert pair.lockfile.read_text().endswith(" free, last holder n1\n")


def synchronising(pair: Pair) -> None:
    """Have n1 bring n2 up to date, page by page, and stop n2 when it has some of the messages."""
    written = pair.folder / "n2" / "broker.sqlite-wal"
    before = written.stat().st_size
    pair.start("n2")
    deadline = time.monotonic() + PATIENCE
    while written.stat().st_size < before + STAGED_BYTES:
        assert time.monotonic() < deadline, (before, written.stat().st_size, pair.log("n2")[-2000:])
    pair.signal("n2", signal.SIGSTOP)
    assert pair.last_state("n2") == "PASSIVE_TRANSITION", "it was stopped too late"


@pytest.mark.requirement("F3", part=True)
def test_a_server_that_has_lost_the_lock_does_not_become_active(tmp_path: Path) -> None:
    """It has lost it while it synchronises, and looks at it every 20 seconds only; then its standby is complete."""
    with running(tmp_path, {**SLOW, "heartbeat": 20.0}) as pair:
        pair.kill("n2")
        pair.until(lambda: pair.last_state("n1") == "STANDALONE")
        pair.fill("n1", MANY)
        synchronising(pair)
        assert pair.last_state("n1") == "ACTIVE_TRANSITION"
        pair.kill("gateway")
        time.sleep(2 * LEASE)
        pair.signal("n2", signal.SIGCONT)
        pair.until(lambda: pair.last_state("n1") != "ACTIVE_TRANSITION")
        assert pair.last_state("n1") == "WAITING"
        pair.start("gateway")
        pair.until(lambda: set(pair.states().values()) == {"ACTIVE", "PASSIVE"})


@pytest.mark.requirement("F4", part=True)
@pytest.mark.requirement("F8", part=True)
def test_what_a_broken_off_synchronisation_has_brought_does_not_come_back(tmp_path: Path) -> None:
    """Messages that were taken between it and the next one are stale: the standby's repository is begun again."""
    with running(tmp_path, SLOW) as pair:
        pair.kill("n2")
        pair.until(lambda: pair.last_state("n1") == "STANDALONE")
        pair.fill("n1", MANY)
        synchronising(pair)
        pair.until(lambda: pair.last_state("n1") == "STANDALONE")
        pair.empty("n1", MANY)
        pair.fill("n1", 3)
        pair.signal("n2", signal.SIGCONT)
        pair.until(lambda: pair.states() == {"n1": "ACTIVE", "n2": "PASSIVE"})
        assert pair.log("n2").count("synchronisation begins") == 1 + pair.log("n2").count("synchronisation complete")
        pair.kill("n1")
        pair.until(lambda: pair.states() == {"n2": "STANDALONE"})
        assert pair.depth("n2") == 3


@pytest.mark.requirement("F8", part=True)
def test_status_is_replicated_too(tmp_path: Path) -> None:
    """Who subscribed, what is unacknowledged, and how often it was delivered, at the server that takes over."""
    queue = {"id": "q", "destination": QUEUE, "ack": "client-individual"}
    topic = {"id": "t", "destination": "/topic/t", "ack": "client-individual", "x-durable": "mine", "receipt": "here"}
    with running(tmp_path) as pair:
        pair.fill("n1", 1)
        with Client(pair.clients["n1"]) as client:
            client.write("SUBSCRIBE", topic)
            assert client.frame().command == "RECEIPT"
            client.write("SUBSCRIBE", queue)
            assert client.frame().headers.get("redelivered") is None
        with Client(pair.clients["n1"]) as client:
            client.write("SUBSCRIBE", queue)
            assert client.frame().headers["x-redeliveries"] == "1"
            pair.kill("n1")  # while that client has the message
        pair.until(lambda: pair.states() == {"n2": "STANDALONE"})
        with Client(pair.clients["n2"]) as client:
            client.write("SUBSCRIBE", queue)
            message = client.frame().headers
            assert (message["redelivered"], message["x-redeliveries"]) == ("true", "2")
            client.write("SEND", {"destination": "/topic/t", "receipt": "sent"}, b"to whom subscribed at n1")
            assert client.frame().headers["receipt-id"] == "sent"
            client.write("SUBSCRIBE", topic)
            assert {client.frame().command, client.frame().command} == {"RECEIPT", "MESSAGE"}


@pytest.mark.requirement("F7", part=True)
@pytest.mark.parametrize("workload", ["queue", "topic", "transaction", "offline-send", "security", "lease"])
def test_clients_go_to_the_primary_first_unless_they_are_told_otherwise(workload: str) -> None:
    """JMS application connects to the primary FioranoMQ server when initializing [the document]."""
    def order(system: str, **settings: str) -> Any:
        return make_test(system=system, workload=workload, nemesis="none", backend="sim", nodes=None, time_limit=5.0,
                         rate=10.0, seed=1, settings=settings).options["client_order"]  # fmt: skip

    assert order("fiorano") == "primary-first"
    assert order("fiorano", client_order="nearest-first") == "nearest-first"
    (own,) = (option.default for option in WORKLOADS.load(workload).options if option.name == "client_order")
    assert workload in ("offline-send",) or own == "nearest-first"
