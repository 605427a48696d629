"""beanstalkd with a client that is a program, and with the docs' connection in the networks of client hosts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import stormproof
from stormproof.clients.exec import EXEC, in_program
from stormproof.contracts.protocol_client import BrokerSetup, ProtocolClient

EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples"
_spec = importlib.util.spec_from_file_location("docs_beanstalkd", EXAMPLES / "beanstalkd.py")
assert _spec is not None and _spec.loader is not None
_docs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_docs)
CLIENT = EXAMPLES / "clients/beanstalk_client.py"


class Unbound(_docs.Connection):  # type: ignore[misc, name-defined]
    """The docs' connection, on a library that would take no address."""

    prefetch = 1

    async def connect(self, host: str, port: int, local: str) -> None:
        import asyncio

        self.reader, self.writer = await asyncio.open_connection(host, port)


class Library(ProtocolClient):
    """A protocol client whose library can't bind."""

    name = "unbound"
    summary = "beanstalkd's protocol"
    port = 11300
    binds = False

    def connection(self, setup: BrokerSetup) -> Any:
        return Unbound()


LIBRARY = Library()


class Placed(_docs.Beanstalkd):  # type: ignore[misc, name-defined]
    """beanstalkd, with clients in places: in this process, or programs."""

    name = "placed-beanstalkd"
    options = (
        *_docs.Beanstalkd.options,
        stormproof.Option("client", "program", "which client", ("program", "library", "here", "outside")),
    )

    def clients_in_places(self, test: stormproof.Test) -> bool:
        return bool(test.options["client"] != "outside")

    def connection(self, cluster: stormproof.ShellCluster) -> Any:
        client = cluster.test.options["client"]
        if client in ("here", "outside"):
            return Unbound()
        library = in_program(f"tests.systems.{Path(__file__).stem}:LIBRARY", LIBRARY)
        kind: ProtocolClient = EXEC if client == "program" else library
        return kind.connection(cluster.broker_setup(command=f"{sys.executable} {CLIENT}"))
