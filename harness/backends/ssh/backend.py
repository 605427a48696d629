"""Nodes on hosts that are reached over SSH: virtual machines, a lab's computers, anything with sshd and Python.

The harness does not create the hosts. It touches only those that are marked as breakable (``facts.MARKER``), notes in
the run's folder what it will put there before doing so, and removes everything at the end.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from harness.backends import disk_machines, network
from harness.backends.base import brought_path, gather_all
from harness.backends.clock_machines import ClockBackend
from harness.backends.disk_control import ChannelStream, FuseDisk
from harness.backends.disk_machines import DiskBackend
from harness.backends.packets import PACKET_ABILITIES, PacketBackend
from harness.backends.shell import ShellChannel
from harness.backends.ssh import clients, clock, machines
from harness.backends.ssh.clients import ClientAddresses
from harness.backends.ssh.connection import CONNECT_LIMIT, ShellProcess, in_thread, open_root_shell
from harness.backends.ssh.facts import (
    FACTS_SCRIPT,
    STATE,
    HostFacts,
    cluster_addresses,
    demand_marker,
    demand_tools,
    own_machine,
    parse_facts,
)
from harness.backends.ssh.folders import copy_folders, copy_path
from harness.backends.ssh.hosts import SshHost, absolute, default_known_hosts, read_hosts
from harness.backends.ssh.power import HELP, POWER_LIMIT, PowerSwitch, parse_power
from harness.backends.ssh.remote import BOOT_POLL, CLEAN_LIMIT, Remote, await_host, clean_script, take_script
from nemesis.families import abilities_needed
from stormproof.contracts.backend import (
    DEAD,
    DISKS,
    HOST_ROOT,
    LINKS,
    PACKETS,
    Capability,
    DiskUse,
    Link,
    LinkConditions,
    ProcessState,
    Usage,
)
from stormproof.contracts.option import Option
from stormproof.contracts.topology import Topology
from stormproof.errors import BackendError, UsageError
from stormproof.run_folder import REMOTE_FILE
from stormproof.test import Test, named_kinds

OPTIONS = (
    Option("ssh_config", "", "OpenSSH configuration that names the hosts, as `vagrant ssh-config` prints it"),
    Option("hosts", "", "list of hosts: NAME USER@ADDRESS[:PORT] [key=PATH] [network=IP] a line"),
    Option("known_hosts", "", "file of the hosts' keys  [~/.config/stormproof/known_hosts]"),
    Option("network", "", "network (ADDRESS/LENGTH) of the nodes' traffic, where the hosts share several"),
    Option("power", "", HELP),
    Option("client_addresses", "", "this machine's addresses for clients, joined by commas, where none can be added"),
)


class SshBackend(ClockBackend, DiskBackend, PacketBackend):
    """Nodes on the first hosts that a file names."""

    name = "ssh"
    root_folder = HOST_ROOT
    silence = 1.0
    options: ClassVar[tuple[Option, ...]] = (*OPTIONS, *DiskBackend.options)
    abilities: ClassVar[Mapping[str, str]] = {**PACKET_ABILITIES, **machines.ABILITIES}
    lateness = None
    also_type = " --hosts FILE"
    installs = ", or here: stormproof prepare --system NAME"

    def __init__(self) -> None:
        super().__init__()
        self._remote: Remote | None = None
        self._folders: dict[str, str] = {}
        self._run_dir = Path()
        self._facts: dict[str, HostFacts] = {}
        self._pythons: dict[str, str] = {}
        self._orphans: dict[str, list[ShellProcess]] = {}
        self._sources: dict[str, str] = {}
        self._power: PowerSwitch | None = None
        self._down: set[str] = set()
        self._cut: frozenset[Link] = frozenset()
        self._clocks: dict[str, tuple[float, float]] = {}

    @staticmethod
    def requirements() -> list[Capability]:
        """Return a single capability: hosts are examined only when they are used."""
        return [Capability("ssh", True, "hosts that are named, reached over SSH")]

    @staticmethod
    def prepare_settings(given: Mapping[str, Any]) -> dict[str, Any]:
        """Make the files' paths absolute, and check the files, to report mistakes before anything is created."""
        settings = absolute(given)
        read_hosts(settings)
        return settings

    @staticmethod
    def cannot(test: Test, topology: Topology) -> str:
        """Return why the test is impossible.

        Hosts have one network and no shared folder, and their failing disks vanish at a boot.
        """
        if topology.networks:
            return (f"hosts over SSH have one network for a test, but {test.system} wants further ones: "
                    f"{', '.join(topology.networks)}; choose another --backend")
        if topology.shared:
            return (f"hosts over SSH have no folders in common that we know of, but {test.system} wants some: "
                    f"{', '.join(topology.shared)}; choose another --backend")
        if topology.addresses:
            return (f"{test.system} wants an address that moves from host to host "
                    f"({', '.join(topology.addresses)}), and nobody here knows which are free on the hosts' "
                    "network; name one in the system's settings")
        return machines.contradiction(_needed(test))

    async def provision(self, test: Test, topology: Topology, run_dir: Path) -> None:
        """Connect to the hosts, check them, create their folders and add the clients' addresses.

        The check is whether each host may and can be a node.

        Raises:
            UsageError: the files with the hosts are wrong, or name too few.
            BackendError: a host cannot be reached, must not be broken, or lacks something.
        """
        if why := self.cannot(test, topology):
            raise UsageError(why)
        hosts = self._hosts(test, topology)
        if len(hosts) < len(topology.machines):
            raise UsageError(f"{len(topology.machines)} machines need as many hosts, but there are {len(hosts)}: "
                             f"{', '.join(host.name for host in hosts)}")
        self._run_dir = run_dir
        known_hosts = str(test.options.get("known_hosts") or default_known_hosts())
        power = str(test.options.get("power") or "")
        self._power = parse_power(power)
        nodes = dict(zip(topology.machines, hosts, strict=False))
        self._remote = Remote(run_dir.resolve().name, known_hosts, nodes, power=power)
        self._open_shells(topology.machines)
        await self._examine(test, topology)
        await self._demand_packages(topology, topology.machines)
        await copy_folders(self, topology.machines, topology.folders)
        self._folders = dict(topology.folders)
        await self._place_clients(test, topology)
        await gather_all(self._demand(node, take_script(self._noted(), node)) for node in topology.machines)
        if self.wants_disks(test):
            await gather_all(self._mount_disk(test, node) for node in topology.machines)
        if self.wants_clocks(test):
            await self._give_clocks([node for node in topology.nodes if self._shares_clock(node)])

    def _hosts(self, test: Test, topology: Topology) -> Sequence[SshHost]:
        """Return the hosts, in the order of the machines."""
        return read_hosts(test.options)

    async def _mount_disk(self, test: Test, node: str) -> None:
        """Mount the disk by a program that depends on its session's input."""
        folder = f"{self.node_dir(node)}/disk"
        for path in disk_machines.program_files():
            await self.upload(node, path.read_bytes(), f"{folder}/{path.name}")
        await self._demand(node, f"mkdir -p {shlex.quote(self.data_dir(node))}")
        program = [self._pythons[node], f"{folder}/{disk_machines.PROGRAM}", self.data_dir(node), f"{folder}/kept",
                   disk_machines.seed_of(test, node)]  # fmt: skip
        stream = await ChannelStream.start(await self._connect(node), shlex.join(program))
        disk = FuseDisk(self._noted().nodes[node].label, stream)
        await disk.await_ready()
        self._disks[node] = disk

    def wants_disks(self, test: Test) -> bool:
        """Return whether the test needs failing disks.

        Power cuts need none: the machine's provider cuts the power, and the machine's real disk loses its unsynced
        data.
        """
        return DISKS in _needed(test)

    def node_dir(self, node: str) -> str:
        """Return the node's private folder, as seen on the node."""
        return self._noted().node_dir(node)

    def _place(self, machine: str) -> str:
        return self._noted().nodes[machine].label

    def code_dir(self, node: str) -> str:
        """Return the folder in which broker code is kept for later runs."""
        return f"{STATE}/code"

    def brought(self, name: str) -> str:
        """Return the path of the copy of a folder of this machine; it stays for later runs."""
        return copy_path(name, brought_path(self._folders, name))

    def python(self, node: str) -> str:
        """Return the Python interpreter to run on the node: the host's newest."""
        return self._pythons[node]

    async def set_network(self, cut: frozenset[Link]) -> None:
        """Make exactly these links drop every packet and all others pass; idempotent.

        Raises:
            BackendError: a link to a client host is to be cut, but clients have no separate addresses.
        """
        self._spare_control(cut)
        self._cut = cut
        await super().set_network(cut)

    async def set_conditions(self, conditions: Mapping[Link, LinkConditions]) -> None:
        """Degrade exactly these links, and no others; idempotent.

        Raises:
            BackendError: as for ``set_network``, or a node fails.
        """
        self._spare_control(conditions)
        await super().set_conditions(conditions)

    async def process(self, node: str, program: str) -> ProcessState:
        """Return a program's state; ``dead`` on a machine without power."""
        return ProcessState(DEAD) if node in self._down else await super().process(node, program)

    async def probe(self, link: Link, timeout: float) -> str:
        """Test whether a packet passes and is answered; ``unknown`` from a machine without power."""
        return "unknown" if link[0] in self._down else await super().probe(link, timeout)

    def usage(self, node: str, interval: float) -> AsyncGenerator[Usage, None]:
        """Yield the resource usage of a node; raises BackendError for a machine without power."""
        if node in self._down:
            raise BackendError(f"{node}: it has no power, or is booting")
        return super().usage(node, interval)

    def _wire_devices(self, node: str) -> Sequence[str]:
        return (self._facts[node].devices[self._addresses[node]],)

    async def disk_use(self, node: str) -> DiskUse:
        """Count the system's files on the disk that can fail.

        Without such a disk, a power cut hits the whole host, and every folder to which the programs write counts.
        """
        if node in self._disks:
            return await super().disk_use(node)
        return DiskUse(len(await self._written(node)))

    async def power_off(self, nodes: Sequence[str]) -> None:
        """Cut the power of these machines at the same moment.

        Raises:
            BackendError: no provider is named, it fails, or a machine still answers.
        """
        hosts = [self._noted().nodes[node] for node in nodes]
        self._down |= set(nodes)
        await machines.switch(self._provider(), hosts, on=False)
        await gather_all(self._forget(node) for node in nodes)
        for host in hosts:
            if await machines.has_power(host):
                raise BackendError(f"{host.label} still answers after its power was cut")

    async def power_on(self, nodes: Sequence[str]) -> None:
        """Restore these machines' power, wait until they are usable, and restore their faults."""
        hosts = [self._noted().nodes[node] for node in nodes]
        off = [host for host, powered in zip(hosts, await gather_all(map(machines.has_power, hosts)), strict=True)
               if not powered]  # Some may have kept their power, when the provider failed.
        await machines.switch(self._provider(), off, on=True)
        await gather_all(self._await_back(node, "") for node in nodes)

    async def reboot(self, node: str) -> None:
        """Restart the machine in order and wait until it is usable.

        Raises:
            BackendError: the host is not a separate machine, or does not return.
        """
        self._demand_own_machine(node, "machine can't be restarted")
        before = await self.boot(node)
        await self._demand(node, "(sleep 0.3; systemctl reboot || reboot) >/dev/null 2>&1 </dev/null &")
        self._down.add(node)
        await self._forget(node)
        await self._await_back(node, before)

    async def boot(self, node: str) -> str:
        """Return the machine's boot id."""
        return (await self._demand(node, "cat /proc/sys/kernel/random/boot_id")).strip()

    async def clock(self, node: str) -> float:
        """Return the node's time of day, in seconds since 1970.

        For a machine without power it returns this machine's time, which proves nothing about the node.
        """
        if node in self._down:
            return time.time()
        if node in self._clock_library:
            return await super().clock(node)
        return float(await self._demand(node, "date +%s.%N"))

    async def set_clock(self, node: str, offset: float, rate: float) -> None:
        """Make the machine's clock ``offset`` seconds wrong from now on, running ``rate`` times as fast as right.

        Raises:
            BackendError: the host shares its clock with others, or the rate exceeds what the kernel's tick allows.
        """
        if node in self._clock_library:
            return await super().set_clock(node, offset, rate)
        self._demand_own_machine(node, "clock can't be set")
        if not abs(rate - 1) <= clock.MOST_SKEW:
            raise BackendError(f"{node}: a clock can't run {rate:g} times as fast, only {1 - clock.MOST_SKEW:g} to "
                               f"{1 + clock.MOST_SKEW:g}")
        self._clocks[node] = (offset, rate)
        if node not in self._down:
            await self._demand(node, clock.set_script(self._pythons[node], offset, rate))

    def _spare_control(self, links: Iterable[Link]) -> None:
        """Raise BackendError when a fault of these links would hit the harness's own connections."""
        hit = {self._addresses[end] for link in links for end in link if end in self._addresses}
        for node, source in self._sources.items():
            if source in hit:
                raise BackendError(f"{source} is where {node} is controlled from, which is never cut; use "
                                   "--set clients=outside")

    def _shares_clock(self, node: str) -> bool:
        """Return whether the host shares its clock, which then cannot be set."""
        return bool(own_machine(self._facts[node], [each for other, each in self._facts.items() if other != node]))

    def _demand_own_machine(self, node: str, failure: str) -> None:
        why = own_machine(self._facts[node], [each for other, each in self._facts.items() if other != node])
        if why:
            raise BackendError(f"{self._noted().nodes[node].label}: its {failure}: {why}")

    def _provider(self) -> PowerSwitch:
        if self._power is None:
            raise BackendError(f"no way to cut power is configured; give --set power=...: {HELP}")
        return self._power

    async def _device(self, node: str) -> str:
        return self._facts[node].devices[self._addresses[node]]

    async def _kernel(self, node: str) -> frozenset[str]:
        facts = self._facts[node]
        return frozenset(name for name, there in (("netem", facts.netem), ("ifb", facts.ifb)) if there)

    async def _suffer(self, node: str) -> None:
        if node not in self._down:  # A node that is down gets its conditions when it is back.
            await super()._suffer(node)

    async def _filter(self, node: str, rules: network.Filter) -> None:
        if node in self._down:
            self._rules.pop(node, None)  # It gets them when it is back.
        else:
            await super()._filter(node, rules)

    async def _forget(self, node: str) -> None:
        """Drop the state of an earlier boot."""
        self._rules.pop(node, None)
        await self._forget_packets(node)
        self._orphans.pop(node, None)
        await gather_all((self._work[node].close(), self._control[node].close()))

    async def _await_back(self, node: str, before: str) -> None:
        """Wait for another boot than ``before``; then restore the faults of network and clock."""
        host, known_hosts = self._noted().nodes[node], Path(self._noted().known_hosts)
        deadline = time.monotonic() + POWER_LIMIT
        while True:
            await in_thread(lambda _: None, await_host, host, known_hosts)
            try:
                if await self.boot(node) != before:
                    break
            except BackendError:
                pass  # It was still shutting down.
            if time.monotonic() > deadline:
                raise BackendError(f"{host.label} did not boot within {POWER_LIMIT:g} s")
            await asyncio.sleep(BOOT_POLL)
        await self._demand(node, f"rm -f {shlex.quote(self.node_dir(node))}/*.pid")
        self._down.discard(node)
        async with self._network_lock:
            await self._filter(node, network.filters(self._control, self._cut)[node])
        async with self._packet_lock:
            await self._suffer(node)
        if self._clocks.get(node, (0.0, 1.0)) != (0.0, 1.0):
            await self.set_clock(node, *self._clocks[node])

    async def release(self) -> None:
        """Remove everything that ``provision`` created; safe to call twice or after a failed provision.

        Raises:
            BackendError: a host could not be cleaned; its remains are noted for ``stormproof heal``.
        """
        try:
            await self._stop_clocks()
            await self._unmount()
            if self._remote is not None and (self._run_dir / REMOTE_FILE).exists():
                await self._clean(self._remote)
        finally:
            self._remote = None
            await self._close_shells()
            self._addresses = {}

    async def _clean(self, remote: Remote) -> None:
        # The shell for faults is free even where a command hangs; a new one kills what hangs.
        await gather_all(self._control[node].close() for node in remote.nodes if self._orphans.get(node))
        cleaned = (self._control[node].run(clean_script(remote, node), CLEAN_LIMIT) for node in remote.nodes)
        results = await asyncio.gather(*cleaned, return_exceptions=True)
        if remote.clients is not None:
            await asyncio.to_thread(clients.remove, remote.clients)
        failed = []
        for host, result in zip(remote.nodes.values(), results, strict=True):
            if isinstance(result, BaseException):
                failed.append(f"{host.label}: {result}")
            elif result.status:
                failed.append(f"{host.label}: {' '.join(result.text.split())}")
        if failed:
            raise BackendError(f"not cleaned: {'; '.join(failed)}; run: stormproof heal")
        (self._run_dir / REMOTE_FILE).unlink(missing_ok=True)

    async def _connect(self, node: str) -> ShellChannel:
        remote = self._noted()
        orphans = self._orphans.setdefault(node, [])
        doomed = tuple(orphans)
        shell = await open_root_shell(remote.nodes[node], Path(remote.known_hosts), doomed, orphans.append)
        for process in doomed:
            orphans.remove(process)
        self._sources[node] = shell.process.source
        return shell

    async def _examine(self, test: Test, topology: Topology) -> None:
        """Read the facts of all hosts; refuse those that must not or cannot be nodes. Changes nothing."""
        remote = self._noted()
        texts = await gather_all(self._demand(node, FACTS_SCRIPT) for node in topology.machines)
        self._facts = {node: parse_facts(text) for node, text in zip(topology.machines, texts, strict=True)}
        for node, facts in self._facts.items():
            demand_marker(remote.nodes[node], facts)
        for node, facts in self._facts.items():
            self._pythons[node] = demand_tools(remote.nodes[node], facts)
        beside = test.options.get("clients") == "beside"
        machines.demand_abilities(_needed(test), remote.nodes, self._facts, self._power, beside)

    async def _place_clients(self, test: Test, topology: Topology) -> None:
        remote = self._noted()
        hosts = [remote.nodes[node] for node in topology.machines]
        facts = list(self._facts.values())
        wanted = str(test.options.get("network") or "") or next((each.network for each in facts if each.network), "")
        nodes = cluster_addresses(hosts, facts, wanted)
        self._addresses = {node: str(address.ip) for node, address in zip(topology.machines, nodes, strict=True)}
        for node, source in self._sources.items():
            if source in self._addresses.values():
                raise BackendError(f"{remote.nodes[node].label} is controlled from {source}, which is a node's own "
                                   "address: the harness can't run on a node")
        named = str(test.options.get("client_addresses") or "")
        if named:
            await self._stand_at(test, remote, clients.given(named, test.nodes))
            return
        with await asyncio.to_thread(clients.claim):
            found = await asyncio.to_thread(clients.plan, nodes, test.nodes)
            if isinstance(found, str):
                self._stand_outside(test, found)
                await self._note(remote)
            else:
                await self._stand_at(test, remote, found)

    async def _stand_at(self, test: Test, remote: Remote, found: ClientAddresses) -> None:
        self._addresses |= dict(zip(test.client_hosts, found.addresses, strict=True))
        await self._note(replace(remote, clients=found))
        await asyncio.to_thread(clients.add, found)

    def _stand_outside(self, test: Test, why: str) -> None:
        """Let all clients use this machine's own address, which no fault may cut."""
        cut_off = "from-clients" in named_kinds(test.options, "partition") or (
            test.options.get("packets_links") == "clients")
        if {LINKS, PACKETS} & _needed(test) and (cut_off or test.options.get("clients") == "beside"):
            raise BackendError(f"clients can't stand beside the nodes: {why}; let them reach all nodes: "
                               "--set clients=outside, or name addresses of this machine: --set client_addresses=A,B,C")
        first = next(iter(self._addresses.values()))
        self._addresses |= dict.fromkeys(test.client_hosts, clients.source_address(first))

    async def _note(self, remote: Remote) -> None:
        """Note the run's remote state: from here on, the run may leave something on the hosts."""
        self._remote = remote
        await asyncio.to_thread(remote.write, self._run_dir)

    async def _demand(self, node: str, script: str) -> str:
        output = await self._control[node].run(script, CONNECT_LIMIT * 2)
        if output.status:
            raise BackendError(f"{self._noted().nodes[node].label}: {' '.join(output.text.split())}")
        return output.text

    def _noted(self) -> Remote:
        if self._remote is None:
            raise BackendError("backend ssh is not provisioned")
        return self._remote


def _needed(test: Test) -> set[str]:
    """Return the abilities that the test's faults need."""
    return abilities_needed(test, SshBackend.abilities)
