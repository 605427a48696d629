"""What users and strangers do wrong with brokers and managers that are real processes: one clear line, nothing lost."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sqlite3
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback import free_ports
from manager_world import LESSOR_PORT, MANAGER_PORT, SECRET, World, run
from qpid_processes import Cluster
from qpid_sim import Group, simulate

from harness.run.settings import make_test
from nodes.reference.designs.qpid.configuration import (
    BINDING,
    EXCHANGE,
    QUEUE,
    Configuration,
    InvalidRequest,
    binding_name,
)
from nodes.reference.designs.qpid.management import BIND, CREATE_QUEUE, MAX_OBJECTS, changes_of
from nodes.reference.designs.qpid.manager.config import ManagerConfig
from nodes.reference.designs.qpid.manager.lease_server import MAX_CONNECTIONS, PROTOCOL, manager_name
from nodes.reference.designs.qpid.messages import SNAPSHOT, EventGroup, pack
from nodes.reference.engine.limits import Limits
from nodes.reference.manager import ManagerProcess
from nodes.reference.replication import handshake
from nodes.reference.replication.handshake import MAX_FRAME, MAX_STRANGERS, Handshake, encode_frame
from nodes.systems.reference.qpid.programs import LaunchedPrograms
from stormproof.errors import UsageError

QUIET = 200
"""Lines of a log that a day of strangers may take."""
_RESIDENT_KB = 300_000


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node, whose broker is primary."""
    made = Cluster(tmp_path_factory.mktemp("single"), ["n1"])
    try:
        made.until("primary")
        yield made
    finally:
        made.end()


def _tls_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    talking = context.wrap_bio(incoming, outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        talking.do_handshake()
    return outgoing.read()


STRANGE: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "noise": lambda: bytes(range(256)) * 40,
    "HTTP": lambda: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": _tls_hello,
    "STOMP": lambda: b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:no\n\n\0",
    "half a frame": lambda: b"\0\0\0\x40half",
    "a frame of 4 GB": lambda: b"\xff\xff\xff\xff" + b"x" * 1000,
    "a hello of another": lambda: b"\0\0\0\x04\x07\x01\x05\x01x",
}


def _resident(pid: int) -> int:
    """Kilobytes of memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def _doors(cluster: Cluster) -> list[int]:
    """The listeners that are not for clients: for links, for managers, and where a broker asks its manager."""
    return [cluster.links["n1"], cluster.members["n1"], cluster.lessors["n1"]]


@pytest.mark.requirement("H26")
@pytest.mark.requirement("Q4", part=True)
def test_strangers_at_every_listener_are_refused_and_nobody_notices(single: Cluster) -> None:
    """Bytes that are no frames, many connections that say nothing or stop in the middle, and one that is slow."""
    pids = single.pids("n1")
    before = len(single.log("n1").splitlines())
    single.send("before")
    open_ones = []
    for port in [*_doors(single), single.clients["n1"]]:
        for make in STRANGE.values():
            said = make()
            with socket.create_connection(("127.0.0.1", port), 5.0) as stranger:
                stranger.sendall(said)
                stranger.settimeout(0.05)
                try:
                    stranger.recv(4096)
                except (TimeoutError, ConnectionError):
                    pass
        for _ in range(3 * MAX_STRANGERS):
            waiting = socket.create_connection(("127.0.0.1", port), 5.0)
            waiting.sendall(b"\0\0")
            open_ones.append(waiting)
    single.send("while they wait")
    for waiting in open_ones[::7]:
        try:
            waiting.sendall(b"\0")  # one byte at a time
        except ConnectionError:
            pass
    single.send("after")
    assert single.receive(3, take=True) == ["before", "while they wait", "after"]
    assert single.pids("n1") == pids, "neither broker nor manager was ended and started again"
    assert single.statuses()["n1"]["state"] == "primary"
    for waiting in open_ones:
        waiting.close()
    told = single.log("n1").splitlines()[before:]
    assert len(told) < QUIET and not any("Traceback" in line or "failed" in line for line in told), told[-20:]
    assert all(_resident(pid) < _RESIDENT_KB for pid in pids)


@pytest.mark.requirement("H26")
@pytest.mark.requirement("Q4", part=True)
def test_a_broker_finds_its_manager_behind_a_crowd_that_says_nothing() -> None:
    """At the manager's listener and at the one for links, few strangers are kept; the oldest gives way."""
    world = World(1, 1)

    async def scenario(world: World) -> None:
        await world.start_manager("n1")
        await asyncio.sleep(1.0)
        for port in (LESSOR_PORT, MANAGER_PORT):
            crowd = [await asyncio.open_connection(world.address("n1"), port) for _ in range(2 * MAX_STRANGERS)]
            await asyncio.sleep(0.05)
            assert sum(not reader.at_eof() for reader, _ in crowd) == MAX_STRANGERS
        reader, writer = await asyncio.open_connection(world.address("n1"), LESSOR_PORT)
        handshake = Handshake(PROTOCOL, "qpid", "n1", SECRET, random.Random(1))
        await handshake.dial(reader, writer, manager_name("n1"))
        writer.write(encode_frame(["renew", 1.0, 0, 0, []]))
        assert await reader.read(100)
        honest = [(reader, writer)]
        for _ in range(MAX_CONNECTIONS):
            reader, writer = await asyncio.open_connection(world.address("n1"), LESSOR_PORT)
            await handshake.dial(reader, writer, manager_name("n1"))
            await asyncio.sleep(0.01)
            honest.append((reader, writer))
        assert [reader.at_eof() for reader, _ in honest] == [True] + [False] * MAX_CONNECTIONS

    run(world, scenario)


