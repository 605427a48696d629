"""Joram groups for tests: in this process with links that can be cut, or as real processes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from loopback import free_ports

from nodes.reference.api import Config
from nodes.reference.designs.joram.design import JoramDesign
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.runtime import RealRuntime
from nodes.stomp import Frame, Parser, encode
from nodes.systems.reference.admin_connection import AdminConnection

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30.0
QUEUE = "/queue/q"


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until the condition holds."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited in vain for: {what}") from None


class Closed(Exception):
    """The broker ended the connection; the text is its ERROR, if it sent one."""


class Client:
    """A plain STOMP client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._parser = reader, writer, Parser()
        self._frames: list[Frame] = []
        self._receipts = 0
        self.messages: list[Frame] = []

    @classmethod
    async def connect(cls, port: int, **headers: str) -> Client:
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        client.write("CONNECT", {"accept-version": "1.2", "host": "/", "login": "guest", "passcode": "guest",
                                 **named})
        try:
            client.connected = await client.frame()
        except BaseException:
            client.abort()
            raise
        return client

    connected: Frame

    def write(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        self._writer.write(encode(Frame(command, headers, body)))

    async def frame(self) -> Frame:
        while not self._frames:
            try:
                data = await self._reader.read(1 << 16)
            except ConnectionError as error:
                raise Closed(str(error)) from error
            if not data:
                raise Closed("end of stream")
            self._frames += [item for item in self._parser.feed(data) if isinstance(item, Frame)]
        frame = self._frames.pop(0)
        if frame.command == "ERROR":
            raise Closed(frame.headers.get("message", ""), frame.headers)
        return frame

    async def confirm(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send and wait for the receipt; messages that come before it are kept."""
        self._receipts += 1
        receipt = str(self._receipts)
        self.write(command, {**headers, "receipt": receipt}, body)
        while True:
            frame = await self.frame()
            if frame.command == "MESSAGE":
                self.messages.append(frame)
            elif frame.headers["receipt-id"] == receipt:
                return

    async def publish(self, body: str, queue: str = QUEUE) -> None:
        await self.confirm("SEND", {"destination": queue}, body.encode())

    async def subscribe(self, queue: str = QUEUE) -> None:
        await self.confirm(
            "SUBSCRIBE", {"id": "s", "destination": queue, "ack": "client-individual", "x-prefetch": "100"}
        )

    async def message(self) -> Frame:
        """The next message."""
        while not self.messages:
            frame = await self.frame()
            if frame.command == "MESSAGE":
                self.messages.append(frame)
        return self.messages.pop(0)

    async def ack(self, message: Frame) -> None:
        await self.confirm("ACK", {"id": message.headers["ack"]})

    async def drain(self, queue: str = QUEUE) -> list[str]:
        """Take and acknowledge all that is in the queue, as the node's status counts it."""
        depth = (await self.status_of_node())["depths"].get(queue.removeprefix("/queue/"), 0)
        await self.subscribe(queue)
        bodies = []
        for _ in range(depth):
            message = await self.message()
            await self.ack(message)
            bodies.append(message.body.decode())
        return bodies

    async def status_of_node(self) -> dict[str, Any]:
        port = self._writer.get_extra_info("peername")[1]
        return await status(port)

    def abort(self) -> None:
        self._writer.transport.abort()


async def status(port: int, **headers: str) -> dict[str, Any]:
    """What a node tells an administrator."""
    client = await Client.connect(port, x_admin="true", **headers)
    client.write("SEND", {"destination": "/admin/status"})
    answer: dict[str, Any] = json.loads((await client.frame()).body)
    client.abort()
    return answer


async def add_replica(port: int, name: str, link_port: int, client_port: int) -> None:
    """What `stormproof admin joram add-replica` does; raises ProtocolError when it is refused."""
    admin = AdminConnection("127.0.0.1", port, "guest", "guest")
    try:
        await admin.add_replica(name, ("127.0.0.1", link_port), f"127.0.0.1:{client_port}", PATIENCE)
    finally:
        admin.close()


class Proxy:
    """A TCP relay that can be cut: then it accepts and forwards nothing, as if packets were dropped."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)

    def cut(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        self._open.set()

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [writer]
        try:
            await self._open.wait()
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(other_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._relay(reader, other_writer))
                group.create_task(self._relay(other_reader, writer))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for each in writers:
                each.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


class Cluster:
    """Nodes n1..nN in this process, each with a runtime, a database and a STOMP port of its own."""

    def __init__(self, folder: Path, nodes: int = 3, **options: Any) -> None:
        self.folder = folder
        self.names = [f"n{number + 1}" for number in range(nodes)]
        self.options = {"detection_timeout": 0.6, "linger": 0.1, **options}
        ports = free_ports(2 * nodes + nodes * nodes)
        self.link_ports = dict(zip(self.names, ports, strict=False))
        self.ports = dict(zip(self.names, ports[nodes:], strict=False))
        pairs = [(a, b) for a in self.names for b in self.names]
        self._proxy_ports = dict(zip(pairs, ports[2 * nodes :], strict=False))
        self._proxies: dict[tuple[str, str], Proxy] = {}
        self.brokers: dict[str, ReferenceBroker] = {}
        self.failures: list[str] = []

    async def __aenter__(self) -> Cluster:
        for pair, port in self._proxy_ports.items():
            self._proxies[pair] = Proxy(self.link_ports[pair[1]])
            await self._proxies[pair].start(port)
        return self

    async def __aexit__(self, *error: object) -> None:
        for name in list(self.brokers):
            await self.stop(name)
        for proxy in self._proxies.values():
            await proxy.stop()
        await asyncio.sleep(0)
        assert not self.failures, self.failures

    def config(self, name: str) -> Config:
        peers = {
            other: ("127.0.0.1", self.link_ports[name] if other == name else self._proxy_ports[name, other])
            for other in self.names
        }
        addresses = {other: f"127.0.0.1:{port}" for other, port in self.ports.items()}
        return Config(name, "joram", str(self.folder / name), port=self.ports[name], peers=peers,
                      client_addresses=addresses, options={"seed": len(name), **self.options})

    async def start(self, *names: str) -> None:
        """Start nodes, all of them if none is named."""
        for name in names or self.names:
            config = self.config(name)
            log = (self.folder / f"{name}.log").open("a")
            broker = ReferenceBroker(config, _Watched(config, log, self.failures))
            await broker.start()
            self.brokers[name] = broker

    async def stop(self, name: str) -> None:
        await self.brokers.pop(name).stop()

    def design(self, name: str) -> JoramDesign:
        design = self.brokers[name].design
        assert isinstance(design, JoramDesign)
        return design

    def status(self, name: str) -> dict[str, Any]:
        return self.design(name).status()

    def cut(self, *sides: list[str]) -> None:
        """Partition: nodes of different sides can't talk."""
        side_of = {name: number for number, side in enumerate(sides) for name in side}
        for (a, b), proxy in self._proxies.items():
            if side_of.get(a) != side_of.get(b):
                proxy.cut()

    def heal(self) -> None:
        for proxy in self._proxies.values():
            proxy.heal()

    def masters(self) -> list[str]:
        return [name for name in self.brokers if self.status(name)["serving"]]

    async def master(self, *among: str) -> str:
        """The one node (of these) that serves, once there is one."""
        names = among or tuple(self.brokers)
        await until(lambda: sum(self.status(name)["serving"] for name in names) == 1, "one master")
        return next(name for name in names if self.status(name)["serving"])

    async def settled(self, *names: str) -> list[str]:
        """The view, master first, once it consists of these nodes (all of them if none is named)."""
        members = list(names or self.names)
        found: list[str] = []

        def settled() -> bool:
            for name in members:
                state = self.status(name)
                if state["serving"] and sorted(state["view"]) == sorted(members):
                    found[:] = state["view"]
                    others = [self.status(other) for other in members]
                    return all(
                        other["view"] == found and other["applied"] == state["log_last"] for other in others
                    )
            return False

        await until(settled, f"a view of {members}, now: {[self.status(name) for name in self.brokers]}")
        return found

    async def client(self, name: str, **headers: str) -> Client:
        return await Client.connect(self.ports[name], **headers)

    def depth(self, name: str) -> int:
        return self.brokers[name].engine.depths().get("q", 0)

    def log_text(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


class _Watched(RealRuntime):
    """Remembers what went wrong in background tasks, so that no test passes over it."""

    def __init__(self, config: Config, output: Any, failures: list[str]) -> None:
        super().__init__(config, output)
        self._failures = failures

    def log(self, event: str, level: str | None = None, **fields: Any) -> None:
        if level == "error":
            self._failures.append(f"{event} {fields}")
        super().log(event, level, **fields)


class Processes:
    """Nodes as processes of the operating system."""

    def __init__(self, folder: Path, nodes: int = 3, newcomers: int = 0, **options: Any) -> None:
        self.folder = folder
        self.names = [f"n{number + 1}" for number in range(nodes + newcomers)]
        self.first = self.names[:nodes]
        nodes += newcomers
        self.options = options
        ports = free_ports(2 * nodes)
        self.link_ports = dict(zip(self.names, ports, strict=False))
        self.ports = dict(zip(self.names, ports[nodes:], strict=False))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str) -> None:
        for name in names or self.first:
            known = dict.fromkeys([*self.first, name])
            config = {
                "node": name, "design": "joram", "data": str(self.folder / name), "port": self.ports[name],
                "peers": {other: ["127.0.0.1", self.link_ports[other]] for other in known},
                "client_addresses": {other: f"127.0.0.1:{self.ports[other]}" for other in known},
                "options": {**self.options, "join": name not in self.first},
            }
            path = self.folder / f"{name}.json"
            path.write_text(json.dumps(config))
            with (self.folder / f"{name}.log").open("ab") as log:
                self._processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "nodes.reference", str(path)], cwd=ROOT, stdout=log, stderr=log
                )

    def signal(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._processes.pop(name).wait(PATIENCE)

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(PATIENCE)

    async def add(self, newcomer: str, at: str) -> None:
        """Ask a node to take another one into the group."""
        await add_replica(self.ports[at], newcomer, self.link_ports[newcomer], self.ports[newcomer])

    def log_text(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    async def status(self, name: str) -> dict[str, Any]:
        try:
            async with asyncio.timeout(0.5):
                return await status(self.ports[name])
        except (OSError, TimeoutError, Closed):
            return {"serving": False, "role": "down", "view": [], "applied": -1, "log_last": -2, "epoch": -1}

    async def wait(
        self, what: str, condition: Callable[[dict[str, dict[str, Any]]], bool], names: list[str]
    ) -> dict[str, Any]:
        """Wait until the condition holds of the status of these nodes."""
        deadline = time.monotonic() + PATIENCE
        while True:
            states = {name: await self.status(name) for name in names}
            if condition(states):
                return states
            assert time.monotonic() < deadline, (what, states, *(self.log_text(n)[-2000:] for n in self.names))
            await asyncio.sleep(0.02)

    async def settled(self, *names: str) -> list[str]:
        """The view, master first, once it consists of these nodes (all of them if none is named)."""
        members = list(names or self.first)

        def master(states: dict[str, dict[str, Any]]) -> str | None:
            for name in members:
                state = states[name]
                if state["serving"] and sorted(state["view"]) == sorted(members) and all(
                    states[other]["view"] == state["view"] and states[other]["applied"] == state["log_last"]
                    for other in members
                ):
                    return name
            return None

        states = await self.wait(f"a view of {members}", lambda states: master(states) is not None, members)
        view: list[str] = states[members[0]]["view"]
        return view

    async def client(self, name: str, **headers: str) -> Client:
        return await Client.connect(self.ports[name], **headers)


@asynccontextmanager
async def running(folder: Path, *names: str, nodes: int = 3, **options: Any) -> AsyncIterator[Cluster]:
    """A cluster in this process, with these nodes started (all if none is named)."""
    async with Cluster(folder, nodes, **options) as cluster:
        await cluster.start(*names)
        yield cluster


async def is_deposed(action: Awaitable[Any]) -> bool:
    """Whether the broker told that it is no longer master, or reset a connection whose output it had not got rid of."""
    reason = await fails(action)
    return reason == "not master" or "reset" in reason


async def fails(action: Awaitable[Any]) -> str:
    """The reason for which the broker ended the connection."""
    try:
        async with asyncio.timeout(PATIENCE):
            await action
    except Closed as closed:
        return str(closed.args[0])
    except OSError as error:
        return str(error)
    raise AssertionError("it was confirmed")
