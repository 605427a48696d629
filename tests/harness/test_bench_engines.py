"""The engines that `make bench` compares give the same answers; a large made-up run is one of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkers.run_check import check_run
from checkers.synthetic import Defects, write_large_run, write_run
from checkers.verdict import write_verdict
from harness.tools.bench import engines

pytestmark = pytest.mark.requirement("H23", part=True)


def test_three_engines_one_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMPROOF_BENCH_SPILL", str(tmp_path / "spill"))
    write_run(tmp_path / "a", 800, 1, Defects(lost=2, crashed=3, redelivered=4))
    write_run(tmp_path / "b", 800, 2, Defects(duplicated=2, phantom=3))
    write_large_run(tmp_path / "c", 3000, 3, Defects(lost=1, left=2, drained=False), block=900)
    for name in "abc":
        write_verdict(tmp_path / name, check_run(tmp_path / name))
    ours = engines._ours(tmp_path)
    assert ours == {"a": [2, 0, 4], "b": [0, 3, 2], "c": [3, 0, 0]}
    assert dict(sorted(engines._duckdb(tmp_path).items())) == ours
    assert dict(sorted(engines._polars(tmp_path).items())) == ours


def test_a_large_run_is_whole(tmp_path: Path) -> None:
    write_large_run(tmp_path / "bad", 3000, 3, Defects(lost=2), block=900)
    write_large_run(tmp_path / "good", 3000, 4, block=900)
    bad, good = check_run(tmp_path / "bad"), check_run(tmp_path / "good")
    assert (bad.verdict, bad.anomalies["lost"], good.verdict) == ("invalid", 2, "valid")
    assert next(check for check in good.checks if check.check == "linearizable").outcome.figures["queues"] == 4
