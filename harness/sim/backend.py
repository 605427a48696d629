"""The backend ``sim``: simulated nodes in this process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from harness.errors import BackendError
from harness.history import moments
from harness.protocols import Condition, DiskTrouble, Link, ProcessState, Program, Result
from harness.sim.clock import EPOCH, MachineClock
from harness.sim.disk import Disk
from harness.sim.loop import DEAD, PAUSED, RUNNING, Process, SimLoop
from harness.sim.network import CONTROL, Network
from harness.sim.runtime import SimRuntime
from harness.spec import Test
from nodes.reference.api import ConfigError
from nodes.reference.runtime import LoopRuntime

START_SECONDS = (0.05, 0.4)
"""How long a broker's process takes from its launch to its first instruction."""

BOOT_SECONDS = (0.3, 2.0)
"""How long a machine takes from power to its first process."""

_EPOCH = EPOCH.timestamp()
_PROBE_PORT = 9
_FIRST_PID = 100


class SimNode:
    """One simulated machine: a disk, a clock, and at most one broker process."""

    def __init__(self, name: str, loop: SimLoop, rng: random.Random) -> None:
        self.name = name
        self.rng = rng
        self.clock = MachineClock(loop, rng)
        self.disk = Disk(random.Random(rng.getrandbits(64)))
        self.disk.stall = self._stall
        self.on = True
        self.boots = 1
        self.launches = 0
        self.logs: dict[str, list[str]] = {}
        self.moments: dict[str, list[float]] = {}
        """When each line was written: seconds since 1970 that no clock fault moves."""
        self.process: Process | None = None
        self.program: Program | None = None

    def state(self) -> ProcessState:
        """What the simulated operating system says of the broker."""
        process = self.process
        if process is None or process.state == DEAD:
            return ProcessState(DEAD)
        return ProcessState(process.state, process.pid)

    def end(self, powerless: bool = False) -> None:
        """The broker is gone, if there was one; what it had written stays, unless the power is gone as well."""
        process, self.process, self.program = self.process, None, None
        if process is not None:
            process.kill(powerless)
        if powerless:
            self.disk.power_lost()
        elif process is not None:
            self.disk.process_died()

    def _stall(self, seconds: float) -> None:
        if self.process is not None:
            self.process.stall(seconds)


