"""Services (HA Joram, 4.6.1): on the master only, first time or not, and a first initialisation that fails."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from joram_cluster import QUEUE, until
from joram_servers import Servers, eventually

from nodes.reference.api import Command, ConfigError
from nodes.reference.engine.server_queues import BEGUN, DONE, FAILED, ServicesDeployment
from nodes.reference.server.process import EXIT_FAILED, EXIT_OK
from nodes.reference.server.service import ServiceHost
from nodes.reference.server.services import SERVICES, TCP_PROXY, Services, factory_of


class Group(Servers):
    """Three replicas with a service that records what is done to it, or does something else."""

    def __init__(self, folder: Path) -> None:
        classes = {**SERVICES, "Recorder": self.recorder, "Entry": SERVICES[TCP_PROXY]}
        super().__init__(folder, 3, classes=classes, services=lambda name: (
            ["Entry"], ["Recorder", name], ["stormproof.Destinations", QUEUE]))
        self.calls: list[tuple[str, str]] = []
        self.on_init: Callable[[str, bool], None] = lambda name, first_time: None

    def recorder(self, host: ServiceHost, reserved: int, arguments: Sequence[str]) -> Any:
        (name,) = arguments
        group = self

        class Recorder:
            def init(self, first_time: bool) -> None:
                group.calls.append((name, f"init {first_time}"))
                group.on_init(name, first_time)

            def stop(self) -> None:
                group.calls.append((name, "stop"))

        return Recorder()

    async def all_ended(self) -> list[int]:
        async with asyncio.timeout(30):
            return list(await asyncio.gather(*(node.ended for node in self.nodes.values())))

    def told(self, name: str) -> str:
        return self.logs[name].getvalue()


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    found = Group(tmp_path)
    yield found
    await found.end()


async def until_view(group: Group, name: str, members: int) -> None:
    async def complete() -> bool:
        return len((await group.status(name)).get("view", ())) == members

    await eventually(complete, f"{members} members")


@pytest.mark.requirement("J10")
async def test_services_run_on_the_master_only_and_know_whether_it_is_the_first_time(group: Group):
    group.start()
    master = await group.serving(0)
    assert group.calls == [(master, "init True")]
    await (await group.client(master)).publish("kept")
    assert await group.depth(master) == 1
    await group.nodes[master].stop()
    second = await group.serving(0)
    assert second != master
    assert group.calls == [(master, "init True"), (master, "stop"), (second, "init False")]
    # The queue that was deployed has its reserved identifier on every replica.
    for name in set(group.names) - {master}:
        broker = group.nodes[name].running
        queues = broker.engine.server_queues
        await until(lambda queues=queues: queues.deployment.phase == DONE, "the deployment is known")
        with broker.transaction():
            pass
        assert broker.database.execute("SELECT id, name FROM queues").fetchall() == [(-2001, "q")]
    # A replica that lost everything learns from the others that it is not the first time.
    for file in (group.folder / master).iterdir():
        file.unlink()
    group.start(master)
    await until_view(group, second, 3)
    await group.nodes[second].stop()
    third = await group.serving(0)
    assert group.calls[-1] == (third, "init False")


@pytest.mark.requirement("J10")
async def test_a_service_that_fails_at_the_first_time_stops_all_replicas_until_all_are_started_again(group: Group):
    def fail(name: str, first_time: bool) -> None:
        raise RuntimeError("no room for the agents")

    group.on_init = fail
    group.start()
    assert await group.all_ended() == [EXIT_FAILED] * 3
    ((master, _), *_) = group.calls
    for name in group.names:
        assert "the first initialisation of the services failed" in group.told(name)
        assert f"{master}: no room for the agents" in group.told(name)
        assert "stop all replicas and start them again" in group.told(name)
    group.on_init = lambda name, first_time: None
    group.calls.clear()
    group.start()
    second = await group.serving(0)
    assert group.calls == [(second, "init True")]


@pytest.mark.requirement("J10")
async def test_a_first_master_that_dies_while_it_initialises_stops_the_others(group: Group):
    def die(name: str, first_time: bool) -> None:
        # As kill -9 would: nothing is sent any more, nothing is written any more.
        broker = group.nodes[name].running
        broker.design.submit = lambda command: None  # type: ignore[method-assign]
        asyncio.get_running_loop().call_soon(group.nodes[name].cancel)

    group.on_init = die
    group.start()
    codes = await group.all_ended()
    ((master, _),) = [call for call in group.calls if call[1] == "init True"]
    assert sorted(codes) == [EXIT_OK, EXIT_FAILED, EXIT_FAILED]
    for name in set(group.names) - {master}:
        assert f"{master} failed while it initialised the services for the first time" in group.told(name)
    assert all("serving clients" not in group.told(name) for name in group.names)
    group.on_init = lambda name, first_time: None
    group.calls.clear()
    group.start()
    assert (await group.serving(0), "init True") == group.calls[0]


class Submitted:
    """A host that only takes notes."""

    entry_open = False

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def submit(self, command: Command) -> None:
        self.commands.append(command)

    def log(self, event: str, **fields: object) -> None:
        pass


@pytest.mark.requirement("J10")
def test_nobody_is_let_in_before_the_deployment_is_replicated():
    host, opened = Submitted(), []
    services = Services(host, "n1", [["stormproof.Destinations", "/queue/a", "/queue/b"]], lambda: opened.append(1))
    services.promoted(ServicesDeployment())
    services.decided(BEGUN)
    kinds = [(command.kind, command.args.get("phase", command.args.get("id"))) for command in host.commands]
    assert kinds == [("deployment", BEGUN), ("deploy", -1), ("deploy", -2), ("deployment", DONE)]
    assert not services.ready and not opened
    services.decided(DONE)
    assert services.ready and opened
    services.demoted()
    assert not services.ready
    services.promoted(ServicesDeployment(BEGUN, "n2"))
    assert host.commands[-1].args["phase"] == FAILED


@pytest.mark.requirement("J10")
def test_a_server_without_replicas_begins_anew_when_it_is_started_again():
    """All replicas have been stopped and started again then."""
    host = Submitted()
    services = Services(host, "n1", [["stormproof.Destinations", "/queue/a"]], lambda: None, alone=True)
    services.promoted(ServicesDeployment(BEGUN, "n1"))
    assert host.commands[-1].args["phase"] == BEGUN


def test_an_unknown_service_is_refused():
    with pytest.raises(ConfigError, match="there is no 'Nobody'"):
        Services(Submitted(), "n1", [["Nobody"]], lambda: None)
    with pytest.raises(ConfigError, match="/queue/NAME"):
        Services(Submitted(), "n1", [["stormproof.Destinations", "t"]], lambda: None)


OWN_SERVICE = """
class Greeter:
    def __init__(self, host, reserved, arguments):
        self._host, self._words = host, arguments

    def init(self, first_time):
        self._host.log("greeting", words=",".join(self._words), first_time=first_time)

    def stop(self):
        self._host.log("farewell")


silent = 5
"""


@pytest.mark.requirement("J10", part=True)
@pytest.mark.requirement("J13", part=True)
async def test_a_service_of_ones_own_is_named_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_services_of_a_test.py").write_text(OWN_SERVICE)
    monkeypatch.syspath_prepend(str(tmp_path))
    servers = Servers(tmp_path, 1, services=lambda name: (
        [TCP_PROXY], ["own_services_of_a_test:Greeter", "hello", "world"]))
    try:
        servers.start()
        name = await servers.serving(0)
    finally:
        await servers.end()
    log = servers.logs[name].getvalue()
    assert "greeting words=hello,world first_time=True" in log and "farewell" in log
    for wrong, complaint in (
        ("own_services_of_a_test:Nobody", "can't be imported (AttributeError"),
        ("no_such_module_at_all:Greeter", "can't be imported (ModuleNotFoundError"),
        ("own_services_of_a_test:silent", "is not a class with the methods init"), ("Greeter", "there is no 'Greeter'"),
    ):
        with pytest.raises(ConfigError, match=re.escape(complaint)):
            factory_of(wrong, SERVICES)
