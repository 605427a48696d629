"""The NATS client: outcomes against a server that breaks off after every byte, by what is answered, and on NATS."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certificates import certificates
from cut_server import FAIL, INFO, OK, Cut, every_cut, outcome, serving, until
from loopback import free_ports
from nats_script import NO_RESPONDERS, NatsScript

from nodes.systems.nats.system import server_program
from stormproof.clients import PROTOCOLS
from stormproof.clients.nats import NatsConnection
from stormproof.contracts.backend import Credentials
from stormproof.contracts.client import LogConnection, LogEntry, NotDone, NotFound
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError

pytest.importorskip("nats")

NATS = PROTOCOLS.load("nats")
NAMES = Demands(queues=("q0",), logs=("l0",))
ERROR = {"error": {"code": 503, "err_code": 10008, "description": "jetstream system temporarily unavailable"}}


def connection() -> NatsConnection:
    return NatsConnection(Access())


async def send(client: NatsConnection) -> None:
    await client.send("q0", b"1/2")


async def acknowledge(client: NatsConnection) -> None:
    delivery = await client.take("q0", 5.0)
    assert delivery is not None and delivery.body == b"1/2"
    await delivery.ack()


async def test_a_publish_that_was_received_never_counts_as_not_done() -> None:
    counts = await every_cut(NatsScript, connection, send, lambda script: script.published == [b"1/2"])
    assert counts[INFO] > 100 and counts[FAIL] > 200, counts


async def test_an_acknowledgement_counts_once_it_is_confirmed() -> None:
    counts = await every_cut(lambda: NatsScript(holds=b"1/2"), connection, acknowledge,
                             lambda script: bool(script.acknowledged))  # fmt: skip
    assert counts[INFO] > 50 and counts[FAIL] > 500, counts


@pytest.mark.parametrize(("answer", "ends"), [
    ({"stream": "q0", "seq": 1}, OK), (NO_RESPONDERS, FAIL), (ERROR, INFO),
    ({"error": {"code": 400, "err_code": 10077, "description": "maximum messages exceeded"}}, INFO),
])  # fmt: skip
async def test_answers(answer: Any, ends: str) -> None:
    async with serving(NatsScript(answer), Cut()) as cutter:
        assert await outcome(connection(), cutter.port, send) == ends


async def test_a_message_above_the_limit_is_not_sent() -> None:
    script = NatsScript(max_payload=2)
    async with serving(script, Cut()) as cutter:
        assert await outcome(connection(), cutter.port, send) == FAIL
    assert not script.published


async def test_a_connection_known_to_be_lost_sends_nothing_and_is_not_made_again() -> None:
    script = NatsScript()
    async with serving(script, Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "127.0.0.1")
        cutter.end()
        await until(lambda: client._lost is not None and client._lost.done())
        for work in (send(client), acknowledge(client)):
            with pytest.raises(NotDone, match="lost"):
                await work
        await client.close()
    assert not script.published


async def test_a_lost_connection_ends_a_take() -> None:
    """It may not say that the queue is empty."""
    async with serving(NatsScript(), Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "")
        asyncio.get_running_loop().call_later(0.05, cutter.end)
        with pytest.raises(NotDone, match="the connection was lost"):
            await client.take("q0", 60.0)
        await client.close()


@asynccontextmanager
async def nats_server(folder: Path, text: str = "") -> AsyncIterator[int]:
    try:
        program = server_program()
    except UsageError as error:
        pytest.skip(str(error))
    (port,) = free_ports(1)
    (folder / "nats.conf").write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}" }}\n{text}')
    server = subprocess.Popen([str(program), "-c", str(folder / "nats.conf")], stderr=subprocess.DEVNULL)
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


def setup_of(port: int, access: Access | None = None, **options: object) -> BrokerSetup:
    return BrokerSetup([Broker("n1", "127.0.0.1", port)], access or Access(), NAMES, options)


async def test_on_nats(tmp_path: Path) -> None:
    access = Access(Credentials("bob", "open-sesame"))
    async with nats_server(tmp_path, "authorization { user: bob, password: open-sesame }") as port:
        setup = setup_of(port, access, ack_wait=0.3)
        await NATS.prepare(setup)
        await NATS.prepare(setup)
        client = NATS.connection(setup)
        assert isinstance(client, LogConnection)
        await client.connect("127.0.0.1", port, "127.0.0.9")
        assert client._client._transport._io_writer.get_extra_info("sockname")[0] == "127.0.0.9"
        await client.send("q0", b"1")
        await client.send("q0", b"2")
        first = await client.take("q0", 1.0)
        assert first is not None and first.body == b"1" and await client.depth("q0") == 2
        await first.ack()
        second = await client.take("q0", 1.0)
        assert second is not None and second.body == b"2" and await client.depth("q0") == 1
        await client.close()

        other = NATS.connection(setup)
        await other.connect("127.0.0.1", port, "")
        again = await other.take("q0", 10.0)
        assert again is not None and again.body == b"2"
        await again.ack()
        assert await other.take("q0", 0.1) is None and await other.depth("q0") == 0
        assert [await other.append("l0", b"a"), await other.append("l0", b"b")] == [1, 2]
        assert await other.read("l0", 0, 1) == [LogEntry(1, b"a")]
        assert await other.read("l0", 1, 9) == [LogEntry(2, b"b")]
        assert await other.read("l0", 2, 9) == []
        assert await outcome(NATS.connection(setup), port, lambda client: client.send("q9", b"")) == FAIL
        await other.close()
        assert await NATS.leaders(setup) == {} and await NATS.clear(setup, ["q0", "l0", "none"]) == ()

        stranger = NATS.connection(setup_of(port))
        with pytest.raises(Exception, match="Authorization"):
            await stranger.connect("127.0.0.1", port, "")
        await stranger.close()


async def test_tls(tmp_path: Path) -> None:
    tls = certificates(tmp_path)
    text = f'tls {{ cert_file: "{tls.cert}", key_file: "{tls.key}", ca_file: "{tls.ca}", verify: true }}'
    async with nats_server(tmp_path, text) as port:
        setup = setup_of(port, Access(tls=tls))
        await NATS.prepare(setup)
        good = NATS.connection(setup)
        await good.connect("127.0.0.1", port, "127.0.0.9")
        await send(good)
        await good.close()
        misnamed = NATS.connection(setup_of(port, Access(tls=replace(tls, name=""))))
        with pytest.raises(Exception, match="certificate"):
            await misnamed.connect("127.0.0.1", port, "")
        await misnamed.close()


async def answered(copy: NatsConnection, after: int, limit: int) -> list[LogEntry]:
    """Read a copy; ask again where the cluster leaves a request unanswered, as a new one does while it elects."""
    from nats.errors import TimeoutError as Unanswered

    while True:
        try:
            return await copy.read("l0", after, limit)
        except Unanswered:
            continue


@pytest.mark.parametrize("replicas", [1, 3])
async def test_the_copies_of_each_server(replicas: int, tmp_path: Path) -> None:
    """A batch larger than what is left ends; a server that is no replica says so, and does not count as empty."""
    routes = free_ports(3)
    others = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
    async with AsyncExitStack() as stack:
        brokers = []
        async with asyncio.TaskGroup() as group:
            for name, route in zip(("n1", "n2", "n3"), routes, strict=True):
                (folder := tmp_path / name).mkdir()
                text = (f'server_name: {name}\ncluster {{ name: c, listen: "127.0.0.1:{route}", '
                        f'routes: [{others}] }}')  # fmt: skip
                started = group.create_task(stack.enter_async_context(nats_server(folder, text)))
                brokers.append((name, started))
        setup = BrokerSetup([Broker(name, "127.0.0.1", port.result()) for name, port in brokers], Access(), NAMES,
                            {"stream_replicas": replicas})  # fmt: skip
        await NATS.prepare(setup)
        client = await NATS.admitted(setup)
        entries = [LogEntry(await client.append("l0", b"%d" % at), b"%d" % at) for at in range(7)]
        there = 0
        for broker in setup.brokers:
            copy = NATS.connection(setup)
            await copy.connect_copy(broker.host, broker.port, "127.0.0.9")
            try:
                async with asyncio.timeout(20):
                    while (found := await answered(copy, 0, 50)) != entries:  # it may lag
                        assert found == entries[:len(found)]
                    assert await answered(copy, 0, 3) == entries[:3] and await answered(copy, 3, 50) == entries[3:]
                    assert await answered(copy, 7, 50) == []
                there += 1
            except NotFound:
                pass
            finally:
                await copy.close()
        assert there == replicas
        await client.close()
