"""PostgreSQL behind the storage service: its protocol, its fence, kills of the server, and its program."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_server import PATIENCE, ROOT, PostgresServer

from nodes.reference.api import ConfigError
from nodes.reference.server.runtime import RealRuntime
from nodes.reference.storage import postmaster
from nodes.reference.storage.client import StorageClient
from nodes.reference.storage.config import StorageConfig, read_storage_config
from nodes.reference.storage.database import RowStore, StoredRows, StoreLostError, StoreTakenError
from nodes.reference.storage.postgres import PostgresConnection, PostgresError, PostgresLostError, Statement, number
from nodes.reference.storage.postgres_store import PostgresStore
from nodes.reference.storage.protocol import PAGE_BYTES, FencedError, OutOfOrderError, StorageError, TableChange

pytestmark = pytest.mark.requirement("F6", part=True)


async def opened(server: PostgresServer, log: io.StringIO | None = None) -> PostgresStore:
    store = server.store(RealRuntime(server.config, log or io.StringIO()))
    async with asyncio.timeout(PATIENCE):
        await store.open()
    return store


async def committed(store: RowStore, epoch: int, sequence: int, *changes: TableChange) -> None:
    store.begin()
    store.commit(epoch, sequence, changes)
    await store.finish()


async def rows_of(store: RowStore, epoch: int, table: str) -> list[list[Any]]:
    found: list[list[Any]] = []
    more = True
    while more:
        page, more = await store.page(epoch, table, found[-1][0] if found else None)
        found += page
    return found


# The protocol.


async def test_who_does_not_know_the_password_is_refused(postgres: PostgresServer) -> None:
    with pytest.raises(PostgresError, match="password authentication failed"):
        await postgres.connection(password="guess").open()


async def test_statements_are_one_transaction_and_values_come_back(postgres: PostgresServer) -> None:
    connection = postgres.connection()
    await connection.open()
    await connection.run([Statement("DROP TABLE IF EXISTS t"), Statement("CREATE TABLE t (a bigint, b bytea, c text)")])
    await connection.run([Statement("INSERT INTO t VALUES ($1, $2, $3)", (-(1 << 63), b"\0\xff", "é'\\")),
                          Statement("INSERT INTO t SELECT * FROM unnest($1::bigint[], $2::bytea[])",
                                    ([1, (1 << 63) - 1], [b"", b"x" * 100_000]))])
    ((found,),) = [await connection.run([Statement("SELECT a, b, c FROM t ORDER BY a")])]
    assert [(number(a), len(b), c) for a, b, c in found] == [
        (-(1 << 63), 2, "é'\\".encode()), (1, 0, None), ((1 << 63) - 1, 100_000, None)]
    with pytest.raises(PostgresError, match="division by zero") as error:
        await connection.run([Statement("DELETE FROM t"), Statement("SELECT 1 / 0"), Statement("DELETE FROM t")])
    assert error.value.code == "22012"
    with pytest.raises(PostgresError, match="syntax error"):
        await connection.run([Statement("DELETE FROM t"), Statement("nonsense")])
    ((((count,),),),) = [await connection.run([Statement("SELECT count(*) FROM t")])]
    assert number(count) == 3, "what failed is undone, and the connection goes on"
    connection.abort()
    with pytest.raises(PostgresLostError):
        await connection.run([Statement("SELECT 1")])


@pytest.mark.parametrize("answer", [
    b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I", b"R\0\0\0\x08\0\0\0\x03",
    b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0R\0\0\0\x0c\0\0\0\x0ba=b,", b"R\xff\xff\xff\xff", b"E\0\0\0\x04",
    b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0R\0\0\0\x1f\0\0\0\x0br=another,s=QQ==,i=4096",
])  # fmt: skip
async def test_who_is_no_such_server_gets_no_password(tmp_path: Path, answer: bytes) -> None:
    """Above all not one that lets everybody in, or that can't show that it knows the password."""
    heard = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        while data := await reader.read(1000):
            heard.extend(data)
            if len(heard) > 5000:
                break

    stranger = await asyncio.start_server(serve, "127.0.0.1", 0)
    runtime = RealRuntime(StorageConfig(str(tmp_path), "127.0.0.1", 1, ("a",)), io.StringIO())
    connection = PostgresConnection(runtime, stranger.sockets[0].getsockname()[1], "storage", "s3cret", 1.0)
    with pytest.raises((PostgresError, PostgresLostError)):
        await connection.open()
    assert b"s3cret" not in heard
    stranger.close()


