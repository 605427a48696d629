"""Detection of standstills of the harness: it was stopped, had no processor, or its machine was suspended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from stormproof.generator.core import SECOND
from stormproof.history.ledger import Standstill

TICK_SECONDS = 0.1
LEAST_SECONDS = 1.0
"""Shorter standstills are usual on a busy machine."""


def seconds_since_boot() -> float:
    """Return the time of a clock that includes suspension of the machine, if there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


async def watch_for_standstills(
    clock: Callable[[], int],
    note: Callable[[Standstill], None],
    boot_clock: Callable[[], float] = seconds_since_boot,
) -> None:
    """Compare clocks with ticks, until cancelled, and ``note`` each period in which ticks were missing.

    ``clock`` gives nanoseconds of the run. ``boot_clock`` gives seconds that include suspension of the machine.
    """
    last, last_boot = clock(), boot_clock()
    while True:
        await asyncio.sleep(TICK_SECONDS)
        now, now_boot = clock(), boot_clock()
        lost = max((now - last) / SECOND, now_boot - last_boot) - TICK_SECONDS
        if lost > LEAST_SECONDS:
            note(Standstill(last, now, round(lost, 3)))
        last, last_boot = now, now_boot
