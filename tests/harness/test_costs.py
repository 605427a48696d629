"""What machines use: counted right, noted whatever happens to a machine, and never a part of the verdict."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.backends import usage as usage_module
from harness.backends.usage import COSTS_INTERVAL, measured
from harness.backends.usage_probe import ProcessSample, below_first, grown, of_pid_files, remembered
from harness.run import costs
from harness.run.costs import MAX_SAMPLES, CostWatch, costs_summary, interval_of
from harness.run.settings import make_test
from stormproof.contracts.backend import Usage
from stormproof.errors import BackendError, UsageError
from stormproof.history.costs import Sample, added, read_costs, sample_line, totals, trouble_line
from stormproof.run_folder import COSTS
from stormproof.test import Test

pytestmark = pytest.mark.requirement("H29")

NOTHING = Usage(0.0, 0, 0, 0, 0, 0, 0, 0, 0.0)
SHELL = ProcessSample(parent=1, alive=True, memory=0, ticks=5, childrens_ticks=0, read=0, written=100)


def used(cpu: float, memory: int = 100) -> Usage:
    return replace(NOTHING, cpu=cpu, memory=memory, sent=int(cpu * 1000), written=int(cpu * 10), processes=1)


# Counting


def test_a_child_that_was_waited_for_counts_once() -> None:
    """It was seen with 7 of the 9 ticks that it had used at its end."""
    child = SHELL._replace(parent=10, ticks=7, written=40)
    after = SHELL._replace(childrens_ticks=9, written=150)
    assert grown({(10, 1): SHELL, (11, 2): child}, {(10, 1): after}) == (2, 0, 10)


def test_a_child_that_nobody_waited_for_takes_nothing_away() -> None:
    child = SHELL._replace(parent=10, ticks=7)
    assert grown({(10, 1): SHELL, (11, 2): child}, {(10, 1): SHELL._replace(ticks=6)}).ticks == 1


def test_a_process_that_came_has_used_all_that_it_has() -> None:
    assert grown({}, {(10, 1): SHELL}) == (5, 0, 100)
    assert grown({(10, 1): SHELL}, {(10, 2): SHELL}) == (5, 0, 100), "the same pid, another process"


def test_what_can_not_be_read_for_once_is_not_counted_again() -> None:
    unread = SHELL._replace(read=None, written=None)
    kept = remembered({(10, 1): SHELL}, {(10, 1): unread})
    assert grown({(10, 1): SHELL}, {(10, 1): unread}).written == 0
    assert grown(kept, {(10, 1): SHELL._replace(written=130)}).written == 30


def stats(*rows: tuple[int, int, int]) -> dict[tuple[int, int], list[str]]:
    """(pid, parent, session) of processes that were all born at 7."""
    return {(pid, 7): ["S", str(parent), str(pid), str(session)] for pid, parent, session in rows}


def test_programs_of_a_namespace_descend_from_its_first_process() -> None:
    """Not the first itself, nor what was put there from outside: our shells, with no parent here."""
    found = below_first(stats((1, 0, 0), (20, 1, 20), (21, 20, 20), (30, 0, 0), (31, 30, 0), (40, 1, 40)))
    assert {pid for pid, _ in found} == {20, 21, 40}


def test_programs_of_a_host_are_those_of_its_pid_files() -> None:
    """With their sessions, what they started, and what was one before: one that has left its session."""
    seen = stats((1, 0, 1), (2, 1, 2), (20, 1, 20), (21, 1, 20), (22, 21, 22), (23, 22, 23), (50, 1, 50))
    assert {pid for pid, _ in of_pid_files(seen, {(20, 7), (2, 6)}, {(50, 7), (60, 7)})} == {20, 21, 22, 23, 50}


# Watching


class Machines:
    """Machines that do as planned: each time that they are measured, some samples, then an end or an error."""

    def __init__(self, plans: dict[str, list[Sequence[Usage | BaseException | None]]]) -> None:
        self._plans = {node: iter(plan) for node, plan in plans.items()}
        self.closed: list[str] = []

    async def usage(self, node: str, interval: float) -> AsyncGenerator[Usage, None]:
        try:
            for each in next(self._plans[node], [None]):
                if each is None:
                    await asyncio.Event().wait()
                elif isinstance(each, BaseException):
                    raise each
                else:
                    await asyncio.sleep(0)
                    yield each
        finally:
            self.closed.append(node)


def ticking() -> Callable[[], int]:
    """A clock of the run that goes on by a tenth of a second each time that it is looked at."""
    times: Iterator[int] = iter(range(0, 10**12, 10**8))
    return lambda: next(times)


def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **plans: list[Sequence[Usage | BaseException | None]]
            ) -> CostWatch:  # fmt: skip
    monkeypatch.setattr(costs, "RETRY", 0.0)
    machines = Machines(plans)

    async def watch() -> CostWatch:
        watch = CostWatch(machines, ticking(), tmp_path / COSTS, 1.0)
        watch.start(list(plans))
        for _ in range(100):
            await asyncio.sleep(0)
        await watch.close()
        return watch

    watch = asyncio.run(watch())
    assert set(machines.closed) == set(plans), "nothing is left on a machine"
    return watch


def test_counters_go_on_when_a_machine_was_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted begins at 0 after a restart of the machine or of the measuring; what is there is as it is."""
    watch = watched(tmp_path, monkeypatch,
                    n1=[[NOTHING, used(2.0)], [BackendError("n1 does not answer")], [NOTHING, used(1.0, 30), None]],
                    n2=[[NOTHING, used(0.5), None]])  # fmt: skip
    found = read_costs(tmp_path / COSTS)
    assert [each.usage.cpu for each in found["n1"].samples] == [0, 2, 2, 3]
    assert [each.usage.memory for each in found["n1"].samples] == [0, 100, 0, 30]
    assert [each.reason for each in found["n1"].troubles] == ["it ended", "n1 does not answer"]
    ((begin, end),) = found["n1"].gaps()
    assert begin == found["n1"].samples[1].time and end == found["n1"].samples[2].time
    assert totals(found["n1"], 0.0)["cpu_s"] == 3 and totals(found["n1"], 0.0)["memory_peak"] == 100
    assert watch.troubles == {"n1": "it ended"} and found["n2"].troubles == ()


