"""Redis: streams with a consumer group as queues, streams as logs, string values as registers.

A message is an entry of a stream. Taking it is XREADGROUP, which keeps it pending for this consumer; acknowledging it
removes it, so that the stream's length is the queue's depth. The pending entries of a lost consumer are claimed by
another one when they have been idle for ``claim_after``, and delivered again. (Redis' documentation, "Redis Streams",
sections *Consumer groups* and *Recovering from permanent failures*.)

Outcomes, by Redis' documentation, "Redis error messages", *Common Redis errors*:

* Certainly not done: READONLY ("Only the primary accepts writes"); LOADING ("Most commands fail until loading
  finishes"); NOREPLICAS ("The primary accepts writes only when enough replicas are connected, and there aren't
  enough"); MASTERDOWN ("the replica refuses commands while it can't get updates from the primary"); OOM ("command not
  allowed when used memory > 'maxmemory'"); MISCONF ("Commands that may modify the data set are disabled"); BUSY, while
  another client's script runs; NOAUTH and NOPERM; WRONGTYPE ("A command was used on a key that holds a different data
  type"); MOVED ("The key belongs to a hash slot that another cluster node serves"), ASK, TRYAGAIN and CLUSTERDOWN; and
  every request of which nothing was written to the socket.
* May have happened: every other error, every end of the connection after the first byte of a request, and fewer
  replicas than WAIT was asked for: "WAIT does not make Redis a strongly consistent store".

A script may have had effects before its error. The one script that is used here (for ``cas``) has one write, its last
command, so an error of the first list means the same there, except for MOVED and the others of a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, overload

from stormproof.contracts.client import Delivery, LogEntry, NotDone
from stormproof.contracts.guarantee import NOT_PROMISED, Guarantee
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup, ProtocolClient
from stormproof.errors import BackendError

SERVER_PORT, SENTINEL_PORT = 6379, 26379
ANSWER_SECONDS = 2.0
"""Time limit for an answer to an administrator's request, and for a sentinel's answer."""
_GROUP = "consumers"
_REFUSED = frozenset({"READONLY", "LOADING", "NOREPLICAS", "MASTERDOWN", "OOM", "MISCONF", "BUSY", "NOAUTH", "NOPERM",
                      "WRONGTYPE", "NOGROUP"})  # fmt: skip
"""First words of the errors with which a server reports that it has not carried out a command."""
_ELSEWHERE = frozenset({"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"})
"""The same, for single commands alone: a script may have had effects before."""
_COMPARE_AND_SET = """
local held = redis.call('GET', KEYS[1])
if (ARGV[1] == '0' and held == false) or (ARGV[1] == '1' and held == ARGV[2]) then
    redis.call('SET', KEYS[1], ARGV[3])
    return 1
