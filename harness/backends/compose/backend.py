"""Nodes as containers of a user's Compose project. All faults come from outside the containers' namespaces.

A container needs neither a shell nor a tool nor a capability: cuts are at the bridges of its networks, packets are held
in its network by a program of this machine, kills and pauses come from this machine's kernel, and a disk that can fail
replaces a volume. This requires root.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import docker
import yaml
from docker.errors import DockerException

from harness.backends import clock_machines, disk_machines, packet_queue
from harness.backends.base import CALL_LIMIT, gather_all
from harness.backends.clock_machines import has_library
from harness.backends.compose import settings
from harness.backends.compose.adapt import Adapted, adapt, scale_of
from harness.backends.compose.bridge_filter import BridgeFilter, Ports, leftover_tables, table_of
from harness.backends.compose.clocks import ComposeClocks
from harness.backends.compose.command import Project, compose_command, variables_in
from harness.backends.compose.containers import LABEL_PROJECT, Containers, addresses_in, interface_names, to_its_end
from harness.backends.compose.places import Place, ensure_place_image, in_network, peers, start_place
from harness.backends.compose.ports import EventWatch, probe_addresses
from harness.backends.compose.user_commands import ComposeCommands
from harness.backends.disk_control import can_share_mounts
from harness.backends.disk_machines import DiskBackend
from harness.backends.docker import connect
from harness.backends.docker_leftovers import owner_labels, reason_of, remove_run
from harness.backends.docker_networks import bridge_name, container_name
from harness.backends.launch import find_tool
from harness.backends.local import PipeChannel
from harness.backends.packets import PacketBackend
from harness.backends.scratch import make_scratch
from stormproof.contracts.backend import (
    CLOCKS,
    DISKS,
    HOST_ROOT,
    KILL,
    LINKS,
    PACKETS,
    PAUSE,
    POWER,
    Capability,
    CommandResult,
    Link,
    LinkConditions,
    ProcessState,
    Usage,
)
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Access
from stormproof.contracts.topology import Topology
from stormproof.errors import BackendError, UsageError
from stormproof.process_owner import Leftover
from stormproof.resource_log import note_made
from stormproof.run_folder import COMPOSE_OVERRIDE, update_run
from stormproof.test import Test

CONTROL = "control"
"""The place from which the harness itself asks the brokers; no fault reaches it."""
_RELEASE_SECONDS = 60.0
"""The time limit for Docker's engine to list or remove things."""
_PORT_SECONDS = 5.0


