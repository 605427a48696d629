"""The timers that a simulated node's program sets, and the instants that it notes, compared with the waits that its
system declares."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from math import isfinite
from operator import attrgetter
from types import CodeType
from typing import Any

from stormproof.contracts.wait import Instant, Wait

_NODES, _WAITS_FOR_OTHERS = "nodes.", "nodes.timeouts"
_ALLOWED = 0.01
"""The share by which a timer may differ from what is declared, for sums of floating-point numbers."""
_MOMENT = 0.002
"""The same in seconds: a timer that was nearly over is set again."""


class Waits:
    """The declared waits of one program, and the first timer that differs (``wrong``)."""

    def __init__(self, declared: Sequence[Wait], options: Mapping[str, Any], kind: str) -> None:
        self._places: dict[str, list[tuple[Wait, float]]] = {}
        self._through = {each.through for each in declared}
        for each in declared:
            if each.of == kind and each.claimed(options) and not isinstance(each, Instant):
                self._places.setdefault(each.place, []).append((each, each.seconds(options)))
        self._known: dict[CodeType, list[tuple[Wait, float]] | bool] = {}
        self.wrong: tuple[Wait, str] | None = None

    def __bool__(self) -> bool:
        return bool(self._places)

    def armed(self, delay: float) -> None:
        """Judge a timer that the program sets now, by the function that sets it."""
        frame = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            known = self._known.get(code)
            if known is None:
                known = self._known[code] = self._of(code, str(frame.f_globals.get("__name__", "")))
            if known is True:
                frame = frame.f_back  # type: ignore[assignment]
                continue
            if known is not False:
                unit = known[0][0].unit
                self._judge(known, delay, frame.f_locals[unit] if unit else 1.0)
            return

    def _of(self, code: CodeType, module: str) -> list[tuple[Wait, float]] | bool:
        """Return a function's waits; True if it waits for its caller; False if it declares nothing."""
        if not module.startswith(_NODES) or module == _WAITS_FOR_OTHERS or code.co_qualname in self._through:
            return True
        return self._places.get(code.co_qualname, False)

    def _judge(self, waits: Sequence[tuple[Wait, float]], delay: float, unit: float) -> None:
        for each, seconds in waits:
            most = seconds * unit
            if each.least * most * (1 - _ALLOWED) - _MOMENT <= delay <= most * (1 + _ALLOWED) + _MOMENT:
                return
        if self.wrong is None:
            each, most = min(waits, key=lambda wait: abs(wait[1] * unit - delay))
            told = each.requirement.replace("{}", f"{most * unit:.4g} s")
            self.wrong = each, f"{told}; its timer is set to {delay:.4g} s"


class Instants:
    """The declared instants of one program, which is reached through ``subject``."""

    def __init__(self, declared: Sequence[Wait], options: Mapping[str, Any], kind: str, subject: object) -> None:
        places: dict[str, list[tuple[Wait, float]]] = {}
        for each in declared:
            if isinstance(each, Instant) and each.of == kind and each.claimed(options):
                places.setdefault(each.place, []).append((each, each.seconds(options)))
        self._subject = subject
        self._read = attrgetter(*places, "__class__") if places else None  # several names: it returns a tuple
        self._waits = list(places.values())
        self._last: tuple[Any, ...] = ()

    def look(self, first: float, last: float) -> tuple[Wait, str] | None:
        """Judge the instants that changed in a callback, which began and ended at these times of the program's
        clock."""
        if self._read is None:
            return None
        try:
            found = self._read(self._subject)
        except AttributeError as error:
            if error.name is None or error.obj is not None:
                raise  # The place is misnamed.
            return None  # The program lacks the part: a broker without a manager asks none for permission.
        if found == self._last:
            return None
        known, self._last = self._last, found
        for place, waits in enumerate(self._waits):
            value = found[place]
            if known and value == known[place]:
                continue
            until = value[-1] if isinstance(value, tuple) else value
            if until and isfinite(until) and (wrong := _differs(waits, until - last, until - first)):
                return wrong
        return None


def _differs(waits: Sequence[tuple[Wait, float]], left: float, most_left: float) -> tuple[Wait, str] | None:
    """Return the nearest wait, and what is wrong, if an instant that is so far ahead fits none."""
    for each, seconds in waits:
        if each.least * seconds * (1 - _ALLOWED) - _MOMENT <= most_left and left <= seconds * (1 + _ALLOWED) + _MOMENT:
            return None
    each, seconds = min(waits, key=lambda wait: abs(wait[1] - left))
    return each, f"{each.requirement.replace('{}', f'{seconds:.4g} s')}; it is to end after {left:.4g} s"
