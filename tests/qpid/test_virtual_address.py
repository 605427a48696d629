"""The virtual address: moved with the role of the primary, found by clients, and never left behind."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from manager_world import CLIENT_PORT, LEFT_OVER, VIRTUAL, World, run
from qpid_runs import NODES, Ran, judged, really, simulated
from qpid_sim import VIRTUAL_ADDRESS, Group, simulate

from harness.backends.launch import how_to_launch
from harness.run.settings import make_test
from nodes.reference.api import ConfigError
from nodes.reference.designs.qpid.manager.addresses import AddressError
from nodes.reference.designs.qpid.manager.config import parse_manager_config
from nodes.reference.option_values import movable_address
from nodes.reference.server.runtime import _movable_socket
from nodes.systems.reference.qpid.addresses import LaunchedAddresses
from stormproof.contracts.backend import DEAD
from stormproof.errors import UsageError
from workloads.reference.connection import ConnectionBroken, Settings, StompConnection

MANAGER, BROKER = "manager", "broker"
AT_IT: dict[str, Any] = {"virtual_address": "auto", "clients_find": "both", "fault_duration": "4"}
"""Every other client is at the address."""


def holders(ran: Ran) -> list[str]:
    """Nodes whose managers have added the address, each once."""
    return [node for node in NODES if "virtual address added" in ran.log(f"{node}.manager")]


@pytest.mark.requirement("Q17")
@pytest.mark.requirement("Q5", part=True)
@pytest.mark.parametrize(("nemesis", "settings"), [
    ("kill", {"kill_kind": "master", "kill_program": BROKER}),
    ("pause", {"pause_kind": "master", "pause_program": MANAGER}),
    ("partition", {"partition_kind": "master"}),
])  # fmt: skip
def test_clients_at_the_address_and_clients_with_a_list_reach_the_new_primary(
        tmp_path: Path, nemesis: str, settings: dict[str, str]) -> None:
    ran = simulated(tmp_path, nemesis, **AT_IT, **settings)
    assert len(holders(ran)) > 1
    by_list, at_the_address = ran.served(3.0)
    assert at_the_address and by_list


@pytest.mark.requirement("Q17", part=True)
def test_an_address_that_is_not_announced_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: neighbours go on sending to the machine that had it first, and clients there are not served."""
    announce = LaunchedAddresses.announce

    def first_only(self: LaunchedAddresses) -> None:
        if self._machine == "n1":
            announce(self)

    monkeypatch.setattr(LaunchedAddresses, "announce", first_only)
    ran = judged(tmp_path, "kill", kill_kind="master", kill_program=MANAGER, **AT_IT)
    assert holders(ran) == ["n1", "n2"]
    by_list, at_the_address = ran.served(3.0)
    assert by_list and not at_the_address


@pytest.mark.requirement("Q5", part=True)
@pytest.mark.parametrize("at_the_address", [False, True])
def test_clients_try_for_a_while_and_then_give_up(tmp_path: Path, at_the_address: bool) -> None:
    """There is no primary, and soon there is one."""

    async def scenario(group: Group) -> None:
        await group.start()
        for node in group.nodes:
            await group.until(node, "connecting")
        hosts = [VIRTUAL_ADDRESS] if at_the_address else [group.backend.address(node) for node in group.nodes]

        def connection() -> StompConnection:
            settings = Settings("guest", "guest", reliable=False, learns_replicas=not at_the_address)
            return StompConnection([(host, CLIENT_PORT) for host in hosts], settings)

        group.backend.give_address("n1", VIRTUAL_ADDRESS, 3600)
        group.backend.announce_address("n1", VIRTUAL_ADDRESS)
        with pytest.raises(ConnectionBroken, match="not primary"):
            await connection().open(2.0)
        patient = connection()
        opening = asyncio.ensure_future(patient.open(60.0))
        await asyncio.sleep(5)
        assert not opening.done()
        group.backend.take_address("n1", VIRTUAL_ADDRESS)
        group.backend.give_address("n2", VIRTUAL_ADDRESS, 3600)
        group.backend.announce_address("n2", VIRTUAL_ADDRESS)
        assert (await group.ask("n2", "promote", bootstrap=True))["ok"]
        await opening
        assert patient.peer == (VIRTUAL_ADDRESS if at_the_address else group.backend.address("n2"), CLIENT_PORT)
        await patient.abort()

    simulate(scenario, tmp_path, virtual_address=VIRTUAL_ADDRESS)


