"""A base for systems whose programs are started by a command: a user's own system is a class of a few hooks."""

from __future__ import annotations

import asyncio
import posixpath
import shlex
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypeVar

from stormproof.apart import left_after
from stormproof.contracts.backend import Credentials, Launch, Launcher, Shells
from stormproof.contracts.client import QueueConnection
from stormproof.contracts.cluster import MAIN, Cluster, Deployment, NodeStatus
from stormproof.contracts.system import System
from stormproof.contracts.topology import endpoint
from stormproof.errors import BackendError, StormproofError, errors_of_others
from stormproof.text import place_of, reason, words_of
from stormproof.timeout_scale import timeout_scale

T = TypeVar("T")

SYNC_SECONDS = 60.0
"""How long a machine has to bring the files of ``files`` to its disk."""

QUEUES = "queues"
"""What a system provides whose clients have the four primitives of a queue."""

ANSWER_SECONDS = 1.0
"""How long a node has to take a connection."""
HOOK_SECONDS = 15.0
"""How long a system's hook has to say how a node is, or who leads."""


@dataclass(frozen=True)
class Machine:
    """One machine of a test, as the hooks of a system see it: a replica, or a helper with its ``role``."""

    name: str
    role: str
    cluster: ShellCluster

    @property
    def folder(self) -> str:
        """The machine's own folder: there are its files, and it is the working directory of its programs."""
        return self.cluster.backend.node_dir(self.name)

    @property
    def data(self) -> str:
        """The folder in there that is on the machine's own disk, which faults can fill up, damage or let forget."""
        return self.cluster.backend.data_dir(self.name)

    @property
    def address(self) -> str:
        """Its IP address on the main network."""
        return self.cluster.backend.address(self.name)

    @property
    def replicas(self) -> tuple[str, ...]:
        """The names of all replicas, its own among them."""
        return self.cluster.node_names

    def option(self, name: str) -> object:
        """The value of one of the test's options."""
        return self.cluster.test.options[name]

    @property
    def port(self) -> int:
        """The TCP port that clients connect to: the system's, unless it runs already and has another."""
        attached = self.cluster.attached
        return attached.port(self.name) if attached else self.cluster.system.port

    @property
    def credentials(self) -> Credentials:
        """As whom clients connect, where the system runs already and wants to know; else nobody."""
        return self.cluster.credentials

    def address_of(self, name: str, network: str = "") -> str:
        """The IP address of another machine, or of its place on a further network."""
        return self.cluster.backend.address(endpoint(name, network) if network else name)

    async def run(self, command: str, timeout: float = 10.0) -> str:
        """What a shell command prints there.

        Raises:
            BackendError: it failed, or took longer than ``timeout`` seconds; or these machines have no shell.
        """
        backend = self.cluster.backend
        if not isinstance(backend, Shells):
            raise BackendError(f"{self.name}: there are no commands on simulated machines")
        done = await backend.exec(self.name, f"cd {shlex.quote(self.folder)} || exit\n{command}", timeout)
        if done.status:
            raise BackendError(f"{self.name}: {command!r} failed with status {done.status}: "
                               f"{' '.join(done.output.split())[-300:]}")
        return done.output


