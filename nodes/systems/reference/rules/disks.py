"""Watchers that compare a program's word with its disk."""

from __future__ import annotations

from typing import Any

from stormproof.contracts.invariant import Watcher


class DiskWatcher(Watcher):
    """Tracks the programs that run on although their disk has lost their files: those can't be asked for them."""

    def __init__(self) -> None:
        self._without: set[str] = set()

    def look(self, node: str, program: Any, now: Any, before: Any) -> str:
        """Note that a program has been started, on what its disk has now."""
        if before is None:
            self._without.discard(node)
        return ""

    def disk_lost(self, node: str) -> None:
        """Note that a program may run on without its files."""
        self._without.add(node)

    def lacks_files(self, node: str) -> bool:
        """Tell whether the node's program runs on without the files that its disk has lost."""
        return node in self._without

    def rows(self, node: str, table: str) -> list[tuple[Any, ...]] | None:
        """Return the durable rows of a node's table; None where its disk has lost them."""
        return None if node in self._without else self.outside.durable(node).rows(table)
