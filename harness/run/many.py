"""Tests on real nodes as judged runs, one of many: a run that breaks is a result, too."""

from __future__ import annotations

import time
from pathlib import Path

from checkers.spark.session import SparkWarmup
from harness.reference.feature_coverage import used_and_judged
from harness.run.cases import BROKEN, Case, JudgedRun
from harness.run.lifecycle import run_test
from reports.summaries import guarantees_shown
from stormproof.errors import StormproofError
from stormproof.run_folder import read_run


def run_on_nodes(case: Case, seed: int, why: str, store: Path, spark: SparkWarmup, *, quiet: bool = True) -> JudgedRun:
    """Run the test of one seed to its stored verdict and report. The arguments are those of ``run_test``.

    Raises:
        KeyboardInterrupt: Ctrl-C; the run is in the store.
    """
    began = time.monotonic()
    try:
        result = run_test(case.test(seed), why, store, quiet=quiet, spark=spark)
    except StormproofError as error:
        return JudgedRun(case, seed, BROKEN, str(error), seconds=time.monotonic() - began)
    seconds, verdict, info = time.monotonic() - began, result.verdict, read_run(result.run_dir)
    decided = {check["check"]: check["verdict"] for check in verdict["checks"] if check["decides"]}
    return JudgedRun(
        case, seed, result.outcome, verdict["sentence"], verdict["anomalies"], result.violated, verdict["figures"],
        seconds=seconds, command=result.command, run_dir=result.run_dir, guarantees=guarantees_shown(info, verdict),
        surface=used_and_judged(info, decided),
    )  # fmt: skip