@pytest.mark.requirement("H26")
def test_whoever_does_not_read_its_grants_is_let_go() -> None:
    """Answers that nobody takes don't gather in the manager."""
    world = World(1, 1)

    async def scenario(world: World) -> None:
        await world.start_manager("n1")
        await asyncio.sleep(1.0)
        reader, writer = await asyncio.open_connection(world.address("n1"), LESSOR_PORT, limit=1)
        handshake = Handshake(PROTOCOL, "qpid", "n1", SECRET, random.Random(1))
        await handshake.dial(reader, writer, manager_name("n1"))
        for _ in range(200):
            writer.write(encode_frame(["renew", 1.0, 0, 0, []]) * 1000)
            await asyncio.sleep(0.01)
            if "does not read the answers" in world.log("n1"):
                return
        raise AssertionError(world.log("n1"))

    run(world, scenario)


@pytest.mark.requirement("Q5", part=True)
def test_urls_that_make_no_sense_are_refused_in_one_line_and_change_nothing(single: Cluster) -> None:
    before = single.statuses()["n1"]
    own = ["127.0.0.1", single.links["n1"]]
    cases: list[tuple[Any, str]] = [
        (None, 'is not {"NAME": ["HOST", PORT], ...}'), ({}, "is not"), ({"n1": ["h", "1"]}, "is not"),
        ({"n1": ["h", 70000]}, "is not"), ({"n1": own, "n2": [7, 1]}, "is not"),
        ({"n2": ["127.0.0.1", 5]}, "'n1', this broker, is missing"), ({"n1": own, "n2": own}, "n1 and n2 are both at"),
        ({"n1": own, "\ud800": ["h", 1]}, "visible characters"), ({"n1": own, "n2": ["h\0", 1]}, "visible characters"),
        ({f"n{number}": ["h", number] for number in range(1, 100)}, "there are 99, more than 64"),
    ]  # fmt: skip
    for addresses, said in cases:
        answer = single.ask("n1", op="set-broker-url", addresses=addresses)
        assert not answer["ok"] and said in answer["error"] and "\n" not in answer["error"], answer
    for words, said in (("nonsense", "nonsense: write it as NAME=HOST:PORT"), ("n1=h:70000", "n1"),
                        ("n2=127.0.0.1:5", "'n1', this broker, is missing")):
        done = single.admin("set-broker-url", "--server", single.server("n1"), words)
        assert (done.returncode, done.stderr.count("\n")) == (3, 1), (words, done.stderr)
        assert said in done.stderr, (words, done.stderr)
    after = single.statuses()["n1"]
    assert (after["brokers"], after["clients"]) == (before["brokers"], before["clients"])


