"""The operation: one invocation or completion of a client or of the nemesis."""

from __future__ import annotations

from typing import Any, NamedTuple

INVOKE = "invoke"
OK = "ok"
FAIL = "fail"
INFO = "info"

NOT_FOUND = "not found"
"""The prefix of the error of an operation whose object did not exist, according to an authoritative node."""
KEPT_BACK = "the broker keeps"
"""The text in a drain's error if the broker has messages and does not deliver them."""
UNKNOWN_DEPTH = "nobody tells the queue's depth"
"""The error of an operation for which no request tells how many messages a queue holds."""
ANSWERS = frozenset({"empty", UNKNOWN_DEPTH, "not what was expected"})
"""Errors of operations that found nothing, or found another value than they expected: the system answered them."""

NEMESIS = -1
"""Process number of the nemesis; clients count from 0."""


class Op(NamedTuple):
    """One row of a history.

    ``type`` is ``invoke``, ``ok`` (happened), ``fail`` (certainly did not happen) or ``info`` (may or may not have
    happened). ``value`` has the meaning that the workload gives it: ``None``, an integer, or a pair of integers
    (producer, sequence); anything else is stored as JSON text. ``key`` names the independent object (queue number),
    ``time`` is nanoseconds since the start of the run, stamped by the interpreter (the recorder assigns the row
    number). ``node`` is the node that the client talked to, ``error`` a short reason for a completion that is not
    ``ok``.
    """

    type: str
    f: str
    value: Any = None
    key: int | None = None
    process: int = NEMESIS
    time: int = -1
    node: str | None = None
    error: str | None = None

    def ok(self, value: Any = None, node: str | None = None) -> Op:
        """Return the completion for an operation that happened; it keeps the invocation's value if none is given."""
        return self._replace(type=OK, value=self.value if value is None else value, node=node or self.node)

    def fail(self, error: str, node: str | None = None) -> Op:
        """Return the completion for an operation that certainly did not happen."""
        return self._replace(type=FAIL, error=error, node=node or self.node)

    def info(self, error: str, value: Any = None, node: str | None = None) -> Op:
        """Return the completion for an operation that may or may not have happened."""
        value = self.value if value is None else value
        return self._replace(type=INFO, error=error, value=value, node=node or self.node)