# Managers.


@pytest.mark.requirement("Q17", part=True)
def test_the_primary_has_it_alone_and_loses_it_with_the_role() -> None:
    async def scenario(world: World) -> None:
        await world.start()
        address = world.backend._net().floating[world.address(VIRTUAL)]
        old = await world.primary()
        await world.until(lambda: world.holders() == [old] and address.route == old, 2)
        await world.backend.kill(old, BROKER)
        new = await world.primary()
        await world.until(lambda: world.holders() == [new] and address.route == new, 2)
        await world.isolate(new)
        await world.until(lambda: world.one_primary() and world.primaries() != [new], 5)
        assert new not in world.holders()
        await world.cut()
        last = await world.primary()
        await world.until(lambda: world.holders() == [last] and address.route == last, 2)
        await world.backend.stop(last, MANAGER)
        assert last not in world.holders(), "a manager that is stopped takes it along"

    assert run(World(21, 3), scenario).both_for == 0


@pytest.mark.requirement("Q17", part=True)
def test_what_a_dead_manager_has_left_goes_by_itself() -> None:
    """Killed with its broker, or paused: nobody removes it there, and yet two machines never have it."""

    async def scenario(world: World) -> None:
        await world.start()
        old = await world.primary()
        await world.until(lambda: world.holders() == [old], 2)
        await world.backend.kill(old, MANAGER)
        await world.backend.kill(old, BROKER)
        assert world.holders() == [old]
        await world.until(lambda: not world.holders(), 2)
        new = await world.primary()
        await world.until(lambda: world.holders() == [new], 2)
        await world.start_manager(old)
        await asyncio.sleep(2)
        manager = world.process(new, MANAGER)
        assert manager is not None
        manager.pause()
        await world.until(lambda: world.one_primary() and world.primaries() != [new], 5)
        await world.until(lambda: world.holders() == world.primaries(), 2)
        assert (await world.backend.process(new, BROKER)).state == DEAD
        manager.resume()
        await world.until(lambda: world.holders() == world.primaries(), 5)

    assert run(World(22, 3, eligible=True), scenario).both_for == 0


@pytest.mark.requirement("Q17", part=True)
def test_a_manager_removes_what_an_earlier_one_has_left() -> None:
    async def scenario(world: World) -> None:
        world.backend.give_address("n2", world.address(VIRTUAL), 1000.0)
        await world.start()
        primary = await world.primary()
        await world.until(lambda: world.holders() == [primary], 2)
        assert primary != "n2"

    run(World(23, 3), scenario)


def test_an_address_that_outlives_its_manager_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial of the trial: without lifetimes a machine keeps it."""

    def keep(self: LaunchedAddresses, seconds: int) -> None:
        self._backend.give_address(self._machine, self._address, 1000.0)  # type: ignore[attr-defined]

    async def scenario(world: World) -> None:
        await world.start()
        await world.until(lambda: bool(world.holders()), 10)
        await world.backend.kill(await world.primary(), MANAGER)
        await world.until(lambda: len(world.holders()) > 1, 10)
        await asyncio.sleep(2 * LEFT_OVER)

    monkeypatch.setattr(LaunchedAddresses, "hold", keep)
    with pytest.raises(AssertionError, match="has the virtual address, and is not primary"):
        run(World(24, 3), scenario)


@pytest.mark.requirement("Q17", part=True)
def test_a_machine_that_cannot_have_it_says_so_once_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = False
    hold = LaunchedAddresses.hold

    def refused(self: LaunchedAddresses, seconds: int) -> None:
        if not allowed:
            raise AddressError("10.0.0.251: Operation not permitted")
        hold(self, seconds)

    async def scenario(world: World) -> None:
        nonlocal allowed
        await world.start()
        primary = await world.primary()
        await world.until(lambda: "virtual address in trouble" in world.log(primary), 3)
        allowed = True
        await world.until(lambda: world.holders() == [primary], 3)
        assert world.log(primary).count("Operation not permitted") == 1

    monkeypatch.setattr(LaunchedAddresses, "hold", refused)
    run(World(25, 3), scenario)


# Linux.

_IN_A_NAMESPACE = """
import socket, sys, time
from nodes.reference.designs.qpid.manager.addresses import AddressError, LinuxAddresses

def has():
    with socket.socket() as probe:
        try:
            probe.bind(("10.9.0.251", 0))
        except OSError:
            return False
    return True

def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)

