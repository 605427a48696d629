"""The process around the broker: configuration, exit statuses, restarts, failures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker_process import PATIENCE, ROOT, BrokerProcess, RawClient, until, works

from nodes.reference.api import Admission, Command, Config, ConfigError
from nodes.reference.config import build_config, parse_config
from nodes.reference.engine.server_queues import DONE
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.process import run_broker
from nodes.reference.server.runtime import RealRuntime

Start = Callable[..., BrokerProcess]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "nodes.reference", *arguments], cwd=ROOT, text=True,
                          capture_output=True, timeout=PATIENCE, check=False)


def refused(folder: Path, **settings: Any) -> str:
    """The one line that a configuration gets."""
    path = folder / "config.json"
    path.write_text(json.dumps({"node": "n1", "design": "standalone", "data": str(folder / "data"),
                                "passcode": "secret-word", **settings}))
    result = run(str(path))
    assert result.returncode == 3
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and "secret-word" not in lines[0]
    return lines[0]


def test_a_bad_configuration_is_one_clear_line(tmp_path: Path) -> None:
    assert "no 'raft'; choose one of standalone" in refused(tmp_path, design="raft")
    path = tmp_path / "broken.json"
    path.write_text("{")
    assert "is not JSON" in run(str(path)).stderr
    missing = run(str(tmp_path / "missing.json"))
    assert (missing.returncode, missing.stderr.count("\n")) == (3, 1)
    assert "usage" in run().stderr


@pytest.mark.parametrize(("settings", "words"), [
    ({"colour": "red"}, "colour: unknown setting"),
    ({"node": None}, "node: is not a text"),
    ({"port": 70_000}, "port: 70000 is not a port"),
    ({"peers": {"n1": "here"}}, r"peers.n1: is not \[host, port\]"),
    ({"client_addresses": {"n1": "here"}}, "client_addresses.n1: is not"),
    ({"options": []}, "options: is not an object"),
    ({"options": {"idle_timeout": "soon"}}, "options.idle_timeout: 'soon' is not a number above zero"),
    ({"options": {"max_body": 0.5}}, "options.max_body: 0.5 is not a whole number"),
    ({"options": {"seed": "x"}}, "options.seed"),
    ({"options": {"secret": 5}}, "options.secret: is not a text"),
    ({"options": {"secret": "\ud800"}}, "options.secret: is not a text of printable characters"),
])
def test_every_setting_is_checked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config({"node": "n1", "design": "standalone", "data": "d", **settings})


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="data: is missing"):
        parse_config({"node": "n1", "design": "standalone"})
    with pytest.raises(ConfigError, match="not a JSON object"):
        parse_config([])


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"can't listen on 127.0.0.1:{port}" in refused(tmp_path, port=port)


def test_a_data_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "can't be used" in refused(tmp_path, data=str(tmp_path / "file" / "data"))
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "broker.sqlite").write_text("this is no database " * 100)
    assert "can't be used" in refused(tmp_path, data=str(damaged))


def test_two_brokers_cannot_share_a_data_folder(start_broker: Start, tmp_path: Path) -> None:
    broker = start_broker()
    assert "another broker" in refused(tmp_path, data=str(broker.folder / "data"), port=0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_in_order_and_tells_the_clients(start_broker: Start, number: signal.Signals) -> None:
    broker = start_broker()
    client = await RawClient.connect(broker.port)
    admin = await RawClient.connect(broker.port, x_admin="true")
    broker.signal(number)
    for each in (client, admin):
        assert "shutting down" in (await each.refused()).headers["message"]
        each.abort()
    assert await asyncio.to_thread(broker.wait) == 0
    assert " stopped " in broker.log.read_text()


async def test_a_broker_that_stood_still_does_not_blame_its_clients(start_broker: Start) -> None:
    broker = start_broker(idle_timeout=2.0)
    client = await RawClient.connect(broker.port, heart_beat="1000,0")
    detached = await RawClient.connect(broker.port, x_reliable="true")
    await detached.confirmed("SEND", {"destination": "/queue/q", "x-seq": "1"}, b"x")
    detached.abort()
    await client.confirmed("SEND", {"destination": "/queue/q"}, b"x")
    broker.signal(signal.SIGSTOP)
    for _ in range(35):
        client.writer.write(b"\n")
        await asyncio.sleep(0.1)
    broker.signal(signal.SIGCONT)
    resumed = await RawClient.connect(broker.port, x_reliable="true", x_received="0",
                                      x_connection_id=detached.connected.headers["x-connection-id"])
    assert resumed.connected.headers["x-received"] == "1"
    await client.confirmed("SEND", {"destination": "/queue/q"}, b"x")


async def test_a_store_that_fails_ends_the_broker_whoever_survives_the_exception(tmp_path: Path) -> None:
    """A connection handler's exceptions end that connection only; the store's must end more."""
    config = build_config(tmp_path, port=0)
    runtime = RealRuntime(config)
    started: asyncio.Future[ReferenceBroker] = asyncio.get_running_loop().create_future()
    main = asyncio.ensure_future(run_broker(config, runtime, started.set_result))
    supervised = asyncio.ensure_future(runtime.supervise(main))
    broker = await started
    with contextlib.suppress(sqlite3.OperationalError), broker.transaction():
        raise sqlite3.OperationalError("disk I/O error")
    with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        await asyncio.wait_for(supervised, PATIENCE)


async def test_a_failure_of_the_store_ends_the_broker_with_a_status(tmp_path: Path) -> None:
    """The disk fills: nothing is confirmed from then on, and what was confirmed is still there."""
    broker = BrokerProcess(tmp_path)
    path = tmp_path / "run.py"
    broker.start()
    broker.stop()
    path.write_text(
        "import resource, signal, sys\n"
        "from nodes.reference.__main__ import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        "sys.exit(main(sys.argv[1:]))\n")
    log = (tmp_path / "full.log").open("wb")
    process = subprocess.Popen([sys.executable, str(path), str(tmp_path / "config.json")], stdout=log,
                               stderr=log, env={"PYTHONPATH": str(ROOT)})
    try:
        await until(lambda: " started " in (tmp_path / "full.log").read_text())
        port = int((tmp_path / "full.log").read_text().partition("address=127.0.0.1:")[2].split()[0])
        client = await RawClient.connect(port)
        confirmed = 0
        while True:
            client.send("SEND", {"destination": "/queue/q", "receipt": "r"}, b"x" * 50_000)
            frame = await client.frame()
            if frame is None or frame.command != "RECEIPT":
                break
            confirmed += 1
        client.abort()
        assert await asyncio.to_thread(process.wait, PATIENCE) == 1
    finally:
        process.kill()
        log.close()
    assert "ERROR background task failed" in (tmp_path / "full.log").read_text()
    assert "Traceback" not in (tmp_path / "full.log").read_text()
    broker.start()
    client = await RawClient.connect(broker.port)
    client.send("SUBSCRIBE", {"id": "s", "destination": "/queue/q", "ack": "client", "x-prefetch": "1000"})
    assert confirmed > 3
    for _ in range(confirmed):
        assert len((await client.expect("MESSAGE")).body) == 50_000
    await works(broker.port)
    broker.kill()


async def test_a_broker_runs_in_somebody_elses_event_loop(tmp_path: Path) -> None:
    config = build_config(tmp_path, port=0, passcode="secret-word", options={"seed": 7})
    log = (tmp_path / "log").open("w")
    started: asyncio.Future[ReferenceBroker] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run_broker(config, RealRuntime(config, log), started.set_result))
    broker = await started
    await works(broker.port)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    log.close()


class Refusing:
    """A design that serves only when it is told to."""

    has_services = True

    def __init__(self) -> None:
        self.serving = False
        self.commands: list[Command] = []

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def admission(self) -> Admission:
        return Admission(True) if self.serving else Admission(False, "not master", "other:61613")

    def submit(self, command: Command) -> None:
        self.commands.append(command)

    def status(self) -> dict[str, Any]:
        return {"role": "slave", "serving": self.serving, "epoch": 3, "view": []}


async def test_a_node_that_does_not_serve_names_the_master_and_admits_administrators(tmp_path: Path) -> None:
    config = Config("n1", "standalone", str(tmp_path), port=0, passcode="secret-word",
                    client_addresses={"n1": "a:1", "n2": "b:2"})
    log = (tmp_path / "log").open("w")
    broker = ReferenceBroker(config, RealRuntime(config, log))
    design = broker.design = Refusing()
    await broker.start()
    client = await RawClient.dial(broker.port)
    client.hello()
    error = await client.refused()
    assert (error.headers["message"], error.headers["x-master"]) == ("not master", "other:61613")
    admin = await RawClient.connect(broker.port, x_admin="true")
    assert admin.connected.headers["x-replicas"] == "a:1,b:2"

    with broker.transaction():
        for conn, reliable in (("old", False), ("kept", True)):
            broker.engine.apply(Command("open", conn, 0, {"reliable": reliable, "login": "guest"}))
        broker.engine.apply(Command("deployment", "", 0, {"phase": DONE, "note": "n1"}))
    design.serving = True
    broker.began_serving()
    assert design.commands == [Command("close", "old", 0, {"reason": "failover"})]
    served = await RawClient.dial(broker.port)
    served.hello()
    await until(lambda: len(design.commands) == 2)
    with broker.transaction():
        effects = broker.engine.apply(design.commands[1])
    broker.release(effects)
    await served.expect("CONNECTED")
    design.serving = False
    broker.drop_clients("no longer master")
    error = await served.refused()
    assert (error.headers["message"], error.headers["x-master"]) == ("no longer master", "other:61613")
    # The context is the next master's business now, and the administrator stays.
    assert len(design.commands) == 2
    admin.send("SEND", {"destination": "/admin/status"})
    assert b'"epoch": 3' in (await admin.expect("MESSAGE")).body
    for each in (client, admin, served):
        each.abort()
    await broker.stop()
    log.close()
