"""Orderly stops: which signal ended the program, and within which time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harness.backends import process
from nemesis.stop import StopFault, why_not_orderly
from stormproof.contracts.fault import Evidence, FaultPlan
from stormproof.errors import UsageError
from stormproof.history.ledger import UNMET
from stormproof.test import Test

STUBBORN = "trap 'sleep 1.5; exit 0' TERM; while :; do sleep 0.05; done"


async def sh(script: str) -> str:
    child = await asyncio.create_subprocess_exec("sh", "-c", script, stdout=asyncio.subprocess.PIPE)
    out, _ = await child.communicate()
    assert child.returncode == 0, out
    return out.decode().strip()


@pytest.mark.parametrize(("grace", "signal"), [(20.0, "SIGTERM"), (0.3, "SIGKILL")])
async def test_the_script_says_which_signal_ended_a_program(grace: float, signal: str, tmp_path: Path) -> None:
    pid_file = str(tmp_path / "p.pid")
    await sh(process.start_script(pid_file, ["sh", "-c", STUBBORN], str(tmp_path / "log"), str(tmp_path)))
    assert await sh(process.stop_script(pid_file, grace)) == signal
    assert await sh(process.state_script(pid_file)) == "dead"
    assert not await sh(process.stop_script(pid_file, grace)), "it was dead before"


class FakeBackend:
    """A backend whose programs need two seconds for their end."""

    def __init__(self) -> None:
        self.graces: list[float] = []

    async def stop(self, node: str, program: str, timeout: float = 5.0) -> str:
        self.graces.append(timeout)
        return "SIGTERM" if timeout >= 2 else "SIGKILL"


@pytest.mark.parametrize(("grace", "orderly"), [(2.5, True), (1.0, False)])
async def test_a_stop_that_needed_a_kill_does_not_count(
    grace: float, orderly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cluster:
        backend = FakeBackend()
        test = Test(system="s", workload="queue", nemesis=("stop",), backend="local", nodes=3, seed=1, time_limit=10.0,
                    rate=1.0, concurrency=1, options={"stop_grace": grace})  # fmt: skip

    async def inject(self: StopFault, cluster: Cluster, plan: FaultPlan) -> Evidence:
        for node in plan.targets:
            await self.end(cluster, node, "broker")  # type: ignore[arg-type]
        return Evidence({}, True)

    monkeypatch.setattr("nemesis.process.KillFault.inject", inject)
    evidence = await StopFault().inject(Cluster(), FaultPlan("one", ("n2",)))  # type: ignore[arg-type]
    assert Cluster.backend.graces.pop() == grace
    assert evidence.confirmed
    assert evidence.found["signals"] == {"n2": "SIGTERM" if orderly else "SIGKILL"}
    assert (UNMET in evidence.found) is not orderly


@pytest.mark.parametrize("grace", [0.0, -1.0, float("inf"), float("nan")])
def test_a_grace_that_is_no_time_is_refused(grace: float) -> None:
    test = Test(system="s", workload="queue", nemesis=("stop",), backend="local", nodes=3, seed=1, time_limit=10.0,
                rate=1.0, concurrency=1, options={"stop_grace": grace})  # fmt: skip
    with pytest.raises(UsageError, match="stop_grace"):
        StopFault().check(test, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("killed", "why"), [
    (["n1"], "n1 was killed: it outlived SIGTERM by stop_grace=2 s"),
    (["n1", "n2"], "n1 and n2 were killed: they outlived SIGTERM by stop_grace=2 s"),
])  # fmt: skip
def test_who_had_to_be_killed_is_told(killed: list[str], why: str) -> None:
    assert why_not_orderly(killed, {"stop_grace": 2.0}) == why
