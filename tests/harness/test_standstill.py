"""The harness notices that it itself stood still, and a run whose schedule was swallowed is not valid."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.run.stall_detector import watch_for_standstills
from stormproof.history.ledger import Standstill, read_ledger, read_standstills

pytestmark = pytest.mark.requirement("H16", part=True)

SECOND = 1_000_000_000
WATCHING = """
import asyncio, time
from harness.run.stall_detector import watch_for_standstills
async def main():
    start = time.monotonic()
    print("up", flush=True)
    clock = lambda: int((time.monotonic() - start) * 1e9)
    await watch_for_standstills(clock, lambda found: print(found.to_json(), flush=True))
asyncio.run(main())
"""


def test_a_process_that_is_stopped_notices_when_it_goes_on() -> None:
    watching = subprocess.Popen([sys.executable, "-c", WATCHING], stdout=subprocess.PIPE, text=True)
    try:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "up\n"
        time.sleep(0.5)
        watching.send_signal(signal.SIGSTOP)
        time.sleep(2)
        watching.send_signal(signal.SIGCONT)
        told = json.loads(watching.stdout.readline())
    finally:
        watching.kill()
        watching.wait()
    assert told["phase"] == "standstill"
    assert told["seconds"] == pytest.approx((told["done"] - told["time"]) / SECOND, abs=0.2)
    assert 1.5 < told["seconds"] < 20


async def test_a_suspended_machine_is_told_by_the_clock_that_counts_it() -> None:
    found: list[Standstill] = []
    booted = iter([0.0, 0.1, 3600.2, 3600.3, *(3600.4 for _ in range(1000))])
    watch = asyncio.create_task(watch_for_standstills(lambda: 5, found.append, lambda: next(booted)))
    await asyncio.sleep(0.8)
    watch.cancel()
    assert found == [Standstill(5, 5, 3600.0)]


def test_what_it_writes_is_read_and_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    stood = Standstill(SECOND, 9 * SECOND, 8.0)
    path.write_text(stood.to_json() + "\n")
    assert read_standstills(path) == [stood]
    assert read_ledger(path) == []


def _runner(store: Path) -> int:
    """The process that holds the nodes of the run in a store."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = any(word.startswith(os.fsencode(store)) for word in words)
            if ours and b"harness.run.test_runner" in words and b"python" in Path(os.fsdecode(words[0])).name.encode():
                return int(folder.name)
    raise AssertionError("no runner")


def _ledger(store: Path) -> str:
    return "".join(path.read_text() for path in store.glob("*/ledger.jsonl"))


@pytest.mark.soak
@pytest.mark.parametrize(("stopped", "verdict", "status"), [(0.0, "valid", 0), (12.0, "unknown", 2)])
def test_a_run_whose_harness_was_stopped_is_unknown_and_says_so(
    stopped: float, verdict: str, status: int, tmp_path: Path
) -> None:
    words = ["test", "--backend", "local", "--system", "joram", "--nemesis", "pause", "--nodes", "3", "--seed", "3",
             "--time-limit", "14", "--set", "fault_duration=3", "--set", "min_ok=20", "--json"]  # fmt: skip
    running = subprocess.Popen([sys.executable, "-m", "harness", *words, "--store", str(tmp_path)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    deadline = time.monotonic() + 60
    while '"inject"' not in _ledger(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    if stopped:
        runner = _runner(tmp_path)
        os.kill(runner, signal.SIGSTOP)
        time.sleep(stopped)
        os.kill(runner, signal.SIGCONT)
    out, err = running.communicate(timeout=120)
    told = json.loads(out)
    assert (told["verdict"], running.returncode) == (verdict, status), (out, err)
    (run,) = (path.parent for path in tmp_path.glob("*/run.json"))
    stood = read_standstills(run / "ledger.jsonl")
    assert sum(each.seconds for each in stood) == pytest.approx(stopped, abs=3)
    if stopped:
        assert "the harness itself stood still for" in told["sentence"]
        assert "harness stalled" in (run / "report.html").read_text()
