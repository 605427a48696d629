"""Nodes as Linux namespaces: no daemon, no image, root or ordinary user.

The process that provisions (``harness.run.test_runner``) runs as pid 1 of a new pid namespace, in new network and mount
namespaces; ``launch_prefix`` is the command that puts it there. Everything that it creates ends with it, even if it is
killed by SIGKILL. Each node is a process that holds further namespaces (network, mount, pid, UTS, IPC) and is connected
to the others by a bridge. The addresses of the harness and of the client hosts are on that bridge.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from harness.backends import clock_machines, disk_machines, network
from harness.backends.base import brought_path, gather_all
from harness.backends.clock_machines import ClockBackend
from harness.backends.disk_control import can_mount, mount_here
from harness.backends.disk_machines import DiskBackend
from harness.backends.disk_store import TAKE_NAME
from harness.backends.launch import how_to_launch
from harness.backends.packets import PacketBackend
from harness.backends.scratch import make_scratch
from nodes.timeouts import within
from stormproof.contracts.backend import SHARED_ROOT, Capability
from stormproof.contracts.topology import Topology
from stormproof.errors import BackendError
from stormproof.resource_log import OwnFolder
from stormproof.test import Test

BRIDGE = "stormproof{}"
SUBNETS = ipaddress.IPv4Network("10.77.0.0/16")
"""Arbitrary subnets: the harness's network namespace has no others. The first one is the main network's."""
PREFIX = 24

_SHARED = "@all"
"""Suffix of the names of folders that all nodes share; no node's name contains this character."""
_DISKS = "@disks"
"""The folder for the storage of disks that can fail."""
_SETUP_LIMIT = 10.0
_END_LIMIT = 3.0

# A shell that ignores SIGCHLD reaps the node's orphaned processes; `sleep` inherits that (execve(2)). Each node also
# has separate shared memory: libfaketime names its objects by pids, which several nodes have in common.
_INIT = ('mount --bind "$1" /etc/hosts && mount -t tmpfs tmpfs /dev/shm && hostname "$2" && '
         'trap "" CHLD && echo ready && exec sleep infinity')

_NODE = ("unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child",
         "--propagation", "private")


