"""The lock file of a simulated gateway, on its simulated machine."""

from __future__ import annotations

from stormproof.contracts.backend import Backend
from stormproof.errors import BackendError


class SimulatedLockFile:
    """A file of one machine (``LockFile`` of the gateway); an empty one counts as none."""

    def __init__(self, backend: Backend, machine: str, path: str) -> None:
        self._backend, self._machine, self._path = backend, machine, path

    async def read(self) -> bytes | None:
        """Return the content; None if there is none."""
        try:
            return await self._backend.download(self._machine, self._path) or None
        except BackendError:
            return None

    async def write(self, content: bytes) -> None:
        """Replace the content."""
        await self._backend.upload(self._machine, content, self._path)
