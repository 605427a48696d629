"""NATS with clients that are programs in the networks of client hosts: their library is taken for one that can't bind.

``client=outside``: the same library in this process, where no cut reaches it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import stormproof
from nodes.systems.nats.client import NatsConnection
from nodes.systems.nats.system import Nats
from stormproof.clients.exec import in_program
from stormproof.contracts.protocol_client import BrokerSetup, ProtocolClient


class Unbound(NatsConnection):
    async def connect(self, host: str, port: int, local: str) -> None:
        await super().connect(host, port, "")


class Library(ProtocolClient):
    name = "unbound-nats"
    summary = "NATS, by a library that can't bind"
    port = 4222
    provides = frozenset({"queues", "logs"})
    binds = False

    def connection(self, setup: BrokerSetup) -> Any:
        return Unbound()


LIBRARY = Library()


class PlacedNats(Nats):
    name = "placed-nats"
    options = (*Nats.options, stormproof.Option("client", "library", "which client", ("library", "outside")))

    def clients_in_places(self, test: stormproof.Test) -> bool:
        return bool(test.options["client"] == "library")

    def connection(self, cluster: stormproof.ShellCluster) -> Any:
        if cluster.test.options["client"] == "outside":
            return Unbound()
        return in_program(f"{Path(__file__).stem}:LIBRARY", LIBRARY).connection(cluster.broker_setup())