def test_a_machine_in_trouble_keeps_no_other_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs, one that fails in a way that nobody has reckoned with, one that is well."""
    watch = watched(tmp_path, monkeypatch, n1=[[None]], n2=[[RuntimeError("odd\nanswer")], [None]],
                    n3=[[used(1.0), used(1.5), None]])  # fmt: skip
    found = read_costs(tmp_path / COSTS)
    assert [each.usage.cpu for each in found["n3"].samples] == [1, 1.5]
    assert found["n2"].samples == () and found["n2"].troubles[0].reason == "odd answer"
    assert "n1" not in found and list(watch.troubles) == ["n2"]


def test_a_file_that_can_not_be_written_ends_the_noting_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / COSTS).symlink_to("/dev/full")
    watch = watched(tmp_path, monkeypatch, n1=[[NOTHING, used(1.0), None]])
    assert "can't be written" in watch.troubles[""]


class Told:
    """A shell's channel that says some things, then nothing more, or ends."""

    def __init__(self, *chunks: bytes, ends: bool = True) -> None:
        self._chunks, self._ends = list(chunks), ends
        self.destroyed = False

    async def read(self) -> bytes:
        if self._chunks:
            return self._chunks.pop(0)
        if not self._ends:
            await asyncio.Event().wait()
        return b""

    async def write(self, data: bytes) -> None:
        assert data == b"exec measure\n"

    async def destroy(self) -> None:
        self.destroyed = True


LINE = sample_line(0, "n1", used(1.0)).replace('"time": 0, "node": "n1", ', "").encode()


@pytest.mark.parametrize(("chunks", "ends", "samples", "reason"), [
    ([LINE[:20], LINE[20:] + LINE], True, 1, "n1: the program that measures ended"),
    ([b"sh: python3: not found\n"], True, 0, "n1: the program that measures failed: sh: python3: not found"),
    ([b"Traceback"], True, 0, "n1: the program that measures ended: Traceback"),
    ([b'{"cpu": 1}\n'], True, 0, 'n1: the program that measures failed: {"cpu": 1}'),
    ([b"x" * 70_000], True, 0, "n1: the program that measures ended: " + "x" * 200),
    ([LINE], False, 1, "n1: nothing was measured for 0.02 s"),
], ids=["two at once are one", "no python", "cut off", "other fields", "no line", "silence"])  # fmt: skip
async def test_what_a_program_that_measures_may_do(
    chunks: list[bytes], ends: bool, samples: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_module, "SILENCE", 0.01)
    channel = Told(*chunks, ends=ends)

    async def connect() -> Any:
        return channel

    found = []
    with pytest.raises(BackendError) as refused:
        async for each in measured("n1", connect, "measure", 0.01):
            found.append(each)
    assert len(found) == samples and str(refused.value) == reason and channel.destroyed