heard = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
heard.bind(("there", 0x0806))
heard.settimeout(10)
addresses = LinuxAddresses("10.9.0.251", "10.9.0.1")
addresses.drop()
assert not has()
addresses.hold(60)
assert has()
addresses.announce()
request, answer = heard.recv(100), heard.recv(100)
for packet, operation in ((request, 1), (answer, 2)):
    assert packet[:6] == b"\\xff" * 6 and packet[20:22] == bytes((0, operation)), packet
    assert packet[6:12] == packet[22:28]
    assert packet[28:32] == packet[38:42] == socket.inet_aton("10.9.0.251"), packet
addresses.drop()
assert not has()
addresses.hold(1)
assert has()
until(lambda: not has())
addresses.hold(1)
addresses.hold(60)
time.sleep(1.5)
assert has(), "its lifetime was renewed"
try:
    LinuxAddresses("10.9.0.251", "10.9.0.7").hold(1)
except AddressError as error:
    assert str(error) == "no interface has 10.9.0.7, this node's own address"
print("done")
"""


@pytest.mark.requirement("Q17", part=True)
def test_linux_adds_announces_and_removes_it() -> None:
    """In a network of its own with two ends of a cable: this one has the address, that one hears of it."""
    launch = how_to_launch()
    if launch.prefix is None:
        pytest.skip(launch.detail)
    script = ("ip link set lo up && ip link add here type veth peer name there && ip link set here up && "
              "ip link set there up && ip address add 10.9.0.1/24 dev here && exec \"$0\" -c \"$1\"")  # fmt: skip
    done = subprocess.run([*launch.prefix, "sh", "-c", script, sys.executable, _IN_A_NAMESPACE], capture_output=True,
                          text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr


def test_a_listener_at_an_address_that_is_elsewhere_exposes_nothing_else() -> None:
    with _movable_socket("192.0.2.7", 0) as listener:
        listener.listen()
        host, port = listener.getsockname()
        assert host == "192.0.2.7"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)


# Settings.


@pytest.mark.parametrize("value", ["x", 3, "::1", "224.0.0.1", "0.0.0.0", "10.0.0.1/24", "255.255.255.255", None])
def test_what_is_no_address_is_told_in_one_line(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"virtual_address: .* is not an IPv4 address that a machine can have"):
        movable_address("virtual_address", value)


def test_a_manager_reads_its_address() -> None:
    good = {"node": "n1", "data": "d", "members": {"n1": ["10.0.0.1", 1]}, "listen": ["10.0.0.1", 2],
            "broker": ["10.0.0.1", 3], "secret": "s"}  # fmt: skip
    assert parse_manager_config(good | {"virtual_address": ""}).virtual_address == ""
    assert parse_manager_config(good | {"virtual_address": "10.0.0.9"}).virtual_address == "10.0.0.9"
    with pytest.raises(ConfigError, match="virtual_address: 'x' is not an IPv4 address"):
        parse_manager_config(good | {"virtual_address": "x"})
    with pytest.raises(ConfigError, match="virtual_address: is not a text"):
        parse_manager_config(good | {"virtual_address": 3})


@pytest.mark.parametrize(("settings", "words"), [
    ({"clients_find": "virtual"}, "needs a virtual address: --set virtual_address=auto"),
    ({"virtual_address": "auto", "manager": "none"}, "needs managers, which move it"),
    ({"virtual_address": "here"}, "virtual_address: 'here' is not an IPv4 address"),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_test(system="qpid", workload="queue", nemesis="kill", backend="sim", nodes=3, time_limit=8, rate=10,
                  seed=1, settings=settings)  # fmt: skip


# Whole.


@pytest.mark.soak
@pytest.mark.requirement("Q17", part=True)
@pytest.mark.parametrize(("backend", "nemesis"), [("local", "partition"), ("docker", "kill,pause")])
def test_real_networks(tmp_path: Path, backend: str, nemesis: str) -> None:
    """The primary is cut off, or killed, and its manager paused; clients follow the address."""
    aims = {f"{family}_kind": "master" for family in nemesis.split(",")}
    if "pause" in nemesis:
        aims["pause_program"] = MANAGER
    ran = really(tmp_path, backend, nemesis, 5, virtual_address="auto", clients_find="both", catchup_timeout=1, **aims)
    assert len(holders(ran)) > 1 and "in trouble" not in ran.managers()
    by_list, at_the_address = ran.served(4.0)
    assert at_the_address and by_list
