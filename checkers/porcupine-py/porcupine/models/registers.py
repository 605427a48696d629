"""Registers: one value, one value per key."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from ..kernels.codes import APPEND_TEXT, BLIND, CAS, CAS_FAILED, DEAD, PURE, READ, WRITE
from ..types import NO_OUTPUT, Operation, PorcupineError
from ..values import FROZEN, freeze
from .base import Builder, CompiledModel, Encoded, Ints, ValueIds, by_key, shown


def pair(value: Any, what: str) -> tuple[Any, Any]:
    """Return two values, validated."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise PorcupineError(f"{what} needs a pair, not {shown(value)}")
    return value[0], value[1]


class Register(CompiledModel):
    """A register: ``("read",)`` -> value, ``("write", value)``. It holds ``initial`` at first."""

    name: ClassVar[str] = "register"
    functions: ClassVar[dict[str, int]] = {"read": 0, "write": 1}
    takes_initial: ClassVar[bool] = True
    one_register: ClassVar[bool] = True

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

    def replay(self, operations: Sequence[Operation], order: Sequence[int]) -> int:
        # Equivalent to ``step``; a subclass with another ``step`` uses the general replay.
        if type(self).step is not Register.step:
            return super().replay(operations, order)
        state = self.initial
        for place, i in enumerate(order):
            operation = operations[i]
            given, output = operation.input, operation.output
            f = given[0]
            if f == "read":
                differs = output != state or type(output) not in FROZEN
                if differs and operation.ret is not None and freeze(output) != state:
                    return place
            elif f == "write":
                state = given[1]
            else:
                matches = state == (given[1] if type(given[1]) in FROZEN else freeze(given[1]))
                if matches is not bool(output) and operation.ret is not None:
                    return place
                if matches:
                    state = given[2]
            if type(state) not in FROZEN:
                state = freeze(state)
        return -1

    def silent(self) -> frozenset[str]:
        return frozenset({"write"})

    def encode(self, operations: Sequence[Operation]) -> Encoded:
        ids = ValueIds()
        ids(self.initial)
        kinds = _Kinds(self, ids)
        try:
            simple = FROZEN.issuperset(map(type, chain.from_iterable([o.input for o in operations])))
            if not simple or not _OUTPUTS.issuperset(map(type, [o.output for o in operations])):
                return self._encode_one_by_one(operations)
            numbers = [kinds[o.input, o.output, o.ret is not None and type(o.output)] for o in operations]
        except TypeError:  # for example, an input that is not a tuple
            return self._encode_one_by_one(operations)
        number = np.array(numbers, np.int64)
        source = np.arange(number.size)
        if kinds.some_left_out:
            source = np.nonzero(number >= 0)[0]
            number = number[source]
        f, a, b, flags = np.take(np.array(kinds.rows, np.int64).reshape(-1, 4).T.copy(), number, axis=1)
        none = np.zeros(number.size, np.int64)
        return Encoded(
            none, f, a, b, flags, source, [None], np.zeros(1, np.int64), monitor="register", values=ids.values()
        )

    def _encode_one_by_one(self, operations: Sequence[Operation]) -> Encoded:
        ids = ValueIds()
        ids(self.initial)
        built = Builder()
        for i, operation in enumerate(operations):
            f, *rest = self.arguments(operation)
            row = value_row(f, rest, operation.output, operation.ret is None, ids)
            if row is not None:
                built.add(0, i, *row)
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


_OUTPUTS = FROZEN | {bool}


class _Kinds(dict[tuple[Any, Any, Any], int]):
    """The number of each different operation: (input, output, the output's type, or False if it never returned).

    With few different values, that avoids encoding each operation separately.

    Inputs hold values of FROZEN only, since Python considers ``("write", True)`` and ``("write", 1)`` equal.
    """

    def __init__(self, model: CompiledModel, ids: ValueIds) -> None:
        super().__init__()
        self.model, self.ids, self.functions = model, ids, model.functions
        self.plain_arguments = type(model).arguments is CompiledModel.arguments
        self.rows: list[tuple[int, int, int, int]] = []
        self.some_left_out = False

    def __missing__(self, kind: tuple[Any, Any, Any]) -> int:
        given, output, returned = kind
        if not self.plain_arguments or type(given) is not tuple or self.functions.get(given[0]) != len(given) - 1:
            self.model.arguments(Operation(None, given, output, 0, None))
        row = value_row(given[0], given[1:], output, returned is False, self.ids)
        if row is None:
            number = -1
            self.some_left_out = True
        else:
            number = len(self.rows)
            self.rows.append(row)
        self[kind] = number
        return number


