"""The storage service: its fence, its database, deadlines of its clients, and the program."""

from __future__ import annotations

import asyncio
import io
import json
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loopback import free_ports
from postgres_server import PostgresServer

from nodes.reference.api import Command, ConfigError
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.replication.handshake import MAX_FRAME, Handshake, encode_frame
from nodes.reference.server.runtime import RealRuntime
from nodes.reference.storage import service as service_module
from nodes.reference.storage.client import StorageClient
from nodes.reference.storage.config import StorageConfig, parse_storage_config
from nodes.reference.storage.database import StoredRows
from nodes.reference.storage.protocol import (
    PAGE_BYTES,
    PROTOCOL,
    SERVICE,
    FencedError,
    OutOfOrderError,
    StorageError,
    StorageUnavailableError,
    TableChange,
)
from nodes.reference.storage.service import StorageService
from nodes.reference.storage.shared_state import SharedState

ROOT = Path(__file__).resolve().parents[2]


# The database.


@given(st.lists(st.one_of(
    st.tuples(st.just("claim"), st.integers(1, 4), st.sampled_from("ab")),
    st.tuples(st.just("commit"), st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
)))
def test_the_fence_is_what_the_protocol_says(steps: list[tuple[str, int, Any]]) -> None:
    """Against a model: who holds which epoch, which commits count, what is stored; a restart changes nothing."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    stored = StoredRows(database)
    epoch, holder, applied, rows = 0, "", 0, {}
    for number, (step, first, second) in enumerate(steps):
        stored.begin()
        if step == "restart":
            stored.end()
            stored = StoredRows(database)
            continue
        if step == "claim":
            allowed = first > epoch or (first, second) == (epoch, holder)
            if allowed:
                epoch, holder, applied = first, second, applied if first == epoch else 0
                assert stored.claim(first, second) == applied
            else:
                with pytest.raises(FencedError):
                    stored.claim(first, second)
        else:
            change = TableChange("t", [(second, number)], [])
            if first != epoch:
                with pytest.raises(FencedError):
                    stored.commit(first, second, [change])
            elif second > applied + 1:
                with pytest.raises(OutOfOrderError):
                    stored.commit(first, second, [change])
            else:
                stored.commit(first, second, [change])
                if second == applied + 1:
                    applied, rows[second] = second, number
        stored.end()
    assert (stored.epoch, stored.holder, stored.applied) == (epoch, holder, applied)
    assert stored.read(epoch, "t", None) == ([[key, rows[key]] for key in sorted(rows)], False)


def test_rows_are_read_page_by_page_in_order_of_their_keys() -> None:
    stored = StoredRows(sqlite3.connect(":memory:", isolation_level=None))
    stored.begin()
    stored.claim(1, "a")
    body = bytes(PAGE_BYTES // 3)
    stored.commit(1, 1, [TableChange("t", [(key, body) for key in (5, -2, 3, 9)], []),
                         TableChange("u", [(1, None)], [])])
    stored.commit(1, 2, [TableChange("t", [], [3, 77])])
    stored.end()
    page, more = stored.read(1, "t", None)
    assert [row[0] for row in page] == [-2, 5] and more
    assert [row[0] for row in stored.read(1, "t", 5)[0]] == [9]
    assert stored.read(1, "u", None) == ([[1, None]], False)
    with pytest.raises(FencedError):
        stored.read(2, "t", None)


def test_a_page_has_as_many_rows_as_it_may() -> None:
    stored = StoredRows(sqlite3.connect(":memory:", isolation_level=None), page_rows=2)
    stored.begin()
    stored.claim(1, "a")
    stored.commit(1, 1, [TableChange("t", [(key, key * key) for key in range(1, 6)], []),
                         TableChange("u", [(7, None)], [])])
    stored.end()
    assert stored.read(1, "t", None) == ([[1, 1], [2, 4]], True)
    assert stored.read(1, "t", 2) == ([[3, 9], [4, 16]], True)
    assert stored.read(1, "t", 4) == ([[5, 25]], False)
    assert stored.rows() == {"t": {key: [key * key] for key in range(1, 6)}, "u": {7: [None]}}


# The service and its clients.


class Kind:
    """A kind of database behind the service."""

    def __init__(self, server: PostgresServer | None) -> None:
        self._server = server

    @asynccontextmanager
    async def service(self, folder: Path, secret: str = "s") -> AsyncIterator[tuple[StorageConfig, io.StringIO]]:
        """A service on loopback, and its log."""
        config = StorageConfig(str(folder), "127.0.0.1", *free_ports(1), clients=("a", "b"), secret=secret)
        log = io.StringIO()
        runtime = RealRuntime(config, log)
        store = self._server.store(runtime) if self._server is not None else None
        running = asyncio.create_task(StorageService(config, runtime, store).run())
        while "listening" not in log.getvalue():  # noqa: ASYNC110 - nobody can set an event here
            await asyncio.sleep(0.01)
        try:
            yield config, log
        finally:
            running.cancel()
            await asyncio.wait([running])


@pytest.fixture(params=["sqlite", "postgres"])
async def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of database, empty."""
    if request.param == "sqlite":
        return Kind(None)
    server: PostgresServer = request.getfixturevalue("postgres")
    await server.empty()
    return Kind(server)


def client(config: StorageConfig, name: str = "a", secret: str = "s", deadline: float = 2.0) -> StorageClient:
    """A client of it."""
    runtime = RealRuntime(config, io.StringIO())
    return StorageClient(runtime, name, (config.host, config.port), secret=secret, deadline=deadline)


async def test_the_newest_epoch_writes_and_older_ones_are_fenced(tmp_path: Path, kind: Kind) -> None:
    async with kind.service(tmp_path) as (config, _):
        old, new = client(config), client(config, "b")
        assert await old.claim(1) == 0
        await asyncio.gather(*(old.commit(1, n, [TableChange("t", [(n, f"{n}")], [])]) for n in range(1, 50)))
        await old.commit(1, 49, [TableChange("t", [], [1])])  # applied before, so nothing is removed
        with pytest.raises(OutOfOrderError):
            await old.commit(1, 51, [])
        assert await new.claim(2) == 0
        assert [row async for page in new.read(2, "t") for row in page] == [[n, f"{n}"] for n in range(1, 50)]
        for refused in (old.commit(1, 50, []), old.claim(1), old.claim(2)):
            with pytest.raises(FencedError):
                await refused
        state = await old.state()
        assert (state.epoch, state.holder, state.applied) == (2, "b", 0) and state.idle < 60
        old.close()
        new.close()


async def test_what_an_earlier_connection_still_sends_is_fenced(tmp_path: Path, kind: Kind) -> None:
    async with kind.service(tmp_path) as (config, _):
        before, after = client(config), client(config)
        with pytest.raises(FencedError):
            await before.commit(1, 1, [])
        await before.claim(1)
        assert await after.claim(1) == 0
        with pytest.raises(FencedError):
            await before.commit(1, 1, [TableChange("t", [(1, "late")], [])])
        await after.commit(1, 1, [TableChange("t", [(1, "new")], [])])
        assert [row async for page in after.read(1, "t") for row in page] == [[1, "new"]]
        before.close()
        after.close()


async def test_who_is_not_meant_is_refused_and_told_once(tmp_path: Path, kind: Kind) -> None:
    async with kind.service(tmp_path) as (config, log):
        with pytest.raises(StorageError, match="has another secret"):
            await client(config, secret="other").state()
        for _ in range(3):
            with pytest.raises(StorageUnavailableError):
                await client(config, "stranger").state()
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, encode_frame(["x"] * 4)):
            _, writer = await asyncio.open_connection(config.host, config.port)
            writer.write(garbage)
            writer.close()
        friend = client(config)
        assert await friend.claim(1) == 0, "the service goes on"
        friend.close()
    assert log.getvalue().count("'stranger' isn't expected here") == 1


