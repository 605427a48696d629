"""Sets, queues, stacks, priority queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..kernels import codes
from ..kernels.codes import PURE, UNSEEN
from ..types import NO_OUTPUT, Operation, PorcupineError
from ..values import freeze
from .base import Builder, CompiledModel, Encoded, ValueIds, by_key, shown
from .registers import pair


class Set(CompiledModel):
    """A set.

    ``("add", v)`` and ``("remove", v)`` -> None, or True / False for whether the set changed; ``("contains", v)`` ->
    bool; ``("read",)`` -> all elements.
    """

    name: ClassVar[str] = "set"
    functions: ClassVar[dict[str, int]] = {"add": 1, "remove": 1, "contains": 1, "read": 0}

    def init(self) -> Any:
        return frozenset()

    def step(self, state: Any, input: Any, output: Any) -> tuple[bool, Any]:
        f = input[0]
        if f == "read":
            return output is NO_OUTPUT or frozenset(freeze(list(output))) == state, state
        value = freeze(input[1])
        if f == "contains":
            return output is NO_OUTPUT or bool(output) == (value in state), state
        after = state | {value} if f == "add" else state - {value}
        told = output is not NO_OUTPUT and output is not None
        return not told or bool(output) == (after != state), after

    def silent(self) -> frozenset[str]:
        return frozenset({"add", "remove"})

    def describe_state(self, state: Any) -> str:
        return "{" + ", ".join(sorted(map(repr, state))) + "}"

    def partition(self, operations: Sequence[Operation]) -> list[list[int]]:
        if any(operation.input[0] == "read" for operation in operations):
            return [list(range(len(operations)))]
        return by_key(operations, lambda operation: operation.input[1])

    def encode(self, operations: Sequence[Operation]) -> Encoded:
        values = ValueIds()
        snapshots = any(self.arguments(operation)[0] == "read" for operation in operations)
        built = Builder()
        reads: list[tuple[int, list[int]]] = []
        for i, operation in enumerate(operations):
            f, *rest = operation.input
            crashed = operation.ret is None
            if f == "read":
                if not crashed:
                    reads.append((len(built.f), sorted({values(v) for v in _many(operation.output)})))
                    built.add(0, i, codes.SET_READ, 0, 0, PURE)
                continue
            value = values(rest[0])
            part, leaf = (0, value) if snapshots else (value, 0)
            if f == "contains":
                if not crashed:
                    built.add(part, i, codes.SET_HAS if operation.output else codes.SET_LACKS, leaf, 0, PURE)
            else:
                told = UNSEEN if crashed or operation.output is None else int(bool(operation.output))
                built.add(part, i, codes.SET_ADD if f == "add" else codes.SET_REMOVE, leaf, told)
        if not snapshots:
            return built.done(values.values())
        depth = max(1, (len(values.ids) - 1).bit_length())
        pool, roots = _trees(reads, depth)
        for (at, _), root in zip(reads, roots, strict=True):
            built.a[at] = root
        return built.done([None], depth=depth, pool=pool, monitor="set", values=values.values())

    def from_history(self, f: str, sent: Any, kind: str, got: Any, process: Any) -> tuple[Any, Any] | None:
        f = self.known(f)
        if kind == "fail":
            return None
        if f == "read":
            return ("read",), got
        if f == "contains":
            return ("contains", sent), pair(got, "contains (value [element, bool])")[1] if kind == "ok" else None
        return (f, sent), got if isinstance(got, bool) and not isinstance(sent, bool) else None


def _many(value: Any) -> Iterable[Any]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise PorcupineError(f"model set: a read gives all elements, not {shown(value)}")
    return value


def _trees(reads: list[tuple[int, list[int]]], depth: int) -> tuple[Any, list[int]]:
    """Return trees of the snapshots that were read, as nodes of the pool; built level by level, shared like the
    kernel's.
    """
    rows: list[tuple[int, int, int]] = [(0, 0, 0)]
    ids: dict[tuple[int, int], int] = {}
    roots = []
    for _, elements in reads:
        level = dict.fromkeys(elements, -1)  # leaves are counts, negated
        for height in range(depth):
            above: dict[int, int] = {}
            for index in level:
                x, y = level.get(index & ~1, 0), level.get(index | 1, 0)
                node = ids.get((x, y))
                if node is None:
                    node = ids[x, y] = len(rows)
                    rows.append((x, y, -x - y if height == 0 else rows[x][2] + rows[y][2]))
                above[index >> 1] = node
            level = above
        roots.append(level.get(0, 0))
    return np.array(rows, np.int64), roots


class _Container(CompiledModel):
    """The common part of queues, stacks and priority queues: one function puts, one takes."""

    put: ClassVar[str]
    take: ClassVar[str]
    aliases: ClassVar[dict[str, str]] = {}

    def init(self) -> Any:
        return ()

    def silent(self) -> frozenset[str]:
        return frozenset({self.put})

    def from_history(self, f: str, sent: Any, kind: str, got: Any, process: Any) -> tuple[Any, Any] | None:
        f = self.known(self.aliases.get(f, f))
        if kind == "fail":
            return None
        return ((f, sent), None) if f == self.put else ((f,), got)

    def stored(self, operation: Operation, ids: Callable[[Any], int]) -> int:
        """Return the id of the value put, validated: None is the result of a take from an empty container."""
        if operation.input[1] is None:
            raise PorcupineError(f"model {self.name}: {self.put} of null; null stands for empty")
        return ids(operation.input[1])


class FifoQueue(_Container):
    """A queue, first in first out: ``("enqueue", v)``, ``("dequeue",)`` -> v, or None when it saw the queue empty."""

    name: ClassVar[str] = "fifo-queue"
    functions: ClassVar[dict[str, int]] = {"enqueue": 1, "dequeue": 0}
    put: ClassVar[str] = "enqueue"
    take: ClassVar[str] = "dequeue"
    aliases: ClassVar[dict[str, str]] = {"push": "enqueue", "pop": "dequeue"}
    unordered: ClassVar[bool] = False

    def step(self, state: Any, input: Any, output: Any) -> tuple[bool, Any]:
        if input[0] == "enqueue":
            return True, (*state, freeze(input[1]))
        if not state:
            return output is None or output is NO_OUTPUT, state
        return output is NO_OUTPUT or (output is not None and freeze(output) == state[0]), state[1:]

    def encode(self, operations: Sequence[Operation]) -> Encoded:
        ids = ValueIds(1)
        built = Builder()
        shift = codes.BAG_PUT - codes.FIFO_ENQUEUE if self.unordered else 0
        for i, operation in enumerate(operations):
            if self.arguments(operation)[0] == "enqueue":
                built.add(0, i, codes.FIFO_ENQUEUE + shift, self.stored(operation, ids))
            elif operation.ret is None:
                built.add(0, i, codes.BAG_WILD if self.unordered else codes.FIFO_DEQUEUE, 0)
            elif operation.output is None:
                built.add(0, i, codes.FIFO_EMPTY + shift, 0, 0, PURE)
            else:
                built.add(0, i, codes.FIFO_DEQUEUE + shift, ids(operation.output))
        depth = max(1, len(ids.ids).bit_length())
        monitor = "bag" if self.unordered else "fifo"
        return built.done([None], depth=depth, monitor=monitor, values=ids.values())


class UnorderedQueue(FifoQueue):
    """A queue without order (a bag): ``("enqueue", v)``, ``("dequeue",)`` -> any v in it, or None when it saw it
    empty."""

    name: ClassVar[str] = "unordered-queue"
    unordered: ClassVar[bool] = True

    def init(self) -> Any:
        return frozenset()

    def steps(self, state: Any, input: Any, output: Any) -> Iterable[Any]:
        # A state holds (v, 0), (v, 1) ... for the copies of v.
        if input[0] == "enqueue":
            value = freeze(input[1])
            return (state | {(value, _copies(state, value))},)
        if output is None:
            return () if state else (state,)
        wanted = {v for v, _ in state} if output is NO_OUTPUT else {freeze(output)}
        return tuple(state - {(v, _copies(state, v) - 1)} for v in wanted if (v, 0) in state)

    def describe_state(self, state: Any) -> str:
        return "{" + ", ".join(sorted(repr(v) for v, _ in state)) + "}"


def _copies(state: Any, value: Any) -> int:
    """Return the number of copies of a value in a bag."""
    count = 0
    while (value, count) in state:
        count += 1
    return count


class Stack(_Container):
    """A stack: ``("push", v)``, ``("pop",)`` -> v, or None when it saw the stack empty."""

    name: ClassVar[str] = "stack"
    functions: ClassVar[dict[str, int]] = {"push": 1, "pop": 0}
    put: ClassVar[str] = "push"
    take: ClassVar[str] = "pop"

    def step(self, state: Any, input: Any, output: Any) -> tuple[bool, Any]:
        if input[0] == "push":
            return True, (*state, freeze(input[1]))
        if not state:
            return output is None or output is NO_OUTPUT, state
        return output is NO_OUTPUT or (output is not None and freeze(output) == state[-1]), state[:-1]

    def encode(self, operations: Sequence[Operation]) -> Encoded:
        ids = ValueIds(1)
        built = Builder()
        for i, operation in enumerate(operations):
            if self.arguments(operation)[0] == "push":
                built.add(0, i, codes.STACK_PUSH, self.stored(operation, ids))
            elif operation.ret is None:
                built.add(0, i, codes.STACK_POP_ANY)
            elif operation.output is None:
                built.add(0, i, codes.STACK_EMPTY, 0, 0, PURE)
            else:
                built.add(0, i, codes.STACK_POP, ids(operation.output))
        return built.done([None], values=ids.values())


class PriorityQueue(_Container):
    """A priority queue: ``("insert", v)``, ``("delete-min",)`` -> the smallest v, or None when it saw it empty.
    Values must compare with each other by ``<``."""

    name: ClassVar[str] = "priority-queue"
    functions: ClassVar[dict[str, int]] = {"insert": 1, "delete-min": 0}
    put: ClassVar[str] = "insert"
    take: ClassVar[str] = "delete-min"
    aliases: ClassVar[dict[str, str]] = {
        "enqueue": "insert",
        "dequeue": "delete-min",
        "add": "insert",
        "pop": "delete-min",
    }

    def step(self, state: Any, input: Any, output: Any) -> tuple[bool, Any]:
        if input[0] == "insert":
            return True, tuple(sorted((*state, freeze(input[1]))))
        if not state:
            return output is None or output is NO_OUTPUT, state
        return output is NO_OUTPUT or (output is not None and freeze(output) == state[0]), state[1:]

    def encode(self, operations: Sequence[Operation]) -> Encoded:
        values = {
            freeze(o.input[1]) for o in operations if self.arguments(o)[0] == "insert" and self.stored(o, bool) >= 0
        }
        values |= {
            freeze(o.output) for o in operations if len(o.input) == 1 and o.ret is not None and o.output is not None
        }
        try:
            ids = {value: i for i, value in enumerate(sorted(values))}
        except TypeError as error:
            raise PorcupineError(f"model {self.name}: values do not compare: {error}") from None
        built = Builder()
        for i, operation in enumerate(operations):
            if operation.input[0] == "insert":
                built.add(0, i, codes.PQ_INSERT, ids[freeze(operation.input[1])])
            elif operation.ret is None:
                built.add(0, i, codes.PQ_POP_ANY)
            elif operation.output is None:
                built.add(0, i, codes.PQ_EMPTY, 0, 0, PURE)
            else:
                built.add(0, i, codes.PQ_POP, ids[freeze(operation.output)])
        return built.done([None], depth=max(1, (len(ids) - 1).bit_length() if ids else 1), values=list(ids))