async def test_a_server_that_is_silent_costs_the_deadline(tmp_path: Path) -> None:
    silent = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(60), "127.0.0.1", 0)
    runtime = RealRuntime(StorageConfig(str(tmp_path), "127.0.0.1", 1, ("a",)), io.StringIO())
    connection = PostgresConnection(runtime, silent.sockets[0].getsockname()[1], "storage", "s3cret", 0.1)
    with pytest.raises(PostgresLostError, match="no answer in time"):
        await connection.open()
    silent.close()


# The store.


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.one_of(
    st.tuples(st.just("claim"), st.integers(1, 3), st.sampled_from("ab")),
    st.tuples(st.just("commit"), st.integers(1, 3), st.integers(1, 4)),
    st.tuples(st.just("restart"), st.just(0), st.just(0))), max_size=12))  # fmt: skip
def test_it_does_what_the_embedded_one_does(postgres: PostgresServer, steps: list[tuple[str, int, Any]]) -> None:
    async def both() -> None:
        await postgres.empty()
        ours = await opened(postgres)
        model = StoredRows(sqlite3.connect(":memory:", isolation_level=None))
        for place, (step, first, second) in enumerate(steps):
            if step == "restart":
                ours = await opened(postgres)
                continue
            at = second if step == "commit" else 0
            change = TableChange("t", [(at, place), (place + 10, b"x", None, "y")], [at - 1, place + 9])
            told: list[Any] = []
            stores: tuple[RowStore, RowStore] = (ours, model)
            for store in stores:
                store.begin()
                try:
                    if step == "claim":
                        told.append(store.claim(first, second))
                    else:
                        store.commit(first, second, [change])
                        told.append("done")
                except (FencedError, OutOfOrderError) as error:
                    told.append(str(error))
                await store.finish()
            assert told[0] == told[1]
            assert (ours.epoch, ours.holder, ours.applied) == (model.epoch, model.holder, model.applied)
        ours = await opened(postgres)
        assert (ours.epoch, ours.holder, ours.applied) == (model.epoch, model.holder, model.applied)
        assert await rows_of(ours, ours.epoch, "t") == await rows_of(model, model.epoch, "t")
        ours._drop()

    asyncio.run(both())


