"""The Redis client: outcomes against a server that breaks off after every byte, by what is answered, and on Redis."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from certificates import certificates
from cut_server import FAIL, INFO, Cut, every_cut, outcome, serving, until
from loopback import free_ports
from redis_script import RedisScript

from stormproof.clients import PROTOCOLS
from stormproof.clients.redis import RedisConnection
from stormproof.contracts.backend import Credentials
from stormproof.contracts.client import (
    LogConnection,
    LogEntry,
    NotDone,
    QueueConnection,
    RegisterConnection,
)
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup
from stormproof.contracts.workload_requirements import Demands

pytest.importorskip("redis")

REDIS = PROTOCOLS.load("redis")
NAMES = Demands(queues=("q0",), logs=("l0",), registers=("r0",))
ERRORS = {
    "READONLY You can't write against a read only replica.": FAIL,
    "LOADING Redis is loading the dataset in memory": FAIL,
    "NOREPLICAS Not enough good replicas to write.": FAIL,
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": FAIL,
    "OOM command not allowed when used memory > 'maxmemory'.": FAIL,
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.": FAIL,
    "BUSY Redis is busy running a script.": FAIL,
    "NOPERM this user has no permissions": FAIL,
    "MOVED 12182 127.0.0.1:6463": FAIL,
    "CLUSTERDOWN The cluster is down": FAIL,
    "ERR something else": INFO,
    "UNBLOCKED force unblock from blocking operation": INFO,
}


def setup_of(*ports: int, access: Access | None = None, **options: object) -> BrokerSetup:
    brokers = [Broker(f"n{number}", "127.0.0.1", port) for number, port in enumerate(ports, 1)]
    return BrokerSetup(brokers, access or Access(), NAMES, options)


def connection(**options: object) -> RedisConnection:
    return RedisConnection(setup_of(**options))


async def send(client: RedisConnection) -> None:
    await client.send("q0", b"1/2")


async def compare(client: RedisConnection) -> None:
    assert await client.cas("r0", None, b"1")


async def acknowledge(client: RedisConnection) -> None:
    delivery = await client.take("q0", 5.0)
    assert delivery is not None and delivery.body == b"1/2"
    await delivery.ack()


async def test_an_entry_that_was_received_never_counts_as_not_done() -> None:
    counts = await every_cut(RedisScript, connection, send, lambda script: "XADD" in script.done)
    assert counts[INFO] > 20 and counts[FAIL] > 100, counts


async def test_an_entry_counts_once_its_replicas_have_it() -> None:
    counts = await every_cut(lambda: RedisScript(seen=1), lambda: connection(wait=1), send,
                             lambda script: "XADD" in script.done)  # fmt: skip
    assert counts[INFO] > 40, counts


async def test_an_acknowledgement_counts_once_it_is_carried_out() -> None:
    counts = await every_cut(lambda: RedisScript(holds=b"1/2"), connection, acknowledge,
                             lambda script: script.done[-2:] == ["XACK", "XDEL"])  # fmt: skip
    assert counts[INFO] > 40, counts


async def test_a_value_that_was_received_never_counts_as_not_done() -> None:
    await every_cut(RedisScript, connection, compare, lambda script: "EVAL" in script.done)


@pytest.mark.parametrize(("error", "ends"), ERRORS.items())
async def test_errors(error: str, ends: str) -> None:
    async with serving(RedisScript({"XADD": error, "EVAL": error}), Cut()) as cutter:
        assert await outcome(connection(), cutter.port, send) == ends
    script_ends = INFO if error.startswith(("MOVED", "CLUSTERDOWN")) else ends
    async with serving(RedisScript({"EVAL": error}), Cut()) as cutter:
        assert await outcome(connection(), cutter.port, compare) == script_ends


@pytest.mark.parametrize("error", ["", *ERRORS])
async def test_a_write_that_too_few_replicas_have_may_have_happened(error: str) -> None:
    async with serving(RedisScript({"WAIT": error}, seen=1), Cut()) as cutter:
        assert await outcome(connection(wait=2), cutter.port, send) == INFO


async def test_a_command_of_a_transaction_that_failed() -> None:
    async with serving(RedisScript({"XDEL": "ERR wrong"}, holds=b"1/2"), Cut()) as cutter:
        assert await outcome(connection(), cutter.port, acknowledge) == INFO


async def test_a_connection_known_to_be_lost_sends_nothing_and_is_not_made_again() -> None:
    script = RedisScript()
    async with serving(script, Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "127.0.0.1")
        cutter.end()
        await until(client._wire._reader.at_eof)
        with pytest.raises(NotDone, match="closed the connection"):
            await send(client)
        await client.close()
    assert "XADD" not in script.done


async def test_replicas_let_no_client_in() -> None:
    async with serving(RedisScript(role="slave"), Cut()) as cutter:
        with pytest.raises(NotDone, match="is a slave"):
            await connection().connect("127.0.0.1", cutter.port, "")


async def test_leaders_are_masters_that_sentinels_name() -> None:
    async with serving(RedisScript(role="slave"), Cut()) as follower, serving(RedisScript(), Cut()) as master:
        setup = setup_of(follower.port, master.port)
        assert await REDIS.leaders(setup) == dict.fromkeys(("q0", "l0", "r0"), "n2")
        other = setup_of(follower.port, master.port, sentinel="any", sentinels=f"n1:{master.port}")
        assert await REDIS.leaders(other) == {}  # its answer is another port
        assert await REDIS.advertised(other) == {"n2": ("127.0.0.1", 1)}
        assert await REDIS.leaders(setup_of(master.port, master.port)) == {}  # both say so


async def test_a_connection_knows_the_node_to_which_a_sentinel_sends_it() -> None:
    async with serving(sentinel := RedisScript(), Cut()) as asked, serving(RedisScript(), Cut()) as master:
        setup = setup_of(asked.port, master.port, sentinel="any", sentinels=f"n1:{asked.port}")
        for sentinel.master_port, node in ((master.port, "n2"), (asked.port, "n1")):
            client = RedisConnection(setup)
            assert client.served_by is None
            await client.connect("127.0.0.1", asked.port, "")
            assert client.served_by == node
            await client.close()


@asynccontextmanager
async def redis_server(folder: Path, *words: str) -> AsyncIterator[int]:
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed (apt-get install redis-server)")
    (port,) = free_ports(1)
    ports = ("--port", "0", "--tls-port", str(port)) if "--tls-cert-file" in words else ("--port", str(port))
    server = subprocess.Popen(["redis-server", *ports, "--save", "", "--dir", folder, "--protected-mode", "no", *words],
                              stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            break
        yield port
    finally:
        server.kill()
        server.wait()


async def test_on_redis(tmp_path: Path) -> None:
    access = Access(Credentials("", "open-sesame"))
    async with redis_server(tmp_path, "--requirepass", "open-sesame") as port:
        setup = setup_of(port, access=access, claim_after=0.1)
        await REDIS.prepare(setup)
        await REDIS.prepare(setup)
        client = REDIS.connection(setup)
        assert isinstance(client, LogConnection) and isinstance(client, RegisterConnection)
        queue: QueueConnection = client
        await client.connect("127.0.0.1", port, "127.0.0.9")
        assert client._wire._writer.get_extra_info("sockname")[0] == "127.0.0.9"
        await queue.send("q0", b"1")
        await queue.send("q0", b"2")
        first = await queue.take("q0", 1.0)
        assert first is not None and first.body == b"1" and await queue.depth("q0") == 2
        await first.ack()
        second = await queue.take("q0", 1.0)
        assert second is not None and second.body == b"2" and await queue.depth("q0") == 1
        assert await queue.take("q0", 0.01) is None
        await client.close()

        other = REDIS.connection(setup)
        await other.connect("127.0.0.1", port, "")
        async with asyncio.timeout(10):
            while (again := await other.take("q0", 0.1)) is None:
                pass
        assert again.body == b"2"
        assert [await other.append("l0", b"a"), await other.append("l0", b"b")] == [1, 2]
        assert await other.read("l0", 1, 10) == [LogEntry(2, b"b")]
        assert await other.read("r0") is None
        assert [await other.cas("r0", None, b"1"), await other.cas("r0", None, b"2"), await other.cas("r0", b"1", b"3")
                ] == [True, False, True]  # fmt: skip
        await other.write("r0", b"\xff")
        assert await other.read("r0") == b"\xff" and await other.cas("r0", b"\xff", b"")
        assert await other.read("r0") == b"" and not await other.cas("r0", None, b"1")
        await other.close()
        assert await REDIS.leaders(setup) == dict.fromkeys(("q0", "l0", "r0"), "n1")
        assert await REDIS.clear(setup, ["q0", "l0", "r0"]) == ()


async def test_redis_refuses_a_wrong_password(tmp_path: Path) -> None:
    async with redis_server(tmp_path, "--requirepass", "open-sesame") as port:
        for passcode in ("", "wrong"):
            client = REDIS.connection(setup_of(port, access=Access(Credentials("", passcode))))
            with pytest.raises(Exception, match=r"(?i)password|authentication"):
                await client.connect("127.0.0.1", port, "")
            await client.close()


async def test_an_out_of_memory_redis_has_not_done_it(tmp_path: Path) -> None:
    async with redis_server(tmp_path, "--maxmemory", "1") as port:
        assert await outcome(connection(), port, send) == FAIL
        assert await outcome(connection(), port, compare) == FAIL


async def test_tls(tmp_path: Path) -> None:
    tls = certificates(tmp_path)
    files = ("--tls-ca-cert-file", tls.ca, "--tls-cert-file", tls.cert, "--tls-key-file", tls.key)
    async with redis_server(tmp_path, *files) as port:
        good = REDIS.connection(setup_of(port, access=Access(tls=tls)))
        await good.connect("127.0.0.1", port, "127.0.0.9")
        await send(good)
        assert await good.depth("q0") == 1
        await good.close()
        misnamed = REDIS.connection(setup_of(port, access=Access(tls=replace(tls, name=""))))
        with pytest.raises(Exception, match="certificate"):
            await misnamed.connect("127.0.0.1", port, "")
        await misnamed.close()
