"""The shared parts of contract items: their outcomes, and the cluster on which they are tested."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nodes.timeouts import within
from stormproof.contracts.backend import DEAD, PAUSED, Backend
from stormproof.contracts.client import Starting
from stormproof.contracts.cluster import Cluster, NodeStatus
from stormproof.contracts.system import System
from stormproof.errors import BackendError
from stormproof.shell_system import ShellCluster, ShellSystem
from stormproof.timeout_scale import TIMEOUT_FACTOR

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
"""The outcomes of an item. ``SKIPPED`` means that the system does not claim it, or that it could not be tested."""

CALL_SECONDS = 10.0 * TIMEOUT_FACTOR
"""The time that one call of a client may take."""
START_SECONDS = 30.0 * TIMEOUT_FACTOR
"""The time within which a client program must have started: that of a Java machine on a busy computer."""
HEALTHY_SECONDS = 60.0 * TIMEOUT_FACTOR
"""The time that the system may take to become healthy, and again to accept clients."""
ITEM_SECONDS = 180.0 * TIMEOUT_FACTOR
_RETRY = 0.3
T = TypeVar("T")


class Broken(Exception):
    """The contract is broken; the text describes the fault."""


class TookTooLong(TimeoutError):
    """The suite's own time limit passed; a library's TimeoutError is an answer of the system."""


class NotClaimed(Exception):
    """The system does not have this, or it can't be tested; the text gives the reason."""


@dataclass(frozen=True)
class ItemOutcome:
    """The outcome of an item. ``told`` is the observation, the fault, or the reason for skipping. ``where`` is the code
    in question, ``advice`` the remedy."""

    name: str
    status: str
    told: str
    where: str = ""
    advice: str = ""


@dataclass(frozen=True)
class ContractItem:
    """One item of the contract.

    ``must`` is the requirement. ``hook`` is the method in question; it is looked up in the client's connection first,
    then in system and cluster. ``run`` returns the observation.

    ``needs`` is a feature that a system must provide for the item to be tested. With ``healthy``, the item is tested
    only on a healthy cluster.
    """

    name: str
    must: str
    hook: str
    advice: str
    run: Callable[[Bench], Awaitable[str]]
    needs: str = ""
    healthy: bool = True


@dataclass
class BenchClient:
    """An open connection from a client host to a node."""

    connection: Any
    host: str
    node: str

    async def call(self, call: Awaitable[Any], seconds: float = CALL_SECONDS) -> Any:
        """Return the result of the call. Raises the call's own exceptions, and TookTooLong when it takes too long."""
        return await _in_time(call, seconds)

    async def close(self) -> None:
        """Close the connection. Raises Broken when that raises or takes too long."""
        try:
            async with within(CALL_SECONDS):
                await self.connection.close()
        except Exception as error:
            raise Broken(f"close() raised {told(error)}") from error