class ShellSystem(System):
    """A system whose programs are started by commands.

    A subclass gives the ``command`` of a program, and where clients connect (``port``) with what (``connection``);
    other hooks say more where the defaults don't fit. Hooks are given a ``Machine``, or the ``ShellCluster``.
    """

    port: int = 0
    """The TCP port of each replica that clients connect to; a replica that takes connections there is up."""
    provides = frozenset({QUEUES})
    distributions: tuple[str, ...] = ()
    """Packages of PyPI that its clients need beside this one, or that its programs are in; `stormproof doctor` tells
    which are missing."""
    extra: str = "systems"
    """The extra of this project that brings these."""
    keeps_time: str = ""
    """Why libfaketime can't set the clocks of its programs: then clock faults are refused where machines have no clock
    of their own."""

    one_loop = False
    """Whether all connections run on one event loop, since they share what belongs to a loop. Else each has its own, in
    a thread, and only that one is left behind when it never returns."""

    no_attaching: str = ""
    """Why a run can't be attached to such a system that runs already; empty: it can."""

    @abstractmethod
    def command(self, machine: Machine, program: str) -> Sequence[str]:
        """The program and its arguments; it must stay in the foreground."""

    @abstractmethod
    def connection(self, cluster: ShellCluster) -> QueueConnection:
        """A client's new connection, which is not open yet."""

    def files(self, machine: Machine) -> Mapping[str, str | bytes]:
        """Files that the machine has before its programs start: path below its folder (or absolute) -> content. They
        and the folders on their way are on its disk then: a power cut leaves them."""
        return {}

    def environment(self, machine: Machine, program: str) -> Mapping[str, str]:
        """Variables of a program's environment."""
        return {}

    def programs(self, machine: Machine) -> Sequence[str]:
        """The names of a machine's programs, in the order in which they start; faults hit the first unless they name
        another."""
        return (MAIN,)

    def restarted(self, machine: Machine, program: str) -> bool:
        """Whether something of the system's own starts a program again when it was killed."""
        return False

    def stores_nothing(self, machine: Machine) -> str:
        """Why a machine stores nothing anywhere, as the system is set ("durability=never: memory alone"); empty: it
        does. Faults of disks and power count only where they met files in ``machine.data``, or by this reason while
        there are none."""
        return ""

    def stores_elsewhere(self, machine: Machine) -> str:
        """Why a machine stores nothing in ``machine.data``, but elsewhere ("mode=pair: its store is in a folder that
        both share"); empty: it does. Then a loss of power counts by the end of the processes, and a fault of the disk
        does not count."""
        return ""

    def simulated_program(self, machine: Machine, program: str) -> Launch:
        """What runs in the place of a program under simulated time, where the system is ``simulated``."""
        raise BackendError(f"{self.name} can't be simulated")

    async def status(self, machine: Machine) -> NodeStatus:
        """What a replica says of itself; one that takes connections at ``port`` serves.

        Raises:
            OSError, TimeoutError, BackendError: it can't be reached.
        """
        _, writer = await asyncio.wait_for(asyncio.open_connection(machine.address, self.port), ANSWER_SECONDS)
        writer.close()
        return NodeStatus(machine.name, reachable=True, role="up", serving=True)

    async def attached_status(self, machine: Machine) -> NodeStatus:
        """What is known of a replica that runs already, on a machine without a shell: one that lets a client in serves.

        Raises:
            Exception: it does not let one in.
        """
        connection = self.connection(machine.cluster)
        try:
            await connection.connect(machine.address, machine.port, "")
        finally:
            await connection.close()
        return NodeStatus(machine.name, reachable=True, role="up", serving=True)

    async def clear(self, cluster: ShellCluster) -> str:
        """Delete what this run's clients have made (``cluster.own_names``) on a system that runs on. Returns a sentence
        that says what is left there; empty: nothing."""
        return await Cluster.leave(cluster)

    async def time_of(self, machine: Machine) -> float | None:
        """The time of day as a replica's program has it, in seconds since 1970; None where it does not tell."""
        return None

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Whether the system is as it should be, going by what its replicas said at one time."""
        return all(status.serving for status in statuses)

    async def prepare(self, cluster: ShellCluster) -> None:
        """Once, when the system is healthy for the first time: declare queues, users, policies."""

    async def repair(self, cluster: ShellCluster) -> str:
        """What an operator does after faults, by the system's manual; the sentence that tells it, if anything."""
        return ""

    async def leaders(self, cluster: ShellCluster) -> Mapping[str, str]:
        """Queue -> the replica that leads it, where leadership is by queue."""
        return {}

    async def leaders_seen(self, machine: Machine) -> Mapping[str, str]:
        """Queue -> the replica that leads it, as this one has it. Where replicas are not asked apart, ``leaders`` is.
        """
        return {}

    def leads_objects(self) -> bool:
        """Whether a hook names leaders of queues."""
        kind = type(self)
        return kind.leaders is not ShellSystem.leaders or kind.leaders_seen is not ShellSystem.leaders_seen

    def logs(self, machine: Machine) -> Mapping[str, str]:
        """Log files to keep beside the programs' output: name -> path below the machine's folder (or absolute)."""
        return {}

    def cluster(self, deployment: Deployment) -> ShellCluster:
        """A cluster of it on provisioned machines."""
        return ShellCluster(self, deployment)


