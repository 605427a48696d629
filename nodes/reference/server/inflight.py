"""Estimates the work of a client's commands, as far as possible before they are applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nodes.reference.api import Command

_TURN_BODY_BYTES = 4 << 10
"""Bytes of a body from which on a command needs a turn."""
_TURN_WEIGHT = 16
"""Weight beyond which a command needs a turn: for instance, the number of messages that it creates."""
_BYTES_PER_WEIGHT = 4 << 10
"""Bytes whose handling takes as long as one unit of weight."""


class UnderWay(NamedTuple):
    """A command under way: bytes of its body, its weight, and the size of its turn in bytes (0: none)."""

    size: int
    weight: int
    turn: int


class Work:
    """Estimates the work of one connection's commands; ``weight`` is the engine's estimate from its current state."""

    def __init__(self, weight: Callable[[Command], int]) -> None:
        self._weight = weight
        self._deferred: dict[str, int] = {}

    def of(self, command: Command) -> UnderWay:
        """Return the work of a command, and the turn that it needs if that is much."""
        size, weight = len(command.args.get("body", b"")), self._weight(command)
        if "tx" in command.args:
            weight = max(weight, self._in_transaction(command))
        if size < _TURN_BODY_BYTES and weight <= _TURN_WEIGHT:
            return UnderWay(size, weight, 0)
        return UnderWay(size, weight, size + weight * _BYTES_PER_WEIGHT)

    def _in_transaction(self, command: Command) -> int:
        """Return the weight of a command in a transaction; a COMMIT may arrive before the engine knows the
        transaction's items."""
        name = command.args["tx"]
        if command.kind == "send":
            plain = Command("send", command.conn, 0, {"destination": command.args["destination"]})
            self._deferred[name] = self._deferred.get(name, 0) + self._weight(plain)
        elif command.kind in ("commit", "abort", "prepare"):
            deferred = self._deferred.pop(name, 0)
            return 1 + deferred if command.kind == "commit" else 1
        return 1
