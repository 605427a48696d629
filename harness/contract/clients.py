"""Contract items about clients: queues, registers, locks, logs, events."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

from harness.contract.core import CALL_SECONDS, Bench, BenchClient, Broken, ContractItem, NotClaimed, quietly, told
from harness.contract.data_kinds import TAKE_SECONDS, EventKind, LogKind, QueueKind, RegisterKind, kind_of
from harness.contract.sockets import connections
from stormproof.contracts.client import (
    EventConnection,
    LockConnection,
    LogConnection,
    LogEntry,
    RegisterConnection,
    WatchConnection,
)
from stormproof.shell_system import QUEUES
from stormproof.timeout_scale import TIMEOUT_FACTOR
from workloads.fenced_drain import FencedDrain

LATE_SECONDS = 3.0 * TIMEOUT_FACTOR
"""The delay beyond its time-out that a take may have."""
AGAIN_SECONDS = 20.0 * TIMEOUT_FACTOR
"""The time within which an unacknowledged message must be redelivered."""
LOCK_SECONDS = 20.0
MOST_HOSTS = 3
"""The most client hosts from which connections are made."""
_EVENT_WAIT_SECONDS = 1.0

REGISTERS, LOGS, WATCHES, EVENTS = "registers", "logs", "watches", "events"


async def _from_local(bench: Bench) -> str:
    if bench.make_connection() is None:
        raise NotClaimed("its clients have no primitives that the suite knows")
    machines = {bench.backend.address(name) for name in bench.cluster.topology.machines}
    hosts = bench.cluster.test.client_hosts[:MOST_HOSTS]
    for place, host in enumerate(hosts):
        kind = kind_of(bench)
        await kind.prepare(bench, place)
        before = connections()
        client = await bench.client(place)
        await client.call(kind.put(client, bench.body()))
        await kind.find(client)
        # Programs of machines may be descendants of this process, too.
        made = {each for each in connections() - before if each.remote in machines and each.local not in machines}
        if not made:
            raise Broken(f"a client that works has no connection to any node ({', '.join(sorted(machines))})")
        wanted = bench.backend.address(host)
        for each in sorted(made, key=lambda each: each.port):
            if each.local != wanted:
                raise Broken(f"asked to connect from {wanted}, it has a connection from {each.local} to "
                             f"{each.remote}:{each.port}")
        await bench.close_clients()
    return f"from {', '.join(bench.backend.address(host) for host in hosts)}"


async def _close(bench: Bench) -> str:
    if bench.make_connection() is None:
        raise NotClaimed("its clients have no primitives that the suite knows")
    kind = kind_of(bench)
    client = await bench.client()
    await client.close()
    try:
        await client.call(client.connection.close())
    except Exception as error:
        raise Broken(f"a second close() raised {told(error)}") from error
    never = BenchClient(bench.make_connection(), client.host, client.node)
    try:
        await never.call(never.connection.close())
    except Exception as error:
        raise Broken(f"close() of a connection that was never opened raised {told(error)}") from error
    return f"once, twice, and before connect(), as the harness does when that failed; {kind.verb}() went before"


async def _send_take(bench: Bench) -> str:
    kind, sender = QueueKind(bench), await bench.client()
    bodies = [bench.body() for _ in range(3)]
    for body in bodies:
        await sender.call(sender.connection.send(kind.queue, body))
    taker = await bench.client()
    found: list[bytes] = []
    for _ in bodies:
        delivery = await taker.call(taker.connection.take(kind.queue, CALL_SECONDS / 2))
        if delivery is None:
            raise Broken(f"of {len(bodies)} messages that were sent, {len(found)} came")
        if not isinstance(delivery.body, bytes):
            raise Broken(f"a body is {type(delivery.body).__name__}, not bytes")
        found.append(delivery.body)
        await taker.call(delivery.ack())
    if sorted(found) != sorted(bodies):
        raise Broken(f"sent {bodies}, taken {found}")
    if (left := await taker.call(taker.connection.take(kind.queue, TAKE_SECONDS))) is not None:
        raise Broken(f"{left.body!r} was delivered again, though every message was acknowledged")
    return f"{len(bodies)} messages"


async def _depth(bench: Bench) -> str:
    kind, client = QueueKind(bench), await bench.client()
    if await client.call(client.connection.depth(kind.queue)) is None:
        return await _fence(client, kind.queue)
    await _demand_depth(client, kind.queue, 0, "an empty queue")
    for _ in range(3):
        await client.call(client.connection.send(kind.queue, bench.body()))
    await _demand_depth(client, kind.queue, 3, "three messages were sent")
    return "0 and 3"


async def _fence(client: BenchClient, queue: str) -> str:
    """Demand that a fence comes back, which must show the queue's emptiness where ``depth`` returns None."""
    connection = client.connection
    drain = FencedDrain(lambda body: client.call(connection.send(queue, body)),
                        lambda seconds: client.call(connection.take(queue, seconds)),
                        patience=CALL_SECONDS, span=0.0, poll=TAKE_SECONDS)  # fmt: skip
    if (message := await drain.next()) is not None:
        raise Broken(f"{message.body!r} was delivered from an empty queue")
    return "None: nobody tells it, so drains end by fences, which come back"


