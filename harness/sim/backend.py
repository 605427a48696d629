"""The backend ``sim``: simulated nodes in this process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from harness.backends.faultless import Faultless
from harness.errors import BackendError
from harness.protocols import Link, ProcessState, Program, Result
from harness.sim.disk import Disk
from harness.sim.loop import DEAD, PAUSED, RUNNING, Process, SimLoop
from harness.sim.network import CONTROL, Network
from harness.sim.runtime import SimRuntime
from harness.spec import Test
from nodes.reference.api import ConfigError
from nodes.reference.runtime import LoopRuntime

CLOCK_DRIFT = 200e-6
"""Greatest difference of a node's clock rate from the right one."""

START_SECONDS = (0.05, 0.4)
"""How long a broker's process takes from its launch to its first instruction."""

_PROBE_PORT = 9
_FIRST_PID = 100


class SimNode:
    """One simulated machine: a disk, a clock, and at most one broker process."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.disk = Disk()
        self.rng = rng
        self.offset = rng.uniform(10.0, 1e5)
        self.rate = 1.0 + rng.uniform(-CLOCK_DRIFT, CLOCK_DRIFT)
        self.boots = 0
        self.logs: dict[str, list[str]] = {}
        self.process: Process | None = None
        self.program: Program | None = None

    def state(self) -> ProcessState:
        """What the simulated operating system says of the broker."""
        process = self.process
        if process is None or process.state == DEAD:
            return ProcessState(DEAD)
        return ProcessState(process.state, process.pid)


class SimBackend(Faultless):
    """Nodes, network and disks in this process; must run on a ``SimLoop``."""

    name = "sim"
    in_process = True
    faults: Mapping[str, str] = {
        "partition": "packets on cut links are lost and counted; connections stall as TCP does",
        "pause": "nothing of the process runs; what arrives waits",
        "kill": "nothing of the process runs any more; committed data stays, connections are closed",
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
        self._nodes = {name: SimNode(name, test.rng(f"sim/{name}")) for name in test.node_names}
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
        try:
            return found.disk.files[path]
        except KeyError:
            raise BackendError(f"{node}: can't read {path}: there is no such file") from None

    async def launch(self, node: str, program: Callable[[LoopRuntime], Program], log: str) -> None:
        """Start a broker in a simulated process of the node."""
        place = self._node(node)
        if place.state().state != DEAD:
            raise BackendError(f"{node}: a broker runs there already")
        place.boots += 1
        number = list(self._nodes).index(node)
        pid = _FIRST_PID * (number + 1) + place.boots
        process = place.process = Process(self._loop, node, pid, place.offset, place.rate)
        lines = place.logs.setdefault(log, [])
        runtime = SimRuntime(self._loop, process, place.disk, random.Random(place.rng.getrandbits(64)), lines.append)
        delay = self._rng.uniform(*START_SECONDS)
        process.spawn(self._live(place, process, program, runtime, delay), f"{node}/main")

    async def _live(self, place: SimNode, process: Process, program: Callable[[LoopRuntime], Program],
                    runtime: SimRuntime, delay: float) -> None:
        await asyncio.sleep(delay)
        try:
            place.program = program(runtime)
            status = await place.program.run()
            runtime.write_log(f"(exit status {status})")
        except ConfigError as error:
            runtime.write_log(f"error: {error}")
        self._loop.after(0.0, process.kill)

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
        process.kill()

    async def kill(self, node: str) -> None:
        """End the broker at once; nothing if it is dead."""
        await self._act()
        place = self._node(node)
        if place.process is not None:
            place.process.kill()
        place.process = place.program = None

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
            if node.process is not None:
                node.process.kill()
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