class ComposeBackend(ComposeClocks, ComposeCommands, PacketBackend):
    """The services of a Compose project as nodes."""

    name = "compose"
    also_type = " --compose FILE"
    root_folder = HOST_ROOT
    abilities: ClassVar[Mapping[str, str]] = {
        LINKS: "frames of each cut link dropped at the bridges of all networks, with counters; kept while a container "
               "restarts",
        PAUSE: "all processes of the container frozen by its control group",
        KILL: "SIGKILL to the container's first process from outside",
        PACKETS: PacketBackend.abilities[PACKETS],
        DISKS: "a FUSE file system of our own in place of the service's volumes",
        CLOCKS: "libfaketime in the replicas' programs; counted only where the broker itself tells a time that moved",
        POWER: "SIGKILL to the container, and the file system in place of its volumes forgets what was not synced",
    }  # fmt: skip
    options: ClassVar[tuple[Option, ...]] = (*DiskBackend.options, *settings.OPTIONS)

    def __init__(self) -> None:
        super().__init__()
        self._run = ""
        self._run_dir = Path()
        self._project: Project | None = None
        self._places: dict[str, Place] = {}
        self._place_addresses: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._bridge_filter: BridgeFilter | None = None
        self._bridges: tuple[str, ...] = ()
        self._cut: frozenset[Link] = frozenset()
        self._ports = Ports()
        self._births: dict[str, str] = {}
        self._watch: EventWatch | None = None
        self._scales: list[str] = []
        self._port = 0

    @staticmethod
    def requirements() -> list[Capability]:
        """Return the requirements: root, a Docker daemon, Compose, and the tools for faults."""
        found = [Capability("root", os.geteuid() == 0, "root" if os.geteuid() == 0 else "faults of a Compose project "
                            "come from outside its containers and need root", "run it with sudo")]  # fmt: skip
        for tool, package in (("nft", "nftables"), ("nsenter", "util-linux")):
            found.append(Capability(tool, find_tool(tool) is not None, f"{tool}" if find_tool(tool) else
                                    f"{tool} not found", f"run: apt-get install {package}"))  # fmt: skip
        try:
            connect(2.0).close()
            found.append(Capability("docker", True, f"Docker, {' '.join(compose_command())}"))
        except BackendError as error:
            text, _, mend = str(error).partition("; ")
            found.append(Capability("docker", False, text, mend.removesuffix(", or use --backend local")))
        return found

    @staticmethod
    def lacks() -> Mapping[str, str]:
        """Return disks and power cuts as lacking where FUSE mounts are impossible or invisible to Docker's daemon."""
        return disk_machines.lacking(can_share_mounts()) | clock_machines.lacking(has_library())

    @staticmethod
    def prepare_settings(given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with absolute paths and the names of all replicas."""
        found = dict(given)
        for option in (settings.FILES, settings.ENV_FILE):
            if paths := settings.words(found.get(option.name)):
                found[option.name] = ",".join(str(Path(path).resolve()) for path in paths)
        composition = settings.composition_of(found)
        replicas = settings.replicas_of(composition, settings.replicas_named(composition, found))
        found[settings.REPLICAS.name] = ",".join(replicas)
        others = (machine.name for machine in composition.machines if machine.name not in replicas)
        found[settings.HELPERS.name] = ",".join(others)
        found[settings.COMMANDS.name] = ",".join(composition.declared.hooks)
        return found

    @staticmethod
    def leftovers() -> Sequence[Leftover]:
        """Return the rules of all runs' cuts. The backend `docker` finds all objects with labels, because both backends
        use the same labels."""
        return leftover_tables()

    async def provision(self, test: Test, topology: Topology, run_dir: Path) -> None:
        """Create the project's networks, volumes and containers, and the client places; nothing is started yet.

        Raises:
            BackendError: Docker or Compose refused. UsageError: the file can't be tested.
        """
        self._run, self._run_dir = run_dir.resolve().name, run_dir
        self._composition = composition = await asyncio.to_thread(settings.composition_of, test.options)
        config, self._port = composition.config, int(test.options[settings.PORT.name])
        self._client = client = await asyncio.to_thread(connect)
        if self.wants_disks(test) or self.wants_clocks(test):
            self._scratch = make_scratch(run_dir)
        if self.wants_disks(test):
            await self._make_disks(test, composition)
        if self.wants_clocks(test):
            assert self._scratch is not None
            if any(scale_of(config["services"][composition.machine(node).service]) != 1 for node in test.node_names):
                raise UsageError("--nemesis clock: write one service for each replica; the containers of one service "
                                 "have one clock")
            self._make_clocks(self._scratch.path, test.node_names)
        networks = sorted({"default", *(config.get("networks") or {})})
        bridges = {name: bridge_name(self._run, number) for number, name in enumerate(networks)}
        mounts = {composition.machine(machine).service: self._mounts_of(machine) for machine in self._disks}
        self._labels = labels = owner_labels(run_dir)
        clocks = {composition.machine(node).service: found for node in test.node_names
                  if (found := self._clock_settings(node)) is not None}  # fmt: skip
        sdk = self._prepare_commands(test, composition, run_dir)
        adapted = adapt(config, labels, bridges, mounts, clocks=clocks, sdk=sdk, folder=composition.folder,
                        places=len(topology.client_hosts) + 1)  # fmt: skip
        self._tell(adapted)
        project = bridge_name(self._run).replace("sp-", "stormproof-")
        self._project = Project(project, composition.folder, adapted.config)
        for machine in composition.machines:
            note_made(run_dir, "container", f"{project} {machine.name}")
        if any(service.get("build") for service in config["services"].values()):
            await self._project.call("build", "--force-rm")
        for name, service in config["services"].items():
            if (count := scale_of(service)) != 1:
                self._scales += ["--scale", f"{name}={count}"]
        await self._project.call("up", "--no-start", *self._scales)
        jobs = [each.name for each in composition.machines if each.name not in topology.nodes]
        self._containers = Containers(client, project, composition.machines, jobs)
        await self._containers.find()
        update_run(run_dir, images=await self._containers.images())
        await gather_all(self._fill_disk(machine) for machine in self._disks)
        self._bridges = tuple(bridges[name] for name in adapted.config["networks"])
        self._bridge_filter = BridgeFilter(table_of(self._run))
        await self._make_places(client, project, [*topology.client_hosts, CONTROL], labels)
        self._watch = EventWatch(self._run, self._changed)
        self._watch.start()
        self._open_shells(topology.machines)

    async def up(self) -> None:
        """Start the project's containers in the order of its dependencies; wait for those that others depend on."""
        assert self._project is not None
        await self._project.call("up", "-d", "--no-recreate", *self._scales)
        await self._refresh()

    def address(self, name: str) -> str:
        """Return an IP address of a machine or a client place now."""
        found = self._place_addresses.get(name)
        if found is None:
            return super().address(name)
        return (*found[0], *found[1])[0]

    def enter_place(self, address: str) -> None:
        """Move the calling thread for good into the client place with an address; without one, into the harness's."""
        found = (name for name, each in self._place_addresses.items() if address in (*each[0], *each[1]))
        self._places[next(found, CONTROL)].enter()

    def place_command(self, host: str) -> list[str]:
        """Return the words that start a program in a client place's network."""
        return self._places[host].command()

    def host_name(self, machine: str) -> str:
        """Return the name under which clients in the project's networks find a machine."""
        assert self._composition is not None and self._containers is not None
        found = self._composition.machine(machine)
        alone = scale_of(self._composition.config["services"][found.service]) == 1
        return found.service if alone else self._containers.ident(machine)[:12]

    def restarts(self, machine: str) -> bool:
        """Return whether Docker starts a container again after a crash (``restart:``)."""
        service = self.composition.config["services"][self.composition.machine(machine).service]
        deployed = (service.get("deploy") or {}).get("restart_policy") or {}
        policy = str(service.get("restart") or deployed.get("condition"))
        return policy.partition(":")[0] in ("always", "unless-stopped", "on-failure", "any")

    async def health(self, machine: str) -> str:
        """Return the result of a container's health check; empty if it has none."""
        state = (await self.containers.inspect(machine))["State"]
        if not state["Running"]:
            return "down" if state.get("Health") else ""
        return str((state.get("Health") or {}).get("Status") or "")

    async def exit_status(self, machine: str) -> int | None:
        """Return the status with which a container has ended; None while it runs."""
        return await self.containers.exit_status(machine)

    def access(self) -> tuple[int, Access]:
        """Return the replicas' port, and the access that the file declares."""
        return self._port or self.composition.declared.port, self.composition.declared.access

    def has_hook(self, name: str) -> bool:
        """Return whether the file declares a command."""
        return name in self.composition.declared.hooks

    async def run_hook(self, name: str, environment: Mapping[str, str], timeout: float) -> str:
        """Run a command that the file declares, in its service's container; return its output.

        Raises:
            BackendError: it failed.
        """
        hook = self.composition.declared.hooks[name]
        machines = [each.name for each in self.composition.machines if hook.service in (each.service, each.name)]
        if not machines:
            raise BackendError(f"{settings.KEY}: {name}: the project has no service {hook.service!r}")
        done = await self.containers.run(machines[0], hook.command, timeout, environment=environment)
        if done.status:
            raise BackendError(f"{settings.KEY}: {name}: its command failed in {machines[0]} (status {done.status}): "
                               f"{' '.join(done.output.split())[-300:]}")
        return done.output

    async def log(self, machine: str) -> bytes:
        """Return a container's output."""
        return await self.containers.log(machine)

    def node_dir(self, node: str) -> str:
        """Return the root folder of a container."""
        return "/"

    def python(self, node: str) -> str:
        """Return the interpreter for programs in a container's network: this machine's, since they run here."""
        return sys.executable

    async def exec(self, node: str, command: str, timeout: float = CALL_LIMIT) -> CommandResult:
        """Run a command in a container."""
        return await self.containers.run(node, command, timeout)

    async def upload(self, node: str, content: bytes, path: str) -> None:
        """Write a file in a container."""
        await self.containers.write(node, content, path)

    async def download(self, node: str, path: str) -> bytes:
        """Read a file of a container."""
        return await self.containers.read(node, path)

    async def stop(self, node: str, program: str, timeout: float = 5.0) -> str:
        """Stop a container; return the signal that ended it."""
        return await self.containers.stop(node, timeout)

    async def kill(self, node: str, program: str) -> None:
        """End a container as a crash does."""
        await self.containers.kill(node)
        await self._killed(node)

    async def pause(self, node: str, program: str) -> None:
        """Freeze a container."""
        await self.containers.pause(node)

    async def resume(self, node: str, program: str) -> None:
        """Let a frozen container continue."""
        await self.containers.resume(node)

    async def process(self, node: str, program: str) -> ProcessState:
        """Return the state of a container's first process."""
        return await self.containers.state(node)

    async def start_machine(self, node: str) -> None:
        """Start a container that is down."""
        if node in self._dark:
            raise BackendError(f"{node}: it has no power")
        await self.containers.start(node)
        await self._refresh()

    async def set_network(self, cut: frozenset[Link]) -> None:
        """Cut exactly these links at the bridges, on all networks; idempotent."""
        async with self._network_lock:
            self._cut = cut
            self._ports = await self._present_ports()
            await self._apply_cut()

    async def dropped(self) -> Mapping[Link, int]:
        """Return the packets dropped so far on each link that is cut now."""
        assert self._bridge_filter is not None
        async with self._network_lock:
            return await asyncio.to_thread(self._bridge_filter.counts)

    async def probe(self, link: Link, timeout: float) -> str:
        """Test, in the network of one end, whether any address of the other end answers, on any network."""
        source, target = link
        pid = self._places[source].pid if source in self._places else (await self.containers.state(source)).pid
        found = self._place_addresses.get(target) or await self.containers.addresses(target)
        if pid is None:
            return "unknown"
        tried = partial(probe_addresses, (*found[0], *found[1]), timeout)
        return await asyncio.to_thread(in_network, pid, tried, timeout + CALL_LIMIT) or "unknown"

    async def set_conditions(self, conditions: Mapping[Link, LinkConditions]) -> None:
        """Degrade exactly these links (IPv4)."""
        await self._refresh()
        await super().set_conditions(conditions)

    async def usage(self, node: str, interval: float) -> AsyncGenerator[Usage, None]:
        """Yield the container's use of resources, as Docker counts it; nothing while it is down."""
        began: Mapping[str, Any] | None = None
        while True:
            with contextlib.suppress(KeyError, TypeError):  # a container that is down has no figures
                sample, began = await self.containers.usage(node, began)
                yield sample
            await asyncio.sleep(interval)

    async def release(self) -> None:
        """Remove everything that ``provision`` created; safe to call twice or after a failed provision."""
        if self._watch is not None:
            self._watch.stop()
        with contextlib.suppress(BackendError):
            await self._stop_clocks()
            await self._close_shells()
        if self._bridge_filter is not None:
            await asyncio.to_thread(self._bridge_filter.remove)
        client, self._client = self._client, None
        try:
            removed = ["all that there is"] if client is not None else []
            while client is not None and removed:  # the engine may still have been creating when Compose was ended
                removed = await asyncio.to_thread(remove_run, client, self._run)
        except DockerException as error:
            raise BackendError(f"Docker can't remove run {self._run}: {reason_of(error)}; "
                               "run: stormproof heal") from None
        finally:
            if client is not None:
                client.close()
            self._drop_commands()
            await self._unmount()
            if self._scratch is not None:
                await asyncio.to_thread(self._scratch.remove)
                self._scratch = None

    def _tell(self, adapted: Adapted) -> None:
        """Write the additions to the project into the run's folder."""
        lines = [f"# {note}\n" for note in adapted.notes]
        shown = "".join(lines) + yaml.safe_dump(adapted.override, sort_keys=False)
        (self._run_dir / COMPOSE_OVERRIDE).write_text(shown)
        read = variables_in(self.composition.files)
        update_run(self._run_dir, compose=adapted.notes,
                   environment={name: name in os.environ for name in read})  # names, never values

    async def _make_places(self, client: docker.DockerClient, project: str, names: Sequence[str],
                           labels: Mapping[str, str]) -> None:
        await asyncio.to_thread(ensure_place_image, client)
        ours = {"label": f"{LABEL_PROJECT}={project}"}
        found = await self.containers.call(client.api.networks, filters=ours)
        networks = sorted(each["Name"] for each in found)
        for name in names:
            note_made(self._run_dir, "container", container_name(self._run, name))
        call = self.containers.call
        made = await gather_all(
            to_its_end(call(start_place, client, container_name(self._run, name), name, networks, labels))
            for name in names)
        for name, attributes in zip(names, made, strict=True):
            self._places[name] = Place(int(attributes["State"]["Pid"]), attributes["ResolvConfPath"],
                                       attributes["HostsPath"])  # fmt: skip
            self._place_addresses[name] = addresses_in(attributes)

    async def _refresh(self) -> None:
        """Bring addresses, ports, cuts and conditions up to date with the containers that run now."""
        async with self._network_lock:
            self._ports = await self._present_ports()
            if self._cut:
                await self._apply_cut()
        for machine in self.composition.machines:
            state, found = await self.containers.state(machine.name), await self.containers.addresses(machine.name)
            if found[0] or found[1]:
                self._addresses[machine.name] = (*found[0], *found[1])[0]
            born = self._births.get(machine.name)
            if state.pid is not None and born not in (None, state.born):
                await self._forget_packets(machine.name)
                await self._reopen(machine.name)
                if self._conditions:
                    async with self._packet_lock:
                        await self._suffer(machine.name)
            if state.pid is not None:
                self._births[machine.name] = state.born

    async def _changed(self) -> None:
        """Refresh after an event; a container may have ended again meanwhile, which is the next event."""
        with contextlib.suppress(BackendError):
            await self._refresh()

    async def _apply_cut(self) -> None:
        assert self._bridge_filter is not None
        await asyncio.to_thread(self._bridge_filter.set, self._cut, self._ports, self._bridges)

    async def _present_ports(self) -> Ports:
        async def of(name: str) -> frozenset[str]:
            pid = self._places[name].pid if name in self._places else (await self.containers.state(name)).pid
            indexes = None if pid is None else await asyncio.to_thread(in_network, pid, peers, _PORT_SECONDS)
            return interface_names(indexes or ())

        names = [*(machine.name for machine in self.composition.machines), *self._places]
        return Ports(dict(zip(names, await gather_all(of(name) for name in names), strict=True)))

    async def open_shell(self, node: str) -> PipeChannel:
        """Open a shell in a container, which needs to have one, for a person."""
        return await PipeChannel.open(["nsenter", "--target", str(await self._pid_of(node)), "--all"])

    async def _connect(self, node: str) -> PipeChannel:
        """Open a shell of this machine in a container's network."""
        return await PipeChannel.open(["nsenter", f"--net=/proc/{await self._pid_of(node)}/ns/net"])

    async def _pid_of(self, node: str) -> int:
        pid = (await self.containers.state(node)).pid
        if pid is None:
            raise BackendError(f"{node}: its container does not run")
        return pid

    async def _reopen(self, node: str) -> None:
        """Let the next command on a machine enter its new network."""
        for shells in (self._work, self._control):
            if node in shells:
                await shells[node].close()
        self._open_shells([node])

    async def _install_program(self, node: str) -> None:
        """Do nothing: the program runs on this machine."""

    def _program_path(self, node: str) -> str:
        return packet_queue.__file__

    def _all_addresses(self, name: str) -> tuple[str, ...]:
        if name in self._place_addresses:
            return self._place_addresses[name][0]
        return (self._addresses[name],)

    async def _suffer(self, node: str) -> None:
        """Degrade a container's links, unless it is down: it gets them when it starts."""
        if (await self.containers.state(node)).pid is not None:
            await super()._suffer(node)

    async def _affected(self, node: str) -> dict[Link, int]:
        return await super()._affected(node) if (await self.containers.state(node)).pid is not None else {}

    async def _netem_does(self, conditions: Mapping[Link, LinkConditions]) -> bool:
        """Return False: a container may have several devices."""
        return False