class ShellCluster(Cluster):
    """A cluster of a ``ShellSystem``."""

    def __init__(self, system: ShellSystem, deployment: Deployment) -> None:
        super().__init__(deployment)
        self.system = system
        roles = {helper.name: helper.role for helper in self.topology.helpers}
        self._patience = HOOK_SECONDS * timeout_scale(self.backend)
        self._machines = {name: Machine(name, roles.get(name, ""), self) for name in self.topology.machines}

    def machine(self, name: str) -> Machine:
        """A machine by its name."""
        return self._machines[name]

    async def install(self) -> None:
        """Make the machines' folders and files."""
        assert self.attached is None, "it runs already"
        await asyncio.gather(*(self._install(machine) for machine in self._machines.values()))

    async def start_program(self, machine: str, program: str) -> None:
        """Start a program by its command."""
        place, backend, log = self._machines[machine], self.backend, self.log_path(machine, program)
        if isinstance(backend, Launcher):
            await backend.launch(machine, program, self.system.simulated_program(place, program), log)
            return
        assert isinstance(backend, Shells)
        variables = [f"{name}={value}" for name, value in self._ask(self.system.environment, place, program).items()]
        command = self._ask(self.system.command, place, program)
        await backend.start(machine, program, ["env", *variables, *command] if variables else command, log)

    async def status(self, node: str) -> NodeStatus:
        """Ask one replica; whatever goes wrong with that, it is unreachable."""
        ask = self.system.attached_status if self.attached else self.system.status
        try:
            return await left_after(self._patience, ask(self._machines[node]))
        except Exception as error:  # what a node in trouble answers, a hook may not have reckoned with
            return NodeStatus(node, reachable=False, detail={"error": _told(error)})

    async def time_of(self, node: str) -> float | None:
        """As the system says; nobody tells the time while it can't say."""
        try:
            return await left_after(self._patience, self.system.time_of(self._machines[node]))
        except Exception:  # as for a status
            return None

    def programs(self, machine: str) -> tuple[str, ...]:
        """The programs of a machine; of one that runs already the one whose port is known."""
        if self.attached:
            return (MAIN,)
        return tuple(self._ask(self.system.programs, self._machines[machine]))

    def restarted(self, machine: str, program: str) -> bool:
        """Whether the system starts a program again itself."""
        return self.attached is not None or self._ask(self.system.restarted, self._machines[machine], program)

    def stores_nothing(self, machine: str) -> str:
        """As the system says."""
        return "" if self.attached else str(self._ask(self.system.stores_nothing, self._machines[machine]) or "")

    def stores_elsewhere(self, machine: str) -> str:
        """As the system says."""
        return "" if self.attached else str(self._ask(self.system.stores_elsewhere, self._machines[machine]) or "")

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """As the system says; it is not while its hook fails."""
        self.unsure = ""
        try:
            return bool(self.system.healthy(statuses))
        except errors_of_others() as error:
            self.unsure = f"healthy() failed: {reason(error)} ({place_of(error)})"
            return False

    async def describe(self) -> str:
        """One line on every machine, and why nobody knows whether all is well."""
        told = await super().describe()
        return f"{self.unsure}; {told}" if self.unsure else told

    async def prepare(self) -> None:
        """As the system says."""
        await self.system.prepare(self)

    async def repair(self) -> str:
        """As the system says."""
        return "" if self.attached else await self.system.repair(self)

    async def leave(self) -> str:
        """As the system says."""
        return await self.system.clear(self)

    async def leaders(self) -> Mapping[str, str]:
        """As the system says; nobody leads while it can't say."""
        try:
            return await left_after(self._patience, self.system.leaders(self))
        except Exception:  # as for a status
            return {}

    @property
    def leader_witnesses(self) -> tuple[str, ...]:
        """The replicas, if the system asks each; else whoever tells of leaders, if anybody does."""
        kind = type(self.system)
        if kind.leaders_seen is not ShellSystem.leaders_seen:
            return tuple(self.node_names)
        return ("",) if kind.leaders is not ShellSystem.leaders else ()

    async def leaders_told(self, witness: str) -> Mapping[str, str]:
        """As the system says."""
        if not witness:
            return await self.leaders()
        return await left_after(self._patience, self.system.leaders_seen(self._machines[witness]))

    def queue_connection(self) -> QueueConnection:
        """As the system says."""
        return self._ask(self.system.connection, self)

    def client_addresses(self) -> Sequence[tuple[str, int]]:
        """The client port of each replica."""
        return [(self.backend.address(node), self._machines[node].port) for node in self.node_names]

    def logs(self, machine: str) -> Mapping[str, str]:
        """The programs' output and what the system names."""
        found = self._ask(self.system.logs, self._machines[machine])
        base = self.backend.node_dir(machine)
        named = {f"{machine}.{name}": path if path.startswith("/") else f"{base}/{path}"
                 for name, path in found.items()}  # fmt: skip
        return {**super().logs(machine), **named}

    def _ask(self, hook: Callable[..., T], *arguments: Any) -> T:
        """What a hook returns; raises BackendError that says which one failed, and where."""
        try:
            return hook(*arguments)
        except StormproofError:
            raise
        except errors_of_others() as error:
            raise BackendError(f"{self.test.system}: {hook.__name__}() failed: {reason(error)} ({place_of(error)})"
                               ) from error

    async def _install(self, machine: Machine) -> None:
        if isinstance(self.backend, Shells):
            await self.backend.exec(machine.name, f"mkdir -p {shlex.quote(machine.data)}")
        targets: list[str] = []
        for path, content in self._ask(self.system.files, machine).items():
            targets.append(posixpath.normpath(path if path.startswith("/") else f"{machine.folder}/{path}"))
            data = content.encode() if isinstance(content, str) else content
            await self.backend.upload(machine.name, data, targets[-1])
        if targets and isinstance(self.backend, Shells):
            await self._sync(machine, self.backend, targets)

    async def _sync(self, machine: Machine, backend: Shells, files: Sequence[str]) -> None:
        """Bring files to the disk, and the folders that were made for them: a power cut takes back names, too."""
        home, folders = PurePosixPath(machine.folder), dict[PurePosixPath, None]()
        for file in map(PurePosixPath, files):
            inside = home in file.parents  # folders above may be others', and closed to us
            folders |= dict.fromkeys(each for each in file.parents if not inside or home in (each, *each.parents))
        done = await backend.exec(machine.name, f"sync -- {shlex.join([*files, *map(str, folders)])}", SYNC_SECONDS)
        if done.status:
            raise BackendError(f"{machine.name}: can't sync its files: {' '.join(done.output.split())[-300:]}")


def _told(error: Exception) -> str:
    """The error in words; those of a hook's own mistakes begin with what they are."""
    expected = isinstance(error, OSError | EOFError | ValueError | BackendError)
    return (words_of(error) if expected else "") or reason(error)