class LocalBackend(ClockBackend, DiskBackend, PacketBackend):
    """Nodes in namespaces below this process, which ``launch_prefix`` must have started."""

    name = "local"
    abilities: ClassVar[Mapping[str, str]] = {
        **PacketBackend.abilities, **disk_machines.ABILITIES, **clock_machines.ABILITIES}  # fmt: skip
    root_folder = SHARED_ROOT
    by_default = True

    def __init__(self) -> None:
        super().__init__()
        self._bridges: list[str] = []
        self._holders: dict[str, asyncio.subprocess.Process] = {}
        """The process that holds the namespaces of each machine, and of each client host that is a place."""
        self._scratch: OwnFolder | None = None
        self._shared: tuple[str, ...] = ()
        self._folders: dict[str, str] = {}

    @staticmethod
    def launch_prefix() -> list[str]:
        """Return the command prefix with which the harness's child must be started.

        Raises:
            BackendError: this user cannot create namespaces on this machine; the message gives a remedy.
        """
        launch = how_to_launch()
        if launch.prefix is None:
            raise BackendError(f"backend local can't be used: {launch.detail}; {launch.mend}")
        return list(launch.prefix)

    async def provision(self, test: Test, topology: Topology, run_dir: Path) -> None:
        """Create machines and client hosts and connect them.

        Raises:
            BackendError: this process does not run in separate namespaces, or the system refused an operation.
        """
        if os.getpid() != 1:
            raise BackendError("backend local must run as pid 1 of separate namespaces: start it by launch_prefix()")
        subnets = list(itertools.islice(SUBNETS.subnets(new_prefix=PREFIX), 1 + len(topology.networks)))
        self._addresses = network.address_plan(topology, subnets[0])
        for name, subnet in zip(topology.networks, subnets[1:], strict=True):
            self._addresses |= network.further_plan(topology, name, subnet)
        self._scratch, self._shared = make_scratch(run_dir), topology.shared
        self._folders = dict(topology.folders)
        for name in topology.shared:
            Path(self.shared_dir(name)).mkdir()
        hosts = self._write_hosts()
        await _ip_batch(_bridge_commands(topology, self._addresses))
        for machine in topology.machines:
            Path(self.node_dir(machine)).mkdir()
        if self.wants_disks(test):
            await gather_all(self._mount_disk(test, machine) for machine in topology.machines)
        await gather_all(self._hold(machine, hosts) for machine in topology.machines)
        places = topology.client_hosts if topology.client_places else ()
        await gather_all(self._hold_place(host) for host in places)
        self._bridges = [BRIDGE.format(number) for number in range(1 + len(topology.networks))]
        await _ip_batch([
            f"link add v{number}{machine} type veth peer name eth{number} netns {self._holders[machine].pid}\n"
            f"link set v{number}{machine} master {BRIDGE.format(number)} up"
            for machine in topology.machines
            for number in _interfaces(topology, machine)
        ] + [
            f"link add v0{host} type veth peer name eth0 netns {self._holders[host].pid}\n"
            f"link set v0{host} master {BRIDGE.format(0)} up"
            for host in places
        ])
        await gather_all(self._bring_up_place(host) for host in places)
        self._open_shells(topology.machines)
        await gather_all(self._bring_up(topology, machine) for machine in topology.machines)
        if self.wants_clocks(test):
            await self._give_clocks(topology.nodes)
        await self._demand_packages(topology, topology.machines[:1])

    @staticmethod
    def lacks() -> dict[str, str]:
        """Return disks and power cuts as lacking where FUSE mounts are impossible, and clocks without libfaketime."""
        return disk_machines.lacking(can_mount()) | clock_machines.lacking(clock_machines.has_library())

    @staticmethod
    def requirements() -> list[Capability]:
        """Return the requirements: namespaces."""
        launch = how_to_launch()
        detail = launch.detail if launch.prefix is None else f"Linux namespaces {launch.detail}"
        return [Capability("namespaces", launch.prefix is not None, detail, launch.mend)]

    def node_dir(self, node: str) -> str:
        """Return the node's private folder, as seen on the node."""
        if self._scratch is None:
            raise BackendError(f"{node} has no folder: the backend is not provisioned")
        return str(self._scratch.path / node)

    def shared_dir(self, name: str) -> str:
        """Return a folder of this machine that all nodes see."""
        return f"{self.node_dir(name)}{_SHARED}" if name in self._shared else super().shared_dir(name)

    def brought(self, name: str) -> str:
        """Return the path of the folder itself, since nodes see this machine's files."""
        return brought_path(self._folders, name)

    def _place(self, machine: str) -> str:
        return "this computer"

    def python(self, node: str) -> str:
        """Return the Python interpreter to run on the node: this one."""
        return sys.executable

    async def release(self) -> None:
        """Remove everything that ``provision`` created; safe to call twice or after a failed provision."""
        try:
            await self._stop_clocks()
            await self._close_shells()
        finally:
            holders, self._holders = list(self._holders.values()), {}
            await gather_all(_end(holder) for holder in holders)
            await self._unmount()
            if self._addresses:
                for bridge in self._bridges:
                    await _run("ip", "link", "delete", bridge, check=False)
                self._addresses = {}
            if self._scratch is not None:
                await asyncio.to_thread(self._scratch.remove)
                self._scratch = None

    async def _connect(self, node: str) -> PipeChannel:
        base = f"/proc/{self._holders[node].pid}/ns"
        return await PipeChannel.open([
            "nsenter", f"--net={base}/net", f"--mount={base}/mnt", f"--uts={base}/uts", f"--ipc={base}/ipc",
            f"--pid={base}/pid_for_children"])  # fmt: skip

    async def _hold(self, node: str, hosts: Path) -> None:
        """Start the process that holds the node's namespaces and wait until they are set up."""
        await self._start_holder(node, *_NODE, "sh", "-c", _INIT, "sh", str(hosts), node)

    async def _start_holder(self, node: str, *command: str) -> None:
        holder = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True, env=_environment(),
        )
        self._holders[node] = holder
        assert holder.stdout is not None and holder.stderr is not None
        async with within(_SETUP_LIMIT):
            if await holder.stdout.readline() != b"ready\n":
                why = (await holder.stderr.read()).decode(errors="replace").strip()
                raise BackendError(f"{node}: can't make its namespaces: {why or 'unshare ended'}")

    def enter_place(self, address: str) -> None:
        """Move the calling thread into the network of the client host with an address; without one, into the
        harness's."""
        found = next((host for host in self._holders if address and self._addresses[host] == address), None)
        network.enter_network(os.getpid() if found is None else self._place_pid(found))

    def place_command(self, host: str) -> list[str]:
        """Return the words that precede a program's command so that it runs in a client host's network."""
        return ["nsenter", f"--net=/proc/{self._place_pid(host)}/ns/net", "--"] if host in self._holders else []

    def _place_pid(self, host: str) -> int:
        return self._holders[host].pid

    async def _hold_place(self, host: str) -> None:
        """Start the process that holds a client host's network."""
        await self._start_holder(host, "unshare", "--net", "sh", "-c", "echo ready && exec sleep infinity")

    async def _bring_up_place(self, host: str) -> None:
        """Give a client host its address. Other machines reach it as they reach an address of the bridge."""
        await _run(*self.place_command(host), "ip", "-batch", "-", stdin="\n".join([
            "link set lo up", f"address add {self._addresses[host]}/{PREFIX} dev eth0", "link set eth0 up", ""]))

    async def _mount_disk(self, test: Test, machine: str) -> None:
        """Mount the disk before the machine's namespaces are created, because they get a copy of the present mounts."""
        assert self._scratch is not None
        point, folder = Path(self.data_dir(machine)), self._scratch.path / _DISKS / machine
        point.mkdir()
        self._disks[machine] = await mount_here(machine, point, folder, disk_machines.seed_of(test, machine))

    async def _bring_up(self, topology: Topology, machine: str) -> None:
        commands = ["ip link set lo up"]
        for number, name in zip(_interfaces(topology, machine), topology.endpoints(machine), strict=True):
            commands += [f"ip address add {self._addresses[name]}/{PREFIX} dev eth{number}",
                         f"ip link set eth{number} up"]  # fmt: skip
        done = await self.exec(machine, " && ".join(commands))
        if done.status != 0:
            raise BackendError(f"{machine}: can't set its address: {done.output.strip()}")

    def _write_hosts(self) -> Path:
        assert self._scratch is not None
        path = self._scratch.path / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{ip} {name}" for name, ip in self._addresses.items())]
        path.write_text("\n".join(lines) + "\n")
        return path


