"""The fault ledger: the nemesis's actions on each machine, their times, and the evidence that they took effect.

``ledger.jsonl`` has one JSON object a line: one for each injection of a fault, one for each heal, one for each repair
in an operator's place, and one for each period in which the harness itself stalled. Times are nanoseconds on the clock
of the history.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stormproof.contracts.backend import SIGKILL
from stormproof.contracts.fault import FROM_HEAL, STRIKES_LATER
from stormproof.errors import HistoryError
from stormproof.history.read_limits import read_small

INJECT, HEAL, REPAIR, STANDSTILL = "inject", "heal", "repair", "standstill"

UNMET = "unmet"
"""In evidence: why the fault does not count although it took effect: the state that it expects and did not find, or an
orderly stop that needed SIGKILL."""
UNCHECKED = "not checked"
"""In the same evidence: the part of that state that the system does not report."""
SKIPPED = "skipped"
"""The beginning of the error of a fault that was not injected, since it was impossible; its reason follows."""

_YEAR = 3e7
"""Seconds."""

_EFFECTS: Mapping[str, tuple[str, ...]] = {
    "partition": ("cuts links",),
    "packets": ("delays messages",),
    "pause": ("stops time",),
    "kill": ("ends process",),
    "stop": ("ends process",),
    "power": ("ends process",),
    "reboot": ("ends process",),
    "clock": ("moves clock",),
    "disk": ("may end process", "loses data"),
}
"""Effects of the families in ledgers that did not record effects."""


@dataclass(frozen=True)
class LedgerLine:
    """One step of one fault.

    ``id`` joins the two steps of a fault; ``fault`` is the family (``partition``), ``kind`` the variant (``master``);
    ``phase`` is ``inject`` or ``heal``; ``confirmed`` tells whether ``evidence`` shows that the step took effect;
    ``error`` is the reason if it could not be done. ``time`` is when the step began, ``done`` when it was complete.
    ``effects`` are those of the family. A ``claimed`` step is one that an imported history reports; Stormproof neither
    did nor observed it.
    """

    id: int
    fault: str
    kind: str
    phase: str
    time: int
    targets: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    confirmed: bool = False
    error: str | None = None
    done: int | None = None
    effects: tuple[str, ...] = ()
    claimed: bool = False

    def to_json(self) -> str:
        """Return the line as in the file, without the line break."""
        row = {
            "id": self.id, "fault": self.fault, "kind": self.kind, "phase": self.phase, "time": self.time,
            "targets": self.targets, "evidence": self.evidence, "proven": self.confirmed, "error": self.error,
            "done": self.done, "effects": self.effects, **({"claimed": True} if self.claimed else {}),
        }  # fmt: skip
        return json.dumps(row, separators=(",", ":"), default=str)


@dataclass(frozen=True)
class Repair:
    """An action between the last heal and the drain in an operator's place: ``text`` is a sentence."""

    text: str
    start: int
    end: int

    def to_json(self) -> str:
        """Return the line as in the file, without the line break."""
        return json.dumps({"phase": REPAIR, "time": self.start, "done": self.end, "text": self.text})


@dataclass(frozen=True)
class Standstill:
    """A period in which the harness itself stalled: it was stopped, its machine was suspended, or it got no processor.
    """

    start: int
    end: int
    seconds: float
    """The length of the period, including the time of a suspended machine, which the history's clock omits."""

    def to_json(self) -> str:
        """Return the line as in the file, without the line break."""
        return json.dumps({"phase": STANDSTILL, "time": self.start, "done": self.end, "seconds": self.seconds})


@dataclass(frozen=True)
class FaultWindow:
    """A fault from its injection to its heal; ``end`` is None while it is not healed, or if it never was.

    ``confirmed`` is true if evidence shows that its injection took effect (a heal's evidence may complete it: packets
    are only dropped while the fault lasts).
    """

    id: int
    fault: str
    kind: str
    targets: tuple[str, ...]
    start: int
    end: int | None
    confirmed: bool
    inject_evidence: Mapping[str, Any]
    heal_evidence: Mapping[str, Any]
    error: str | None = None
    in_force: int | None = None
    """From this time to ``end`` the fault was certainly in force; None if the ledger does not record it."""
    effects: frozenset[str] = frozenset()
    healed: int | None = None
    """The time at which its heal was complete; None if it never was, or if the ledger does not record it."""
    struck: int | None = None
    """The time at which a fault that strikes later did so, which may be during its heal: its window ends with the heal.
    None for any other fault, or if it did not strike."""
    claimed: bool = False
    """An imported history reports it; Stormproof has no evidence."""

    @property
    def skipped(self) -> str:
        """The reason why it was not injected; empty: it was."""
        mark, _, why = (self.error or "").partition(": ")
        return why if mark == SKIPPED else ""

    @property
    def unmet(self) -> str:
        """The state that it expects and did not find; empty: it found the state, or the ledger does not record it. A
        fault that continues until its heal may miss it only then."""
        return str(self.inject_evidence.get(UNMET) or self.heal_evidence.get(UNMET, ""))

    @property
    def forced(self) -> bool:
        """True if a stop, or a turn of a rolling restart, was to be orderly and needed SIGKILL."""
        found = (self.inject_evidence, self.heal_evidence)
        turns = [turn for each in found for turn in _mapping(each.get("turns")).values()]
        return any(SIGKILL in _mapping(_mapping(each).get("signals")).values() for each in (*found, *turns))

    @property
    def counts(self) -> bool:
        """True if the fault took effect, and found the state that it expects."""
        return self.confirmed and not self.unmet


