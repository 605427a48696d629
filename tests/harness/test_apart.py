"""Connections on loops of their own: what never returns is left behind, and costs nobody else anything."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from harness.run.deployment import leave_connections
from stormproof.apart import Apart, at_home, left_after
from stormproof.contracts.client import Abandoned, Beating, CopyConnection, Delivery, LogConnection, RegisterConnection
from stormproof.errors import StormproofError

pytestmark = pytest.mark.requirement("H26", part=True)


async def never_ends() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


class Queue:
    """A connection that does what it is told by the name of a queue."""

    def __init__(self) -> None:
        self.loop, self.heartbeat = asyncio.get_running_loop(), 0.5
        self.closed = threading.Event()

    async def connect(self, host: str, port: int, local: str) -> None:
        assert asyncio.get_running_loop() is self.loop

    async def stand_still(self, seconds: float) -> None: ...

    async def send(self, queue: str, body: bytes) -> str:
        match queue:
            case "deaf":
                await never_ends()
            case "block":
                time.sleep(3600)
            case "exit":
                sys.exit(7)
            case "keyboard":
                raise KeyboardInterrupt
            case "stop":
                raise StopAsyncIteration
            case "cancelled":
                raise asyncio.CancelledError
            case "slow":
                await asyncio.sleep(3600)
            case "task exits":
                asyncio.get_running_loop().call_soon(sys.exit, 7)
                await asyncio.sleep(0)
        return threading.current_thread().name

    async def take(self, queue: str, timeout: float) -> Delivery:
        async def ack() -> None:
            assert asyncio.get_running_loop() is self.loop
            await self.send(queue, b"")

        return Delivery(b"x", ack)

    async def close(self) -> None:
        self.closed.set()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormproof.apart.LEAVE_SECONDS", 0.1)
    monkeypatch.setattr("stormproof.apart.MAKE_SECONDS", 0.2)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("way", ["deaf", "block"])
async def test_a_call_that_does_not_end_is_left_behind(way: str) -> None:
    apart = Apart()
    stuck, other = apart.connection(Queue), apart.connection(Queue)
    with pytest.raises(Abandoned, match=r"send\(\) did not end"):
        async with asyncio.timeout(0.05):
            await stuck.send(way, b"")
    assert apart.left == 1
    with pytest.raises(Abandoned):
        await stuck.send("fine", b"")
    await stuck.close()  # costs nothing
    assert await other.send("fine", b"") != threading.main_thread().name
    if way == "deaf":  # its loop still turns: it is asked to disconnect
        assert await asyncio.to_thread(stuck._real.closed.wait, 60)
    apart.close()


@pytest.mark.usefixtures("soon")
async def test_an_acknowledgement_that_does_not_end_is_left_behind() -> None:
    apart = Apart()
    connection = apart.connection(Queue)
    await (await connection.take("fine", 1)).ack()
    delivery = await connection.take("block", 1)
    with pytest.raises(Abandoned, match=r"ack\(\) did not end"):
        async with asyncio.timeout(0.05):
            await delivery.ack()


async def test_a_call_that_ends_when_it_is_cancelled_is_only_late() -> None:
    apart = Apart()
    connection = apart.connection(Queue)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await connection.send("slow", b"")
    assert apart.left == 0 and await connection.send("fine", b"")
    apart.close()


@pytest.mark.parametrize(("way", "told"), [
    ("exit", "SystemExit: 7"), ("keyboard", "KeyboardInterrupt"), ("cancelled", "cancelled inside"), ("stop", "$"),
])  # fmt: skip
async def test_what_ends_programs_is_an_error_of_the_call(way: str, told: str) -> None:
    apart = Apart()
    connection = apart.connection(Queue)
    with pytest.raises(Exception, match=told):
        await connection.send(way, b"")
    assert await connection.send("fine", b"")
    apart.close()


async def test_a_task_of_a_client_that_exits_ends_nothing() -> None:
    apart = Apart()
    connection = apart.connection(Queue)
    await connection.send("task exits", b"")
    assert await connection.send("fine", b"")
    apart.close()


async def test_loops_are_used_again_and_may_be_shared() -> None:
    apart = Apart()
    first = apart.connection(Queue)
    name = await first.send("fine", b"")
    loop = first._real.loop
    await first.close()
    second, third = apart.connection(Queue), apart.connection(Queue)
    assert second._real.loop is loop and third._real.loop is not loop and await second.send("fine", b"") == name
    apart.close()
    together = Apart(together=True)
    loops = {id(together.connection(Queue)._real.loop) for _ in range(3)}
    assert len(loops) == 1
    together.close()


async def test_it_is_what_the_real_one_is() -> None:
    class Copies:
        async def connect(self, host: str, port: int, local: str) -> None: ...
        async def append(self, name: str, body: bytes) -> int:
            return 1
        async def read(self, name: str, after: int, limit: int) -> list[object]:
            return []
        async def connect_copy(self, host: str, port: int, local: str) -> None: ...
        async def close(self) -> None: ...

    apart = Apart()
    queue, log = apart.connection(Queue), apart.connection(Copies)
    assert isinstance(queue, Beating) and queue.heartbeat == 0.5 and not isinstance(queue, LogConnection)
    assert isinstance(log, LogConnection) and isinstance(log, CopyConnection)
    assert not isinstance(log, RegisterConnection)
    assert apart.connection(lambda: None) is None
    apart.close()


@pytest.mark.usefixtures("soon")
async def test_one_that_can_not_be_made() -> None:
    apart = Apart()
    with pytest.raises(StormproofError, match="was not made within"):
        apart.connection(lambda: time.sleep(1))
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        apart.connection(lambda: sys.exit(3))


async def test_calls_that_belong_to_the_harness_go_there() -> None:
    home = asyncio.get_running_loop()

    async def where() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    class Asks:
        async def ask(self) -> tuple[object, object]:
            return await where(), await at_home(where)

    apart = Apart()
    there, here = await apart.connection(Asks).ask()
    assert here is home and there is not home and await at_home(where) is home
    apart.close()


async def test_a_cluster_gives_such_connections() -> None:
    cluster = SimpleNamespace(queue_connection=Queue, topology=SimpleNamespace(client_places=False))
    apart = leave_connections(cluster)  # type: ignore[arg-type]
    assert cluster.queue_connection()._real.loop is not asyncio.get_running_loop()
    apart.close()


@pytest.mark.usefixtures("soon")
async def test_hooks_are_left_behind_too() -> None:
    release = asyncio.Event()

    async def deaf() -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

    with pytest.raises(TimeoutError, match="no answer within"):
        await left_after(0.05, deaf())
    release.set()
    for error in (SystemExit(7), asyncio.CancelledError(), ValueError("x")):
        async def raises(error: BaseException = error) -> None:
            raise error

        with pytest.raises(Exception, match=r"SystemExit: 7|cancelled inside|x"):
            await left_after(5, raises())
