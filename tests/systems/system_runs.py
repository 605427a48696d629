"""Runs the command line on systems from files, as a person does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
TWO_TIER = f"{HERE / 'two_tier.py'}:TwoTier"


def backends(slow: str = "") -> list[Any]:
    """The backends that nodes can be made on here, simulation first; ``slow`` (``real``: all others) is left to
    `make soak` if another is there."""
    found = possible()
    slow_ones = set(found[1:]) if slow == "real" else {slow} if len(found) > 2 else set()
    return [pytest.param(name, marks=pytest.mark.soak) if name in slow_ones else name for name in found]


@cache
def possible() -> list[str]:
    """The names of the backends that nodes can be made on here, simulation first."""
    from harness.backends.probe import choose_backend
    from stormproof.errors import StormproofError

    found = ["sim"]
    for name in ("local", "docker"):
        try:
            choose_backend(name)
        except StormproofError:
            continue
        found.append(name)
    return found


@dataclass(frozen=True)
class Ran:
    """A command that has ended, and the run that it made, if any."""

    status: int
    out: str
    err: str
    run: Path | None

    @property
    def info(self) -> dict[str, Any]:
        """The run's run.json."""
        assert self.run is not None, self.err
        return dict(json.loads((self.run / "run.json").read_text()))

    @property
    def verdict(self) -> dict[str, Any]:
        """The run's verdict.json."""
        assert self.run is not None, self.err
        return dict(json.loads((self.run / "verdict.json").read_text()))

    def faults(self) -> list[dict[str, Any]]:
        """The lines of its ledger."""
        assert self.run is not None, self.err
        return [json.loads(line) for line in (self.run / "ledger.jsonl").read_text().splitlines()]


def stormproof(*words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Ran:
    """Run a command to its end."""
    argv = [sys.executable, "-m", "harness", *words]
    root = str(HERE.parents[1])
    # Started from elsewhere, as by a user whose files are not in this repository.
    done = subprocess.run(argv, capture_output=True, text=True, timeout=170, check=False, cwd=cwd,
                          env={**os.environ, "PYTHONPATH": root, **(env or {})})  # fmt: skip
    stores = [words[i + 1] for i, word in enumerate(words) if word == "--store"]
    runs = [path.parent for store in stores for path in (cwd or Path()).joinpath(store).glob("*/run.json")]
    return Ran(done.returncode, done.stdout, done.stderr, max(runs, default=None))


def run_of(system: str, store: Path, backend: str, *words: str, **settings: Any) -> Ran:
    """One run of a system from a file, from the folder of the store."""
    store.mkdir(exist_ok=True)
    assignments = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return stormproof("test", "--system", system, "--backend", backend, "--store", str(store), "--seed", "3",
                      *words, *assignments, cwd=store)  # fmt: skip


def simulated(system: str, store: Path, nemesis: str, *, nodes: int | None = None, seed: int = 3,
              workload: str = "queue", time_limit: float = 8.0, checks: tuple[str, ...] = (), **settings: Any) -> Ran:
    """One simulated run of a system from a file, in this process, judged and with its report."""
    from harness.analysis.coverage import note_log_events
    from harness.run import plugins
    from harness.run.cases import Case
    from harness.sim.campaign import ALL, run_seed
    from reports.run_page import write_report

    try:
        for check in checks:
            plugins.resolve(plugins.CHECK, check)
        case = Case(plugins.resolve(plugins.SYSTEM, system), plugins.resolve(plugins.WORKLOAD, workload),
                    plugins.resolve_all(plugins.NEMESIS, nemesis), nodes, time_limit, 60.0, settings)  # fmt: skip
        store.mkdir(exist_ok=True)
        result = run_seed(case, seed, store, store, ALL)
        assert result.run_dir is not None, result.sentence
        note_log_events(result.run_dir)
        write_report(result.run_dir)
        status = {"valid": 0, "invalid": 1, "unknown": 2}[result.verdict]
        return Ran(status, result.sentence, "", result.run_dir)
    finally:
        plugins.forget()
