"""What is fuzzed of clusters: a peer that knows the secret, a manager, an administrator, in simulated time.

An input is lines of JSON: what the hostile side says, in order. Texts that begin with ``b:`` stand for bytes, those
that begin with ``h:`` for an encoded value, which follows as JSON.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from hostile_fuzz import Target

LIMIT = 30.0
"""Simulated seconds within which whoever is honest is served."""
SECRET = "between us"
CLIENT_PORT, LINK_PORT, LESSOR_PORT = 61613, 61616, 61617
_MOST = 60
_FAILURES = ("Traceback", "background task failed", "connection handler failed", "broker failed", "manager failed")
_JSON_WORDS = (b"\n", b'"b:x"', b"[]", b"{}", b"null", b"-1", b"9223372036854775807")


def _lines(data: bytes) -> Iterator[Any]:
    for line in data.split(b"\n")[:_MOST]:
        with suppress(ValueError, RecursionError):
            yield json.loads(line)


def _wired(value: Any) -> Any:
    """The value with bytes in place of what stands for them."""
    from nodes.reference import wire

    if isinstance(value, str) and value.startswith("b:"):
        return value[2:].encode("utf-8", "surrogatepass")
    if isinstance(value, str) and value.startswith("h:"):
        with suppress(ValueError, RecursionError, wire.WireError):
            return wire.encode(json.loads(value[2:]))
    if isinstance(value, list):
        return [_wired(each) for each in value]
    if isinstance(value, dict):
        return {key: _wired(each) for key, each in value.items()}
    return value


def _frame(value: Any) -> bytes | None:
    from nodes.reference.replication.handshake import encode_frame
    from nodes.reference.wire import WireError

    try:
        return encode_frame(value)
    except WireError:
        return None


def _message_frame(classes: Sequence[type], line: Any) -> bytes | None:
    """The frame of ``["Name", field...]``, also where its fields are not those of that message."""
    from nodes.reference import wire
    from nodes.reference.replication.messages import MessageCodec

    names = [cls.__name__ for cls in classes]
    if not isinstance(line, list) or not line or line[0] not in names:
        return None
    fields, code = _wired(line[1:]), names.index(line[0])
    with suppress(wire.WireError, TypeError, AttributeError):
        if set(get_type_hints(classes[code]).values()) <= {int, float, bool}:
            return MessageCodec(classes).pack(classes[code](*fields))
    try:
        return _frame(bytes([code]) + wire.encode(fields))
    except wire.WireError:
        return None


def _simulated(nodes: int, scenario: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario with simulated machines n1, n2...; nothing may go wrong unnoticed."""
    from harness.sim.backend import SimBackend
    from harness.sim.loop import simulation
    from stormproof.contracts.topology import Topology
    from stormproof.test import Test

    wrong: list[str] = []

    async def whole() -> None:
        backend = SimBackend()
        names = tuple(f"n{number + 1}" for number in range(nodes))
        await backend.provision(Test("joram", "queue", (), "sim", nodes, 1), Topology(names, ()), Path())
        try:
            await scenario(backend)
        finally:
            await backend.release()

    with simulation() as loop:
        loop.set_exception_handler(lambda _, context: wrong.append(repr(context.get("exception") or context)))
        loop.run_until_complete(loop.create_task(whole()))
    assert not wrong, wrong[:3]


