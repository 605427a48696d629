"""What a system's author writes: names to import, results of the right type, options, a program of one's own."""

from __future__ import annotations

import asyncio
import inspect
import re
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stormproof
from harness.contract.core import FAILED, Bench, ContractItem, tried
from harness.run.settings import convert_options, declared_options, make_test
from harness.run.system_calls import SystemCalls
from nodes.systems.catalog import SYSTEMS
from stormproof.apart import Apart
from stormproof.contracts import client as connections
from stormproof.contracts.cluster import Deployment
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError, StormproofError, UsageError
from stormproof.hook_types import WrongType
from stormproof.shell_system import BINARY
from stormproof.test import Test

DOCS = (Path(__file__).parents[2] / "docs/systems.md").read_text()


def types_in(annotation: Any) -> set[type]:
    """The types that an annotation consists of."""
    found = {annotation} if isinstance(annotation, type) and not typing.get_args(annotation) else set()
    for each in typing.get_args(annotation):
        for one in each if isinstance(each, list) else [each]:
            found |= types_in(one)
    return found


def test_every_type_of_a_documented_hook_can_be_imported() -> None:
    """What a hook takes or gives by its annotation, and every type of this package that the page names."""
    written = set(re.findall(r"`(\w+)[(`]", DOCS))
    classes = [each for each in vars(connections).values() if isinstance(each, type)
               and each.__module__ == connections.__name__]  # fmt: skip
    needed: dict[type, str] = {each: "the page" for each in classes if each.__name__ in written}
    for owner in (stormproof.ShellSystem, stormproof.System, *classes):
        hints = [(name, hint) for name, hint in typing.get_type_hints(owner).items() if name in written]
        for name in written & set(dir(owner)):
            hook = inspect.unwrap(inspect.getattr_static(owner, name))
            if inspect.isfunction(hook):
                hints += [(name, hint) for hint in typing.get_type_hints(hook).values()]
        for name, hint in hints:
            needed |= dict.fromkeys(types_in(hint), f"{owner.__name__}.{name}")
    ours = {each.__name__: where for each, where in needed.items() if each.__module__.startswith("stormproof.")}
    assert {"LogEntry", "RoleChange", "Beating", "StateTransfer", "Subscriber"} <= set(ours)
    missing = {name: where for name, where in ours.items() if name not in stormproof.__all__}
    assert not missing
    for name in re.findall(r"stormproof\.([A-Z]\w+)", DOCS):
        assert hasattr(stormproof, name), name


class Mine(stormproof.ShellSystem):
    """A system whose hooks return what a test says."""

    name = "mine"

    def __init__(self, **returned: Any) -> None:
        self.returned = returned

    def command(self, machine: stormproof.Machine, program: str) -> Any:
        return self.returned.get("command", ["true"])

    def connection(self, cluster: stormproof.ShellCluster) -> Any:
        return self.returned.get("connection")

    def files(self, machine: stormproof.Machine) -> Any:
        return self.returned.get("files", {})

    async def status(self, machine: stormproof.Machine) -> Any:
        return self.returned.get("status", stormproof.NodeStatus(machine.name, True, "up", True))

    def healthy(self, statuses: Any) -> Any:
        return self.returned.get("healthy", True)

    async def leaders(self, cluster: stormproof.ShellCluster) -> Any:
        return self.returned.get("leaders", {})

    async def repair(self, cluster: stormproof.ShellCluster) -> Any:
        return self.returned.get("repair")

    async def attend(self, cluster: stormproof.ShellCluster, note: Any) -> None:
        note("restarted n1")


def cluster_of(system: stormproof.ShellSystem, **options: Any) -> stormproof.ShellCluster:
    backend: Any = SimpleNamespace(node_dir=lambda name: f"/there/{name}", address=lambda name: "127.0.0.1",
                                   data_dir=lambda name: f"/there/{name}/data", in_process=False)  # fmt: skip
    test = Test(system.name, "queue", nodes=2, options=options)
    return system.cluster(Deployment(test, Demands(queues=("q0",)), backend, Topology(("n1", "n2"), ("c1",))))


