"""Nodes as containers through Docker Engine: one network and one container a node for each run.

Containers get only NET_ADMIN, in their own network namespace, and the capabilities that the system needs. The client
hosts' addresses are on the host's end of the run's bridge and vanish with it. Everything carries the run's labels, by
which ``cleanup`` finds the remains of a killed harness.
"""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar

import docker
from docker.errors import DockerException
from docker.types import Mount

from harness.backends import clock_machines, disk_machines, network
from harness.backends.base import brought_path, gather_all
from harness.backends.clock_machines import ClockBackend
from harness.backends.disk_control import can_share_mounts, mount_here
from harness.backends.disk_machines import DiskBackend
from harness.backends.disk_store import TAKE_NAME
from harness.backends.docker_leftovers import (
    _CLEANUP_LIMIT_S,
    LABEL_RUN,
    NOT_ALLOWED,
    leftover,
    owner_labels,
    reason_of,
    remove_container,
    remove_network,
    remove_run,
    remove_volume,
    volumes_of,
)
from harness.backends.docker_networks import bridge_name, container_name, create_network, network_name, volume_name
from harness.backends.image import ensure_image, has_image, image_tag, registry_answers
from harness.backends.launch import as_root, find_tool
from harness.backends.packets import PacketBackend
from harness.backends.scratch import make_scratch
from nodes.timeouts import within
from stormproof.contracts.backend import Capability
from stormproof.contracts.topology import Topology
from stormproof.contracts.topology import endpoint as topology_endpoint
from stormproof.errors import BackendError
from stormproof.process_owner import Leftover
from stormproof.resource_log import OwnFolder, note_made
from stormproof.test import Test

_NODE_DIR = "/stormproof"
_SHARED_DIR = "/stormproof-shared"
_BROUGHT_DIR = "/stormproof-brought"
_MEMORY = "1g"
_PROCESSES = 1024
_API_LIMIT_S = 60
_CONNECT_LIMIT_S = 30.0
_PROBE_LIMIT_S = 2.0
# As in the namespaces of `local`, init reaps the node's orphaned processes.
_INIT = 'trap "" CHLD; exec sleep infinity'
_HELPER = "addresses"
_ADD_ADDRESSES = ('PATH="$PATH:/usr/sbin:/sbin"; bridge=$1; shift; '
                  'for address; do ip address add "$address" dev "$bridge" || exit; done')

P = ParamSpec("P")
R = TypeVar("R")


def connect(timeout: float = _API_LIMIT_S) -> docker.DockerClient:
    """Connect to the daemon that DOCKER_HOST or the default socket names.

    Raises:
        BackendError: the daemon does not answer, or its containers cannot be reached from here.
    """
    try:
        client = docker.from_env(timeout=timeout)  # type: ignore[arg-type]
        info = client.info()
    except DockerException as error:
        raise BackendError(f"Docker doesn't answer: {reason_of(error)}; start it, or use --backend local") from None
    where = unreachable(info)
    if where:
        raise BackendError(f"{where}: its containers can't be reached from this machine; use --backend local")
    return client


def unreachable(info: dict[str, Any]) -> str | None:
    """Return the reason why this daemon's containers have unreachable addresses; None when they can be reached."""
    if "Docker Desktop" in str(info.get("OperatingSystem")):
        return "Docker Desktop runs containers in a virtual machine"
    if any("rootless" in option for option in info.get("SecurityOptions") or ()):
        return "Docker runs rootless, in a network of its own"
    return None


