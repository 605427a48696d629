"""A system that runs already on hosts that are reached over SSH: the harness only injects faults there.

The hosts must be marked as breakable, like all hosts over SSH (``facts.MARKER``). Faults hit the processes that listen
at a replica's port; everything is restored at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from harness.backends import foreign, process
from harness.backends.attach import ATTACH, credentials_from_environment, places_of, read_places
from harness.backends.packets import PACKET_ABILITIES
from harness.backends.ssh.backend import SshBackend
from harness.backends.ssh.hosts import SshHost
from nemesis.families import families_of
from stormproof.contracts.backend import FILES, KILL, PAUSE, Capability, Credentials, ProcessState
from stormproof.contracts.fault import ENDS_PROCESS
from stormproof.contracts.option import Option
from stormproof.contracts.topology import Topology
from stormproof.errors import BackendError, UsageError
from stormproof.test import Test

SUPERVISED = Option("supervised", False, "whether a supervisor on the hosts (systemd, say) restarts killed programs: "
                    "the harness restarts none, so kills need one")


class AttachSshBackend(SshBackend):
    """Hosts, the first of which has the first replica, and so on."""

    name = "attach-ssh"
    options = (ATTACH, SUPERVISED, *(option for option in SshBackend.options if option.name != "power"))
    abilities: ClassVar[Mapping[str, str]] = {
        **{name: how for name, how in PACKET_ABILITIES.items() if name != FILES},
        PAUSE: "SIGSTOP to whoever listens at the replica's port, checked in /proc",
        KILL: "SIGKILL to whoever listens at the replica's port, which must be started again by something there "
              "(--set supervised=true)",
    }  # fmt: skip
    also_type = " --attach HOST:PORT --hosts FILE"

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[str, tuple[str, int]] = {}

    @staticmethod
    def requirements() -> list[Capability]:
        """Return a single capability: the backend needs nothing."""
        return [Capability("attach-ssh", True, "a system that runs already, on hosts reached over SSH")]

    @staticmethod
    def prepare_settings(given: Mapping[str, Any]) -> dict[str, Any]:
        """Check files and addresses, to report mistakes before anything is created."""
        read_places(str(given.get(ATTACH.name) or ""))
        return SshBackend.prepare_settings(given)

    @staticmethod
    def cannot(test: Test, topology: Topology) -> str:
        """Return why the test is impossible: the harness cannot restart a process that a fault has ended."""
        ending = [family.name for family in families_of(test) if ENDS_PROCESS in family.effects]
        if ending and not test.options.get(SUPERVISED.name):
            return (f"faults that end processes ({', '.join(ending)}): nothing is started where we are attached; "
                    "if something there starts again what was killed, say so: --set supervised=true")
        return ""

    async def provision(self, test: Test, topology: Topology, run_dir: Path) -> None:
        """Provision as ``SshBackend`` does, without demanding packages; each replica's address must be its host's."""
        self._places = await places_of(test)
        await super().provision(test, replace(topology, packages=(), networks=(), shared=(), addresses=()), run_dir)

    def _hosts(self, test: Test, topology: Topology) -> Sequence[SshHost]:
        hosts = super()._hosts(test, topology)
        places = zip(hosts, self._places.values(), strict=False)
        return [replace(host, network=address) for host, (address, _) in places]

    def port(self, node: str) -> int:
        """Return a replica's port."""
        return self._places[node][1]

    def credentials(self) -> Credentials:
        """Return the credentials from the environment."""
        return credentials_from_environment()

    async def process(self, node: str, program: str) -> ProcessState:
        """Return the state of the process that listens at the replica's port."""
        output = await self._steer(node, foreign.state_script(self.port(node)), "can't see who listens")
        return process.parse_state(output.text)

    async def pause(self, node: str, program: str) -> None:
        """Stop the listening processes."""
        await self._steer(node, foreign.pause_script(self.port(node), self.node_dir(node)), "can't pause it")

    async def resume(self, node: str, program: str) -> None:
        """Continue the stopped processes."""
        await self._steer(node, foreign.resume_script(self.port(node), self.node_dir(node)), "can't let it go on")

    async def kill(self, node: str, program: str) -> None:
        """Kill the listening processes."""
        await self._steer(node, foreign.end_script(self.port(node), "KILL", process.SETTLE_S), "can't kill it")

    async def stop(self, node: str, program: str, timeout: float = 5.0) -> str:
        """Ask the listening processes to end, and kill them after ``timeout``; a supervisor there starts them again."""
        script = foreign.end_script(self.port(node), "TERM", timeout)
        return (await self._steer(node, script, "can't end it", 2 * timeout)).text.strip()

    async def start(self, node: str, program: str, argv: Sequence[str], log: str) -> None:
        """Raise BackendError: the harness starts nothing on attached hosts."""
        raise BackendError(f"{node}: nothing is started where we are attached")

    async def upload(self, node: str, content: bytes, path: str) -> None:
        """Write a file into the harness's own folder on the host, for the program that handles packets.

        Raises:
            UsageError: the path is elsewhere: the harness changes no other files on attached hosts.
        """
        if not path.startswith(f"{self.node_dir(node)}/"):
            raise UsageError(f"{node}: nothing is put on machines that we are attached to")
        await super().upload(node, content, path)