@pytest.mark.parametrize("request_", [
    ("claim", 0), ("claim", True), ("claim", "1"), ("commit", 1, 0, []), ("commit", 1, 1, [["t", [[]], []]]),
    ("commit", 1, 1, [["t", [["key"]], []]]), ("commit", 1, 1, {}), ("read", 1, 5, None), ("nonsense",), (7,),
])
async def test_a_malformed_request_is_refused_and_changes_nothing(
    tmp_path: Path, request_: tuple[Any, ...], kind: Kind
) -> None:
    async with kind.service(tmp_path) as (config, _):
        friend = client(config)
        await friend.claim(1)
        with pytest.raises(StorageError, match=r"no such request|changes are malformed"):
            await friend._ask(*request_)
        assert (await friend.state())[:3] == (1, "a", 0)
        friend.close()


async def test_no_answer_costs_the_deadline_and_no_more(tmp_path: Path, kind: Kind) -> None:
    """A service that takes connections and is silent, one that is not there, one that comes back."""
    silent = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(60), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    nobody = client(StorageConfig(str(tmp_path), "127.0.0.1", port, ("a",)), deadline=0.2)
    loop = asyncio.get_running_loop()
    began = loop.time()
    asked = [asyncio.create_task(nobody.state()) for _ in range(3)]
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(each, StorageUnavailableError) for each in done), done
    assert loop.time() - began < 5, "all waited together"
    silent.close()
    with pytest.raises(StorageUnavailableError):
        await nobody.state()
    async with kind.service(tmp_path, secret="s") as (config, _):
        friend = client(config)
        await friend.claim(3)
        friend.close()
        assert await friend.claim(3) == 0, "it connects again"
        friend.close()