@pytest.mark.parametrize(("hook", "wrong", "asked"), [
    ("status", {"role": "up"}, lambda cluster: cluster.status("n1")),
    ("healthy", None, lambda cluster: cluster.await_healthy(1.0)),
    ("leaders", [("q0", "n1")], lambda cluster: cluster.prepare()),
    ("leaders", {"q0": 1}, lambda cluster: cluster.prepare()),
])  # fmt: skip
async def test_a_wrong_type_ends_the_start_with_hook_and_line(hook: str, wrong: Any, asked: Any) -> None:
    with pytest.raises(BackendError, match=rf"mine: {hook}\(\) returned .*, not .*test_hooks\.py:\d+\)"):
        await asked(cluster_of(Mine(**{hook: wrong})))


@pytest.mark.parametrize(("hook", "wrong"), [("command", "mybroker --listen"), ("connection", "amqp://n1"),
                                             ("files", ["a.conf"])])  # fmt: skip
def test_a_text_is_no_command_and_no_connection(hook: str, wrong: Any) -> None:
    cluster = cluster_of(Mine(**{hook: wrong}))
    with pytest.raises(BackendError, match=rf"{hook}\(\) returned"):
        if hook == "connection":
            cluster.queue_connection()
        else:
            cluster._ask(getattr(cluster.system, hook), *([cluster.machine("n1"), "broker"][:1 + (hook == "command")]))


async def test_what_fits_passes_and_a_late_mistake_makes_a_node_unreachable() -> None:
    system = Mine(leaders={"q0": "n1"}, repair=None)
    cluster = cluster_of(system)
    assert (await cluster.status("n1")).serving and await cluster.await_healthy(1.0)
    await cluster.prepare()
    assert await cluster.leaders() == {"q0": "n1"} and await cluster.repair() == ""
    system.returned["status"] = None
    status = await cluster.status("n1")
    assert not status.reachable and "status() returned None" in status.detail["error"]  # type: ignore[index]
    system.returned["repair"] = 3
    with pytest.raises(WrongType, match=r"repair\(\) returned 3, not str"):
        await cluster.repair()


class Wrong:
    """A connection whose methods return what nobody can use."""

    async def connect(self, host: str, port: int, local: str) -> None:
        pass

    async def take(self, queue: str, timeout: float) -> Any:
        return {"text": stormproof.Delivery("text", self.close), "bytes": b"body"}[queue]  # type: ignore[arg-type]

    async def depth(self, queue: str) -> Any:
        return "7"

    async def read(self, name: str, after: int = 0, limit: int = 0) -> Any:
        return [b"entry"] if limit else b"value"

    async def close(self) -> None:
        pass


async def test_a_connections_result_is_told_with_method_and_line() -> None:
    apart = Apart()
    connection = apart.connection(Wrong)
    for call, told in ((connection.take("bytes", 1), r"take\(\) returned b'body', not Delivery \| None"),
                       (connection.take("text", 1), r"take\(\) returned 'text', not bytes, as the body"),
                       (connection.depth("q0"), r"depth\(\) returned '7', not int \| None"),
                       (connection.read("log0", 0, 5), r"read\(\) returned \[b'entry'\], not .*Sequence\[LogEntry\]")):
        with pytest.raises(WrongType, match=told + r".*test_hooks\.py:\d+\)"):
            await call
    assert await connection.read("r0") == b"value"
    await connection.close()
    apart.close()


async def test_the_detail_of_a_reachable_node_is_told() -> None:
    detail = {"waits for": "quorum", "members": 1}
    status = stormproof.NodeStatus("n1", True, "candidate", detail=detail)
    told = await cluster_of(Mine(status=status, healthy=False)).describe()
    assert told == "n1 candidate (waits for: quorum, members: 1); n1 candidate (waits for: quorum, members: 1)"


