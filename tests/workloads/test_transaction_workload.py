"""The transaction workload: its plan, the coordinator's log, how operations end, and whole runs in simulation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkers.run_check import check_run
from harness.run.describe import create_run
from harness.run.settings import convert_options, make_test
from harness.sim.run import simulate as simulate_run
from nodes.stomp import Frame
from stormproof.errors import UsageError
from stormproof.generator.simulate import SimulatedOutcome, invocations, simulate
from stormproof.operation import INVOKE, Op
from stormproof.test import Test
from workloads.reference.connection import ConnectionBroken, NotSent, Rejected
from workloads.reference.decisions import Decisions
from workloads.reference.transaction import TransactionWorkload
from workloads.reference.transaction_client import REFUSED_WHEN_PREPARED, TransactionClient

WORK = TransactionWorkload()


def transaction_test(**changed: Any) -> Test:
    options = convert_options(WORK.options, changed)
    return Test("joram", "transaction", nodes=1, time_limit=5.0, rate=90.0, seed=3, options=options,
                concurrency=WORK.concurrency(options))  # fmt: skip


def plan(test: Test) -> list[Op]:
    model = lambda op, number: SimulatedOutcome("ok", 10_000_000)  # noqa: E731
    return invocations(simulate(WORK.main(test), model, concurrency=test.concurrency, test=test))


def test_values_are_unique_and_every_role_is_played() -> None:
    test = transaction_test(transactions="xa")
    ops = plan(test)
    named = [op for op in ops if op.f in ("commit", "abort", "move")]
    assert len({op.value for op in named}) == len(named)
    assert {op.f for op in ops} == {"commit", "abort", "move", "enqueue", "dequeue", "recover", "rollback"}
    masks = {op.key for op in named if op.f != "move"}
    assert masks == {0b011, 0b101, 0b110, 0b111}, "two or more of the three queues"
    assert {op.key for op in ops if op.f == "dequeue"} == {0, 1, 2, 4}
    assert {op.key for op in ops if op.f in ("move", "enqueue")} == {3}
    sent = {f: sum(op.f == f for op in ops) for f in ("commit", "abort", "enqueue")}
    assert sent["commit"] > sent["abort"] > 5 and sent["enqueue"] > 30


@pytest.mark.parametrize("changed", [{"movers": 0}, {"parts": 1}, {"aborts": 91}, {"crash_share": 1.0}])
def test_settings_that_make_no_sense_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        transaction_test(**changed)


def test_what_was_not_decided_is_rolled_back_once_its_client_has_gone() -> None:
    log = Decisions()
    one, two = log.begin((1, 0)), log.begin((2, 0))
    assert (log.to_commit([one, two]), log.to_abort([one, two])) == (None, None), "their clients are at work"
    log.commit(one)
    assert log.to_commit([one, two]) is None
    log.leave(one)
    log.leave(two)
    assert (log.to_commit([one, two]), log.to_abort([one, two])) == (one, two)
    assert log.to_commit([]) == one, "its commit was never confirmed"
    log.settled(one)
    assert (log.to_commit([]), log.to_abort([])) == (None, None)
    assert log.to_abort(["somebody.else"]) is None
    assert log.value(two) == (2, 0)


@pytest.mark.requirement("H8", part=True)
@pytest.mark.parametrize(("later", "listed", "refused"), [(10, False, True), (1000, False, False), (1000, True, True)])
async def test_a_commit_is_refused_only_if_the_broker_cannot_have_forgotten_it(
    later: int, listed: bool, refused: bool
) -> None:
    connection = Scripted("COMMIT", Rejected("there is no XID 5.1"))
    connection.answers["RECOVER"] = {"x-xids": "5.1"} if listed else {}
    client = client_with(connection, transactions="xa")
    decisions = client._decisions
    decisions.commit(decisions.begin((5, 1)))
    decisions.leave("5.1")
    for number in range(later):
        decisions.begin((6, number))
    done = await client.invoke(Op(INVOKE, "recover", process=7))
    assert (done.type != "ok", str(done.error).startswith(REFUSED_WHEN_PREPARED)) == (True, refused)
    assert decisions.to_commit([]) is None, "it is not asked for again"


class Scripted:
    """A connection on which one command ends as told; all others are confirmed."""

    peer = None
    over = False
    connected = True

    def __init__(self, at: str, end: Exception) -> None:
        self.at, self.end = at, end
        self.messages: list[Frame] = []
        self.frames: list[tuple[str, dict[str, str]]] = []
        self.left = False
        self.answers: dict[str, dict[str, str]] = {}

    async def request(self, command: str, headers: dict[str, str], body: bytes, timeout: float) -> dict[str, str]:
        self.frames.append((command, dict(headers)))
        if command == self.at:
            raise self.end
        return self.answers.get(command, {})

    async def next_message(self, timeout: float) -> Frame:
        return Frame("MESSAGE", {"ack": "7"}, b"9/4")

    async def abort(self) -> None:
        self.left = True


def client_with(connection: Scripted, **changed: Any) -> TransactionClient:
    cluster: Any = SimpleNamespace(
        test=transaction_test(**{"crash_share": 0.0, **changed}), login="", passcode="", node_names=("n1",),
        reliable_connections=True,
        client_addresses=lambda: [("127.0.0.1", 1)], client_address=lambda _: None,
        backend=SimpleNamespace(address=lambda _: "127.0.0.1"),
    )  # fmt: skip

    class Connected(TransactionClient):
        def new_connection(self, undone: Any = ()) -> Any:
            return connection

    return Connected(cluster, "c1", 0, Decisions())


@pytest.mark.requirement("J4", part=True)
@pytest.mark.parametrize(
    ("transactions", "at", "end", "kind"),
    [
        ("plain", "", None, "ok"),
        ("plain", "SEND", TimeoutError(), "fail"),
        ("plain", "BEGIN", ConnectionBroken("gone"), "fail"),
        ("plain", "COMMIT", NotSent("no connection"), "fail"),
        ("plain", "COMMIT", Rejected("no message awaits"), "fail"),
        ("plain", "COMMIT", TimeoutError(), "info"),
        ("plain", "COMMIT", ConnectionBroken("gone"), "info"),
        ("xa", "", None, "ok"),
        ("xa", "SEND", TimeoutError(), "fail"),
        ("xa", "PREPARE", TimeoutError(), "fail"),
        ("xa", "PREPARE", ConnectionBroken("gone"), "fail"),
        ("xa", "COMMIT", TimeoutError(), "info"),
        ("xa", "COMMIT", NotSent("no connection"), "info"),
        ("xa", "COMMIT", Rejected("no such XID"), "info"),
    ],
)
@pytest.mark.parametrize("f", ["commit", "move"])
async def test_how_a_transaction_ends(f: str, transactions: str, at: str, end: Any, kind: str) -> None:
    connection = Scripted(at, end)
    client = client_with(connection, transactions=transactions)
    done = await client.invoke(Op(INVOKE, f, (5, 1), 3, 5))
    assert done.type == kind
    if f == "move" and kind != "fail":
        assert done.value == (9, 4), "the completion names what was taken"
    sent = [command for command, _ in connection.frames]
    if kind == "fail" and at != "COMMIT":
        assert "COMMIT" not in sent and connection.left, "nobody can commit it any more"
    if transactions == "xa":
        decided = client._decisions.to_commit(["5.1"])
        assert decided == ("5.1" if at == "COMMIT" or kind == "ok" else None)
        assert client._decisions.to_abort(["5.1"]) == (None if decided else "5.1")


@pytest.mark.parametrize("transactions", ["plain", "xa"])
async def test_an_abort_on_purpose_never_commits(transactions: str) -> None:
    connection = Scripted("", Exception())
    client = client_with(connection, transactions=transactions)
    assert (await client.invoke(Op(INVOKE, "abort", (5, 1), 0b11, 5))).type == "ok"
    assert [command for command, _ in connection.frames] == ["BEGIN", "SEND", "SEND", "ABORT"]


@pytest.mark.requirement("J4", part=True)
async def test_a_client_crashes_between_prepare_and_commit() -> None:
    ends = set()
    for number in range(40):
        connection = Scripted("", Exception())
        client = client_with(connection, transactions="xa", crash_share=0.9)
        done = await client.invoke(Op(INVOKE, "commit", (5, number), 0b11, 5))
        if done.type == "ok":
            continue
        assert connection.left and connection.frames[-1][0] == "PREPARE"
        decided = client._decisions.to_commit([f"5.{number}"]) is not None
        assert decided == ("decided to commit" in (done.error or ""))
        ends.add(decided)
    assert ends == {True, False}


@pytest.mark.requirement("H6", part=True)
@pytest.mark.requirement("J4", part=True)
@pytest.mark.parametrize("transactions", ["plain", "xa"])
def test_transactions_are_atomic_and_exactly_once_under_faults(transactions: str, tmp_path: Path) -> None:
    settings = {"fault_duration": 1.5, "detection_timeout": 0.5, "idle_timeout": 2.0, "min_ok": 15,
                "transactions": transactions, "crash_share": 0.2}  # fmt: skip
    test = make_test(system="joram", workload="transaction", nemesis="partition,pause,kill", backend="sim", nodes=3,
                     time_limit=15.0, rate=30.0, seed=2, settings=settings)  # fmt: skip
    run_dir = create_run(test, "test", tmp_path)
    simulate_run(run_dir)
    found = check_run(run_dir)
    assert found.verdict == "valid", found.sentence


def test_a_decision_may_be_forgotten_where_a_broker_remembers_few_ends() -> None:
    log = Decisions(remembered=40)
    log.commit(log.begin((1, 0)))
    for number in range(1, 20):
        log.begin((1, number))
    assert not log.maybe_forgotten("1.0")
    log.begin((1, 20))
    assert log.maybe_forgotten("1.0"), "as many again may have begun before"
    assert not Decisions().maybe_forgotten("1.0")
