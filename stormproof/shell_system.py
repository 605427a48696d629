"""A base for systems whose programs are started by a command: a user's own system is a class of a few hooks."""

from __future__ import annotations

import asyncio
import posixpath
import shlex
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypeVar

from stormproof.apart import left_after
from stormproof.contracts.backend import Credentials, Shells
from stormproof.contracts.brought_folders import BringsFolders
from stormproof.contracts.client import QueueConnection
from stormproof.contracts.cluster import MAIN, Cluster, Deployment, NodeStatus
from stormproof.contracts.launch import Launch, Launcher
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup
from stormproof.contracts.topology import endpoint
from stormproof.errors import BackendError, StormproofError, errors_of_others
from stormproof.fetch.systems import PROGRAM, FetchingSystem
from stormproof.hook_types import WrongType, demand_type
from stormproof.test import Test
from stormproof.text import place_of, reason, words_of
from stormproof.timeout_scale import timeout_scale

T = TypeVar("T")

BINARY = Option(PROGRAM, "", "path of another binary of the system on its machines; empty: the usual one")
"""An option for systems that pass their program's path through ``Machine.binary``."""

SYNC_SECONDS = 60.0
"""The time limit for syncing the files of ``files`` to a machine's disk."""

QUEUES = "queues"
"""The feature of a system whose clients have the four primitives of a queue."""

ANSWER_SECONDS = 1.0
"""The time limit for a node to accept a connection."""
HOOK_SECONDS = 15.0
"""The time limit for a system's hook that reports a node's status or the leaders."""


@dataclass(frozen=True)
class Machine:
    """A machine of a test, as the hooks of a system see it: a replica, or a helper with its ``role``."""

    name: str
    role: str
    cluster: ShellCluster

    @property
    def folder(self) -> str:
        """The machine's private folder: it holds the machine's files and is the working directory of its programs."""
        return self.cluster.backend.node_dir(self.name)

    @property
    def data(self) -> str:
        """The subfolder on the machine's private disk, which faults can fill up, damage, or roll back to its last
        sync."""
        return self.cluster.backend.data_dir(self.name)

    @property
    def address(self) -> str:
        """The machine's IP address on the main network."""
        return self.cluster.backend.address(self.name)

    @property
    def replicas(self) -> tuple[str, ...]:
        """The names of all replicas, including this machine's if it is one."""
        return self.cluster.node_names

    @property
    def fetched(self) -> str:
        """The folder of the system's fetched broker (``ShellSystem.fetched``) on the machine; it is to be read only."""
        backend = self.cluster.backend
        if not isinstance(backend, BringsFolders):
            raise BackendError(f"{self.name}: these machines get no folders of this one")
        return backend.brought(self.cluster.system.fetched)

    def option(self, name: str) -> object:
        """Return the value of one of the test's options."""
        return self.cluster.test.options[name]

    @property
    def port(self) -> int:
        """The TCP port that clients connect to: the system's, unless an attached system has another."""
        attached = self.cluster.attached
        return attached.port(self.name) if attached else self.cluster.system.port

    @property
    def credentials(self) -> Credentials:
        """The credentials with which clients connect, if an attached system requires any; otherwise empty."""
        return self.cluster.credentials

    def binary(self, usual: str) -> str:
        """Return the path of the system's program: the option ``BINARY``, or the usual one."""
        return str(self.cluster.test.options.get(BINARY.name) or usual)

    def address_of(self, name: str, network: str = "") -> str:
        """Return the IP address of another machine, on the main network or on an additional one."""
        return self.cluster.backend.address(endpoint(name, network) if network else name)

    async def run(self, command: str, timeout: float = 10.0) -> str:
        """Run a shell command on the machine and return its output.

        Raises:
            BackendError: the command failed, or took longer than ``timeout`` seconds; or these machines have no shell.
        """
        backend = self.cluster.backend
        if not isinstance(backend, Shells):
            raise BackendError(f"{self.name}: simulated machines run no commands")
        done = await backend.exec(self.name, f"cd {shlex.quote(self.folder)} || exit\n{command}", timeout)
        if done.status:
            raise BackendError(f"{self.name}: {command!r} failed with status {done.status}: "
                               f"{' '.join(done.output.split())[-300:]}")
        return done.output


