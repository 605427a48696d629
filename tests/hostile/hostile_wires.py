"""What is fuzzed of the wire: STOMP's codec and a broker, links between replicas, the storage service."""

from __future__ import annotations

import asyncio
import io
import random
import struct
import tempfile
import zlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hostile_fuzz import Target


def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="hostile-"))


def stomp_codec() -> Target:
    """The same frames, and a fault or none, however the stream is cut."""
    from nodes.stomp import Frame, FrameLimits, Parser, ProtocolError, encode

    def parsed(pieces: list[bytes], limits: FrameLimits) -> tuple[list[Frame], bool]:
        parser, frames = Parser(limits, most=7), []
        try:
            for piece in pieces:
                while found := parser.feed(piece):
                    piece = b""
                    frames += [each for each in found if isinstance(each, Frame)]
        except ProtocolError:
            return frames, True
        return frames, False

    def run(data: bytes) -> None:
        limits = FrameLimits(header_bytes=400, headers=10, body=1000)
        chance = random.Random(zlib.crc32(data))
        places = sorted(chance.randrange(len(data) + 1) for _ in range(6))
        pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
        whole = parsed([data], limits)
        assert parsed(pieces, limits) == whole
        for frame in whole[0]:
            again = (
                Parser().feed(encode(Frame(frame.command, frame.headers, frame.body))) if _sendable(frame) else [frame]
            )
            assert again == [frame] or "content-length" not in frame.headers, again

    def _sendable(frame: Frame) -> bool:
        plain = frame.command not in ("CONNECT", "CONNECTED") or not any(
            set(f"{name}{value}") & set("\r\n") for name, value in frame.headers.items()
        )
        return plain and frame.headers.get("content-length", str(len(frame.body))) == str(len(frame.body))

    return Target(run, _STOMP_SEEDS, ("nodes/stomp",), _STOMP_WORDS)


_STOMP_WORDS = (
    b"\0",
    b"\n",
    b"\r\n",
    b"\n\n",
    b":",
    b"\\n",
    b"\\c",
    b"\\x",
    b"SEND\n",
    b"SUBSCRIBE\n",
    b"ACK\n",
    b"NACK\n",
    b"BEGIN\n",
    b"COMMIT\n",
    b"ABORT\n",
    b"PREPARE\n",
    b"RECOVER\n",
    b"RECEIVED\n",
    b"DISCONNECT\n",
    b"UNSUBSCRIBE\n",
    b"CONNECT\n",
    b"destination:/queue/q\n",
    b"destination:/topic/t\n",
    b"destination:/topic/t.*\n",
    b"destination:/admin/status\n",
    b"destination:/admin/add-replica\n",
    b"transaction:t\n",
    b"x-xid:x\n",
    b"receipt:r\n",
    b"id:s\n",
    b"id:1-1\n",
    b"ack:client\n",
    b"ack:client-individual\n",
    b"x-prefetch:1\n",
    b"x-durable:d\n",
    b"content-length:1\n",
    b"x-seq:1\n",
    b"x-received:1\n",
    b"x-reliable:true\n",
    b"x-connection-id:c1\n",
    b"x-admin:true\n",
    b"destination:/queue/2.q\n",
    b"destination:/admin/topics\n",
)
_GREETING = b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:secret-word\n\n\0"
_RELIABLE = b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:secret-word\nx-reliable:true\n\n\0"
_ADMIN = b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:secret-word\nx-admin:true\n\n\0"
_STOMP_SEEDS = (
    _GREETING + b"SEND\ndestination:/queue/q\nreceipt:r\ncontent-length:3\n\na\0b\0\n"
    b"SUBSCRIBE\nid:s\ndestination:/queue/q\nack:client\nx-prefetch:2\n\n\0ACK\nid:1-1\n\n\0DISCONNECT\nreceipt:x\n\n\0",
    _GREETING
    + b"BEGIN\ntransaction:t\nx-xid:x1\n\n\0SEND\ndestination:/queue/q\ntransaction:t\n\nx\0PREPARE\ntransaction:"
    b"t\nreceipt:p\n\n\0RECOVER\nreceipt:r\n\n\0COMMIT\nx-xid:x1\nreceipt:c\n\n\0",
    _GREETING
    + b"SUBSCRIBE\nid:s\ndestination:/topic/t.*\nx-durable:d\nack:client-individual\n\n\0SEND\ndestination:/topic/"
    b"t.a\nh\\cx:a\\nb\n\nx\0NACK\nid:1-1\n\n\0UNSUBSCRIBE\nid:s\nx-durable:d\n\n\0",
    _RELIABLE
    + b"SEND\ndestination:/queue/q\nx-seq:1\n\nx\0RECEIVED\nx-received:0\n\n\0SUBSCRIBE\nid:s\ndestination:/queue/"
    b"q\nx-seq:2\n\n\0",
    _ADMIN
    + b'SEND\ndestination:/admin/add-replica\nreceipt:r\n\n{"name": "n9", "link": ["h", 1], "client": "h:2"}\0SEND\n'
    b"destination:/admin/status\nreceipt:r\n\n\0SEND\ndestination:/admin/design\nreceipt:r\n\n{}\0",
)


