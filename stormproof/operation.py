"""The operation: one invocation or completion of a client or of the nemesis."""

from __future__ import annotations

from typing import Any, NamedTuple

INVOKE = "invoke"
OK = "ok"
FAIL = "fail"
INFO = "info"

NOT_FOUND = "not found"
"""How the error of an operation begins whose object was not there, by the word of a node that would know."""
KEPT_BACK = "the broker keeps"
"""What the error of a drain says where the broker has messages, and does not give them."""

NEMESIS = -1
"""Process number of the nemesis; clients count from 0."""


class Op(NamedTuple):
    """One row of a history.

    ``type`` is ``invoke``, ``ok`` (happened), ``fail`` (certainly did not happen) or ``info`` (may or may
    not have happened). ``value`` is what the workload says it is: ``None``, an integer, or a pair of
    integers (producer, sequence); anything else is stored as JSON text. ``key`` names the independent
    object (queue number), ``time`` is nanoseconds since the start of the run, stamped by the interpreter (the
    row number is the recorder's). ``node`` is the node that the client talked to, ``error`` a short
    reason for a completion that is not ``ok``.
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
        """The completion that says it happened; keeps the invocation's value when none is given."""
        return self._replace(type=OK, value=self.value if value is None else value, node=node or self.node)

    def fail(self, error: str, node: str | None = None) -> Op:
        """The completion that says it certainly did not happen."""
        return self._replace(type=FAIL, error=error, node=node or self.node)

    def info(self, error: str, value: Any = None, node: str | None = None) -> Op:
        """The completion that says it may or may not have happened."""
        value = self.value if value is None else value
        return self._replace(type=INFO, error=error, value=value, node=node or self.node)
