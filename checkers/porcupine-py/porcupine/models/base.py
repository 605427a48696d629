"""The interface of models, and the encoding with which compiled models pass operations to the kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..types import NO_OUTPUT, Operation, PorcupineError
from ..values import FROZEN, freeze

Ints = npt.NDArray[np.int64]


def shown(value: Any) -> str:
    """Return a value of a history as messages quote it: only its ends if it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:50]}...{text[-20:]}"


class Model:
    """A sequential specification: the behaviour that a single client at a time would see.

    Override ``init`` and ``step`` (or ``steps``, when an operation has several outcomes); the rest has defaults. States
    must be hashable and compare by ``==``, or ``key`` must convert them to such values: that is Porcupine's *equal* and
    *hash*. Never change a state in place.
    """

    name: ClassVar[str] = "model"

    def init(self) -> Any:
        """Return the state before the first operation."""
        raise NotImplementedError(f"{type(self).__name__} has no init()")

    def step(self, state: Any, input: Any, output: Any) -> tuple[bool, Any]:
        """Return whether the state admits the operation, and the state after it.

        ``output`` is NO_OUTPUT if the operation never returned: return its effect on the state.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither step() nor steps()")

    def steps(self, state: Any, input: Any, output: Any) -> Iterable[Any]:
        """Return all states to which the operation may lead; none if the state does not admit it."""
        admitted, after = self.step(state, input, output)
        return (after,) if admitted else ()

    def replay(self, operations: Sequence[Operation], order: Sequence[int]) -> int:
        """Return the place in an order of the first operation that no state admits, or -1.

        Applies ``steps`` to a whole order; a model may override it with a faster version.
        """
        states = {self.key(s): s for s in (self.init(),)}
        for place, i in enumerate(order):
            output = NO_OUTPUT if operations[i].ret is None else operations[i].output
            following = [after for s in states.values() for after in self.steps(s, operations[i].input, output)]
            states = {self.key(s): s for s in following}
            if not states:
                return place
        return -1

    def key(self, state: Any) -> Hashable:
        """Return a hashable value that two states share only if they are equal."""
        hashable: Hashable = state
        return hashable

    def partition(self, operations: Sequence[Operation]) -> list[list[int]]:
        """Return the indices of independent parts; by default there is one part.

        The history is linearizable if and only if each part is (Herlihy & Wing 1990, locality).
        """
        return [list(range(len(operations)))]

    def describe_operation(self, input: Any, output: Any) -> str:
        """Describe an operation to the user; ``output`` is NO_OUTPUT if it never returned."""
        return repr(input) if output is NO_OUTPUT else f"{input!r} -> {output!r}"

    def describe_state(self, state: Any) -> str:
        """Describe a state to the user."""
        return repr(state)


@dataclass(slots=True)
class Encoded:
    """Operations of a compiled model as columns (see ``kernels.codes``); one place per operation that matters.

    ``source`` gives each one's index in the sequence it came from, ``part`` its partition. ``states`` are initial
    states, ``pool`` the first nodes, ``data`` the texts to which operations point, from place 1 on; place 0 is the
    number of nodes that a step may add, if more than the usual. ``monitor`` names the monitor that may decide,
    ``values`` the value behind each id.
    """

    part: Ints
    f: Ints
    a: Ints
    b: Ints
    flags: Ints
    source: Ints
    keys: list[Any]
    states: Ints
    depth: int = 1
    data: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    pool: Ints = field(default_factory=lambda: np.zeros((1, 3), np.int64))
    monitor: str = ""
    values: list[Any] = field(default_factory=list)


class ValueIds:
    """Dense ids for values, in order of first sight."""

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.ids: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        try:
            return self.ids.setdefault(freeze(value), len(self.ids) + self.first)
        except TypeError:
            raise PorcupineError(f"value {shown(value)} can't be compared with others (it is not hashable)") from None

    def of(self, values: list[Any]) -> list[int]:
        """Return the ids of many values."""
        if not FROZEN.issuperset(map(type, values)):
            return [self(value) for value in values]
        known = self.ids
        for value in dict.fromkeys(values):
            known.setdefault(value, len(known) + self.first)
        return [known[value] for value in values]

    def values(self) -> list[Any]:
        """Return the values by id."""
        return [None] * self.first + list(self.ids)


class Builder:
    """Collects encoded operations."""

    def __init__(self) -> None:
        self.part: list[int] = []
        self.f: list[int] = []
        self.a: list[int] = []
        self.b: list[int] = []
        self.flags: list[int] = []
        self.source: list[int] = []

    def add(self, part: int, source: int, f: int, a: int = 0, b: int = 0, flags: int = 0) -> None:
        """Add one operation."""
        self.part.append(part)
        self.source.append(source)
        self.f.append(f)
        self.a.append(a)
        self.b.append(b)
        self.flags.append(flags)

    def done(self, keys: list[Any], first_state: int = 0, **rest: Any) -> Encoded:
        """Return the columns."""
        part, f, a, b, flags, source = (
            np.array(c, np.int64) for c in (self.part, self.f, self.a, self.b, self.flags, self.source)
        )
        states = np.full(len(keys), first_state, np.int64)
        return Encoded(part, f, a, b, flags, source, keys, states, **rest)


class CompiledModel(Model):
    """A model that also has a compiled form. ``functions`` are the names that it knows; ``input[0]`` must be one of
    them.
    """

    functions: ClassVar[dict[str, int]] = {}
    """Each function's number of arguments."""
    one_register: ClassVar[bool] = False
    """Whether ``encode`` creates one partition of values that have the same meaning in any history."""
    takes_initial: ClassVar[bool] = False
    """Whether the first value is an option: the constructor's argument ``initial``."""

    def encode(self, operations: Sequence[Operation]) -> Encoded:
        """Return the operations as columns, partitions included. Raises PorcupineError for an unknown operation."""
        raise NotImplementedError(f"{type(self).__name__} has no encode()")

    def kernel(self) -> Any:
        """Return the compiled step (``compile_step``), or None for the built-in one, which knows the codes of
        ``kernels.codes``.
        """
        return None

    def from_history(self, f: str, sent: Any, kind: str, got: Any, process: Any) -> tuple[Any, Any] | None:
        """Convert a Jepsen operation to (input, output); return None if it did not happen and observed nothing.

        ``kind`` is its outcome, "ok", "fail" or "info". Raises PorcupineError for an unknown function or a value of the
        wrong form.
        """
        raise NotImplementedError(f"{type(self).__name__} has no from_history()")

    def arguments(self, operation: Operation) -> tuple[Any, ...]:
        """Return the input, validated: a tuple of a known function and its arguments."""
        given = operation.input
        if not isinstance(given, tuple) or not given or given[0] not in self.functions:
            known = ", ".join(self.functions)
            raise PorcupineError(f"model {self.name}: unknown operation {shown(given)}; known: {known}")
        if len(given) - 1 != self.functions[given[0]]:
            raise PorcupineError(f"model {self.name}: {shown(given)} needs {self.functions[given[0]]} argument(s)")
        return given

    def known(self, f: str) -> str:
        """Return the function's name, validated."""
        if f not in self.functions:
            raise PorcupineError(f'model {self.name}: unknown f "{f}"; known: {", ".join(self.functions)}')
        return f

    def describe_operation(self, input: Any, output: Any) -> str:
        """Describe an operation as a call: ``read() -> 3``."""
        if not isinstance(input, tuple):
            return super().describe_operation(input, output)
        call = f"{input[0]}({', '.join(map(repr, input[1:]))})"
        return (
            call if output is NO_OUTPUT or (output is None and input[0] in self.silent()) else f"{call} -> {output!r}"
        )

    def silent(self) -> frozenset[str]:
        """Return the functions whose output says nothing when it is None."""
        return frozenset()


def by_key(operations: Sequence[Operation], key: Callable[[Operation], Any]) -> list[list[int]]:
    """Return indices grouped by a key, in order of first sight."""
    groups: dict[Any, list[int]] = {}
    for i, operation in enumerate(operations):
        groups.setdefault(freeze(key(operation)), []).append(i)
    return list(groups.values())
