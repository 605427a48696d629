"""The common part of all real backends: everything except how to open a root shell on a node."""

from __future__ import annotations

import asyncio
import json
import posixpath
import secrets
import shlex
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from harness.backends import network, process, usage
from harness.backends.shell import Output, Shell, ShellChannel
from stormproof.apart import at_home
from stormproof.contracts.backend import FILES, KILL, LINKS, PAUSE, Backend, CommandResult, Link, ProcessState, Usage
from stormproof.contracts.option import Option
from stormproof.contracts.topology import Topology, machine_of
from stormproof.errors import BackendError
from stormproof.timeout_scale import TIMEOUT_FACTOR

T = TypeVar("T")

CALL_LIMIT = 10.0 * TIMEOUT_FACTOR
"""Seconds that a call on a node may take by default."""

COPY_LIMIT = 120.0 * TIMEOUT_FACTOR
DOWNLOAD_LIMIT = 1 << 28
"""Bytes of the largest file that ``download`` returns."""

ABILITIES: Mapping[str, str] = {
    LINKS: "packets of each cut link dropped by an nftables table of its own on the node, with counters",
    PAUSE: "SIGSTOP to the program's process group, checked in /proc",
    KILL: "SIGKILL to the program's process group, checked in /proc",
    FILES: "rm(1) on the node",
}


def installed_script(packages: Sequence[str]) -> str:
    """Return a script that prints ``installed NAME`` for each installed one of some Debian packages."""
    command = "dpkg-query --show --showformat '${db:Status-Status} ${Package}\n'"
    return f"{command} {shlex.join(packages)} 2>/dev/null || :"