class PipeChannel:
    """The pipes of a shell that ``nsenter`` started in a separate session."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None and process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    @classmethod
    async def open(cls, entering: Sequence[str]) -> PipeChannel:
        """Start a shell; the words of ``entering`` precede it."""
        return cls(await asyncio.create_subprocess_exec(
            # The outer shell leads the session. It keeps its name, because it starts nsenter as a child.
            "/bin/sh", "-c", f'{TAKE_NAME}; "$@"; exit', "sh", *entering, "/bin/sh",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            start_new_session=True, env=_environment(),
        ))  # fmt: skip

    async def read(self) -> bytes:
        """Return the next bytes of output."""
        return await self._stdout.read(1 << 16)

    async def write(self, data: bytes) -> None:
        """Send to the shell's input."""
        self._stdin.write(data)
        await self._stdin.drain()

    async def destroy(self) -> None:
        """End the shell and its foreground command."""
        # The broker leads a separate session, so this ends only the shell and its foreground command.
        await _end(self._process)
        self._stdin.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a session leader with its process group and reap it."""
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # It has ended and waits to be reaped.
    async with within(_END_LIMIT):
        await process.wait()


def _interfaces(topology: Topology, machine: str) -> list[int]:
    """Return the numbers of a machine's networks: 0 is the main one."""
    return [0, *(number for number, name in enumerate(topology.networks, 1) if machine in topology.on(name))]


def _bridge_commands(topology: Topology, addresses: dict[str, str]) -> list[str]:
    # The control address is first: it is the source of connections that are not bound to a client host.
    hosts = () if topology.client_places else topology.client_hosts
    ours = [addresses[network.CONTROL], *(addresses[host] for host in hosts)]
    commands = ["link set lo up"]
    for number in range(1 + len(topology.networks)):
        bridge = BRIDGE.format(number)
        commands += [f"link add {bridge} type bridge", f"link set {bridge} up"]
    return [*commands, *(f"address add {ip}/{PREFIX} dev {BRIDGE.format(0)}" for ip in ours)]


async def _ip_batch(commands: Sequence[str]) -> None:
    await _run("ip", "-batch", "-", stdin="\n".join(commands) + "\n")


async def _run(*argv: str, stdin: str = "", check: bool = True) -> None:
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE, env=_environment(),
    )
    async with within(_SETUP_LIMIT):
        _, errors = await process.communicate(stdin.encode())
    if check and process.returncode != 0:
        raise BackendError(f"{shlex.join(argv)} failed: {' '.join(errors.decode(errors='replace').split())}")


def _environment() -> dict[str, str]:
    """Return this environment, with the folders of Debian's administration tools added to PATH."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}