def value_row(
    f: str, rest: Sequence[Any], output: Any, crashed: bool, ids: ValueIds
) -> tuple[int, int, int, int] | None:
    """Return (code, a, b, flags) of a read, write or compare-and-set; None if it says nothing.

    The register's values are distinguished only by equality.
    """
    if f in ("read", "get"):
        return None if crashed else (READ, ids(output), 0, PURE)
    if f in ("write", "put"):
        return WRITE, ids(rest[0]), 0, BLIND
    old, new = ids(rest[0]), ids(rest[1])
    if crashed:
        return None if old == new else (CAS, old, new, 0)
    if output:
        return CAS, old, new, PURE if old == new else 0
    return CAS_FAILED, old, 0, PURE


class CasRegister(Register):
    """A register with compare-and-set: ``("cas", old, new)`` -> True if it matched and was set, False if it did not
    match.
    """

    name: ClassVar[str] = "cas-register"
    functions: ClassVar[dict[str, int]] = {"read": 0, "write": 1, "cas": 2}


class KeyValue(CompiledModel):
    """Many registers, one per key.

    ``("get", key)`` -> value, ``("put", key, value)``, ``("append", key, text or list)``, ``("cas", key, old, new)`` ->
    bool. A key that was never put is empty: None, "" and an empty list are the same.
    """

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

    def replay(self, operations: Sequence[Operation], order: Sequence[int]) -> int:
        # Equivalent to ``step`` for texts; ``step`` itself handles other values.
        if type(self).step is not KeyValue.step:
            return super().replay(operations, order)
        state: Any = None
        for place, i in enumerate(order):
            operation = operations[i]
            given, output = operation.input, operation.output
            f = given[0]
            if f == "get":
                differs = output != state or type(output) not in FROZEN
                if differs and operation.ret is not None and plain(output) != state:
                    return place
            elif f == "append" and type(given[2]) is str and (state is None or type(state) is str):
                if given[2]:
                    state = given[2] if state is None else state + given[2]
            else:
                admitted, state = self.step(state, given, NO_OUTPUT if operation.ret is None else output)
                if not admitted:
                    return place
        return -1

    def silent(self) -> frozenset[str]:
        return frozenset({"put", "append"})

    def partition(self, operations: Sequence[Operation]) -> list[list[int]]:
        return by_key(operations, lambda operation: operation.input[1])

    def encode(self, operations: Sequence[Operation]) -> Encoded:
        for operation in operations:
            self.arguments(operation)
        keys = ValueIds()
        parts = keys.of([operation.input[1] for operation in operations])
        if any(operation.input[0] == "append" for operation in operations):
            quick = _encode_plain_texts(operations, parts, keys.values())
            return _encode_texts(operations, parts, keys.values()) if quick is None else quick
        ids = ValueIds()
        ids(None)
        built = Builder()
        for i, operation in enumerate(operations):
            f, _, *rest = operation.input
            output = plain(operation.output) if f == "get" else operation.output
            row = value_row(f, [plain(v) for v in rest], output, operation.ret is None, ids)
            if row is not None:
                built.add(parts[i], i, *row)
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
    """Return a frozen value; an empty text or list becomes None."""
    frozen = freeze(value)
    return None if frozen in ("", ()) else frozen


