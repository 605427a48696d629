"""A lock that no client can acquire any longer."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.locks import ACQUIRE
from checkers.run import SECOND, Run
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.text import elapsed
from stormproof.vocabulary import LOCKS

FREE_FOR_NOBODY = "empty"
"""Error of an acquire that waited for the lock without getting it."""
LOST_AFTER_SECONDS = 20.0
"""Seconds of waiting without success, when all is healed, that show that the lock is lost."""


def check(run: Run) -> CheckOutcome:
    """Tell whether some client gets the lock after the main phase, when all is healed and every holder has left.

    If no client gets it though clients asked for long enough, the lock is lost. Unknown if acquires failed otherwise:
    only a stretch in which every acquire that ended waited without success counts, and an acquire with an unknown
    outcome may have held the lock for a while.
    """
    h = run.history
    after = np.flatnonzero(h.f.rows_with(ACQUIRE) & (h.process >= 0) & (h.time >= run.main_phase()[1]))
    asked = [row for row in after.tolist() if h.kind[row] == vocabulary.INVOKE]
    ended = [int(h.partner[row]) for row in asked if h.partner[row] >= 0]
    if any(h.kind[end] == vocabulary.OK for end in ended):
        return CheckOutcome(VALID, 0, "the lock could be acquired in the end")
    vain = _longest_in_vain(run, sorted(ended))
    seconds = float(h.time[vain[-1]] - h.time[vain[0]]) / SECOND if vain else 0.0
    if seconds < LOST_AFTER_SECONDS:
        return CheckOutcome(UNKNOWN, 0, f"after the last heal, acquires of the lock failed for {elapsed(seconds)} only")
    example = Anomaly("lock-lost", run.rows_of(vain[0], vain[-1]), 0, None, {"seconds": round(seconds, 3)})
    text = f"after the last heal, no client could acquire the lock for {elapsed(seconds)}"
    return CheckOutcome(INVALID, 1, text, (example,))


def _longest_in_vain(run: Run, ended: list[int]) -> list[int]:
    """Find the longest stretch of acquires that waited for the lock without success.

    ``ended`` are the rows at which acquires ended, in order.
    """
    h = run.history
    longest: list[int] = []
    stretch: list[int] = []
    for end in ended:
        in_vain = h.kind[end] == vocabulary.FAIL and h.error.at(end) == FREE_FOR_NOBODY
        stretch = [*stretch, end] if in_vain else []
        if stretch and (not longest or h.time[end] - h.time[stretch[0]] >= h.time[longest[-1]] - h.time[longest[0]]):
            longest = stretch
    return longest


CHECK = RunCheck(
    name="lock-lost",
    guarantee="after the last heal, a lock that its holders have left can be acquired",
    anomaly="lock-lost",
    decides=True,
    subjects=(LOCKS,),
    one="lock could no longer be acquired",
    more="locks could no longer be acquired",
    function=check,
)
