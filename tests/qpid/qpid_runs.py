"""Whole runs of qpid clusters, simulated or on real machines, and what they have left."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.backends.probe import choose_backend
from harness.run.cases import Case
from harness.sim.campaign import ALL, run_seed
from stormproof.errors import StormproofError
from stormproof.history.columns import read_columns
from stormproof.run_folder import HISTORY
from stormproof.vocabulary import OK

NODES = ("n1", "n2", "n3")
_SECOND = 1_000_000_000


@dataclass(frozen=True)
class Ran:
    """A run's folder."""

    folder: Path

    @property
    def verdict(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "verdict.json").read_text()))

    def lines(self, phase: str) -> list[dict[str, Any]]:
        """The ledger's."""
        ledger = map(json.loads, (self.folder / "ledger.jsonl").read_text().splitlines())
        return [line for line in ledger if line["phase"] == phase]

    def log(self, name: str) -> str:
        return (self.folder / "logs" / f"{name}.log").read_text()

    def managers(self) -> str:
        """What all managers have logged."""
        return "".join(self.log(f"{node}.manager") for node in NODES)

    def served(self, seconds: float, until_heal: bool = False) -> tuple[int, int]:
        """Confirmed sends later than that after the first fault: of clients whose node is known, and of others, which
        are at the virtual address."""
        begin = self.lines("inject")[0]["time"] + seconds * _SECOND
        h = read_columns(self.folder / HISTORY)
        confirmed = (h.kind == OK) & h.f.rows_with("enqueue") & (h.time > begin)
        if until_heal:
            confirmed &= h.time < self.lines("heal")[0]["time"]
        return int(np.sum(confirmed & (h.node.codes >= 0))), int(np.sum(confirmed & (h.node.codes < 0)))


def simulated(folder: Path, nemesis: str, seed: int = 3, seconds: float = 8.0, **settings: Any) -> Ran:
    """One simulated run with so many seconds of load; it is valid."""
    ran = judged(folder, nemesis, seed, seconds, **settings)
    assert ran.verdict["verdict"] == "valid", ran.verdict["sentence"]
    return ran


def judged(folder: Path, nemesis: str, seed: int = 3, seconds: float = 8.0, **settings: Any) -> Ran:
    """One simulated run, whatever its verdict."""
    case = Case("qpid", "queue", nemesis, 3, seconds, 60.0, {"fault_duration": "2", "min_ok": "20", **settings})
    result = run_seed(case, seed, folder, folder, ALL)
    assert result.run_dir is not None, result.sentence
    return Ran(result.run_dir)


def really(folder: Path, backend: str, nemesis: str, seed: int, **settings: Any) -> Ran:
    """Half a minute on real machines, which breaks no guarantee."""
    try:
        choose_backend(backend)
    except StormproofError as error:
        pytest.skip(str(error))
    chosen = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    done = subprocess.run([sys.executable, "-m", "harness", "test", "--system", "qpid", "--backend", backend, "--seed",
                           str(seed), "--nemesis", nemesis, "--time-limit", "30", "--rate", "60", "--store",
                           str(folder), *chosen], capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    (run_json,) = folder.glob("*/run.json")
    ran = Ran(run_json.parent)
    assert done.returncode in (0, 2) and ran.verdict["verdict"] != "invalid", done.stdout[-3000:]
    return ran
