"""Runs of the examples in docs/examples/compose, as a user starts them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import DockerException

from harness.backends.image import ensure_image
from stormproof.errors import BackendError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "compose"
MOST_LINES = 40
RUN_SECONDS = 600
"""For machines with little to spare: three brokers start within seconds on an idle one."""


def image(*packages: str) -> str:
    """Return an image with Debian's packages, which is built once; where it can't be, the test is skipped."""
    client = docker.from_env(timeout=600)
    try:
        return ensure_image(client, packages)[0]
    except (BackendError, DockerException) as error:
        pytest.skip(f"no image with {', '.join(packages)}: {error}")
    finally:
        client.close()


@dataclass(frozen=True)
class Ran:
    """A run that has ended: its exit status, its folder, and its output."""

    status: int
    run: Path
    said: str

    def verdict(self) -> dict[str, Any]:
        """Return its verdict, after its faults were proven."""
        ledger = [json.loads(line) for line in (self.run / "ledger.jsonl").read_text().splitlines()]
        assert all(line["proven"] for line in ledger if line["phase"] == "inject"), self.said
        return dict(json.loads((self.run / "verdict.json").read_text()))


def run(file: Path, store: Path, *words: str, **environment: str) -> Ran:
    """Run a test of a Compose file to its end."""
    assert len((EXAMPLES / file.name).read_text().splitlines()) < MOST_LINES
    argv = [sys.executable, "-m", "harness", "test", "--compose", str(file), "--store", str(store), "--seed", "3",
            *words]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=RUN_SECONDS, check=False, cwd=store.parent,
                          env={**os.environ, "PYTHONPATH": str(ROOT), **environment})  # fmt: skip
    runs = sorted(path.parent for path in store.glob("*/run.json"))
    assert runs, done.stdout + done.stderr
    return Ran(done.returncode, runs[-1], done.stdout + done.stderr)


def command_of(name: str) -> list[str]:
    """Return the options of the command in an example's header, without the file."""
    lines = (EXAMPLES / name).read_text().splitlines()
    told = " ".join(line.removeprefix("#").removesuffix("\\").strip() for line in lines if line.startswith("#   "))
    start = f"stormproof test --compose {name} "
    assert told.startswith(start), told
    return told.removeprefix(start).split()


def demand_twins(name: str, folder: Path, unsafe: Mapping[str, str], safe: Mapping[str, str],
                 anomaly: str = "lost") -> None:
    """Check, by two runs of an example at the same time, that it has the anomaly in one environment, and not in
    another."""

    def of(store: str, environment: Mapping[str, str]) -> Ran:
        return run(EXAMPLES / name, folder / store, *command_of(name), "--set", "min_ok=20", **environment)

    def lossy(store: str, environment: Mapping[str, str]) -> Ran:
        return until_invalid(lambda: of(store, environment))

    with ThreadPoolExecutor() as pool:
        lost, kept = pool.submit(lossy, "unsafe", unsafe), pool.submit(of, "safe", safe)
    assert_invalid(lost.result(), anomaly)
    assert kept.result().status == 0 and kept.result().verdict()["verdict"] == "valid", kept.result().said


def until_invalid(again: Callable[[], Ran], tries: int = 3) -> Ran:
    """Run until a run is not *valid*, at most so many times. On a busy machine a real broker may elect its new leader
    too late to lose anything: such a run is *valid*, and right."""
    for _ in range(tries - 1):
        ran = again()
        if ran.status != 0:
            return ran
    return again()


def assert_invalid(ran: Ran, anomaly: str) -> None:
    """Check that a run ended *invalid*, with the anomaly."""
    assert ran.status == 1 and ran.verdict()["anomalies"][anomaly] > 0, ran.said


def copy(name: str, folder: Path) -> Path:
    """Copy an example, to put files beside it."""
    folder.mkdir(exist_ok=True)
    return Path(shutil.copy(EXAMPLES / name, folder))
