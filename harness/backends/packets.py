"""Degraded links, on nodes with a root shell.

The kernel's network emulator is used where all nodes have it, otherwise rules and a queue of packets on each node
(``packet_queue``). The desired state is set as a whole, and replaces all that a node did before. The program that holds
packets has a separate channel to each node. When the harness ends, for any reason, the end of the channel ends the
program, which then undoes its changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from harness.backends import netem, packet_queue
from harness.backends.base import ABILITIES, CALL_LIMIT, ShellBackend, gather_all
from harness.backends.netem import NodeShaping
from harness.backends.shell import ShellChannel
from nodes.timeouts import within
from stormproof.contracts.backend import PACKETS, Link, LinkConditions
from stormproof.contracts.topology import endpoint, machine_of
from stormproof.errors import BackendError

HOW = (
    "netem with counters where the node's kernel has it; else nftables rules (loss, duplicates, resets) and a queue "
    "of packets held on the node (NFQUEUE: delay, jitter, reordering, damage, rate), each link counted"
)

PACKET_ABILITIES: Mapping[str, str] = {**ABILITIES, PACKETS: HOW}

_NETEM = """
tc qdisc add dev lo root netem delay 1ms 2>/dev/null && tc qdisc del dev lo root && echo netem
ip link add stormproof-try type ifb 2>/dev/null && ip link delete stormproof-try && echo ifb
:
"""
"""Prints the parts of netem that the node's own network namespace accepts."""

PROBE = """
unshare --net sh -c '
  { nft add table ip t; nft add chain ip t c "{ type filter hook input priority 0; }"
     nft add rule ip t c queue num 1 bypass; } && exit
  for t in iptables-nft iptables-legacy iptables; do
    $t -t mangle -A INPUT -j NFQUEUE --queue-num 1 --queue-bypass && exit
  done
  exit 1' >/dev/null 2>&1 && echo queue
"""
"""Prints ``queue`` where kernel rules can hand packets to a program; tested in a namespace that ends at once."""

_CHAINS = "; ".join(
    f"$t -t mangle -D {hook.upper()} -j {chain}; $t -t mangle -F {chain}; $t -t mangle -X {chain}"
    for hook, _, chain in packet_queue.CHAINS.values()
)

HEAL = f"""
nft list table {packet_queue.TABLE} >/dev/null 2>&1 && nft delete table {packet_queue.TABLE} && echo packets
for t in iptables-nft iptables-legacy; do
  $t -t mangle -S {packet_queue.CHAINS[packet_queue.ARRIVING][2]} >/dev/null 2>&1 || continue
  {_CHAINS}
done
:
"""
"""Removes the rules of a killed program; prints ``packets`` when there were any."""

_NOTHING = NodeShaping({}, {})


