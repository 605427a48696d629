"""Contract items about mistakes of adapters that later lead to false verdicts."""

from __future__ import annotations

import asyncio
import itertools
import posixpath
import shlex
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from harness.backends.catalog import BACKENDS
from harness.contract.core import CALL_SECONDS, HEALTHY_SECONDS, Bench, BenchClient, Broken, ContractItem, NotClaimed
from harness.contract.data_kinds import TAKE_SECONDS, QueueKind, kind_of
from harness.run.settings import declared_options
from nemesis.catalog import FAULTS
from stormproof.contracts.backend import Shells
from stormproof.contracts.client import Beating, LockConnection
from stormproof.errors import BackendError, UsageError
from stormproof.shell_system import QUEUES
from stormproof.timeout_scale import TIMEOUT_FACTOR
from workloads.catalog import WORKLOADS

SETTLED_SECONDS = 5.0 * TIMEOUT_FACTOR
"""The time after the start for which roles must stay as they are: replicas that join do so within seconds."""
MISSED_BEATS = 4
"""Heartbeats after whose absence a system must have given up a client; protocols allow two or three."""
NOTICE_SECONDS = 6.0 * TIMEOUT_FACTOR
"""The additional time that a system has to notice a stalled client."""
LONGEST_STALL_SECONDS = 50.0
"""The longest stall that is tried: an item has 180 s for three such times."""
_LOCK_SECONDS = 20.0
_HOLDERS = 4


async def _options(bench: Bench) -> str:
    system, tried = bench.cluster.test.system, 0
    places = [((), name) for name in BACKENDS.names()] + [((name,), "sim") for name in FAULTS.names()]
    for entry in WORKLOADS:
        needs = set(WORKLOADS.load(entry.name).needs)
        if not needs <= bench.system.provides:
            continue
        for nemesis, backend in places:
            try:
                declared_options(system, entry.name, nemesis, backend)
            except UsageError as error:
                raise Broken(f"--workload {entry.name}: {error}") from None
        tried += 1
    return f"with {tried} workloads, every nemesis, every backend"


async def _joined(bench: Bench) -> str:
    before = bench.facts["at_start"]
    expected = set(bench.nodes) - set(bench.cluster.spares())
    if len(expected) == 1:
        raise NotClaimed("one node")
    known = {*bench.system.leading_roles, *bench.system.joined_roles}
    for status in before:
        if status.node not in expected:
            continue
        if not status.reachable:
            raise Broken(f"healthy() was true while {status.node} was unreachable")
        if bench.system.joined_roles and bench.system.leading_roles and status.role not in known:
            raise Broken(f"healthy() was true while {status.node} was {status.role!r}, which is none of "
                         f"{', '.join(sorted(known))}")  # fmt: skip
        if status.serving and status.view and (absent := expected - set(status.view)):
            raise Broken(f"healthy() was true while {status.node}'s view lacked {', '.join(sorted(absent))}")
    for old, new in zip(before, bench.facts["settled"], strict=True):
        if old.node in expected and (old.role, old.serving) != (new.role, new.serving):
            raise Broken(f"healthy() was true while {old.node} was {_words(old)}; {SETTLED_SECONDS:g} s later it was "
                         f"{_words(new)}")  # fmt: skip
    return f"roles were the same {SETTLED_SECONDS:g} s later"


def _words(status: Any) -> str:
    return f"{status.role!r}{', serving' if status.serving else ', not serving'}"


async def observe_start(bench: Bench) -> None:
    """Note the nodes' statuses when the system counts as healthy for the first time, and a little later."""
    bench.facts["at_start"] = await bench.statuses()
    await asyncio.sleep(SETTLED_SECONDS)
    bench.facts["settled"] = await bench.statuses()


async def _leader_serves(bench: Bench) -> str:
    witnesses = bench.cluster.leader_witnesses
    if not witnesses and not bench.overrides("leaders"):
        raise NotClaimed("it does not override leaders")
    until = asyncio.get_running_loop().time() + SETTLED_SECONDS
    while True:
        told = {witness: await bench.cluster.leaders_told(witness) for witness in witnesses or ("",)}
        serving = {status.node for status in await bench.statuses() if status.serving}
        wrong = [(witness, name, node) for witness, leaders in told.items() for name, node in leaders.items()
                 if node not in serving]  # fmt: skip
        if not wrong:
            return "each leader serves, by its status"
        if asyncio.get_running_loop().time() > until:
            witness, name, node = wrong[0]
            who = f"leaders_seen() of {witness}" if witness else "leaders()"
            raise Broken(f"{who} says that {node} leads {name}, and status() that {node} does not serve; serving: "
                         f"{', '.join(sorted(serving)) or 'none'}")  # fmt: skip
        await asyncio.sleep(0.5)


