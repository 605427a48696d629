"""Adapters of the toy system that break the contract, each part in a way that adapters have been seen to."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import two_tier

import stormproof
from stormproof.node_logs import LogLine


class Mistaken(two_tier.TwoTier):
    """Healthy and of use, but nearly nothing is as the harness needs it."""

    name = "mistaken"
    answered: ClassVar[set[str]] = set()
    """Nodes that have answered once: they are taken for alive ever after."""

    def connection(self, cluster: stormproof.ShellCluster) -> Connection:
        return Connection()

    async def status(self, machine: stormproof.Machine) -> stormproof.NodeStatus:
        try:
            found = await super().status(machine)
        except OSError:
            if machine.name not in self.answered:
                raise
            return stormproof.NodeStatus(machine.name, True, "active", serving=True)
        self.answered.add(machine.name)
        return found

    async def leaders(self, cluster: stormproof.ShellCluster) -> dict[str, str]:
        return dict.fromkeys(cluster.demands.queues, "n9")

    def parse_line(self, line: str) -> LogLine:
        return LogLine(None, line)


class Connection(two_tier.Connection):
    """Not from its own address, acknowledges what it delivers, errors taken for an answer."""

    async def connect(self, host: str, port: int, local: str) -> None:
        self.reader, self.writer = await asyncio.open_connection(host, port)

    async def send(self, queue: str, body: bytes) -> None:
        try:
            await super().send(queue, body)
        except OSError:
            pass

    async def take(self, queue: str, timeout: float) -> stormproof.Delivery | None:
        delivery = await super().take(queue, timeout)
        if delivery is None:
            return None
        await delivery.ack()

        async def ack() -> None:
            pass

        return stormproof.Delivery(delivery.body, ack)

    async def close(self) -> None:
        assert self.writer is not None
        self.writer.close()


class Dead(two_tier.TwoTier):
    """Its programs end at once."""

    name = "dead"

    def command(self, machine: stormproof.Machine, program: str) -> list[str]:
        return ["false"]


class Raising(two_tier.TwoTier):
    """Takes an empty queue for an error."""

    name = "raising"

    def connection(self, cluster: stormproof.ShellCluster) -> RaisingConnection:
        return RaisingConnection()


class RaisingConnection(two_tier.Connection):
    async def take(self, queue: str, timeout: float) -> stormproof.Delivery:
        delivery = await super().take(queue, timeout)
        if delivery is None:
            raise RuntimeError("nothing there")
        return delivery
