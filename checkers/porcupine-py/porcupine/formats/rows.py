"""Rows of a Jepsen history (invoke, ok, fail, info) and the operations that they stand for."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from ..models import CompiledModel
from ..types import Operation, PorcupineError
from .room import Room

TYPES = ("invoke", "ok", "fail", "info")

DID_NOT_HAPPEN, DID_NOT_MATCH = "did-not-happen", "did-not-match"
FAILED_CAS = (DID_NOT_HAPPEN, DID_NOT_MATCH)
"""What a ``cas`` that ends ``fail`` may mean: it did not happen, for whatever reason (Jepsen, Knossos); or it was
carried out, compared, and did not match (the etcd logs of Porcupine's tests), which is an observation."""

NEMESIS = "nemesis"
"""The process that every history may have beside its clients: what it does is no operation."""


@dataclass(frozen=True, slots=True)
class Row:
    """One event; ``process`` is a whole number from 0 for a client, a name for what is no client."""

    line: int
    process: Any
    type: str
    f: str
    value: Any


@dataclass(frozen=True, slots=True)
class Reading:
    """How rows are to be understood: what a failed ``cas`` means (one of FAILED_CAS), and the names of processes whose
    rows are passed over besides NEMESIS."""

    failed_cas: str = DID_NOT_HAPPEN
    pass_over: Collection[str] = ()

    def passes_over(self, row: Row, name: str) -> bool:
        """Whether a row is no client's. Raises PorcupineError if it can't be told."""
        process = row.process
        if type(process) is int and process >= 0:
            return False
        # A keyword may have kept its colon on its way through JSON.
        if isinstance(process, str) and (process.removeprefix(":") == NEMESIS or process in self.pass_over):
            return True
        shown = repr(process)
        raise PorcupineError(
            f"{name}:{row.line}: process {shown if len(shown) < 80 else shown[:80] + '...'} is neither a whole number "
            f"from 0 nor {NEMESIS}; names to pass over are given with --pass-over"
        )


@dataclass(frozen=True, slots=True)
class History:
    """What a file holds: operations, and how many of its lines were no client's and passed over."""

    operations: list[Operation]
    passed_over: int


def operations_of(
    rows: Iterable[Row | None], model: CompiledModel, name: str, reading: Reading, room: Room
) -> History:
    """Operations in order of invocation; a row's number is its time. A row that is None is passed over.

    Raises PorcupineError with the line for rows that do not pair, that the model does not know, or for which there is
    no room.
    """
    opened: dict[int, tuple[int, Row]] = {}
    found: list[tuple[int, Operation | None]] = []
    passed_over = 0
    for time, row in enumerate(rows):
        if row is None or reading.passes_over(row, name):
            passed_over += 1
            continue
        room.take_row(row.value, row.line)
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
        found[place] = (found[place][0], _operation(model, name, reading, begun, row, found[place][0], time))
    for place, begun in opened.values():
        found[place] = (found[place][0], _operation(model, name, reading, begun, None, found[place][0], 0))
    return History([operation for _, operation in found if operation is not None], passed_over)


def _operation(
    model: CompiledModel, name: str, reading: Reading, begun: Row, ended: Row | None, call: int, ret: int
) -> Operation | None:
    kind = "info" if ended is None else ended.type
    dropped = kind == "fail" and reading.failed_cas == DID_NOT_HAPPEN
    if dropped:
        # It did not happen, but it must be one of the model's all the same.
        kind = "info"
    got = ended.value if ended is not None and ended.type == "ok" else None
    try:
        made = model.from_history(begun.f, begun.value, kind, got, begun.process)
        if made is None:
            return None
        operation = Operation(begun.process, *made, call, None if kind == "info" else ret)
        model.arguments(operation)
        return None if dropped else operation
    except PorcupineError as error:
        raise PorcupineError(f"{name}:{(ended or begun).line}: {error}") from None


def with_key(key: Any, value: Any) -> Any:
    """The pair [key, value] of a row that has a key of its own."""
    return value if key is None else (key, value)