async def _tokens(bench: Bench) -> str:
    if not isinstance(bench.make_connection(), LockConnection):
        return await _delivery_numbers(bench)
    name, tokens = bench.announced("locks"), []
    for number in range(_HOLDERS):
        holder = await bench.client()
        tokens.append(await holder.call(holder.connection.acquire(name, _LOCK_SECONDS), 3 * CALL_SECONDS))
        if number % 2:
            await holder.call(holder.connection.release(name))
            tokens.append(await holder.call(holder.connection.acquire(name, _LOCK_SECONDS), 3 * CALL_SECONDS))
        await holder.close()
    if None in tokens:
        raise NotClaimed("acquire returns no tokens")
    bench.facts["token"] = name, tokens[-1]
    _demand_growth(tokens, "holders, one after the other,")
    return f"{', '.join(map(str, tokens))}"


async def _delivery_numbers(bench: Bench) -> str:
    if QUEUES not in bench.system.provides:
        raise NotClaimed("it has no locks and no queues")
    kind, client = QueueKind(bench), await bench.client()
    await client.call(client.connection.send(kind.queue, bench.body()))
    numbers: list[Any] = []
    for _ in range(_HOLDERS):
        taker = await bench.client()
        delivery = await _taken(taker, kind.queue, HEALTHY_SECONDS)
        if delivery is None:
            raise NotClaimed("the message does not come again: see redelivery")
        if delivery.number is None:
            raise NotClaimed("it has no locks, and its deliveries have no number")
        numbers.append(delivery.number)
        await taker.close()
    _demand_growth(numbers, "deliveries of one message")
    return f"{', '.join(map(str, numbers))}"


def _demand_growth(tokens: list[Any], whose: str) -> None:
    if any(type(token) is not int for token in tokens):
        raise Broken(f"{whose} had the tokens {tokens}: each must be an integer, or all None")
    if any(low >= high for low, high in itertools.pairwise(tokens)):
        raise Broken(f"{whose} had the tokens {', '.join(map(str, tokens))}: each must be above those before")


async def _token_after_kill(bench: Bench) -> str:
    if "token" not in bench.facts:
        raise NotClaimed("no tokens were seen: see tokens")
    name, before = bench.facts["token"]
    if all(bench.cluster.stores_nothing(node) for node in bench.nodes):
        raise NotClaimed(f"it stores nothing ({bench.cluster.stores_nothing(bench.nodes[0])})")
    for node in bench.nodes:
        await bench.backend.kill(node, bench.cluster.programs(node)[0])
    if not await bench.mend():
        raise NotClaimed("it is not healthy after a kill: see start-again")
    holder = await bench.client()
    after = await holder.call(holder.connection.acquire(name, _LOCK_SECONDS), HEALTHY_SECONDS)
    await holder.call(holder.connection.release(name))
    if after is None or after <= before:
        raise Broken(f"the last token before a kill of all nodes was {before}, and the first one after it is {after}")
    return f"{before} before a kill of all nodes, {after} after it"


async def _heartbeat(bench: Bench) -> str:
    connection = bench.make_connection()
    beats = float(getattr(connection, "heartbeat", None) or 0.0)
    if not hasattr(connection, "heartbeat") and hasattr(connection, "stand_still"):
        raise Broken("its connections have stand_still and no heartbeat: the harness never calls it")
    if not beats:
        raise NotClaimed("its connections declare no heartbeat")
    if not isinstance(connection, Beating):
        raise Broken("its connections have a heartbeat and no stand_still")
    locks = isinstance(connection, LockConnection)
    limit = max(MISSED_BEATS * beats, float(getattr(connection, "session", 0.0))) + NOTICE_SECONDS
    if limit > LONGEST_STALL_SECONDS:
        raise NotClaimed(f"it has {limit:g} s to notice a stalled client, which is too long to try")
    if not locks and QUEUES not in bench.system.provides:
        raise NotClaimed("it has no locks and no queues")
    holder, other = await bench.client(), await bench.client()
    get = await (_held_lock if locks else _held_message)(bench, holder, other)
    if await get(limit):
        raise Broken(f"a holder that was alive lost {'the lock' if locks else 'its message'} within {limit:g} s: no "
                     "heartbeats are sent")  # fmt: skip
    stalled = asyncio.create_task(holder.connection.stand_still(2 * limit))
    try:
        if not await get(2 * limit):
            held = "the lock" if locks else "its message"
            raise Broken(f"after {2 * limit:g} s of stand_still() the holder still has {held}: the system does not "
                         "miss its heartbeats")  # fmt: skip
    finally:
        stalled.cancel()
        await asyncio.wait([stalled])
    return f"kept for {limit:g} s while the holder was alive, given to another one when it stood still"


Getting = Callable[[float], Awaitable[bool]]
"""Tries for a number of seconds to get what another client holds."""


async def _held_lock(bench: Bench, holder: BenchClient, other: BenchClient) -> Getting:
    name = bench.announced("locks")
    await holder.call(holder.connection.acquire(name, LONGEST_STALL_SECONDS), 3 * CALL_SECONDS)

    async def get(seconds: float) -> bool:
        try:
            await other.call(other.connection.acquire(name, LONGEST_STALL_SECONDS), seconds)
        except TimeoutError:
            await other.call(other.connection.give_up(name))
            return False
        return True

    return get


