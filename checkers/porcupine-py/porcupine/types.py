"""Operations, events, verdicts and errors."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any


class PorcupineError(Exception):
    """Bad input: a history, a file or an argument that can't be checked. The message is one line for the user."""

    def __init__(self, message: str = "") -> None:
        # Quoted contents of a file may have line breaks.
        super().__init__("\\n".join(message.splitlines()))


class CheckResult(enum.Enum):
    """The verdict on a history."""

    OK = "ok"
    ILLEGAL = "illegal"
    UNKNOWN = "unknown"


class _NoOutput:
    """The output that ``Model.step`` gets for an operation that never returned."""

    def __repr__(self) -> str:
        return "NO_OUTPUT"


NO_OUTPUT = _NoOutput()


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: its caller, input, output, and times.

    ``call`` and ``ret`` are times or positions of any one unit. ``ret`` None means that the operation never returned
    (it crashed: it may or may not have happened, at any time after its call), and ``output`` then has no meaning. Equal
    times count as overlapping. Inputs of the built-in models are tuples, ``("write", 3)``; see each model.
    """

    client_id: Hashable
    input: Any
    output: Any
    call: float
    ret: float | None


@dataclass(frozen=True, slots=True)
class Event:
    """A call or a return, in a history given as a sequence.

    ``kind`` is "call" or "return", ``value`` the input or the output; ``id`` joins the two.
    """

    kind: str
    id: Hashable
    value: Any
    client_id: Hashable = None


@dataclass(frozen=True, slots=True)
class Partition:
    """The findings about one partition; operations are indices into the checked sequence.

    ``key`` identifies the partition (a kv key, a set's element; None when there is one only). ``linearization`` is the
    order found (OK), or the longest partial order that the search reached; None if a monitor decided. ``stuck`` are the
    operations that time allows next there, none of which the state admits. ``reason`` explains an ILLEGAL partition,
    and ``culprits`` are the operations that prove it. ``method`` names the algorithm that decided.
    """

    key: Any
    operations: list[int]
    verdict: CheckResult
    method: str
    steps: int = 0
    linearization: list[int] | None = None
    stuck: list[int] = field(default_factory=list)
    reason: str = ""
    culprits: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Result:
    """A verdict with its evidence. ``seconds`` is wall time."""

    verdict: CheckResult
    model: str
    operations: int
    partitions: list[Partition]
    steps: int
    seconds: float

    @property
    def illegal(self) -> Partition | None:
        """The first partition that is not linearizable, if any."""
        return next((p for p in self.partitions if p.verdict is CheckResult.ILLEGAL), None)

    @property
    def unchecked(self) -> int:
        """The number of undecided partitions."""
        return sum(p.verdict is CheckResult.UNKNOWN for p in self.partitions)
