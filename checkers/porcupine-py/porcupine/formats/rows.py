"""Rows of a Jepsen history (invoke, ok, fail, info) and the operations that they stand for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..models import CompiledModel
from ..types import Operation, PorcupineError

TYPES = ("invoke", "ok", "fail", "info")


@dataclass(frozen=True, slots=True)
class Row:
    """One event; ``process`` is an integer for a client, anything else for a nemesis."""

    line: int
    process: Any
    type: str
    f: str
    value: Any


def operations_of(rows: Iterable[Row], model: CompiledModel, name: str) -> list[Operation]:
    """Operations in order of invocation; a row's number is its time.

    Raises PorcupineError with the line for rows that do not pair, or that the model does not know.
    """
    opened: dict[Any, tuple[int, Row]] = {}
    found: list[tuple[int, Operation | None]] = []
    for time, row in enumerate(rows):
        if type(row.process) is not int or row.process < 0:
            continue
        if row.type not in TYPES:
            raise PorcupineError(f'{name}:{row.line}: type is "{row.type}", not one of {", ".join(TYPES)}')
        if row.type == "invoke":
            if row.process in opened:
                before = opened[row.process][1].line
                raise PorcupineError(
                    f"{name}:{row.line}: process {row.process} invokes {row.f} "
                    f"while its operation of line {before} is open"
                )
            opened[row.process] = (len(found), row)
            found.append((time, None))
            continue
        if row.process not in opened:
            raise PorcupineError(f"{name}:{row.line}: process {row.process} completes {row.f}, but has invoked nothing")
        place, begun = opened.pop(row.process)
        if begun.f != row.f:
            raise PorcupineError(
                f"{name}:{row.line}: process {row.process} completes {row.f}, "
                f"but invoked {begun.f} in line {begun.line}"
            )
        found[place] = (found[place][0], _operation(model, name, begun, row, found[place][0], time))
    for place, begun in opened.values():
        found[place] = (found[place][0], _operation(model, name, begun, None, found[place][0], 0))
    return [operation for _, operation in found if operation is not None]


def _operation(model: CompiledModel, name: str, begun: Row, ended: Row | None, call: int, ret: int) -> Operation | None:
    kind = "info" if ended is None else ended.type
    got = ended.value if ended is not None and ended.type == "ok" else None
    try:
        made = model.from_history(begun.f, begun.value, kind, got, begun.process)
        if made is None:
            return None
        operation = Operation(begun.process, *made, call, None if kind == "info" else ret)
        model.arguments(operation)
        return operation
    except PorcupineError as error:
        raise PorcupineError(f"{name}:{(ended or begun).line}: {error}") from None


def with_key(key: Any, value: Any) -> Any:
    """The pair [key, value] of a row that has a key of its own."""
    return value if key is None else (key, value)
