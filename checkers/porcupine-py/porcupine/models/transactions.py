"""Many registers, read and written by transactions: Jepsen's and Knossos' multi-register."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ..kernels.codes import BLIND, CAS, PURE, READ, TXN, WRITE
from ..types import NO_OUTPUT, Operation, PorcupineError
from ..values import freeze, name_of
from .base import Builder, CompiledModel, Encoded, shown

_KINDS = {"r": "r", "read": "r", "w": "w", "write": "w"}


@dataclass(slots=True)
class _Effect:
    """The requirements of a transaction on the state, and its effects.

    ``reads`` holds the value of each key that it reads before it writes the key, ``writes`` the last value that it
    writes. ``possible`` is False if no state admits it: it reads two values of a key without a write in between, or a
    value other than the one it wrote itself.
    """

    reads: dict[Any, Any] = field(default_factory=dict)
    writes: dict[Any, Any] = field(default_factory=dict)
    possible: bool = True

    def keys(self) -> list[Any]:
        """Return the keys it touches, in order."""
        return list(dict.fromkeys([*self.reads, *self.writes]))


class MultiRegister(CompiledModel):
    """Registers that transactions read and write.

    ``("txn", [("r", key, None), ("w", key, value), ...])`` -> the same list with the values read. A transaction happens
    at one instant, its parts in their order. ``initial`` is the first value of every register, or a mapping of keys to
    first values (others are None).
    """

    name: ClassVar[str] = "multi-register"
    functions: ClassVar[dict[str, int]] = {"txn": 1}
    takes_initial: ClassVar[bool] = True

    def __init__(self, initial: Any = None) -> None:
        by_key = isinstance(initial, dict)
        self.firsts = {freeze(key): freeze(value) for key, value in initial.items()} if by_key else {}
        self.other = None if by_key else freeze(initial)

    def first(self, key: Any) -> Any:
        """Return the first value of a register."""
        return self.firsts.get(key, self.other)

    def init(self) -> Any:
        return frozenset()  # (key, value) of the registers that do not hold their first value

    def step(self, state: Any, input: Any, output: Any) -> tuple[bool, Any]:
        held = dict(state)
        for place, (f, key, value) in enumerate(input[1]):
            key = freeze(key)
            if _KINDS[f] == "w":
                held[key] = freeze(value)
            elif output is not NO_OUTPUT and freeze(output[place][2]) != held.get(key, self.first(key)):
                return False, state
        return True, frozenset((k, v) for k, v in held.items() if v != self.first(k))

    def arguments(self, operation: Operation) -> tuple[Any, ...]:
        given = super().arguments(operation)
        parts(given[1])
        return given

    def describe_operation(self, input: Any, output: Any) -> str:
        shown = input[1] if output is NO_OUTPUT else output
        return f"txn({', '.join(f'{f} {key!r} {value!r}' for f, key, value in shown)})"

    def describe_state(self, state: Any) -> str:
        return "{" + ", ".join(sorted(f"{key!r}: {value!r}" for key, value in state)) + "}"

    def partition(self, operations: Sequence[Operation]) -> list[list[int]]:
        number, groups = _components([self.effect(operation) for operation in operations])
        out: list[list[int]] = [[] for _ in groups]
        for i, part in enumerate(number):
            out[part].append(i)
        return out

    def _no_answer(self, operation: Operation, sent: Sequence[Any]) -> PorcupineError:
        return PorcupineError(f"model {self.name}: {shown(operation.output)} does not answer {shown(list(sent))}")

    def effect(self, operation: Operation) -> _Effect:
        """Return the requirements and effects of an operation, validated."""
        sent, found = self.arguments(operation)[1], _Effect()
        got = None if operation.ret is None else parts(operation.output)
        if got is not None and [(_KINDS[f], k) for f, k, _ in sent] != [(_KINDS[f], k) for f, k, _ in got]:
            raise self._no_answer(operation, sent)
        for place, (f, key, value) in enumerate(sent):
            try:
                hash(key := freeze(key))
                if _KINDS[f] == "w":
                    found.writes[key] = freeze(value)
                    hash(found.writes[key])
                    if got is not None and freeze(got[place][2]) != found.writes[key]:
                        raise self._no_answer(operation, sent)
                elif got is not None:
                    seen = freeze(got[place][2])
                    hash(seen)
                    known = found.writes if key in found.writes else found.reads
                    found.possible &= known.setdefault(key, seen) == seen
            except TypeError:
                raise PorcupineError(
                    f"model {self.name}: a key or value of {operation.input!r} can't be compared with others"
                ) from None
        return found

    def encode(self, operations: Sequence[Operation]) -> Encoded:
        effects = [self.effect(operation) for operation in operations]
        number, groups = _components(effects)
        ids: dict[Any, dict[Hashable, int]] = {key: {self.first(key): 0} for keys in groups for key in keys}
        leaf = {key: place for keys in groups for place, key in enumerate(keys)}
        depth = max(1, (max(map(len, groups), default=1) - 1).bit_length())
        built = Builder()
        data: list[int] = [0]
        offsets: dict[tuple[int, ...], int] = {}
        for i, (operation, effect, part) in enumerate(zip(operations, effects, number, strict=True)):
            crashed = operation.ret is None
            if crashed and not effect.writes:
                continue
            reads = [(key, ids[key].setdefault(value, len(ids[key]))) for key, value in effect.reads.items()]
            writes = [(key, ids[key].setdefault(value, len(ids[key]))) for key, value in effect.writes.items()]
            if not effect.possible:
                # No state holds a value that equals nothing.
                key = effect.keys()[0]
                reads, writes = [(key, ids[key].setdefault(object(), len(ids[key])))], []
            # A write of the value that was read changes nothing.
            writes = [write for write in writes if write not in reads]
            if len(groups[part]) == 1 and (reads or writes):
                _add_register(built, part, i, reads, writes)
                continue
            told = [len(reads), *(x for key, v in reads for x in (leaf[key], v))]
            told += [len(writes), *(x for key, v in writes for x in (leaf[key], v))]
            at = offsets.setdefault(tuple(told), len(data))
            if at == len(data):
                data.extend(told)
            # The first place gives the search the number of nodes that a step may add.
            data[0] = max(data[0], len(writes) * depth)
            built.add(part, i, TXN, at, 0, 0 if writes else PURE)
        keys = [group[0] if len(group) == 1 else tuple(group) or None for group in groups]
        alone = len(groups) == 1 and len(groups[0]) == 1
        return built.done(
            keys,
            data=np.array(data, np.int64),
            depth=depth,
            monitor="register" if alone and len(data) == 1 else "",
            values=list(ids[groups[0][0]]) if alone else [],
        )

    def from_history(self, f: str, sent: Any, kind: str, got: Any, process: Any) -> tuple[Any, Any] | None:
        # Some tests name transactions by their contents.
        if f not in ("txn", "read", "write"):
            self.known(f)
        if kind == "fail":
            return None
        return ("txn", parts(sent)), parts(got) if kind == "ok" else None


def parts(value: Any) -> tuple[tuple[str, Any, Any], ...]:
    """Return the parts of a transaction, validated."""
    if not isinstance(value, list | tuple):
        raise PorcupineError(f"a transaction is a list of parts [r or w, key, value], not {shown(value)}")
    for part in value:
        if not isinstance(part, list | tuple) or len(part) != 3 or name_of(part[0]) not in _KINDS:
            raise PorcupineError(f"a part of a transaction is [r or w, key, value], not {shown(part)}")
    return tuple((name_of(f) or "", key, value) for f, key, value in value)


def _components(effects: Sequence[_Effect]) -> tuple[list[int], list[list[Any]]]:
    """Return each transaction's group, and each group's keys.

    Keys that some transaction touches together are in one group; this relation is transitive. A group's registers,
    taken together, are one object, and each transaction is an operation of one such object; so the history is
    linearizable if and only if each group's part of it is (Herlihy & Wing 1990, Theorem 1: linearizability is local).
    Separating the keys of one transaction would lose the fact that its parts happen at one instant. A transaction
    without keys is admitted anywhere and belongs to the first group.
    """
    above: dict[Any, Any] = {}

    def root(key: Any) -> Any:
        while above[key] != key:
            above[key] = above[above[key]]
            key = above[key]
        return key

    touched = [effect.keys() for effect in effects]
    for keys in touched:
        for key in keys:
            above.setdefault(key, key)
            above[root(key)] = root(keys[0])
    numbers: dict[Any, int] = {}
    groups: list[list[Any]] = []
    for key in above:
        part = numbers.setdefault(root(key), len(numbers))
        if part == len(groups):
            groups.append([])
        groups[part].append(key)
    if not groups and touched:
        groups.append([])
    return [numbers[root(keys[0])] if keys else 0 for keys in touched], groups


def _add_register(built: Builder, part: int, i: int, reads: list[Any], writes: list[Any]) -> None:
    """Add a transaction on a register that no other transaction links with another register.

    It is a read, a write, or both at once, which is a compare-and-set that matched.
    """
    if reads and writes:
        built.add(part, i, CAS, reads[0][1], writes[0][1])
    elif reads:
        built.add(part, i, READ, reads[0][1], 0, PURE)
    else:
        built.add(part, i, WRITE, writes[0][1], 0, BLIND)
