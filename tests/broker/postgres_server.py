"""PostgreSQL for the tests of the storage service, as its postmaster runs it."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from loopback import free_ports

from nodes.reference.api import ConfigError, Runtime
from nodes.reference.server.runtime import RealRuntime
from nodes.reference.storage.config import parse_storage_config
from nodes.reference.storage.postgres import PostgresConnection, Statement
from nodes.reference.storage.postgres_store import USER, PostgresStore
from nodes.reference.storage.postmaster import password_file, programs

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0


def demand_postgres() -> None:
    """Skip the test where PostgreSQL is not installed."""
    try:
        programs()
    except ConfigError as error:
        pytest.skip(f"{error}; `scripts/setup test` installs it")


class PostgresServer:
    """A server with its data in a folder; it can be killed and started again."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        port, database_port = free_ports(2)
        self.settings = {"data": str(folder / "data"), "host": "127.0.0.1", "port": port, "clients": ["a", "b"],
                         "secret": "s", "store": "postgres", "database_port": database_port, **settings}
        self.config = parse_storage_config(self.settings)
        self.path = folder / "storage.json"
        self.path.write_text(json.dumps(self.settings))
        self.log = folder / "postgres.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> PostgresServer:
        """Start it, and wait until it takes connections."""
        before = self._ready()
        with self.log.open("ab") as log:
            words = [sys.executable, "-m", "nodes.reference.storage.postmaster", str(self.path)]
            self.process = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE
        while self._ready() == before:
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        return self

    def _ready(self) -> int:
        return self.log.read_text().count("ready to accept connections") if self.log.exists() else 0

    def kill(self) -> None:
        """Kill the postmaster alone, as ``kill -9`` does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        """End it, whoever is connected."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE)

    def password(self) -> str:
        return password_file(self.config).read_text(encoding="ascii")

    def store(self, runtime: Runtime) -> PostgresStore:
        """The store of a service."""
        return PostgresStore(runtime, self.config.database_port, self.password)

    def connection(self, password: str | None = None) -> PostgresConnection:
        """A connection, not open yet."""
        runtime = RealRuntime(self.config, io.StringIO())
        return PostgresConnection(runtime, self.config.database_port, USER, password or self.password(), 20.0)

    async def empty(self) -> None:
        """Drop what a service has made."""
        connection = self.connection()
        await connection.open()
        await connection.run([Statement("DROP TABLE IF EXISTS stored, fence")])
        connection.abort()