class PacketProgram:
    """The program ``packet_queue`` on one node, started at the first order."""

    def __init__(self, node: str, connect: Callable[[], Awaitable[ShellChannel]], command: str) -> None:
        """``command`` starts the program from the shell that ``connect`` opens."""
        self._node = node
        self._connect = connect
        self._command = command
        self._channel: ShellChannel | None = None
        self._rest = b""

    async def ask(self, order: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        """Make it carry out an order; returns the packets affected so far, by direction and address.

        Raises:
            BackendError: it failed; the message has the node's reason. The program has then ended, which restores the
                node.
        """
        try:
            async with within(CALL_LIMIT):
                if self._channel is None:
                    self._channel = await self._connect()
                    await self._channel.write(f"exec {self._command}\n".encode())
                    await self._line("ready")
                await self._channel.write(json.dumps(order).encode() + b"\n")
                answer = json.loads(await self._line("{"))
        except (TimeoutError, EOFError, OSError, ValueError) as error:
            await self.close()
            raise BackendError(f"{self._node}: its program for packets failed: {error or 'no answer'}") from None
        if "error" in answer:
            await self.close()
            raise BackendError(f"{self._node}: can't make its links suffer: {answer['error']}")
        return dict(answer)

    async def close(self) -> None:
        """End the program."""
        channel, self._channel, self._rest = self._channel, None, b""
        if channel is not None:
            await channel.destroy()

    @property
    def alive(self) -> bool:
        """Whether the program was started and has not failed since."""
        return self._channel is not None

    async def _line(self, beginning: str) -> str:
        """Return the next line of its output, which must begin with ``beginning``."""
        assert self._channel is not None
        while b"\n" not in self._rest:
            chunk = await self._channel.read()
            if not chunk:
                raise EOFError(self._rest.decode(errors="replace").strip() or "it ended")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        text = line.decode(errors="replace")
        if not text.startswith(beginning):
            raise ValueError(" ".join(f"{text} {self._rest.decode(errors='replace')}".split())[:300])
        return text


class PacketBackend(ShellBackend):
    """A backend of root shells whose nodes' links can be degraded."""

    abilities: ClassVar[Mapping[str, str]] = PACKET_ABILITIES

    def __init__(self) -> None:
        super().__init__()
        self._conditions: Mapping[Link, LinkConditions] = {}
        self._by_netem = False
        self._programs: dict[str, PacketProgram] = {}
        self._held: dict[str, NodeShaping] = {}
        """The conditions applied by each node's program; ``_queues`` holds those applied by its emulator."""
        self._queues: dict[str, NodeShaping] = {}
        self._kernels: dict[str, frozenset[str]] = {}
        self._packet_lock = asyncio.Lock()

    async def set_conditions(self, conditions: Mapping[Link, LinkConditions]) -> None:
        """Degrade exactly these links, and no others; idempotent.

        Raises:
            BackendError: a link does not exist, or a node fails; the other nodes do what they should.
        """
        for end in sorted({end for link in conditions for end in link}):
            self.address(end)
        async with self._packet_lock:
            self._by_netem = bool(conditions) and await self._netem_does(conditions)
            self._conditions = dict(conditions)
            await gather_all(self._suffer(node) for node in self._control)

    async def affected_packets(self) -> Mapping[Link, int]:
        """Return the packets affected so far on each link with conditions; none where a node's program has failed."""
        async with self._packet_lock:
            counted = await gather_all(self._affected(node) for node in self._control)
        return {link: count for counts in counted for link, count in counts.items()}

    async def _suffer(self, node: str) -> None:
        """Make one node apply the present conditions."""
        emulated = netem.queues(self._control, self._conditions)[node] if self._by_netem else _NOTHING
        held = _NOTHING if self._by_netem else split(self._control, self._conditions)[node]
        if self._queues.get(node, _NOTHING) != emulated:
            self._queues.pop(node, None)
            await self._steer(node, emulated.script(await self._device(node), self._addresses), "can't emulate links")
            self._queues[node] = emulated
        if self._held.get(node, _NOTHING) != held:
            self._held.pop(node, None)
            if held != _NOTHING or self._program(node).alive:
                await self._order(node, held)
            self._held[node] = held

    async def _take_rules_away(self, node: str) -> None:
        """Remove the rules of a program that did not end by itself."""
        with contextlib.suppress(BackendError):  # A node without a shell is reported at its next use.
            await self._steer(node, HEAL, "can't take rules away")

    async def _forget_packets(self, node: str) -> None:
        """Drop the state of an earlier boot."""
        self._queues.pop(node, None)
        self._held.pop(node, None)
        if node in self._programs:
            await self._programs[node].close()

    async def _order(self, node: str, held: NodeShaping) -> None:
        program = self._program(node)
        if not program.alive:
            await self._install_program(node)
        try:
            await program.ask(
                {
                    way: {ip: asdict(condition) for name, condition in side.items() for ip in self._all_addresses(name)}
                    for way, side in ((packet_queue.ARRIVING, held.arriving), (packet_queue.LEAVING, held.leaving))
                }
            )
        except BackendError:
            await self._take_rules_away(node)
            raise

    async def _install_program(self, node: str) -> None:
        await self.upload(node, Path(packet_queue.__file__).read_bytes(), self._program_path(node))

    def _all_addresses(self, name: str) -> tuple[str, ...]:
        """Return the IPv4 addresses of the machine or client host of that name, where packets are recognised by them.
        """
        return (self._addresses[name],)

    def _program(self, node: str) -> PacketProgram:
        if node not in self._programs:
            command = f"{shlex.quote(self.python(node))} {shlex.quote(self._program_path(node))}"
            self._programs[node] = PacketProgram(node, lambda: self._connect(node), command)
        return self._programs[node]

    def _program_path(self, node: str) -> str:
        return f"{self.node_dir(node)}/packet_queue.py"

    async def _affected(self, node: str) -> dict[Link, int]:
        counts: dict[Link, int] = {}
        if (emulated := self._queues.get(node, _NOTHING)) != _NOTHING:
            output = await self._steer(node, netem.counts_script(await self._device(node)), "can't read the counters")
            counts |= netem.parse_counts(output.text, node, emulated)
        if (held := self._held.get(node, _NOTHING)) != _NOTHING:
            try:
                answer = await self._program(node).ask({"counts": True})
            except BackendError:
                self._held.pop(node, None)
                await self._take_rules_away(node)  # No packets are affected there any longer, and the count is lost.
                answer = {}
            arrived, left = answer.get(packet_queue.ARRIVING, {}), answer.get(packet_queue.LEAVING, {})
            counts |= {(name, _beside(name, node)): self._packets_of(name, arrived) for name in held.arriving}
            counts |= {(_beside(name, node), name): self._packets_of(name, left) for name in held.leaving}
        return counts

    def _packets_of(self, name: str, counted: Mapping[str, int]) -> int:
        return sum(counted.get(ip, 0) for ip in self._all_addresses(name))

    async def _netem_does(self, conditions: Mapping[Link, LinkConditions]) -> bool:
        """Return whether the kernel's emulator supports all conditions.

        It cannot reset connections, and only one device of each node is known.
        """
        if any(condition.reset for condition in conditions.values()):
            return False
        if any(machine_of(end) != end for link in conditions for end in link):
            return False
        try:
            wanted = netem.queues(self._control, conditions)
        except BackendError:
            return False  # The links exceed its capacity.
        kernels = await gather_all(self._kernel(node) for node in wanted)
        return all("netem" in kernel and ("ifb" in kernel or not each.arriving)
                   for kernel, each in zip(kernels, wanted.values(), strict=True))  # fmt: skip

    async def _kernel(self, node: str) -> frozenset[str]:
        """Return the features of the node's kernel: ``netem``, ``ifb``."""
        if node not in self._kernels:
            output = await self._steer(node, _NETEM, "can't tell what its kernel has")
            self._kernels[node] = frozenset(output.text.split())
        return self._kernels[node]

    async def _device(self, node: str) -> str:
        """Return the device of the node's address on the main network."""
        ask = f"ip -oneline -4 address show to {shlex.quote(self._addresses[node])}"
        words = (await self._steer(node, ask, "can't find its device")).text.split()
        if len(words) < 2:
            raise BackendError(f"{node}: no device has its address {self._addresses[node]}")
        return words[1]

    async def _close_shells(self) -> None:
        programs = list(self._programs.values())
        self._programs.clear()
        self._held.clear()
        self._queues.clear()
        self._conditions = {}
        await gather_all(program.close() for program in programs)
        await super()._close_shells()


def split(nodes: Iterable[str], conditions: Mapping[Link, LinkConditions]) -> dict[str, NodeShaping]:
    """Return the links whose packets each node holds: those into the node, and those from it to a client host.

    Links between client hosts carry no packets.
    """
    found = {node: NodeShaping({}, {}) for node in nodes}
    leaving: dict[str, dict[str, LinkConditions]] = {node: {} for node in found}
    arriving: dict[str, dict[str, LinkConditions]] = {node: {} for node in found}
    for (source, target), condition in sorted(conditions.items()):
        if machine_of(target) in arriving:
            arriving[machine_of(target)][source] = condition
        elif machine_of(source) in leaving:
            leaving[machine_of(source)][target] = condition
    return {node: NodeShaping(leaving[node], arriving[node]) for node in found}


def _beside(name: str, machine: str) -> str:
    """Return a machine's name on the network of another name."""
    _, at, further = name.partition("@")
    return endpoint(machine, further) if at else machine
