"""A system under test on provisioned machines, as clients, faults and the test runner see it."""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stormproof.contracts.backend import DEAD, RUNNING, Attached, Backend, Credentials
from stormproof.contracts.client import QueueConnection
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError
from stormproof.history.log_timestamps import SUFFIX
from stormproof.test import Test

MAIN = "broker"
"""Name of the program that a machine runs where a system names none."""

SHARED_LOCK = "shared-lock"
"""What a system says among its ``helper_roles`` whose lock file is in a folder that its nodes share: no link leads
there."""

POLL = 0.1
_LONGEST_LINE = 300


@dataclass(frozen=True)
class NodeStatus:
    """What a node says of itself.

    ``role`` is the system's word (``master``, ``slave``, ``starting``...), ``serving`` whether it takes
    clients, ``epoch`` the number of its view or term, ``view`` the members it believes in, in order.
    ``depths`` maps a queue's name to the messages in it, delivered-but-unacknowledged ones included.
    """

    node: str
    reachable: bool
    role: str = "?"
    serving: bool = False
    epoch: int = 0
    view: tuple[str, ...] = ()
    depths: Mapping[str, int] | None = None
    detail: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Lock:
    """A lock on a file, which a node needs in order to serve: the machine that hosts the file, its path there, and what
    it says.

    ``present``: the file is there. ``holder`` has the lock, as the file says (empty: nobody has), and ``epoch`` tells
    one time that it was granted from another.
    """

    machine: str
    path: str
    present: bool = False
    holder: str = ""
    epoch: int = 0


@dataclass(frozen=True)
class Deployment:
    """What a cluster is made of: the test, what its workload has set up, the machines, the clients' password; the words
    by which its nodes tell that they lead, or have joined (``System``)."""

    test: Test
    demands: Demands
    backend: Backend
    topology: Topology
    passcode: str = ""
    leading_roles: Collection[str] = ()
    joined_roles: Collection[str] = ()