def capabilities() -> list[Capability]:
    """Return the capabilities of this machine's Docker."""
    try:
        client = connect(_PROBE_LIMIT_S)
    except BackendError as error:
        reason = str(error).partition("; ")[0]
        mend = ("run: sudo usermod -aG docker $USER, and log in again" if NOT_ALLOWED in reason
                else f"run: {as_root()}apt-get install docker.io, and start it")
        return [Capability("docker", False, reason, mend),
                Capability("docker image", False, "no Docker to build it with", "see docker")]
    try:
        version = client.version()
        daemon = Capability("docker", True, f"Docker {version['Version']} (API {version['ApiVersion']})")
        tag = image_tag()
        if has_image(client):
            return [daemon, Capability("docker image", True, f"image {tag} is there")]
        if find_tool("mmdebstrap"):
            return [daemon, Capability("docker image", True, "image can be built by mmdebstrap")]
        if registry_answers(client):
            return [daemon, Capability("docker image", True, "image can be built from the Dockerfile")]
        detail = f"image {tag} is missing, and Docker can't reach its registry"
        return [daemon, Capability("docker image", False, detail, f"run: {as_root()}apt-get install mmdebstrap")]
    except DockerException as error:
        return [Capability("docker", False, f"Docker failed: {' '.join(str(error).split())}", "restart it")]
    finally:
        client.close()