end
return 0
"""


class RedisConnection:
    """One client's connection to the server that takes writes, as the documentation of Sentinel's clients describes.

    It neither reconnects nor repeats anything: a command sent twice is two messages. With the option ``wait``, a write
    is confirmed only when that number of replicas has it (WAIT).
    """

    prefetch = 1

    def __init__(self, setup: BrokerSetup) -> None:
        self._setup = setup
        self._options = REDIS.settings(setup)
        self._name = uuid.uuid4().hex
        self._wire: Any = None
        self._grouped: set[str] = set()
        self.served_by: str | None = None

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect. With Sentinel, a sentinel names the server, which must report that it is the master ("Sentinel
        client spec", steps 1 to 3)."""
        if self._options["sentinel"]:
            host, port = await self._master(host, local)
            self.served_by = next((each.node for each in self._setup.brokers if (each.host, each.port) == (host, port)),
                                  None)  # fmt: skip
        self._wire = await _connected(host, port, local, self._setup.access)
        role = await self._ask("ROLE")
        if role[0] != b"master":
            raise NotDone(f"{host} is a {role[0].decode()}")

    async def send(self, queue: str, body: bytes) -> None:
        """Add an entry."""
        await self._written("XADD", queue, "*", "body", body)

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Take a new entry, or one that another consumer has kept for too long."""
        await self.group(queue)
        entries = await self._claimed(queue) or await self._fresh(queue, timeout)
        if not entries:
            return None
        number, fields = entries[0]

        async def ack() -> None:
            await self._together(("XACK", queue, _GROUP, number), ("XDEL", queue, number))

        return Delivery(_body(fields), ack)

    async def depth(self, queue: str) -> int:
        """Return the number of entries that were not acknowledged."""
        return int(await self._ask("XLEN", queue))

    async def connect_copy(self, host: str, port: int, local: str) -> None:
        """Connect to this server, master or replica."""
        self._wire = await _connected(host, port, local, self._setup.access)
        await self._ask("PING")

    async def append(self, name: str, body: bytes) -> int:
        """Add an entry to a stream whose identifiers are counted (``0-*``), not taken from the clock: the second part
        is the offset. (Redis' documentation, XADD, "Specifying a Stream ID as an argument"; since 7.0.)"""
        return _offset(await self._written("XADD", name, "0-*", "body", body))

    @overload
    async def read(self, name: str) -> bytes | None: ...
    @overload
    async def read(self, name: str, after: int, limit: int) -> Sequence[LogEntry]: ...
    async def read(self, name: str, after: int | None = None, limit: int = 0) -> bytes | Sequence[LogEntry] | None:
        """Return up to ``limit`` entries of a log after an offset; without them, the value of a register."""
        if after is None:
            value: bytes | None = await self._ask("GET", name)
            return value
        entries = await self._ask("XRANGE", name, f"(0-{after}", "+", "COUNT", limit)
        return [LogEntry(_offset(number), _body(fields)) for number, fields in entries]

    async def write(self, name: str, value: bytes) -> None:
        """Set a value."""
        await self._written("SET", name, value)

    async def cas(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """Compare and set, by a script that the server runs as one step."""
        held = (0, b"") if expected is None else (1, expected)
        return bool(await self._written("EVAL", _COMPARE_AND_SET, 1, name, *held, value))

    async def close(self) -> None:
        """Disconnect."""
        if self._wire is not None:
            await self._wire.disconnect(nowait=True)

    async def remove(self, names: Sequence[str]) -> None:
        """Delete streams and values."""
        await self._ask("DEL", *names)

    async def group(self, queue: str) -> None:
        """Create the stream and its consumer group, which begins with the stream's first entry."""
        if queue in self._grouped:
            return
        from redis.exceptions import ResponseError

        try:
            await self._ask("XGROUP", "CREATE", queue, _GROUP, "0", "MKSTREAM")
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._grouped.add(queue)

    async def _master(self, host: str, local: str) -> tuple[str, int]:
        """Return the master's address, as the first sentinel reports it that answers."""
        sentinels = sentinels_of(self._setup, self._options, host)
        trouble: Exception = NotDone("there is no sentinel")
        for sentinel in sentinels:
            try:
                found, port = await master_by(sentinel, self._options["sentinel"], self._setup.access, local)
                return self._setup.resolve(found), port
            except Exception as error:
                trouble = error
        raise trouble

    async def _claimed(self, queue: str) -> list[Any]:
        idle = round(float(self._options["claim_after"]) * 1000)
        return list((await self._ask("XAUTOCLAIM", queue, _GROUP, self._name, idle, "0", "COUNT", 1))[1])

    async def _fresh(self, queue: str, timeout: float) -> list[Any]:
        milliseconds = max(1, round(timeout * 1000))
        answer = await self._ask("XREADGROUP", "GROUP", _GROUP, self._name, "COUNT", 1, "BLOCK", milliseconds,
                                 "STREAMS", queue, ">")  # fmt: skip
        return list(answer[0][1]) if answer else []

    async def _written(self, *words: Any) -> Any:
        """Return the answer to a write, once the replicas have it that WAIT asks for."""
        answer = await self._ask(*words)
        if replicas := int(self._options["wait"]):
            try:
                seen = await self._ask("WAIT", replicas, round(float(self._options["wait_timeout"]) * 1000))
            except NotDone as error:  # WAIT was not done; the write was
                raise RuntimeError(f"WAIT: {error}") from error
            if seen < replicas:
                raise RuntimeError(f"only {seen} of {replicas} replicas have it")
        return answer

    async def _ask(self, *words: Any) -> Any:
        self._demand_open()
        await self._wire.send_packed_command(self._wire.pack_command(*words), check_health=False)
        return await self._answer(words[0])

    async def _together(self, *commands: Sequence[Any]) -> None:
        """Carry out commands as one transaction (Redis' documentation: "Transactions")."""
        self._demand_open()
        packed = self._wire.pack_commands([("MULTI",), *commands, ("EXEC",)])
        await self._wire.send_packed_command(packed, check_health=False)
        for _ in range(len(commands) + 1):
            await self._answer("MULTI")
        for result in await self._answer("EXEC"):
            if isinstance(result, Exception):
                raise result

    async def _answer(self, command: str) -> Any:
        from redis.exceptions import RedisError

        try:
            return await self._wire.read_response()
        except RedisError as error:
            word = _first_word(error)
            if word in _REFUSED or (word in _ELSEWHERE and command != "EVAL"):
                raise NotDone(f"{word}: {error}") from error
            raise

    def _demand_open(self) -> None:
        """Raise NotDone if nothing can be written any longer; the library would connect again by itself."""
        reader, writer = self._wire._reader, self._wire._writer
        if reader is None or writer is None or reader.at_eof() or writer.is_closing():
            raise NotDone("the server has closed the connection; nothing was sent")


class Redis(ProtocolClient):
    """Redis, and servers that speak its protocol: one server, a master with replicas, or several with Sentinel."""

    name = "redis"
    summary = "Redis: streams as queues and logs, values as registers"
    port = SERVER_PORT
    one_leader = True
    tls_port = SERVER_PORT
    provides = frozenset({"queues", "logs", "registers"})
    distributions = ("redis",)
    options = (
        Option("sentinel", "", "name of the master in the sentinels; empty: clients connect to the servers"),
        Option("sentinels", "", "sentinels as HOST[:PORT],...; empty: one next to each server"),
        Option("sentinel_port", SENTINEL_PORT, "port of the sentinels"),
        Option("wait", 0, "replicas that must have a write before a client counts it as confirmed (WAIT)"),
        Option("wait_timeout", 0.5, "seconds that a client waits for them"),
        Option("claim_after", 3.0, "seconds after which a consumer's message counts as abandoned"),
    )
    guarantees = (
        Guarantee("duplicated", NOT_PROMISED, "Redis Streams, Recovering from permanent failures",
                  "what a consumer has had for too long is claimed by another: at least once"),
        Guarantee("order", NOT_PROMISED, "Redis Streams, Recovering from permanent failures",
                  "what is claimed comes after what was added later"),
    )  # fmt: skip
    """Loss is judged in every mode: users of Redis as a broker want to know about confirmed and lost messages,
    regardless of what its documentation says of that mode."""

    def connection(self, setup: BrokerSetup) -> RedisConnection:
        """Return a connection to the master."""
        return RedisConnection(setup)

    async def prepare(self, setup: BrokerSetup) -> None:
        """Create the streams and their groups. A group begins with the first entry, and has no limit of deliveries."""
        connection = await self.admitted(setup)
        try:
            for queue in setup.demands.queues:
                await connection.group(queue)
        finally:
            await connection.close()

    async def leaders(self, setup: BrokerSetup) -> Mapping[str, str]:
        """Return the one server that reports itself master; with Sentinel, if sentinels name it, too."""
        reports = await asyncio.gather(*(self._is_master(setup, each.host, each.port) for each in setup.brokers))
        masters = [broker for broker, master in zip(setup.brokers, reports, strict=True) if master]
        if told := await self._told(setup):
            masters = [each for each in masters if (each.host, each.port) in told]
        if len(masters) != 1:
            return {}
        names = (*setup.demands.queues, *setup.demands.logs, *setup.demands.registers)
        return dict.fromkeys(names, masters[0].node)

    async def time_of(self, setup: BrokerSetup, broker: Broker) -> float:
        """Return the server's time (TIME)."""
        seconds, microseconds = await ask(broker.host, broker.port, "TIME", access=setup.access)
        return int(seconds) + int(microseconds) / 1e6

    async def advertised(self, setup: BrokerSetup) -> Mapping[str, tuple[str, int]]:
        """Return the address under which sentinels announce the master; without them, servers announce none."""
        options = self.settings(setup)
        if not options["sentinel"]:
            return {}
        reports = await asyncio.gather(*(self._is_master(setup, each.host, each.port) for each in setup.brokers))
        masters = [broker for broker, master in zip(setup.brokers, reports, strict=True) if master]
        for sentinel in sentinels_of(setup, options, "") if len(masters) == 1 else ():
            with contextlib.suppress(Exception):
                return {masters[0].node: await master_by(sentinel, options["sentinel"], setup.access, "")}
        return {}

    async def move_leader(self, setup: BrokerSetup, name: str, node: str) -> None:
        """Ask a sentinel for a failover (``SENTINEL FAILOVER``); the sentinels choose the new master.

        Raises:
            BackendError: no sentinel answers. redis.exceptions.RedisError: the sentinel refused.
        """
        options = self.settings(setup)
        trouble: Exception = BackendError("redis: no sentinel answers")
        for host, port in sentinels_of(setup, options, ""):
            try:
                await ask(host, port, "SENTINEL", "FAILOVER", options["sentinel"], access=Access(tls=setup.access.tls))
            except OSError as error:
                trouble = error
            else:
                return
        raise trouble

    def why_no_move(self, options: Mapping[str, Any]) -> str:
        """Return that there are no sentinels, if so."""
        return "" if options["sentinel"] else "only sentinels move the master: --set sentinel=NAME"

    async def clear(self, setup: BrokerSetup, names: Sequence[str]) -> Sequence[str]:
        """Delete the streams and values, on the master."""
        if names:
            connection = await self.admitted(setup)
            try:
                await connection.remove(names)
            finally:
                await connection.close()
        return ()

    async def _is_master(self, setup: BrokerSetup, host: str, port: int) -> bool:
        try:
            return bool((await ask(host, port, "ROLE", access=setup.access))[0] == b"master")
        except Exception:  # a server that is down leads nothing
            return False

    async def _told(self, setup: BrokerSetup) -> set[tuple[str, int]]:
        options = self.settings(setup)
        if not options["sentinel"]:
            return set()
        asked = (master_by(each, options["sentinel"], setup.access, "") for each in sentinels_of(setup, options, ""))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return {(setup.resolve(answer[0]), answer[1]) for answer in answers if not isinstance(answer, BaseException)}


REDIS = Redis()


def sentinels_of(setup: BrokerSetup, options: Mapping[str, Any], host: str) -> list[tuple[str, int]]:
    """Return the addresses of the sentinels that a client of server ``host`` asks, in order: the one next to it, or
    those that ``sentinels`` names, from that server's number on. Without ``host``, all of them."""
    port, hosts = int(options["sentinel_port"]), [broker.host for broker in setup.brokers]
    if not options["sentinels"]:
        return [(each, port) for each in ([host] if host else hosts)]
    named = [text.strip().partition(":") for text in str(options["sentinels"]).split(",")]
    found = [(setup.resolve(name), int(own) if own else port) for name, _, own in named]
    first = hosts.index(host) % len(found) if host in hosts else 0
    return found[first:] + found[:first]


async def master_by(sentinel: tuple[str, int], master: str, access: Access, local: str) -> tuple[str, int]:
    """Return host and port of the master that a sentinel reports.

    Raises:
        NotDone: the sentinel knows no such master. OSError, TimeoutError, redis.exceptions.RedisError: no answer.
    """
    words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", master)
    found = await ask(*sentinel, *words, access=Access(tls=access.tls), local=local)
    if not found:
        raise NotDone(f"the sentinel at {sentinel[0]} knows no master {master!r}")
    return found[0].decode(), int(found[1])


async def ask(host: str, port: int, *words: str, access: Access | None = None, local: str = "") -> Any:
    """Return the answer of a server or sentinel, unconverted: bytes, numbers, lists.

    Raises:
        OSError, TimeoutError, redis.exceptions.RedisError: it does not answer.
    """
    async with asyncio.timeout(ANSWER_SECONDS):
        wire = await _connected(host, port, local, access or Access())
        try:
            await wire.send_command(*words)
            return await wire.read_response()
        finally:
            await wire.disconnect(nowait=True)


async def _connected(host: str, port: int, local: str, access: Access) -> Any:
    """Return a connection of the library, without its pool, which would connect again by itself."""
    import redis.asyncio as redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    class FromHere(redis.Connection):
        def _connection_arguments(self) -> Mapping[str, Any]:
            given = dict(super()._connection_arguments())
            if local:
                given["local_addr"] = (local, 0)
            if access.tls:
                given |= {"ssl": access.tls.context(), "server_hostname": access.tls.name or host}
            return given

    login = access.credentials
    wire = FromHere(host=host, port=port, retry=Retry(NoBackoff(), 0), protocol=2, username=login.login or None,
                    password=login.passcode or None, socket_timeout=None, socket_connect_timeout=None)  # fmt: skip
    try:
        await wire.connect()  # type: ignore[no-untyped-call]
    except BaseException:
        await wire.disconnect(nowait=True)
        raise
    return wire


def _first_word(error: Exception) -> str:
    """Return the first word of a server's error, which the library leaves out of the errors that it knows."""
    from redis import exceptions

    kinds = {
        exceptions.ReadOnlyError: "READONLY", exceptions.BusyLoadingError: "LOADING",
        exceptions.MasterDownError: "MASTERDOWN", exceptions.OutOfMemoryError: "OOM",
        exceptions.NoPermissionError: "NOPERM", exceptions.AuthenticationError: "NOAUTH",
        exceptions.MovedError: "MOVED", exceptions.AskError: "ASK", exceptions.TryAgainError: "TRYAGAIN",
        exceptions.ClusterDownError: "CLUSTERDOWN",
    }  # fmt: skip
    return next((word for kind, word in kinds.items() if isinstance(error, kind)), str(error).partition(" ")[0])


def _body(fields: list[Any]) -> bytes:
    body: bytes = dict(zip(fields[::2], fields[1::2], strict=True))[b"body"]
    return body


def _offset(identifier: bytes) -> int:
    return int(identifier.partition(b"-")[2])
