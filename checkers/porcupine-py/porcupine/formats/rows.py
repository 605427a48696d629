"""Rows of a Jepsen history (invoke, ok, fail, info) and the operations that they describe."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..models import CompiledModel
from ..types import Operation, PorcupineError
from ..values import KEYWORD, Typed, name_of
from .memory import MemoryMeter
from .order import Row, in_order

TYPES = ("invoke", "ok", "fail", "info")

DID_NOT_HAPPEN, DID_NOT_MATCH = "did-not-happen", "did-not-match"
FAILED_CAS = (DID_NOT_HAPPEN, DID_NOT_MATCH)
"""The possible meanings of a ``cas`` that ends ``fail``.

It did not happen, for whatever reason (Jepsen, Knossos); or it was carried out, compared, and did not match (the etcd
logs of Porcupine's tests), which is an observation.
"""

NEMESIS = "nemesis"
"""The process that every history may have in addition to its clients; its actions are not operations."""


def row_of(item: Mapping[str, Any], name: str, line: int) -> Row:
    """Convert a map or object to a row. Raises PorcupineError, with the line, if a field is missing.

    A ``type`` or ``f`` other than a name becomes the text of its value, which is none of the known names.
    """
    for field in ("process", "type", "f"):
        if field not in item:
            raise PorcupineError(f'{name}:{line}: "{field}" is missing')
    kind, f = (_shown(item[field]) if (told := name_of(item[field])) is None else told for field in ("type", "f"))
    value = with_key(item.get("key"), item.get("value"))
    return Row(line, item["process"], kind, f, value, item.get("index"), item.get("time"))


def is_nemesis(process: Any) -> bool:
    """Return whether a row is of the process that injects the faults."""
    return name_of(process) == NEMESIS


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:80] + "..."


@dataclass(frozen=True, slots=True)
class Reading:
    """The interpretation of rows.

    ``failed_cas`` is the meaning of a failed ``cas`` (one of FAILED_CAS); ``pass_over`` the names of processes whose
    rows are skipped in addition to NEMESIS.
    """

    failed_cas: str = DID_NOT_HAPPEN
    pass_over: Collection[str] = ()

    def passes_over(self, row: Row, name: str) -> bool:
        """Return whether a row belongs to no client. A client is a whole number from 0, a text or a keyword.

        Raises PorcupineError for any other process that is not named.
        """
        process = row.process
        if type(process) is int:
            if self.pass_over and str(process) in self.pass_over:
                return True
            if process >= 0:
                return False
        elif process and (isinstance(process, str) or (isinstance(process, Typed) and process.kind == KEYWORD)):
            return is_nemesis(process) or str(process) in self.pass_over or name_of(process) in self.pass_over
        raise PorcupineError(
            f"{name}:{row.line}: process {_shown(process)} is neither a whole number from 0 nor a name; processes to "
            "pass over are given with --pass-over"
        )


@dataclass(frozen=True, slots=True)
class History:
    """The contents of a file: its operations, and the number of its lines that were skipped because they belong to no
    client.

    ``first_passed_over`` shows the first such line, with its number, or is "" without one; ``did_not_happen`` counts
    operations that ended ``fail`` and say nothing. ``format`` is one of ``FORMATS``. ``lines`` are those at which the
    operations end, or begin if they do not end.
    """

    operations: list[Operation]
    passed_over: int
    first_passed_over: str = ""
    did_not_happen: int = 0
    format: str = ""
    lines: Sequence[int] = ()


def operations_of(
    rows: Iterable[Row | int], model: CompiledModel, name: str, reading: Reading, meter: MemoryMeter
) -> History:
    """Return operations in order of invocation; a row's place in the order of ``in_order`` is its time.

    A number instead of a row is that of a line to skip. Raises PorcupineError with the line for rows that do not pair,
    whose order is ambiguous, that the model does not know, or that exceed the memory limit.
    """
    clients: list[Row] = []
    passed_over: list[int] = []
    for row in rows:
        if isinstance(row, int) or reading.passes_over(row, name):
            passed_over.append(row if isinstance(row, int) else row.line)
            continue
        meter.take_row(row.value, row.line)
        if row.type not in TYPES:
            raise PorcupineError(f'{name}:{row.line}: type is "{row.type}", not one of {", ".join(TYPES)}')
        clients.append(row)
    opened: dict[Any, tuple[int, Row]] = {}
    found: list[tuple[int, Operation | None]] = []
    ends: list[int] = []
    for time, place_of_row in enumerate(in_order(clients, name)):
        row = clients[place_of_row]
        if row.type == "invoke":
            if row.process in opened:
                before = opened[row.process][1].line
                raise PorcupineError(
                    f"{name}:{row.line}: process {row.process} invokes {row.f} "
                    f"while its operation of line {before} is open"
                )
            opened[row.process] = (len(found), row)
            found.append((time, None))
            ends.append(row.line)
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
        ends[place] = row.line
    for place, begun in opened.values():
        found[place] = (found[place][0], _operation(model, name, reading, begun, None, found[place][0], 0))
    operations = [operation for _, operation in found if operation is not None]
    lines = [line for line, (_, operation) in zip(ends, found, strict=True) if operation is not None]
    failed = len(found) - len(operations)
    return History(operations, len(passed_over), str(min(passed_over, default="")), failed, lines=lines)


def _operation(
    model: CompiledModel, name: str, reading: Reading, begun: Row, ended: Row | None, call: int, ret: int
) -> Operation | None:
    kind = "info" if ended is None else ended.type
    dropped = kind == "fail" and reading.failed_cas == DID_NOT_HAPPEN
    if dropped:
        # It did not happen, but it must still be one of the model's operations.
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
    """Return the pair [key, value] of a row with a separate key."""
    return value if key is None else (key, value)
