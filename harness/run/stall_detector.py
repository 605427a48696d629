"""Notices when the harness itself stood still: stopped, without a processor, or on a machine that was suspended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from stormproof.generator.core import SECOND
from stormproof.history.ledger import Standstill

TICK_SECONDS = 0.1
LEAST_SECONDS = 1.0
"""What is shorter is a busy machine's usual way."""


def seconds_since_boot() -> float:
    """A clock that goes on while the machine is suspended, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


async def watch_for_standstills(
    clock: Callable[[], int],
    note: Callable[[Standstill], None],
    boot_clock: Callable[[], float] = seconds_since_boot,
) -> None:
    """Until cancelled: compare clocks with ticks, and ``note`` each time in which ticks did not come.

    ``clock`` gives nanoseconds of the run, ``boot_clock`` seconds that count a suspended machine's, too.
    """
    last, last_boot = clock(), boot_clock()
    while True:
        await asyncio.sleep(TICK_SECONDS)
        now, now_boot = clock(), boot_clock()
        lost = max((now - last) / SECOND, now_boot - last_boot) - TICK_SECONDS
        if lost > LEAST_SECONDS:
            note(Standstill(last, now, round(lost, 3)))
        last, last_boot = now, now_boot
