"""The factor by which time limits of calls are extended: STORMPROOF_SLOW, for machines with emulated processors.

It extends the limits that end hanging calls, and nothing that a test measures or plans.
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
    """Return the number in the variable's value; end the process with status 3 unless it is from 1 to 100."""
    try:
        number = float(text or "1")
    except ValueError:
        _refuse(text)
    return number if 1 <= number <= 100 else _refuse(text)


TIMEOUT_FACTOR = factor(os.environ.get(VARIABLE, ""))


def timeout_scale(backend: Backend) -> float:
    """Return the factor for requests to a backend's nodes: 1 under simulated time, which must not depend on it."""
    return 1.0 if backend.in_process else TIMEOUT_FACTOR