class Cluster(ABC):
    """A running (or not yet running) system.

    A subclass installs, starts a program, and asks a node for its status; the rest has defaults that suit a cluster of
    nodes with one program each, of which any that is reachable is healthy.
    """

    login = "stormproof"
    reliable_connections = True
    exchanges = False
    """Whether clients may send to exchanges, and ask for them."""
    """Whether clients of the reference broker may ask for connections whose frames are numbered and sent again."""

    def __init__(self, deployment: Deployment) -> None:
        self.test: Test = deployment.test
        self.demands: Demands = deployment.demands
        self.backend: Backend = deployment.backend
        self.topology: Topology = deployment.topology
        self.passcode: str = deployment.passcode
        self.leading_roles, self.joined_roles = deployment.leading_roles, deployment.joined_roles
        self.attached: Attached | None = self.backend if isinstance(self.backend, Attached) else None
        """The machines, where the system runs there already."""
        self.credentials = self.attached.credentials() if self.attached else Credentials()
        """As whom clients connect to it there."""
        self._prefix = f"stormproof-{secrets.token_hex(4)}-" if self.attached else ""
        self.helped_since: float | None = None
        """When an operator first acted (time of the event loop), of what ``repair`` has not told yet; None if nobody
        did."""
        self.unsure = ""
        """Why nobody knows whether the system is healthy, where what would tell fails itself."""
        self.own_names: set[str] = set()
        """What clients of this run use there; ``leave`` deletes it."""
        if self.attached:
            queues = tuple(map(self.own_name, self.demands.queues))
            self.demands = replace(self.demands, queues=queues)

    def own_name(self, name: str) -> str:
        """The name of something that clients make: where others use the system, too, one that nobody else has."""
        if self.attached:
            self.own_names.add(self._prefix + name)
        return self._prefix + name

    async def leave(self) -> str:
        """Delete what this run has made on a system that runs on. Returns a sentence that says what is left there."""
        left = ", ".join(sorted(self.own_names))
        return f"left there, since its clients can't delete them: {left}" if left else ""

    @abstractmethod
    async def install(self) -> None:
        """Bring programs and configuration to all machines.

        Raises:
            BackendError: a machine lacks something, or refused the files.
        """

    @abstractmethod
    async def start_program(self, machine: str, program: str) -> None:
        """Start a program that does not run."""

    @abstractmethod
    async def status(self, node: str) -> NodeStatus:
        """Ask one node; never raises: an unreachable one has ``reachable=False``."""

    def programs(self, machine: str) -> tuple[str, ...]:
        """The programs of a machine, in the order in which they are started; the first is the one that faults hit
        unless they name another."""
        return (MAIN,)

    def program_roles(self) -> Mapping[str, str]:
        """As ``System.program_roles``, of this cluster's test."""
        return {}

    def private_networks(self) -> tuple[str, ...]:
        """As ``System.private_networks``, of this cluster's test."""
        return ()

    async def lock(self) -> Lock | None:
        """The lock as its file is now; None where no file says who may serve."""
        return None

    async def holds_lock(self, node: str) -> bool | None:
        """Whether a node believes that it holds the lock; None where it does not answer."""
        return None

    async def time_of(self, node: str) -> float | None:
        """The time of day as the node's program has it, seconds since 1970; None where it does not tell."""
        return None

    def stores_nothing(self, machine: str) -> str:
        """Why a machine stores nothing anywhere, as the system is set; empty: it does. While its disk has no file of
        the system, faults of that disk then need no evidence that they met what was stored."""
        return ""

    def stores_elsewhere(self, machine: str) -> str:
        """Why a machine stores on no disk of its own, as the system is set, and where instead; empty: it does. Then a
        loss of its power counts by the end of its processes, and a fault of its disk does not count."""
        return ""

    def restarted(self, machine: str, program: str) -> bool:
        """Whether something of the system's own starts the program again when it was killed: then healing does not."""
        return self.attached is not None

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Whether the system is as it should be, going by what its nodes said at one time."""
        return all(status.reachable for status in statuses)

    async def prepare(self) -> None:
        """Once, when the system is healthy for the first time: declare queues, users, policies."""

    async def repair(self) -> str:
        """What an operator does after faults, by the system's own manual; called once, between the last heal and the
        drain. Returns a sentence that says what was done; empty: nothing had to be."""
        return ""

    async def recover(self, timeout: float) -> str:
        """What an operator does after the loss of all nodes, or of the one that served, when all run again and other
        faults may go on: until it serves, or ``timeout`` seconds have passed. Returns what ``repair`` does."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            served = await self.primary() is not None or self.healthy(await self.statuses())
            if served or loop.time() >= deadline:
                return ""
            await asyncio.sleep(POLL)

    async def shut_down(self, timeout: float) -> Mapping[str, Any]:
        """What an operator does to end the whole system in order, for at most ``timeout`` seconds, where it can come to
        rest (``System.shuts_down``); its programs run on. Returns which nodes are at rest
        (``clean``), or the ``error``."""
        raise NotImplementedError

    async def attend(self, note: Callable[[str], None]) -> None:
        """What an operator on call does while load and faults go on; until it is cancelled, or nothing is left to do.
        ``note`` is told of each deed, as ``repair`` tells."""

    @property
    def linger(self) -> float:
        """Seconds for which the system keeps what belonged to connections that clients have lost."""
        return 0.0

    async def leaders(self) -> Mapping[str, str]:
        """Object (a queue, say) -> the node that leads it, where leadership is by object."""
        return {}

    @property
    def leader_witnesses(self) -> tuple[str, ...]:
        """Who is asked, each by itself and again and again, for leaders while a run goes on: nodes, whose opinions may
        differ; an empty name for what ``leaders`` tells. Nobody: leadership is not by object."""
        return ()

    async def leaders_told(self, witness: str) -> Mapping[str, str]:
        """The leaders as that witness has them; empty, or an exception, where it does not tell."""
        return await self.leaders()

    async def depths(self) -> dict[str, int] | None:
        """Name of a queue or durable subscription -> messages left; None when nobody can tell."""
        return None

    def queue_connection(self) -> QueueConnection | None:
        """A new connection with the primitives of the queue workload; None where clients speak STOMP."""
        return None

    def client_addresses(self) -> Sequence[tuple[str, int]]:
        """Where clients connect, in the order of ``node_names``."""
        return ()

    def client_address(self, place: int) -> tuple[str, int] | None:
        """The one address at which a client (of that number) finds whoever serves; None where it has the list."""
        return None

    def logs(self, machine: str) -> Mapping[str, str]:
        """Log files to keep: name in the run's folder (without ``.log``) -> path on the machine."""
        first, *others = self.programs(machine)
        files = {machine: self.log_path(machine, first)}
        return files | {f"{machine}.{program}": self.log_path(machine, program) for program in others}

    def spares(self) -> tuple[str, ...]:
        """The nodes that don't belong to the group at the beginning."""
        return ()

    async def members(self) -> tuple[str, ...]:
        """Who belongs to the group, as the serving node says; empty when nobody serves."""
        return ()

    async def add_member(self, node: str) -> str | None:
        """Ask the serving node to take a spare node into the group; None if it will, otherwise why not."""
        return "its group takes no more replicas"

    async def remove_member(self, node: str) -> str | None:
        """Ask the serving node to go on without a replica; None if it will, otherwise why not."""
        return "its group gives no replica up"

    async def change(self, node: str, settings: Mapping[str, Any], version: str = "") -> str | None:
        """Give a node's programs, which do not run, other settings and another version from their next start on.

        ``version`` is the folder where that is; empty: the one that they have. None when it is done, otherwise why not.
        """
        return "its nodes can't be given other settings, or another version, one by one"

    @property
    def node_names(self) -> tuple[str, ...]:
        """The replicas, which clients may connect to."""
        return self.test.node_names

    @property
    def servers(self) -> Sequence[tuple[str, ...]]:
        """The nodes of each server, by its number: nodes of one hold the same data."""
        return (self.node_names,)

    def log_path(self, machine: str, program: str) -> str:
        """Where a program's output goes, on its machine."""
        return f"{self.backend.node_dir(machine)}/{program}.log"

    async def start(self) -> None:
        """Start everything: helpers first, since replicas may need them."""
        for machines in ([helper.name for helper in self.topology.helpers], self.topology.nodes):
            await asyncio.gather(*(self.start_node(machine) for machine in machines))

    async def start_node(self, machine: str) -> None:
        """Start the programs of a machine that do not run, but for those that the system starts itself."""
        programs = self.programs(machine)
        for program in programs:
            if len(programs) == 1 or (
                not self.restarted(machine, program) and (await self.backend.process(machine, program)).state == DEAD
            ):
                await self.start_program(machine, program)

    async def stop(self) -> None:
        """Stop all programs in order."""
        everything = [(machine, program) for machine in self.topology.machines for program in self.programs(machine)]
        await asyncio.gather(*(self.backend.stop(machine, program) for machine, program in everything))

    async def statuses(self) -> list[NodeStatus]:
        """Ask all replicas at once, in node order."""
        return list(await asyncio.gather(*(self.status(node) for node in self.node_names)))

    async def primary(self) -> str | None:
        """The node that leads now, or None."""
        return self.leading(await self.statuses())

    def leading(self, statuses: Sequence[NodeStatus]) -> str | None:
        """The node that leads, going by what the nodes said at one time: the only one that claims it, or None."""
        claimants = self.claimants(statuses)
        return claimants[0] if len(claimants) == 1 else None

    def claimants(self, statuses: Sequence[NodeStatus]) -> tuple[str, ...]:
        """The nodes that say that they lead, by what the nodes said at one time: those with a leading role in the
        highest epoch.

        Where no role tells who leads: the node that serves, the one with the highest epoch if several do. A single node
        needs no role, either.
        """
        claims = [status for status in statuses if status.reachable and status.role in self.leading_roles]
        if not claims and (not self.leading_roles or self.test.nodes == 1):
            serving = [status for status in statuses if status.serving]
            return (max(serving, key=lambda status: status.epoch).node,) if serving else ()
        newest = max((status.epoch for status in claims), default=0)
        return tuple(status.node for status in claims if status.epoch == newest)

    def joined(self, statuses: Sequence[NodeStatus]) -> tuple[str, ...] | None:
        """The replicas that follow and have what the leader has, going by what the nodes said at one time; None where
        no status tells it."""
        if not self.joined_roles:
            return None
        return tuple(status.node for status in statuses if status.reachable and status.role in self.joined_roles)

    async def await_healthy(self, timeout: float) -> bool:
        """Wait until the system is healthy; False when ``timeout`` passes.

        ``unsure`` tells then why no look gave an answer; it is empty where one look did.
        """
        loop = asyncio.get_running_loop()
        deadline, answered = loop.time() + timeout, False
        while True:
            self.unsure = ""
            if self.healthy(await self.statuses()):
                return True
            answered = answered or not self.unsure
            if loop.time() >= deadline:
                self.unsure = "" if answered else self.unsure
                return False
            await asyncio.sleep(POLL)

    async def describe(self) -> str:
        """One line on every machine, for an error message."""
        parts = [await self._described(status) for status in await self.statuses()]
        for helper in self.topology.helpers:
            states = [(program, await self.backend.process(helper.name, program))
                      for program in self.programs(helper.name)]
            parts += [f"{helper.name}: its {program} is {state.state}" for program, state in states
                      if state.state != RUNNING]  # fmt: skip
        return "; ".join(parts)

    async def collect_logs(self, folder: Path) -> None:
        """Copy each machine's logs into ``folder``; a missing one becomes a file that says so.

        A backend that knows better than the machine when each line was written says so in a file of moments beside it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self.attached:  # nobody knows where they are
            return
        for machine in self.topology.machines:
            for name, path in self.logs(machine).items():
                try:
                    content = await self.backend.download(machine, path)
                except BackendError as error:
                    content = f"(no log: {error})\n".encode()
                (folder / f"{name}.log").write_bytes(content)
                if not self.backend.in_process:
                    continue
                try:
                    moments = await self.backend.download(machine, path + SUFFIX)
                except BackendError:
                    continue
                (folder / f"{name}.log{SUFFIX}").write_bytes(moments)

    async def _described(self, status: NodeStatus) -> str:
        if status.reachable:
            view = f" epoch {status.epoch} view {','.join(status.view)}" if status.view else ""
            return f"{status.node} {status.role}{view}"
        error = (status.detail or {}).get("error")
        if self.attached:
            return f"{status.node} at {self.backend.address(status.node)}:{self.attached.port(status.node)}: {error}"
        program = self.programs(status.node)[0]
        process = await self.backend.process(status.node, program)
        said = await self._last_words(status.node)
        return f"{status.node} unreachable ({error}; its process is {process.state}, its last words: {said})"

    async def _last_words(self, node: str) -> str:
        """The last line of a node's log."""
        try:
            log = await self.backend.download(node, self.log_path(node, self.programs(node)[0]))
        except BackendError as error:
            return str(error)
        lines = log.decode(errors="replace").strip().splitlines()
        return lines[-1][:_LONGEST_LINE] if lines else "none"
