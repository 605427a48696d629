"""Programs that a simulated manager starts on its own simulated machine."""

from __future__ import annotations

from collections.abc import Mapping

from nodes.reference.designs.qpid.manager.programs import ProgramError, ProgramState
from stormproof.contracts.backend import DEAD, Backend, Launch, Launcher
from stormproof.errors import BackendError


class LaunchedPrograms:
    """Programs of one machine (``Programs``): for each, how it is launched, and its log."""

    def __init__(self, backend: Backend, machine: str, programs: Mapping[str, tuple[Launch, str]]) -> None:
        self._backend, self._machine, self._programs = backend, machine, dict(programs)

    async def start(self, name: str) -> None:
        """Launch a program; raises ProgramError when it runs, or the machine is gone."""
        assert isinstance(self._backend, Launcher)
        launch, log = self._programs[name]
        try:
            await self._backend.launch(self._machine, name, launch, log)
        except BackendError as error:
            raise ProgramError(str(error)) from error

    async def stop(self, name: str, timeout: float) -> None:
        """Have a program end in order, or by force after ``timeout`` seconds."""
        await self._backend.stop(self._machine, name, timeout)

    async def kill(self, name: str) -> None:
        """End a program at once."""
        await self._backend.kill(self._machine, name)

    async def state(self, name: str) -> ProgramState:
        """How it is."""
        state = await self._backend.process(self._machine, name)
        return ProgramState(state.state != DEAD, f"{state.pid} {state.born}".strip() if state.pid else "")
