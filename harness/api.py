"""Library functions to run and check tests from a user's own Python: ``stormproof.run`` and ``stormproof.check``."""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from checkers.spark.session import SparkWarmup
from harness.backends.catalog import BACKENDS
from harness.backends.probe import choose_backend
from harness.run import plugins
from harness.run.lifecycle import RunResult, run_test
from harness.run.settings import make_test, with_new_names
from stormproof.errors import UsageError
from stormproof.run_folder import read_verdict
from stormproof.test import Test
from workloads.catalog import ALIASES as WORKLOAD_ALIASES

__all__ = ["RunResult", "check", "plan", "run", "warm_up"]

SEEDS = 10**6


def plan(
    *,
    system: str,
    workload: str,
    nemesis: str,
    backend: str | None,
    nodes: int | None,
    time_limit: float,
    rate: float,
    seed: int | None,
    settings: Mapping[str, Any],
) -> tuple[Test, str]:
    """Return the test that these settings describe, on a backend that works here, and the reason for that backend.

    ``system``, ``workload`` and ``nemesis`` (joined by commas) are names, or ``FILE:CLASS``. Without a seed, the test
    gets a random one.

    Raises:
        UsageError: a name, a number or a combination is invalid.
        BackendError: no backend works here, or the requested backend does not.
    """
    given = BACKENDS.load(backend).prepare_settings(settings) if backend else dict(settings)
    names = (
        plugins.resolve(plugins.SYSTEM, system),
        plugins.resolve(plugins.WORKLOAD, WORKLOAD_ALIASES.get(workload, workload)),
        plugins.resolve_all(plugins.NEMESIS, nemesis),
    )
    given = with_new_names(*names, backend or "local", given)
    draft: dict[str, Any] = {
        **dict(zip(("system", "workload", "nemesis"), names, strict=True)),
        "nodes": nodes,
        "time_limit": time_limit,
        "rate": rate,
        "seed": random.SystemRandom().randrange(1, SEEDS) if seed is None else seed,
        "settings": given,
    }
    make_test(backend=backend or "local", **draft)  # report a typing error before probing the machine
    chosen, why = choose_backend(backend)
    return make_test(backend=chosen, **draft), why


def run(
    system: str | type = "joram",
    workload: str | type = "queue",
    nemesis: str | type | Sequence[str | type] = "partition",
    *,
    backend: str | None = None,
    nodes: int | None = None,
    time_limit: float = 30.0,
    rate: float = 200.0,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    checks: Sequence[str | type] = (),
    store: str | Path = "runs",
    quiet: bool = False,
    spark: SparkWarmup | None = None,
) -> RunResult:
    """Run one test to its verdict and report, as ``stormproof test`` does.

    Args:
        system: the system under test: a name, ``FILE:CLASS``, or a class of the caller's.
        workload: the operations of the clients, given in the same way.
        nemesis: the faults, one or several; ``none`` for none.
        backend: where nodes run; by default the most capable backend that works here.
        nodes: number of nodes; by default the system's usual number.
        time_limit: seconds of load and faults.
        rate: operations per second, of all clients together.
        seed: reproduces values, faults and times; by default a random one.
        settings: options by name, as ``--set`` gives them.
        checks: further checks to judge the run by.
        store: the folder in which the run's own folder is created.
        quiet: print progress to standard error.
        spark: a Spark context that has started or is starting, and stays open; by default one is started for this run.

    Raises:
        UsageError: a name, a number or a combination is invalid.
        StormproofError: the run broke; its recorded data is kept.
    """
    families = [nemesis] if isinstance(nemesis, str | type) else nemesis
    for each in checks:
        plugins.resolve(plugins.CHECK, _typed(each))
    test, why = plan(
        system=_typed(system), workload=_typed(workload), nemesis=",".join(map(_typed, families)) or "none",
        backend=backend, nodes=nodes, time_limit=time_limit, rate=rate, seed=seed, settings=settings or {},
    )  # fmt: skip
    return run_test(test, why, Path(store), quiet=quiet, spark=spark)


def warm_up() -> SparkWarmup:
    """Return a Spark context that several calls of ``run`` can share. It starts in the background."""
    return SparkWarmup()


def check(
    run: str | Path = "latest",
    *,
    system: str | type | None = None,
    workload: str | type | None = None,
    nemesis: str | type | Sequence[str | type] = (),
    checks: Sequence[str | type] = (),
    store: str | Path = "runs",
) -> Mapping[str, Any]:
    """Check a recorded run again and return its verdict as stored.

    ``system``, ``workload``, ``nemesis`` and ``checks`` name the plug-ins that the run was made with, as for ``run``.

    Raises:
        UsageError: the run does not exist.
        HistoryError: the run can't be checked, or was made with other plug-ins.
    """
    from harness.store.recheck import check_again

    named = {plugins.SYSTEM: [system], plugins.WORKLOAD: [workload], plugins.CHECK: checks,
             plugins.NEMESIS: [nemesis] if isinstance(nemesis, str | type) else nemesis}  # fmt: skip
    for kind, each in ((kind, each) for kind, several in named.items() for each in several if each is not None):
        plugins.resolve_all(kind, _typed(each))
    return read_verdict(check_again(Path(store), str(run)).run_dir)


def _typed(named: str | type) -> str:
    """Return the text that a person would type to name their class."""
    if isinstance(named, str):
        return named
    try:
        file = inspect.getsourcefile(named)
    except (OSError, TypeError):
        file = None
    if file is None or not Path(file).is_file() or "." in named.__qualname__:
        raise UsageError(f"{named.__qualname__} must be a class at the top of a file: the processes of a run load it")
    return f"{file}:{named.__name__}"
