"""The timers that a simulated node's program sets, compared with the waits that its system declares."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

from stormproof.contracts.wait import Wait

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
            if each.of == kind and each.claimed(options):
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