class DockerBackend(ClockBackend, DiskBackend, PacketBackend):
    """Nodes in containers of the local Docker daemon."""

    name = "docker"
    abilities: ClassVar[Mapping[str, str]] = {
        **PacketBackend.abilities, **disk_machines.ABILITIES, **clock_machines.ABILITIES}  # fmt: skip
    by_default = True

    def __init__(self) -> None:
        super().__init__()
        self._client: docker.DockerClient | None = None
        self._run = ""
        self._shared: tuple[str, ...] = ()
        self._folders: dict[str, str] = {}
        self._places: dict[str, int] = {}
        """The process id of each client host that is a container."""
        self._scratch: OwnFolder | None = None
        self._calls: set[asyncio.Future[Any]] = set()
        self._releasing = False
        self.image = ""
        self.image_origin = ""

    @staticmethod
    def requirements() -> list[Capability]:
        """Return the requirements: a daemon, and an image or a way to build it."""
        return capabilities()

    @staticmethod
    def lacks() -> dict[str, str]:
        """Return disks and power cuts as lacking where FUSE mounts are impossible or invisible to Docker's daemon."""
        return disk_machines.lacking(can_share_mounts())

    @staticmethod
    def leftovers() -> list[Leftover]:
        """Return the containers, then networks and volumes, of all runs; none where no Docker daemon answers."""
        try:
            client = docker.from_env(timeout=_CLEANUP_LIMIT_S)
            try:
                labelled = {"label": LABEL_RUN}
                containers = client.api.containers(all=True, filters=labelled)
                networks = client.api.networks(filters=labelled)
                volumes = volumes_of(client, labelled)
            finally:
                client.close()
        except DockerException:
            return []
        return [
            *(leftover(f"container {found['Names'][0].lstrip('/')}", found, remove_container) for found in containers),
            *(leftover(f"network {found['Name']}", found, remove_network) for found in networks),
            *(leftover(f"volume {found['Name']}", found, remove_volume) for found in volumes),
        ]

    @staticmethod
    def obstacle() -> str | None:
        """Return the reason why leftovers cannot be listed: Docker does not answer."""
        try:
            connect().close()
        except BackendError as error:
            return str(error)
        return None

    async def provision(self, test: Test, topology: Topology, run_dir: Path) -> None:
        """Create machines and client hosts and connect them; build the image if it is missing.

        Raises:
            BackendError: the daemon does not answer or refuses, or no image can be built.
        """
        self._run = run_dir.resolve().name
        labels = owner_labels(run_dir)
        places = topology.client_hosts if topology.client_places else ()
        if places and os.geteuid() != 0:
            raise BackendError("backend docker starts client programs in the networks of containers, which needs root; "
                               "run it as root, or use --backend local")
        for name in (container_name(self._run, machine) for machine in (*topology.machines, *places, _HELPER)):
            note_made(run_dir, "container", name)
        for number in range(1 + len(topology.networks)):
            note_made(run_dir, "network", network_name(self._run, number))
        for name in topology.shared:
            note_made(run_dir, "volume", volume_name(self._run, name))
        self._shared, self._folders = topology.shared, dict(topology.folders)
        if self.wants_disks(test):
            self._scratch = make_scratch(run_dir)
            await gather_all(self._mount_disk(test, machine) for machine in topology.machines)
        try:
            client = self._client = await self._call(connect)
            self.image, self.image_origin = await self._call(ensure_image, client, topology.packages)
            subnet = await self._call(create_network, client, self._run, labels, 0)
            self._addresses = network.address_plan(topology, subnet)
            for number, name in enumerate(topology.networks, 1):
                further = await self._call(create_network, client, self._run, labels, number)
                self._addresses |= network.further_plan(topology, name, further)
            for name in topology.shared:
                await self._call(client.api.create_volume, volume_name(self._run, name), labels=labels)
            await gather_all(
                self._call(self._create_machine, machine, topology, labels) for machine in topology.machines
            )
            if places:
                await gather_all(self._call(self._create_place, host, labels) for host in places)
            else:
                ours = [f"{self._addresses[host]}/{subnet.prefixlen}" for host in topology.client_hosts]
                await self._call(_add_addresses, client, self.image, self._run, labels, ours)
        except DockerException as error:
            raise BackendError(f"Docker refused: {reason_of(error)}") from None
        self._open_shells(topology.machines)
        # The daemon may still be busy with earlier requests.
        await gather_all(self.exec(node, f"mkdir -p {_NODE_DIR}", _API_LIMIT_S) for node in topology.machines)
        await gather_all(self._see_disk(node) for node in self._disks)
        await gather_all(self._see_folders(node) for node in topology.machines[:1])
        if self.wants_clocks(test):
            await self._give_clocks(topology.nodes)

    def node_dir(self, node: str) -> str:
        """Return the node's private folder, as seen on the node."""
        return _NODE_DIR

    def shared_dir(self, name: str) -> str:
        """Return the mount point of the volume."""
        return f"{_SHARED_DIR}/{name}" if name in self._shared else super().shared_dir(name)

    def brought(self, name: str) -> str:
        """Return the mount point of a folder of this machine, which containers can only read."""
        brought_path(self._folders, name)
        return f"{_BROUGHT_DIR}/{name}"

    def python(self, node: str) -> str:
        """Return the Python interpreter to run on the node: the image's."""
        return "python3"

    async def release(self) -> None:
        """Remove everything that ``provision`` created; safe to call twice or after a failed provision."""
        self._releasing = True
        await self._stop_clocks()
        await self._close_shells()
        # A cancelled provision's threads continue: their objects must exist before they can be removed.
        await asyncio.gather(*self._calls, return_exceptions=True)
        client, self._client = self._client, None
        self._addresses = {}
        try:
            if client is not None:
                await asyncio.to_thread(remove_run, client, self._run)
        except DockerException as error:
            raise BackendError(f"Docker can't remove run {self._run}: {reason_of(error)}; "
                               "run: stormproof heal") from None
        finally:
            if client is not None:
                client.close()
            await self._unmount()
            if self._scratch is not None:
                await asyncio.to_thread(self._scratch.remove)
                self._scratch = None

    async def _mount_disk(self, test: Test, machine: str) -> None:
        """Mount the disk on the host before the container is created.

        The container then needs no privilege, and its root no device.
        """
        point = self._mount_point(machine)
        point.mkdir(parents=True)
        seed = disk_machines.seed_of(test, machine)
        self._disks[machine] = await mount_here(machine, point, point.with_name("kept"), seed)

    def _disk_mounts(self, machine: str) -> list[Mount]:
        """Return the machine's disk that can fail, if it has one.

        A Mount is used because a bind would split the path at a colon.
        """
        if machine not in self._disks:
            return []
        return [Mount(self.data_dir(machine), str(self._mount_point(machine)), type="bind")]

    def _folder_mounts(self) -> list[Mount]:
        return [Mount(self.brought(name), path, type="bind", read_only=True) for name, path in self._folders.items()]

    def _mount_point(self, machine: str) -> Path:
        assert self._scratch is not None
        return self._scratch.path / machine / "data"

    async def _see_disk(self, machine: str) -> None:
        """Check that the container has the mounted disk.

        A daemon with a different view of the file system silently binds another folder.
        """
        found = await self.exec(machine, f"grep -c ' {self.data_dir(machine)} fuse' /proc/mounts")
        if found.output.strip() != "1":
            raise BackendError(f"{machine}: the container does not have the disk that was mounted for it: Docker's "
                               "daemon sees other folders than this process; run the harness where the daemon runs, "
                               "or leave out faults of disks and power")

    async def _see_folders(self, machine: str) -> None:
        """Check that the container has the files of the mounted folders."""
        for name in self._folders:
            found = await self.exec(machine, f"ls {self.brought(name)} | head -n 1")
            if found.status or not found.output.strip():
                raise BackendError(f"{machine}: the container does not have the folder {self._folders[name]}: Docker's "
                                   "daemon sees other folders than this process; run the harness where the daemon runs")

    async def _connect(self, node: str) -> _ExecChannel:
        assert self._client is not None
        opened = await self._call(_open_exec, self._client, container_name(self._run, node))
        reader, writer = await asyncio.open_connection(sock=opened._sock)
        channel = _ExecChannel(self, node, opened, reader, writer)
        try:
            async with within(_CONNECT_LIMIT_S):
                await channel.read_pid()
                await channel.write(f"{TAKE_NAME}\n".encode())
        except BaseException:
            writer.close()
            raise
        return channel

    def _create_machine(self, machine: str, topology: Topology, labels: dict[str, str]) -> None:
        assert self._client is not None
        api, name = self._client.api, container_name(self._run, machine)
        hosts = dict(self._addresses)
        main = network_name(self._run, 0)
        config = api.create_host_config(
            cap_drop=["ALL"], cap_add=["NET_ADMIN", *topology.capabilities], security_opt=["no-new-privileges"],
            mem_limit=_MEMORY, pids_limit=_PROCESSES, extra_hosts=hosts, network_mode=main,
            binds={volume_name(self._run, name): {"bind": self.shared_dir(name)} for name in topology.shared},
            mounts=self._disk_mounts(machine) + self._folder_mounts(),
        )
        endpoint: Any = {main: api.create_endpoint_config(ipv4_address=self._addresses[machine])}
        created = api.create_container(
            self.image, ["sh", "-c", _INIT], name=name, hostname=machine, user="0", labels=labels,
            host_config=config, networking_config=api.create_networking_config(endpoint),
        )
        for number, further in enumerate(topology.networks, 1):
            if machine in topology.on(further):
                address = self._addresses[topology_endpoint(machine, further)]
                api.connect_container_to_network(
                    created["Id"], network_name(self._run, number), ipv4_address=address
                )
        api.start(created["Id"])

    def enter_place(self, address: str) -> None:
        """Move the calling thread into the network of the client host with an address; without one, into the
        harness's."""
        found = next((host for host in self._places if address and self._addresses[host] == address), None)
        network.enter_network(os.getpid() if found is None else self._place_pid(found))

    def place_command(self, host: str) -> list[str]:
        """Return the words that precede a program's command so that it runs in a client host's network."""
        return ["nsenter", f"--net=/proc/{self._place_pid(host)}/ns/net", "--"] if host in self._places else []

    def _place_pid(self, host: str) -> int:
        return self._places[host]

    def _create_place(self, host: str, labels: dict[str, str]) -> None:
        """Start a container that only holds a client host's network."""
        assert self._client is not None
        api, main = self._client.api, network_name(self._run, 0)
        endpoint: Any = {main: api.create_endpoint_config(ipv4_address=self._addresses[host])}
        created = api.create_container(
            self.image, ["sh", "-c", _INIT], name=container_name(self._run, host), hostname=host, labels=labels,
            host_config=api.create_host_config(cap_drop=["ALL"], security_opt=["no-new-privileges"],
                                               network_mode=main),
            networking_config=api.create_networking_config(endpoint),
        )  # fmt: skip
        api.start(created["Id"])
        self._places[host] = int(api.inspect_container(created["Id"])["State"]["Pid"])

    async def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a blocking call of the SDK in a thread; if the caller is cancelled, ``release`` awaits the call."""
        call = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return await asyncio.shield(call)

    async def end_shell(self, node: str, pid: int) -> None:
        """Kill the process group of an exec's shell; the broker survives, because it leads a separate session."""
        if self._releasing or self._client is None:
            return  # The container is removed, too.
        await self._call(_kill_group, self._client, container_name(self._run, node), pid)


