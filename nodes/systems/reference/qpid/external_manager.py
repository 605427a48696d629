"""Third-party cluster managers, which run brokers through the service scripts (docs/designs/qpid.md)."""

from __future__ import annotations

import asyncio
import json
import shlex
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from nodes.systems.reference.cluster import CLIENT_PORT
from nodes.systems.reference.code import module_command
from nodes.systems.reference.layout import ReplicaGroup
from nodes.systems.reference.qpid.cluster import PATIENCE, QpidCluster
from stormproof.contracts.backend import DEAD, HOST_ROOT, Shells
from stormproof.contracts.cluster import MAIN, Deployment, NodeStatus
from stormproof.errors import BackendError, UsageError

_SERVICES = "services.json"
_AS_ROOT = ("grep -q 4294967295 /proc/self/uid_map || "
            "{ echo 'it changes users: run this as root, or use --backend docker'; exit 1; }")
"""If an ordinary user creates machines, these have only one user."""
_STOP_SECONDS = 10.0
"""Time limit for a manager to end in order."""


class OutsideCluster(QpidCluster):
    """Brokers that a third-party manager starts and promotes.

    ``manager_programs`` are its programs on each node, in the order of their start.
    """

    manager_programs: ClassVar[tuple[str, ...]]

    def __init__(self, groups: tuple[ReplicaGroup, ...], deployment: Deployment) -> None:
        super().__init__(groups, deployment)
        self._starting = {node: asyncio.Lock() for node in self.test.node_names}

    @abstractmethod
    def manager_files(self, node: str) -> Mapping[str, str]:
        """Return the files of the manager on a node: path -> text; texts that begin with ``#!`` are made executable."""

    @abstractmethod
    def manager_command(self, node: str, program: str) -> Sequence[str]:
        """Return the command that starts one of the manager's programs."""

    @property
    def shells(self) -> Shells:
        """The backend, which has shells."""
        assert isinstance(self.backend, Shells)
        return self.backend

    def script(self, node: str, service: str) -> str:
        """Return the path of a service script."""
        return f"{self.backend.node_dir(node)}/qpid-{service}"

    def programs(self, machine: str) -> tuple[str, ...]:
        """Return the broker, then its manager's programs."""
        return (MAIN, *self.manager_programs)

    def restarted(self, machine: str, program: str) -> bool:
        """Tell whether the program is restarted automatically: brokers are, by their managers."""
        return program == MAIN

    async def install(self) -> None:
        """Upload code, scripts and configurations to all nodes.

        Raises:
            UsageError: the machines are used beyond the run, and must not get another cluster manager.
        """
        if self.backend.root_folder == HOST_ROOT:
            raise UsageError(f"--set manager={self.test.options['manager']}: it would replace the cluster manager of "
                             "the hosts; use --backend docker or local")
        await self.before_install()
        await super().install()
        await asyncio.gather(*(self._install_manager(node) for node in self.test.node_names))

    async def before_install(self) -> None:
        """Prepare everything that must exist before files are created."""

    async def prepare_machine(self, node: str) -> None:
        """Prepare a machine before files are put there."""

    async def _install_manager(self, node: str) -> None:
        base, shells = self.backend.node_dir(node), self.shells
        await self.demand(node, _AS_ROOT)
        await self.prepare_machine(node)
        services = json.dumps({
            "node": node,
            "brokers": {name: [self.backend.address(name), CLIENT_PORT] for name in self.test.node_names},
            "command": module_command(shells, node, "nodes.reference", f"{base}/config.json"),
            "pid_file": f"{base}/{MAIN}.pid",
            "log": self.log_path(node, MAIN),
            "login": self.login,
            "passcode": self.passcode,
        })  # fmt: skip
        files = {f"{base}/{_SERVICES}": services, **dict(self._scripts(node)), **self.manager_files(node)}
        for path, text in files.items():
            await self.backend.upload(node, text.encode(), path)
        runnable = shlex.join(path for path, text in files.items() if text.startswith("#!"))
        await self.demand(node, f"chmod 600 {shlex.quote(f'{base}/{_SERVICES}')} && chmod 755 {runnable}")

    def _scripts(self, node: str) -> list[tuple[str, str]]:
        config = shlex.quote(f"{self.backend.node_dir(node)}/{_SERVICES}")
        found = []
        for service in ("backup", "primary"):
            run = module_command(self.shells, node, "nodes.reference.designs.qpid.service", service)
            found.append((self.script(node, service),
                          f'#!/bin/sh\n{self.before_script(service)}exec {shlex.join(run)} "$1" {config}\n'))
        return found

    def before_script(self, service: str) -> str:
        """Return the commands that a service script runs before all else."""
        return ""

    async def demand(self, node: str, command: str) -> None:
        """Run a shell command on a node; raises BackendError when it fails."""
        done = await self.shells.exec(node, command)
        if done.status:
            raise BackendError(f"{node}: its cluster manager can't be set up: {done.output.strip()[-300:]}")

    async def start_program(self, machine: str, program: str) -> None:
        """Start a program of the manager, unless that was done in the meantime; the manager starts brokers itself."""
        if program == MAIN:
            return
        async with self._starting[machine]:
            if (await self.backend.process(machine, program)).state == DEAD:
                command = self.manager_command(machine, program)
                await self.shells.start(machine, program, command, self.log_path(machine, program))

    async def _look_after(self, timeout: float, over: Callable[[Sequence[NodeStatus]], bool]) -> bool:
        """Act as an administrator who also restarts managers that have ended and stay so."""
        looking = asyncio.create_task(self._look_after_managers())
        try:
            return await super()._look_after(timeout, over)
        finally:
            looking.cancel()

    async def _look_after_managers(self) -> None:
        places = [(node, program) for node in self.test.node_names for program in self.manager_programs]
        ended: set[tuple[str, str]] = set()
        while True:
            await asyncio.sleep(PATIENCE)
            found = {place for place in places if (await self.backend.process(*place)).state == DEAD}
            for node, program in sorted(found & ended):
                await self.start_program(node, program)
                self.note_by_hand(f"started the {program} of {node} again")
            ended = found

    async def stop(self) -> None:
        """Stop the managers first, which would restart brokers."""
        for program in reversed(self.manager_programs):
            await asyncio.gather(*(self.backend.stop(node, program, _STOP_SECONDS) for node in self.test.node_names))
        await super().stop()
