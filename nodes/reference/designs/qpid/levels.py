"""The replication level of each queue, exchange and binding [Selective replication]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodes.reference.designs.qpid.configuration import BINDING, EXCHANGE, QUEUE, Configuration
from nodes.reference.designs.qpid.options import LEVELS, QpidOptions


class Levels:
    """The level of each object: ``messages``, ``configuration`` or ``none``."""

    def __init__(self, options: QpidOptions, configuration: Configuration) -> None:
        self._options, self._configuration = options, configuration

    def of(self, kind: str, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the level of an object with these arguments.

        The level of a queue or an exchange is that of its argument, else that of its name, else the default. A binding
        has the lower level of its two ends: a backup has a binding if and only if it has both of them.
        """
        if kind != BINDING:
            return self._options.level(name, arguments)
        ends = (self._of_end(EXCHANGE, arguments["exchange"]), self._of_end(QUEUE, arguments["queue"]))
        return max(ends, key=LEVELS.index)

    def of_queue(self, name: str) -> str:
        """Return the level of the queue of this name, which need not exist yet."""
        return self._of_end(QUEUE, name)

    def _of_end(self, kind: str, name: str) -> str:
        return self._options.level(name, self._configuration.get((kind, name)) or {})