class _ExecChannel:
    """The hijacked connection of ``docker exec -i``; output arrives in frames of the Engine API."""

    def __init__(self, backend: DockerBackend, node: str, opened: Any,
                 reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._backend, self._node = backend, node
        self._opened = opened  # Its finalizer would close the connection.
        self._reader, self._writer = reader, writer
        self._pid: int | None = None

    async def read_pid(self) -> None:
        """Ask the new shell for its pid, and consume the line with the answer."""
        await self.write(b"\n")
        line = b""
        while not line.endswith(b"\n"):
            chunk = await self.read()
            if not chunk:
                raise BackendError(f"{self._node}: can't open a shell: {line.decode(errors='replace').strip()}")
            line += chunk
        if not line.strip().isdigit():
            raise BackendError(f"{self._node}: can't open a shell: {line.decode(errors='replace').strip()}")
        self._pid = int(line)

    async def read(self) -> bytes:
        try:
            while True:
                header = await self._reader.readexactly(8)
                (size,) = struct.unpack(">I", header[4:])
                if size:
                    return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError:
            return b""

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def destroy(self) -> None:
        self._writer.close()
        pid, self._pid = self._pid, None
        if pid is not None:
            await self._backend.end_shell(self._node, pid)


def _add_addresses(client: docker.DockerClient, image: str, run: str, labels: dict[str, str],
                   addresses: list[str]) -> None:
    """Put the client hosts' addresses on the host's end of the bridge; they vanish with it."""
    bridge = bridge_name(run)
    command = ["sh", "-c", _ADD_ADDRESSES, "sh", bridge, *addresses]
    if os.geteuid() == 0 and find_tool("ip") and Path("/sys/class/net", bridge).exists():
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_CONNECT_LIMIT_S)
        if done.returncode == 0:
            return
    # A user of Docker can let a container do it.
    api = client.api
    config = api.create_host_config(network_mode="host", cap_drop=["ALL"], cap_add=["NET_ADMIN"])
    helper = api.create_container(image, command, name=container_name(run, _HELPER), user="0",
                                  labels=labels, host_config=config)
    api.start(helper["Id"])
    status = api.wait(helper["Id"])["StatusCode"]
    output = api.logs(helper["Id"]).decode(errors="replace")
    api.remove_container(helper["Id"], force=True)
    if status != 0:
        raise BackendError(f"can't give the client hosts addresses on {bridge}: {' '.join(output.split())}")


def _open_exec(client: docker.DockerClient, container: str) -> Any:
    # One stream for output and errors keeps their order. The shell is silent until it receives a line: output that
    # arrives together with the answer's HTTP headers would be lost in the buffer of their reader.
    shell = ["sh", "-c", "read -r go; echo $$; exec sh 2>&1"]
    created = client.api.exec_create(container, shell, stdin=True, user="0", workdir="/")
    opened: Any = client.api.exec_start(created["Id"], socket=True)
    opened._sock.setblocking(False)
    return opened


def _kill_group(client: docker.DockerClient, container: str, group: int) -> None:
    created = client.api.exec_create(container, ["sh", "-c", f"kill -s KILL -- -{group}"], user="0")
    client.api.exec_start(created["Id"])