class ShellBackend(Backend):
    """A backend based on root shells; subclasses provision the nodes and open channels to them.

    Each node has two shells: one for commands and files, one for process and network control. A slow command therefore
    never delays a fault or its healing.
    """

    abilities = ABILITIES
    lateness: ClassVar[float | None] = 5.0
    silence: ClassVar[float | None] = None
    """Seconds after which a silent shell must answer before it is used again (see ``Shell``)."""
    installs: ClassVar[str] = ""
    """An alternative way to install a system's packages, appended to the install command in an error message."""
    options: ClassVar[tuple[Option, ...]] = (usage.COSTS_INTERVAL,)

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._work: dict[str, Shell] = {}
        self._control: dict[str, Shell] = {}
        self._rules: dict[str, network.Filter] = {}
        self._carried: dict[Link, int] = {}
        self._network_lock = asyncio.Lock()

    @staticmethod
    def check_settings(options: Mapping[str, Any]) -> None:
        """Check the settings; raises UsageError where a value makes no sense."""
        usage.check_interval(options)

    def code_dir(self, node: str) -> str:
        """Return the folder for programs on the node: inside the node's folder, where nodes end with their run."""
        return f"{self.node_dir(node)}/code"

    @abstractmethod
    def python(self, node: str) -> str:
        """Return the Python interpreter to run on the node."""

    @abstractmethod
    async def _connect(self, node: str) -> ShellChannel:
        """Open a channel to a new root shell on the node, with errors merged into its output."""

    async def open_shell(self, node: str) -> ShellChannel:
        """Open a root shell on a node, for a person."""
        return await self._connect(node)

    def address(self, name: str) -> str:
        """Return the IP address of a node or of a client host (to which a client binds its sockets).

        Raises:
            BackendError: the test has no such name.
        """
        try:
            return self._addresses[name]
        except KeyError:
            known = ", ".join(self._addresses) or "none: not provisioned"
            raise BackendError(f"{name!r} has no address (known: {known})") from None

    async def exec(self, node: str, command: str, timeout: float = CALL_LIMIT) -> CommandResult:
        """Run a shell command on a node as root; raises BackendError when it takes longer than ``timeout``."""
        # Connections of a system's clients call this from other event loops.
        output = await at_home(lambda: self._shell(self._work, node).run(command, timeout))
        return CommandResult(output.status, output.text)

    async def upload(self, node: str, content: bytes, path: str) -> None:
        """Write a file on a node, atomically, and create its folder."""
        final, part = shlex.quote(path), shlex.quote(f"{path}.{secrets.token_hex(4)}.part")
        script = (
            f"mkdir -p {shlex.quote(posixpath.dirname(path) or '.')} && head -c {len(content)} > {part} && "
            f"[ $(wc -c < {part}) = {len(content)} ] && mv -f {part} {final} || {{ rm -f {part}; exit 1; }}"
        )
        output = await self._shell(self._work, node).run(script, COPY_LIMIT, payload=content)
        _demand(output, f"{node}: can't write {path}")

    async def download(self, node: str, path: str) -> bytes:
        """Read a file of a node; raises BackendError when it does not exist or is larger than ``DOWNLOAD_LIMIT``."""
        script = f"cat -- {shlex.quote(path)}"
        output = await self._shell(self._work, node).run(script, COPY_LIMIT, limit=DOWNLOAD_LIMIT)
        _demand(output, f"{node}: can't read {path}")
        if output.size > DOWNLOAD_LIMIT:
            raise BackendError(f"{node}: {path} has {output.size} bytes, more than {DOWNLOAD_LIMIT}")
        return output.data

    async def remove(self, node: str, path: str) -> None:
        """Delete a file of a node; do nothing if it does not exist."""
        output = await self._shell(self._work, node).run(f"rm -f -- {shlex.quote(path)}", CALL_LIMIT)
        _demand(output, f"{node}: can't delete {path}")

    async def start(self, node: str, program: str, argv: Sequence[str], log: str) -> None:
        """Launch a program in the background, with its output appended to the file ``log`` on the node.

        Raises:
            BackendError: the program runs there already, or the command does not exist.
        """
        script = process.start_script(self._pid_file(node, program), argv, log, self.node_dir(node))
        await self._steer(node, script, f"can't start the {program}")

    async def stop(self, node: str, program: str, timeout: float = 5.0) -> str:
        """End a program with SIGTERM, then SIGKILL after ``timeout``; return the signal that ended it."""
        script = process.stop_script(self._pid_file(node, program), timeout)
        done = await self._steer(node, script, f"can't stop the {program}", timeout + CALL_LIMIT)
        return done.text.strip()

    async def kill(self, node: str, program: str) -> None:
        """End a program with SIGKILL; do nothing if it is dead."""
        await self._steer(node, process.kill_script(self._pid_file(node, program)), f"can't kill the {program}")

    async def pause(self, node: str, program: str) -> None:
        """Stop a program's processes with SIGSTOP; raises BackendError when it is dead."""
        await self._steer(node, process.pause_script(self._pid_file(node, program)), f"can't pause the {program}")

    async def resume(self, node: str, program: str) -> None:
        """Continue a program's processes with SIGCONT; raises BackendError when it is dead."""
        await self._steer(node, process.resume_script(self._pid_file(node, program)), f"can't resume the {program}")

    async def process(self, node: str, program: str) -> ProcessState:
        """Return a program's state, read from the operating system."""
        script = process.state_script(self._pid_file(node, program))
        output = await self._steer(node, script, f"can't see the {program}")
        return process.parse_state(output.text)

    async def set_network(self, cut: frozenset[Link]) -> None:
        """Make exactly these links drop every packet and all others pass; idempotent.

        A link between two client hosts carries no packets: it is accepted and has no counter. Counters of links that
        stay cut continue; those of other links restart at zero.
        """
        for end in sorted({end for link in cut for end in link}):
            self.address(end)
        async with self._network_lock:
            wanted = network.filters(self._control, cut)
            changed = [node for node, rules in wanted.items() if self._rules.get(node) != rules]
            counts = self._carried | await self._counts(changed)
            self._carried = {link: packets for link, packets in counts.items() if link in cut}
            await gather_all(self._filter(node, wanted[node]) for node in changed)

    async def dropped(self) -> Mapping[Link, int]:
        """Return the packets dropped so far on each link that is cut now (evidence of a partition)."""
        async with self._network_lock:
            return await self._counts(self._control)

    async def probe(self, link: Link, timeout: float) -> str:
        """Test whether a packet from one node to another passes and is answered within ``timeout`` seconds."""
        # Port 9 (discard) is closed on ordinary machines, so a packet that arrives is answered at once by a refusal.
        connect = shlex.quote(f"exec 3<>/dev/tcp/{self.address(link[1])}/9")
        result = await self.exec(machine_of(link[0]), f"timeout {timeout} bash -c {connect} 2>&1", timeout + CALL_LIMIT)
        if result.status == 0 or "refused" in result.output:
            return "open"
        return "cut" if result.status == 124 else "unknown"

    async def writes_to(self, node: str) -> tuple[str, ...]:
        """List the folders outside the data folder to which the node's programs write.

        They have files open there, or files below the node's folder have changed. Paths below the node's folder are
        relative to it.
        """
        return await self._written(node, self.data_dir(node))

    async def _written(self, node: str, but: str = "") -> tuple[str, ...]:
        base = self.node_dir(node)
        done = await self.exec(node, usage.where_written(self.python(node), base, but))
        try:
            found = [str(path) for path in json.loads(done.output)]
        except (ValueError, TypeError):
            raise BackendError(f"{node}: can't determine the folders that it writes to: {done.output[-200:]}") from None
        return tuple(posixpath.relpath(path, base) if path.startswith(base) else path for path in found)

    def usage(self, node: str, interval: float) -> AsyncGenerator[Usage, None]:
        """Yield the resource usage of a node, about every ``interval`` seconds, through a separate shell."""
        self._shell(self._control, node)  # Check that the node exists.
        program = usage.command(self.python(node), interval, self.node_dir(node), self.data_dir(node),
                                self._wire_devices(node))  # fmt: skip
        return usage.measured(node, lambda: self._connect(node), program, interval)

    def _wire_devices(self, node: str) -> Sequence[str]:
        """Return the network devices whose bytes count for the node; empty: all that lead out of it."""
        return ()

    async def _filter(self, node: str, rules: network.Filter) -> None:
        self._rules.pop(node, None)  # Until the node has confirmed, its filter is unknown.
        await self._steer(node, rules.script(self._addresses), "can't set the network")
        self._rules[node] = rules

    async def _counts(self, nodes: Iterable[str]) -> dict[Link, int]:
        cutting = [(node, rules) for node in nodes if (rules := self._rules.get(node)) and rules.links(node)]
        outputs = await gather_all(
            self._steer(node, network.counts_script(), "can't read the counters") for node, _ in cutting
        )
        counts: dict[Link, int] = {}
        for (node, rules), output in zip(cutting, outputs, strict=True):
            counts |= network.parse_counts(output.text, node, rules, self._addresses)
        return {link: n + self._carried.get(link, 0) for link, n in counts.items()}

    async def _steer(self, node: str, script: str, failure: str, timeout: float = CALL_LIMIT) -> Output:
        output = await self._shell(self._control, node).run(script, timeout)
        _demand(output, f"{node}: {failure}")
        return output

    async def _demand_packages(self, topology: Topology, machines: Sequence[str]) -> None:
        """Check that machines have the Debian packages that the test needs.

        Raises:
            BackendError: a machine lacks some; the message has the command that installs them.
        """
        wanted = sorted(topology.packages)
        if not wanted:
            return
        answers = await gather_all(self.exec(machine, installed_script(wanted)) for machine in machines)
        for machine, answer in zip(machines, answers, strict=True):
            there = {line.partition(" ")[2] for line in answer.output.splitlines() if line.startswith("installed ")}
            if missing := [package for package in wanted if package not in there]:
                raise BackendError(f"{self._place(machine)} lacks Debian packages that this system needs; run there: "
                                   f"apt-get install --no-install-recommends {' '.join(missing)}{self.installs}")

    def _place(self, machine: str) -> str:
        """Return the name by which a person knows the computer that hosts a machine."""
        return machine

    def _open_shells(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            for shells in (self._work, self._control):
                shells[node] = Shell(node, lambda node=node: self._connect(node), self.silence)  # type: ignore[misc]

    async def _close_shells(self) -> None:
        shells = [*self._work.values(), *self._control.values()]
        self._work.clear()
        self._control.clear()
        self._rules.clear()
        self._carried.clear()
        await gather_all(shell.close() for shell in shells)

    def _shell(self, shells: Mapping[str, Shell], node: str) -> Shell:
        try:
            return shells[node]
        except KeyError:
            raise BackendError(f"unknown node {node!r} (known: {', '.join(shells) or 'none'})") from None

    def _pid_file(self, node: str, program: str) -> str:
        return posixpath.join(self.node_dir(node), f"{program}.pid")


def brought_path(folders: Mapping[str, str], name: str) -> str:
    """Return the path of a brought folder on machines. Raises BackendError if there is none of that name."""
    if name not in folders:
        raise BackendError(f"no folder {name!r} was brought to these machines")
    return folders[name]


async def gather_all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await all calls at once; when some fail, raise the first failure after all have ended."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _demand(output: Output, failure: str) -> None:
    if output.status != 0:
        raise BackendError(f"{failure}: {' '.join(output.text.split()) or f'status {output.status}'}")