class _Loop:
    """An event loop of a target's, on which nothing may go wrong unnoticed."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.wrong: list[str] = []
        self.loop.set_exception_handler(lambda _, context: self.wrong.append(repr(context.get("exception") or context)))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        found = self.loop.run_until_complete(work)
        assert not self.wrong, self.wrong
        return found


async def _spoken(port: int, data: bytes, last: bytes | None = None) -> bytes:
    """What comes back on a connection of its own: until ``last`` has come, or the other side hangs up once this one
    does, a little later."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        async with asyncio.timeout(10):
            writer.write(data)
            if last is None:
                try:
                    async with asyncio.timeout(0.004):
                        await reader.read(1 << 20)
                except TimeoutError:
                    pass
                writer.write_eof()
            while last is None or last not in answer:
                piece = await reader.read(1 << 20)
                if not piece:
                    break
                answer += piece
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
    finally:
        writer.transport.abort()
    return answer


def stomp_broker() -> Target:
    """A broker that is told the bytes, by one connection or two at once; then an honest client is served."""
    from nodes.reference.config import parse_config
    from nodes.reference.server.process import BrokerProcess
    from nodes.reference.server.runtime import RealRuntime

    host = _Loop()
    log = io.StringIO()
    options = {"max_messages": 100_000, "idle_timeout": 1.0, "max_body": 20_000}
    config = parse_config(
        {
            "node": "n1",
            "design": "standalone",
            "data": str(_folder()),
            "port": 0,
            "passcode": "secret-word",
            "options": options,
        }
    )

    async def start() -> tuple[asyncio.Task[int], int]:
        task = asyncio.ensure_future(BrokerProcess(config, RealRuntime(config, log)).run())
        while "address=127.0.0.1:" not in log.getvalue():
            assert not task.done(), log.getvalue()
            await asyncio.sleep(0.01)
        return task, int(log.getvalue().partition("address=127.0.0.1:")[2].split()[0])

    task, port = host.run(start())
    honest = _GREETING + b"SEND\ndestination:/queue/honest%d\nreceipt:done\n\nx\0DISCONNECT\nreceipt:bye\n\n\0"
    turn = iter(range(1 << 60))

    async def attack(data: bytes) -> None:
        number = next(turn)
        first, _, second = data.partition(b"\nSECOND\n")
        said = [_spoken(port, each) for each in (first, second) if each]
        await asyncio.gather(*said)
        if number % 10 == 0:
            answer = await _spoken(port, honest % (number // 1000), b"receipt-id:bye")
            assert b"receipt-id:done" in answer and b"receipt-id:bye" in answer, answer
        assert not task.done(), log.getvalue()[-3000:]
        text = log.getvalue()
        assert "Traceback" not in text and " ERROR " not in text and "level=error" not in text, text[-3000:]
        log.seek(0)
        log.truncate()

    def run(data: bytes) -> None:
        try:
            host.run(attack(data))
        except TimeoutError:
            raise AssertionError("the broker did not hang up") from None

    seeds = [*_STOMP_SEEDS, _STOMP_SEEDS[0] + b"\nSECOND\n" + _STOMP_SEEDS[1]]
    return Target(run, seeds, (), (*_STOMP_WORDS, _GREETING, b"\nSECOND\n"))


def wire_encoding() -> Target:
    """Any bytes are refused, or are the one encoding of a value; frames are the same however they are cut."""
    from nodes.reference import wire
    from nodes.reference.replication.handshake import FrameParser, LinkError

    def fed(pieces: list[bytes]) -> tuple[str, bool]:
        parser, found = FrameParser(limit=5000), []
        try:
            for piece in pieces:
                found += parser.feed(piece)
        except LinkError:
            return "", True
        return repr(found), False

    def run(data: bytes) -> None:
        try:
            value = wire.decode(data)
        except wire.WireError:
            pass
        else:
            assert wire.encode(value) == data
        chance = random.Random(zlib.crc32(data))
        places = sorted(chance.randrange(len(data) + 1) for _ in range(4))
        pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
        assert fed(pieces) == fed([data])

    values: list[Any] = [[1, "claim", 5], {"a": [None, True, 1.5, b"x" * 200]}, [[]] * 5, -(2**63), "é" * 70]
    frames = [struct.pack(">I", len(raw)) + raw for raw in map(wire.encode, values)]
    return Target(
        run,
        [*map(wire.encode, values), *frames, b"".join(frames)],
        ("nodes/reference/wire", "nodes/reference/replication/links"),
        (b"\x07\x01", b"\x08\x01", b"\x06\x05", b"\xff" * 9 + b"\x01", b"\0\0\0\x05"),
    )


def link_messages() -> Target:
    """Messages of the designs whose replicas speak in frames: refused, or packed to the same frame again."""
    from nodes.reference import wire
    from nodes.reference.designs.joram import messages as joram
    from nodes.reference.replication.handshake import LinkError
    from nodes.reference.replication.messages import Append, LogPosition, StateEnd

    def run(data: bytes) -> None:
        try:
            message = joram.unpack(data)
        except LinkError as error:
            assert "\n" not in str(error)
            return
        try:
            again = joram.pack(message)
        except wire.WireError:
            return
        if not any(isinstance(each, float) and each != each for each in message):  # NaN has several encodings
            assert joram.unpack(wire.decode(again[4:])) == message

    made = [
        joram.Heartbeat(*_zeros(joram.Heartbeat)),
        LogPosition(*_zeros(LogPosition)),
        joram.Membership(*_zeros(joram.Membership)),
        Append(1, 2, 3, 4, 5.0, [[1, b"abc"], [2, b""]]),
        StateEnd(*_zeros(StateEnd)),
        joram.Propose(*_zeros(joram.Propose)),
    ]
    seeds = [wire.decode(joram.pack(message)[4:]) for message in made]
    return Target(
        run,
        seeds,
        ("nodes/reference/replication/messages", "nodes/reference/wire", "nodes/reference/designs/joram/messages"),
        (b"\x07\x01", b"\xff" * 8, b"\0" * 8),
    )


def _zeros(cls: Any) -> list[Any]:
    from typing import get_origin, get_type_hints

    return [(get_origin(hint) or hint)() for hint in get_type_hints(cls).values()]


def link_handshake() -> Target:
    """A stranger, or somebody with the secret who goes on with garbage, at a node's listener for links."""
    from nodes.reference.config import Config
    from nodes.reference.replication.handshake import PROTOCOL, Handshake, LinkError
    from nodes.reference.replication.links import Links
    from nodes.reference.server.runtime import RealRuntime

    host = _Loop()
    log = io.StringIO()

    class Events:
        def __init__(self) -> None:
            self.up = self.down = 0

        def link_up(self, peer: str) -> None:
            self.up += 1

        def link_down(self, peer: str) -> None:
            self.down += 1

        def frames(self, peer: str, frames: Any) -> None:
            if any(not isinstance(frame, bytes) for frame in frames):
                raise LinkError("a frame is no message")

    events = Events()
    kept: list[Any] = []

    async def start() -> int:
        from loopback import free_ports

        (port,) = free_ports(1)
        config = Config(node="n2", design="joram", data="/nowhere")
        runtime = RealRuntime(config, log)
        links = Links(runtime, events, "n2", {"n1": ("127.0.0.1", 1), "n2": ("127.0.0.1", port)}, "c", 1.0, 1.0, "s")
        kept.append(asyncio.ensure_future(runtime.supervise(asyncio.ensure_future(asyncio.sleep(1e9)))))
        await links.start()
        return port

    port = host.run(start())
    handshake = Handshake(PROTOCOL, "c", "n1", "s", random.Random(1))

    async def attack(data: bytes) -> None:
        if data[:1] != b"\xfe":
            await _spoken(port, data)
            return
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(5):
                await handshake.dial(reader, writer, "n2")
                writer.write(data[1:])
                writer.write_eof()
                await reader.read()
        finally:
            writer.transport.abort()

    def run(data: bytes) -> None:
        try:
            host.run(attack(data))
        except (OSError, asyncio.IncompleteReadError):
            pass
        except TimeoutError:
            raise AssertionError("the node did not hang up") from None
        text = log.getvalue()
        assert "Traceback" not in text and "error" not in text.lower().replace("refused", ""), text[-2000:]
        log.seek(0)
        log.truncate()

    from nodes.reference.replication.handshake import encode_frame

    hello = encode_frame([PROTOCOL, "c", "n1", bytes(16)])
    proof = encode_frame(bytes(32))
    return Target(
        run,
        [hello + proof, hello, proof, b"\xfe" + encode_frame(b"x") + encode_frame([1]), b"\xfe" + hello],
        ("nodes/reference/replication/links", "nodes/reference/wire"),
        (b"\0\0\0\x01", b"\xff\xff\xff\xff", b"n1", b"\xfe"),
    )


def storage_service() -> Target:
    """Requests of a client of the storage service that has the secret; another one is served meanwhile."""
    from loopback import free_ports

    from nodes.reference import wire
    from nodes.reference.replication.handshake import Handshake, encode_frame
    from nodes.reference.server.runtime import RealRuntime
    from nodes.reference.storage.config import StorageConfig
    from nodes.reference.storage.protocol import PROTOCOL, SERVICE
    from nodes.reference.storage.service import StorageService

    host = _Loop()
    log = io.StringIO()
    config = StorageConfig(str(_folder()), "127.0.0.1", *free_ports(1), clients=("a", "b"), secret="s")
    chance = random.Random(2)

    async def start() -> asyncio.Task[None]:
        task = asyncio.ensure_future(StorageService(config, RealRuntime(config, log)).run())
        while "listening" not in log.getvalue():  # noqa: ASYNC110 - nobody can set an event here
            await asyncio.sleep(0.01)
        return task

    task = host.run(start())

    async def asked(client: str, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", config.port)
        try:
            async with asyncio.timeout(5):
                await Handshake(PROTOCOL, config.cluster, client, config.secret, chance).dial(reader, writer, SERVICE)
                writer.write(data)
                if client == "b":
                    return await reader.readexactly(4)
                writer.write_eof()
                return await reader.read()
        finally:
            writer.transport.abort()

    state = encode_frame([1, "state"])

    def run(data: bytes) -> None:
        try:
            host.run(asked("a", data))
        except (OSError, asyncio.IncompleteReadError):
            pass
        assert not task.done(), task.exception()
        assert len(host.run(asked("b", state))) == 4
        assert "Traceback" not in log.getvalue()
        log.seek(0)
        log.truncate()

    requests: list[Any] = [
        [1, "claim", 1],
        [2, "commit", 1, 1, [["t", [[1, "a", None, b"x"]], [2]]]],
        [3, "read", 1, "t", None],
        [4, "read", 1, "t", 5],
        [5, "state"],
        [6, "claim", 2**62],
    ]
    seeds = [b"".join(encode_frame(each) for each in requests[:3]), *(encode_frame(each) for each in requests)]
    return Target(
        run,
        seeds,
        ("nodes/reference/storage", "nodes/reference/wire", "nodes/reference/replication/links"),
        tuple(map(wire.encode, ("claim", "commit", "read", "state", 1, 0, -1, True, None, [], 2**63 - 1))),
    )
