"""Whole runs under faults of the gateway, the lock, the HA channel and the shared database."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.backends.probe import choose_backend
from harness.run.cases import Case
from harness.run.settings import make_test
from harness.sim.campaign import ALL, run_seed
from nodes.systems.reference.fiorano.system import FIORANO
from stormproof.contracts.system import GATEWAY, SHARED_DATABASE
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import StormproofError
from stormproof.history.ledger import FaultWindow, read_ledger, read_repairs
from stormproof.history.undo import pending_undos
from stormproof.run_folder import UNDO_FILE


def test_the_roles_that_fiorano_needs() -> None:
    """Those of its machines, but for a lock that is not used."""

    def roles(**settings: str) -> tuple[frozenset[str], tuple[str, ...]]:
        test = make_test(system="fiorano", workload="queue", nemesis="kill", backend="sim", nodes=2, time_limit=10,
                         rate=10, seed=1, settings=settings)  # fmt: skip
        return FIORANO.helper_roles(test), FIORANO.topology(test, Demands()).roles

    assert roles() == ({GATEWAY}, (GATEWAY,))
    assert roles(mode="shared") == ({GATEWAY, SHARED_DATABASE}, (GATEWAY, SHARED_DATABASE))
    assert roles(mode="shared", lock="false")[0] == {SHARED_DATABASE}


def simulated(store: Path, nemesis: str, seconds: float, seed: int = 3, **settings: Any) -> Path:
    """The folder of one simulated run."""
    given = {"min_ok": "20", "fault_duration": "3", **{name: str(value) for name, value in settings.items()}}
    result = run_seed(Case("fiorano", "queue", nemesis, 2, seconds, 40.0, given), seed, store, store, ALL)
    assert result.run_dir is not None, result.sentence
    return result.run_dir


def verdict(run: Path) -> str:
    found = json.loads((run / "verdict.json").read_text())
    return f"{found['verdict']}: {found['sentence']}"


def anomalies(run: Path) -> dict[str, int]:
    return dict(json.loads((run / "verdict.json").read_text())["anomalies"])


def faults(run: Path) -> list[FaultWindow]:
    return read_ledger(run / "ledger.jsonl")


def confirmed(run: Path) -> set[tuple[str, str]]:
    return {(fault.fault, fault.kind) for fault in faults(run) if fault.confirmed}


ALL_OF_A_PAIR = {("gateway", "kill"), ("gateway", "cut"), ("gateway", "cut-one"), ("lockfile", "delete"),
                 ("lockfile", "lease"), ("lockfile", "pause"), ("channel", "cut"), ("channel", "one-way")}  # fmt: skip


@pytest.mark.requirement("F3", part=True)
@pytest.mark.requirement("F10", part=True)
def test_a_replicated_pair_under_all_of_them(tmp_path: Path) -> None:
    run = simulated(tmp_path, "gateway,lockfile,channel", 45, fault_duration=2)
    assert verdict(run).startswith("valid"), verdict(run)
    assert confirmed(run) == ALL_OF_A_PAIR
    assert not [fault for fault in faults(run) if fault.error and not fault.error.startswith("skipped")]


@pytest.mark.requirement("F3", part=True)
@pytest.mark.requirement("F16", part=True)
def test_a_shared_database_is_killed_cut_off_and_slow(tmp_path: Path) -> None:
    run = simulated(tmp_path, "shared-db", 30, mode="shared", fault_duration=2)
    assert verdict(run).startswith("valid"), verdict(run)
    assert confirmed(run) == {("shared-db", kind) for kind in ("kill", "cut", "cut-one", "slow")}
    assert "database unreachable" in "".join((run / "logs" / f"{node}.log").read_text() for node in ("n1", "n2"))


@pytest.mark.requirement("F13", part=True)
def test_a_damaged_shared_database_is_lost_and_a_damaged_server_is_not(tmp_path: Path) -> None:
    """Side by side: the same damage to the one database of a shared pair, and to either of a replicated one."""
    fill: dict[str, Any] = {"producers": 5, "consumers": 1}
    shared = simulated(tmp_path, "shared-db", 15, mode="shared", **fill, shared_db_kind="damage")
    assert confirmed(shared) == {("shared-db", "damage")}
    assert verdict(shared).startswith("invalid") and anomalies(shared)["lost"]
    assert "put an empty database" in read_repairs(shared / "ledger.jsonl")[0].text
    pair = simulated(tmp_path, "disk", 15, disk_kind="corrupt", **fill)
    assert confirmed(pair) == {("disk", "corrupt")}
    assert verdict(pair).startswith("valid") and not anomalies(pair)


def command(store: Path, backend: str, seconds: int, nemesis: str, *settings: str) -> list[str]:
    chosen = [word for setting in settings for word in ("--set", setting)]
    return [sys.executable, "-m", "harness", "test", "--system", "fiorano", "--backend", backend, "--seed", "3",
            "--nemesis", nemesis, "--time-limit", str(seconds), "--rate", "60", "--store", str(store), *chosen]


@pytest.mark.soak
@pytest.mark.requirement("F3", part=True)
@pytest.mark.parametrize("backend", ["local", "docker"])
@pytest.mark.parametrize(("mode", "nemesis", "kinds"), [
    ("replicated", "gateway,lockfile,channel", ALL_OF_A_PAIR),
    ("shared", "shared-db,lockfile", {("shared-db", kind) for kind in ("kill", "cut", "cut-one")}),
])  # fmt: skip
def test_on_real_nodes(tmp_path: Path, backend: str, mode: str, nemesis: str, kinds: set[tuple[str, str]]) -> None:
    try:
        choose_backend(backend)
    except StormproofError as error:
        pytest.skip(str(error))
    done = subprocess.run(command(tmp_path, backend, 90, nemesis, f"mode={mode}", "fault_duration=3"),
                          capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    (run_json,) = tmp_path.glob("*/run.json")
    assert done.returncode == 0, done.stdout[-3000:]
    assert confirmed(run_json.parent) >= kinds


@pytest.mark.soak
@pytest.mark.requirement("H16", part=True)
@pytest.mark.parametrize("backend", ["local", "docker"])
@pytest.mark.parametrize(("lock", "undo"), [("lockfile:delete", "file"), ("gateway:cut-one", "network")])
def test_a_killed_harness_leaves_none_of_them_behind(tmp_path: Path, backend: str, lock: str, undo: str) -> None:
    """``stormproof heal`` ends each: machines, their networks and files are gone, and the journal is closed."""
    try:
        choose_backend(backend)
    except StormproofError as error:
        pytest.skip(str(error))
    together = f"schedule={lock}:2-90:1 channel:cut:4-90:2"
    store, place = tmp_path / "store", tmp_path / "tmp"
    place.mkdir()
    environment = {**os.environ, "TMPDIR": str(place)}

    def heal() -> str:
        done = subprocess.run([sys.executable, "-m", "harness", "heal", "--store", str(store)], capture_output=True,
                              text=True, timeout=120, check=True, env=environment)  # fmt: skip
        return done.stdout

    with subprocess.Popen(command(store, backend, 120, f"{lock.partition(':')[0]},channel", together), env=environment,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as harness:
        deadline = time.monotonic() + 90
        while len(pending(store)) < 2:
            assert time.monotonic() < deadline and harness.poll() is None, pending(store)
            time.sleep(0.2)
        for pid in [harness.pid, *descendants(harness.pid)]:  # a child that is alone would heal by itself
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert sorted(pending(store)) == [undo, "network"]
    said = heal()
    assert pending(store) == [] and said.count("fault undone") == 2, said
    assert "removed" not in heal()


def descendants(pid: int) -> list[int]:
    """All processes that come from this one."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def pending(store: Path) -> list[str]:
    return [undo.undo for path in store.glob(f"*/{UNDO_FILE}") for undo in pending_undos(path.parent)]
