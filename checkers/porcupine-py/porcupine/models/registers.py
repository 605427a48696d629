"""Registers: one value, one value per key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..kernels.codes import APPEND_TEXT, BLIND, CAS, CAS_FAILED, DEAD, PURE, READ, WRITE
from ..types import NO_OUTPUT, Operation, PorcupineError
from .base import Builder, CompiledModel, Encoded, Ids, by_key, freeze


def pair(value: Any, what: str) -> tuple[Any, Any]:
    """Two values, validated."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise PorcupineError(f"{what} needs a pair, not {value!r}")
    return value[0], value[1]


class Register(CompiledModel):
    """A register: ``("read",)`` -> value, ``("write", value)``. It holds ``initial`` at first."""

    name: ClassVar[str] = "register"
    functions: ClassVar[dict[str, int]] = {"read": 0, "write": 1}
    takes_initial: ClassVar[bool] = True

    def __init__(self, initial: Any = None) -> None:
        self.initial = freeze(initial)

    def init(self) -> Any:
        return self.initial

    def step(self, state: Any, input: Any, output: Any) -> tuple[bool, Any]:
        f = input[0]
        if f == "read":
            return output is NO_OUTPUT or freeze(output) == state, state
        if f == "write":
            return True, freeze(input[1])
        matches = state == freeze(input[1])
        if output is not NO_OUTPUT and bool(output) != matches:
            return False, state
        return True, freeze(input[2]) if matches else state

    def silent(self) -> frozenset[str]:
        return frozenset({"write"})

    def encode(self, operations: Sequence[Operation]) -> Encoded:
        ids = Ids()
        ids(self.initial)
        built = Builder()
        for i, operation in enumerate(operations):
            f, *rest = self.arguments(operation)
            encode_value_operation(built, 0, i, f, rest, operation, ids)
        return built.done([None], monitor="register", values=ids.values())

    def from_history(self, f: str, sent: Any, kind: str, got: Any, process: Any) -> tuple[Any, Any] | None:
        f = self.known(f)
        if f == "cas":
            if kind == "fail":
                return ("cas", *pair(sent, "cas")), False
            return ("cas", *pair(sent, "cas")), True
        if kind == "fail":
            return None
        return (("read",), got) if f == "read" else (("write", sent), None)


def encode_value_operation(
    built: Builder, part: int, i: int, f: str, rest: list[Any], operation: Operation, ids: Ids
) -> None:
    """Encode a read, write or compare-and-set of a register whose values are told apart only by equality."""
    crashed = operation.ret is None
    if f in ("read", "get"):
        if not crashed:
            built.add(part, i, READ, ids(operation.output), 0, PURE)
    elif f in ("write", "put"):
        built.add(part, i, WRITE, ids(rest[0]), 0, BLIND)
    else:
        old, new = ids(rest[0]), ids(rest[1])
        if crashed:
            if old != new:
                built.add(part, i, CAS, old, new)
        elif operation.output:
            built.add(part, i, CAS, old, new, PURE if old == new else 0)
        else:
            built.add(part, i, CAS_FAILED, old, 0, PURE)


class CasRegister(Register):
    """A register with compare-and-set: ``("cas", old, new)`` -> True if it matched and was set, False if it did not
    match."""

    name: ClassVar[str] = "cas-register"
    functions: ClassVar[dict[str, int]] = {"read": 0, "write": 1, "cas": 2}


