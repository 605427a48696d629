"""How many times longer than usual a call may take: STORMPROOF_SLOW, for machines whose processors are emulated.

It stretches the limits that end calls which hang, and nothing that a test measures or plans.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from stormproof.contracts.backend import Backend

VARIABLE = "STORMPROOF_SLOW"


def _refuse(text: str) -> NoReturn:
    print(f"stormproof: {VARIABLE}={text}: give a number from 1 to 100", file=sys.stderr)
    raise SystemExit(3)


def factor(text: str) -> float:
    """The number that the variable's value stands for; ends the process with status 3 when it is none from 1 to 100."""
    try:
        number = float(text or "1")
    except ValueError:
        _refuse(text)
    return number if 1 <= number <= 100 else _refuse(text)


SLOW = factor(os.environ.get(VARIABLE, ""))


def timeout_scale(backend: Backend) -> float:
    """The factor for what a backend's nodes are asked: none where time is simulated, which must not depend on it."""
    return 1.0 if backend.in_process else SLOW
