"""Folders of this machine that the machines of a test need: an ability of backends."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class BringsFolders(Protocol):
    """Machines that get folders of this machine (``Topology.folders``), to read: in place, mounted or copied."""

    def brought(self, name: str) -> str:
        """Return the path of a brought folder, as each machine sees it.

        Raises:
            BackendError: no brought folder has that name.
        """
        ...