async def _demand_depth(client: BenchClient, queue: str, wanted: int, after: str) -> None:
    """Raise Broken when the depth has another value and keeps it for a while. Some systems update their counts only
    periodically."""
    until = time.monotonic() + LATE_SECONDS
    while (found := await client.call(client.connection.depth(queue))) != wanted:
        if time.monotonic() > until:
            raise Broken(f"after {after}, depth() is {found!r}, not {wanted}")
        await asyncio.sleep(0.2)


async def _depth_unacknowledged(bench: Bench) -> str:
    kind, client = QueueKind(bench), await bench.client()
    if await client.call(client.connection.depth(kind.queue)) is None:
        raise NotClaimed("depth() returns None")
    for _ in range(2):
        await client.call(client.connection.send(kind.queue, bench.body()))
    delivery = await client.call(client.connection.take(kind.queue, CALL_SECONDS / 2))
    if delivery is None:
        raise Broken("take() gave nothing of two messages")
    await _demand_depth(client, kind.queue, 2, "one of two messages was taken and not acknowledged")
    await client.call(delivery.ack())
    await _demand_depth(client, kind.queue, 1, "one of two messages was acknowledged")
    return "2 with one of two taken, 1 when that was acknowledged"


async def _take_empty(bench: Bench) -> str:
    kind, client = QueueKind(bench), await bench.client()
    await client.call(client.connection.take(kind.queue, TAKE_SECONDS))  # so that the set-up of a first take is done
    began = time.monotonic()
    found = await client.call(client.connection.take(kind.queue, TAKE_SECONDS))
    seconds = time.monotonic() - began
    if found is not None:
        raise Broken(f"take() of an empty queue returned {found!r}")
    if seconds > TAKE_SECONDS + LATE_SECONDS:
        raise Broken(f"take(queue, {TAKE_SECONDS}) of an empty queue returned after {seconds:.1f} s")
    return "None, in time"


async def _give_back(bench: Bench) -> str:
    kind, client = QueueKind(bench), await bench.client()
    body = bench.body()
    await client.call(client.connection.send(kind.queue, body))
    delivery = await client.call(client.connection.take(kind.queue, CALL_SECONDS / 2))
    if delivery is None:
        raise Broken("take() did not return the message that was sent")
    if delivery.give_back is None:
        raise NotClaimed("deliveries have no give_back; the harness closes the connection instead")
    await client.call(delivery.give_back())
    other = await bench.client()
    until = time.monotonic() + AGAIN_SECONDS
    again = None
    while again is None and time.monotonic() < until:  # the system may give it to either client
        again = await client.call(other.connection.take(kind.queue, TAKE_SECONDS)) \
            or await client.call(client.connection.take(kind.queue, TAKE_SECONDS))
    if again is None:
        raise Broken(f"the returned message is not delivered again within {AGAIN_SECONDS:g} s")
    if again.body != body:
        raise Broken(f"the returned message was {body!r}, but {again.body!r} was delivered")
    await client.call(again.ack())
    return "comes again"


async def _redelivered(bench: Bench) -> str:
    kind, client = QueueKind(bench), await bench.client()
    body = bench.body()
    await client.call(client.connection.send(kind.queue, body))
    if await client.call(client.connection.take(kind.queue, CALL_SECONDS / 2)) is None:
        raise Broken("take() did not return the message that was sent")
    await quietly(client.connection.close())
    other = await bench.client()
    try:
        await _demand_again(other, kind.queue, body, "was taken and not acknowledged, its taker's connection closed")
    except Broken:
        if not (bench.overrides("repair") and (done := await bench.cluster.repair())):
            raise
        await _demand_again(other, kind.queue, body, f"was taken and not acknowledged ({done})")
        return f"comes again after an operator has {done}"
    return "comes again"


async def _demand_again(client: BenchClient, queue: str, body: bytes, how: str) -> None:
    until = time.monotonic() + AGAIN_SECONDS
    while (delivery := await client.call(client.connection.take(queue, TAKE_SECONDS))) is None:
        if time.monotonic() > until:
            raise Broken(f"what {how} is not delivered to another client within {AGAIN_SECONDS:g} s")
    if delivery.body != body:
        raise Broken(f"the message that {how} was {body!r}, but {delivery.body!r} was delivered")
    await client.call(delivery.ack())


