"""Sentences of the document on real processes: two servers and their gateway on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from loopback import free_ports

from harness.settings import make_test
from nodes.reference.designs.fiorano.gateway.lockfile import holder_in
from nodes.stomp import ProtocolError
from nodes.systems.reference.admin_connection import AdminConnection
from workloads.catalog import WORKLOADS

PATIENCE = 60.0
LEASE = 0.5
SERVERS = ("n1", "n2")


class Pair:
    """Programs by name; ``lockfiles`` says which Lockfile a server is configured for, if not the gateway's."""

    def __init__(self, folder: Path, **lockfiles: str) -> None:
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
                "options": {**layer, **common, "heartbeat": LEASE / 4},
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
                found[name] = str(asyncio.run(self._status(name))["state"])
        return found

    async def _status(self, name: str) -> Mapping[str, Any]:
        admin = AdminConnection("127.0.0.1", self.clients[name], "guest", "guest")
        try:
            return dict(await admin.design({"op": "status"}, 2.0))
        finally:
            admin.close()

    def until(self, so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not so():
            assert time.monotonic() < deadline, {name: self.log(name)[-2000:] for name in self.running}
            time.sleep(0.05)

    def holder(self) -> str:
        return holder_in(self.lockfile.read_bytes())


@contextmanager
def running(folder: Path, **lockfiles: str) -> Iterator[Pair]:
    """A pair of which n1 is active, n2 its standby."""
    pair = Pair(folder, **lockfiles)
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