async def test_rows_are_read_page_by_page(postgres: PostgresServer) -> None:
    await postgres.empty()
    store = await opened(postgres)
    store.begin()
    store.claim(1, "a")
    body = bytes(PAGE_BYTES // 3)
    await committed(store, 1, 1, TableChange("t", [(key, body) for key in (5, -2, 3, 9)], []),
                    TableChange("u\0", [(1, None)], []))
    await committed(store, 1, 2, TableChange("t", [], [3, 77]), TableChange("w", [(key, 0) for key in range(2500)], []))
    page, more = await store.page(1, "t", None)
    assert [row[0] for row in page] == [-2, 5] and more
    page, more = await store.page(1, "t", 5)
    assert [row[0] for row in page] == [9] and not more
    assert await store.page(1, "u\0", None) == ([[1, None]], False)
    assert [row[0] for row in await rows_of(store, 1, "w")] == list(range(2500))
    store.begin()
    store.commit(1, 3, [TableChange("u\0", [(2, 2)], [1])])
    assert await store.page(1, "u\0", None) == ([[2, 2]], False), "what was asked for before is seen"
    highest = (1 << 63) - 1
    await committed(store, 1, 4, TableChange("e", [(highest, 1), (-highest - 1, 2), (0, bytes(2 * PAGE_BYTES))], []))
    assert [row[0] for row in await rows_of(store, 1, "e")] == [-highest - 1, 0, highest]
    with pytest.raises(FencedError):
        await store.page(2, "t", None)
    store._drop()


async def test_a_service_that_was_replaced_changes_nothing(postgres: PostgresServer) -> None:
    """The fence is in the statement: the old one need not know."""
    await postgres.empty()
    old = await opened(postgres)
    old.begin()
    old.claim(1, "a")
    await committed(old, 1, 1, TableChange("t", [(1, "old")], []))
    new = await opened(postgres)
    assert (new.epoch, new.holder, new.applied) == (1, "a", 1)
    with pytest.raises(StoreTakenError):
        await committed(old, 1, 2, TableChange("t", [(1, "late")], []))
    await committed(new, 1, 2, TableChange("t", [(2, "new")], []))
    assert await rows_of(new, 1, "t") == [[1, "old"], [2, "new"]]
    with pytest.raises(StoreLostError):
        await committed(old, 1, 3)
    new._drop()


# The programs.


async def test_a_server_that_is_killed_in_the_middle_loses_nothing_that_was_confirmed(postgres: PostgresServer) -> None:
    """kill -9 of the postmaster, twice, and of the service: what was confirmed is there, and it goes on."""
    await postgres.empty()
    log = postgres.path.with_name("service.log")
    confirmed = applied = kills = 0
    service: subprocess.Popen[bytes] | None = None
    friend = StorageClient(RealRuntime(postgres.config, io.StringIO()), "a", ("127.0.0.1", postgres.config.port),
                           cluster=postgres.config.cluster, secret="s", deadline=20.0)

    async def write(number: int) -> None:
        nonlocal confirmed
        await friend.commit(1, number, [TableChange("t", [(number, "x" * 100)], [])])
        confirmed = max(confirmed, number)

    try:
        for victim in ("postmaster", "service", "postmaster", None):
            if service is None or service.poll() is not None:
                with log.open("ab") as output:
                    service = subprocess.Popen([sys.executable, "-m", "nodes.reference.storage", str(postgres.path)],
                                               cwd=ROOT, stdout=output, stderr=output)
            async with asyncio.timeout(PATIENCE):
                while True:
                    applied, rows = await until_read(friend)
                    # Processes of the server live on for a moment when the postmaster is dead.
                    if log.read_text().count("database open") == kills:
                        break
            assert applied >= confirmed
            assert rows == list(range(1, applied + 1)), "all of what was applied, and nothing else"
            if victim is None:
                break
            writes = [asyncio.create_task(write(applied + number)) for number in range(1, 400)]
            async with asyncio.timeout(PATIENCE):
                while confirmed < applied + 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            if victim == "service":
                service.send_signal(signal.SIGKILL)
                service.wait()
            else:
                kills += 1
                postgres.kill()
                await asyncio.to_thread(postgres.start)
            await asyncio.gather(*writes, return_exceptions=True)
    finally:
        friend.close()
        if service is not None:
            service.kill()
            service.wait()


async def until_read(friend: StorageClient) -> tuple[int, list[int]]:
    """What is applied, and the keys that are stored, as soon as somebody tells."""
    while True:
        try:
            applied = await friend.claim(1)
            return applied, [row[0] async for page in friend.read(1, "t") for row in page]
        except StorageError:
            await asyncio.sleep(0.05)


def test_the_server_is_nobody_s_root_and_its_password_nobody_else_s(postgres: PostgresServer) -> None:
    assert postgres.process is not None
    status = Path(f"/proc/{postgres.process.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert int(fields["CapEff"], 16) == 0 or fields["NSpid"] != fields["Pid"] or "0" not in fields["Uid"].split()[:2]
    assert postmaster.password_file(postgres.config).stat().st_mode & 0o037 == 0
    assert postgres.password() not in postgres.log.read_text()


def test_a_second_server_in_the_same_folder_is_refused(postgres: PostgresServer, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(postmaster, "_CHILDREN_SECONDS", 0.1)
    path = tmp_path / "storage.json"
    path.write_text(json.dumps(postgres.settings | {"database_port": postgres.config.database_port + 1}))
    found = postmaster.Postmaster(read_storage_config(path))
    with pytest.raises(ConfigError, match="another database server"):
        found._lock()


@pytest.mark.parametrize(("changes", "told"), [
    ({"store": "oracle"}, "store: 'oracle' is none of sqlite, postgres"), ({"database_port": 0}, "database_port: 0"),
    ({"store": "sqlite"}, "a database server is for")])  # fmt: skip
def test_a_configuration_that_makes_no_sense_gets_one_line(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    content = {"data": str(tmp_path / "d"), "host": "127.0.0.1", "port": 5, "clients": ["a"], "store": "postgres"}
    path = tmp_path / "storage.json"
    path.write_text(json.dumps(content | changes))
    done = subprocess.run([sys.executable, "-m", "nodes.reference.storage.postmaster", str(path)], cwd=ROOT,
                          capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 3 and done.stderr.count("\n") == 1 and told in done.stderr, done.stderr


def test_where_it_is_not_installed_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postmaster, "_PLACES", ())
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="install Debian's package"):
        postmaster.programs()
