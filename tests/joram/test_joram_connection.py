"""The reliable connection across a group (HA Joram 5.1): context, counters, queue, idleness, the list of replicas."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from joram_cluster import QUEUE, Client, Closed, Cluster, Processes, running, status, until

from harness.reference.mutants import BASE
from harness.sim.campaign import run_seed
from workloads.reference.connection import ConnectionBroken, NotSent, Settings, StompConnection

SETTINGS = Settings(login="guest", passcode="guest", heartbeat=0.3, same_replica=0.1)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Callable[..., Processes]]:
    groups: list[Processes] = []

    def make(**options: Any) -> Processes:
        groups.append(Processes(tmp_path, **{"detection_timeout": 1.2, **options}))
        groups[-1].start()
        return groups[-1]

    yield make
    for each in groups:
        each.end()


async def send(connection: StompConnection, body: str) -> None:
    await connection.request("SEND", {"destination": QUEUE}, body.encode(), 20)


def addresses(nodes: Processes | Cluster, names: list[str]) -> list[tuple[str, int]]:
    return [("127.0.0.1", nodes.ports[name]) for name in names]


@pytest.mark.requirement("J15")
async def test_after_the_masters_death_both_sides_emit_again_and_discard_what_they_had(group: Callable[..., Processes]):
    nodes = group()
    master, *others = await nodes.settled()
    producer = await nodes.client(master)
    for body in ("one", "two", "three"):
        await producer.publish(body)
    client = await nodes.client(master, x_reliable="true")
    conn = client.connected.headers["x-connection-id"]
    await client.confirm("SUBSCRIBE", {"id": "s", "destination": QUEUE, "ack": "client-individual", "x-seq": "1"})
    first, second, third = [await client.message() for _ in range(3)]
    assert [each.headers["x-seq"] for each in (first, second, third)] == ["1", "2", "3"]
    await client.confirm("ACK", {"id": first.headers["ack"], "x-seq": "2", "x-received": "2"})
    nodes.signal(master, signal.SIGKILL)
    view = await nodes.settled(*others)

    # The new master has the context: input counter 2, output counter 3, and the queue of what is not acknowledged.
    again = await nodes.client(view[0], x_connection_id=conn, x_received="2")
    assert (again.connected.headers["x-received"], again.connected.headers["x-connection-id"]) == ("2", conn)
    repeated = await again.message()
    assert (repeated.headers, repeated.body) == (third.headers, b"three")
    assert "redelivered" not in repeated.headers
    # What the client has sent before is applied once, what it had not sent is: with its old and its next number.
    await again.confirm("ACK", {"id": first.headers["ack"], "x-seq": "2"})
    await again.confirm("ACK", {"id": second.headers["ack"], "x-seq": "3"})
    await again.confirm("ACK", {"id": third.headers["ack"], "x-seq": "4"})
    await nodes.settled(*others)
    for name in others:
        assert (await status(nodes.ports[name]))["depths"]["q"] == 0


@pytest.mark.requirement("J15")
async def test_the_context_is_the_same_on_every_replica(tmp_path: Path):
    async with running(tmp_path) as cluster:
        master, *others = await cluster.settled()
        connection = StompConnection(addresses(cluster, [master]), SETTINGS)
        await connection.open(10)
        headers = {"id": "s", "destination": QUEUE, "ack": "client-individual", "x-prefetch": "2"}
        await connection.request("SUBSCRIBE", headers, b"", 10)
        for body in ("one", "two", "three"):
            await send(connection, body)
        message = await connection.next_message(10)
        assert message is not None
        await connection.request("ACK", {"id": message.headers["ack"]}, b"", 10)
        await cluster.settled()
        for name in (master, *others):
            (context,) = cluster.brokers[name].engine.state.contexts.values()
            assert (context.in_seq, context.out_seq) == (5, 3)
            pending = cluster.brokers[name].engine.pending_output(context.conn, received=0)
            assert context.received == 2, "what the client had received when it acknowledged"
            assert [delivery.body for delivery in pending] == [b"three"]
        await connection.close()
        await until(lambda: not any(b.engine.connections() for b in cluster.brokers.values()), "closed everywhere")


@pytest.mark.requirement("J15")
@pytest.mark.requirement("J17")
async def test_a_client_sends_and_receives_on_through_two_failovers(group: Callable[..., Processes]):
    nodes = group()
    view = await nodes.settled()
    connection = StompConnection(addresses(nodes, view), SETTINGS)
    await connection.open(10)
    headers = {"id": "s", "destination": QUEUE, "ack": "client-individual", "x-prefetch": "5"}
    await connection.request("SUBSCRIBE", headers, b"", 20)
    got: list[str] = []

    async def consume(count: int) -> None:
        for _ in range(count):
            message = await connection.next_message(20)
            assert message is not None
            got.append(message.body.decode())
            await connection.request("ACK", {"id": message.headers["ack"]}, b"", 20)

    for turn in range(2):
        await asyncio.gather(*(send(connection, f"{turn}-{number}") for number in range(5)))
        nodes.signal(view[0], signal.SIGKILL)
        await asyncio.gather(*(send(connection, f"{turn}-{number}") for number in range(5, 10)), consume(10))
        nodes.start(view[0])
        view = await nodes.settled()
    assert got == [f"{turn}-{number}" for turn in range(2) for number in range(10)]
    await connection.close()


@pytest.mark.requirement("J15")
@pytest.mark.parametrize("seed", [3, pytest.param(6, marks=pytest.mark.soak)])
def test_simulated_reliable_connections_lose_and_repeat_nothing(seed: int, tmp_path: Path):
    case = replace(BASE, settings={**BASE.settings, "kill_kind": "master", "partition_kind": "master"})
    result = run_seed(case, seed, tmp_path, tmp_path)
    assert result.verdict == "valid", result.sentence


@pytest.mark.requirement("J15")
@pytest.mark.requirement("J16")
async def test_without_a_keep_alive_the_connection_is_idle_though_its_socket_is_open(tmp_path: Path):
    async with running(tmp_path, idle_timeout=2.0) as cluster:
        master, *others = await cluster.settled()
        await (await cluster.client(master)).publish("given back")
        silent = await cluster.client(master, x_reliable="true")
        keeping = await cluster.client(master, x_reliable="true", heart_beat="1000,0")
        await silent.confirm("SUBSCRIBE", {"id": "s", "destination": QUEUE, "ack": "client-individual", "x-seq": "1"})
        assert (await silent.message()).body == b"given back"
        other = await cluster.client(master)
        await other.subscribe()
        waiting = asyncio.create_task(other.message())
        while not waiting.done():
            keeping._writer.write(b"\n")
            await asyncio.sleep(0.1)
        assert waiting.result().headers["redelivered"] == "true"
        with pytest.raises(Closed) as ended:
            await silent.frame()
        assert ended.value.args[1]["x-closed"] == "idle"
        # Keep-alives are enough to stay; and the closed one is closed on every replica, and stays so.
        await keeping.confirm("SEND", {"destination": "/queue/other", "x-seq": "1"}, b"still here")
        await cluster.stop(master)
        view = await cluster.settled(*others)
        with pytest.raises(Closed) as refused:
            await cluster.client(view[0], x_connection_id=silent.connected.headers["x-connection-id"])
        assert refused.value.args[1]["x-closed"] == "idle"


@pytest.mark.requirement("J16")
async def test_a_client_that_comes_back_too_late_is_told_that_high_availability_is_broken(
    group: Callable[..., Processes]
):
    nodes = group(idle_timeout=3.0)
    master, *others = await nodes.settled()
    connection = StompConnection(addresses(nodes, [master, *others]), SETTINGS)
    await connection.open(10)
    await send(connection, "x")
    connection.use_replicas(addresses(nodes, [master]))
    nodes.signal(master, signal.SIGKILL)
    view = await nodes.settled(*others)
    watcher = await nodes.client(view[0])

    async def contexts() -> int:
        return int((await watcher.status_of_node())["connections"])

    async with asyncio.timeout(30):
        while await contexts() > 1:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)
    connection.use_replicas(addresses(nodes, others))
    with pytest.raises((ConnectionBroken, NotSent), match="high availability is broken"):
        await send(connection, "y")


class Refusing:
    """Replicas that refuse everybody, and note who came when."""

    def __init__(self) -> None:
        self.came: list[tuple[str, int]] = []
        self.servers: list[asyncio.Server] = []
        self.addresses: list[tuple[str, int]] = []

    async def start(self, count: int) -> None:
        for _ in range(count):
            server = await asyncio.start_server(self._refuse, "127.0.0.1", 0)
            self.servers.append(server)
            self.addresses.append(server.sockets[0].getsockname())

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came.append(writer.get_extra_info("sockname"))
        writer.transport.abort()


@pytest.mark.requirement("J17")
async def test_the_replicas_are_tried_round_and_round_in_the_order_of_the_servers_list(tmp_path: Path):
    async with running(tmp_path) as cluster:
        master, *_ = await cluster.settled()
        refusing = Refusing()
        await refusing.start(2)
        connection = StompConnection(addresses(cluster, [master]), replace(SETTINGS, same_replica=0.3))
        await connection.open(10)
        # The client was told of one replica; the list is the server's.
        assert connection.replicas == addresses(cluster, cluster.names)
        listed = [*addresses(cluster, [master]), *refusing.addresses]
        connection.use_replicas(listed)
        held = [each for each in cluster.brokers[master].sessions if each.conn]
        cluster.brokers[master]._listeners.close()
        for session in held:
            session.output.reset()
        await until(lambda: len(refusing.came) >= 6, "three rounds")
        assert refusing.came[:6] == refusing.addresses * 3
        await connection.abort()
        for server in refusing.servers:
            server.close()


@pytest.mark.requirement("J9")
async def test_what_a_deposed_master_could_not_get_rid_of_never_arrives(tmp_path: Path):
    async with running(tmp_path) as cluster:
        master, *others = await cluster.settled()
        reader, writer = await asyncio.open_connection(sock=_small_window(cluster.ports[master]), limit=1024)
        client = Client(reader, writer)
        client.write("CONNECT", {"accept-version": "1.2", "host": "/", "login": "guest", "passcode": "guest"})
        await client.frame()
        producer = await cluster.client(master)
        for number in range(20):
            await producer.publish(f"{number}-" + "x" * 200_000)
        client.write("SUBSCRIBE", {"id": "s", "destination": QUEUE, "ack": "client-individual"})
        sessions = cluster.brokers[master].sessions
        await until(lambda: any(each.output.unconfirmed() > 100_000 for each in sessions), "stuck")
        cluster.cut([master], others)
        await until(lambda: not cluster.status(master)["serving"], "deposed")
        received = b""
        with pytest.raises(ConnectionResetError):
            while data := await reader.read(1 << 16):
                received += data
        assert b"not master" not in received
        assert "client reset" in cluster.log_text(master)


def _small_window(port: int) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    connection.setblocking(False)
    return connection