def _mapping(data: Any) -> Mapping[str, Any]:
    return data if isinstance(data, Mapping) else {}


def read_ledger(path: Path) -> list[FaultWindow]:
    """Return the windows of a ledger file in order of injection; a torn last line is skipped.

    Raises:
        HistoryError: another line is not a ledger line.
    """
    rows = _rows(path)
    healed = {row["id"]: row for row in rows if row["phase"] == HEAL}
    injected = {row["id"]: row for row in rows if row["phase"] == INJECT}
    return [_window(row, healed.get(ident)) for ident, row in injected.items()]


def read_repairs(path: Path) -> list[Repair]:
    """Return the repairs in a ledger file, in order; raise HistoryError as ``read_ledger`` does."""
    return [Repair(row["text"], row["time"], row["done"]) for row in _rows(path) if row["phase"] == REPAIR]


def read_standstills(path: Path) -> list[Standstill]:
    """Return the periods in which the harness stalled, in order; raise HistoryError as ``read_ledger`` does."""
    rows = (row for row in _rows(path) if row["phase"] == STANDSTILL)
    return [Standstill(row["time"], row["done"], float(row["seconds"])) for row in rows]


def ledger_sha256(path: Path) -> str:
    """Return the digest of a ledger file; a missing file counts as one without lines.

    Raises:
        HistoryError: it can't be read.
    """
    return hashlib.sha256(_content(path)).hexdigest()


def demand_same(path: Path, sha256: str) -> None:
    """Check that a ledger is the one that the run wrote; raise HistoryError if it isn't, or can't be read."""
    if ledger_sha256(path) != sha256:
        raise HistoryError(f"{path}: not the ledger that the run recorded (ledger_sha256 in run.json differs)")


def _content(path: Path) -> bytes:
    try:
        return read_small(path)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise HistoryError(f"{path}: can't be read ({error.strerror or error})") from error


def _rows(path: Path) -> Sequence[Mapping[str, Any]]:
    return _parsed(path, _content(path))


@functools.lru_cache(maxsize=1)
def _parsed(path: Path, content: bytes) -> Sequence[Mapping[str, Any]]:
    """Return the lines of a ledger. Cached, since a reader of its faults reads its repairs next."""
    found = []
    lines = content.decode("utf-8", "replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number >= len(lines) - 1:
                break
            raise HistoryError(f"{path}:{number}: not a ledger line ({error})") from error
        wrong = _wrong(row)
        if wrong:
            raise HistoryError(f"{path}:{number}: not a ledger line ({wrong})")
        found.append(row)
    return found


_WHOLE = (int,)
_TEXTS = "a list of texts"
_STEP: Mapping[str, Any] = {"id": _WHOLE, "fault": (str,), "kind": (str,), "time": _WHOLE, "targets": _TEXTS,
                            "evidence": (dict,), "proven": (bool,), "error": (str, type(None))}  # fmt: skip
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    INJECT: _STEP,
    HEAL: _STEP,
    REPAIR: {"time": _WHOLE, "done": _WHOLE, "text": (str,)},
    STANDSTILL: {"time": _WHOLE, "done": _WHOLE, "seconds": (int, float)},
}
_WHERE_TOLD: Mapping[str, Any] = {"done": (int, type(None)), "effects": _TEXTS, "claimed": (bool,)}


def _wrong(row: object) -> str:
    """Return the error of a line, if any."""
    if not isinstance(row, dict):
        return "no JSON object"
    phase = row.get("phase")
    if not isinstance(phase, str) or phase not in _FIELDS:
        return f"phase {phase!r}"
    for name, kinds in {**_WHERE_TOLD, **_FIELDS[phase]}.items():
        if name not in row:
            if name in _FIELDS[phase]:
                return f"it has no {name}"
            continue
        value = row[name]
        fits = _are_texts(value) if kinds is _TEXTS else isinstance(value, kinds)
        # For Python, true is a whole number. Times are columns of 64 bits; NaN is also outside all bounds.
        if isinstance(value, int | float) and not abs(value) < 1 << 63:
            return f"its {name} has more than 64 bits"
        if not fits or (isinstance(value, bool) and bool not in kinds):
            return f"its {name} is {json.dumps(value)[:60]}"
    return ""


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _targets(inject: Mapping[str, Any], heal: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return a fault's targets: if its injection names all potential ones, its heal names the ones it hit."""
    hit = heal["targets"] if heal is not None else []
    return tuple(hit if hit and set(hit) <= set(inject["targets"]) else inject["targets"])


def _window(inject: Mapping[str, Any], heal: Mapping[str, Any] | None) -> FaultWindow:
    effects = frozenset(inject.get("effects", _EFFECTS.get(inject["fault"], ())))
    end, healed, struck = (heal["time"], heal.get("done"), None) if heal else (None, None, None)
    if heal is not None and STRIKES_LATER in effects:
        end = max(heal["time"], healed or 0)
        told = heal["evidence"].get(FROM_HEAL)
        if isinstance(told, int | float) and abs(told) < _YEAR:
            struck = max(inject["time"], heal["time"] + round(told * 1e9))
    return FaultWindow(
        id=inject["id"],
        fault=inject["fault"],
        kind=inject["kind"],
        targets=_targets(inject, heal),
        start=inject["time"],
        end=end,
        confirmed=bool(inject["proven"] or (heal and heal["proven"])),
        inject_evidence=inject["evidence"],
        heal_evidence=heal["evidence"] if heal else {},
        error=inject["error"] or (heal["error"] if heal else None),
        in_force=inject.get("done"),
        healed=healed,
        effects=effects,
        struck=struck,
        claimed=bool(inject.get("claimed")),
    )
