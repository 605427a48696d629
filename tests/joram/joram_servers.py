"""Servers side by side in this process, replicated or not, each node as a process would run it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from joram_cluster import Client, Closed, status
from loopback import free_ports

from nodes.reference.api import Config
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.process import EXIT_FAILED, EXIT_OK, run_broker
from nodes.reference.server.runtime import RealRuntime
from nodes.reference.server.services import SERVICES, ServiceFactory

PATIENCE = 30.0
SECRET = "between servers"


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until the condition holds."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not await condition():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited in vain for: {what}") from None


class Node:
    """A broker from its start to its exit status; ``broker`` is there once it has started."""

    def __init__(self, config: Config, log: io.StringIO, classes: Mapping[str, ServiceFactory]) -> None:
        self._runtime = RealRuntime(config, log)
        self.broker: ReferenceBroker | None = None

        def started(broker: ReferenceBroker) -> None:
            self.broker = broker

        self._main = asyncio.ensure_future(run_broker(config, self._runtime, started, classes))
        self.ended = asyncio.ensure_future(self._run())

    @property
    def running(self) -> ReferenceBroker:
        assert self.broker is not None
        return self.broker

    async def _run(self) -> int:
        try:
            await self._runtime.supervise(self._main)
        except asyncio.CancelledError:
            return EXIT_OK
        except Exception as error:
            self._runtime.log("broker failed", error=repr(error))
            return EXIT_FAILED
        return EXIT_OK

    def cancel(self) -> None:
        self._main.cancel()

    async def stop(self) -> None:
        self.cancel()
        await self.ended


class Servers:
    """``shape`` says for each server, by number, how many nodes it has; one is a server without replicas.

    Node ``n0.2`` is replica 2 of server 0.
    """

    def __init__(self, folder: Path, *shape: int, services: Callable[[str], Sequence[Any]] = lambda name: (),
                 classes: Mapping[str, ServiceFactory] = SERVICES) -> None:
        self.folder = folder
        self.groups = [[f"n{server}.{place}" for place in range(size)] for server, size in enumerate(shape)]
        self.names = [name for group in self.groups for name in group]
        ports = free_ports(3 * len(self.names))
        each = len(self.names)
        self.ports, self.links, self.networks = (
            dict(zip(self.names, ports[part * each:], strict=False)) for part in range(3))
        self.nodes: dict[str, Node] = {}
        self.logs: dict[str, io.StringIO] = {name: io.StringIO() for name in self.names}
        self._services, self._classes = services, classes
        self.secrets = [SECRET] * len(shape)

    def config(self, name: str) -> Config:
        server = next(number for number, group in enumerate(self.groups) if name in group)
        group = self.groups[server]
        places = [[("127.0.0.1", self.networks[each]) for each in other] for other in self.groups]
        return Config(
            name, "joram" if len(group) > 1 else "standalone", str(self.folder / name), port=self.ports[name],
            peers={each: ("127.0.0.1", self.links[each]) for each in group} if len(group) > 1 else {},
            client_addresses={each: f"127.0.0.1:{self.ports[each]}" for each in group},
            options={"detection_timeout": 0.6, "linger": 0.6, "network_timeout": 2.0, "secret": self.secrets[server]},
            server=server, networks=[places[server]],
            servers={number: place for number, place in enumerate(places) if number != server},
            services=list(self._services(name)),
        )

    def start(self, *names: str) -> None:
        for name in names or self.names:
            self.nodes[name] = Node(self.config(name), self.logs[name], self._classes)

    async def end(self) -> None:
        for node in self.nodes.values():
            await node.stop()

    async def serving(self, server: int) -> str:
        """The node of a server that serves, once there is one."""
        found: list[str] = []

        async def look() -> bool:
            found.extend([name for name in self.groups[server] if (await self.status(name)).get("serving")])
            return bool(found)

        await eventually(look, f"server {server} serves")
        return found[0]

    async def status(self, name: str) -> dict[str, Any]:
        try:
            return await status(self.ports[name])
        except (OSError, Closed):
            return {}

    async def depth(self, name: str, queue: str = "q") -> int:
        return int((await self.status(name)).get("depths", {}).get(queue, 0))

    async def client(self, name: str) -> Client:
        return await Client.connect(self.ports[name])