class _Victim:
    """An honest broker n2, whose peer n1 is somebody else."""

    def __init__(self, backend: Any, design: str, peers: Sequence[str], **options: Any) -> None:
        self.backend = backend
        self.config = {
            "node": "n2", "design": design, "data": "/n2/data", "host": backend.address("n2"), "port": CLIENT_PORT,
            "login": "guest", "passcode": "guest",
            "peers": {name: [backend.address(name), LINK_PORT] for name in peers},
            "client_addresses": {name: f"{backend.address(name)}:{CLIENT_PORT}" for name in peers},
            "options": {"secret": SECRET, "max_body": 50_000, "linger": 0.1, **options},
        }  # fmt: skip

    async def start(self) -> None:
        from nodes.reference.config import parse_config
        from nodes.reference.server.process import BrokerProcess

        config = parse_config(self.config)
        await self.backend.launch("n2", "main", partial(BrokerProcess, config), "/n2/broker.log")
        await self.status()

    async def kill(self) -> None:
        await self.backend.kill("n2", "main")

    @property
    def log(self) -> str:
        return "\n".join(self.backend._node("n2").logs.get("/n2/broker.log", []))

    async def check(self, end: str = "Refused") -> bool:
        """Whether it lives; nothing of it may have failed, but for a broker that ended itself for that reason."""
        log = "\n".join(line for line in self.log.splitlines() if f"{end}(" not in line)
        for word in _FAILURES:
            assert word not in log, log[-3000:]
        return bool((await self.backend.process("n2", "main")).state != "dead")

    async def ask(self, **request: Any) -> dict[str, Any]:
        from nodes.systems.reference.admin_connection import AdminConnection

        admin = AdminConnection(self.backend.address("n2"), CLIENT_PORT, "guest", "guest")
        try:
            return dict(await admin.design(request, LIMIT))
        finally:
            admin.close()

    async def status(self) -> dict[str, Any]:
        from nodes.systems.reference.admin_connection import AdminConnection

        async with asyncio.timeout(LIMIT):
            while True:
                admin = AdminConnection(self.backend.address("n2"), CLIENT_PORT, "guest", "guest")
                try:
                    return await admin.status(LIMIT)
                except (OSError, EOFError):
                    assert await self.check(), self.log[-3000:]
                    await asyncio.sleep(0.1)
                finally:
                    admin.close()

    async def connect(self) -> Any:
        from workloads.reference.connection import Settings, StompConnection

        settings = Settings("guest", "guest", reliable=False)
        connection = StompConnection([(self.backend.address("n2"), CLIENT_PORT)], settings)
        await connection.open(LIMIT)
        return connection

    async def send(self, queue: str, body: bytes) -> None:
        connection = await self.connect()
        await connection.request("SEND", {"destination": queue}, body, LIMIT)
        await connection.abort()

    async def received(self, queue: str, most: int, seconds: float = LIMIT) -> list[bytes]:
        """Up to so many messages of a queue, which are acknowledged."""
        connection = await self.connect()
        subscribe = {"destination": queue, "id": "s", "ack": "client-individual", "x-prefetch": "10"}
        await connection.request("SUBSCRIBE", subscribe, b"", LIMIT)
        found: list[bytes] = []
        while len(found) < most and (message := await connection.next_message(seconds)) is not None:
            found.append(message.body)
            await connection.request("ACK", {"id": message.headers["ack"]}, b"", LIMIT)
        await connection.abort()
        return found

    async def told(self, destination: str, line: Mapping[str, Any], seconds: float = LIMIT) -> Mapping[str, str]:
        """The receipt of a request; empty where the broker has ended the connection."""
        from nodes.stomp import ProtocolError
        from workloads.reference.connection import ConnectionBroken

        body = line.get("body")
        said = body[2:] if isinstance(body, str) and body.startswith("b:") else json.dumps(body)
        headers = {"destination": destination, "x-request": str(line.get("request"))}
        with suppress(OSError, EOFError, ProtocolError, ValueError, ConnectionBroken):
            connection = await self.connect()
            try:
                return dict(await connection.request("SEND", headers, said.encode("utf-8", "replace"), seconds))
            except TimeoutError:
                return {}
            finally:
                await connection.abort()
        return {}

    async def operate(self, request: Any) -> None:
        """An administrator's request, whatever becomes of it."""
        from nodes.stomp import Frame, ProtocolError
        from nodes.systems.reference.admin_connection import ADMIN_DESIGN, AdminConnection

        admin = AdminConnection(self.backend.address("n2"), CLIENT_PORT, "guest", "guest")
        with suppress(OSError, EOFError, ProtocolError, TimeoutError):
            body = json.dumps(request).encode()
            answer = json.loads((await admin._ask(Frame("SEND", {"destination": ADMIN_DESIGN}, body), "MESSAGE", 3.0)
                                 ).body)  # fmt: skip
            assert answer.get("ok") or ("\n" not in answer["error"] and len(answer["error"]) < 1000), answer
        admin.close()


