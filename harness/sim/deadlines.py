"""Deadlines of a simulated node: how long things have been pending, and whether that is too long."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from stormproof.contracts.deadline import Deadline, Plans, Waits

PERIOD = 0.1
"""Simulated seconds between two looks at a node."""


class _Standing:
    """The pending things under one name, since when each is pending, and since when the oldest is.

    Times are the seconds of the run that count for the deadline.
    """

    __slots__ = ("oldest", "since", "things")

    def __init__(self, things: list[Hashable], since: dict[Hashable, float]) -> None:
        self.things = things
        self.since = since
        self.oldest = min(since.values())


class Deadlines:
    """The pending things in one run of one node's program.

    Args:
        claimed: the deadlines that are claimed of the run.
        options: the test's options.
    """

    def __init__(self, claimed: Sequence[Deadline], options: Mapping[str, Any]) -> None:
        self._claimed = {each.name: (each, each.calm, each.seconds(options)) for each in claimed}
        self._standing: dict[str, _Standing] = {}
        self._last: float | None = None
        self._ran = self._calm = 0.0
        """Seconds of running since the first look; seconds of those in which no fault was in force."""
        self._planned: Callable[[], Mapping[str, Mapping[Hashable, float]]] | None = None

    def look(self, program: Waits, now: float, ran_on: float, calm_since: float | None) -> tuple[Deadline, str] | None:
        """Examine the program; return the deadline that is exceeded, with a description, or None.

        Args:
            now: the time in simulated seconds.
            ran_on: the time at which the program last resumed after a standstill.
            calm_since: the time since which no fault has been in force; None: one is.
        """
        last = self._last
        self._last = now
        if last is None:
            self._planned = program.planned if isinstance(program, Plans) else None
        else:
            self._ran += now - max(last, ran_on)
            if calm_since is not None:
                self._calm += max(0.0, now - max(last, ran_on, calm_since))
        pending, standing = program.pending(), self._standing
        planned = self._planned() if self._planned is not None else {}
        for name in [name for name in standing if not pending.get(name)]:
            del standing[name]
        claimed = self._claimed
        for name, found in pending.items():
            if not found or name not in claimed:
                continue
            deadline, calm, seconds = claimed[name]
            total = self._calm if calm else self._ran
            known, things = standing.get(name), list(found)
            if known is None or known.things != things:
                before = known.since if known is not None else {}
                known = standing[name] = _Standing(things, {thing: before.get(thing, total) for thing in things})
            left = planned.get(name)
            if isinstance(found, Mapping):
                beyond = {thing: total - since - found[thing] for thing, since in known.since.items()}
                thing, longest = max(beyond.items(), key=itemgetter(1))
                if longest > seconds + PERIOD:
                    return deadline, _told(deadline, longest + found[thing], seconds + found[thing], thing)
                continue
            if not left:
                if total - known.oldest > seconds + PERIOD:
                    thing = next(each for each, since in known.since.items() if since == known.oldest)
                    return deadline, _told(deadline, total - known.oldest, seconds, thing)
                continue
            lasts = {thing: total - since + left.get(thing, 0.0) for thing, since in known.since.items()}
            thing, longest = max(lasts.items(), key=itemgetter(1))
            if longest > seconds + PERIOD:
                return deadline, _told(deadline, longest, seconds, thing, " by its own plan" * (thing in left))
        return None


def _told(deadline: Deadline, lasted: float, seconds: float, thing: Hashable, plan: str = "") -> str:
    requirement = deadline.requirement.replace("{}", f"{seconds:.3g} s")
    return f"{requirement}; not done for {lasted:.3g} s{plan} ({thing})"
