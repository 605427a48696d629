"""The backend ``sim``: simulated nodes in this process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ClassVar

from harness.reference.sim_runtime import EXIT_REFUSED, REFUSED, SimRuntime
from harness.sim.clock import EPOCH
from harness.sim.disk import SimDisk
from harness.sim.explorer import Explorer
from harness.sim.external_view import WireTap
from harness.sim.invariants import ERROR, Observer
from harness.sim.loop import SimLoop
from harness.sim.memory_census import holdings
from harness.sim.network import CONTROL, Network
from harness.sim.node import CalmClock, SimNode, tells_time
from harness.sim.points import SimPoints
from harness.sim.process import SimProcess
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.backend import (
    CLOCKS,
    DEAD,
    DISKS,
    FILES,
    KILL,
    LINKS,
    PACKETS,
    PAUSE,
    PAUSED,
    POINTS,
    POWER,
    REBOOT,
    RUNNING,
    SIGKILL,
    SIGTERM,
    Backend,
    Capability,
    DiskFault,
    DiskUse,
    Link,
    LinkConditions,
    ProcessState,
)
from stormproof.contracts.deadline import deadlines_of
from stormproof.contracts.invariant import INVARIANTS, Exit, Watched
from stormproof.contracts.launch import Launch
from stormproof.contracts.option import Option
from stormproof.contracts.topology import Topology, endpoint, machine_of
from stormproof.errors import BackendError
from stormproof.history import log_timestamps
from stormproof.test import Test

START_SECONDS = (0.05, 0.4)
"""The bounds of the time from a broker's launch to its first instruction, in seconds."""

BOOT_SECONDS = (0.3, 2.0)
"""The bounds of the time from power-on to a machine's first process, in seconds."""

LOOKED_AT = Option(INVARIANTS, True, "check the system's invariants after each step of a simulated node; a run "
                    "ends at the first broken one")

EXIT_KILLED = -9
"""The exit status of a program that is killed because it did not stop."""
_EPOCH = EPOCH.timestamp()
_PROBE_PORT = 9
_FIRST_PID = 100


