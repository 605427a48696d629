"""What attackers make the broker hold is bounded, and honest clients are served meanwhile (docs/security.md)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import under_attack
from broker_process import BrokerProcess, RawClient, works
from under_attack import ATTACKS, QUIET

from nodes.reference.api import Command, Config, Deliver, Effect, Refused
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.limits import Limits
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.budget import HeldMemory, Turns, TurnTaker
from nodes.reference.server.runtime import RealRuntime
from nodes.stomp import Frame, FrameLimits, Parser, ProtocolError

Start = Callable[..., BrokerProcess]
MIB = 1 << 20

# Before login.


async def test_who_has_not_logged_in_sends_little(start_broker: Start) -> None:
    broker = start_broker()
    for start, reason in ((b"CONNECT\naccept-version:1.2\ncontent-length:4000000\n\n", "body is longer than 16384"),
                          (b"CONNECT\naccept-version:1.2\n\n" + b"x" * 20_000, "body is longer than 16384"),
                          (b"CONNECT\nlogin:" + b"x" * 20_000, "headers are longer than 16384")):
        client = await RawClient.dial(broker.port)
        client.writer.write(start)
        assert reason in (await client.refused()).headers["message"]
    # What follows a right login at once has the bounds of those who are logged in.
    client = await RawClient.dial(broker.port)
    client.hello()
    client.send("SEND", {"destination": "/queue/q", "receipt": "r"}, b"x" * 1_000_000)
    await client.expect("CONNECTED")
    await client.expect("RECEIPT")


async def test_logins_that_never_end_refuse_nobody(start_broker: Start) -> None:
    broker = start_broker(max_logins=5, max_connections=3)
    half = []
    for _ in range(8):
        half.append(await RawClient.dial(broker.port))
        half[-1].writer.write(b"CONNECT\n")
        await works(broker.port)
    for client in half[:4]:  # a place was needed for each of those that logged in, but for the first four
        assert "took longest" in (await client.refused()).headers["message"]
    half[4].writer.write(b"x" * 20_000)
    assert "headers are longer" in (await half[4].refused()).headers["message"]


def test_frames_are_given_as_many_at_a_time_as_asked_for_and_limits_are_those_of_the_next_one() -> None:
    parser = Parser(FrameLimits(body=2), most=1)
    frame = b"SEND\n\nabc\0"
    assert [item.body for item in parser.feed(b"SEND\n\nab\0" + frame) if isinstance(item, Frame)] == [b"ab"]
    assert parser.buffered == len(frame)
    parser.limits = FrameLimits(body=3)
    assert [item.body for item in parser.feed(b"") if isinstance(item, Frame)] == [b"abc"]
    parser.limits = FrameLimits(body=2)
    with pytest.raises(ProtocolError):
        parser.feed(frame)


# After login.


class Session:
    def __init__(self) -> None:
        self.held = 0
        self.ended: list[str] = []
        self.budget: HeldMemory

    def end(self, reason: str) -> None:
        self.ended.append(reason)
        self.budget.note(self, 0)


def test_who_holds_most_is_ended_when_all_together_hold_too_much() -> None:
    sessions = [Session() for _ in range(4)]
    budget = HeldMemory(100, lambda: sessions)
    for session, held in zip(sessions, (10, 40, 30, 20), strict=True):
        session.budget = budget
        budget.note(session, held)
    assert not any(session.ended for session in sessions)
    budget.note(sessions[0], 11)
    assert [bool(session.ended) for session in sessions] == [False, True, False, False]
    assert (budget.total, sessions[1].ended[0]) == (
        61, "the connections together hold more than 100 bytes, and this one most: 40")


async def leave(turns: Turns, size: int) -> None:
    """Work is done, and who may begin does."""
    turns.leave(size)
    for _ in range(6):
        await asyncio.sleep(0)


async def test_large_frames_take_turns() -> None:
    turns = Turns(100)
    assert turns.enter(TurnTaker(), 1_000) is None, "one is let in, however large"
    waiting = [turns.enter(TurnTaker(), size) for size in (60, 60, 30)]
    await leave(turns, 1_000)
    assert [each is not None and each.done() for each in waiting] == [True, False, False], "first come, first served"
    second = waiting[1]
    assert second is not None
    second.set_result(False)  # its client has gone
    turns.admit()
    assert [each is not None and each.done() for each in waiting] == [True, True, True]
    await leave(turns, 60)
    await leave(turns, 30)
    assert turns.enter(TurnTaker(), 100) is None


async def test_who_has_had_little_has_its_turn_before_who_has_had_much() -> None:
    turns = Turns(100)
    greedy, modest, late = TurnTaker(), TurnTaker(), TurnTaker()

    async def served(*asked: TurnTaker) -> list[TurnTaker]:
        """Whose work begins, one piece after the other, when all is asked for while another piece is under way."""
        waiting = [(worker, turns.enter(worker, 100)) for worker in asked]
        order: list[TurnTaker] = []
        while len(order) < len(asked):
            await leave(turns, 100)
            order += [worker for worker, turn in waiting if turn is not None and turn.done()]
            waiting = [(worker, turn) for worker, turn in waiting if turn is not None and not turn.done()]
        return order

    assert turns.enter(greedy, 100) is None
    assert await served(greedy, greedy, greedy, modest, modest) == [modest, greedy, modest, greedy, greedy]
    # Who comes later begins where the others are: what it did not use before is not saved up for it.
    assert await served(late, modest, late, late, modest) == [late, modest, late, modest, late]


async def test_between_large_pieces_of_work_what_has_come_is_read() -> None:
    turns, read = Turns(100), []

    async def client() -> None:
        for _ in range(3):  # its bytes have come, its session wakes, its command is applied
            await asyncio.sleep(0)
        read.append(True)

    turns.enter(TurnTaker(), 100)
    waiting = turns.enter(TurnTaker(), 100)
    task = asyncio.create_task(client())
    turns.leave(100)
    assert waiting is not None and await waiting and read == [True]
    await task


async def test_what_brings_many_messages_takes_turns_with_large_frames(tmp_path: Path) -> None:
    config = Config("n1", "standalone", str(tmp_path), port=0, passcode="secret-word")
    broker = ReferenceBroker(config, RealRuntime(config))
    await broker.start()
    sizes: list[int] = []
    enter = broker.turns.enter

    def noted(worker: TurnTaker, size: int) -> asyncio.Future[bool] | None:
        sizes.append(size)
        return enter(worker, size)

    broker.turns.enter = noted  # type: ignore[method-assign]
    client = await under_attack.subscribed(broker.port, 30)
    topic = {"destination": client.topic}  # type: ignore[attr-defined]
    client.send("SEND", topic, b"x")
    client.send("BEGIN", {"transaction": "t"})
    client.send("SEND", {**topic, "transaction": "t"}, b"x")
    client.send("COMMIT", {"transaction": "t"})
    client.send("SEND", {"destination": "/queue/q"}, b"x" * 5_000)
    client.send("SEND", {"destination": "/queue/q", "receipt": "last"}, b"x")
    for _ in range(60):
        await client.expect("MESSAGE")
    await client.expect("RECEIPT")
    assert sizes == [1 + 31 * 4096, 32 * 4096, 5_000 + 4096]
    client.abort()
    await broker.stop()


async def test_halves_of_frames_count_and_the_greediest_connection_goes(start_broker: Start) -> None:
    broker = start_broker(max_memory=2 * MIB)
    honest = await RawClient.connect(broker.port)
    greedy = [await RawClient.connect(broker.port) for _ in range(3)]
    for client, size in zip(greedy, (600_000, 900_000, 700_000), strict=True):
        client.writer.write(b"SEND\ndestination:/queue/q\ncontent-length:4000000\n\n" + b"x" * size)
    assert "hold more than 2097152 bytes, and this one most" in (await greedy[1].refused()).headers["message"]
    await honest.confirmed("SEND", {"destination": "/queue/q"}, b"x" * 100_000)
    for client in (greedy[0], greedy[2]):
        client.writer.write(b"x")
        await client.writer.drain()
        assert not client.reader.at_eof()


async def test_a_message_to_many_subscriptions_of_one_connection_is_not_built_many_times(start_broker: Start) -> None:
    broker = start_broker()
    before = under_attack.most_memory(broker)
    client = await under_attack.subscribed(broker.port, 300)
    client.send("SEND", {"destination": client.topic}, b"x" * (4 * MIB))  # type: ignore[attr-defined]
    await client.writer.drain()
    await works(broker.port)
    assert under_attack.most_memory(broker) - before < 100 * MIB, "it is 1.2 GB in all"
    for _ in range(9):  # three fit into the connection's window; each acknowledgement brings another one
        message = await client.expect("MESSAGE")
        assert len(message.body) == 4 * MIB
        client.send("ACK", {"id": message.headers["ack"]})


async def test_a_client_that_takes_its_leave_gets_what_was_made_for_it_before(start_broker: Start) -> None:
    broker = start_broker()
    client = await RawClient.connect(broker.port)
    for name in ("a", "b"):
        client.send("SUBSCRIBE", {"id": name, "destination": "/topic/t", "ack": "client"})
    client.send("SEND", {"destination": "/topic/t"}, b"x" * (3 * MIB))
    client.send("DISCONNECT", {"receipt": "bye"})
    assert [len((await client.expect("MESSAGE")).body) for _ in range(2)] == [3 * MIB] * 2
    assert (await client.expect("RECEIPT")).headers["receipt-id"] == "bye"
    await client.closed()


class World:
    """An engine with clients that hold subscriptions; the same commands are given to a second one, and to a third that
    is made of the rows of the first now and then, as a replica is."""

    def __init__(self, folder: Path, **limits: int) -> None:
        self.limits = Limits(**limits)
        runtimes = [RealRuntime(config) for config in (_Program(str(folder / name)) for name in ("a", "b"))]
        self.databases = [runtime.open_database("x") for runtime in runtimes]
        self.engines = [StoreEngine(database, self.limits) for database in self.databases]

    def do(self, kind: str, conn: str, **args: object) -> list[Effect]:
        found = [engine.apply(Command(kind, conn, 0, args)) for engine in self.engines]
        assert found[0] == found[1]
        return found[0]

    def replace(self) -> None:
        """The second engine gets the state of the first anew."""
        for database in self.databases:
            database.execute("BEGIN")
        self.engines[1].load(list(self.engines[0].dump()))
        for database in self.databases:
            database.execute("COMMIT")


class _Program:
    def __init__(self, data: str) -> None:
        self.data, self.options = data, {"seed": 1}


def refusal(effects: list[Effect]) -> str:
    return next((effect.reason for effect in effects if isinstance(effect, Refused)), "")


def test_the_window_of_a_connection_holds_on_every_replica_alike(tmp_path: Path) -> None:
    world = World(tmp_path, max_window=1_000)
    world.do("open", "c", reliable=False, login="x")
    for name in "abcdef":
        world.do("subscribe", "c", id=name, destination="/topic/t", ack="client-individual", prefetch=9)
    taken = [each for each in world.do("send", "c", destination="/topic/t", headers={}, body=b"x" * 400)
             if isinstance(each, Deliver)]
    assert [each.subscription for each in taken] == ["a", "b", "c"]
    assert world.do("send", "c", destination="/topic/t", headers={}, body=b"y")[1:] == []
    world.replace()
    order = []
    while taken:
        order.append(taken[0].subscription + taken[0].body[:1].decode())
        taken = taken[1:] + [each for each in world.do("ack", "c", id=taken[0].ack_id) if isinstance(each, Deliver)]
        world.replace()
    assert sorted(order) == sorted(f"{name}{body}" for name in "abcdef" for body in "xy")
    assert world.engines[0].depths() == {}


def test_open_transactions_share_a_bound_and_who_holds_little_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, max_open_bytes=1_000, max_transaction_bytes=600)
    for conn in ("greedy", "more", "honest", "last"):
        world.do("open", conn, reliable=False, login="x")
        world.do("begin", conn, tx="t", xid=f"xid-{conn}")

    def send(conn: str, size: int) -> str:
        return refusal(world.do("send", conn, destination="/queue/q", headers={}, body=b"x" * size, tx="t"))

    assert (send("greedy", 600), send("more", 400)) == ("", "")
    world.replace()
    assert send("honest", 200) == "", "its share is a quarter of all"
    assert send("honest", 100) == "the broker's open transactions hold their limit of 1000 bytes"
    # A prepared branch holds what it held; one that ended holds nothing.
    world.do("prepare", "greedy", tx="t")
    world.replace()
    assert send("last", 300) == "the broker's open transactions hold their limit of 1000 bytes"
    world.do("open", "new", reliable=False, login="x")
    world.do("commit", "new", xid="xid-greedy")
    world.do("begin", "new", tx="t")
    assert send("new", 500) == ""
    assert "may hold 600 bytes" in send("new", 101)


def test_one_command_brings_a_bounded_number_of_messages(tmp_path: Path) -> None:
    world = World(tmp_path, max_fanout=5, max_connection_backlog=6)
    world.do("open", "c", reliable=False, login="x")
    world.do("open", "d", reliable=False, login="x")
    for name in "abc":
        world.do("subscribe", "c", id=name, destination="/topic/t", ack="client", prefetch=1)
    world.do("begin", "d", tx="t")
    for _ in range(2):
        world.do("send", "d", destination="/topic/t", headers={}, body=b"", tx="t")
    assert refusal(world.do("commit", "d", tx="t")) == "a command may bring 5 messages into being"
    # And what waits for all of a connection's subscriptions is bounded, too.
    world.do("open", "e", reliable=False, login="x")
    assert [refusal(world.do("send", "e", destination="/topic/t", headers={}, body=b"")) for _ in range(2)] == [""] * 2
    world.replace()
    effects = world.do("send", "e", destination="/topic/t", headers={}, body=b"")
    assert refusal(effects) == "the subscriptions to topics hold more than 6 messages"
    assert [effect.conn for effect in effects if isinstance(effect, Refused)] == ["c"]


# The administrator's.


@pytest.mark.parametrize("body", [
    b"[" * 100_000, b"{\"a\":" * 50_000, b"9" * 10_000, b"\xff", b"",
    *(json.dumps({"name": "n4", "link": ["h", 1], "client": "h:1", **wrong}).encode() for wrong in (
        {"name": "\ud800"}, {"name": "n" * 300}, {"link": ["h", -1]}, {"link": ["h", 1 << 70]}, {"link": ["a b", 1]},
        {"link": ["h\0", 1]}, {"client": "h\n:1"})),
])
async def test_a_replica_that_none_can_be_is_refused_in_one_line(shared_broker: BrokerProcess, body: bytes) -> None:
    client = await RawClient.connect(shared_broker.port, x_admin="true")
    client.send("SEND", {"destination": "/admin/add-replica"}, body)
    message = (await client.refused()).headers["message"]
    assert message.startswith("SEND: ") and "\n" not in message
    await works(shared_broker.port)


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", [name for name in ATTACKS if name != QUIET])
def test_an_honest_client_is_served_in_100_ms_while_others_attack(name: str) -> None:
    found = under_attack.run(name, 60.0, Path("/dev/shm") / f"stormproof-{name}")
    assert under_attack.at(found.receipts, 0.99) < 100 and found.refused == 0, found.line()


async def test_the_honest_client_of_the_soak_test_is_served(start_broker: Start) -> None:
    broker = start_broker()
    attackers = asyncio.create_task(under_attack.attack("deep-json", broker.port))
    found = await under_attack.measure("deep-json", broker.port, 1.0)
    attackers.cancel()
    assert len(found.receipts) > 2 and found.logins and found.refused == 0
    assert found.line().startswith("| deep-json |")
