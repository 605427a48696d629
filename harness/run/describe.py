"""The description of a run in its folder: the command that repeats it, and the versions that it may depend on."""

from __future__ import annotations

import functools
import platform
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.analysis.guarantees import exemptions_of, guarantees_of
from harness.backends.attach import ATTACH
from harness.backends.catalog import BACKENDS
from harness.backends.compose.settings import COMMANDS as HOOKS
from harness.backends.compose.settings import FILES as COMPOSE_FILES
from harness.backends.compose.settings import HELPERS
from harness.cli.composed import retyped
from harness.run import plugins
from harness.run.deployment import demands_of
from harness.run.settings import convert_options, declared_options, repeated
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.bounds import (
    JUDGED_BY_BOUNDS,
    SERVES,
    SERVES_WITH_MAJORITY,
    SERVES_WITH_ONE,
    bounds_of,
    work_bounds_of,
)
from stormproof.contracts.deadline import Deadline
from stormproof.contracts.invariant import INVARIANTS, Invariant
from stormproof.store import Store
from stormproof.test import Test
from workloads.catalog import WORKLOADS
from workloads.options import CONNECT, HOME


def command_line(test: Test, store: Path, brief: bool = False) -> str:
    """Return the command that runs this test again: the same plan, from the same seed.

    It contains all options, since defaults may change. ``brief`` leaves out those that have their current defaults. For
    a Compose file it is always brief, and leaves out what the file says under ``x-stormproof``, too: the file is part
    of the test, and may change as well.
    """
    words, implied, composed = ["stormproof", "test"], dict[str, Any](), bool(test.options.get(COMPOSE_FILES.name))
    if composed:
        named, implied = retyped(test)
        words += named
    else:
        words += ["--system", plugins.typed("system", test.system)]
    words += ["--workload", plugins.typed("workload", test.workload)]
    families = [plugins.typed("nemesis", name) for name in test.nemesis]
    words += ["--nemesis", ",".join(families) or "none"]
    words += [] if composed else ["--backend", test.backend, "--nodes", str(test.nodes)]
    words += ["--time-limit", f"{test.time_limit:g}", "--rate", f"{test.rate:g}"]
    words += ["--seed", str(test.seed), "--store", str(store)]
    for check in plugins.checks():
        words += ["--check", check]
    usual: dict[str, Any] = {}
    if brief or composed:
        declared = declared_options(test.system, test.workload, test.nemesis, test.backend)
        names = {option.name for option in declared}
        usual = convert_options(declared, {name: value for name, value in implied.items() if name in names})
    told = {name: value for name, value in test.options.items()
            if value != usual.get(name) and (value != "" or name in implied)}  # fmt: skip
    for name, value in sorted(repeated(test.system, test.workload, test.nemesis, told).items()):
        words += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return shlex.join(words)


def changed(test: Test) -> list[str]:
    """Return the options whose values differ from their defaults, without those that a Compose file determines."""
    declared = declared_options(test.system, test.workload, test.nemesis, test.backend)
    usual = convert_options([option for option in declared if option not in (HELPERS, HOOKS)], {})
    return [name for name, value in test.options.items() if name in usual and value != usual[name]]


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions that the run's result may depend on."""
    packages = ("stormproof", "pyspark", "pyarrow", "numba", "numpy", "pandas")
    return {"python": platform.python_version(), "kernel": platform.release()} | {
        package: metadata.version(package) for package in packages
    }


def create_run(test: Test, why: str, store: Path, runs: Path | None = None) -> Path:
    """Create a run's folder with all data known in advance. ``why`` is the reason for the choice of the backend.

    It is created in ``runs`` if given, though its command names ``store``.
    """
    work, backend, system = WORKLOADS.load(test.workload), BACKENDS.load(test.backend), SYSTEMS.load(test.system)
    # Time is free in simulation, so a cluster there has no excuse for recovering too slowly, or never.
    wanted = [*work.judged_by(test.options)]
    wanted += [] if test.options.get(ATTACH.name) else ["recovery"]  # its operator may have stopped it
    wanted += ["livelock"] if backend.in_process else []
    rules: list[Invariant | Deadline] = [*system.invariants, *system.deadlines]
    invariants = {each.name: each.source for each in rules if test.options.get(INVARIANTS) and each.claimed(test)}
    if test.options.get(INVARIANTS):
        invariants |= {each.name: each.source for each in system.waits if each.claimed(test.options)}
    wanted += [*([INVARIANTS] if invariants else []), *plugins.check_names()]
    # The delays that a busy machine adds to the times of real nodes are unknown.
    bounds = bounds_of(system.bounds, test) if backend.in_process else {}
    demands = demands_of(test)
    if demands.servers != 1 or demands.local_servers or test.options.get("spares"):
        for name in (SERVES_WITH_MAJORITY, SERVES_WITH_ONE):
            bounds.pop(name, None)  # then a majority of all nodes is not a majority of each group
    if test.options.get(CONNECT.name) == HOME:
        for name in (SERVES, SERVES_WITH_MAJORITY, SERVES_WITH_ONE):
            bounds.pop(name, None)  # there may be no client next to the node that serves
    wanted += [check for check, names in JUDGED_BY_BOUNDS.items() if not bounds.keys().isdisjoint(names)]
    work_bounds = work_bounds_of(system.work, test) if backend.in_process else {}
    wanted += ["work", "growth"] if backend.in_process and system.keeps else []
    judged_by, statuses = guarantees_of(test, wanted)
    run_dir = Store(runs or store).create(
        test,
        backend={"name": test.backend, "why": why, "lateness": backend.lateness, "in_process": backend.in_process},
        plugins=plugins.named(),
        subject=work.subject,
        names=list(work.names(test.options)),
        elements=[list(nodes) for nodes in system.elements(test, demands_of(test))],
        guarantees=judged_by,
        statuses=statuses,
        exemptions=exemptions_of(test, wanted),
        gates=work.gates(test.options),
        invariants=invariants,
        bounds=bounds,
        work_bounds=work_bounds,
        keeps={keep.name: keep.most(test.options) for keep in system.keeps},
        fault_points=dict(system.fault_points),
        command=command_line(test, store),
        changed=changed(test),
        versions=versions(),
    )
    plugins.copy_to(run_dir)
    return run_dir