def _connection(bench: Bench, kind: type[Any], what: str) -> Any:
    connection = bench.make_connection()
    if not isinstance(connection, kind):
        raise NotClaimed(f"its connections have no {what}")
    return connection


def _registers(bench: Bench) -> RegisterKind:
    connection = bench.make_connection()
    if not bench.neutral:
        raise NotClaimed("its clients speak STOMP, with headers that the harness itself writes for registers")
    if not isinstance(connection, RegisterConnection):
        raise Broken("it claims to provide registers, but its connections lack one of read, write, cas")
    return RegisterKind(bench)


async def _read_write(bench: Bench) -> str:
    kind, client, other = _registers(bench), await bench.client(), await bench.client()
    if (found := await client.call(client.connection.read(kind.name))) is not None:
        raise Broken(f"read() of a register that was never written returned {found!r}, not None")
    for body in (bench.body(), bench.body()):
        await client.call(client.connection.write(kind.name, body))
        if (found := await other.call(other.connection.read(kind.name))) != body:
            raise Broken(f"after write({body!r}), read() by another client returned {found!r}")
    return "None before, then what was written"


async def _cas(bench: Bench) -> str:
    kind, client = _registers(bench), await bench.client()
    first, second, wrong = bench.body(), bench.body(), bench.body()
    swaps: list[tuple[bytes | None, bytes, bool, bytes]] = [
        (None, first, True, first), (None, wrong, False, first), (wrong, second, False, first),
        (first, second, True, second),
    ]  # fmt: skip
    for expected, value, wanted, then in swaps:
        done = await client.call(client.connection.cas(kind.name, expected, value))
        found = await client.call(client.connection.read(kind.name))
        if done is not wanted or found != then:
            raise Broken(f"cas({expected!r}, {value!r}) returned {done!r}, and {found!r} is there; it should be "
                         f"{wanted} and {then!r}")
    return "of nothing, of what is there, of what is not"


async def _lock(bench: Bench) -> str:
    _connection(bench, LockConnection, "locks")
    name, holder, waiting = bench.announced("locks"), await bench.client(), await bench.client()
    first = await holder.call(holder.connection.acquire(name, LOCK_SECONDS))
    trying = asyncio.create_task(waiting.call(waiting.connection.acquire(name, LOCK_SECONDS), 3 * CALL_SECONDS))
    try:
        await asyncio.sleep(_EVENT_WAIT_SECONDS)
        if trying.done():
            raise Broken(f"a second client has the lock ({_end(trying)}) while the first one has it")
        if await holder.call(holder.connection.release(name)) is not True:
            raise Broken("release() by the holder did not return True")
        second = await trying
    finally:
        trying.cancel()
    if (first, second) != (None, None) and not (type(first) is type(second) is int and second > first):
        raise Broken(f"the second holder's token {second!r} is not above the first one's {first!r}")
    await waiting.call(waiting.connection.release(name))
    return f"one holder at a time, tokens {first} and {second}"


def _end(task: asyncio.Task[Any]) -> str:
    return told(error) if (error := task.exception()) is not None else f"token {task.result()!r}"


async def _log(bench: Bench) -> str:
    _connection(bench, LogConnection, "append and read")
    kind, client = LogKind(bench), await bench.client()
    bodies, offsets = [bench.body() for _ in range(3)], []
    if found := await kind.find(client):
        raise Broken(f"read() of a log that was never written returned {found!r}")
    for body in bodies:
        offsets.append(await client.call(client.connection.append(kind.name, body)))
    if not all(0 < low < high < 1 << 31 for low, high in itertools.pairwise(offsets)):
        raise Broken(f"offsets are {offsets}; they must grow, above 0 and below 2**31")
    other = await bench.client()
    for after, wanted in ((0, bodies), (offsets[0], bodies[1:]), (offsets[-1], [])):
        entries = await other.call(other.connection.read(kind.name, after, len(bodies)))
        if [entry.body for entry in entries] != wanted:
            raise Broken(f"read() after offset {after} returned {[entry.body for entry in entries]}, not {wanted}")
        if [entry.offset for entry in entries] != offsets[len(bodies) - len(wanted):]:
            raise Broken(f"append() said {offsets}, read() says {[entry.offset for entry in entries]}")
    if len(entries := await other.call(other.connection.read(kind.name, 0, 1))) != 1:
        raise Broken(f"read() of one entry at most returned {len(entries)}")
    return f"offsets {', '.join(map(str, offsets))}"


