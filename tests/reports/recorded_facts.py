"""What small runs recorded, for tests of what a report says of why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reports.message_trace import read_trace
from reports.narrative import ShownAnomaly, ShownOperation
from reports.roles import Lane, RolePeriod, TransferMark
from reports.run_facts import Facts
from stormproof.contracts.fault import ENDS_PROCESS
from stormproof.history.ledger import FaultWindow
from stormproof.run_folder import MESSAGE_TRACE

ROLES = (
    Lane("n1", (RolePeriod(0, 9, "master", "epoch 1", True, True, 0, ("n1",)),
                RolePeriod(9, 30, "master", "epoch 3", True, True, 2, ("n1", "n2")))),
    Lane("n2", (RolePeriod(0, 3, "slave", "epoch 1", True, False, 0),
                RolePeriod(3, 9, "master", "epoch 2", True, True, 1),
                RolePeriod(9, 30, "slave", "epoch 3", True, False, 2))),
)  # fmt: skip
KILL = FaultWindow(4, "kill", "one", ("n2",), 8_000_000_000, 8_500_000_000, True, {}, {},
                   effects=frozenset({ENDS_PROCESS}))  # fmt: skip


def mark(time: float, node: str, what: str, cause: str, token: str = "", place: str = "q0",
         messages: tuple[str, ...] = ("1/7",)) -> dict[str, Any]:  # fmt: skip
    return {"time": time, "node": node, "what": what, "cause": cause, "token": token, "place": place,
            "messages": list(messages)}  # fmt: skip


def started(time: float, node: str) -> dict[str, Any]:
    return mark(time, node, "held", "started", messages=())


OTHERS = [started(0.1, "n1"), started(0.1, "n2"), mark(1, "n1", "put", "sent", "c 1", messages=("1/6",))]
"""Both nodes trace, and have told of another message of the same producer."""


def facts(folder: Path, *marks: dict[str, Any], transfers: tuple[TransferMark, ...] = (),
          faults: tuple[FaultWindow, ...] = (), **others: Any) -> Facts:  # fmt: skip
    """What a small run recorded; ``others`` are more of its facts, by their names."""
    rows = sorted([*OTHERS, *marks], key=lambda row: row["time"]) if marks else []
    (folder / MESSAGE_TRACE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Facts(read_trace(folder), ROLES, transfers, faults, **others)


def operation(f: str, start: float, node: str, kind: str = "ok", process: int = 1, value: str = "1/7",
              seconds: float = 0.1) -> ShownOperation:  # fmt: skip
    return ShownOperation(span=0, rows="1, 2", start=start, end=start + seconds, process=process, node=node, type=kind,
                          f=f, key=0, value=value, error="", faults=(), proof=True)  # fmt: skip


def anomaly(kind: str, *operations: ShownOperation, value: str = "1/7", detail: tuple[tuple[str, str], ...] = ()
            ) -> ShownAnomaly:  # fmt: skip
    return ShownAnomaly("a0", kind, kind, 0, value, detail, operations, 0, (), "queue")