async def test_an_engine_is_taken_over_whole(tmp_path: Path, kind: Kind) -> None:
    """Random commands on one broker; another one takes over and has the same state, and the first is fenced."""
    chance = random.Random(7)
    async with kind.service(tmp_path) as (config, _):
        first, second = Working(client(config)), Working(client(config, "b"))
        await first.state.take_over(1)
        await first.do("open", reliable=True, login="g")
        for number in range(200):
            await first.do("send", destination=f"/queue/q{chance.randrange(3)}", headers={"n": str(number)}, body=b"x")
        await first.do("subscribe", id="s", destination="/queue/q1", ack="client", prefetch=20)
        commits = [first.start("send", destination="/queue/q2", headers={}, body=b"y") for _ in range(50)]
        await asyncio.gather(*commits)
        await second.state.take_over(2)
        assert list(second.engine.dump()) == list(first.engine.dump())
        lost = [first.start("send", destination="/queue/q2", headers={}, body=b"z") for _ in range(3)]
        assert all(isinstance(each, StorageError) for each in await asyncio.gather(*lost, return_exceptions=True))
        assert not first.state.epoch
        await first.state.take_over(3)
        assert list(second.engine.dump()) == list(first.engine.dump()), "what was refused is gone from memory too"
        for each in (first, second):
            each.client.close()


async def test_a_client_that_does_not_read_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """Answers that nobody reads don't pile up in the service."""
    monkeypatch.setattr(service_module, "MAX_UNSENT_BYTES", 1 << 20)
    async with kind.service(tmp_path) as (config, _):
        friend = client(config)
        await friend.claim(1)
        await friend.commit(1, 1, [TableChange("t", [(n, bytes(PAGE_BYTES - 100)) for n in range(4)], [])])
        reader, writer = await asyncio.open_connection(config.host, config.port, limit=1 << 10)
        handshake = Handshake(PROTOCOL, config.cluster, "b", config.secret, random.Random())
        await handshake.dial(reader, writer, SERVICE)
        writer.transport.pause_reading()
        with pytest.raises(OSError, match=r"reset|[Bb]roken|lost"):
            for number in range(5_000):
                writer.write(encode_frame([number, "read", 1, "t", None]))
                await writer.drain()
                await asyncio.sleep(0 if number < 500 else 0.01)
        assert (await friend.state()).applied == 1, "the service goes on for others"
        friend.close()


async def test_the_ends_of_numbers_and_sizes(tmp_path: Path, kind: Kind) -> None:
    """The highest key has none above it; what is too big for a frame is refused before it is sent."""
    async with kind.service(tmp_path) as (config, _):
        friend = client(config, deadline=20)
        await friend.claim(1)
        highest = (1 << 63) - 1
        await friend.commit(1, 1, [TableChange("t", [(highest, 1), (-highest - 1, 2)], [])])
        assert await friend._ask("read", 1, "t", highest) == [[], False]
        assert [row async for page in friend.read(1, "t") for row in page] == [[-highest - 1, 2], [highest, 1]]
        with pytest.raises(StorageError, match="can't be sent"):
            await friend.commit(1, 2, [TableChange("t", [(1, bytes(MAX_FRAME))], [])])
        await friend.commit(1, 2, [])
        friend.close()


async def test_no_epoch_is_taken_twice(tmp_path: Path, kind: Kind) -> None:
    """A commit of the first time could still be on its way, and stand for another one of the second time."""
    async with kind.service(tmp_path) as (config, _):
        one = Working(client(config))
        await one.state.take_over(1)
        await one.do("open", reliable=True, login="g")
        with pytest.raises(FencedError):
            await one.state.take_over(1)
        assert not one.state.epoch
        restarted = Working(client(config))
        with pytest.raises(FencedError):
            await restarted.state.take_over(1)
        await restarted.state.take_over(2)
        for each in (one, restarted):
            each.client.close()