@dataclass
class Bench:
    """The system on its machines, and the facts observed so far."""

    system: System
    cluster: Cluster
    backend: Backend
    folder: Path
    make_connection: Callable[[], Any]
    """A function that returns a client's connection, not yet open; None if clients have no primitives that the suite
    knows."""
    began: float = 0.0
    """The start time of the system, in seconds since 1970."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Observations that several items use, by name."""
    _open: list[BenchClient] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _used: dict[str, int] = field(default_factory=dict)

    @property
    def nodes(self) -> Sequence[str]:
        """The replicas."""
        return self.cluster.node_names

    @property
    def neutral(self) -> bool:
        """Whether connections are the system's own, as defined in docs/systems.md."""
        return self.cluster.queue_connection() is not None

    def announced(self, kind: str) -> str:
        """Return a name from ``Demands`` (``queues``, ``logs``, ``registers``, ``locks``) that no other item uses."""
        number = self._used[kind] = self._used.get(kind, 0) + 1
        names: Sequence[str] = getattr(self.cluster.demands, kind)
        return names[number - 1]

    def body(self) -> bytes:
        """Return a body that no other message has."""
        return b"check-%d" % next(self._numbers)

    def name(self, what: str) -> str:
        """Return a name of a topic that no other item uses."""
        return f"{what}{next(self._numbers)}"

    def overrides(self, hook: str) -> bool:
        """Return whether the system overrides a hook's default."""
        if isinstance(self.cluster, ShellCluster) and hasattr(ShellSystem, hook):
            return getattr(type(self.system), hook) is not getattr(ShellSystem, hook)
        owner: Any = Cluster if hasattr(Cluster, hook) else System
        mine: Any = self.cluster if owner is Cluster else self.system
        return getattr(type(mine), hook) is not getattr(owner, hook)

    def demand(self, hook: str) -> None:
        """Raise NotClaimed when the system has the default."""
        if not self.overrides(hook):
            raise NotClaimed(f"it has no {hook} of its own")

    async def client(self, place: int = 0, *, patience: float = HEALTHY_SECONDS) -> BenchClient:
        """Return a new connection from the client host with the number ``place``. It connects to the node next to this
        host, or to another that accepts it.

        Raises:
            Broken: no node accepted a client within ``patience`` seconds.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        host = self.cluster.test.client_hosts[place]
        addresses = list(zip(self.nodes, self.cluster.client_addresses(), strict=True))
        trouble = "no node was tried"
        while True:
            for node, (address, port) in (*addresses[place:], *addresses[:place]):
                client = BenchClient(self.make_connection(), host, node)
                try:
                    if isinstance(client.connection, Starting):
                        await client.call(client.connection.start(self.backend.address(host)), START_SECONDS)
                    await client.call(client.connection.connect(address, port, self.backend.address(host)))
                except Exception as error:
                    trouble = f"{node}: {told(error)}"
                    await quietly(client.connection.close())
                    continue
                self._open.append(client)
                return client
            if loop.time() >= deadline:
                raise Broken(f"no node lets a client in: {trouble}")
            await asyncio.sleep(_RETRY)

    async def close_clients(self) -> None:
        """Close the connections that items have left open."""
        clients, self._open = self._open, []
        for client in clients:
            await quietly(client.connection.close())

    async def mend(self) -> bool:
        """Let all programs run again, and return whether the system is then healthy."""
        for machine in self.cluster.topology.machines:
            for program in self.cluster.programs(machine):
                if (await self.backend.process(machine, program)).state == PAUSED:
                    await self.backend.resume(machine, program)
        for machine in self.cluster.topology.machines:
            programs = self.cluster.programs(machine)
            dead = [program for program in programs if (await self.backend.process(machine, program)).state == DEAD]
            if dead and not (len(programs) > 1 and all(self.cluster.restarted(machine, each) for each in dead)):
                await self.cluster.start_node(machine)
        return await self.cluster.await_healthy(HEALTHY_SECONDS)

    async def statuses(self) -> list[NodeStatus]:
        """Return the nodes' statuses."""
        return await self.cluster.statuses()

    def where(self, hook: str) -> str:
        """Return ``FILE:LINE (CLASS.METHOD)`` of a hook in the class of the connection, the system or the cluster."""
        try:
            connection = self.make_connection()
        except Exception:
            connection = None
        owners = [connection, self.system, self.cluster]
        for owner in owners:
            method = getattr(type(owner), hook, None)
            if owner is None or method is None:
                continue
            method = inspect.unwrap(method)
            try:
                file, line = inspect.getsourcefile(method), inspect.getsourcelines(method)[1]
            except (TypeError, OSError):
                continue
            return f"{_short(file or '?')}:{line} ({method.__qualname__})"
        return type(self.system).__qualname__


async def _in_time(call: Awaitable[T], seconds: float) -> T:
    """Return the result of ``call``; raises TookTooLong, or the call's own exceptions, TimeoutError among them."""
    try:
        async with within(seconds) as limit:
            return await call
    except TimeoutError as error:
        if limit.expired() and not isinstance(error, TookTooLong):
            raise TookTooLong(f"it did not end within {seconds:g} s") from error
        raise


async def tried(item: ContractItem, bench: Bench) -> ItemOutcome:
    """Test an item. Any error becomes its outcome."""
    try:
        seen = await _in_time(item.run(bench), ITEM_SECONDS)
        return ItemOutcome(item.name, OK, seen)
    except NotClaimed as reason:
        return ItemOutcome(item.name, SKIPPED, str(reason))
    except Broken as error:
        return ItemOutcome(item.name, FAILED, str(error), bench.where(item.hook), item.advice)
    except TookTooLong as error:
        return ItemOutcome(item.name, FAILED, str(error), bench.where(item.hook), item.advice)
    except Exception as error:
        return ItemOutcome(item.name, FAILED, told(error), raised_at(error) or bench.where(item.hook),
                       f"it may not raise; what is tried: {item.must}")
    finally:
        await bench.close_clients()


def told(error: BaseException) -> str:
    """Return an error in words."""
    text = " ".join(str(error).split())
    return text if isinstance(error, Broken | BackendError) and text else \
        f"{type(error).__name__}: {text}".removesuffix(": ")


def raised_at(error: BaseException) -> str:
    """Return the innermost place of an error that is neither in Python's library nor in the suite; empty if there is
    none."""
    here = str(Path(__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)
              if not frame.filename.startswith((here, "<")) and "/lib/python" not in frame.filename
              and not frame.filename.endswith("nodes/timeouts.py")]  # fmt: skip
    return f"{_short(frames[-1].filename)}:{frames[-1].lineno} ({frames[-1].name})" if frames else ""


async def quietly(call: Awaitable[Any]) -> None:
    """Await the call and ignore its errors."""
    try:
        async with within(CALL_SECONDS):
            await call
    except Exception:
        pass


def _short(file: str) -> str:
    path = Path(file)
    roots = (Path.cwd(), Path(__file__).resolve().parents[2])
    for root in roots:
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return str(path)
