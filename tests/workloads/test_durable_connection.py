"""The durable connection: no send fails for want of a broker, order is kept, what may be a duplicate says so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from workloads.reference.connection import ConnectionBroken, NotSent, Rejected
from workloads.reference.durable.connection import STEPS, DurableConnection, Patience
from workloads.reference.durable.links import MESSAGE_ID, SENT_AGAIN, GenericLink
from workloads.reference.durable.repository import MessageRepository, RepositoryFull
from workloads.reference.durable.storage import MemoryStorage

pytestmark = pytest.mark.requirement("F7")

QUICK = Patience(confirm=0.05, attempt=0.2, rest=0.01, window=4)


class Brokers:
    """Brokers as a link sees them: one serves or none; what it has got; what it does with the next messages."""

    def __init__(self) -> None:
        self.serves = True
        self.got: list[tuple[bytes, str, str | None]] = []
        """Body, id and mark of all that arrived."""
        self.silent = False
        """It takes messages and confirms none."""
        self.refused: set[bytes] = set()
        self.links: list[FakeLink] = []

    def link(self) -> FakeLink:
        self.links.append(FakeLink(self))
        return self.links[-1]

    async def fail_over(self) -> None:
        """Whoever serves is gone; another one serves at once."""
        await self.links[-1].abort()

    @property
    def bodies(self) -> list[bytes]:
        return [body for body, _, _ in self.got]


class FakeLink:
    node = None

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self.connected, self.over = False, True
        self._end = asyncio.Event()

    async def open(self, timeout: float) -> None:
        if not self._brokers.serves:
            await asyncio.sleep(0.01)
            raise ConnectionBroken("nobody serves")
        self.connected, self.over = True, False

    async def send(self, queue: str, headers: Mapping[str, str], body: bytes) -> None:
        if self.over:
            raise NotSent("it is over")
        if body in self._brokers.refused:
            await self.abort()
            raise Rejected("too big")
        self._brokers.got.append((body, headers[MESSAGE_ID], headers.get(SENT_AGAIN)))
        if self._brokers.silent:
            await self._end.wait()
        await asyncio.sleep(0)
        if self.over:
            raise ConnectionBroken("it is over")

    async def abort(self) -> None:
        self.connected, self.over = False, True
        self._end.set()


class Client:
    """A durable connection, and the next one of its name after a kill."""

    def __init__(self, brokers: Brokers, **limits: int) -> None:
        self.brokers, self.limits = brokers, limits
        self.storage = MemoryStorage()
        self.kills = 0

    def start(self, **more: Any) -> DurableConnection:
        repository = MessageRepository(self.storage, **self.limits)
        self.durable = DurableConnection("me", repository, self.brokers.link, QUICK, **more)
        self.durable.start()
        return self.durable

    async def kill(self) -> None:
        """Its machine loses power, too."""
        self.kills += 1
        crashed = self.storage.crash(random.Random(self.kills))
        await self.durable.close()
        self.storage = crashed


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    client = Client(Brokers())
    yield client
    await client.durable.close()


async def until_connected(durable: DurableConnection) -> None:
    while not durable.connected:  # noqa: ASYNC110  # it tells nobody
        await asyncio.sleep(0.005)


async def all_transferred(durable: DurableConnection) -> None:
    async with asyncio.timeout(5):
        await durable.transferred()


async def test_while_a_broker_serves_it_confirms_and_nothing_is_kept(client: Client) -> None:
    durable = client.start()
    await until_connected(durable)
    assert [await durable.send("q", body) for body in (b"1", b"2")] == [True, True]
    assert client.brokers.bodies == [b"1", b"2"]
    assert not MessageRepository(client.storage).messages


async def test_what_is_sent_while_nobody_serves_is_kept_and_transferred_in_order(client: Client) -> None:
    client.brokers.serves = False
    durable = client.start()
    bodies = [b"%d" % number for number in range(20)]
    assert not any([await durable.send("q", body) for body in bodies])
    assert durable.waiting == 20 and not client.brokers.got
    client.brokers.serves = True
    await all_transferred(durable)
    assert client.brokers.bodies == bodies
    assert all(mark is None for _, _, mark in client.brokers.got), "none of them had been sent before"
    await until_connected(durable)
    assert await durable.send("q", b"last") is True


async def test_what_is_sent_during_the_transfer_goes_behind_it(client: Client) -> None:
    client.brokers.serves = False
    durable = client.start()
    for number in range(30):
        await durable.send("q", b"%d" % number)
    client.brokers.serves = client.brokers.silent = True
    await until_connected(durable)
    assert await durable.send("q", b"30") is False
    client.brokers.silent = False
    client.brokers.links[-1]._end.set()
    await all_transferred(durable)
    assert client.brokers.bodies == [b"%d" % number for number in range(31)]


async def test_a_failover_in_the_middle_of_a_send_fails_no_operation_and_the_copy_says_so(client: Client) -> None:
    durable = client.start()
    await until_connected(durable)
    await durable.send("q", b"1")
    client.brokers.silent = True
    sending = [asyncio.create_task(durable.send("q", body)) for body in (b"2", b"3")]
    await asyncio.sleep(0.02)
    client.brokers.silent = False
    await client.brokers.fail_over()
    await asyncio.gather(*sending)
    await all_transferred(durable)
    assert client.brokers.bodies == [b"1", b"2", b"3", b"2", b"3"]
    first, again = client.brokers.got[1], client.brokers.got[3]
    assert first[1] == again[1] and first[2] is None and again[2] is not None


async def test_a_send_that_is_confirmed_late_is_accepted_in_time_and_sent_once(client: Client) -> None:
    durable = client.start()
    await until_connected(durable)
    client.brokers.silent = True
    assert await durable.send("q", b"1") is False
    assert len(MessageRepository(client.storage).messages) == 1
    client.brokers.links[-1]._end.set()
    await all_transferred(durable)
    assert client.brokers.bodies == [b"1"]


async def test_a_killed_client_is_followed_by_one_that_sends_what_it_finds_with_marks(client: Client) -> None:
    client.brokers.serves = False
    durable = client.start()
    for body in (b"1", b"2"):
        await durable.send("q", body)
    await client.kill()
    durable = client.start()
    await durable.send("q", b"3")
    client.brokers.serves = True
    await all_transferred(durable)
    assert client.brokers.bodies == [b"1", b"2", b"3"]
    marks = [mark for _, _, mark in client.brokers.got]
    assert marks[0] == marks[1] and marks[0] is not None and marks[2] is None
    assert len({ident for _, ident, _ in client.brokers.got}) == 3


async def test_marks_tell_the_copies_of_every_connection_apart(client: Client) -> None:
    durable = client.start()
    await until_connected(durable)
    client.brokers.silent = True
    await durable.send("q", b"1")
    for _ in range(3):
        await client.kill()
        durable = client.start()
        await until_connected(durable)
        await asyncio.sleep(0.02)
    marks = [mark for _, _, mark in client.brokers.got]
    assert len(marks) == 4 and len(set(marks)) == 4 and marks[0] is None
    client.brokers.silent = False
    await client.brokers.fail_over()
    await all_transferred(durable)


@pytest.mark.parametrize("step", STEPS)
async def test_killed_at_any_step_nothing_accepted_is_lost_or_out_of_order(client: Client, step: str) -> None:
    accepted = []
    serves = True
    killed = 0
    durable = client.start()

    def die(here: str) -> None:
        nonlocal killed
        if here == step and count % 5 == 4:
            killed += 1
            client.storage.close()
            raise RuntimeError("killed")

    for count in range(40):
        client.brokers.serves = serves
        try:
            await asyncio.sleep(0.002)
            await durable.send("q", b"%d" % count)
            accepted.append(b"%d" % count)
        except (RuntimeError, OSError):
            await client.kill()
            durable = client.start(on_step=die)
        if count % 7 == 6:
            serves = not serves
            if client.brokers.links:
                await client.brokers.fail_over()
        durable._step = die
    await client.kill()
    client.brokers.serves = True
    await all_transferred(client.start())
    assert killed or step == STEPS[-1]
    arrived = list(dict.fromkeys(client.brokers.bodies))
    assert [body for body in arrived if body in accepted] == accepted
    assert set(arrived) <= {b"%d" % number for number in range(40)}


async def test_what_a_broker_refuses_at_once_is_refused_and_the_rest_goes_on(client: Client) -> None:
    client.brokers.refused = {b"bad"}
    durable = client.start()
    await until_connected(durable)
    with pytest.raises(Rejected, match="too big"):
        await durable.send("q", b"bad")
    await durable.send("q", b"good")
    await all_transferred(durable)
    assert client.brokers.bodies == [b"good"] and not durable.take_refusals()


async def test_what_a_broker_refuses_later_is_kept_aside_until_somebody_takes_it(client: Client) -> None:
    client.brokers.serves, client.brokers.refused = False, {b"bad"}
    durable = client.start()
    for body in (b"1", b"bad", b"2"):
        assert await durable.send("q", body) is False
    client.brokers.serves = True
    await all_transferred(durable)
    assert list(dict.fromkeys(client.brokers.bodies)) == [b"1", b"2"]
    await client.kill()
    durable = client.start()
    ((refused, reason),) = durable.take_refusals()
    assert (refused.body, reason) == (b"bad", "too big")
    assert durable.take_refusals() == []


async def test_a_full_repository_refuses_what_it_does_not_accept() -> None:
    client = Client(Brokers(), max_messages=2)
    client.brokers.serves = False
    durable = client.start()
    await durable.send("q", b"1")
    await durable.send("q", b"2")
    with pytest.raises(RepositoryFull):
        await durable.send("q", b"3")
    client.brokers.serves = True
    await all_transferred(durable)
    assert client.brokers.bodies == [b"1", b"2"]
    await durable.close()


async def test_off_line_on_purpose_it_sends_nothing_until_it_comes_back(client: Client) -> None:
    durable = client.start()
    await until_connected(durable)
    await durable.go_offline()
    assert await durable.send("q", b"1") is False
    await asyncio.sleep(0.05)
    assert not client.brokers.got and not durable.connected
    durable.go_online()
    await all_transferred(durable)
    assert client.brokers.bodies == [b"1"]


async def test_after_the_disk_has_failed_nothing_is_accepted(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.brokers.serves = False
    durable = client.start()

    def fail(self: MemoryStorage, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStorage, "append", fail)
        with pytest.raises(OSError, match="No space left"):
            await durable.send("q", b"1")
    with pytest.raises(OSError, match="failed before: No space left"):
        await durable.send("q", b"2")


class Primitives:
    """A broker of another kind: takes, refuses or loses what is sent."""

    def __init__(self, fate: dict[bytes, Exception | None], got: list[bytes]) -> None:
        self._fate, self._got = fate, got

    async def connect(self, host: str, port: int, local: str) -> None:
        if host == "dead":
            raise ConnectionRefusedError

    async def send(self, queue: str, body: bytes) -> None:
        if (error := self._fate.pop(body, None)) is not None:
            raise error
        self._got.append(body)

    async def close(self) -> None:
        """Nothing to do."""


async def test_a_broker_without_headers_gets_the_mark_in_the_body() -> None:
    from stormproof.contracts.client import NotDone

    got: list[bytes] = []
    fate: dict[bytes, Exception | None] = {b"1": OSError("reset"), b"2": NotDone("busy")}
    storage = MemoryStorage()

    def link() -> GenericLink:
        return GenericLink([("dead", 1), ("alive", 1)], lambda: Primitives(fate, got), "", 1.0,  # type: ignore[arg-type, return-value]
                           lambda headers, body: body + headers.get(SENT_AGAIN, "").encode())

    durable = DurableConnection("me", MessageRepository(storage), link, QUICK)
    durable.start()
    await until_connected(durable)
    for body in (b"1", b"2", b"3"):
        await durable.send("q", body)
    await all_transferred(durable)
    assert got[0][:1] == b"1" and len(got[0]) > 1, "nobody knows whether it had arrived"
    assert got[1:] == [b"2", b"3"], "it certainly had not"
    await durable.close()


