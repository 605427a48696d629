"""The register workload: its plan, its clients, and what it finds out about brokers in simulation."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.run.cases import Case
from harness.run.settings import make_test
from harness.sim.campaign import NONE, run_seed
from stormproof.contracts.client import NotDone
from stormproof.errors import UsageError
from stormproof.generator.simulate import imperfect, invocations, simulate
from stormproof.operation import FAIL, INFO, INVOKE, OK, Op
from stormproof.test import Test
from workloads.reference.register_client import RegisterClient
from workloads.register import RegisterWorkload
from workloads.register_client import FOREIGN, NO_MATCH, GenericRegisterClient, decode_value

pytestmark = pytest.mark.requirement("H27", part=True)

WORK = RegisterWorkload()
CASE = Case("joram", "register", "partition,pause,kill", None, 12.0, 30.0,
            {"fault_duration": "1.5", "fault_gap": "0.3", "min_ok": "10"})  # fmt: skip


def planned(**changed: Any) -> Test:
    return make_test(system="joram", workload="register", nemesis="none", backend="sim", nodes=3, time_limit=10.0,
                     rate=100.0, seed=2, settings=changed)  # fmt: skip


def test_every_value_is_written_once_whatever_becomes_of_it() -> None:
    test = planned()
    ops = invocations(simulate(WORK.main(test), imperfect, concurrency=test.concurrency, test=test))
    values = [op.value for op in ops if op.f != "read"]
    assert len(set(values)) == len(values) and min(values) > 0
    assert {op.key for op in ops} == {0, 1, 2} and 800 < len(ops) < 1200
    share = {f: sum(op.f == f for op in ops) / len(ops) for f in ("read", "cas", "write")}
    assert 0.4 < share["read"] < 0.6 and 0.15 < share["cas"] < 0.35


@pytest.mark.parametrize(("settings", "reason"), [
    ({"read_share": "80", "swaps": "30"}, "100 at most together"), ({"threads": "0"}, "threads=0: at least 1"),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        planned(**settings)


@pytest.mark.parametrize("system", ["standalone", "joram", "qpid", "fiorano"])
def test_registers_of_every_design_are_linearizable(system: str, tmp_path: Path) -> None:
    nemesis = "pause,kill" if system == "standalone" else "partition,kill"
    result = run_seed(replace(CASE, system=system, nemesis=nemesis), 2, tmp_path, tmp_path, NONE)
    assert result.verdict == "valid", result.sentence


def test_icestorm_has_none() -> None:
    with pytest.raises(UsageError, match="needs registers, which icestorm does not provide"):
        make_test(system="icestorm", workload="register", nemesis="none", backend="sim", nodes=3, time_limit=10.0,
                  rate=100.0, seed=2, settings={})  # fmt: skip


def test_the_twins(tmp_path: Path) -> None:
    """Versions are not compared, so two may replace one value; without the bug they do not."""
    unsafe = replace(CASE, settings={**CASE.settings, "bug": "cas-unchecked"})
    bad, good = (run_seed(case, 3, tmp_path, tmp_path, NONE) for case in (unsafe, CASE))
    assert (bad.verdict, list(bad.broken)) == ("invalid", ["register"])
    assert good.verdict == "valid", good.sentence


class Values:
    """A system of single values; ``trouble`` is what happens to the next call."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.trouble: Exception | None = None

    async def connect(self, host: str, port: int, local: str) -> None:
        """Always."""

    async def close(self) -> None:
        """Always."""

    def _trouble(self) -> None:
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            raise trouble

    async def read(self, name: str) -> bytes | None:
        self._trouble()
        return self.values.get(name)

    async def write(self, name: str, value: bytes) -> None:
        self._trouble()
        self.values[name] = value

    async def cas(self, name: str, expected: bytes | None, value: bytes) -> bool:
        if self.values.get(name) != expected:
            return False
        self.values[name] = value
        self._trouble()
        return True


def neutral(values: Values) -> GenericRegisterClient:
    options = {"connect": "any", "open_timeout": 1.0, "op_timeout": 1.0}
    cluster: Any = SimpleNamespace(
        test=SimpleNamespace(options=options), backend=SimpleNamespace(address=lambda host: "127.0.0.1"),
        own_name=str, client_addresses=lambda: [("h", 1)], node_names=["n1"], queue_connection=lambda: values,
    )  # fmt: skip
    return GenericRegisterClient(cluster, values, "c", 0)


def invoked(f: str, value: int | None = None) -> Op:
    return Op(INVOKE, f, value, 0, 5)


def test_a_system_of_another_kind_needs_read_write_and_cas_only() -> None:
    async def work() -> None:
        values = Values()
        client, other = neutral(values), neutral(values)
        assert await client.invoke(invoked("read")) == invoked("read")._replace(type=OK, value=0, node="n1")
        assert (await client.invoke(invoked("cas", 3))).value == (0, 3)
        await other.invoke(invoked("write", 4))
        refused = await client.invoke(invoked("cas", 5))
        assert (refused.type, refused.value, refused.error) == (FAIL, (3, 5), NO_MATCH)
        assert (await client.invoke(invoked("read"))).value == 4, "what it saw last is what it expects next"
        assert (await client.invoke(invoked("cas", 6)))[:3] == (OK, "cas", (4, 6))
        values.values["r0"] = b"nobody's"
        assert (await other.invoke(invoked("read"))).value == FOREIGN

    asyncio.run(work())


@pytest.mark.parametrize(("trouble", "kind"), [(NotDone("no"), FAIL), (OSError("cut"), INFO)])
def test_only_what_certainly_did_not_happen_has_failed(trouble: Exception, kind: str) -> None:
    async def work() -> None:
        values = Values()
        client = neutral(values)
        for f in ("write", "read"):
            values.trouble = trouble
            assert (await client.invoke(invoked(f, 7))).type == kind
        await client.invoke(invoked("read"))
        values.trouble = trouble
        swapped = await client.invoke(invoked("cas", 8))
        assert swapped.type == kind and (kind == FAIL or swapped.value[1] == 8)

    asyncio.run(work())


@pytest.mark.parametrize(("body", "value"), [(b"", 0), (b"17", 17), (b"-1", FOREIGN), (b"9" * 12, FOREIGN)])
def test_values(body: bytes, value: int) -> None:
    assert decode_value(body) == value


class Answers(RegisterClient):
    """A client whose broker answers as it is told to."""

    def __init__(self, *answers: dict[str, str] | Exception) -> None:
        self.answers, self._seen = list(answers), {}

    async def request(self, command: str, headers: dict[str, str], body: bytes = b"") -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(("answers", "kind", "value"), [
    (({"x-version": "3", "x-value": "Nw=="}, {"x-version": "4"}), OK, (7, 9)),
    (({"x-version": "0"}, {"x-version": "4"}), OK, (0, 9)),
    (({"x-version": "3", "x-value": "Nw=="}, {"x-version": "5", "x-refused": "true"}), FAIL, (7, 9)),
    (({"x-version": "3", "x-value": "Nw=="}, {}), INFO, (7, 9)),
    (({"x-version": "3", "x-value": "Nw=="}, TimeoutError()), INFO, (7, 9)),
    ((TimeoutError(),), FAIL, 9),
])  # fmt: skip
def test_what_a_broker_s_answers_to_compare_and_set_mean(
    answers: tuple[dict[str, str] | Exception, ...], kind: str, value: Any
) -> None:
    done = asyncio.run(Answers(*answers).carry_out(invoked("cas", 9)))
    assert (done.type, done.value) == (kind, value)