class ShellSystem(FetchingSystem):
    """A system whose programs are started by commands.

    A subclass provides the ``command`` of a program, the ``port`` that clients connect to, and their ``connection``; it
    overrides further hooks if the defaults don't fit. Hooks receive a ``Machine``, or the ``ShellCluster``.
    """

    port: int = 0
    """The TCP port of each replica that clients connect to; a replica that accepts connections there is up."""
    provides = frozenset({QUEUES})
    distributions: tuple[str, ...] = ()
    """PyPI packages that the system's clients need in addition to this one, or that contain its programs; `stormproof
    doctor` lists the missing ones."""
    extra: str = "systems"
    """The extra of this project that installs these packages."""
    keeps_time: str = ""
    """The reason why libfaketime can't set the clocks of the system's programs: clock faults are then refused on
    machines without a separate clock."""

    one_loop = False
    """All connections run on one event loop, because they share objects that are bound to a loop. Otherwise each
    connection has a separate loop in a separate thread, and only a connection that never returns is left behind."""

    no_attaching: str = ""
    """The reason why a run can't be attached to an instance of this system that already runs; empty: it can."""

    @abstractmethod
    def command(self, machine: Machine, program: str) -> Sequence[str]:
        """Return the program and its arguments; the program must stay in the foreground."""

    @abstractmethod
    def connection(self, cluster: ShellCluster) -> QueueConnection:
        """Return a new connection of a client; it is not open yet."""

    def files(self, machine: Machine) -> Mapping[str, str | bytes]:
        """Return the files that the machine has before its programs start: path below its folder (or absolute) ->
        content. The files and the folders on their paths are then synced to its disk, so they survive a power cut."""
        return {}

    def environment(self, machine: Machine, program: str) -> Mapping[str, str]:
        """Return the variables of a program's environment."""
        return {}

    def programs(self, machine: Machine) -> Sequence[str]:
        """Return the names of a machine's programs in the order in which they start. Faults hit the first one unless
        they name another."""
        return (MAIN,)

    def restarted(self, machine: Machine, program: str) -> bool:
        """Return whether a part of the system restarts a program after a kill."""
        return False

    def stores_nothing(self, machine: Machine) -> str:
        """Return why a machine stores nothing anywhere under the system's settings ("durability=never: memory alone");
        empty: it does store data. Faults of disks and power count only if they affected files in ``machine.data``, or,
        as long as it has none, for this reason."""
        return ""

    def stores_elsewhere(self, machine: Machine) -> str:
        """Return why a machine stores data elsewhere than in ``machine.data`` ("mode=pair: its store is in a folder
        that both share"); empty: it uses that folder. If it stores data elsewhere, a loss of power counts as proven by
        the end of the processes, and a fault of the disk does not count."""
        return ""

    def simulated_program(self, machine: Machine, program: str) -> Launch:
        """Return the launcher of a program's replacement under simulated time, if the system is ``simulated``."""
        raise BackendError(f"{self.name} can't be simulated")

    async def status(self, machine: Machine) -> NodeStatus:
        """Return a replica's status; by default, a replica that accepts connections at ``port`` serves.

        Raises:
            OSError, TimeoutError, BackendError: the replica is unreachable.
        """
        _, writer = await asyncio.wait_for(asyncio.open_connection(machine.address, self.port), ANSWER_SECONDS)
        writer.close()
        return NodeStatus(machine.name, reachable=True, role="up", serving=True)

    async def attached_status(self, machine: Machine) -> NodeStatus:
        """Return the status of a replica of an attached system, on a machine without a shell: a replica that accepts a
        client serves.

        Raises:
            Exception: the replica does not accept a client.
        """
        return await status_by(self.connection(machine.cluster), machine)

    async def clear(self, cluster: ShellCluster) -> str:
        """Delete the objects that this run's clients have created (``cluster.own_names``) on a system that continues to
        run. Return a sentence that names the remaining ones; empty: none remain."""
        return await Cluster.leave(cluster)

    async def time_of(self, machine: Machine) -> float | None:
        """Return the time of day of a replica's program, in seconds since 1970; None if the program does not report
        it."""
        return None

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Return whether the system is healthy, according to its replicas' simultaneous statuses."""
        return all(status.serving for status in statuses)

    async def prepare(self, cluster: ShellCluster) -> None:
        """Declare queues, users and policies; called once, when the system is healthy for the first time."""

    async def repair(self, cluster: ShellCluster) -> str:
        """Do what an operator does after faults according to the system's manual; return a sentence about it, if
        anything."""
        return ""

    async def attend(self, cluster: ShellCluster, note: Callable[[str], None]) -> None:
        """Do what an operator on call does during load and faults, until cancelled or until no work is left. Report
        each action to ``note`` in a sentence, as ``repair`` does."""

    async def leaders(self, cluster: ShellCluster) -> Mapping[str, str]:
        """Return the leading replica of each queue, if each queue has its own leader."""
        return {}

    async def depths(self, cluster: ShellCluster) -> Mapping[str, int] | None:
        """Return the number of messages left in each queue, including unacknowledged ones, where connections can't ask
        for it; None if it is unknown."""
        return None

    async def move_leader(self, cluster: ShellCluster, name: str, node: str) -> None:
        """Ask the system to hand the leadership of a queue or log over to a replica, for the fault ``move-leader``.
        ``name`` is empty if one replica leads all.

        Raises:
            Exception: the system refused.
        """
        raise BackendError(f"{self.name} can't be asked to move a leader")

    async def leaders_seen(self, machine: Machine) -> Mapping[str, str]:
        """Return the leading replica of each queue in this replica's view. If this hook is missing, ``leaders`` is
        called instead.
        """
        return {}

    def why_no_clock(self, test: Test) -> str:
        """Return ``keeps_time``."""
        return self.keeps_time

    def leads_objects(self) -> bool:
        """Return whether a hook reports leaders of queues."""
        kind = type(self)
        return kind.leaders is not ShellSystem.leaders or kind.leaders_seen is not ShellSystem.leaders_seen

    def why_no_move(self, test: Test) -> str:
        """Return that no hook moves leaders, if so."""
        return "" if type(self).move_leader is not ShellSystem.move_leader else super().why_no_move(test)

    def logs(self, machine: Machine) -> Mapping[str, str]:
        """Return log files to keep besides the programs' output: name -> path below the machine's folder (or
        absolute)."""
        return {}

    def cluster(self, deployment: Deployment) -> ShellCluster:
        """Return a cluster of the system on provisioned machines."""
        return ShellCluster(self, deployment)