class SimBackend:
    """Nodes, network and disks in this process; must run on a ``SimLoop``."""

    name = "sim"
    in_process = True
    faults: Mapping[str, str] = {
        "partition": "packets on cut links are lost and counted; connections stall as TCP does",
        "pause": "nothing of the process runs; what arrives waits",
        "kill": "nothing of the process runs any more; what it wrote stays, connections are closed",
        "packets": "connections stall, slow down or are reset, as TCP makes of it; every packet hit is counted",
        "power": "processes, connections and what was not synced are gone, the last write may be torn",
        "reboot": "the broker is stopped in order, the machine is gone for a while, its clock starts anew",
        "clock": "the time of day jumps; a wrong rate is one of the monotonic clock and its timers, too",
        "disk": "SQLite's own files: calls fail or take longer, un-synced writes are lost or torn, a page is noise",
        "membership": "an administrator's command to the master",
    }

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, SimLoop):
            raise BackendError("backend sim needs a simulated event loop: use harness.sim.run")
        self._loop = loop
        self._addresses: dict[str, str] = {}
        self._nodes: dict[str, SimNode] = {}
        self._network: Network | None = None
        self._rng = random.Random(0)

    async def provision(self, test: Test, run_dir: Path) -> None:
        """Make nodes and network; all that is random about them comes from the test's seed."""
        self._addresses = {name: f"10.0.0.{11 + i}" for i, name in enumerate(test.node_names)}
        self._addresses |= {name: f"10.0.0.{131 + i}" for i, name in enumerate(test.client_hosts)}
        self._addresses[CONTROL] = "10.0.0.1"
        hosts = {address: name for name, address in self._addresses.items()}
        self._network = Network(self._loop, hosts, test.rng("sim/network"))
        self._nodes = {name: SimNode(name, self._loop, test.rng(f"sim/{name}")) for name in test.node_names}
        self._rng = test.rng("sim/machines")

    def address(self, name: str) -> str:
        """IP address of a simulated node or client host."""
        try:
            return self._addresses[name]
        except KeyError:
            raise BackendError(f"{name!r} has no address (known: {', '.join(self._addresses) or 'none'})") from None

    def node_dir(self, node: str) -> str:
        """The node's folder on its simulated disk."""
        return f"/{node}"

    def python(self, node: str) -> str:
        """Refused: programs run in this process."""
        raise BackendError("a simulated node has no Python of its own; use launch()")

    async def exec(self, node: str, command: str, timeout: float = 10.0) -> Result:
        """Refused: there is no shell."""
        raise BackendError(f"a simulated node has no shell to run {command!r} in")

    async def start(self, node: str, argv: Sequence[str], log: str) -> None:
        """Refused: only ``launch`` can start something here."""
        raise BackendError(f"a simulated node can't run {argv[0]!r}; use launch()")

    async def upload(self, node: str, content: bytes, path: str) -> None:
        """Write a file on the node's simulated disk."""
        self._node(node).disk.files[path] = content

    async def download(self, node: str, path: str) -> bytes:
        """Read a file, or a log, of a node."""
        found = self._node(node)
        if path in found.logs:
            return "".join(f"{line}\n" for line in found.logs[path]).encode()
        if (log := path.removesuffix(moments.SUFFIX)) in found.moments:
            return moments.write_moments(found.moments[log])
        try:
            return found.disk.files[path]
        except KeyError:
            raise BackendError(f"{node}: can't read {path}: there is no such file") from None

    async def launch(self, node: str, program: Callable[[LoopRuntime], Program], log: str) -> None:
        """Start a broker in a simulated process of the node."""
        place = self._node(node)
        if place.state().state != DEAD:
            raise BackendError(f"{node}: a broker runs there already")
        if not place.on:
            raise BackendError(f"{node}: it has no power")
        place.launches += 1
        number = list(self._nodes).index(node)
        pid = _FIRST_PID * (number + 1) + place.launches
        clock = place.clock
        process = place.process = Process(self._loop, node, pid, clock.offset, clock.rate)
        lines, written = place.logs.setdefault(log, []), place.moments.setdefault(log, [])
        rng = random.Random(place.rng.getrandbits(64))

        def write(text: str) -> None:
            # As many moments as the file will have lines.
            for line in text.splitlines() or [text]:
                lines.append(line)
                written.append(_EPOCH + self._loop.now)

        runtime = SimRuntime(process, place.disk, rng, write, clock.time_of_day)
        delay = self._rng.uniform(*START_SECONDS)
        process.spawn(self._live(place, process, program, runtime, delay), f"{node}/main")

    async def _live(self, place: SimNode, process: Process, program: Callable[[LoopRuntime], Program],
                    runtime: SimRuntime, delay: float) -> None:
        await asyncio.sleep(delay)
        try:
            place.program = program(runtime)
            await place.program.run()
        except ConfigError as error:
            runtime.write_log(f"error: {error}")
        self._loop.after(0.0, self._exited, place, process)

    def _exited(self, place: SimNode, process: Process) -> None:
        if place.process is process and process.state != DEAD:
            place.end()

    async def stop(self, node: str, timeout: float = 5.0) -> None:
        """Ask the broker to stop; kill it after ``timeout``."""
        place = self._node(node)
        process, program = place.process, place.program
        if process is None or program is None:
            await self.kill(node)
            return
        process.call(program.stop)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.ended.wait(), timeout)
        if place.process is process:
            place.end()

    async def kill(self, node: str) -> None:
        """End the broker at once; nothing if it is dead."""
        await self._act()
        self._node(node).end()

    async def pause(self, node: str) -> None:
        """Let nothing of the broker run; raises BackendError when it is dead."""
        await self._act()
        self._living(node).pause()

    async def resume(self, node: str) -> None:
        """Let the broker run again; raises BackendError when it is dead."""
        await self._act()
        self._living(node).resume()

    async def process(self, node: str) -> ProcessState:
        """The broker's state."""
        return self._node(node).state()

    async def set_network(self, cut: frozenset[Link]) -> None:
        """Lose every packet on exactly these links."""
        for end in sorted({end for link in cut for end in link}):
            self.address(end)
        await self._act()
        self._net().set_cut(cut)

    async def dropped(self) -> Mapping[Link, int]:
        """Packets lost on each link that is cut now."""
        return self._net().dropped()

    async def set_conditions(self, conditions: Mapping[Link, Condition]) -> None:
        """Let exactly these links suffer."""
        for end in sorted({end for link in conditions for end in link}):
            self.address(end)
        await self._act()
        self._net().set_conditions({link: conditions[link] for link in sorted(conditions)})

    async def disturbed(self) -> Mapping[Link, int]:
        """Packets disturbed on each link that has a condition now."""
        return self._net().disturbed()

    async def power_off(self, nodes: Sequence[str]) -> None:
        """Take the power of all these nodes at the same instant."""
        places = [self._node(node) for node in nodes]
        await self._act()
        for place in places:
            place.end(powerless=True)
            self._dark(place)

    async def power_on(self, nodes: Sequence[str]) -> None:
        """Boot those of these nodes that have no power."""
        places = [place for place in map(self._node, nodes) if not place.on]
        if places:
            await asyncio.sleep(self._rng.uniform(*BOOT_SECONDS))
        for place in places:
            self._boot(place)

    async def reboot(self, node: str) -> None:
        """Stop the broker in order, and boot the node; a disk loses nothing."""
        place = self._node(node)
        await self.stop(node)
        place.disk.sync()
        self._dark(place)
        await asyncio.sleep(self._rng.uniform(*BOOT_SECONDS))
        self._boot(place)

    async def boot(self, node: str) -> str:
        """Which boot of the node this is."""
        return str(self._node(node).boots)

    async def clock(self, node: str) -> float:
        """The node's time of day."""
        return self._node(node).clock.time_of_day()

    async def set_clock(self, node: str, offset: float, rate: float) -> None:
        """Let the node's clocks be wrong."""
        place = self._node(node)
        await self._act()
        place.clock.set(offset, rate)
        if place.process is not None:
            place.process.set_rate(place.clock.rate)

    async def set_disk(self, node: str, trouble: DiskTrouble | None) -> None:
        """Bring trouble upon the node's disk."""
        place = self._node(node)
        await self._act()
        place.disk.set_trouble(trouble)

    async def disk_harm(self, node: str) -> int:
        """How often the trouble has shown."""
        return self._node(node).disk.harm

    async def probe_disk(self, node: str) -> str:
        """What becomes of a write and a sync now."""
        return self._node(node).disk.probe()

    def _dark(self, place: SimNode) -> None:
        place.on = False
        self._net().set_power(place.name, False)

    def _boot(self, place: SimNode) -> None:
        place.on = True
        place.boots += 1
        place.clock.restart()
        self._net().set_power(place.name, True)

    async def probe(self, link: Link, timeout: float) -> str:
        """Try to connect from a node to a closed port of another: refused at once, unless packets are lost."""
        host = self.address(link[1])
        prober = Process(self._loop, link[0], 0)
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
            node.end()
            node.disk.discard()

    def _node(self, node: str) -> SimNode:
        try:
            return self._nodes[node]
        except KeyError:
            raise BackendError(f"there is no node {node!r} (there are: {', '.join(self._nodes) or 'none'})") from None

    def _living(self, node: str) -> Process:
        process = self._node(node).process
        if process is None or process.state not in (RUNNING, PAUSED):
            raise BackendError(f"{node}: its broker is dead")
        return process

    def _net(self) -> Network:
        if self._network is None:
            raise BackendError("there is no simulated network: not provisioned")
        return self._network

    async def _act(self) -> None:
        """What it takes to reach a machine and do something there."""
        await asyncio.sleep(self._rng.uniform(0.001, 0.01))


async def _connect(host: str) -> None:
    _, writer = await asyncio.open_connection(host, _PROBE_PORT)
    writer.transport.abort()


