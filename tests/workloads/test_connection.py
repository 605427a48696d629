"""The HA client's connection against a real broker, through a proxy that breaks what lies between them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodes.stomp import Frame, encode
from workloads.reference.connection import ConnectionBroken, NotSent, Settings, StompConnection

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = Settings(login="guest", passcode="pass-phrase", heartbeat=0.2)


class Broker:
    """One standalone broker process."""

    def __init__(self, folder: Path, idle_timeout: float = 30.0) -> None:
        config = {"node": "n1", "design": "standalone", "data": str(folder / "data"), "port": 0,
                  "passcode": SETTINGS.passcode, "options": {"idle_timeout": idle_timeout}}  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nodes.reference", str(folder / "config.json")],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout
        for line in self.process.stdout:
            if " started " in line:
                self.address = ("127.0.0.1", int(line.partition("address=127.0.0.1:")[2].split()[0]))
                break

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Proxy:
    """Passes bytes on to a broker; can lose all that the broker answers, and cut its connections."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.deaf = False
        self.refusing = False
        self.accepted = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = ("127.0.0.1", self._server.sockets[0].getsockname()[1])
        return self

    async def stop(self) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.append(writer)
        if self.refusing:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection(*self.target)
        self._writers.append(far_writer)
        await asyncio.gather(self._pass(reader, far_writer, False), self._pass(far_reader, writer, True))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not (back and self.deaf):
                    writer.write(data)
        writer.transport.abort()


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    broker = Broker(tmp_path)
    proxy = await Proxy(broker.address).start()
    yield proxy
    await proxy.stop()
    broker.end()


async def opened(*proxies: Proxy, settings: Settings = SETTINGS) -> StompConnection:
    connection = StompConnection([proxy.address for proxy in proxies], settings)
    await connection.open(5.0)
    return connection


async def send(connection: StompConnection, body: bytes, timeout: float = 5.0) -> None:
    await connection.request("SEND", {"destination": "/queue/q"}, body, timeout)


async def drain(connection: StompConnection, count: int) -> list[bytes]:
    """The bodies of so many messages, after which there are no more."""
    headers = {"id": "0", "destination": "/queue/q", "ack": "client-individual"}
    await connection.request("SUBSCRIBE", headers, b"", 5.0)
    return await take(connection, count)


async def take(connection: StompConnection, count: int) -> list[bytes]:
    bodies = []
    for _ in range(count):
        message = await connection.next_message(20.0)
        assert isinstance(message, Frame)
        bodies.append(message.body)
        await connection.request("ACK", {"id": message.headers["ack"]}, b"", 5.0)
    assert await connection.next_message(0.3) is None, "no more"
    return bodies


@pytest.mark.requirement("J15")
@pytest.mark.requirement("J1")
async def test_a_send_whose_receipt_was_lost_is_re_emitted_and_counted_once(proxy: Proxy) -> None:
    connection = await opened(proxy, settings=replace(SETTINGS, heartbeat=2.0))
    await send(connection, b"1")
    proxy.deaf = True
    under_way = [asyncio.create_task(send(connection, body)) for body in (b"2", b"3")]
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in under_way)
    proxy.deaf = False
    proxy.cut()
    await asyncio.gather(*under_way)
    assert proxy.accepted == 2
    assert await drain(connection, 3) == [b"1", b"2", b"3"]
    await connection.close()


@pytest.mark.requirement("J15")
async def test_a_message_received_before_the_cut_is_not_delivered_twice(proxy: Proxy) -> None:
    connection = await opened(proxy)
    for body in (b"1", b"2", b"3"):
        await send(connection, body)
    headers = {"id": "0", "destination": "/queue/q", "ack": "client-individual", "x-prefetch": "2"}
    await connection.request("SUBSCRIBE", headers, b"", 5.0)
    first = await connection.next_message(5.0)
    assert isinstance(first, Frame) and first.body == b"1"
    proxy.cut()
    await connection.request("ACK", {"id": first.headers["ack"]}, b"", 5.0)
    assert await take(connection, 2) == [b"2", b"3"]
    await connection.close()


@pytest.mark.requirement("J17")
async def test_it_goes_along_the_list_until_a_replica_lets_it_in(proxy: Proxy) -> None:
    dead = await Proxy(proxy.target).start()
    dead.refusing = True
    connection = await opened(dead, proxy)
    assert connection.peer == proxy.address
    await connection.close()
    await dead.stop()