async def status_by(connection: Any, machine: Machine) -> NodeStatus:
    """Return the status of a replica that accepts this connection; raise what ``connect`` raises."""
    try:
        await connection.connect(machine.address, machine.port, "")
    finally:
        await connection.close()
    return NodeStatus(machine.name, reachable=True, role="up", serving=True)


class ShellCluster(Cluster):
    """A cluster of a ``ShellSystem``."""

    def __init__(self, system: ShellSystem, deployment: Deployment) -> None:
        super().__init__(deployment)
        self.system = system
        roles = {helper.name: helper.role for helper in self.topology.helpers}
        self._prepared = False
        """Whether the hooks' results had the right types, up to the first load."""
        self._patience = HOOK_SECONDS * timeout_scale(self.backend)
        self._machines = {name: Machine(name, roles.get(name, ""), self) for name in self.topology.machines}

    def machine(self, name: str) -> Machine:
        """Return a machine by its name."""
        return self._machines[name]

    async def install(self) -> None:
        """Create the machines' folders and files."""
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
        """Return a replica's status; after any error, the replica counts as unreachable."""
        ask = self.system.attached_status if self.attached else self.system.status
        try:
            status = await left_after(self._patience, ask(self._machines[node]))
            demand_type(ask, ShellSystem, status)
        except WrongType as error:
            if not self._prepared:  # the first status already shows the mistake
                raise BackendError(f"{self.test.system}: {error}") from None
            return NodeStatus(node, reachable=False, detail={"error": str(error)})
        except Exception as error:  # a hook may not expect the answers of a node in trouble
            return NodeStatus(node, reachable=False, detail={"error": _told(error)})
        return status

    async def time_of(self, node: str) -> float | None:
        """Return the time that the system's hook reports; None while the hook fails."""
        try:
            return await left_after(self._patience, self.system.time_of(self._machines[node]))
        except Exception:  # as for a status
            return None

    def programs(self, machine: str) -> tuple[str, ...]:
        """Return the programs of a machine; for an attached system, only the program whose port is known."""
        if self.attached:
            return (MAIN,)
        return tuple(self._ask(self.system.programs, self._machines[machine]))

    def restarted(self, machine: str, program: str) -> bool:
        """Return whether the system restarts a program itself."""
        return self.attached is not None or self._ask(self.system.restarted, self._machines[machine], program)

    def stores_nothing(self, machine: str) -> str:
        """Return the answer of the system's hook."""
        return "" if self.attached else str(self._ask(self.system.stores_nothing, self._machines[machine]) or "")

    def stores_elsewhere(self, machine: str) -> str:
        """Return the answer of the system's hook."""
        return "" if self.attached else str(self._ask(self.system.stores_elsewhere, self._machines[machine]) or "")

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Return the answer of the system's hook; the system counts as unhealthy while the hook fails."""
        self.unsure = ""
        try:
            found = self.system.healthy(statuses)
            demand_type(self.system.healthy, ShellSystem, found)
            return found
        except WrongType as error:
            if not self._prepared:
                raise BackendError(f"{self.test.system}: {error}") from None
            self.unsure = str(error)
            return False
        except errors_of_others() as error:
            self.unsure = f"healthy() failed: {reason(error)} ({place_of(error)})"
            return False

    async def describe(self) -> str:
        """Describe every machine in one line, after the reason why the system's health is unknown, if it is."""
        told = await super().describe()
        return f"{self.unsure}; {told}" if self.unsure else told

    async def prepare(self) -> None:
        """Call the system's hook; then ask for leaders, so that a result of a wrong type ends the start."""
        await self.system.prepare(self)
        for witness in self.leader_witnesses:
            await self._leaders_told(witness)
        self._prepared = True

    async def repair(self) -> str:
        """Call the system's hook and return its report."""
        return "" if self.attached else await self._typed(self.system.repair, self) or ""

    async def attend(self, note: Callable[[str], None]) -> None:
        """Call the system's hook."""
        if not self.attached:
            await self.system.attend(self, note)

    async def leave(self) -> str:
        """Call the system's hook and return its report."""
        return await self._typed(self.system.clear, self) or ""

    async def leaders(self) -> Mapping[str, str]:
        """Return the answer of the system's hook; no leaders while the hook fails."""
        try:
            return await left_after(self._patience, self._typed(self.system.leaders, self))
        except Exception:  # as for a status
            return {}

    async def move_leader(self, name: str, node: str) -> None:
        """Call the system's hook."""
        await left_after(self._patience, self.system.move_leader(self, name, node))

    async def depths(self) -> dict[str, int] | None:
        """Return the answer of the system's hook."""
        found = await self._typed(self.system.depths, self)
        return None if found is None else dict(found)

    @property
    def leader_witnesses(self) -> tuple[str, ...]:
        """The replicas, if the system asks each of them; otherwise the one hook that reports leaders, if it exists."""
        kind = type(self.system)
        if kind.leaders_seen is not ShellSystem.leaders_seen:
            return tuple(self.node_names)
        return ("",) if kind.leaders is not ShellSystem.leaders else ()

    async def leaders_told(self, witness: str) -> Mapping[str, str]:
        """Return the answer of the system's hook."""
        if not witness:
            return await self.leaders()
        return await left_after(self._patience, self._typed(self.system.leaders_seen, self._machines[witness]))

    async def _leaders_told(self, witness: str) -> None:
        """Ask a witness. Only an answer of a wrong type is an error: there may be no leader yet."""
        hook: Callable[[Any], Awaitable[Any]] = self.system.leaders_seen if witness else self.system.leaders
        try:
            await left_after(self._patience, self._typed(hook, self._machines[witness] if witness else self))
        except WrongType as error:
            raise BackendError(f"{self.test.system}: {error}") from None
        except Exception:  # as for a status
            pass

    async def _typed(self, hook: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Return the result of a hook. Raises WrongType."""
        found = await hook(*arguments)
        demand_type(hook, ShellSystem, found)
        return found

    def queue_connection(self) -> QueueConnection:
        """Return the answer of the system's hook."""
        return self._ask(self.system.connection, self)

    def client_addresses(self) -> Sequence[tuple[str, int]]:
        """Return the client port of each replica."""
        return [(self.backend.address(node), self._machines[node].port) for node in self.node_names]

    def broker_setup(self, **options: Any) -> BrokerSetup:
        """Return this cluster as protocol clients see it; ``options`` are values of their options."""
        brokers = [Broker(node, self.backend.address(node), self._machines[node].port) for node in self.node_names]
        return BrokerSetup(brokers, Access(self.credentials), self.demands, options,
                           place_command=self.place_command, tell=self.tell_client_line)  # fmt: skip

    def logs(self, machine: str) -> Mapping[str, str]:
        """Return the programs' output and the log files that the system names."""
        found = self._ask(self.system.logs, self._machines[machine])
        base = self.backend.node_dir(machine)
        named = {f"{machine}.{name}": path if path.startswith("/") else f"{base}/{path}"
                 for name, path in found.items()}  # fmt: skip
        return {**super().logs(machine), **named}

    def _ask(self, hook: Callable[..., T], *arguments: Any) -> T:
        """Return a hook's result; raise a BackendError that names the failed hook and the place of its error."""
        try:
            found = hook(*arguments)
            demand_type(hook, ShellSystem, found)
            return found
        except WrongType as error:
            raise BackendError(f"{self.test.system}: {error}") from None
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
        """Sync files to the disk, and the folders that were created for them: a power cut also removes unsynced
        names."""
        home, folders = PurePosixPath(machine.folder), dict[PurePosixPath, None]()
        for file in map(PurePosixPath, files):
            inside = home in file.parents  # folders above may be other users', and inaccessible to this one
            folders |= dict.fromkeys(each for each in file.parents if not inside or home in (each, *each.parents))
        done = await backend.exec(machine.name, f"sync -- {shlex.join([*files, *map(str, folders)])}", SYNC_SECONDS)
        if done.status:
            raise BackendError(f"{machine.name}: can't sync its files: {' '.join(done.output.split())[-300:]}")


def _told(error: Exception) -> str:
    """Return the error in words; an error in a hook's own code begins with its type."""
    expected = isinstance(error, OSError | EOFError | ValueError | BackendError)
    return (words_of(error) if expected else "") or reason(error)
