"""The fault ledger: what the nemesis did to which node, when, and the proof that it took effect.

One JSON object a line in ``ledger.jsonl``: a line when a fault is injected, a line when it is healed.
Times are nanoseconds on the clock of the history.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import HistoryError


@dataclass(frozen=True)
class LedgerLine:
    """One step of one fault.

    ``id`` joins the two steps of a fault; ``fault`` is the family (``partition``), ``kind`` the variant
    (``master``); ``phase`` is ``inject`` or ``heal``; ``proven`` says whether ``evidence`` shows that the
    step took effect; ``error`` is the reason when it could not be done. ``time`` is when the step began,
    ``done`` when it was complete.
    """

    id: int
    fault: str
    kind: str
    phase: str
    time: int
    targets: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    proven: bool = False
    error: str | None = None
    done: int | None = None

    def to_json(self) -> str:
        """The line as it stands in the file, without the line break."""
        return json.dumps(asdict(self), separators=(",", ":"), default=str)


@dataclass(frozen=True)
class FaultWindow:
    """A fault from its injection to its heal; ``end`` is None while (or if never) healed.

    ``proven`` is true when injecting it is proven to have taken effect (a heal's evidence may complete
    the proof: packets are only dropped while the fault lasts).
    """

    id: int
    fault: str
    kind: str
    targets: tuple[str, ...]
    start: int
    end: int | None
    proven: bool
    inject_evidence: Mapping[str, Any]
    heal_evidence: Mapping[str, Any]
    error: str | None = None
    in_force: int | None = None
    """From here to ``end`` the fault was in force for certain; None where the ledger does not say."""


def read_ledger(path: Path) -> list[FaultWindow]:
    """The windows of a ledger file in order of injection; a torn last line is left out.

    Raises:
        HistoryError: a line other than the last is not a ledger line.
    """
    if not path.exists():
        return []
    injected: dict[int, dict[str, Any]] = {}
    healed: dict[int, dict[str, Any]] = {}
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            table = {"inject": injected, "heal": healed}[row["phase"]]
            table[int(row["id"])] = row
        except (ValueError, KeyError, TypeError) as error:
            if number >= len(lines) - 1:
                break
            raise HistoryError(f"{path}:{number}: not a ledger line ({error})") from error
    return [_window(row, healed.get(ident)) for ident, row in injected.items()]


def _window(inject: Mapping[str, Any], heal: Mapping[str, Any] | None) -> FaultWindow:
    return FaultWindow(
        id=inject["id"],
        fault=inject["fault"],
        kind=inject["kind"],
        targets=tuple(inject["targets"]),
        start=inject["time"],
        end=heal["time"] if heal else None,
        proven=bool(inject["proven"] or (heal and heal["proven"])),
        inject_evidence=inject["evidence"],
        heal_evidence=heal["evidence"] if heal else {},
        error=inject["error"] or (heal["error"] if heal else None),
        in_force=inject.get("done"),
    )
