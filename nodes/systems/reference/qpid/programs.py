"""Programs that a simulated manager starts on its own simulated machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodes.reference.designs.qpid.manager.programs import ProgramError, ProgramState
from nodes.reference.designs.qpid.options import BUILTIN
from nodes.systems.reference.qpid.managers import OUTSIDE
from stormproof.contracts.backend import DEAD, Backend
from stormproof.contracts.launch import Launch, Launcher
from stormproof.contracts.system import MANAGER as MANAGER_ROLE
from stormproof.errors import BackendError
from stormproof.test import Test

MANAGER = "manager"
"""The program next to each broker."""
STORE = "store"
"""The shared folder of all machines that contains a cold standby's store."""


def disaster_nodes(test: Test) -> tuple[str, ...]:
    """Return the nodes for disaster recovery: the last ones, by the option ``dr_nodes``."""
    return test.node_names[len(test.node_names) - int(test.options["dr_nodes"]):]


def program_roles(options: Mapping[str, Any]) -> dict[str, str]:
    """Return role -> program, under a test's options."""
    manager = options["manager"]
    if manager in OUTSIDE:
        return {MANAGER_ROLE: OUTSIDE[manager].program}
    return {MANAGER_ROLE: MANAGER} if manager == BUILTIN else {}


class LaunchedPrograms:
    """Programs of one machine (``Programs``): for each, its launcher and its log.

    ``shared``: the shared folder of all machines that contains their databases, if these are not on the machine itself.
    """

    def __init__(self, backend: Backend, machine: str, programs: Mapping[str, tuple[Launch, str]],
                 shared: str = "") -> None:
        self._backend, self._machine, self._programs, self._shared = backend, machine, dict(programs), shared

    async def start(self, name: str) -> None:
        """Launch a program; raises ProgramError when it runs, or the machine is gone."""
        assert isinstance(self._backend, Launcher)
        launch, log = self._programs[name]
        try:
            await self._backend.launch(self._machine, name, launch, log, self._shared)
        except BackendError as error:
            raise ProgramError(str(error)) from error

    async def stop(self, name: str, timeout: float) -> None:
        """End a program in order, or by force after ``timeout`` seconds."""
        await self._backend.stop(self._machine, name, timeout)

    async def kill(self, name: str) -> None:
        """End a program at once."""
        await self._backend.kill(self._machine, name)

    async def state(self, name: str) -> ProgramState:
        """Return the program's state."""
        state = await self._backend.process(self._machine, name)
        return ProgramState(state.state != DEAD, f"{state.pid} {state.born}".strip() if state.pid else "")