@pytest.mark.requirement("J17")
async def test_the_same_replica_is_tried_first_for_the_set_time(proxy: Proxy) -> None:
    other = await Proxy(proxy.target).start()
    connection = await opened(proxy, other, settings=replace(SETTINGS, same_replica=2.0))
    proxy.cut()
    await send(connection, b"1")
    assert connection.peer == proxy.address, "it was back at once, so there was no reason to move on"
    proxy.refusing = True
    proxy.cut()
    await send(connection, b"2")
    assert connection.peer == other.address
    assert proxy.accepted > 3, "the replica that was lost was tried again and again before the next"
    await connection.close()
    await other.stop()


@pytest.mark.requirement("F15")
@pytest.mark.parametrize("first_again", [True, False])
async def test_the_first_of_the_list_is_tried_first_whenever_it_connects(proxy: Proxy, first_again: bool) -> None:
    others = [await Proxy(proxy.target).start() for _ in range(2)]
    proxy.refusing = True
    settings = replace(SETTINGS, same_replica=0.0, first_again=first_again, learns_replicas=False)
    connection = await opened(proxy, *others, settings=settings)
    assert connection.peer == others[0].address, "the primary did not serve"
    proxy.refusing, others[0].refusing = False, True
    others[0].cut()
    await send(connection, b"1")
    assert connection.peer == (proxy if first_again else others[1]).address
    await connection.close()
    for other in others:
        await other.stop()


@pytest.mark.requirement("F15")
async def test_where_nobody_serves_it_waits_between_two_rounds(proxy: Proxy) -> None:
    dead = await Proxy(proxy.target).start()
    dead.refusing = proxy.refusing = True
    settings = replace(SETTINGS, round_pause=60.0, retry_delay=0.001)
    connection = StompConnection([dead.address, proxy.address], settings)
    opening = asyncio.create_task(connection.open(30.0))
    async with asyncio.timeout(20.0):
        while not proxy.accepted:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.3)
    assert (dead.accepted, proxy.accepted) == (1, 1)
    opening.cancel()
    await connection.abort()
    await dead.stop()


@pytest.mark.requirement("J17")
async def test_a_master_that_came_to_the_group_later_is_learned_from_a_slave(proxy: Proxy) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\0")
        writer.write(encode(Frame("ERROR", {"message": "not master", "x-master": "{}:{}".format(*proxy.address)})))
        writer.close()

    slave = await asyncio.start_server(refuse, "127.0.0.1", 0)
    connection = StompConnection([slave.sockets[0].getsockname()[:2]], SETTINGS)
    await connection.open(5.0)
    assert connection.peer == proxy.address
    await connection.close()
    slave.close()


async def test_a_silent_connection_is_noticed_by_its_missing_heart_beats(proxy: Proxy) -> None:
    other = await Proxy(proxy.target).start()
    connection = await opened(proxy, other)
    proxy.deaf = True
    await send(connection, b"1", timeout=20.0)
    assert await drain(connection, 1) == [b"1"]
    await connection.close()
    await other.stop()


async def test_what_never_reached_a_socket_certainly_did_not_happen(proxy: Proxy) -> None:
    connection = await opened(proxy)
    proxy.refusing = True
    proxy.cut()
    await asyncio.sleep(0.1)
    with pytest.raises(NotSent):
        await send(connection, b"1", timeout=0.5)
    proxy.refusing = False
    await send(connection, b"2")
    assert await drain(connection, 1) == [b"2"]
    await connection.close()


async def test_what_asks_for_no_receipt_is_re_emitted_until_a_later_one_comes(proxy: Proxy) -> None:
    connection = await opened(proxy, settings=replace(SETTINGS, heartbeat=2.0))
    where = {"destination": "/queue/q"}
    proxy.deaf = True
    for body in (b"1", b"2"):
        connection.tell("SEND", where, body)
    await asyncio.sleep(0.1)
    proxy.deaf = False
    proxy.cut()
    await send(connection, b"3")
    assert not connection._state.pending
    assert await drain(connection, 3) == [b"1", b"2", b"3"]
    await connection.close()


async def test_what_was_told_before_something_that_was_never_sent_is_never_sent(proxy: Proxy) -> None:
    connection = await opened(proxy)
    proxy.refusing = True
    proxy.cut()
    await asyncio.sleep(0.1)
    connection.tell("SEND", {"destination": "/queue/q"}, b"0")
    with pytest.raises(NotSent):
        await send(connection, b"1", timeout=0.5)
    proxy.refusing = False
    await send(connection, b"2")
    assert await drain(connection, 1) == [b"2"]
    await connection.close()


async def test_what_was_sent_without_an_answer_is_unknown(proxy: Proxy) -> None:
    connection = await opened(proxy)
    proxy.deaf = True
    with pytest.raises(TimeoutError):
        await send(connection, b"1", timeout=0.3)
    await connection.abort()


