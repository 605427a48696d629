"""The duplicate-okay reading: at-least-once delivery suffices, so only losses violate it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from checkers.api import ByParts, RunCheck, WholeRun
from checkers.checks import lost
from checkers.kernels.queues import UNSURE
from checkers.run import Run
from stormproof.contracts.check import CheckOutcome
from stormproof.vocabulary import MESSAGES


def find(run: Run) -> tuple[lost.FoundLosses, dict[str, int]]:
    """Return the losses, and count the messages that were delivered again, delivered though no one had sent them, or
    delivered though their send was never confirmed (``recovered``).
    """
    messages = run.messages
    came = messages.deliveries
    return lost.find(run), {
        "duplicated": int(np.count_nonzero(came > 1)),
        "unexpected": int(np.count_nonzero((came > 0) & (messages.sent < 0))),
        "recovered": int(np.count_nonzero((came > 0) & (messages.state == UNSURE))),
    }


def conclude(parts: Sequence[tuple[lost.FoundLosses, dict[str, int]]], whole: WholeRun) -> CheckOutcome:
    """Give the account of an at-least-once queue: lost, duplicated, unexpected, recovered. The losses decide the
    verdict.
    """
    found = lost.conclude([losses for losses, _ in parts], whole)
    counts = {name: sum(part[name] for _, part in parts) for name in parts[0][1]}
    figures = {**found.figures, "lost": found.count, **counts}
    return replace(found, anomalies=(), figures=figures, summary=f"at least once: {found.summary}")


check = ByParts(find, conclude)

CHECK = RunCheck(
    name="duplicate-okay",
    guarantee="every confirmed message is delivered at least once",
    decides=True,
    subjects=(MESSAGES,),
    function=check,
    by_parts=check,
)
