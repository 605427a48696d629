"""One simulated run in this process: the lab as it is, on a simulated event loop."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from harness.history.journal import JournalWriter
from harness.lab import Emit, Interrupted, Lab, Lifeline, Surroundings
from harness.sim.clock import EPOCH
from harness.sim.loop import SimLoop, simulation
from harness.spec import Test
from harness.store import read_run


def ignore(event: Mapping[str, Any]) -> None:
    """For those who don't want to know how a run goes."""


def simulate(run_dir: Path, emit: Emit = ignore) -> None:
    """Carry out the test of a run folder in simulation, to its sealed history.

    Raises:
        StormproofError: the run broke; the history so far is sealed.
        KeyboardInterrupt: Ctrl-C; likewise.
    """
    test = Test.from_json(read_run(run_dir)["test"])
    lifeline = Lifeline()
    lifeline.teardown.set()
    with simulation() as loop:
        lab = loop.create_task(_lab(run_dir, test, loop, lifeline, emit), name="lab")
        try:
            loop.run_until_complete(lab)
        except KeyboardInterrupt:
            lifeline.interrupted.set()
            with suppress(Interrupted):
                loop.run_until_complete(lab)
            raise


async def _lab(run_dir: Path, test: Test, loop: SimLoop, lifeline: Lifeline, emit: Emit) -> None:
    surroundings = Surroundings(
        emit=emit,
        passcode=f"{test.rng('passcode').getrandbits(128):032x}",
        time_of_day=lambda: EPOCH + timedelta(seconds=loop.now),
        make_journal=_journal,
    )
    await Lab(run_dir, lifeline, surroundings).run()


def _journal(path: Path, run: str) -> JournalWriter:
    return JournalWriter(path, run, lasting=False)
