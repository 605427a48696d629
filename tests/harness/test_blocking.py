"""Connections on blocking libraries: their calls run in threads, which a call that never returns keeps to itself."""

from __future__ import annotations

import asyncio
import threading

import pytest

import stormproof
from stormproof.apart import Apart
from stormproof.blocking import InThread
from stormproof.contracts.client import Beating, Delivery, LockConnection

pytestmark = pytest.mark.requirement("H26", part=True)


class Locks:
    """A blocking connection that does what it is told by the name of a lock."""

    heartbeat = 0.5

    def __init__(self) -> None:
        self.go_on, self.acquiring, self.closed_again = threading.Event(), threading.Event(), threading.Event()
        self.events: list[str] = []
        self.threads: set[int] = set()

    def connect(self, host: str, port: int, local: str) -> None:
        self.events.append(f"{host}:{port} from {local}")
        if host == "stuck":
            self.go_on.wait()
            self.events.append("connected after all")

    def acquire(self, name: str, seconds: float) -> int | None:
        self.threads.add(threading.get_ident())
        if name == "stuck":
            self.acquiring.set()
            self.go_on.wait()
        if name == "exit":
            raise SystemExit(7)
        if name == "not done":
            raise stormproof.NotDone("held")
        return 3

    def give_up(self, name: str) -> None:
        self.events.append(f"gave up {name}")

    def release(self, name: str) -> bool:
        return True

    def take(self, queue: str, timeout: float) -> Delivery:
        return Delivery(b"1", lambda: self.events.append("ack"))  # type: ignore[arg-type, return-value]

    async def stand_still(self, seconds: float) -> None:
        self.events.append(f"still in {threading.current_thread().name}")

    def close(self) -> None:
        again = "closed" in self.events
        self.events.append("closed")
        if again:
            self.closed_again.set()


async def test_calls_run_in_one_thread_and_bring_back_results_and_errors() -> None:
    locks = Locks()
    connection = stormproof.blocking.connection(locks)
    assert isinstance(connection, LockConnection) and isinstance(connection, Beating) and connection.heartbeat == 0.5
    await connection.connect("h", 1, local="127.0.0.1")
    assert [await connection.acquire("a", 1.0), await connection.acquire("b", 1.0)] == [3, 3]
    assert len(locks.threads) == 1 and threading.get_ident() not in locks.threads
    with pytest.raises(stormproof.NotDone, match="held"):
        await connection.acquire("not done", 1.0)
    with pytest.raises(RuntimeError, match="SystemExit"):
        await connection.acquire("exit", 1.0)
    delivery = await connection.take("q", 1.0)
    assert delivery.give_back is None
    await delivery.ack()
    await connection.stand_still(1.0)
    await connection.close()
    await connection.close()
    assert locks.events == ["h:1 from 127.0.0.1", "ack", f"still in {threading.current_thread().name}",
                            "closed", "closed"]  # fmt: skip


async def test_a_call_that_never_returns_is_left_behind_and_another_thread_goes_on() -> None:
    locks = Locks()
    connection = stormproof.blocking.connection(locks)
    acquiring = asyncio.create_task(connection.acquire("stuck", 1.0))
    await asyncio.to_thread(locks.acquiring.wait)
    acquiring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acquiring
    await connection.give_up("stuck")
    assert await connection.acquire("a", 1.0) == 3
    assert len(locks.threads) == 2
    await connection.close()
    assert locks.events == ["gave up stuck", "closed"]
    locks.go_on.set()


async def test_each_call_has_a_time_limit() -> None:
    locks = Locks()
    connection = stormproof.blocking.connection(locks, seconds=0.05)
    with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
        await connection.acquire("stuck", 1.0)
    with pytest.raises(LookupError, match="of the library"):  # the library's errors are not ours
        await InThread(5.0)(_raise, LookupError("of the library"))
    locks.go_on.set()


async def test_what_is_connected_after_close_is_closed_again() -> None:
    locks = Locks()
    connection = stormproof.blocking.connection(locks, seconds=0.05)
    with pytest.raises(TimeoutError):
        await connection.connect("stuck", 1, "")
    await connection.close()
    locks.go_on.set()
    await asyncio.to_thread(locks.closed_again.wait)
    assert locks.events == ["stuck:1 from ", "closed", "connected after all", "closed"]


async def test_the_harness_takes_it_as_any_other_connection() -> None:
    apart = Apart()
    connection = apart.connection(lambda: stormproof.blocking.connection(Locks()))
    assert isinstance(connection, LockConnection) and connection.heartbeat == 0.5
    assert await connection.acquire("a", 1.0) == 3
    await connection.close()
    assert apart.left == 0
    apart.close()


def _raise(error: Exception) -> None:
    raise error
