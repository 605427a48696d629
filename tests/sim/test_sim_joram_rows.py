"""The main line of each row of HA Joram in simulation: the same runs and the same tour as on real nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from joram_lines import DESCRIPTOR, LINES, ROWS, Ended
from joram_tour import tour
from simulated import simulated

from checkers.run_check import check_run
from harness.sim.loop import simulation

SEED = 2


@pytest.mark.parametrize("name", [pytest.param(name, marks=ROWS[name]) for name in LINES])
def test_main_line(name: str, tmp_path: Path) -> None:
    folder = simulated(LINES[name].test("sim", SEED), tmp_path)
    verdict = check_run(folder)
    counts = {result.check: result.outcome.count for result in verdict.checks if result.decides}
    LINES[name].look(Ended(folder, verdict.verdict, verdict.sentence, counts))


@pytest.mark.parametrize("name", [pytest.param("descriptor", marks=ROWS["descriptor"])])
def test_the_documents_descriptor_but_for_host_names_starts_a_cluster(name: str, tmp_path: Path) -> None:
    with simulation() as loop:
        loop.run_until_complete(loop.create_task(tour("sim", DESCRIPTOR, tmp_path)))
