"""Workloads ``lock`` and ``lease``: their plan, their clients, and what they find out about brokers in simulation."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from harness.run.cases import Case
from harness.run.settings import make_test
from harness.sim.campaign import NONE, run_seed
from stormproof.contracts.client import Delivery
from stormproof.errors import UsageError
from stormproof.generator.simulate import SimulatedOutcome, invocations, simulate
from stormproof.operation import FAIL, INFO, INVOKE, OK, Op
from stormproof.test import Test
from workloads.lease_client import GenericLeaseClient, LockServiceClient, patience
from workloads.lock import LeaseWorkload, LockWorkload
from workloads.lock_client import CLOSED_ITSELF, NO_TOKENS, NOT_HELD, SLEPT, STOOD_STILL, GenericLockClient, Updates
from workloads.lock_resource import FENCED, Fenced, Guarded

pytestmark = pytest.mark.requirement("H27", part=True)

FENCED_LATE = f"{FENCED}; {STOOD_STILL}"
WRONG = "connection broken: TypeError: acquire returned {}: a token is an integer, or None where there are none"
CASE = Case("joram", "lock", "partition,pause,kill", None, 12.0, 30.0,
            {"fault_duration": "1.5", "fault_gap": "0.3", "min_ok": "5", "drain_limit": "30"})  # fmt: skip


def planned(workload: str = "lock", **changed: Any) -> Test:
    return make_test(system="joram", workload=workload, nemesis="none", backend="sim", nodes=3, time_limit=5.0,
                     rate=50.0, seed=2, settings=changed)  # fmt: skip


def every_third(op: Op, number: int) -> SimulatedOutcome:
    """Of three acquires one gets the lock; of seven others one crashes; nothing takes no time."""
    if op.f == "acquire":
        return SimulatedOutcome(OK if number % 3 == 0 else FAIL, 1_000)
    return SimulatedOutcome(INFO if number % 7 == 0 else FAIL if op.f == "update" and number % 5 == 0 else OK, 1_000)


def test_whoever_gets_the_lock_uses_it_and_gives_it_back() -> None:
    work, test = LockWorkload(), planned()
    history = simulate(work.main(test), every_third, concurrency=test.concurrency, test=test)
    assert history[0].f == "install" and sum(op.f == "install" for op in invocations(history)) == 1
    following: dict[int, str] = {}
    for op in history[2:]:
        if op.type == INVOKE:
            assert op.f == following.pop(op.process, "acquire")
        elif op.type == OK and op.f == "acquire":
            following[op.process] = "update"
        elif op.type in (OK, FAIL) and op.f == "update":
            following[op.process] = "release"
    assert not following, "every hold was brought to its end, or its process crashed"
    kinds = {op.f for op in invocations(history)}
    assert kinds == {"install", "acquire", "update", "release"}


def test_a_lock_that_nobody_can_make_is_given_up() -> None:
    """Whoever should make it may never be let in."""
    work, test = LockWorkload(), planned()
    refused = SimulatedOutcome(FAIL, 100_000_000)
    history = simulate(work.main(test), lambda *_: refused, concurrency=test.concurrency, test=test)
    tries = [op for op in invocations(history) if op.f == "install"]
    assert 10 < len(tries) <= 51 and tries[-1].time <= 5_000_000_000
    assert {op.f for op in invocations(history)} == {"install", "acquire"}


def test_in_the_end_one_has_the_lock_while_another_asks() -> None:
    work, test = LeaseWorkload(), planned("lease")
    drained = invocations(simulate(work.drain(test), concurrency=test.concurrency, test=test))
    assert [(op.f, op.process) for op in drained] == [("acquire", 0), ("acquire", 1), ("update", 0), ("release", 0)]
    assert invocations(simulate(work.main(test), every_third, concurrency=5, test=test))[0].f == "acquire"


def test_one_worker_needs_no_lock() -> None:
    with pytest.raises(UsageError, match="workers=1: at least 2"):
        planned(workers="1")


def test_what_the_lock_guards_refuses_tokens_of_the_past() -> None:
    guarded = Guarded()
    assert (guarded.read(-1), guarded.write(1, -1), guarded.read(0)) == (0, 1, 1), "0 is a token as any other"
    for use in (lambda: guarded.read(-1), lambda: guarded.write(2, -1)):
        with pytest.raises(Fenced):
            use()
    assert guarded.read() == 1 and guarded.write(5) == 2, "without tokens nothing is refused"


class One:
    """A system with one queue, whose messages come back when their connection ends, and registers."""

    def __init__(self, system: dict[str, Any]) -> None:
        self.system = system

    async def connect(self, host: str, port: int, local: str) -> None:
        """Always."""

    async def close(self) -> None:
        if self.system.get("taken_by") is self:
            await self._back()

    async def _back(self) -> None:
        self.system["taken_by"] = None
        self.system["queue"].append(b"token")

    async def send(self, queue: str, body: bytes) -> None:
        self.system["queue"].append(body)

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        if not self.system["queue"]:
            return None
        self.system["taken_by"] = self
        self.system["given_out"] += 1
        return Delivery(self.system["queue"].pop(), self._back, self._back if self.system["gives_back"] else None,
                        self.system["given_out"] if self.system["numbers"] else None)  # fmt: skip

    async def depth(self, queue: str) -> int:
        return len(self.system["queue"])

    async def read(self, name: str) -> bytes | None:
        return self.system["values"].get(name)

    async def write(self, name: str, value: bytes) -> None:
        self.system["values"][name] = value

    async def cas(self, name: str, expected: bytes | None, value: bytes) -> bool:
        if self.system["values"].get(name) != expected:
            return False
        self.system["values"][name] = value
        return True


def system(gives_back: bool = True, numbers: bool = False) -> dict[str, Any]:
    return {"queue": [], "values": {}, "gives_back": gives_back, "taken_by": None, "numbers": numbers, "given_out": 0}


def cluster(of: dict[str, Any], **options: Any) -> Any:
    defaults = {"connect": "any", "open_timeout": 1.0, "op_timeout": 1.0, "poll": 0.01, "stall": 0.03,
                "lease_seconds": 0.02, "refuse_old_tokens": True, "refuse_older": True}  # fmt: skip
    return SimpleNamespace(
        test=SimpleNamespace(options=defaults | options), backend=SimpleNamespace(address=lambda host: "127.0.0.1"),
        client_addresses=lambda: [("h", 1)], node_names=["n1"], own_name=str, queue_connection=lambda: One(of),
        demands=SimpleNamespace(queues=("q0",)),
    )  # fmt: skip


def updates(guarded: Guarded, stalls: bool = False) -> Updates:
    rng = random.Random(1)
    rng.random = lambda: 0.0  # type: ignore[method-assign]  # whoever may stand still does
    return Updates(guarded, 0.0, stalls, rng)


async def done(client: Any, f: str) -> tuple[str, Any, str | None]:
    op = await client.invoke(Op(INVOKE, f, None, 0, 3))
    return op.type, op.value, op.error


@pytest.mark.parametrize("gives_back", [True, False])
def test_a_lock_of_a_system_of_another_kind(gives_back: bool) -> None:
    async def work() -> None:
        there, guarded = system(gives_back), Guarded()
        about = cluster(there, refuse_older=False)
        one, other = (GenericLockClient(about, One(there), "c", place, updates(guarded)) for place in (0, 1))
        assert await done(one, "install") == (OK, None, None)
        assert await done(one, "acquire") == (OK, None, None)
        assert await done(other, "acquire") == (FAIL, None, "empty")
        assert await done(one, "update") == (OK, (1, 1), None)
        assert await done(other, "update") == (FAIL, None, NOT_HELD)
        assert await done(one, "release") == (OK, None, None)
        assert await done(other, "acquire") == (OK, None, None)
        assert (await done(one, "release"))[0] == FAIL and await done(other, "update") == (OK, (2, 2), None)

    asyncio.run(work())


class Slow(One):
    """A connection that the system gives up when it hears no heart-beat of it."""

    heartbeat = 0.01

    async def stand_still(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 2)
        await self._back()
        await asyncio.sleep(seconds / 2)


@pytest.mark.parametrize("fencing", [True, False])
def test_the_number_of_a_delivery_fences_off_who_had_the_message_before(fencing: bool) -> None:
    async def work() -> None:
        there, guarded = system(numbers=True), Guarded()
        about = cluster(there, refuse_older=fencing, stall=0.1)
        slow = GenericLockClient(about, Slow(there), "c", 0, updates(guarded, stalls=True))
        quick = GenericLockClient(about, One(there), "c", 1, updates(guarded))
        await done(slow, "install")
        assert await done(slow, "acquire") == (OK, 1, None)
        update = asyncio.create_task(done(slow, "update"))
        await asyncio.sleep(0.02)
        assert await done(quick, "acquire") == (FAIL, None, "empty"), "its connection is alive still"
        await asyncio.sleep(0.05)
        assert await done(quick, "acquire") == (OK, 2, None) and await done(quick, "update") == (OK, (1, 1), None)
        assert await update == ((FAIL, None, FENCED_LATE) if fencing else (OK, (2, 1), STOOD_STILL))

    asyncio.run(work())


def test_a_lock_without_heartbeats_is_given_away_by_the_test_itself() -> None:
    async def work() -> None:
        there, guarded = system(), Guarded()
        about = cluster(there, refuse_older=False)
        client = GenericLockClient(about, One(there), "c", 0, updates(guarded, stalls=True))
        await done(client, "install")
        await done(client, "acquire")
        assert await done(client, "update") == (OK, (1, 1), CLOSED_ITSELF)
        assert there["queue"], "the end of the connection gave it back"

    asyncio.run(work())


class Locks(One):
    """A system with one lock, which ends when its holder stands still, and not when it only sleeps."""

    tokens: ClassVar[tuple[int | None, ...]] = (0, 1)

    async def acquire(self, name: str, seconds: float) -> int | None:
        await self.system.setdefault("lock", asyncio.Lock()).acquire()
        self.system["holder"] = self
        self.system["given_out"] += 1
        return self.tokens[self.system["given_out"] - 1]

    async def give_up(self, name: str) -> None:
        """Nobody is in line."""

    async def release(self, name: str) -> bool:
        mine = self.system["holder"] is self
        if mine:
            self.free()
        return mine

    def free(self) -> None:
        self.system["holder"] = None
        self.system["lock"].release()


class BeatingLocks(Locks):
    heartbeat = 0.01

    async def stand_still(self, seconds: float) -> None:
        self.free()
        await asyncio.sleep(seconds)


class SilentLocks(Locks):
    heartbeat = 0.0


def service(of: dict[str, Any], kind: type[Locks], guarded: Guarded, **options: Any) -> LockServiceClient:
    about = cluster(of, **{"lease_seconds": 5.0, "stall": 0.1, **options})
    return LockServiceClient(about, kind(of), "c", 0, updates(guarded, stalls=bool(options.get("stall", True))))


@pytest.mark.parametrize("fencing", [True, False])
def test_a_client_library_with_heartbeats_is_told_to_stand_still(fencing: bool) -> None:
    """Else it would keep the lock, and nobody else would get it. The first token is 0, which fences as any other."""
    async def work() -> None:
        there, guarded = system(), Guarded()
        slow, quick = (service(there, BeatingLocks, guarded, refuse_old_tokens=fencing, stall=stall)
                       for stall in (0.1, 0))  # fmt: skip
        assert await done(slow, "acquire") == (OK, 0, None)
        update = asyncio.create_task(done(slow, "update"))
        assert await done(quick, "acquire") == (OK, 1, None)
        assert await done(quick, "update") == (OK, (1, 1), None)
        assert await update == ((FAIL, None, FENCED_LATE) if fencing else (OK, (2, 1), STOOD_STILL))
        assert await done(slow, "release") == (FAIL, None, NOT_HELD)
        assert await done(quick, "release") == (OK, None, None)

    asyncio.run(work())


@pytest.mark.parametrize(("kind", "said"), [(Locks, SLEPT), (SilentLocks, STOOD_STILL), (BeatingLocks, STOOD_STILL)])
def test_sleeping_is_a_stall_where_the_adapter_says_that_nothing_renews_the_lock(kind: type[Locks], said: str) -> None:
    async def work() -> None:
        client = service(system(), kind, Guarded(), refuse_old_tokens=False)
        await done(client, "acquire")
        assert await done(client, "update") == (OK, (1, 1), said)

    asyncio.run(work())


@pytest.mark.parametrize(("token", "acquired"), [
    (0, (OK, 0, None)), (-7, (OK, None, "token -7")), (1 << 70, (OK, None, f"token {1 << 70}")),
    (None, (FAIL, None, NO_TOKENS)), (True, (INFO, None, WRONG.format("True"))),
    ("9", (INFO, None, WRONG.format("'9'"))),
])  # fmt: skip
def test_any_integer_is_a_token(token: Any, acquired: tuple[str, Any, str | None]) -> None:
    async def work() -> None:
        there = system()
        kind = type("One", (Locks,), {"tokens": (token,)})
        client = service(there, kind, Guarded(), stall=0)
        assert await done(client, "acquire") == acquired
        if acquired[0] == OK:
            assert await done(client, "update") == (OK, (1, 1), None)
            assert await done(client, "release") == (OK, None, None)
        assert (there["holder"] is None) == (acquired[0] != INFO), "without tokens it is free again"

    asyncio.run(work())


def test_without_fencing_no_token_is_asked_for() -> None:
    async def work() -> None:
        kind = type("One", (Locks,), {"tokens": (None,)})
        client = service(system(), kind, Guarded(), refuse_old_tokens=False, stall=0)
        assert [await done(client, f) for f in ("acquire", "update", "release")] == [
            (OK, None, None), (OK, (1, 1), None), (OK, None, None)]  # fmt: skip

    asyncio.run(work())


@pytest.mark.parametrize(("declared", "poll", "lease", "seconds"), [
    ({}, 0.5, 1.0, 2.0), ({}, 0.5, 2.2, 4.0), ({}, 9.0, 1.0, 9.0), ({"session": 6.0}, 0.5, 1.0, 7.0),
    ({"session": 6.0, "acquire_seconds": 3.0}, 0.5, 1.0, 3.0),
])  # fmt: skip
def test_whoever_wants_the_lock_waits_for_longer_than_a_session(
    declared: dict[str, float], poll: float, lease: float, seconds: float
) -> None:
    assert patience(type("One", (Locks,), declared)({}), poll, lease) == seconds


@pytest.mark.parametrize(("declared", "wrong"), [
    ({"session": 3.0}, "--set stall=3: myown's sessions last 3 s; ask for a longer stall"),
    ({"heartbeat": 0.5}, "myown: its connections have a heartbeat and no stand_still"),
])  # fmt: skip
def test_a_stall_that_nobody_could_notice_is_refused(declared: dict[str, float], wrong: str) -> None:
    connection = type("One", (Locks,), declared)({})
    options = planned("lease").options | {"guard": "service", "holders": "stalling"}
    there = SimpleNamespace(queue_connection=lambda: connection,
                            test=SimpleNamespace(options=options, system="myown", rng=lambda name: None))  # fmt: skip
    with pytest.raises(UsageError, match=re.escape(wrong)):
        LeaseWorkload().client(there, 0, "c")  # type: ignore[arg-type]


def test_without_numbers_nobody_is_fenced_off_unnoticed() -> None:
    async def work() -> None:
        there = system()
        client = GenericLockClient(cluster(there), One(there), "c", 0, updates(Guarded()))
        await done(client, "install")
        assert await done(client, "acquire") == (FAIL, None, NO_TOKENS)
        assert there["queue"], "it is there for others again"

    asyncio.run(work())
    with pytest.raises(UsageError, match="do not number their deliveries"):
        LockWorkload().client(SimpleNamespace(queue_connection=lambda: None, test=planned(refuse_older="true")), 0, "c")  # type: ignore[arg-type]


def test_a_lease_of_a_system_of_another_kind() -> None:
    async def work() -> None:
        there, guarded = system(), Guarded()
        one, other = (GenericLeaseClient(cluster(there), One(there), "c", place, updates(guarded)) for place in (0, 1))
        assert await done(one, "acquire") == (OK, 1, None)
        assert await done(other, "acquire") == (FAIL, None, "empty")
        assert await done(one, "update") == (OK, (1, 1), None)
        await asyncio.sleep(0.04)
        assert await done(one, "update") == (FAIL, None, NOT_HELD), "it is over for its holder by the holder's clock"
        assert await done(other, "acquire") == (OK, 2, None), "and for others when they have seen it for so long"
        assert await done(one, "release") == (FAIL, None, NOT_HELD)
        assert await done(other, "release") == (OK, None, None)
        assert await done(one, "acquire") == (OK, 3, None)

    asyncio.run(work())


@pytest.mark.parametrize("fencing", [True, False])
def test_a_holder_that_stands_still_is_fenced_off_or_overwrites_what_came_meanwhile(fencing: bool) -> None:
    async def work() -> None:
        there, guarded = system(), Guarded()
        about = cluster(there, refuse_old_tokens=fencing, stall=0.2)
        slow = GenericLeaseClient(about, One(there), "c", 0, updates(guarded, stalls=True))
        quick = GenericLeaseClient(about, One(there), "c", 1, updates(guarded))
        await done(slow, "acquire")
        update = asyncio.create_task(done(slow, "update"))
        await asyncio.sleep(0.01)
        assert await done(quick, "acquire") == (FAIL, None, "empty")
        await asyncio.sleep(0.03)
        assert await done(quick, "acquire") == (OK, 2, None) and await done(quick, "update") == (OK, (1, 1), None)
        assert await update == ((FAIL, None, FENCED_LATE) if fencing else (OK, (2, 1), STOOD_STILL))

    asyncio.run(work())


@pytest.mark.parametrize("workload", ["lock", "lease"])
@pytest.mark.parametrize("design", ["standalone", "joram", "qpid", "fiorano"])
def test_one_holder_at_a_time_on_every_design(design: str, workload: str, tmp_path: Path) -> None:
    nemesis = "pause,kill" if design == "standalone" else "partition,kill"
    case = replace(CASE, system=design, workload=workload, nemesis=nemesis)
    result = run_seed(case, 2, tmp_path, tmp_path, NONE)
    assert result.verdict == "valid", result.sentence


def verdict(workload: str, seed: int, folder: Path, **settings: str) -> tuple[str, set[str]]:
    case = replace(CASE, workload=workload, nemesis="kill", time_limit=20.0, settings={**CASE.settings, **settings})
    result = run_seed(case, seed, folder, folder, NONE)
    return result.verdict, set(result.broken)


def test_the_twins_of_fencing(tmp_path: Path) -> None:
    """Holders stand still longer than their leases last: what they write then is refused, or loses updates."""
    assert verdict("lease", 1, tmp_path, holders="stalling")[0] == "valid"
    bad, broken = verdict("lease", 1, tmp_path, holders="stalling", refuse_old_tokens="false")
    assert bad == "invalid" and {"mutual-exclusion", "lost-update"} <= broken


def test_a_token_does_not_fence_off_anybody(tmp_path: Path) -> None:
    found = (verdict("lock", seed, tmp_path, holders="stalling") for seed in range(1, 9))
    assert any(bad == "invalid" and "lost-update" in broken for bad, broken in found)


@pytest.mark.parametrize(("workload", "bug", "check"), [
    ("lock", "requeued-twice", "mutual-exclusion"), ("lock", "close-drops-unacked", "lock-lost"),
    ("lease", "cas-unchecked", "fencing"),
])  # fmt: skip
def test_bugs_of_brokers_that_it_catches(workload: str, bug: str, check: str, tmp_path: Path) -> None:
    case = replace(CASE, workload=workload, settings={**CASE.settings, "bug": bug})
    results = (run_seed(case, seed, tmp_path, tmp_path, NONE) for seed in range(1, 9))
    assert any(check in result.broken for result in results)


def test_a_token_does_not_stay_with_a_holder_that_could_not_say_that_it_lets_go(tmp_path: Path) -> None:
    """Its release was not sent, as the broker was down; then its connection was resumed."""
    settings = {"idle_timeout": "1", "workers": "8", "op_timeout": "1", "poll": "0.05", "min_ok": "3",
                "reboot_kind": "any", "kill_kind": "random", "fault_duration": "0", "fault_lengths": "1.05,1.3,4",
                "fault_gap": "0.1", "quiet_before": "0.15", "quiet_after": "0.2"}  # fmt: skip
    result = run_seed(Case("standalone", "lock", "reboot,kill", 1, 22.0, 17.0, settings), 24, tmp_path, tmp_path, NONE)
    assert result.verdict == "valid", result.sentence
