"""NATS with clients that are programs in the networks of client hosts: their library is taken for one that can't bind.

``client=outside``: the same library in this process, where no cut reaches it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import stormproof
from nodes.systems.nats.system import Nats
from stormproof.clients import nats
from stormproof.clients.exec import in_program
from stormproof.contracts.protocol_client import BrokerSetup


class Unbound(nats.NatsConnection):
    async def connect(self, host: str, port: int, local: str) -> None:
        await super().connect(host, port, "")


class Library(nats.Nats):
    name = "unbound-nats"
    binds = False

    def connection(self, setup: BrokerSetup) -> Any:
        return Unbound(setup.access)


LIBRARY = Library()


class PlacedNats(Nats):
    name = "placed-nats"
    options = (*Nats.options, stormproof.Option("client", "library", "which client", ("library", "outside")))

    def clients_in_places(self, test: stormproof.Test) -> bool:
        return bool(test.options["client"] == "library")

    def connection(self, cluster: stormproof.ShellCluster) -> Any:
        library = in_program(f"tests.systems.{Path(__file__).stem}:LIBRARY", LIBRARY)
        kind = LIBRARY if cluster.test.options["client"] == "outside" else library
        return kind.connection(cluster.broker_setup())