async def test_an_open_that_nobody_answers_fails_with_the_reason(proxy: Proxy) -> None:
    proxy.refusing = True
    connection = StompConnection([proxy.address], SETTINGS)
    with pytest.raises(ConnectionBroken):
        await connection.open(0.5)
    wrong = StompConnection([proxy.target], Settings(login="guest", passcode="wrong"))
    with pytest.raises(ConnectionBroken, match=r"login|passcode|denied|credentials"):
        await wrong.open(2.0)


@pytest.mark.requirement("J15")
async def test_a_connection_closed_for_idleness_is_an_error(tmp_path: Path) -> None:
    broker = Broker(tmp_path, idle_timeout=0.3)
    proxy = await Proxy(broker.address).start()
    connection = await opened(proxy)
    proxy.refusing = True
    proxy.cut()
    await asyncio.sleep(3.0)
    proxy.refusing = False
    with pytest.raises((ConnectionBroken, NotSent), match="high availability is broken"):
        await send(connection, b"1")
    assert connection.closed_for_idleness is not None
    await connection.abort()
    await proxy.stop()
    broker.end()


async def test_without_numbering_a_lost_connection_is_the_end(proxy: Proxy) -> None:
    settings = Settings(login="guest", passcode=SETTINGS.passcode, reliable=False, heartbeat=0.2)
    connection = await opened(proxy, settings=settings)
    await send(connection, b"1")
    proxy.deaf = True
    task = asyncio.create_task(send(connection, b"2"))
    await asyncio.sleep(0.1)
    proxy.cut()
    with pytest.raises(ConnectionBroken):
        await task
    await connection.abort()


@pytest.mark.parametrize("refused", [True, False])
def test_a_connection_can_be_left_at_any_moment(refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancellation that meets an attempt's end must not be lost: the connection would try again for ever."""

    async def open_connection(*args: object, **kwargs: object) -> object:
        await asyncio.sleep(0)
        if refused:
            raise ConnectionRefusedError
        reader = asyncio.StreamReader()
        reader.feed_data(encode(Frame("CONNECTED", {"version": "1.2"})))
        return reader, SimpleNamespace(
            write=lambda data: None, is_closing=lambda: False, transport=SimpleNamespace(abort=lambda: None)
        )

    async def leave_after(turns: int) -> None:
        connection = StompConnection([("127.0.0.1", 1)], replace(SETTINGS, retry_delay=0.0))
        opening = asyncio.create_task(connection.open(60))
        for _ in range(turns):
            await asyncio.sleep(0)
        leaving = asyncio.create_task(connection.abort())
        done, _ = await asyncio.wait((leaving,), timeout=2)
        opening.cancel()
        assert done, f"not left after {turns} turns of the loop"

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    for turns in range(25):
        asyncio.run(leave_after(turns))


def test_who_is_cancelled_while_leaving_a_connection_is_cancelled() -> None:
    async def scenario() -> None:
        connection = StompConnection([("127.0.0.1", 1)], SETTINGS)
        opening = asyncio.create_task(connection.open(60))
        await asyncio.sleep(0.01)
        leaving = asyncio.create_task(connection.abort())
        await asyncio.sleep(0)
        leaving.cancel()
        opening.cancel()
        await asyncio.wait((leaving, opening))
        assert leaving.cancelled()

    asyncio.run(scenario())


async def test_what_no_broker_may_say_is_noted():
    def connection() -> StompConnection:
        made = StompConnection([], SETTINGS)
        made._state.confirmed, made._state.received, made._told = 3, 5, 5
        made._state.connection_id = "c"
        return made

    def after(*frames: Frame, early: bool = False) -> str:
        made = connection()
        made._state.early = early
        for frame in frames:
            made._take(frame)
        return made.odd

    received, new = (Frame("MESSAGE", {"x-seq": number}) for number in ("5", "6"))
    assert after(new) == "" and after(received, early=True) == ""
    assert after(received) == "a message was sent again that was known to have been received"
    assert after(Frame("RECEIPT", {"receipt-id": "r9"})) == "a receipt came twice, or for nothing"
    for applied, odd in (("3", ""), ("2", "a connection was resumed without what was confirmed on it")):
        made = connection()
        agreed = {"version": "1.2", "heart-beat": "100,100"}
        made._greeted(Frame("CONNECTED", {"x-connection-id": "c", "x-received": applied, **agreed}))
        assert made.odd == odd
        made = connection()
        made._closed_by_broker("connection closed", {"x-closed": "client", "x-received": applied})
        assert made.odd == odd.replace("resumed", "closed")
    (silent := connection())._greeted(Frame("CONNECTED", {"version": "1.2", "heart-beat": "0,0"}))
    assert silent.odd == "CONNECTED says something else than what was agreed on"