async def test_an_operator_attends() -> None:
    notes: list[str] = []
    await cluster_of(Mine()).attend(notes.append)
    assert notes == ["restarted n1"]


def test_a_default_below_zero_can_be_set_and_kept() -> None:
    option = stormproof.Option("linger", -1, "seconds; -1: for ever")
    assert convert_options([option], {}) == {"linger": -1}
    assert convert_options([option], {"linger": "-5"}) == {"linger": -5}
    with pytest.raises(UsageError, match="between 0 and 1e9"):
        convert_options([stormproof.Option("linger", 1, "seconds")], {"linger": "-1"})


def test_the_start_limit_is_a_setting() -> None:
    declared = declared_options("joram", "queue", ())
    assert convert_options(declared, {"start_timeout": "120"})["start_timeout"] == 120.0
    assert convert_options(declared, {})["start_timeout"] == 45.0


@pytest.mark.parametrize("name", ["activemq", "etcd", "mosquitto", "nats", "rabbitmq", "redis", "zeroc-icestorm"])
def test_a_shipped_adapter_runs_another_binary(name: str) -> None:
    system = SYSTEMS.load(name)
    assert isinstance(system, stormproof.ShellSystem)
    options = convert_options(system.options, {})
    commands = []
    for given in ({}, {BINARY.name: "/opt/new/broker"}):
        machine = cluster_of(system, **{**options, **given}).machine("n1")
        commands.append(list(system.command(machine, "broker")))
    usual, other = (" ".join(command) for command in commands)
    assert "/opt/new/broker" not in usual and other.count("/opt/new/broker") == 1


@pytest.mark.parametrize(("raised", "told"), [
    (TimeoutError("the library waits no longer"), "TimeoutError: the library waits no longer"),
    (None, "it did not end within"),
])  # fmt: skip
async def test_a_librarys_time_out_is_not_the_suites(
    raised: Exception | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def item(bench: Any) -> str:
        if raised is not None:
            raise raised
        await asyncio.sleep(60)
        return "late"

    monkeypatch.setattr("harness.contract.core.ITEM_SECONDS", 0.05)
    bench = Bench(Mine(), cluster_of(Mine()), None, Path(), lambda: None)  # type: ignore[arg-type]
    outcome = await tried(ContractItem("x", "must", "command", "advice", item), bench)
    assert outcome.status == FAILED and outcome.told.startswith(told)


async def test_a_librarys_time_out_in_prepare_is_told_as_it_is() -> None:
    async def fails() -> None:
        raise TimeoutError("no metadata")

    backend: Any = SimpleNamespace(in_process=False)
    calls = SystemCalls(Test("mine", "queue"), backend, Topology(("n1",), ()), cluster_of(Mine()))
    with pytest.raises(StormproofError, match="preparing it failed: TimeoutError: no metadata"):
        await calls.carry_out("preparing it", fails(), 30.0)
    with pytest.raises(StormproofError, match="took too long"):
        await calls.carry_out("preparing it", asyncio.sleep(9), 0.05)


class Unbound(Mine):
    """A system whose clients' library can't bind."""

    name = "unbound"

    def clients_in_places(self, test: stormproof.Test) -> bool:
        return True


def planned(**settings: str) -> stormproof.Test:
    return make_test(system="unbound", workload="queue", nemesis="partition", backend="local", nodes=3,
                     time_limit=10.0, rate=10.0, seed=1, settings=settings)  # fmt: skip


def test_clients_that_cannot_bind_stand_outside_where_there_are_no_networks_for_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = SYSTEMS.load
    monkeypatch.setattr(SYSTEMS, "load", lambda name: Unbound() if name == "unbound" else load(name))
    assert planned().options["clients"] == "beside", "this backend has networks for them"
    monkeypatch.setattr("harness.run.deployment.ClientPlaces", type("None_", (), {}))
    assert planned().options["clients"] == "outside"
    assert "--set clients=outside: clients of unbound can't bind" in capsys.readouterr().err
    with pytest.raises(UsageError, match="clients=outside"):
        planned(clients="beside")
