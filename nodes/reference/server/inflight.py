"""How much work a client's commands are, as far as that can be told before they are applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nodes.reference.api import Command

_LARGE = 4 << 10
"""Bytes of a body from which on a command needs its turn."""
_MANY = 16
"""Weight beyond which it needs one: that is how many messages it brings, say."""
_COPY = 4 << 10
"""Bytes that take as long as one of these."""


class UnderWay(NamedTuple):
    """A command under way: bytes of its body, how much work it is, and bytes of the turn that it has (0: none)."""

    size: int
    weight: int
    turn: int


class Work:
    """Estimates the commands of one connection; ``weight`` is the engine's estimate by what it holds now."""

    def __init__(self, weight: Callable[[Command], int]) -> None:
        self._weight = weight
        self._deferred: dict[str, int] = {}

    def of(self, command: Command) -> UnderWay:
        """How much work a command is, and the turn that it needs if that is much."""
        size, weight = len(command.args.get("body", b"")), self._weight(command)
        if "tx" in command.args:
            weight = max(weight, self._in_transaction(command))
        if size < _LARGE and weight <= _MANY:
            return UnderWay(size, weight, 0)
        return UnderWay(size, weight, size + weight * _COPY)

    def _in_transaction(self, command: Command) -> int:
        """What a COMMIT brings, which may come before the engine knows what the transaction holds."""
        name = command.args["tx"]
        if command.kind == "send":
            plain = Command("send", command.conn, 0, {"destination": command.args["destination"]})
            self._deferred[name] = self._deferred.get(name, 0) + self._weight(plain)
        elif command.kind in ("commit", "abort", "prepare"):
            deferred = self._deferred.pop(name, 0)
            return 1 + deferred if command.kind == "commit" else 1
        return 1