@pytest.mark.requirement("Q5", part=True)
def test_a_broker_url_that_leads_nowhere_can_be_set_right_again(single: Cluster) -> None:
    """Brokers that are not there, or whose names nobody knows, do no harm to the one that serves."""
    own = {"n1": ["127.0.0.1", single.links["n1"]]}
    nowhere = {"n2": ["nowhere.invalid", 1], "n3": ["192.0.2.1", 9]}
    assert single.ask("n1", op="set-broker-url", addresses=own | nowhere)["ok"]
    single.send("x")
    assert single.receive(1, take=True) == ["x"]
    assert single.ask("n1", op="set-broker-url", addresses=own)["ok"]
    assert list(single.statuses()["n1"]["brokers"]) == ["n1"]


@pytest.mark.requirement("Q6", part=True)
@pytest.mark.requirement("H26")
def test_requests_that_can_t_be_carried_out_are_answered_in_one_line(tmp_path: Path) -> None:
    """A queue that is there with other arguments keeps them, and what is in it."""
    async def scenario(group: Group) -> None:
        await group.begin()
        assert await group.manage("n1", "create-queue", queue="q", color="red") == ""
        await group.send("n1", "kept")
        assert await group.manage("n1", "create-queue", queue="q", color="blue") == (
            "queue q exists with other arguments")
        too_long = {"queue": "long", "x": "y" * 501}
        too_many = {"queue": "many", **{f"a{number}": "" for number in range(17)}}
        for said in (too_long, too_many):
            assert (await group.manage("n1", "create-queue", **said)).startswith("arguments are at most 16, with 500")
        for name in ("half \ud800", "a/b", "", "x" * 201):
            answer = await group.manage("n1", "create-queue", queue=name)
            assert answer and "\n" not in answer and len(answer) < 200, answer
        listed = json.loads(await group.manage("n1", "list"))
        assert [(kind, name, arguments["color"]) for kind, name, arguments in listed] == [("queue", "q", "red")]
        assert await group.drain("n1", 1) == ["kept"]

    simulate(scenario, tmp_path)


@pytest.mark.requirement("H26")
def test_as_many_objects_as_there_may_be_fit_into_one_frame() -> None:
    """A configuration can't grow until its snapshot can't be sent."""
    name, argument = "\N{GRINNING FACE}" * 200, "\N{GRINNING FACE}" * 30
    binding = [BINDING, binding_name(name, name, name), {"exchange": name, "queue": name, "key": name}]
    queue = [QUEUE, "q" * 200, {str(number): argument for number in range(16)}]
    largest = [binding] * MAX_OBJECTS + [queue] * Limits().max_queues
    assert len(pack(EventGroup(1, 1, [[SNAPSHOT, 1, largest]], False))) < MAX_FRAME
    there = Configuration(sqlite3.connect(":memory:"))
    for number in range(MAX_OBJECTS):
        there.put(QUEUE, f"q{number}", {})
    with pytest.raises(InvalidRequest, match="delete some first"):
        changes_of(CREATE_QUEUE, {"queue": "one more"}, there)


@pytest.mark.requirement("H27", part=True)
def test_no_exchange_brings_messages_among_the_values_of_keys() -> None:
    there = Configuration(sqlite3.connect(":memory:"))
    there.put(EXCHANGE, "all", {"type": "fanout"})
    for queue in ("q", "last-value:v"):
        there.put(QUEUE, queue, {})
    assert changes_of(BIND, {"exchange": "all", "queue": "q"}, there)
    with pytest.raises(InvalidRequest, match="last-value:v: values are written to /last-value/NAME"):
        changes_of(BIND, {"exchange": "all", "queue": "last-value:v"}, there)


