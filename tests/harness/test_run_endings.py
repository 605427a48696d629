"""What a run's description says of how it ended, which decides whether it can ever be *valid*."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkers.synthetic import write_run
from harness.run.lifecycle import RunResult, _pick_up
from harness.run.system_calls import SystemCalls
from harness.run.test_runner import TestRunner
from nodes.systems.reference.joram.system import JORAM
from stormproof.contracts.backend import ProcessState
from stormproof.contracts.cluster import MAIN, Deployment, NodeStatus
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError, StormproofError
from stormproof.run_folder import read_run, update_run
from stormproof.store import Store
from stormproof.test import Test
from stormproof.text import last_words


@pytest.mark.parametrize("healthy", [True, False])
@pytest.mark.requirement("H16")
async def test_a_cluster_that_stays_ill_is_noted(
    healthy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any) -> None: ...
    async def answer(*_: Any) -> bool:
        return healthy
    async def repair() -> str:
        raise KeyError("no such node")
    async def describe() -> str:
        return "n2 unreachable"

    test = Test("joram", "queue", options={"settle_timeout": 0.0, "idle_timeout": 0.0})
    run_dir = Store(tmp_path).create(test)
    runner = object.__new__(TestRunner)
    runner.run_dir, runner.test = run_dir, test
    runner.clock, runner._emit = lambda: 0, lambda event: None  # type: ignore[assignment]
    runner.nemesis = SimpleNamespace(heal_all=nothing)  # type: ignore[assignment]
    runner.cluster = SimpleNamespace(await_healthy=answer, describe=describe, linger=0.0, repair=repair,
                                     helped_since=None, unsure="",
                                     credentials=SimpleNamespace(passcode=""))  # fmt: skip
    runner.backend, runner.repair_errors = SimpleNamespace(in_process=True), []  # type: ignore[assignment]
    runner.calls = SystemCalls(test, runner.backend, Topology((), ()), runner.cluster)
    runner.interpreter = SimpleNamespace(flush=answer)  # type: ignore[assignment]
    monkeypatch.setattr("asyncio.sleep", nothing)
    await runner._heal()
    await runner._repair()
    await runner._settle()
    assert runner.recovery is not None and read_run(run_dir)["failure"] is None
    for told in (runner.recovery, runner.recovery["after_repair"]):
        assert (told["healthy"], told["state"]) == (healthy, "" if healthy else "n2 unreachable")
    assert "repairing it failed: KeyError: 'no such node'" in runner.recovery["repair_errors"][0]


@pytest.mark.parametrize(("status", "failure"), [("recorded", None), ("broken", "interrupted")])
def test_only_a_run_that_was_not_recorded_to_its_end_has_failed(
    status: str, failure: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "20260101T000000-joram-queue-1-abcd"
    write_run(run_dir, events=100, seed=1)
    update_run(run_dir, status=status, failure=None)
    monkeypatch.setattr("harness.run.lifecycle.cleanup", lambda *_, **__: [])
    _pick_up(run_dir, KeyboardInterrupt())
    assert read_run(run_dir)["failure"] == failure


def test_a_run_that_can_not_be_sealed_does_not_hide_the_reason_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: Path) -> None:
        raise StormproofError("can't write history.parquet: No space left on device")

    cleaned: list[str] = []
    run_dir = Store(tmp_path).create(Test("joram", "queue"))
    monkeypatch.setattr("harness.run.lifecycle.cleanup", lambda names, own: cleaned.extend(names) or [])
    monkeypatch.setattr("harness.run.lifecycle.recover", full)
    _pick_up(run_dir, StormproofError("the disk is full"))
    assert cleaned == [run_dir.name]
    assert f"stormproof recover {run_dir}" in capsys.readouterr().err


async def test_a_runner_that_can_not_seal_raises_what_stopped_it(tmp_path: Path) -> None:
    async def nothing(*_: Any) -> None: ...

    def full() -> None:
        raise StormproofError("the disk is full")

    runner = object.__new__(TestRunner)
    runner.run_dir = Store(tmp_path).create(Test("joram", "queue"))
    runner.nemesis = SimpleNamespace(heal_all=nothing, close=nothing)  # type: ignore[assignment]
    runner.interpreter = SimpleNamespace(close=nothing)  # type: ignore[assignment]
    runner.cluster = SimpleNamespace(collect_logs=nothing)
    runner.journal = SimpleNamespace(close=full)  # type: ignore[assignment]
    await runner._give_up("the broker is gone")
    assert read_run(runner.run_dir)["failure"] == "the broker is gone"
    (runner.run_dir / "run.json").unlink()  # nor does a description that can't be written keep it from healing
    healed: list[str] = []

    async def heal() -> None:
        healed.append("all")

    runner.nemesis = SimpleNamespace(heal_all=heal, close=nothing)  # type: ignore[assignment]
    await runner._give_up("the broker is gone")
    assert healed == ["all"]


def test_what_is_permitted_is_told_apart_from_what_is_broken() -> None:
    checks = [{"check": "lost", "anomaly": "lost", "decides": True},
              {"check": "recovery", "anomaly": "not-recovered", "decides": True},
              {"check": "order", "anomaly": "order", "decides": False}]  # fmt: skip
    verdict = {"sentence": "Invalid: ...", "anomalies": {"lost": 2, "not-recovered": 1, "order": 1}, "checks": checks}
    lines = RunResult(Path("r"), verdict, Path("r/report.html"), "stormproof test").lines()
    assert lines[1:3] == ["  anomalies  lost 2, not-recovered 1", "  permitted  order 1 (reported, but not promised)"]
    assert lines[-1] == "  again      stormproof test"
    lines = RunResult(Path("r"), verdict | {"anomalies": {}}, Path("r/report.html")).lines()
    assert lines[1] == "  anomalies  none" and not any("permitted" in line for line in lines)


@pytest.mark.parametrize(("state", "up"), [("running", True), ("dead", False)])
async def test_nobody_waits_for_a_broker_that_ended_as_it_started(
    state: str, up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def healthy(timeout: float) -> bool:
        await asyncio.sleep(0.03 if up else timeout)
        return True

    async def process(node: str, program: str) -> ProcessState:
        return ProcessState(state if node == "n2" else "running")

    monkeypatch.setattr("harness.run.system_calls.DEAD_POLL", 0.01)
    backend: Any = SimpleNamespace(process=process)
    cluster: Any = SimpleNamespace(
        await_healthy=healthy, programs=lambda machine: (MAIN,), restarted=lambda machine, program: False
    )
    calls = SystemCalls(Test("joram", "queue"), backend, Topology(("n1", "n2", "n3"), ()), cluster)
    async with asyncio.timeout(10):
        assert await calls.comes_up(20.0) is up


@pytest.mark.parametrize(("log", "said"), [
    ("", ""),
    ("started\n\n", "started"),
    ("a\nx.Refused: must roll back\n\tat x.y.Z.run(Z.java:12)\n\t... 5 more\n", "x.Refused: must roll back"),
    ("Caused by: x.Full: no room\n\tat java.base/x.y.Z.<init>(Z.java:12) ~[a.jar:1]\n", "Caused by: x.Full: no room"),
    ("the gate opens\n  at noon (local time)\n", "at noon (local time)"),
])  # fmt: skip
def test_frames_of_a_stack_trace_are_no_last_words(log: str, said: str) -> None:
    assert last_words(log.encode()) == said


async def test_a_dead_broker_is_described_by_its_last_words() -> None:
    class Backend:
        in_process = False

        def address(self, _: str) -> str:
            return "127.0.0.1"

        def node_dir(self, node: str) -> str:
            return f"/{node}"

        async def process(self, node: str, program: str) -> ProcessState:
            return ProcessState("dead")

        async def download(self, _: str, path: str) -> bytes:
            if path.startswith("/n2"):
                raise BackendError("no such file")
            return b"started\nerror: no room for data\n"

    backend: Any = Backend()
    test = Test("joram", "queue", nodes=2)
    cluster: Any = JORAM.cluster(Deployment(test, Demands(), backend, JORAM.topology(test, Demands())))

    async def silent(node: str) -> NodeStatus:
        return NodeStatus(node, reachable=False, detail={"error": "refused"})

    cluster.status = silent
    text = await cluster.describe()
    assert "n1 unreachable (refused; its process is dead, its last words: error: no room for data)" in text
    assert "n2" in text and "no such file" in text