async def _watch(bench: Bench) -> str:
    _connection(bench, WatchConnection, "put, head, watch and event")
    name, client, watcher = bench.announced("registers"), await bench.client(), await bench.client()
    if head := await client.call(client.connection.head(name)):
        raise Broken(f"head() of a key that was never put is {head}, not 0")
    bodies = [bench.body() for _ in range(3)]
    revisions = [await client.call(client.connection.put(name, bodies[0]))]
    await watcher.call(watcher.connection.watch(name, 0))
    revisions += [await client.call(client.connection.put(name, body)) for body in bodies[1:]]
    if not all(0 < low < high < 1 << 31 for low, high in itertools.pairwise(revisions)):
        raise Broken(f"revisions are {revisions}; they must grow, above 0 and below 2**31")
    if (head := await client.call(client.connection.head(name))) != revisions[-1]:
        raise Broken(f"put() said {revisions[-1]}, head() says {head}")
    for after in (0, revisions[0], revisions[-1]):
        await watcher.call(watcher.connection.watch(name, after))  # replaces the previous watch
        wanted = [pair for pair in zip(revisions, bodies, strict=True) if pair[0] > after]
        found: list[tuple[int, bytes]] = []
        deadline = time.monotonic() + _EVENT_WAIT_SECONDS * (1 + len(wanted))
        while time.monotonic() < deadline and len(found) <= len(wanted):
            told = await watcher.call(watcher.connection.event(_EVENT_WAIT_SECONDS))
            if isinstance(told, LogEntry):
                found.append((told.offset, told.body))
            elif told is None:
                break
        if found != wanted:
            raise Broken(f"watch() after revision {after} told {found}, not {wanted}")
    return f"revisions {', '.join(map(str, revisions))}"


async def _events(bench: Bench) -> str:
    if not bench.neutral:
        raise NotClaimed("its clients speak STOMP, with headers that the harness itself writes for events")
    _connection(bench, EventConnection, "publish and subscribe")
    kind, publisher = EventKind(bench), await bench.client()
    await kind.prepare(bench)
    await publisher.call(publisher.connection.create(kind.topic))  # an existing topic serves as well
    bodies = [bench.body() for _ in range(3)]
    for body in bodies:
        await publisher.call(publisher.connection.publish(kind.topic, body))
    if (found := await kind.find(publisher)) != bodies:
        raise Broken(f"published {bodies}, and to a subscriber that wants order came {found}")
    return f"{len(bodies)} events, in order"


ITEMS = (
    ContractItem("connect-from", "every connection of a client is made from the address `local`", "connect",
                 "bind the socket: asyncio.open_connection(host, port, local_addr=(local, 0)); else no partition cuts "
                 "this client off", _from_local),
    ContractItem("send-take", "what was sent comes, once, when it is acknowledged", "take",
                 "return Delivery(body, ack); the body as it was sent", _send_take, needs=QUEUES),
    ContractItem("depth", "it is the number of messages in the queue", "depth",
                 "ask the system, not what this connection has seen", _depth, needs=QUEUES),
    ContractItem("depth-unacknowledged", "messages that were delivered and not acknowledged count", "depth",
                 "add those that are with consumers", _depth_unacknowledged, needs=QUEUES),
    ContractItem("take-empty", "of an empty queue it returns None, in time", "take",
                 "wait `timeout` seconds, then return None; raise nothing", _take_empty, needs=QUEUES),
    ContractItem("give-back", "what is given back comes again, while its connection goes on", "take",
                 "give_back must put the message into the queue again; leave it out where the system can't", _give_back,
                 needs=QUEUES),
    ContractItem("redelivery", "what was taken and not acknowledged comes again when its taker is gone", "take",
                 "acknowledge nothing before ack(); set the system's time-out for deliveries, if it has one, to "
                 "seconds", _redelivered, needs=QUEUES),
    ContractItem("read-write", "a read returns None, then what was written last", "read",
                 "ask the system; bytes as they were written", _read_write, needs=REGISTERS),
    ContractItem("cas", "it sets the value if the expected one is there, and returns whether it did", "cas",
                 "compare and set in one step of the system's; None: there is nothing", _cas, needs=REGISTERS),
    ContractItem("lock", "one holder at a time; its token is above that of the one before", "acquire",
                 "return when the lock is ours; the token must come from the system", _lock),
    ContractItem("log", "offsets grow along a log; reads give what was appended, after an offset, so many at most",
                 "append", "the offset must be the entry's own, as the system has it", _log, needs=LOGS),
    ContractItem("watch",
                 "a watch tells what was put after a revision, in order, each once; head() is the last revision",
                 "watch", "begin after the revision that was given; a new watch takes the place of the one before",
                 _watch, needs=WATCHES),
    ContractItem("events", "what is published comes to who has subscribed, in order where that is asked for",
                 "subscribe", "return from subscribe() when the system has the subscription", _events, needs=EVENTS),
    ContractItem("close", "it raises nothing: not once, not twice, not of a connection that was never opened", "close",
                 "bear that nothing is there to be closed", _close),
)  # fmt: skip
"""Items that are tested while all nodes run."""