@pytest.mark.requirement("H26")
def test_a_primary_outlives_a_configuration_that_no_frame_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are more queues than by default; its backup is told nothing, and the log says why."""
    async def scenario(group: Group) -> None:
        await group.begin()
        for number in range(20):
            assert await group.manage("n1", "create-queue", queue=f"q{number}", x="y" * 400) == ""
        monkeypatch.setattr(handshake, "MAX_FRAME", 4000)
        await group.kill("n2")
        await group.start("n2")
        await asyncio.sleep(5)
        await group.send("n1", "x")
        assert "is longer than 4000" in await group.log("n1")
        monkeypatch.undo()
        await group.until("n2", "ready")
        assert await group.drain("n1", 1) == ["x"]

    simulate(scenario, tmp_path, nodes=2)


@pytest.mark.requirement("H26")
@pytest.mark.requirement("Q1", part=True)
def test_who_has_another_secret_is_told_of_once_and_gets_nothing(tmp_path: Path) -> None:
    """A broker among brokers, and a broker at its manager."""
    async def brokers(group: Group) -> None:
        await group.start("n1", "n2")
        await group.start("n3", secret="other")
        await group.until("n1", "connecting")
        assert (await group.ask("n1", "promote", bootstrap=True))["ok"]
        await group.until("n2", "ready")
        await asyncio.sleep(10)
        assert await group.state("n3") == "connecting"
        told = [(await group.log(node)).count("another secret") for node in group.nodes]
        assert 1 <= sum(told) <= 2, told

    simulate(brokers, tmp_path)

    async def manager(group: Group) -> None:
        address = [group.backend.address("n1"), LESSOR_PORT]
        config = ManagerConfig("n1", "data", {"n1": (address[0], MANAGER_PORT)}, (address[0], LESSOR_PORT),
                               (address[0], 61613), secret="another")  # fmt: skip
        programs = LaunchedPrograms(group.backend, "n1", {})
        await group.backend.launch("n1", "manager", lambda runtime: ManagerProcess(config, runtime, programs),
                                   "/n1/manager.log")  # fmt: skip
        await group.start("n1", manager="builtin", manager_address=address)
        log = await group.dead("n1")
        assert log.count("another secret") == 1 and "the manager's lease ran out" in log, log

    simulate(manager, tmp_path, nodes=1)


def _started(config: dict[str, Any], folder: Path, module: str = "nodes.reference") -> tuple[int, str]:
    path = folder / f"{module}.json"
    path.write_text(json.dumps(config))
    done = subprocess.run([sys.executable, "-m", module, str(path)], capture_output=True, text=True, timeout=60,
                          check=False)  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.requirement("H26")
@pytest.mark.requirement("Q11", part=True)
@pytest.mark.parametrize("program", ["broker", "manager", "storage"])
def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(program: str, tmp_path: Path) -> None:
    ports = free_ports(3)
    data = tmp_path / "data"
    data.mkdir()
    with sqlite3.connect(data / f"{program}.sqlite") as database:
        database.execute("CREATE TABLE later (x)")
        database.execute("INSERT INTO later VALUES (1)")
        database.execute("PRAGMA user_version=7")
    database.close()
    configs: dict[str, tuple[str, dict[str, Any]]] = {
        "broker": ("nodes.reference", {
            "node": "n1", "design": "qpid", "port": ports[0], "peers": {"n1": ["127.0.0.1", ports[1]]},
            "options": {"manager": "none"}}),
        "manager": ("nodes.reference.manager", {
            "node": "n1", "members": {"n1": ["127.0.0.1", ports[0]]}, "listen": ["127.0.0.1", ports[1]],
            "broker": ["127.0.0.1", ports[2]], "command": ["true"], "pid_file": str(tmp_path / "p"),
            "log": str(tmp_path / "l")}),
        "storage": ("nodes.reference.storage", {"host": "127.0.0.1", "port": ports[0], "clients": ["a"]}),
    }  # fmt: skip
    module, config = configs[program]
    status, said = _started({**config, "data": str(data)}, tmp_path, module)
    (line,) = [line for line in said.splitlines() if "secret" not in line]
    assert status == 3 and "is of format 7, and this version reads up to" in line, said
    with sqlite3.connect(data / f"{program}.sqlite") as database:
        tables = database.execute("SELECT name FROM sqlite_master").fetchall()
    database.close()
    assert tables == [("later",)]


@pytest.mark.requirement("H26")
@pytest.mark.requirement("Q4", part=True)
@pytest.mark.parametrize("setting", [
    "manager=somebody", "manager_lease=0.01", "manager_lease=nan", "replicate=all", "patterns=x=y", "catchup_timeout=0",
    "detection_timeout=1e-300", "sequence_bits=63", "store=disk", "store_errors=ignore", "virtual_address=10.0.0.300",
    "clients_find=virtual", "as_documented=LM99", "bug=none-such",
])  # fmt: skip
def test_options_out_of_range_are_refused_before_anything_starts(setting: str) -> None:
    name, _, value = setting.partition("=")
    with pytest.raises(UsageError) as refused:
        make_test(system="qpid", workload="queue", nemesis="kill", backend="sim", nodes=3, time_limit=8, rate=10,
                  seed=1, settings={name: value})  # fmt: skip
    assert name in str(refused.value) and "\n" not in str(refused.value)
