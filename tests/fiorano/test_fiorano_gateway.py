"""The gateway: its lock file, whoever talks to it, the program; and a server's side of the lock."""

from __future__ import annotations

import asyncio
import io
import json
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from loopback import free_ports

from nodes.reference.api import Config, ConfigError
from nodes.reference.bugs import edits as bug_edits
from nodes.reference.designs.fiorano.configuration import FioranoOptions, HALayer
from nodes.reference.designs.fiorano.gateway.config import GatewayConfig, parse_gateway_config
from nodes.reference.designs.fiorano.gateway.grants import ALONE, ANY, LockRecord
from nodes.reference.designs.fiorano.gateway.lockfile import RealLockFile, decoded, encoded, holder_in
from nodes.reference.designs.fiorano.gateway.protocol import MAX_FRAME, PROTOCOL, SERVICE
from nodes.reference.designs.fiorano.gateway.service import LockGateway
from nodes.reference.designs.fiorano.lock import GatewayLock, Wish
from nodes.reference.replication.handshake import FrameParser, Handshake, LinkError, encode_frame
from nodes.reference.server.runtime import RealRuntime
from nodes.systems.reference.fiorano.system import FIORANO
from stormproof.contracts.system import Grant
from stormproof.node_logs import parse_stamped

ROOT = Path(__file__).resolve().parents[2]
LEASE = 0.4
PATIENCE = 10.0
UNOPENED = "-"


@pytest.fixture
def no_bug_afterwards() -> Iterator[None]:
    yield
    bug_edits.switch(())