# The file


def test_lines_that_are_no_lines_are_left_out(tmp_path: Path) -> None:
    """A torn last one, and whatever a stranger may write; what shrinks began anew."""
    good = [sample_line(at * 10**9, "n1", used(float(cpu))) for at, cpu in enumerate((1, 3, 2, 4))]
    odd = [b"", b"nonsense", b"[]", b"{}", b'{"time": 1, "node": 7}', b'{"time": -1, "node": "n1", "trouble": "x"}',
           good[0].replace("1.0", "NaN").encode(), good[0].replace("1.0", "1e999").encode(), b"\xff\xfe",
           good[0].replace('"memory": 100', '"memory": "much"').encode().strip(), b"[" * 10_000, good[3].encode()[:-9]]
    (tmp_path / COSTS).write_bytes("".join(good).encode() + b"\n".join(odd))
    found = read_costs(tmp_path / COSTS)
    assert list(found) == ["n1"] and [each.usage.cpu for each in found["n1"].samples] == [1, 3, 2, 4]
    assert totals(found["n1"], 0.0)["cpu_s"] == 4


def test_totals_begin_with_the_load(tmp_path: Path) -> None:
    lines = [sample_line(at * 10**9, "n1", replace(used(float(at)), disk=100 - at, read=None)) for at in range(6)]
    (tmp_path / COSTS).write_text("".join(lines) + trouble_line(6 * 10**9, "n2", "it hangs"))
    run = {"test": Test("joram", "queue").to_json(), "phases": [{"name": "start", "start": 0, "end": 2.5e9},
                                                                {"name": "main", "start": 2_500_000_000, "end": 5e9}]}
    found = costs_summary(tmp_path, run)
    assert found is not None
    assert found["since_s"] == 2.5 and list(found["nodes"]) == ["n1"]
    told = found["nodes"]["n1"]
    assert (told["cpu_s"], told["seconds"], told["samples"], told["sent"]) == (3, 3, 4, 3000)
    assert (told["disk_peak"], told["disk_end"], told["read"]) == (98, 95, None)
    assert found["troubles"]["n2"] == {"times": 1, "reason": "it hangs", "gaps": [[6, None]]}


def test_a_run_without_samples_has_no_costs(tmp_path: Path) -> None:
    assert costs_summary(tmp_path, {"test": Test("joram", "queue").to_json()}) is None


def test_a_counter_that_was_not_told_for_a_while_is_not_lost() -> None:
    assert added(used(2.0), replace(used(1.0), written=None)).written == 20
    assert added(replace(used(2.0), written=None), used(1.0)).written == 10
    assert added(None, used(1.0)) == used(1.0)
    assert Sample(0.0, NOTHING).usage.cpu == 0


# The setting


def described(backend: str, **settings: str) -> Test:
    return make_test(system="joram", workload="queue", nemesis="partition", backend=backend, nodes=None,
                     time_limit=30.0, rate=100.0, seed=1, settings=settings)  # fmt: skip


@pytest.mark.parametrize("value", ["0.1", "61", "-1", "often", "nan"])
def test_an_interval_that_makes_no_sense_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="costs_interval") as refused:
        described("local", costs_interval=value)
    assert "\n" not in str(refused.value)


def test_simulated_nodes_cost_nothing() -> None:
    with pytest.raises(UsageError, match="no such option"):
        described("sim", costs_interval="1")


@pytest.mark.parametrize("backend", ["local", "docker", "ssh"])
def test_each_backend_with_machines_of_its_own_takes_the_interval(backend: str) -> None:
    assert interval_of(described(backend)) == 1
    assert interval_of(described(backend, costs_interval="0")) == 0
    assert interval_of(described(backend, costs_interval="0.2")) == 0.2


def test_a_long_run_is_looked_at_less_often() -> None:
    test = Test("joram", "queue", time_limit=86400.0, options={COSTS_INTERVAL.name: 1.0})
    assert interval_of(test) == 86400 / MAX_SAMPLES
    assert json.loads(sample_line(5, "n1", NOTHING))["time"] == 5