class _Peer:
    """Who says to be n1, and knows the secret: dials n2, reads what it is told, and says what it likes."""

    def __init__(self, backend: Any, cluster: str, port: int = LINK_PORT, name: str = "n1", whom: str = "n2",
                 protocol: str = "") -> None:
        from nodes.reference.replication.handshake import PROTOCOL, Handshake

        self._address = (backend.address("n2"), port)
        self._whom = whom
        self._handshake = Handshake(protocol or PROTOCOL, cluster, name, SECRET, random.Random(1))
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self.heard: Callable[[Any], None] = lambda frame: None

    async def say(self, frame: bytes | None) -> None:
        if frame is None:
            return
        if self._writer is None or self._writer.transport.is_closing():
            self.leave()
            with suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(3.0):
                    reader, writer = await asyncio.open_connection(*self._address)
                    await self._handshake.dial(reader, writer, self._whom)
                self._writer = writer
                self._reading = asyncio.ensure_future(self._read(reader))
                await asyncio.sleep(0.01)
        if self._writer is not None:
            self._writer.write(frame)
        await asyncio.sleep(0.01)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        from nodes.reference.replication.handshake import FrameParser

        parser = FrameParser()
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                for frame in parser.feed(data):
                    self.heard(frame)

    def leave(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.transport.abort()
        self._writer = None


async def _act(line: Any, peer: _Peer, victim: _Victim, frame: Callable[[Any], bytes | None], manage: str) -> None:
    """Do what a line says: wait, hang up, send a frame, or ask something as a client or an administrator."""
    if isinstance(line, float | int) and not isinstance(line, bool):
        await asyncio.sleep(min(3.0, max(0.0, line)) if line == line else 0.0)
    elif line == "cut":
        peer.leave()
    elif isinstance(line, dict) and "op" in line:
        await victim.operate(line)
    elif isinstance(line, dict) and "request" in line:
        await victim.told(manage, line, 3.0)
    elif isinstance(line, str) and line.startswith("raw:"):
        await peer.say(line[4:].encode("utf-8", "surrogatepass"))
    else:
        await peer.say(frame(line))


_CODE = ("nodes/reference/designs/qpid", "nodes/reference/engine/replica")
_OBJECTS = [["exchange", "x", {"type": "topic"}], ["queue", "q", {"created": "5.1"}],
            ["binding", "x\nq\nk.#", {"exchange": "x", "queue": "q", "key": "k.#"}]]  # fmt: skip
_EVENTS = [["enqueue", "q", 5, [0, 1], {"a": "b"}, "b:one"], ["enqueue", "q", 5, [0, 2], {}, "b:two"],
           ["dequeue", "q", [0, 1]], ["create", "queue", "r", {"created": "5.2", "qpid.replicate": "messages"}, 2],
           ["create", "exchange", "d", {"type": "direct"}, 3], ["delete", "queue", "r", 4],
           ["create", "binding", "d\nq\nk", {"exchange": "d", "queue": "q", "key": "k"}, 5]]  # fmt: skip
_PRIMARY_SAYS = (
    ["BrokerStatus", "primary", 5, ""], 0.1, ["EventGroup", 0, 5, [["snapshot", 1, _OBJECTS]], False],
    ["EventGroup", 1, 5, [["caught-up"]], False], ["EventGroup", 2, 5, _EVENTS[:4], True],
    ["EventGroup", 2, 5, _EVENTS[4:], False],
    ["EventGroup", 3, 5, [["reset", "q", [0, 1], [[5, 1]]]], False],
    0.5, ["BrokerStatus", "primary", 5, ""], ["Completed", 1, 1],
)  # fmt: skip
_BACKUP_SAYS = (
    ["BrokerStatus", "connecting", 0, ""], ["Attach", 0, "", [["honest", "1.1", [[1, 1]], [0, 2], [[1, 2]]]]],
    ["Completed", 0, 2], 0.1, ["Completed", 1, 1], {"request": "create-queue", "body": {"queue": "r"}},
    ["BrokerStatus", "ready", 1, ""],
    {"request": "bind", "body": {"exchange": "e", "queue": "honest", "key": "k"}}, "cut",
    ["Attach", 1, "", []], ["Completed", 9, 9], ["BrokerStatus", "ready", 1, ""],
)  # fmt: skip


def _joined(*lines: Any) -> bytes:
    return b"\n".join(json.dumps(line).encode() for line in lines)


def qpid_links(options: Mapping[str, Any]) -> Target:
    """A broker whose peer says to be its primary, or its backup; then it is made primary, and an honest client is
    served, after a restart as well. What was confirmed before is there, unless a later primary took over."""
    from nodes.reference.designs.qpid.messages import Attach, BrokerStatus, Completed, EventGroup, Refuse, Shutdown

    frame = partial(_message_frame, (BrokerStatus, Attach, Refuse, EventGroup, Completed, Shutdown))

    def run(data: bytes) -> str:
        told = []

        async def scenario(backend: Any) -> None:
            first, *lines = list(_lines(data)) or [""]
            victim = _Victim(backend, "qpid", ("n1", "n2"), manager="none", detection_timeout=0.6,
                             catchup_timeout=0.5, **options)  # fmt: skip
            await victim.start()
            leads = first == "lead"
            if leads:
                await victim.ask(op="promote", bootstrap=True)
                for number in range(3):
                    await victim.send("/queue/honest", b"m%d" % number)
                await victim.told("/management", {"request": "create-exchange", "body": {"exchange": "e"}})
            peer = _Peer(backend, "qpid")
            for line in lines:
                await _act(line, peer, victim, frame, "/management")
            peer.leave()
            stopped = victim.log.find(" stopped ")
            had_all = [at for state in (" ready ", " primary ") if (at := victim.log.find(state)) >= 0]
            assert stopped < 0 or any(at < stopped for at in had_all), "a store is clean that lacks something"
            await asyncio.sleep(1.5)
            if not await victim.check():
                assert "refused by the primary" in victim.log, victim.log[-3000:]
                await victim.start()
            asked = b'"op"' in data or (b'"request"' in data and not leads)
            kept = leads and not asked and "is primary of generation" not in victim.log
            await _serves(victim, [b"m0", b"m1", b"m2"] if kept else [])
            await victim.kill()
            await victim.start()
            await _serves(victim, [])
            assert await victim.check()
            told.append(victim.log)

        _simulated(2, scenario)
        return told[0]

    return Target(
        run,
        [_joined("", *_PRIMARY_SAYS), _joined("lead", *_BACKUP_SAYS),
         _joined("", *_PRIMARY_SAYS[:4], ["Shutdown", "ab"]), _joined("", *_PRIMARY_SAYS[:4], ["Refuse", "no"]),
         _joined("lead", *_BACKUP_SAYS, ["BrokerStatus", "primary", 9, ""], 0.1, *_PRIMARY_SAYS)],
        _CODE, _JSON_WORDS, True, True,
    )  # fmt: skip


async def _serves(victim: _Victim, kept: list[bytes]) -> None:
    """The broker is made primary, if it is not, and serves: what it has is delivered."""
    state = (await victim.ask(op="status"))["state"]
    if state == "stopped":
        await victim.kill()
        await victim.start()
    if state != "primary":
        await victim.ask(op="accept-store")
        answer = await victim.ask(op="promote", force=True)
        assert answer["ok"], answer
    await victim.send("/queue/honest-after", b"x")
    assert await victim.received("/queue/honest-after", 1) == [b"x"]
    if kept:
        assert await victim.received("/queue/honest", 3) == kept
    listed = json.loads((await victim.told("/management", {"request": "list", "body": {}}))["x-answer"])
    for kind, name, _ in [each for each in listed if each[0] == "exchange"][:5]:
        assert kind == "exchange"
        await victim.send(f"/exchange/{name}/k", b"y")
    for _, name, _ in [each for each in listed if each[0] == "queue"][:5]:
        await victim.received(f"/queue/{name}", 5, 0.5)


def qpid_requests() -> Target:
    """Requests of clients and administrators to a broker that is primary; others are served all the same."""

    def run(data: bytes) -> None:
        async def scenario(backend: Any) -> None:
            victim = _Victim(backend, "qpid", ("n1", "n2"), manager="none", catchup_timeout=0.1)
            await victim.start()
            await victim.ask(op="promote", bootstrap=True)
            peer = _Peer(backend, "qpid")
            for line in _lines(data):
                await _act(line, peer, victim, lambda _: None, "/management")
            await asyncio.sleep(0.5)
            assert await victim.check(), victim.log[-3000:]
            await _serves(victim, [])
            await victim.kill()
            await victim.start()
            await _serves(victim, [])
            assert await victim.check()

        _simulated(2, scenario)

    bodies: list[tuple[str, dict[str, Any]]] = [
        ("create-queue", {"queue": "q", "qpid.replicate": "none", "x": "y"}), ("create-exchange", {"exchange": "e"}),
        ("create-exchange", {"exchange": "t", "type": "topic"}),
        ("bind", {"exchange": "t", "queue": "q", "key": "a.#"}),
        ("unbind", {"exchange": "t", "queue": "q", "key": "a.#"}), ("list", {"kind": "queue"}),
        ("bind", {"exchange": "e", "queue": "q", "key": "k"}), ("delete-exchange", {"exchange": "e"}),
        ("delete-queue", {"queue": "q"}),
    ]  # fmt: skip
    asked = [{"request": name, "body": body} for name, body in bodies]
    operations: list[dict[str, Any]] = [
        {"op": "status"}, {"op": "promote", "term": 3, "bootstrap": True, "force": False}, {"op": "accept-store"},
        {"op": "set-broker-url", "addresses": {"n1": ["10.0.0.11", 5672], "n2": ["10.0.0.12", 5673]}},
        {"op": "set-client-url", "addresses": {"n1": ["10.0.0.11", 5672], "n2": ["h", 1]}}, {"op": "erase-store"},
    ]  # fmt: skip
    return Target(run, [_joined(*asked), _joined(*operations), _joined(*asked[:4], *operations[3:], *asked[4:])],
                  (*_CODE, "nodes/reference/server/broker"), _JSON_WORDS, True, True)  # fmt: skip


def qpid_copies() -> Target:
    """Pieces of stores, made of rows, that an administrator gives to a broker that is connecting; started from what it
    was given it serves, or says in one line why it can't."""
    from nodes.reference import wire

    def piece(rows: Any) -> str:
        said = b""
        for row in rows if isinstance(rows, list) else [rows]:
            with suppress(wire.WireError):
                encoded = wire.encode(_wired(row))
                said += len(encoded).to_bytes(4, "big") + encoded
        return base64.b64encode(said).decode()

    def run(data: bytes) -> str:
        told = []

        async def scenario(backend: Any) -> None:
            victim = _Victim(backend, "qpid", ("n1", "n2"), manager="none", catchup_timeout=0.1)
            await victim.start()
            for line in _lines(data):
                if isinstance(line, dict) and "rows" in line:
                    line = {"op": "write-store", **line, "data": piece(line["rows"])}
                if isinstance(line, float | int):
                    await asyncio.sleep(min(20.0, max(0.0, line)) if line == line else 0.0)
                elif isinstance(line, dict):
                    await victim.operate(line)
            await asyncio.sleep(0.5)
            if await victim.check("StoreReplaced"):
                assert (await victim.ask(op="status"))["state"] == "connecting"
            told.append(victim.log)

        _simulated(2, scenario)
        return told[0]

    rows: list[Any] = [["counters", 0, 3, 3], ["queues", 1, "q", "queue", "", 0, 1],
                       ["messages", 1, 1, 0, 'h:{"a": "b"}', "b:x", 1],
                       ["qpid_objects", "queue", "q", {"created": "1.1"}], ["qpid_generations", "q", [[1, 1]]],
                       ]  # fmt: skip
    copying: list[Any] = [
        {"copy": "a", "piece": 0, "rows": rows[:2]}, {"copy": "a", "piece": 1, "rows": rows[2:]},
        {"op": "stamp-store", "copy": "a", "piece": 2, "uuid": "ab", "generation": 3}, 1,
    ]  # fmt: skip
    reading: list[Any] = [
        {"op": "read-store", "copy": "b", "piece": 0}, {"op": "read-store", "copy": "b", "piece": 1}, 16,
        {"op": "stamp-store", "copy": "b", "piece": 2, "uuid": "ab", "generation": 3}, {"op": "status"},
    ]  # fmt: skip
    return Target(run, [_joined(*copying), _joined(*reading), _joined(*copying[:2], *reading)], _CODE, _JSON_WORDS,
                  True, True)  # fmt: skip


def qpid_managers() -> Target:
    """Two managers with a third that is hostile, and a hostile broker beside one: they live."""
    from manager_world import LESSOR_PORT as LESSOR
    from manager_world import MANAGER, MANAGER_PORT, World
    from manager_world import SECRET as WORLD_SECRET
    from manager_world import run as run_world

    from nodes.reference.designs.qpid.manager.lease_server import PROTOCOL, manager_name
    from nodes.reference.designs.qpid.manager.messages import Beat, Echo, Vote, VoteRequest

    assert WORLD_SECRET == SECRET
    frame = partial(_message_frame, (Beat, Echo, VoteRequest, Vote))

    def run(data: bytes) -> None:
        world = World(1, 3)

        async def scenario(world: World) -> None:
            await asyncio.gather(world.start_manager("n2"), world.start_manager("n3"))
            peer = _Peer(world.backend, "qpid managers", MANAGER_PORT)
            broker = _Peer(world.backend, "qpid", LESSOR, "n2", manager_name("n2"), PROTOCOL)
            await asyncio.sleep(0.5)
            for line in _lines(data):
                if isinstance(line, dict) and "lessor" in line:
                    await broker.say(_frame(_wired(line["lessor"])))
                elif isinstance(line, float | int):
                    await asyncio.sleep(min(3.0, max(0.0, line)) if line == line else 0.0)
                elif line == "cut":
                    peer.leave()
                else:
                    await peer.say(frame(line))
            peer.leave()
            broker.leave()
            await asyncio.sleep(1.0)
            for node in ("n2", "n3"):
                log = world.log(node)
                assert world.process(node, MANAGER) is not None, log[-3000:]
                assert not any(word in log for word in _FAILURES), log[-3000:]
                assert len(log) < 1 << 20
            world.wrong.clear()  # who lies about promises can have two primaries made

        run_world(world, scenario)

    report = {"up": True, "state": "connecting", "eligible": True, "generation": 0, "store": "empty", "uuid": "",
              "ballot": 0, "promoted": 0, "finished": 0, "declined": 0, "forced": False}  # fmt: skip
    note = [0, 0, []]
    beat = ["Beat", 1.0, 0, 0, "", False, False, [], note, report]
    leading = ["Beat", 1.0, 40, 40, "n1", True, True, ["n3"], [40, 1, ["n3"]], {**report, "promoted": 40}]
    names_n2 = ["Beat", 1.0, 41, 41, "n2", True, True, [], note, report]
    return Target(
        run,
        [_joined(beat, 0.3, ["Echo", 0.9, 1, 1, 1, "n2", 5.0, 0, 0, note], ["VoteRequest", 7, False],
                 ["VoteRequest", 8, True], ["Vote", 1, True, True, 1, 0, 0, ""], beat, 1.0),
         _joined(beat, leading, 0.2, leading, 0.5, ["Echo", 0.9, 40, 40, 40, "n1", 5.0, 40, 0, [40, 1, ["n3"]]]),
         _joined(beat, names_n2, 0.3, ["Echo", 0.6, 41, 41, 41, "n2", 9.0, 0, 0, note], names_n2, 1.0),
         _joined({"lessor": ["renew", 1.0, 0, 0, []]}, {"lessor": ["renew", 1.0, 0, 3, ["n3"]]}, 0.1,
                 {"lessor": ["leaving"]})],
        ("nodes/reference/designs/qpid/manager",), _JSON_WORDS, True, True,
    )  # fmt: skip


def qpid_manager_answers() -> Target:
    """A manager whose broker answers whatever it likes; it lives, and so does what it tells others."""
    from manager_world import MANAGER, FakeBroker, World
    from manager_world import run as run_world

    from nodes.reference.server.process import NodeProcess
    from nodes.stomp import Frame, encode

    def run(data: bytes) -> None:
        world = World(1, 2)

        class Liar(FakeBroker):
            async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                first = await reader.read(4096)
                if first and data[:1] != b"\xfe":
                    writer.write(encode(Frame("CONNECTED", {"version": "1.2"})))
                while first and await reader.read(4096):
                    if data[:1] == b"\xfe":
                        writer.write(data[1:])
                        continue
                    writer.write(encode(Frame("MESSAGE", {"subscription": "admin", "message-id": "1"}, data)))

        def begin(node: str, runtime: Any) -> NodeProcess:
            process = world.process(node, "broker")
            assert process is not None
            kind = Liar if node == "n1" else FakeBroker
            return NodeProcess(kind(world, node, runtime, process).run(), runtime, "broker")

        async def scenario(world: World) -> None:
            world._begin_broker = begin  # type: ignore[method-assign]
            await world.start()
            await asyncio.sleep(4.0)
            for node in world.names:
                log = world.log(node)
                assert world.process(node, MANAGER) is not None, log[-3000:]
                assert not any(word in log for word in _FAILURES), log[-3000:]
                assert len(log) < 1 << 20
            assert "n2" in world.managers["n1"].alive() and "n1" in world.managers["n2"].alive()
            world.wrong.clear()  # a broker that lies of its state has its manager do the wrong thing

        run_world(world, scenario)

    status = {"ok": True, "state": "ready", "eligible": True, "generation": 3, "forced": False, "primary": None,
              "store": {"state": "dirty", "role": "backup", "uuid": "", "generation": 3}, "backups": {}}  # fmt: skip
    no = {"ok": False, "error": "no"}
    framed = encode(Frame("CONNECTED", {"version": "1.2"})) + encode(Frame("MESSAGE", {}, json.dumps(status).encode()))
    return Target(run, [json.dumps(status).encode(), json.dumps(no).encode(), b"\xfe" + framed],
                  ("nodes/reference/designs/qpid/manager", "nodes/reference/designs/qpid/control", "nodes/stomp"),
                  (b"\xfe", b"\0"), True, True)  # fmt: skip


def qpid_permission() -> Target:
    """A manager that answers its broker whatever it likes, and goes away: then the broker ends itself."""
    from nodes.reference.designs.qpid.lease_client import PROTOCOL
    from nodes.reference.replication.handshake import FrameParser, Handshake, encode_frame
    from nodes.reference.server.process import NodeProcess

    def run(data: bytes) -> None:
        async def manage(runtime: Any, address: str) -> None:
            lines = list(_lines(data))

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                with suppress(OSError, EOFError):
                    await Handshake(PROTOCOL, "qpid", "n2.manager", SECRET, runtime.random).accept(
                        reader, writer, ["n2"])  # fmt: skip
                    parser = FrameParser()
                    while data := await reader.read(1 << 16):
                        for _, sent, *_ in parser.feed(data):
                            line = lines.pop(0) if lines else "over"
                            if line == "over":
                                continue
                            if line == "good":
                                line = ["granted", sent, 1.0, 0, 0]
                            elif isinstance(line, list) and len(line) > 1 and line[1] == "sent":
                                line = [line[0], sent, *line[2:]]
                            writer.write(_frame(_wired(line)) or encode_frame(1))
                writer.transport.abort()

            server = await runtime.serve(serve, address, LESSOR_PORT)
            await asyncio.sleep(600)
            server.close()

        async def scenario(backend: Any) -> None:
            address = backend.address("n2")
            victim = _Victim(backend, "qpid", ("n2",), manager="builtin", manager_lease=1.0,
                             manager_address=[address, LESSOR_PORT])  # fmt: skip
            await backend.launch("n2", "manager", lambda runtime: NodeProcess(manage(runtime, address), runtime, "m"),
                                 "/n2/manager.log")  # fmt: skip
            await victim.start()
            await asyncio.sleep(30.0)
            log = victim.log
            assert (await backend.process("n2", "main")).state == "dead", log[-3000:]
            assert "the manager's lease ran out" in log and "background task failed" in log, log[-3000:]
            failed = [line for line in log.splitlines() if "background task failed" in line and "NoQuorum" not in line]
            assert not failed and "Traceback" not in log, failed

        _simulated(2, scenario)

    granted = ["granted", "sent", 1.0, 0, 0]
    return Target(run, [_joined("good", "good", granted, granted, ["granted", 1.0, 0.5, 3, 1], "good"),
                        _joined("good", ["granted", "sent", 1e9, 0, 0], ["granted", 1e308, 1.0, 0, 0])],
                  ("nodes/reference/designs/qpid/permission", "nodes/reference/replication/links"),
                  _JSON_WORDS, True, True)  # fmt: skip


def qpid_stored() -> Target:
    """What a broker and a manager find in their databases: it can be used, or is refused in one line."""
    import sqlite3

    from nodes.reference.api import ConfigError
    from nodes.reference.designs.qpid.configuration import Configuration
    from nodes.reference.designs.qpid.manager.record import RecordStore
    from nodes.reference.designs.qpid.positions import Generations
    from nodes.reference.designs.qpid.store_status import StoreStatus
    from nodes.reference.wire import WireError, encode

    def stored(value: Any) -> Any:
        try:
            return encode(_wired(value)) if isinstance(value, dict) else _wired(value)
        except WireError:
            return b"\xff"

    def run(data: bytes) -> None:
        database = sqlite3.connect(":memory:", isolation_level=None)
        for cls in (Configuration, RecordStore, Generations, StoreStatus):
            cls(database)
        for line in _lines(data):
            if isinstance(line, list) and len(line) > 1 and line[0] in (
                "record", "qpid_store", "qpid_objects", "qpid_generations"
            ):
                values = [each if not isinstance(each, list) else json.dumps(each) for each in map(stored, line[1:])]
                with suppress(sqlite3.Error, OverflowError, UnicodeError):
                    database.execute(f"INSERT OR REPLACE INTO {line[0]} VALUES ({', '.join('?' * len(values))})",
                                     values)  # fmt: skip
        try:
            status = StoreStatus(database).now
            configuration, generations = Configuration(database), Generations(database)
            record = RecordStore(database).record
        except ConfigError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000, error
            return
        assert isinstance(status.generation, int) and record.note.order >= (0, 0)
        for (kind, name), _ in configuration.items():
            for of in ("queue", "exchange"):
                configuration.bindings_of(of, name)
            assert kind in ("queue", "exchange", "binding")
            configuration.bound(f"/exchange/{name}/k")
            list(generations.of(name))

    rows: list[list[Any]] = [
        ["record", 1, 3, 3, 3, "n1", 3, "12 34 ab", 2, json.dumps([3, 1, ["n2"]])],
        ["qpid_store", 0, "dirty", "primary", 5, "ab"], ["qpid_objects", "exchange", "x", {"type": "topic"}],
        ["qpid_objects", "queue", "q", {"created": "1.1"}], ["qpid_generations", "q", 5, 1],
        ["qpid_objects", "binding", "x\nq\nk", {"exchange": "x", "queue": "q", "key": "k"}],
    ]  # fmt: skip
    return Target(run, [_joined(*rows)], _CODE, _JSON_WORDS, True, True)


def icestorm_links() -> Target:
    """A replica whose peer knows the secret, and clients and administrators with odd requests; it goes on."""

    def run(data: bytes) -> None:
        async def scenario(backend: Any) -> None:
            victim = _Victim(backend, "icestorm", ("n1", "n2", "n3"))
            answers: dict[str, Any] = {
                "are-you-coordinator": False, "are-you-there": True, "are-you-mine": True, "invitation": True,
                "accept": True, "promised": 0, "promise": [0, 0, 0.0], "database": [], "install": True, "ready": True,
                "update": True, "request": ["done", None],
            }  # fmt: skip
            await victim.start()
            peer = _Peer(backend, "icestorm")

            def heard(frame: Any) -> None:
                if frame[0] == "ask":
                    said = _frame(["answer", frame[1], _wired(answers.get(frame[2]))])
                    if said is not None and peer._writer is not None:
                        peer._writer.write(said)

            peer.heard = heard
            await peer.say(b"")
            for line in _lines(data):
                if isinstance(line, dict) and isinstance(line.get("answers"), dict):
                    answers |= line["answers"]
                else:
                    await _act(line, peer, victim, lambda line: _frame(_wired(line)), "/topic-manager")
            peer.leave()
            await asyncio.sleep(1.0)
            assert await victim.check(), victim.log[-3000:]
            await victim.kill()
            await victim.start()
            assert await victim.check()

        _simulated(3, scenario)

    def ask(question: str, *arguments: Any) -> list[Any]:
        return ["ask", 1, question, list(arguments)]

    group = [ask("are-you-coordinator"), ask("invitation", "n1", "g"), 0.2, ask("promised"), ask("promise", "g", 4),
             ask("database", "g"), ask("install", "g", 4, [4, 0, 0.0], []), ask("ready", "g", 4, ["n2"], 3), 0.1,
             ask("update", "g", 4, [4, 1, 0.0], ["create", "t"]),
             ask("update", "g", 4, [4, 2, 0.0], ["subscribe", "t", "s", "10.0.0.1:9", 0, "ordered"]),
             ask("update", "g", 4, [4, 3, 0.0], ["unsubscribe", "t", "s"]),
             ask("update", "g", 4, [4, 4, 0.0], ["destroy", "t"]), ask("are-you-mine", "g"),
             ask("request", ["create", "t", "", "", 0, "unordered", "", "", ""])]  # fmt: skip
    asked: list[Any] = [
        {"request": "create", "body": {"topic": "t"}}, {"request": "list", "body": {}},
        {"request": "subscribe", "body": {"topic": "t", "subscriber": "s", "endpoint": "10.0.0.1:9"}},
        {"request": "create", "body": {"topic": "u"}}, {"request": "link", "body": {"topic": "t", "target": "u"}},
        {"request": "subscribers", "body": {"topic": "t"}}, {"op": "replica"}, {"op": "status"},
        {"request": "destroy", "body": {"topic": "t"}},
    ]  # fmt: skip
    return Target(
        run, [_joined(*group), _joined(2.0, *asked), _joined({"answers": {"promised": 3, "promise": [3, 2, 0.0]}}, 3,
                                                             *asked, ask("are-you-there", "g"))],
        ("nodes/reference/designs/icestorm",), _JSON_WORDS, True, True,
    )  # fmt: skip