async def test_what_follows_a_lost_store_is_not_sent(tmp_path: Path, kind: Kind) -> None:
    """A commit that was asked for before the store was lost fails, even if the service would take it; and an old
    question does not give up what was taken over since."""
    async with kind.service(tmp_path) as (config, _):
        one, other = Working(client(config)), client(config, "b")
        await one.state.take_over(1)
        late = one.start("open", reliable=True, login="g")
        one.state.let_go()
        with pytest.raises(StorageError, match="no longer held"):
            await late
        assert (await other.state()).applied == 0
        await one.state.take_over(2)
        asked = asyncio.create_task(one.state.renew())
        await asyncio.sleep(0)
        one.client.close()
        await one.state.take_over(3)
        with pytest.raises(StorageError):
            await asked
        assert one.state.epoch == 3
        one.client.close()
        other.close()


class Working:
    """An engine over a working copy, and its place in the store."""

    def __init__(self, client_: StorageClient) -> None:
        self.client = client_
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        self.engine = StoreEngine(self.database)
        self.state = SharedState(client_, self.engine, self.transaction)
        self.seq = 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.database.execute("BEGIN")
        yield
        self.engine.flush()
        self.database.execute("COMMIT")

    def start(self, kind: str, **args: Any) -> asyncio.Task[None]:
        self.seq += kind != "open"
        with self.transaction():
            self.engine.apply(Command(kind, "c", self.seq, args))
        return self.state.commit()

    async def do(self, kind: str, **args: Any) -> None:
        await self.start(kind, **args)


# The program.


@pytest.mark.parametrize(("content", "wrong"), [
    ({"data": "d", "host": "h", "port": 1}, "clients: is missing"),
    ({"data": "d", "host": "h", "port": 0, "clients": ["a"]}, "port: is missing"),
    ({"data": "d", "host": "h", "port": 70000, "clients": ["a"]}, "port: 70000"),
    ({"data": "d", "host": "h", "port": "1", "clients": ["a"]}, "port: is not a whole number"),
    ({"data": "d", "host": "h", "port": 1, "clients": [1]}, "clients: is not a list of names"),
    ({"data": "d", "host": "h", "port": 1, "clients": ["a"], "colour": "red"}, "colour: unknown setting"),
    ([], "not a JSON object"),
])
def test_a_configuration_that_can_not_be_used(content: Any, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        parse_storage_config(content)


def test_the_program_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    for arguments in ([], ["nowhere.json"], [str(tmp_path / "bad.json")]):
        done = subprocess.run([sys.executable, "-m", "nodes.reference.storage", *arguments], cwd=ROOT,
                              capture_output=True, text=True, check=False)
        assert done.returncode == 3 and done.stderr.count("\n") == 1, done.stderr


async def test_what_was_confirmed_survives_kill_9(tmp_path: Path) -> None:
    """The process is killed in the middle of commits; a new one has all that were confirmed."""
    (port,) = free_ports(1)
    settings = {"data": str(tmp_path / "data"), "host": "127.0.0.1", "port": port, "clients": ["a"], "secret": "s"}
    (tmp_path / "storage.json").write_text(json.dumps(settings))
    config = parse_storage_config(settings)
    confirmed = 0

    async def write(friend: StorageClient, number: int) -> None:
        nonlocal confirmed
        await friend.commit(1, number, [TableChange("t", [(number, "x" * 100)], [])])
        confirmed = max(confirmed, number)

    for start in (1, 2):
        with subprocess.Popen([sys.executable, "-m", "nodes.reference.storage", str(tmp_path / "storage.json")],
                              cwd=ROOT, stdout=subprocess.DEVNULL) as process:  # fmt: skip
            friend = client(config)
            applied = await until_claimed(friend)
            if start == 2:
                assert applied >= confirmed
                rows = [row[0] async for page in friend.read(1, "t") for row in page]
                assert rows == list(range(1, applied + 1))
            writes = [asyncio.create_task(write(friend, applied + n)) for n in range(1, 2000)]
            while confirmed < applied + 200:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            process.send_signal(signal.SIGKILL)
            await asyncio.gather(*writes, return_exceptions=True)
            friend.close()


async def until_claimed(friend: StorageClient) -> int:
    for _ in range(200):
        try:
            return await friend.claim(1)
        except StorageUnavailableError:
            await asyncio.sleep(0.05)
    raise AssertionError("the service does not come up")
