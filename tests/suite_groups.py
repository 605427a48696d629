"""How pytest-xdist gives the tests of this suite to its processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_LEAST = 2
"""Tests that wait in a process, at least."""


class Groups(LoadScopeScheduling):
    """Tests are given to processes one by one, the tests of a group all to the same.

    ``together``: beginning of the tests' names -> their group. (``--dist loadgroup`` groups nothing with pytest 9.2,
    pytest-xdist's issue 1386.)
    """

    def __init__(self, config: Any, log: Any, together: Mapping[str, str]) -> None:
        super().__init__(config, log)
        self._together = together

    def _split_scope(self, nodeid: str) -> str:
        return next((group for start, group in self._together.items() if nodeid.startswith(start)), nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process more, until two tests wait in it: it runs none before it knows the next one. Who was started
        in place of another gets nothing before it has told what tests it knows."""
        if node not in self.registered_collections:
            return
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < _LEAST:
            self._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """What a process that died has not run is given to others; which test it died of.

        pytest-xdist gives them all that the process was ever given, and waits for ever where nothing of that is left.
        """
        work = self.assigned_work.pop(node)
        left = [nodeid for unit in work.values() for nodeid, done in unit.items() if not done]
        if not left:
            return None
        died_of = left[0]
        for scope, unit in work.items():
            if rest := {nodeid: done for nodeid, done in unit.items() if not done and nodeid != died_of}:
                self.workqueue[scope] = rest
        for other in self.assigned_work:
            self._reschedule(other)
        return str(died_of)
