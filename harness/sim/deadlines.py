"""How long things have been pending in a simulated node, and whether that is too long."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from stormproof.contracts.deadline import Deadline, Plans, Waits

PERIOD = 0.1
"""Simulated seconds between two looks at a node."""


class Deadlines:
    """What is pending in one run of one node's program.

    Args:
        claimed: the deadlines that are claimed of the run.
        options: the test's.
    """

    def __init__(self, claimed: Sequence[Deadline], options: Mapping[str, Any]) -> None:
        self._claimed = [(each, each.name, each.seconds(options)) for each in claimed]
        self._pending: dict[str, dict[Hashable, float]] = {}
        """Name of a deadline -> how long each thing has been pending, in seconds that count."""
        self._last: float | None = None
        self._plans: bool | None = None
        """Whether the program tells its plans, once it was asked."""

    def look(self, program: Waits, now: float, ran_on: float, calm_since: float | None) -> tuple[Deadline, str] | None:
        """Look at the program; what has been pending for too long, with what is wrong.

        Args:
            now: simulated seconds.
            ran_on: when it last ran on, having stood still.
            calm_since: since when no fault has been in force; None: one is.
        """
        last = self._last
        self._last = now
        ran = 0.0 if last is None else now - max(last, ran_on)
        calm = 0.0 if last is None or calm_since is None else max(0.0, now - max(last, ran_on, calm_since))
        if self._plans is None:
            self._plans = isinstance(program, Plans)
        pending, before = program.pending(), self._pending
        planned = program.planned() if self._plans and isinstance(program, Plans) else {}
        for deadline, name, seconds in self._claimed:
            found = pending.get(name)
            if not found:
                before.pop(name, None)
                continue
            known, left = before.get(name), planned.get(name)
            if not (known or left):  # it has just begun
                before[name] = dict.fromkeys(found, 0.0)
                continue
            more = calm if deadline.calm else ran
            before[name] = now_known = {thing: known[thing] + more if known and thing in known else 0.0
                                        for thing in found}  # fmt: skip
            lasts = {thing: lasted + left.get(thing, 0.0) for thing, lasted in now_known.items()} if left else now_known
            longest = max(lasts.values())
            if longest > seconds + PERIOD:
                thing = next(each for each, lasted in lasts.items() if lasted == longest)
                plan = " by its own plan" if longest > now_known[thing] else ""
                return deadline, f"{deadline.what} for {longest:.3g} s{plan}, and may be for {seconds:.3g} s ({thing})"
        return None