class KeyValue(CompiledModel):
    """Many registers: ``("get", key)`` -> value, ``("put", key, value)``, ``("append", key, text or list)``,
    ``("cas", key, old, new)`` -> bool. A key that was never put is empty: None, "" and an empty list are the same."""

    name: ClassVar[str] = "kv"
    functions: ClassVar[dict[str, int]] = {"get": 1, "put": 2, "append": 2, "cas": 3}

    def init(self) -> Any:
        return None

    def step(self, state: Any, input: Any, output: Any) -> tuple[bool, Any]:
        f = input[0]
        if f == "get":
            return output is NO_OUTPUT or plain(output) == state, state
        if f == "put":
            return True, plain(input[2])
        if f == "append":
            piece = plain(input[2])
            if piece is None:
                return True, state
            return True, piece if state is None else state + piece
        matches = state == plain(input[2])
        if output is not NO_OUTPUT and bool(output) != matches:
            return False, state
        return True, plain(input[3]) if matches else state

    def silent(self) -> frozenset[str]:
        return frozenset({"put", "append"})

    def partition(self, operations: Sequence[Operation]) -> list[list[int]]:
        return by_key(operations, lambda operation: operation.input[1])

    def encode(self, operations: Sequence[Operation]) -> Encoded:
        for operation in operations:
            self.arguments(operation)
        keys = Ids()
        parts = [keys(operation.input[1]) for operation in operations]
        if any(operation.input[0] == "append" for operation in operations):
            return _encode_texts(operations, parts, keys.values())
        ids = Ids()
        ids(None)
        built = Builder()
        for i, operation in enumerate(operations):
            f, _, *rest = operation.input
            seen = operation
            if f == "get":
                seen = Operation(operation.client_id, ("get",), plain(operation.output), operation.call, operation.ret)
            encode_value_operation(built, parts[i], i, f, [plain(v) for v in rest], seen, ids)
        return built.done(keys.values(), monitor="register", values=ids.values())

    def from_history(self, f: str, sent: Any, kind: str, got: Any, process: Any) -> tuple[Any, Any] | None:
        f = {"read": "get", "write": "put"}.get(f, f)
        self.known(f)
        key, value = pair(sent, f"{f} (value [key, value])")
        if f == "cas":
            return ("cas", key, *pair(value, "cas")), kind != "fail"
        if kind == "fail":
            return None
        if f == "get":
            return ("get", key), pair(got, "get (value [key, value])")[1] if kind == "ok" else None
        return (f, key, value), None


def plain(value: Any) -> Any:
    """A frozen value; an empty text or list is None."""
    frozen = freeze(value)
    return None if frozen in ("", ()) else frozen


class _Trie:
    """Texts that are observed, as nodes of the pool: the states of a text register that can be told apart."""

    def __init__(self) -> None:
        self.unit = Ids()
        self.nodes: dict[tuple[int, int], int] = {}
        self.rows: list[tuple[int, int, int]] = [(0, 0, 0)]

    def node(self, parent: int, unit: int) -> int:
        """The node below a parent, made if need be."""
        found = self.nodes.get((parent, unit))
        if found is None:
            found = self.nodes[parent, unit] = len(self.rows)
            self.rows.append((parent, unit, 0))
        return found

    def root(self, part: int) -> int:
        """The empty text of a partition: its trie holds its own reads only."""
        return self.node(-part - 1, 0)

    def units(self, text: Any) -> list[int]:
        """The characters of a text, or the elements of a list."""
        text = plain(text)
        if text is not None and not isinstance(text, str | tuple):
            raise PorcupineError(f"model kv: append works on texts and lists, not on {text!r}")
        # A text and a list never compare equal, so their units differ too.
        return [self.unit((isinstance(text, str), u)) for u in text or ()]

    def insert(self, part: int, text: Any) -> int:
        """The node of a text that something observes."""
        node = self.root(part)
        for unit in self.units(text):
            node = self.node(node, unit)
        return node

    def look(self, part: int, text: Any) -> int:
        """The node of a text, or DEAD if nothing observes it or what it can become."""
        node = self.root(part)
        for unit in self.units(text):
            found = self.nodes.get((node, unit))
            if found is None:
                return DEAD
            node = found
        return node


def _encode_texts(operations: Sequence[Operation], parts: list[int], keys: list[Any]) -> Encoded:
    trie = _Trie()
    states = [trie.root(part) for part in range(len(keys))]
    for part, operation in zip(parts, operations, strict=True):
        if operation.input[0] == "get" and operation.ret is not None:
            trie.insert(part, operation.output)
        elif operation.input[0] == "cas":
            trie.insert(part, operation.input[2])
    built = Builder()
    data: list[int] = [0]
    for i, (part, operation) in enumerate(zip(parts, operations, strict=True)):
        f, crashed = operation.input[0], operation.ret is None
        if f == "get" and not crashed:
            built.add(part, i, READ, trie.insert(part, operation.output), 0, PURE)
        elif f == "put":
            built.add(part, i, WRITE, trie.look(part, operation.input[2]), 0, BLIND)
        elif f == "append":
            units = trie.units(operation.input[2])
            built.add(part, i, APPEND_TEXT, len(data), len(units))
            data.extend(units)
        elif f == "cas" and (crashed or operation.output):
            built.add(part, i, CAS, trie.insert(part, operation.input[2]), trie.look(part, operation.input[3]))
        elif f == "cas":
            built.add(part, i, CAS_FAILED, trie.insert(part, operation.input[2]), 0, PURE)
    encoded = built.done(keys, data=np.array(data, np.int64), pool=np.array(trie.rows, np.int64))
    encoded.states = np.array(states, np.int64)
    return encoded
