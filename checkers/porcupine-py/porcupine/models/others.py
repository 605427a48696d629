"""Locks, counters, logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..kernels import codes
from ..kernels.codes import COUNTER_ZERO, PURE, UNSEEN
from ..types import NO_OUTPUT, Operation, PorcupineError
from ..values import freeze
from .base import Builder, CompiledModel, Encoded, ValueIds, shown

MAX_DEPTH = (1 << 20) - 1
"""Maximum depth at which a re-entrant lock may be held."""


class Lock(CompiledModel):
    """A lock with an owner.

    ``("acquire", owner)`` -> True, or False when it was refused because the lock was held; ``("release", owner)`` ->
    True, or False when it was refused because the owner did not hold it.
    """

    name: ClassVar[str] = "lock"
    functions: ClassVar[dict[str, int]] = {"acquire": 1, "release": 1}
    deepest: ClassVar[int] = 1

    def init(self) -> Any:
        return (None, 0, 0)  # owner, depth, last token

    def step(self, state: Any, input: Any, output: Any) -> tuple[bool, Any]:
        owner, depth, token = state
        asking = freeze(input[1])
        mine = depth > 0 and owner == asking
        if input[0] == "release":
            if output is False or not mine:
                return output is False and not mine, state
            return True, (owner, depth - 1, token) if depth > 1 else (None, 0, token)
        can = depth == 0 or (mine and depth < self.deepest)
        if output is False or not can:
            return output is False and not can, state
        if output is NO_OUTPUT:
            token += self.fenced()
        elif self.fenced():
            if output <= token:
                return False, state
            token = output
        return True, (asking, depth + 1, token)

    def fenced(self) -> bool:
        """Return whether an acquire returns a token."""
        return False

    def describe_state(self, state: Any) -> str:
        owner, depth, token = state
        held = f"held by {owner!r}" + (f" {depth} deep" if depth > 1 else "") if depth else "free"
        return held + (f", last token {token}" if self.fenced() else "")

    def encode(self, operations: Sequence[Operation]) -> Encoded:
        owners = ValueIds(1)
        built = Builder()
        for i, operation in enumerate(operations):
            f, owner = self.arguments(operation)
            a = (owners(owner) << 20) + self.deepest
            crashed = operation.ret is None
            refused = not crashed and operation.output is False
            if f == "release":
                built.add(0, i, codes.LOCK_NOT_OWNER if refused else codes.LOCK_RELEASE, a, 0, PURE if refused else 0)
            elif refused:
                built.add(0, i, codes.LOCK_REFUSED, a, 0, PURE)
            elif not self.fenced():
                built.add(0, i, codes.LOCK_ACQUIRE, a, UNSEEN)
            else:
                built.add(0, i, codes.LOCK_ACQUIRE, a, 0 if crashed else self.token(operation.output))
        return built.done([None])

    def token(self, output: Any) -> int:
        """Return a fencing token, validated."""
        if type(output) is not int or not 0 < output < 1 << 62:
            raise PorcupineError(f"model {self.name}: a fencing token is a positive integer, not {shown(output)}")
        return output

    def from_history(self, f: str, sent: Any, kind: str, got: Any, process: Any) -> tuple[Any, Any] | None:
        f = self.known(f)
        if kind == "fail":
            return None
        owner = process if sent is None else freeze(sent)
        if got is False or f == "release" or not self.fenced():
            return (f, owner), got is not False
        return (f, owner), got


class ReentrantLock(Lock):
    """A lock that its owner may acquire again, and must release as often."""

    name: ClassVar[str] = "reentrant-lock"
    deepest: ClassVar[int] = MAX_DEPTH


class FencedLock(Lock):
    """A lock whose acquire returns a fencing token, a positive integer larger than all before."""

    name: ClassVar[str] = "fenced-lock"

    def fenced(self) -> bool:
        return True


class Counter(CompiledModel):
    """A counter, 0 at first; integers below 2**40.

    ``("add", n)``, ``("inc",)``, ``("dec",)``; ``("read",)`` -> value; ``("add-and-get", n)`` -> value after;
    ``("get-and-add", n)`` -> value before.
    """

    name: ClassVar[str] = "counter"
    functions: ClassVar[dict[str, int]] = {"add": 1, "inc": 0, "dec": 0, "read": 0, "add-and-get": 1, "get-and-add": 1}

    def init(self) -> Any:
        return 0

    def delta(self, given: tuple[Any, ...]) -> int:
        """Return the amount by which an operation changes the counter."""
        return {"inc": 1, "dec": -1, "read": 0}.get(given[0]) if len(given) == 1 else given[1]  # type: ignore[return-value]

    def step(self, state: Any, input: Any, output: Any) -> tuple[bool, Any]:
        after = state + self.delta(input)
        if output is NO_OUTPUT or input[0] in self.silent():
            return True, after
        return output == (state if input[0] in ("read", "get-and-add") else after), after

    def silent(self) -> frozenset[str]:
        return frozenset({"add", "inc", "dec"})

    def encode(self, operations: Sequence[Operation]) -> Encoded:
        built = Builder()
        for i, operation in enumerate(operations):
            given = self.arguments(operation)
            f, delta, crashed = given[0], self.integer(self.delta(given)), operation.ret is None
            if f == "read":
                if not crashed:
                    value = self.integer(operation.output) + COUNTER_ZERO
                    built.add(0, i, codes.COUNTER_READ, value, 0, PURE)
            elif crashed or f in self.silent():
                if delta or not crashed:
                    built.add(0, i, codes.COUNTER_ADD, delta)
            else:
                value = self.integer(operation.output) + (delta if f == "get-and-add" else 0)
                built.add(0, i, codes.COUNTER_ADD_GET, delta, value + COUNTER_ZERO, 0 if delta else PURE)
        return built.done([None], first_state=COUNTER_ZERO)

    def integer(self, value: Any) -> int:
        """Return an integer, validated."""
        if type(value) is not int or abs(value) >= 1 << 40:
            raise PorcupineError(f"model counter: needs an integer below 2**40, not {shown(value)}")
        return value

    def from_history(self, f: str, sent: Any, kind: str, got: Any, process: Any) -> tuple[Any, Any] | None:
        f = self.known(f)
        if kind == "fail":
            return None
        given = (f,) if self.functions[f] == 0 else (f, sent)
        return given, None if f in self.silent() else got


class Log(CompiledModel):
    """An append-only log.

    ``("append", v)`` -> its offset (from 0), or None if unknown; ``("read", offset)`` -> the value there, or None when
    it is beyond the end; ``("read", None)`` -> all values.
    """

    name: ClassVar[str] = "log"
    functions: ClassVar[dict[str, int]] = {"append": 1, "read": 1}

    def init(self) -> Any:
        return ()

    def step(self, state: Any, input: Any, output: Any) -> tuple[bool, Any]:
        f, argument = input
        if f == "append":
            told = output is not NO_OUTPUT and output is not None
            return not told or output == len(state), (*state, freeze(argument))
        if output is NO_OUTPUT:
            return True, state
        if argument is None:
            return freeze(output) == state, state
        if argument >= len(state):
            return output is None, state
        return output is not None and freeze(output) == state[argument], state

    def silent(self) -> frozenset[str]:
        return frozenset({"append"})

    def encode(self, operations: Sequence[Operation]) -> Encoded:
        ids = ValueIds()
        nodes: dict[tuple[int, int], int] = {}
        rows: list[tuple[int, int, int]] = [(0, 0, 0)]
        built = Builder()
        for i, operation in enumerate(operations):
            f, argument = self.arguments(operation)
            crashed = operation.ret is None
            if f == "append":
                if argument is None:
                    raise PorcupineError("model log: append of null; null stands for beyond the end")
                told = UNSEEN if crashed or operation.output is None else self.offset(operation.output)
                built.add(0, i, codes.LOG_APPEND, ids(argument), told)
            elif crashed:
                continue
            elif argument is not None:
                offset, value = self.offset(argument), operation.output
                f_code = codes.LOG_BEYOND if value is None else codes.LOG_READ
                built.add(0, i, f_code, 0 if value is None else ids(value), offset, PURE)
            else:
                if not isinstance(operation.output, list | tuple):
                    raise PorcupineError(f"model log: a read of all gives a list, not {shown(operation.output)}")
                node = 0
                for value in operation.output:
                    place = (node, ids(value))
                    if place not in nodes:
                        nodes[place] = len(rows)
                        rows.append((*place, rows[node][2] + 1))
                    node = nodes[place]
                built.add(0, i, codes.LOG_READ_ALL, node, 0, PURE)
        return built.done([None], pool=np.array(rows, np.int64), values=ids.values())

    def offset(self, value: Any) -> int:
        """Return an offset, validated."""
        if type(value) is not int or not 0 <= value < 1 << 62:
            raise PorcupineError(f"model log: an offset is an integer from 0, not {shown(value)}")
        return value

    def from_history(self, f: str, sent: Any, kind: str, got: Any, process: Any) -> tuple[Any, Any] | None:
        f = self.known(f)
        if kind == "fail":
            return None
        told = (
            isinstance(got, list | tuple) and len(got) == 2 and type(got[0]) is int and freeze(got[1]) == freeze(sent)
        )
        if f == "append":
            return ("append", sent), got[0] if told and kind == "ok" else None
        if sent is None or kind != "ok":
            return ("read", None if sent is None else sent), got
        pair = isinstance(got, list | tuple) and len(got) == 2 and freeze(got[0]) == freeze(sent)
        return ("read", sent), got[1] if pair else got
