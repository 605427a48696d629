"""Child processes that hold a backend's machines and measure on them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from harness.backends.catalog import BACKENDS
from stormproof.errors import StormproofError

Measurement = Callable[[str, dict[str, Any]], Coroutine[Any, Any, dict[str, float]]]
"""Measures on a backend, with settings."""


def measured(module: str, backend: str, *words: str, seconds: float, prefix: Sequence[str] | None = None) -> Any:
    """Run ``python -m harness.tools.bench.MODULE BACKEND WORDS``, and return the JSON value that it prints last.

    ``prefix`` is the command in front of it, by default the one with which the backend starts such a process.

    Raises:
        StormproofError: the child failed.
    """
    before = BACKENDS.load(backend).launch_prefix() if prefix is None else prefix
    child = subprocess.run(
        [*before, sys.executable, "-m", f"harness.tools.bench.{module}", backend, *words],
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    if child.returncode:
        raise StormproofError(f"measuring {module} on {backend} failed: {child.stderr.strip()[-500:]}")
    return json.loads(child.stdout.splitlines()[-1])


def figures_of(module: str, backend: str, what: str, settings: Mapping[str, Any], seconds: float) -> dict[str, float]:
    """Return the figures of one measurement of a module whose child calls ``print_figures``; raises as ``measured``."""
    found: dict[str, float] = measured(module, backend, what, json.dumps(settings), seconds=seconds)
    return found


def print_figures(measurements: Mapping[str, Measurement]) -> None:
    """Carry out the measurement that the command line names, BACKEND WHAT SETTINGS, and print its figures."""
    backend, what, settings = sys.argv[1:]
    print(json.dumps(asyncio.run(measurements[what](backend, json.loads(settings)))))