class _Trie:
    """Observed texts, as nodes of the pool: the distinguishable states of a text register."""

    def __init__(self) -> None:
        self.unit = ValueIds()
        self.nodes: dict[tuple[int, int], int] = {}
        self.rows: list[tuple[int, int, int]] = [(0, 0, 0)]

    def node(self, parent: int, unit: int) -> int:
        """Return the node below a parent, created if needed."""
        found = self.nodes.get((parent, unit))
        if found is None:
            found = self.nodes[parent, unit] = len(self.rows)
            self.rows.append((parent, unit, 0))
        return found

    def root(self, part: int) -> int:
        """Return the empty text of a partition: its trie holds the reads of that partition only."""
        return self.node(-part - 1, 0)

    def units(self, text: Any) -> list[int]:
        """Return the characters of a text, or the elements of a list."""
        text = plain(text)
        if text is not None and not isinstance(text, str | tuple):
            raise PorcupineError(f"model kv: append works on texts and lists, not on {shown(text)}")
        # A text and a list never compare equal, so their units differ too.
        return [self.unit((isinstance(text, str), u)) for u in text or ()]

    def insert(self, part: int, text: Any) -> int:
        """Return the node of an observed text, created if needed."""
        node = self.root(part)
        for unit in self.units(text):
            node = self.node(node, unit)
        return node

    def look(self, part: int, text: Any) -> int:
        """Return the node of a text, or DEAD if no observed text begins with it."""
        node = self.root(part)
        for unit in self.units(text):
            found = self.nodes.get((node, unit))
            if found is None:
                return DEAD
            node = found
        return node


def _encode_plain_texts(operations: Sequence[Operation], parts: list[int], keys: list[Any]) -> Encoded | None:
    """Encode as ``_encode_texts`` does, in bulk; return None if some value is not a text (or None)."""
    texts: list[Any] = []  # appended pieces; the observed texts and those to look up have separate lists
    observed: list[Any] = []
    sought: list[Any] = []
    observed_part: list[int] = []
    sought_part: list[int] = []
    rows: list[tuple[int, int, int, int, int, int]] = []
    # ``a`` and ``b`` are places in ``texts`` or in ``observed`` and ``sought``; they are replaced by the final values
    # below.
    for i, (part, operation) in enumerate(zip(parts, operations, strict=True)):
        f, crashed = operation.input[0], operation.ret is None
        if f == "get":
            if not crashed:
                rows.append((part, i, READ, len(observed), 0, PURE))
                observed.append(operation.output)
                observed_part.append(part)
        elif f == "append":
            rows.append((part, i, APPEND_TEXT, len(texts), 0, 0))
            texts.append(operation.input[2])
        elif f == "put":
            rows.append((part, i, WRITE, len(sought), 0, BLIND))
            sought.append(operation.input[2])
            sought_part.append(part)
        else:
            matched = crashed or operation.output
            rows.append((part, i, CAS if matched else CAS_FAILED, len(observed), len(sought), 0 if matched else PURE))
            observed.append(operation.input[2])
            observed_part.append(part)
            sought.append(operation.input[3])
            sought_part.append(part)
    if not {type(text) for values in (texts, observed, sought) for text in values} <= {str, type(None)}:
        return None
    texts, observed, sought = ([text or "" for text in values] for values in (texts, observed, sought))
    from ..kernels.texts import text_nodes

    pieces, watched = _characters(texts), _characters(observed)
    units = np.concatenate((watched, _characters(sought)))
    ends = np.cumsum(np.array([*map(len, observed), *map(len, sought)], np.int64))
    kind = np.zeros(ends.size, np.int64)
    kind[: len(observed)] = 1
    of_part = np.array(observed_part + sought_part, np.int64)
    pool, nodes = text_nodes(len(keys), of_part, kind, ends, units, watched.size)
    lengths = np.array([*map(len, texts)], np.int64)
    part_of, source, code, a, b, flags = np.array(rows, np.int64).reshape(-1, 6).T.copy()
    appends, puts = code == APPEND_TEXT, code == WRITE
    watches = (code == READ) | (code == CAS) | (code == CAS_FAILED)
    swaps = code == CAS
    b[swaps] = nodes[len(observed) + b[swaps]]
    b[code == CAS_FAILED] = 0
    a[puts] = nodes[len(observed) + a[puts]]
    a[watches] = nodes[a[watches]]
    # Place 0 of ``data`` is reserved.
    a[appends], b[appends] = (np.cumsum(lengths) - lengths + 1)[a[appends]], lengths[a[appends]]
    data = np.concatenate((np.zeros(1, np.int64), pieces))
    states = np.arange(1, len(keys) + 1)
    return Encoded(part_of, code, a, b, flags, source, keys, states, data=data, pool=pool)


def _characters(texts: list[str]) -> Ints:
    """Return the characters of texts, one after the other."""
    return np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)


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