class Running:
    """A gateway on loopback, in this process."""

    def __init__(self, folder: Path, log: io.StringIO) -> None:
        self.path = folder / "lockfile"
        (port,) = free_ports(1)
        self.config = GatewayConfig("127.0.0.1", port, str(self.path), ("n1", "n2"), LEASE, secret="s")
        self.output = log

    @property
    def log(self) -> str:
        return self.output.getvalue()

    async def said(self, text: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while text not in self.log:  # noqa: ASYNC110 - nobody can set an event here
                await asyncio.sleep(0.01)


@asynccontextmanager
async def running(folder: Path, file: RealLockFile | None = None) -> AsyncIterator[Running]:
    gateway = Running(folder, io.StringIO())
    runtime = RealRuntime(gateway.config, gateway.output)
    task = asyncio.create_task(LockGateway(gateway.config, runtime, file or RealLockFile(gateway.path)).run())
    await gateway.said("listening")
    try:
        yield gateway
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Asking:
    """A connection that says what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, *request: Any) -> Any:
        self.writer.write(encode_frame(list(request)))
        async with asyncio.timeout(PATIENCE):
            data = await self.reader.read(MAX_FRAME)
        return FrameParser().feed(data)[0] if data else None


@asynccontextmanager
async def asking(gateway: Running, name: str = "n1", secret: str = "s", lockfile: str = "") -> AsyncIterator[Asking]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.config.port)
    try:
        handshake = Handshake(PROTOCOL, gateway.config.cluster, name, secret, random.Random(1))
        await handshake.dial(reader, writer, SERVICE)
        connection = Asking(reader, writer)
        if lockfile != UNOPENED:
            opened = await connection.ask("open", 0, lockfile or gateway.config.lockfile)
            assert lockfile or opened == ["opened", 0]
        yield connection
    finally:
        writer.close()


async def take(connection: Asking, *arguments: int) -> Any:
    """The answer once the lease of whoever held the lock before the gateway's start is over."""
    async with asyncio.timeout(PATIENCE):
        while (answer := await connection.ask("take", 1, *arguments))[0] == "held":  # noqa: ASYNC110 - as servers do
            await asyncio.sleep(0.02)
    return answer


def grants_in(log: str) -> list[Grant]:
    """What a gateway's log tells of grants."""
    lines = [parse_stamped(line).text for line in log.splitlines()]
    return [found for line in lines if (found := FIORANO.grant(line)) is not None]


@pytest.mark.requirement("H25", part=True)
async def test_a_grant_tells_who_held_the_lock_before(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway, asking(gateway) as one, asking(gateway, "n2") as two:
        assert await take(one, 0, 0, ALONE, 3) == ["granted", 1, 3]
        assert await take(two, 3, 3, ALONE, 4) == ["granted", 1, 4], "when n1 has not renewed it for a lease"
        first, second = grants_in(gateway.log)
    assert first == Grant("n1", "epoch 3", "epoch 0", "", "epoch 0")
    assert second == Grant("n2", "epoch 4", "epoch 3", "n1", "epoch 3")


@pytest.mark.requirement("H25", part=True)
@pytest.mark.parametrize(("bug", "stale", "leased"), [
    ("two-holders", False, ("n1",)), ("stale-standby-serves", True, ()),
])  # fmt: skip
@pytest.mark.usefixtures("no_bug_afterwards")
async def test_a_grant_that_should_not_have_been(bug: str, stale: bool, leased: tuple[str, ...], tmp_path: Path
                                                 ) -> None:  # fmt: skip
    bug_edits.switch({bug})
    async with running(tmp_path) as gateway, asking(gateway) as one, asking(gateway, "n2") as two:
        assert await take(one, 0, 0, ALONE, 3) == ["granted", 1, 3]
        assert await take(two, 1 if stale else 3, 3, ALONE, 4) == ["granted", 1, 4]
        *_, last = grants_in(gateway.log)
    assert (last.to, last.last, last.stale, last.leased) == ("n2", "n1", stale, leased)


@pytest.mark.requirement("H25", part=True)
@pytest.mark.parametrize("line", [
    "lock granted epoch=3 holder=n1", "lock granted epoch=x holder=n1 repository=0 own=0 other=0 before=0 last=-",
    "lock released epoch=3 holder=n1",
])  # fmt: skip
def test_lines_that_tell_of_no_grant(line: str) -> None:
    assert FIORANO.grant(line) is None


@pytest.mark.requirement("F3", part=True)
async def test_the_epoch_is_in_the_lock_file_before_the_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway, asking(gateway) as one, asking(gateway, "n2") as two:
        assert gateway.path.read_bytes() == encoded(LockRecord())
        assert await take(one, 0, 0, ALONE, 3) == ["granted", 1, 3]
        assert decoded(gateway.path.read_bytes()) == (3, "n1")
        assert await two.ask("take", 2, 3, 3, ALONE, 4) == ["held", 2, 3]
        assert await one.ask("renew", 3, 3) == ["granted", 3, 3]
        assert await two.ask("release", 4, 3) == ["released", 4]
        assert await two.ask("take", 5, 3, 3, ALONE, 4) == ["held", 5, 3], "only its holder lets it go"
        assert await one.ask("release", 6, 3) == ["released", 6]
        assert await two.ask("take", 7, 2, 2, ALONE, 4) == ["stale", 7, 3]
        assert await two.ask("take", 8, 3, 3, ALONE, 4) == ["granted", 8, 4]
        assert await one.ask("renew", 9, 3) == ["lost", 9, 4]
    async with running(tmp_path) as again, asking(again) as one:
        assert await one.ask("take", 1, 4, 4, ALONE, 5) == ["held", 1, 4], "n2 may still believe that it holds the lock"
        assert await take(one, 4, 4, ALONE, 5) == ["granted", 1, 5]


@pytest.mark.requirement("F3", part=True)
async def test_the_lock_file_names_a_holder_only_while_somebody_holds_the_lock(tmp_path: Path) -> None:
    """A lock that was let go, or whose lease has ended, is free in the file; who held it last is told as that."""
    async with running(tmp_path) as gateway, asking(gateway) as one:
        assert holder_in(gateway.path.read_bytes()) == ""
        assert await take(one, 0, 0, ALONE, 3) == ["granted", 1, 3]
        assert holder_in(gateway.path.read_bytes()) == "n1"
        assert await one.ask("release", 2, 3) == ["released", 2]
        assert gateway.path.read_bytes() == b"epoch 3 free, last holder n1\n"
        assert await one.ask("renew", 3, 3) == ["granted", 3, 3], "nobody else has held it since"
        assert holder_in(gateway.path.read_bytes()) == "n1"
        async with asyncio.timeout(PATIENCE):
            while holder_in(gateway.path.read_bytes()):  # noqa: ASYNC110 - until the lease has ended
                await asyncio.sleep(0.02)
    async with running(tmp_path) as gateway, asking(gateway, "n2") as two:
        assert "holder=n1" in gateway.log, "who held it last is known after a restart"
        assert await take(two, 2, 3, 2, 4) == ["stale", 1, 3]
        assert await take(two, 3, 3, ALONE, 4) == ["granted", 1, 4]
        assert holder_in(gateway.path.read_bytes()) == "n2"


@pytest.mark.requirement("F1", part=True)
async def test_a_server_that_is_configured_for_another_lock_file_is_refused_by_name(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        async with asking(gateway, lockfile="/other") as one:
            assert await one.ask("open", 2, "/another") == [
                "refused", 2, f"n1 is configured for the Lockfile '/another', and this gateway has '{gateway.path}'"]
            assert await one.ask("take", 3, 0, 0, ALONE, 3) is None, "it is cut off"
        async with asking(gateway, lockfile=UNOPENED) as one:
            assert await one.ask("take", 1, 0, 0, ALONE, 3) is None
        assert "n1 is configured for the Lockfile '/other'" in gateway.log
        wrong = options(Lockfile="/other", GatewayServerPort=gateway.config.port, secret="s", lease=LEASE)
        output = io.StringIO()
        lock = GatewayLock(RealRuntime(gateway.config, output), "n1", wrong, 0, lambda epoch: None, lambda: None)
        lock.want(Wish(0, ALONE))
        lock.start()
        async with asyncio.timeout(PATIENCE):
            while "lock refused" not in output.getvalue():  # noqa: ASYNC110 - nobody can set an event here
                await asyncio.sleep(0.01)
        lock.stop()
        assert "is configured for the Lockfile '/other'" in output.getvalue() and not lock.holds()
        assert holder_in(gateway.path.read_bytes()) == ""


@pytest.mark.requirement("F3", part=True)
async def test_a_server_has_one_connection_the_newest(tmp_path: Path) -> None:
    """One whose machine has lost its power tells nobody that its connection is over."""
    async with running(tmp_path) as gateway, asking(gateway) as former, asking(gateway, "n2") as other:
        assert (await former.ask("renew", 1, 9))[0] == "lost"
        async with asking(gateway) as newest:
            assert (await newest.ask("renew", 1, 9))[0] == "lost"
            with suppress(ConnectionResetError):
                assert await former.ask("renew", 2, 9) is None
            assert (await other.ask("renew", 1, 9))[0] == "lost"


@pytest.mark.requirement("F3", part=True)
async def test_a_lock_file_that_is_deleted_or_damaged(tmp_path: Path) -> None:
    """It is noticed, the lock counts as lost, and epochs go on; after a restart both servers have to agree."""
    async with running(tmp_path) as gateway, asking(gateway) as one:
        assert await take(one, 0, 0, ALONE, 7) == ["granted", 1, 7]
        gateway.path.unlink()
        await gateway.said("lock file is gone")
        assert await one.ask("renew", 2, 7) == ["lost", 2, 7]
        assert await take(one, 7, 7, ALONE, 8) == ["granted", 1, 8]
        gateway.path.write_text("nonsense")
        await gateway.said("lock file was changed by somebody else")
        assert await one.ask("renew", 3, 8) == ["lost", 3, 8]
    gateway.path.write_text("nonsense")
    async with running(tmp_path) as gateway, asking(gateway) as one:
        assert "lock file damaged" in gateway.log
        assert await take(one, 8, 8, ALONE, 9) == ["stale", 1, 0]
        assert await take(one, 8, 8, 0, 9) == ["granted", 1, 9]


@pytest.mark.requirement("F3", part=True)
async def test_whose_the_last_epoch_was_is_known_when_the_file_is_gone(tmp_path: Path) -> None:
    """A server that never came to use it lacks nothing, and need not wait for a person."""
    async with running(tmp_path) as gateway, asking(gateway) as one, asking(gateway, "n2") as two:
        assert await take(one, 0, 0, ALONE, 3) == ["granted", 1, 3]
        gateway.path.unlink()
        await gateway.said("lock file is gone")
        assert await take(two, 2, 3, 2, 4) == ["stale", 1, 3], "n1 may have served in it"
        assert await take(one, 2, 3, 2, 4) == ["granted", 1, 4], "which n1 knows that it has not"
        assert grants_in(gateway.log)[-1] == Grant("n1", "epoch 4", "epoch 2", "n1", "epoch 3")


@pytest.mark.requirement("F3", part=True)
async def test_a_lock_file_that_can_not_be_written(tmp_path: Path) -> None:
    """Nobody is granted what is not on disk; the lease that there is goes on."""

    class Full(RealLockFile):
        full = False

        async def write(self, content: bytes) -> None:
            if self.full:
                raise OSError(28, "No space left on device")
            await super().write(content)

    file = Full(tmp_path / "lockfile")
    async with running(tmp_path, file) as gateway, asking(gateway) as one:
        assert await take(one, 0, 0, ALONE, 1) == ["granted", 1, 1]
        file.full = True
        answer = await one.ask("take", 2, 1, 1, ALONE, 2)
        assert answer == ["refused", 2, "the lock file can't be written (No space left on device)"]
        assert await one.ask("renew", 3, 1) == ["granted", 3, 1]
        assert decoded(gateway.path.read_bytes()) == (1, "n1")
        assert gateway.log.count("can't be written") == 1
        file.full = False
        assert await one.ask("take", 4, 1, 2, ALONE, 2) == ["granted", 4, 2]


@pytest.mark.requirement("F3", part=True)
@pytest.mark.parametrize("request_", [
    ("take", 1, 0, 0, 0, 0), ("take", 1, 0, 0, 0, True), ("take", 1), ("renew", 1, "x"), ("give", 1), (), (None,),
    ("release", 1.0, 1),
])  # fmt: skip
async def test_what_strangers_say_changes_nothing(tmp_path: Path, request_: tuple[Any, ...]) -> None:
    async with running(tmp_path) as gateway:
        async with asking(gateway) as one:
            assert await take(one, 0, 0, ALONE, 1) == ["granted", 1, 1]
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.config.port)
            writer.write(said)
            writer.write_eof()
            await reader.read()
            writer.close()
        for name, secret in (("n3", "s"), ("n1", "another")):
            with pytest.raises((LinkError, OSError, asyncio.IncompleteReadError)):
                async with asking(gateway, name, secret) as stranger:
                    assert await stranger.ask("renew", 1, 1)
        async with asking(gateway) as one:
            assert await one.ask(*request_) is None, "the connection is ended"
        async with asking(gateway) as one:
            assert await one.ask("renew", 1, 1) == ["granted", 1, 1]
        assert "node 'n3' isn't expected here" in gateway.log


@pytest.mark.requirement("F2", part=True)
@pytest.mark.parametrize(("content", "wrong"), [
    ({"host": "127.0.0.1", "port": 1, "Lockfile": "f"}, "servers: is missing"),
    ({"host": "127.0.0.1", "port": 1, "servers": ["a"]}, "Lockfile: is missing"),
    ({"host": "127.0.0.1", "port": 70000, "Lockfile": "f", "servers": ["a"]}, "port: 70000"),
    ({"host": "127.0.0.1", "port": 1, "Lockfile": "f", "servers": ["a", "a"]}, "servers: is not a list of different"),
    ({"host": "127.0.0.1", "port": 1, "Lockfile": "f", "servers": ["a"], "lease": 0}, "lease: 0 is not"),
    ({"host": "127.0.0.1", "port": 1, "Lockfile": "f", "servers": ["a"], "colour": 1}, "colour: unknown setting"),
    ({"host": "10.0.0.1", "port": 1, "Lockfile": "f", "servers": ["a"]}, "secret: is missing"),
    ([], "not a JSON object"),
])  # fmt: skip
def test_a_gateways_configuration_that_can_not_be_used(content: Any, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        parse_gateway_config(content)


@pytest.mark.requirement("F2", part=True)
def test_the_program(tmp_path: Path) -> None:
    """A lock file that can't be written is one line and status 3; SIGTERM is an orderly end."""
    (port,) = free_ports(1)
    path = tmp_path / "gateway.json"
    for lockfile, wrong in ((tmp_path / "nowhere" / "lockfile", "can't be used"), (tmp_path, "can't be used")):
        path.write_text(json.dumps({"host": "127.0.0.1", "port": port, "Lockfile": str(lockfile), "servers": ["n1"]}))
        done = subprocess.run([sys.executable, "-m", "nodes.reference.gateway", str(path)], cwd=ROOT,
                              capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 3 and wrong in done.stderr and done.stderr.count("\n") == 1, done.stderr
    path.write_text(json.dumps({"host": "127.0.0.1", "port": port, "Lockfile": str(tmp_path / "lockfile"),
                                "servers": ["n1"]}))
    with subprocess.Popen([sys.executable, "-m", "nodes.reference.gateway", str(path)], cwd=ROOT,
                          stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
        assert process.stdout is not None
        while "listening" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.requirement("F3", part=True)
async def test_a_servers_lease_is_counted_from_when_it_asked(tmp_path: Path) -> None:
    """By its own clock; a lease that has ended is no lock, whatever nobody has looked at yet."""
    async with running(tmp_path) as gateway:
        clock = [0.0]
        runtime = RealRuntime(gateway.config, io.StringIO())
        runtime.now = lambda: clock[0]  # type: ignore[method-assign]
        noted: list[int] = []
        changed = asyncio.Event()
        layer = HALayer(True, str(gateway.path), ("peer", 1), ("127.0.0.1", gateway.config.port))
        options = FioranoOptions(layer, "n2", lease=LEASE, secret="s")
        lock = GatewayLock(runtime, "n1", options, 4, noted.append, changed.set)
        lock.want(Wish(ANY, ALONE))
        lock.start()
        async with asyncio.timeout(PATIENCE):
            await changed.wait()
        assert lock.holds() and lock.looked_at() and lock.epoch == noted[-1] > 4
        assert lock.settled < lock.epoch, "it may yet come to use that epoch"
        clock[0] += LEASE
        assert not lock.holds() and lock.looked_at()
        lock.tick()
        assert not lock.looked_at()
        lock.want(None)
        await gateway.said("lock released")
        lock.stop()


# The configuration of a server.

LAYER = {"Primary": True, "Lockfile": "f", "BackupHAIPAddress": "127.0.0.1", "BackupHAPort": 7,
         "GatewayServerIPAddress": "127.0.0.1", "GatewayServerPort": 9}  # fmt: skip


def options(peers: Any = None, **changes: Any) -> FioranoOptions:
    merged = {name: value for name, value in {**LAYER, **changes}.items() if value is not None}
    peers = peers if peers is not None else {"n1": ("127.0.0.1", 6), "n2": ("127.0.0.1", 7)}
    return FioranoOptions.from_config(Config("n1", "fiorano", "d", peers=peers, options=merged))


@pytest.mark.requirement("F2")
@pytest.mark.parametrize("mode", ["replicated", "shared"])
@pytest.mark.parametrize("name", list(LAYER))
def test_the_ha_layer_is_needed_in_both_modes(mode: str, name: str) -> None:
    given: dict[str, Any] = {"mode": mode, "database": ["127.0.0.1", 5]}
    assert options(**given).layer == HALayer(True, "f", ("127.0.0.1", 7), ("127.0.0.1", 9))
    with pytest.raises(ConfigError, match=f"options.{name}: is missing; the HA layer needs it in both modes"):
        options(**given, **{name: None})
    with pytest.raises(ConfigError, match=f"options.{name}: "):
        options(**given, **{name: []})


@pytest.mark.requirement("F2")
@pytest.mark.parametrize(("changes", "wrong"), [
    ({"BackupHAPrt": 7}, "options.BackupHAPrt: the HA layer has no such parameter"),
    ({"BackupHAPort": 8}, "peers.n2: is not at 127.0.0.1:8"), ({"BackupHAPort": 0}, "options.BackupHAPort: 0 is not"),
    ({"Primary": "yes"}, "options.Primary: 'yes' is not true or false"), ({"mode": "both"}, "options.mode: 'both'"),
    ({"mode": "shared"}, "options.database: is missing"), ({"database": "x"}, "options.database: is not"),
    ({"lease": 0}, "options.lease: 0 is not"), ({"fencing": "x"}, "options.fencing: 'x' is neither"),
    ({"stamps": "x"}, "options.stamps: 'x'"), ({"as_documented": "x"}, "options.as_documented: 'x'"),
    ({"peers": {"n1": ("h", 1)}}, "peers: are not 'n1', this server, and one other"),
])  # fmt: skip
def test_a_servers_configuration_that_can_not_be_used(changes: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong) as raised:
        options(**changes)
    assert "\n" not in str(raised.value)
