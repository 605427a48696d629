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
from stormproof.contracts.client_places import ClientPlaces
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError
from stormproof.history.log_timestamps import SUFFIX
from stormproof.test import Test
from stormproof.text import last_words

MAIN = "broker"
"""The name of a machine's program if the system names none."""

SHARED_LOCK = "shared-lock"
"""An entry of a system's ``helper_roles`` if its lock file is in a folder that its nodes share: no link leads there."""

POLL = 0.1
_LONGEST_LINE = 300


@dataclass(frozen=True)
class NodeStatus:
    """A node's report about itself.

    ``role`` is the system's word (``master``, ``slave``, ``starting``...), ``serving`` whether it accepts clients,
    ``epoch`` the number of its view or term, ``view`` the members of that view as the node knows them, in order.
    ``depths`` maps a queue's name to its number of messages, including those delivered but not acknowledged.
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
    """A file lock that a node needs in order to serve: the machine that hosts the file, the path there, and the
    content.

    ``present``: the file exists. ``holder`` is the lock's holder according to the file (empty: the lock is free), and
    ``epoch`` distinguishes one grant of the lock from another.
    """

    machine: str
    path: str
    present: bool = False
    holder: str = ""
    epoch: int = 0


@dataclass(frozen=True)
class Deployment:
    """The constituents of a cluster: the test, the workload's demands, the backend, the topology, the clients'
    password, and the role words by which nodes report that they lead, or have joined (``System``)."""

    test: Test
    demands: Demands
    backend: Backend
    topology: Topology
    passcode: str = ""
    leading_roles: Collection[str] = ()
    joined_roles: Collection[str] = ()


class Cluster(ABC):
    """A running (or not yet running) system.

    A subclass installs the system, starts a program, and asks a node for its status. The other methods have defaults
    that suit a cluster whose nodes have one program each and are healthy if they are reachable.
    """

    login = "stormproof"
    reliable_connections = True
    """Clients of the reference broker may ask for connections whose frames are numbered and retransmitted."""
    exchanges = False
    """Clients may send to exchanges, and request exchanges."""

    def __init__(self, deployment: Deployment) -> None:
        self.test: Test = deployment.test
        self.demands: Demands = deployment.demands
        self.backend: Backend = deployment.backend
        self.topology: Topology = deployment.topology
        self.passcode: str = deployment.passcode
        self.leading_roles, self.joined_roles = deployment.leading_roles, deployment.joined_roles
        self.attached: Attached | None = self.backend if isinstance(self.backend, Attached) else None
        """The machines, if the system already runs there."""
        self.credentials = self.attached.credentials() if self.attached else Credentials()
        """The credentials with which clients connect to it there."""
        self._prefix = f"stormproof-{secrets.token_hex(4)}-" if self.attached else ""
        self.helped_since: float | None = None
        """The time (of the event loop) of an operator's first action that ``repair`` has not reported yet; None: no
        action."""
        self.unsure = ""
        """The reason why the system's health is unknown, if the probe for it fails itself."""
        self.tell_client_line: Callable[[str], None] = lambda line: None
        """Takes the lines that client programs write to their standard error."""
        self.own_names: set[str] = set()
        """The names that clients of this run use there; ``leave`` deletes the objects."""
        if self.attached:
            demanded = (self.demands.queues, self.demands.logs, self.demands.registers, self.demands.locks)
            queues, logs, registers, locks = (tuple(map(self.own_name, names)) for names in demanded)
            self.demands = replace(self.demands, queues=queues, logs=logs, registers=registers, locks=locks)

    def own_name(self, name: str) -> str:
        """Return the name for an object that clients create: a unique name if others use the system, too."""
        if self.attached:
            self.own_names.add(self._prefix + name)
        return self._prefix + name

    async def leave(self) -> str:
        """Delete what this run has created on a system that continues to run. Return a sentence that says what is left
        there."""
        left = ", ".join(sorted(self.own_names))
        return f"left there, since its clients can't delete them: {left}" if left else ""

    @abstractmethod
    async def install(self) -> None:
        """Install programs and configuration on all machines.

        Raises:
            BackendError: a machine lacks a requirement, or refused the files.
        """

    @abstractmethod
    async def start_program(self, machine: str, program: str) -> None:
        """Start a program that is not running."""

    @abstractmethod
    async def status(self, node: str) -> NodeStatus:
        """Return the status of one node; never raise: an unreachable node has ``reachable=False``."""

    def programs(self, machine: str) -> tuple[str, ...]:
        """Return the programs of a machine in the order in which they are started. Faults hit the first one unless they
        name another."""
        return (MAIN,)

    def program_roles(self) -> Mapping[str, str]:
        """Return ``System.program_roles`` for this cluster's test."""
        return {}

    def private_networks(self) -> tuple[str, ...]:
        """Return ``System.private_networks`` for this cluster's test."""
        return ()

    async def lock(self) -> Lock | None:
        """Return the lock according to its file now; None if no file decides which node may serve."""
        return None

    async def holds_lock(self, node: str) -> bool | None:
        """Return whether a node believes that it holds the lock; None if it does not answer."""
        return None

    async def time_of(self, node: str) -> float | None:
        """Return the time of day of the node's program, in seconds since 1970; None if the program does not report
        it."""
        return None

    def stores_nothing(self, machine: str) -> str:
        """Return why a machine stores nothing anywhere under the system's settings; empty: it does store data. As long
        as its disk has no file of the system, faults of that disk then need no evidence that they affected stored
        data."""
        return ""

    def stores_elsewhere(self, machine: str) -> str:
        """Return why a machine stores nothing on its private disk under the system's settings, and where it stores data
        instead; empty: it uses that disk. If it stores data elsewhere, a power loss of the machine counts as proven by
        the end of its processes, and a fault of its disk does not count."""
        return ""

    def restarted(self, machine: str, program: str) -> bool:
        """Return whether a part of the system restarts the program after a kill; healing then does not."""
        return self.attached is not None

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Return whether the system is healthy, according to the nodes' simultaneous statuses."""
        return all(status.reachable for status in statuses)

    async def prepare(self) -> None:
        """Declare queues, users and policies; called once, when the system is healthy for the first time."""

    async def repair(self) -> str:
        """Do what an operator does after faults according to the system's manual; called once, between the last heal
        and the drain. Return a sentence that says what was done; empty: nothing was necessary."""
        return ""

    async def recover(self, timeout: float) -> str:
        """Do what an operator does after the loss of all nodes, or of the serving one, once all nodes run again, while
        other faults may continue. Ends when the system serves, or after ``timeout`` seconds. Returns a sentence as
        ``repair`` does."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            served = (await self.primary() is not None if self.leading_roles else
                      any(status.serving for status in await self.statuses()))  # fmt: skip
            if served or self.healthy(await self.statuses()) or loop.time() >= deadline:
                return ""
            await asyncio.sleep(POLL)

    async def shut_down(self, timeout: float) -> Mapping[str, Any]:
        """Do what an operator does to shut down the whole system cleanly, within ``timeout`` seconds, if the system
        supports a clean shutdown (``System.shuts_down``); its programs continue to run. Return the nodes that have shut
        down (``clean``), or the ``error``."""
        raise NotImplementedError

    async def attend(self, note: Callable[[str], None]) -> None:
        """Do what an operator on call does during load and faults, until cancelled or until no work is left. Each
        action is reported to ``note``, in the form that ``repair`` uses."""

    @property
    def linger(self) -> float:
        """Return the seconds for which the system keeps the state of connections that clients have lost."""
        return 0.0

    async def leaders(self) -> Mapping[str, str]:
        """Return the node that leads each object (a queue, say), if each object has its own leader."""
        return {}

    async def move_leader(self, name: str, node: str) -> None:
        """Ask the system, as an operator would, to hand the leadership of an object over to a node. ``name`` is empty
        if one node leads all objects. A system that can't name the next leader may choose another one.

        Raises:
            Exception: the system refused.
        """
        raise BackendError("this system can't be asked to move a leader")

    @property
    def leader_witnesses(self) -> tuple[str, ...]:
        """Return the witnesses that are each asked for leaders repeatedly during a run: nodes, whose opinions may
        differ; an empty name stands for the answer of ``leaders``. Empty: objects have no leaders."""
        return ()

    async def leaders_told(self, witness: str) -> Mapping[str, str]:
        """Return the leaders according to that witness; the result is empty, or an exception is raised, if it does not
        answer."""
        return await self.leaders()

    async def depths(self) -> dict[str, int] | None:
        """Return the number of messages left in each queue or durable subscription, by name; None if it is unknown."""
        return None

    def queue_connection(self) -> QueueConnection | None:
        """Return a new connection with the primitives of the queue workload; None if clients speak STOMP."""
        return None

    def client_addresses(self) -> Sequence[tuple[str, int]]:
        """Return the addresses that clients connect to, in the order of ``node_names``."""
        return ()

    def place_command(self, local: str) -> Sequence[str]:
        """Return the words that precede a program's command so that it runs in the network of the client host with the
        address ``local`` (empty: of the first client host); none where client hosts have no separate networks."""
        if not isinstance(self.backend, ClientPlaces):
            return ()
        hosts = self.topology.client_hosts
        host = next((host for host in hosts if not local or self.backend.address(host) == local), None)
        return () if host is None else self.backend.place_command(host)

    def client_address(self, place: int) -> tuple[str, int] | None:
        """Return the one address at which client number ``place`` finds the serving node; None if clients use the
        list."""
        return None

    def logs(self, machine: str) -> Mapping[str, str]:
        """Return the log files to keep: name in the run's folder (without ``.log``) -> path on the machine."""
        first, *others = self.programs(machine)
        files = {machine: self.log_path(machine, first)}
        return files | {f"{machine}.{program}": self.log_path(machine, program) for program in others}

    def spares(self) -> tuple[str, ...]:
        """Return the nodes that don't belong to the group at the beginning."""
        return ()

    async def members(self) -> tuple[str, ...]:
        """Return the group's members according to the serving node; empty if no node serves."""
        return ()

    async def add_member(self, node: str) -> str | None:
        """Ask the serving node to add a spare node to the group; return None if it agrees, otherwise the reason for the
        refusal."""
        return "its group takes no more replicas"

    async def remove_member(self, node: str) -> str | None:
        """Ask the serving node to remove a replica; return None if it agrees, otherwise the reason for the refusal."""
        return "its group gives no replica up"

    async def change(self, node: str, settings: Mapping[str, Any], version: str = "") -> str | None:
        """Give a node's programs, which are not running, other settings and another version, effective from their next
        start.

        ``version`` is the folder of that version; empty: keep the present one. Returns None on success, otherwise the
        reason for the refusal.
        """
        return "its nodes can't be given other settings, or another version, one by one"

    @property
    def node_names(self) -> tuple[str, ...]:
        """The replicas, which clients may connect to."""
        return self.test.node_names

    @property
    def servers(self) -> Sequence[tuple[str, ...]]:
        """The nodes of each server, by the server's number; the nodes of one server hold the same data."""
        return (self.node_names,)

    def log_path(self, machine: str, program: str) -> str:
        """Return the path of a program's output on its machine."""
        return f"{self.backend.node_dir(machine)}/{program}.log"

    async def start(self) -> None:
        """Start all programs: helpers first, since replicas may need them."""
        for machines in ([helper.name for helper in self.topology.helpers], self.topology.nodes):
            await asyncio.gather(*(self.start_node(machine) for machine in machines))

    async def start_node(self, machine: str) -> None:
        """Start the programs of a machine that are not running, except those that the system restarts itself."""
        programs = self.programs(machine)
        for program in programs:
            if len(programs) == 1 or (
                not self.restarted(machine, program) and (await self.backend.process(machine, program)).state == DEAD
            ):
                await self.start_program(machine, program)

    async def stop(self) -> None:
        """Stop all programs cleanly."""
        everything = [(machine, program) for machine in self.topology.machines for program in self.programs(machine)]
        await asyncio.gather(*(self.backend.stop(machine, program) for machine, program in everything))

    async def statuses(self) -> list[NodeStatus]:
        """Return the statuses of all replicas, asked concurrently, in node order."""
        return list(await asyncio.gather(*(self.status(node) for node in self.node_names)))

    async def primary(self) -> str | None:
        """Return the node that leads now, or None."""
        return self.leading(await self.statuses())

    def leading(self, statuses: Sequence[NodeStatus]) -> str | None:
        """Return the leader according to the nodes' simultaneous statuses: the only claimant, or None."""
        claimants = self.claimants(statuses)
        return claimants[0] if len(claimants) == 1 else None

    def claimants(self, statuses: Sequence[NodeStatus]) -> tuple[str, ...]:
        """Return the nodes that claim to lead according to their simultaneous statuses: those with a leading role in
        the highest epoch.

        If no role indicates the leader, every serving node claims to lead. A single node needs no role, either.
        """
        claims = [status for status in statuses if status.reachable and status.role in self.leading_roles]
        if not claims and (not self.leading_roles or self.test.nodes == 1):
            claims = [status for status in statuses if status.serving]
        newest = max((status.epoch for status in claims), default=0)
        return tuple(status.node for status in claims if status.epoch == newest)

    def joined(self, statuses: Sequence[NodeStatus]) -> tuple[str, ...] | None:
        """Return the replicas that follow and have all the leader's data, according to the nodes' simultaneous
        statuses; None if no status indicates that."""
        if not self.joined_roles:
            return None
        return tuple(status.node for status in statuses if status.reachable and status.role in self.joined_roles)

    async def await_healthy(self, timeout: float) -> bool:
        """Wait until the system is healthy; return False if ``timeout`` passes first.

        After a timeout, ``unsure`` gives the reason why no probe had an answer; it is empty if at least one had.
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
        """Describe every machine in one line, for an error message."""
        parts = [await self._described(status) for status in await self.statuses()]
        for helper in self.topology.helpers:
            states = [(program, await self.backend.process(helper.name, program))
                      for program in self.programs(helper.name)]
            parts += [f"{helper.name}: its {program} is {state.state}" for program, state in states
                      if state.state != RUNNING]  # fmt: skip
        return "; ".join(parts)

    async def collect_logs(self, folder: Path) -> None:
        """Copy each machine's logs into ``folder``; a missing log becomes a file that says so.

        A backend that knows the time of each line more precisely than the machine records it in a file of moments next
        to the log.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self.attached:  # their place is unknown
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
            return f"{status.node} {status.role}{view}{self._detail(status)}"
        error = (status.detail or {}).get("error")
        if self.attached:
            return f"{status.node} at {self.backend.address(status.node)}:{self.attached.port(status.node)}: {error}"
        program = self.programs(status.node)[0]
        process = await self.backend.process(status.node, program)
        said = await self._last_words(status.node)
        return f"{status.node} unreachable ({error}; its process is {process.state}, its last words: {said})"

    def _detail(self, status: NodeStatus) -> str:
        """Return the detail that a reachable node reports, in parentheses, if it is short enough for a line."""
        told = ", ".join(f"{name}: {value}" for name, value in (status.detail or {}).items())
        return f" ({told[:_LONGEST_LINE]})" if told else ""

    async def _last_words(self, node: str) -> str:
        """Return the last line of a node's log that tells something."""
        try:
            log = await self.backend.download(node, self.log_path(node, self.programs(node)[0]))
        except BackendError as error:
            return str(error)
        return last_words(log)[:_LONGEST_LINE] or "none"