class SimBackend(Backend):
    """Machines, networks and disks in this process; must run on a ``SimLoop``."""

    name = "sim"
    in_process = True
    lateness = 0.25
    options = (LOOKED_AT,)
    abilities: ClassVar[Mapping[str, str]] = {
        LINKS: "packets on cut links are lost and counted; connections stall as TCP does",
        PAUSE: "nothing of the process runs; what arrives waits",
        KILL: "nothing of the process runs any more; what it wrote stays, connections are closed",
        PACKETS: "connections stall, slow down or are reset, as TCP makes of it; every packet hit is counted",
        POWER: "processes, connections and what was not synced are gone, the last write may be torn",
        REBOOT: "programs are stopped in order, the machine is gone for a while, its clock starts anew",
        CLOCKS: "the time of day jumps; a wrong rate is one of the monotonic clock and its timers, too",
        DISKS: "SQLite's own files: calls fail or take longer, un-synced writes are lost or torn, a page is noise",
        FILES: "the machine has the file no more",
        POINTS: "what a program does ends, waits or goes unheard exactly at a named point of its code",
    }

    @staticmethod
    def requirements() -> list[Capability]:
        """Return a single capability: the backend needs nothing."""
        return [Capability("sim", True, "simulated in this process, which works everywhere")]

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, SimLoop):
            raise BackendError("backend sim needs a simulated event loop: use harness.sim.run")
        self._loop = loop
        self._addresses: dict[str, str] = {}
        self._nodes: dict[str, SimNode] = {}
        self._shared: dict[str, SimDisk] = {}
        self._network: Network | None = None
        self.points: SimPoints
        self._topology = Topology((), ())
        self._moved = False
        """Whether a clock was ever set, in which case the times in a log may be wrong."""
        self._rng = random.Random(0)
        self._test: Test | None = None
        self._tap: WireTap | None = None
        self._observers: dict[str, Observer | None] = {}
        """Design -> the observer of its nodes; None: they are not observed."""
        self._calm_since: Callable[[], float | None] = lambda: None

    async def provision(self, test: Test, topology: Topology, run_dir: Path) -> None:
        """Create machines and networks; everything random about them derives from the test's seed."""
        places = {name: 11 + i for i, name in enumerate(topology.nodes)}
        places |= {name: 131 + i for i, name in enumerate(topology.client_hosts)}
        places |= {helper.name: 231 + i for i, helper in enumerate(topology.helpers)}
        places |= {name: 251 + i for i, name in enumerate(topology.addresses)}
        self._addresses = {name: f"10.0.0.{place}" for name, place in places.items()} | {CONTROL: "10.0.0.1"}
        for number, name in enumerate(topology.networks, 1):
            self._addresses |= {endpoint(machine, name): f"10.0.{number}.{places[machine]}"
                                for machine in topology.on(name)}  # fmt: skip
        hosts = {address: name for name, address in self._addresses.items() if name not in topology.addresses}
        self._topology = topology
        self._network = Network(self._loop, hosts, test.rng("sim/network"),
                                [self._addresses[name] for name in topology.addresses], topology.distances)
        self.points = SimPoints(SYSTEMS.load(test.system).fault_points, self._network, lambda: self._loop.now,
                                self._down, self._end_at_point)
        self._nodes = {name: SimNode(name, self._loop, test.rng(f"sim/{name}")) for name in topology.machines}
        self._rng = test.rng("sim/machines")
        self._shared = {name: SimDisk(test.rng(f"sim/shared/{name}"), alone=True) for name in topology.shared}
        self._test = test
        for name, node in self._nodes.items():
            node.disk.lost = partial(self._disk_lost, name)
        if (reader := SYSTEMS.load(test.system).wire) is not None and test.options.get(INVARIANTS):
            self._tap = WireTap(reader)
            self._network.tap = self._tap.sent
        if self._loop.explorer is not None:
            self._loop.explorer.watch_network(self._network)
            self.points.come_by = self._loop.explorer.came_by

    def _observer(self, design: str) -> Observer | None:
        """Return the observer of a design's nodes; None when they are not observed."""
        if design not in self._observers:
            known = self._test is not None and (design == self._test.system or design in SYSTEMS)
            self._observers[design] = self._observing(design) if known else None
        return self._observers[design]

    def _observing(self, design: str) -> Observer | None:
        """Create the observer of a design's nodes.

        Local servers of a design other than the one under test keep to their own design's promises. The exception is a
        deadline that counts calm time only: it depends on the system under test, whose deadline of the same name
        replaces it.
        """
        test = self._test
        assert test is not None
        system, tested = SYSTEMS.load(design), SYSTEMS.load(test.system)
        wanted, taking = bool(test.options.get(INVARIANTS)), {each.name: each for each in tested.deadlines}
        claimed = [each for each in system.invariants if each.claimed(test)] if wanted else []
        declared = [taking.get(each.name, each) if each.calm else each for each in system.deadlines]
        deadlines = deadlines_of(declared, test) if wanted else ()
        explorer: Explorer | None = self._loop.explorer if system is tested else None
        waits = system.waits if wanted else ()
        if not (claimed or deadlines or waits or explorer is not None):
            return None
        observer = Observer(claimed, self._loop, self._last_lines, explorer, deadlines, test.options,
                            self._tap, waits)
        observer.calm_since = lambda: self._calm_since()
        return observer

    def _disk_lost(self, machine: str) -> None:
        for observer in self._observers.values():
            if observer is not None:
                observer.disk_lost(machine)

    def told_of_faults(self, disturbed: Callable[[], tuple[bool, int]]) -> None:
        """Receive ``disturbed``, which returns whether a fault is in force, and the number of fault steps so far."""
        self._calm_since = CalmClock(disturbed, lambda: self._loop.now)

    def holdings(self, node: str) -> Mapping[str, int]:
        """Return the number of items that a node's running programs hold.

        Keys are the names of containers and tables, and of the functions that tasks run; values count items, rows or
        tasks.
        """
        place = self._node(node)
        found: dict[str, int] = {}
        for name, runtime in place.runtimes.items():
            if place.state(name).state == RUNNING:
                tasks = {f"task {what}": count for what, count in place.processes[name].tasks().items()}
                for what, count in (holdings(runtime.exposed) | tasks).items():
                    found[what] = found.get(what, 0) + count
        return found

    def sent(self) -> Mapping[Link, tuple[int, int]]:
        """Return the frames and bytes that programs have sent so far, on each link."""
        return {link: (each.frames, each.bytes) for link, each in sorted(self._net().sent.items())}

    def dialled(self) -> Mapping[Link, int]:
        """Return the number of connection attempts by programs so far, on each link."""
        return dict(sorted(self._net().dialled.items()))

    def written(self) -> Mapping[str, int]:
        """Return the number of writes by programs so far, on each machine's disk."""
        return {name: node.disk.writes for name, node in self._nodes.items()}

    def address(self, name: str) -> str:
        """Return the IP address of a simulated node or client host."""
        try:
            return self._addresses[name]
        except KeyError:
            raise BackendError(f"{name!r} has no address (known: {', '.join(self._addresses) or 'none'})") from None

    def node_dir(self, node: str) -> str:
        """Return the node's folder on its simulated disk."""
        return f"/{node}"

    def shared_dir(self, name: str) -> str:
        """Return the folder on a simulated disk that all nodes share."""
        return f"/{name}" if name in self._shared else super().shared_dir(name)

    async def upload(self, node: str, content: bytes, path: str) -> None:
        """Write a file on the node's simulated disk."""
        self._node(node).disk.files[path] = content

    async def download(self, node: str, path: str) -> bytes:
        """Read a file, or a log, of a node."""
        found = self._node(node)
        if path in found.logs:
            return "".join(f"{line}\n" for line in found.logs[path]).encode()
        log = path.removesuffix(log_timestamps.SUFFIX)
        if log in found.moments and (self._moved or not tells_time(found.logs[log])):
            return log_timestamps.write_moments(found.moments[log])
        try:
            return found.disk.files[path]
        except KeyError:
            raise BackendError(f"{node}: can't read {path}: no such file") from None

    async def remove(self, node: str, path: str) -> None:
        """Delete a file of a node."""
        await self._act()
        self._node(node).disk.files.pop(path, None)

    async def launch(self, node: str, program: str, start: Launch, log: str, shared: str = "") -> None:
        """Start a program in a simulated process of the machine."""
        place = self._node(node)
        if place.state(program).state != DEAD:
            raise BackendError(f"{node}: its {program} runs already")
        if not place.on:
            raise BackendError(f"{node}: it has no power")
        place.launches += 1
        number = list(self._nodes).index(node)
        pid = _FIRST_PID * (number + 1) + place.launches
        clock = place.clock
        process = place.processes[program] = SimProcess(self._loop, node, pid, clock.offset, clock.rate)
        lines, written = place.logs.setdefault(log, []), place.moments.setdefault(log, [])
        rng = random.Random(place.rng.getrandbits(64))

        def write(text: str) -> None:
            # Record as many times as the file will have lines.
            for line in text.splitlines() or [text]:
                lines.append(line)
                written.append(_EPOCH + self._loop.now)
            process.failed |= ERROR in text and process.asked is None
            if process.logged is not None:
                process.logged(text)

        disk, user = place.disk, program
        if shared:
            disk = place.shared[program] = self._shared[shared]
            user = place.user(program)
        def watch(group: str, name: str, subject: Watched) -> None:
            observer = self._observer(group.rpartition("/")[0])
            if observer is not None:
                process.look = observer.watch(node, name, group, subject, process, disk)
                process.over = partial(observer.ended, name, group)

        runtime = place.runtimes[program] = SimRuntime(process, disk, rng, write, clock.time_of_day, user, watch,
                                                       partial(self.points.come, node, program, process))
        delay = self._rng.uniform(*START_SECONDS)
        process.spawn(self._live(place, process, program, start, runtime, delay, disk), f"{node}/main")

    async def _live(self, place: SimNode, process: SimProcess, program: str, start: Launch, runtime: SimRuntime,
                    delay: float, disk: SimDisk) -> None:
        await asyncio.sleep(delay)
        status = EXIT_REFUSED
        try:
            launched = place.programs[program] = start(runtime)
            status = await launched.run()
        except REFUSED as error:
            runtime.write_log(f"error: {error}")
        self._loop.after(0.0, self._exited, place, process, program, status, disk)

    def _exited(self, place: SimNode, process: SimProcess, program: str, status: int, disk: SimDisk) -> None:
        if place.processes.get(program) is process and process.state != DEAD:
            self._judge_exit(process, status, disk)
            place.end(program)

    def _judge_exit(self, process: SimProcess, status: int, disk: SimDisk) -> None:
        if process.exited is None:
            return
        took = None
        if process.asked is not None:
            took = min(process.local() - process.asked, self._loop.now - process.ran_on)
        left = tuple(sorted(filter(None, (each.described() for each in process.resources))))
        process.exited(Exit(status, took, not (disk.harmed or process.failed), left))

    async def stop(self, node: str, program: str, timeout: float = 5.0) -> str:
        """Ask the program to stop; kill it after ``timeout``; return the signal that ended it."""
        place = self._node(node)
        process, launched = place.processes.get(program), place.programs.get(program)
        if process is None or launched is None:
            await self.kill(node, program)
            return "" if process is None else SIGKILL
        if process.asked is None:
            process.asked = process.local()
        process.call(launched.stop)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.ended.wait(), timeout)
        if place.processes.get(program) is not process:
            return SIGTERM
        if process.state == RUNNING and not process.busy:
            self._judge_exit(process, EXIT_KILLED, place.shared.get(program, place.disk))
        place.end(program)
        return SIGKILL

    async def kill(self, node: str, program: str) -> None:
        """End the program at once; do nothing if it is dead."""
        await self._act()
        self._node(node).end(program)

    async def pause(self, node: str, program: str) -> None:
        """Suspend the program; raises BackendError when it is dead."""
        await self._act()
        self._living(node, program).pause()

    async def resume(self, node: str, program: str) -> None:
        """Resume the program; raises BackendError when it is dead."""
        await self._act()
        self._living(node, program).resume()

    async def process(self, node: str, program: str) -> ProcessState:
        """Return the program's state."""
        return self._node(node).state(program)

    async def set_network(self, cut: frozenset[Link]) -> None:
        """Drop every packet on exactly these links."""
        for end in sorted({end for link in cut for end in link}):
            self.address(end)
        await self._act()
        self.points.set_cut(cut)

    async def dropped(self) -> Mapping[Link, int]:
        """Return the packets lost on each link that is cut now."""
        return self._net().dropped()

    def give_address(self, node: str, address: str, seconds: float) -> None:
        """Assign an address to a machine for ``seconds``."""
        self._net().floating[address].give(node, seconds)

    def take_address(self, node: str, address: str) -> None:
        """Take an address from a machine."""
        self._net().floating[address].take(node)

    def announce_address(self, node: str, address: str) -> None:
        """Route the address's packets to the machine, if it holds the address."""
        self._net().floating[address].announce(node)

    def has_address(self, node: str, address: str) -> bool:
        """Return whether the machine holds the address."""
        return node in self._net().floating[address].holders

    async def set_conditions(self, conditions: Mapping[Link, LinkConditions]) -> None:
        """Degrade exactly these links."""
        for end in sorted({end for link in conditions for end in link}):
            self.address(end)
        await self._act()
        self.points.set_conditions({link: conditions[link] for link in sorted(conditions)})

    async def affected_packets(self) -> Mapping[Link, int]:
        """Return the packets affected on each link that has conditions now."""
        return self._net().affected_packets()

    async def power_off(self, nodes: Sequence[str]) -> None:
        """Cut the power of all these nodes at the same instant."""
        places = [self._node(node) for node in nodes]
        await self._act()
        for place in places:
            self._lose_power(place)

    async def power_on(self, nodes: Sequence[str]) -> None:
        """Boot those of these nodes that have no power."""
        places = [place for place in map(self._node, nodes) if not place.on]
        if places:
            await asyncio.sleep(self._rng.uniform(*BOOT_SECONDS))
        for place in places:
            self._boot(place)

    async def reboot(self, node: str) -> None:
        """Stop the programs in order, and boot the machine; its disk loses nothing."""
        place = self._node(node)
        for program in list(place.processes):
            await self.stop(node, program)
        place.disk.sync()
        self._dark(place)
        await asyncio.sleep(self._rng.uniform(*BOOT_SECONDS))
        self._boot(place)

    async def boot(self, node: str) -> str:
        """Return the number of the node's current boot."""
        return str(self._node(node).boots)

    async def clock(self, node: str) -> float:
        """Return the node's time of day."""
        return self._node(node).clock.time_of_day()

    async def set_clock(self, node: str, offset: float, rate: float) -> None:
        """Make the node's clocks wrong."""
        place = self._node(node)
        await self._act()
        place.clock.set(offset, rate)
        self._moved = True
        for process in place.processes.values():
            process.set_rate(place.clock.rate)

    async def set_disk(self, node: str, fault: DiskFault | None) -> None:
        """Set the fault of the machine's disk; None for no fault."""
        place = self._node(node)
        await self._act()
        place.disk.set_fault(fault)

    async def disk_use(self, node: str) -> DiskUse:
        """Return the number of files into which the machine's programs have written."""
        return DiskUse(self._node(node).disk.held)

    async def writes_to(self, node: str) -> tuple[str, ...]:
        """Return nothing: simulated programs write to databases only."""
        return ()

    async def disk_fault_count(self, node: str) -> int:
        """Return the number of times that the fault has taken effect."""
        return self._node(node).disk.shown

    async def probe_disk(self, node: str) -> str:
        """Return the outcome of a write and a sync now."""
        return self._node(node).disk.probe()

    def _lose_power(self, place: SimNode) -> None:
        place.end_all(powerless=True)
        self._dark(place)

    def _end_at_point(self, node: str, program: str, powerless: bool) -> None:
        place = self._node(node)
        if powerless:
            self._lose_power(place)
        else:
            place.end(program)

    def _down(self, nodes: Sequence[str]) -> int:
        """Return the number of nodes on which no program runs undisturbed."""
        return sum(all(process.state != RUNNING or process.busy for process in self._node(node).processes.values())
                   for node in nodes)

    def _dark(self, place: SimNode) -> None:
        place.on = False
        self._switch(place, False)

    def _boot(self, place: SimNode) -> None:
        place.on = True
        place.boots += 1
        place.clock.restart()
        self._switch(place, True)

    def _switch(self, place: SimNode, on: bool) -> None:
        for name in self._topology.endpoints(place.name):
            self._net().set_power(name, on)

    async def probe(self, link: Link, timeout: float) -> str:
        """Probe a link by connecting to a closed port of its target: refused at once, unless packets are lost."""
        host = self.address(link[1])
        prober = SimProcess(self._loop, machine_of(link[0]), 0)
        try:
            await asyncio.wait_for(prober.spawn(_connect(host), "probe"), timeout)
        except ConnectionRefusedError:
            return "open"
        except TimeoutError:
            return "cut"
        finally:
            self._loop.after(0.0, prober.kill)
        return "open"

    async def release(self) -> None:
        """End all processes and free their disks."""
        for node in self._nodes.values():
            node.end_all()
            node.disk.discard()
        for disk in self._shared.values():
            disk.discard()
        for observer in self._observers.values():
            if observer is not None:
                observer.close()

    def _last_lines(self, node: str, count: int) -> list[str]:
        logs = self._nodes[node].logs
        return [line for log in logs.values() for line in log[-count:]]

    def _node(self, node: str) -> SimNode:
        try:
            return self._nodes[node]
        except KeyError:
            raise BackendError(f"unknown node {node!r} (known: {', '.join(self._nodes) or 'none'})") from None

    def _living(self, node: str, program: str) -> SimProcess:
        process = self._node(node).processes.get(program)
        if process is None or process.state not in (RUNNING, PAUSED):
            raise BackendError(f"{node}: its {program} is dead")
        return process

    def _net(self) -> Network:
        if self._network is None:
            raise BackendError("the simulated network is not provisioned")
        return self._network

    async def _act(self) -> None:
        """Wait for the time that reaching a machine and acting there takes."""
        await asyncio.sleep(self._rng.uniform(0.001, 0.01))


async def _connect(host: str) -> None:
    _, writer = await asyncio.open_connection(host, _PROBE_PORT)
    writer.transport.abort()


