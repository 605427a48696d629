"""A checked history as one self-contained HTML page, after Porcupine's and Knossos' pictures.

Lanes per client; each operation from its call to its return, evenly spaced by events; the order found, with the state
before and after each operation; the operations that can't be placed; annotations. Everything of the history reaches the
page as JSON and is shown as text, so that no value can become markup.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .check import positions
from .kernels.codes import PENDING
from .models import Model
from .replay import outcome, states_along
from .types import Operation, Partition, Result

MAX_TEXT = 200
"""Longest text of a state or operation, in characters."""
MAX_STATES = 20_000
"""Orders longer than this are shown without their states."""
STATE_ROOM = 20_000_000
"""Limit of the characters of an order's states: replaying an order with more is not worth the wait."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """A concurrent event such as a fault: from ``start`` to ``end`` in the unit of the operations' times.

    ``end`` is None if it never ended.
    """

    start: float
    end: float | None
    text: str


def write_html(
    path: str | Path,
    model: Model,
    operations: Sequence[Operation],
    result: Result,
    *,
    title: str = "",
    annotations: Sequence[Annotation] = (),
    minimal: Sequence[int] = (),
) -> None:
    """Write ``html`` to a file."""
    Path(path).write_text(
        html(model, operations, result, title=title, annotations=annotations, minimal=minimal), encoding="utf-8"
    )


def html(
    model: Model,
    operations: Sequence[Operation],
    result: Result,
    *,
    title: str = "",
    annotations: Sequence[Annotation] = (),
    minimal: Sequence[int] = (),
) -> str:
    """Return the page.

    ``result`` is the result of ``check_operations_verbose`` for these operations; ``minimal`` marks a sub-history of
    them (``minimal_history``).
    """
    call, ret = positions(operations)
    end = 2 * len(operations)
    shown = next((i for i, p in enumerate(result.partitions) if p is result.illegal), 0)
    data = {
        "title": title or f"{result.model}, {len(operations)} operations",
        "verdict": result.verdict.value,
        "lane": "client",
        "end": end,
        "show": shown,
        "minimal": [int(i) for i in minimal],
        "bands": [_band(a, operations, call, ret) for a in annotations],
        "ops": [_operation(model, o, int(call[i]), int(ret[i])) for i, o in enumerate(operations)],
        "parts": [_partition(model, operations, p) for p in result.partitions]
        or [{"name": "all", "verdict": "ok", "reason": "", "ops": [], "order": [], "states": [], "failed": []}],
    }
    text = json.dumps(data, separators=(",", ":"), default=str)
    # Within a script element only "</" and "<!--" could be interpreted as markup.
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    template = (Path(__file__).parent / "static" / "view.html").read_text(encoding="utf-8")
    return template.replace("/*DATA*/", safe, 1)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _operation(model: Model, operation: Operation, call: int, ret: int) -> list[Any]:
    """Return [client, call position, return position or -1, label, description, call time, return time]."""
    text = _cut(model.describe_operation(operation.input, outcome(operation)))
    client = operation.client_id if isinstance(operation.client_id, int | str) else str(operation.client_id)
    label = text.replace(" -> ", " → ")
    returned = "never returned" if operation.ret is None else str(operation.ret)
    return [client, call, -1 if ret == PENDING else ret, label, label, str(operation.call), returned]


def _partition(model: Model, operations: Sequence[Operation], partition: Partition) -> dict[str, Any]:
    order = partition.linearization or []
    # States of containers grow with the order: replaying very long ones takes quadratic time.
    affordable = len(order) <= MAX_STATES and len(order) ** 2 / 4 <= STATE_ROOM * 2
    failed = [*partition.culprits, *(i for i in partition.stuck if i not in partition.culprits)]
    return {
        "name": "all" if partition.key is None else _cut(str(partition.key)),
        "verdict": partition.verdict.value,
        "reason": partition.reason,
        "ops": partition.operations,
        "order": order,
        "states": [_cut(s) for s in states_along(model, operations, order)] if affordable else [],
        "failed": failed,
    }


def _band(annotation: Annotation, operations: Sequence[Operation], call: Any, ret: Any) -> list[Any]:
    """Return [first position, last position or -1, text]: the positions at which the annotation's times fall."""
    times = np.array([o.call for o in operations] + [o.ret for o in operations if o.ret is not None])
    places = np.concatenate((call, ret[ret != PENDING]))
    times = times[np.argsort(places)]
    start = int(np.searchsorted(times, annotation.start)) - 0.5
    stop = -1.0 if annotation.end is None else int(np.searchsorted(times, annotation.end, side="right")) - 0.5
    return [max(start, 0.0), stop if stop < 0 else max(stop, 0.1), annotation.text]