async def _held_message(bench: Bench, holder: BenchClient, other: BenchClient) -> Getting:
    kind = QueueKind(bench)
    await holder.call(holder.connection.send(kind.queue, bench.body()))
    if await _taken(holder, kind.queue, CALL_SECONDS) is None:
        raise Broken("take() did not return the message that was sent")

    async def get(seconds: float) -> bool:
        return await _taken(other, kind.queue, seconds) is not None

    return get


async def _taken(client: BenchClient, queue: str, seconds: float) -> Any:
    """Take until a message arrives, for ``seconds``."""
    until = asyncio.get_running_loop().time() + seconds
    delivery = None
    while delivery is None and asyncio.get_running_loop().time() < until:
        delivery = await client.call(client.connection.take(queue, TAKE_SECONDS))
    return delivery


async def _data(bench: Bench) -> str:
    if bench.make_connection() is None or not isinstance(bench.backend, Shells):
        raise NotClaimed("its clients have no primitives that the suite knows")
    declared = {bench.cluster.stores_nothing(node) or bench.cluster.stores_elsewhere(node) for node in bench.nodes}
    if "" not in declared:
        raise NotClaimed(f"it declares that it does not store there: {', '.join(sorted(declared))}")
    kind = kind_of(bench)
    await kind.prepare(bench)
    client = await bench.client()
    bodies = [bench.body() for _ in range(3)]
    for body in bodies:
        await client.call(kind.put(client, body))
    used, elsewhere = [], dict[str, tuple[str, ...]]()
    for node in bench.nodes:
        folder = bench.backend.data_dir(node)
        done = await bench.backend.exec(node, f"find {shlex.quote(folder)} -type f -print -quit")
        used += [node] if done.output.strip() else []
        elsewhere[node] = await _written(bench, node)
        if not await _holds(bench, node, folder, bodies):
            for other in elsewhere[node]:
                if await _holds(bench, node, posixpath.join(bench.backend.node_dir(node), other), bodies):
                    raise Broken(f"{node} stored messages in {other}, and none in machine.data, which disk faults and "
                                 "power cuts hit")  # fmt: skip
    if used:
        return f"{', '.join(used)} wrote to machine.data"
    if any(elsewhere.values()):
        node, folders = next((node, folders) for node, folders in elsewhere.items() if folders)
        raise Broken(f"{node} wrote nothing to machine.data, which disk faults and power cuts hit; it wrote to: "
                     f"{', '.join(folders)}")  # fmt: skip
    raise NotClaimed("no node has written a file: declare it by stores_nothing or stores_elsewhere")


async def _holds(bench: Bench, node: str, folder: str, bodies: Sequence[bytes]) -> bool:
    """Return whether a file in a folder, or below it, has the bytes of a body; logs may quote them."""
    assert isinstance(bench.backend, Shells)
    patterns = " ".join(f"-e {shlex.quote(body.decode())}" for body in bodies)
    search = f"timeout 20 grep -rlsF --exclude='*.log' {patterns} -- {shlex.quote(folder)} | head -n 1"
    done = await bench.backend.exec(node, search)
    return bool(done.output.strip())


async def _written(bench: Bench, node: str) -> tuple[str, ...]:
    """Return the folders to which a node writes, without those that only have the output of its programs."""
    writes_to = getattr(bench.backend, "writes_to", None)
    try:
        return () if writes_to is None else await writes_to(node)
    except BackendError:
        return ()


BEGIN = (
    ContractItem("joined", "it is healthy only when all replicas have joined", "healthy",
                 "the load starts when `healthy` returns true: wait until each replica has its role", _joined),
    ContractItem("options", "no option's name is one of a workload, a nemesis or a backend", "options",
                 "rename the option", _options),
)  # fmt: skip
"""Items that are tested before any client connects."""

ITEMS = (
    ContractItem("tokens", "each fencing token is above all before, of whatever client", "acquire",
                 "take the number from the system: a revision, a sequence, a count of deliveries", _tokens),
    ContractItem("heartbeat", "a client that stalls loses what it holds, and one that lives keeps it", "stand_still",
                 "send heartbeats from `connect` on, and none within `stand_still`; declare what the system was told",
                 _heartbeat),
    ContractItem("data", "what is stored is in machine.data", "command",
                 "configure the program to store there; or return the reason from stores_nothing or stores_elsewhere",
                 _data),
)  # fmt: skip
"""Items that are tested while all nodes run."""

END = (
    ContractItem("leader-serves", "`status` reports each node that `leaders` names as serving", "leaders",
                 "answer both from the same source; a node that does not serve clients leads nothing", _leader_serves),
    ContractItem("tokens-kept", "a fencing token after a restart is above all before", "acquire",
                 "the count must be on disk, or be one that never begins again", _token_after_kill),
)  # fmt: skip
"""Items that are tested after clients have connected."""
