"""The faults of a Compose project, shown on containers without a shell, on two networks, one of them with IPv6, that
Docker restarts after a crash."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
import nats
import pytest
from listening import Hammer, Listener
from provisioned import started
from static_nats import import_image, write_project

from harness.backends.compose.backend import ComposeBackend
from stormproof.apart import OwnLoop
from stormproof.contracts.backend import RUNNING, DiskFault

pytestmark = [pytest.mark.docker, pytest.mark.skipif(os.geteuid() != 0, reason="faults of a Compose project need root")]

CUT = frozenset({("nats-1", "nats-2"), ("nats-2", "nats-1"), ("nats-1", "c2"), ("c2", "nats-1")})
AWAY = (("nats-2", "nats-1"), ("nats-1", "nats-2"), ("c2", "nats-1"))
NEAR = (("nats-3", "nats-1"), ("nats-1", "nats-3"), ("c1", "nats-1"))


class Broker:
    """A machine whose addresses and MAC addresses are noted over its lives."""

    def __init__(self, backend: ComposeBackend, name: str) -> None:
        self.backend, self.name = backend, name
        self.addresses: list[str] = []
        self.macs: set[str] = set()

    async def note(self) -> tuple[str, ...]:
        """Return its present addresses."""
        networks = (await self.backend.containers.inspect(self.name))["NetworkSettings"]["Networks"].values()
        now = tuple(each[key] for key in ("IPAddress", "GlobalIPv6Address") for each in networks if each.get(key))
        self.addresses += [address for address in now if address not in self.addresses]
        self.macs |= {each["MacAddress"] for each in networks if each.get("MacAddress")}
        return now

    async def restarted(self, since: str) -> tuple[str, ...]:
        """Wait until it runs again; return its addresses."""
        deadline = time.monotonic() + 30
        while True:
            state = await self.backend.process(self.name, "")
            if state.state == RUNNING and state.born != since and len(now := await self.note()) == 3:
                return now
            assert time.monotonic() < deadline, state
            await asyncio.sleep(0.02)


async def probes(backend: ComposeBackend, links: Sequence[tuple[str, str]]) -> set[str]:
    return set(await asyncio.gather(*(backend.probe(link, 1.0) for link in links)))


async def network_of(backend: ComposeBackend, name: str) -> int:
    """Return a process in a machine's or place's network."""
    if name in backend._places:
        return backend._places[name].pid
    found = (await backend.process(name, "")).pid
    assert found is not None
    return found


async def test_a_cut_holds_while_the_container_restarts(tmp_path: Path) -> None:
    """No frame of it, and no answer, crosses the cut: neither at its old addresses nor at new ones."""
    file = write_project(tmp_path, os.getpid() % 60000)
    async with started(file, "nats-1,nats-2,nats-3", "partition", "kill") as backend:
        broker = Broker(backend, "nats-1")
        first = await broker.note()
        assert sum(":" in address for address in first) == 1 and len(first) == 3
        assert await probes(backend, AWAY + NEAR) == {"open"}
        await backend.set_network(CUT)
        assert await probes(backend, AWAY) == {"cut"} and await probes(backend, NEAR) == {"open"}
        pids = {name: await network_of(backend, name) for name in ("nats-2", "c2", "nats-3", "c1")}
        listeners = {name: Listener(pid) for name, pid in pids.items()}
        hammers = {name: Hammer(pid, lambda: broker.addresses) for name, pid in pids.items()}
        for each in (*listeners.values(), *hammers.values()):
            each.start()
        before = await backend.dropped()

        crashed = time.time()
        state = await backend.process("nats-1", "")
        await backend.kill("nats-1", "")
        await broker.restarted(state.born)
        await asyncio.sleep(1.5)  # its first frames are sent at once, its attempts to join others every second
        assert await probes(backend, AWAY) == {"cut"} and await probes(backend, NEAR) == {"open"}

        # While it is down, another container takes its addresses.
        state = await backend.process("nats-1", "")
        await backend.stop("nats-1", "")
        with taking_addresses(backend):
            await backend.start_machine("nats-1")
            now = await broker.restarted(state.born)
            assert not set(now[:2]) & set(first[:2]), "the addresses have changed"
            await asyncio.sleep(1.5)
            assert await probes(backend, AWAY) == {"cut"} and await probes(backend, NEAR) == {"open"}
        for each in (*listeners.values(), *hammers.values()):
            each.end()

        assert all(hammers[name].rounds > 20 for name in pids)
        assert {name for name in pids if hammers[name].answered} == {"nats-3", "c1"}
        heard = {name: sum(listeners[name].frames[mac] for mac in broker.macs) for name in pids}
        assert heard["nats-2"] == heard["c2"] == 0 and heard["nats-3"] > 0 and heard["c1"] > 0, heard
        dropped = await backend.dropped()
        assert all(dropped[link] > before.get(link, 0) for link in AWAY), "the counters survive the restarts"
        assert crash_statuses(backend, "nats-1", crashed)[0] == 128 + 9
        assert "signal" not in (await backend.log("nats-1")).decode().split("Server is ready")[1]

        await backend.set_network(frozenset())
        assert await probes(backend, AWAY + NEAR) == {"open"}
        assert not await backend.dropped()


FIXED = """
services:
  late:
    image: {image}
    depends_on: [early]
    networks: {{n: {{ipv4_address: 10.231.{byte}.2, ipv6_address: "fd00:59:{number:x}::2"}}}}
  early:
    image: {image}
    networks: [n]
networks:
  n:
    enable_ipv6: true
    ipam: {{config: [{{subnet: 10.231.{byte}.0/24}}, {{subnet: "fd00:59:{number:x}::/64"}}]}}
"""


async def test_nobody_gets_a_fixed_address(tmp_path: Path) -> None:
    """Neither a client place, nor a service that starts earlier, nor one that starts while its owner is down."""
    file, number = tmp_path / "compose.yml", os.getpid() % 60000
    file.write_text(FIXED.format(image=import_image(), number=number, byte=number % 250))
    mine = ((f"10.231.{number % 250}.2",), (f"fd00:59:{number:x}::2",))
    async with started(file, "late,early", "partition") as backend:
        assert await backend.containers.addresses("late") == mine
        await backend.stop("late", "")
        await backend.stop("early", "")
        await backend.start_machine("early")
        await backend.start_machine("late")
        assert await backend.containers.addresses("late") == mine
        assert set(await probes(backend, (("c1", "late"), ("early", "late")))) == {"open"}


class taking_addresses:
    """A container that takes the lowest free addresses on all networks of the run's."""

    def __init__(self, backend: ComposeBackend) -> None:
        self.backend = backend

    def __enter__(self) -> None:
        self.client = docker.from_env()
        networks = self.client.networks.list(filters={"label": f"stormproof.run={self.backend._run}"})
        self.container = self.client.containers.create("stormproof-place:1", network=networks[0].name,
                                                       labels={"stormproof.run": self.backend._run})  # fmt: skip
        networks[1].connect(self.container)
        self.container.start()

    def __exit__(self, *_: object) -> None:
        self.container.remove(force=True)
        self.client.close()


def crash_statuses(backend: ComposeBackend, machine: str, since: float) -> list[int]:
    """Return the exit statuses with which a container has ended since then."""
    client = docker.from_env()
    try:
        found = client.api.events(since=int(since), until=int(time.time()) + 1, decode=True,
                                  filters={"container": backend.containers.ident(machine), "event": "die"})
        return [int(event["Actor"]["Attributes"]["exitCode"]) for event in found]
    finally:
        client.close()


LAZY_AND_SYNCED = """
services:
  lazy: &nats
    image: {image}
    restart: always
    command: [-c, /nats.conf]
    volumes: ["lazy:/data", "./lazy.conf:/nats.conf:ro"]
    networks: [front, back]
  synced:
    <<: *nats
    volumes: ["synced:/data", "./synced.conf:/nats.conf:ro"]
volumes: {{lazy: {{}}, synced: {{}}}}
networks: {{front: {{}}, back: {{enable_ipv6: true, ipam: {{config: [{{subnet: "fd00:58:{number:x}::/64"}}]}}}}}}
"""


async def test_a_power_cut_takes_what_was_not_synced(tmp_path: Path) -> None:
    """A message that was confirmed without a sync is lost, one that was synced is kept; the disk counts both."""
    for name, interval in (("lazy", "2m"), ("synced", "always")):
        (tmp_path / f"{name}.conf").write_text(f"jetstream {{ store_dir: /data, sync_interval: {interval} }}\n")
    file = tmp_path / "compose.yml"
    file.write_text(LAZY_AND_SYNCED.format(image=import_image(), number=os.getpid() % 60000))
    async with started(file, "lazy,synced", "power") as backend:
        nodes = ("lazy", "synced")
        for node in nodes:
            assert await in_place(backend, "c1", fill, node) == 100
        use = {node: await backend.disk_use(node) for node in nodes}
        assert all(each.files > 0 and each.writes > 0 for each in use.values()), use
        assert use["synced"].syncs >= 100 > use["lazy"].syncs, use
        assert not await backend.writes_to("synced"), "all that it writes is on the disk"
        boots = {node: await backend.boot(node) for node in nodes}
        policies = [await backend.containers.restarts(node) for node in nodes]

        await backend.power_off(nodes)
        await asyncio.sleep(1.5)
        states = [await backend.process(node, "") for node in nodes]
        assert [state.pid for state in states] == [None, None], "Docker restarts nothing without power"
        await backend.power_on(nodes)
        for node in nodes:
            await backend.start_machine(node)
            assert await backend.boot(node) != boots[node]
        assert [await backend.containers.restarts(node) for node in nodes] == policies == [True, True]
        assert await in_place(backend, "c1", count, "synced") == 100
        assert await in_place(backend, "c1", count, "lazy") < 100


async def test_a_disk_that_was_emptied_is_a_new_volume(tmp_path: Path) -> None:
    """The container starts on it: the volumes' folders are there, and nothing is in them."""
    for name in ("lazy", "synced"):
        (tmp_path / f"{name}.conf").write_text("jetstream { store_dir: /data, sync_interval: always }\n")
    file = tmp_path / "compose.yml"
    file.write_text(LAZY_AND_SYNCED.format(image=import_image(), number=os.getpid() % 60000))
    async with started(file, "lazy,synced", "disk") as backend:
        assert await in_place(backend, "c1", fill, "synced") == 100
        await backend.power_off(["synced"])
        await backend.set_disk("synced", DiskFault("empty"))
        assert await backend.disk_fault_count("synced") == 1
        await backend.set_disk("synced", None)
        await backend.power_on(["synced"])
        await backend.start_machine("synced")
        assert await in_place(backend, "c1", fill, "synced") == 100, "nothing was there"


async def in_place(backend: ComposeBackend, place: str, work: Any, node: str) -> int:
    """Run a client in a client place."""
    loop = OwnLoop()

    async def there() -> int:
        found: int = await work(f"nats://{node}:4222")
        return found

    def begin() -> Any:
        backend.enter_place(backend.address(place))
        return there()

    result: int = await loop.call("a client of the test", begin)
    return result


async def fill(url: str) -> int:
    client = await connected(url)
    stream = client.jetstream()
    await stream.add_stream(name="s", subjects=["s"])
    for number in range(100):
        await stream.publish("s", str(number).encode())
    found = (await stream.stream_info("s")).state.messages
    await client.close()
    return found


async def count(url: str) -> int:
    """Return the number of messages; a stream that is gone has none."""
    client = await connected(url)
    try:
        return (await client.jetstream().stream_info("s")).state.messages
    except nats.js.errors.NotFoundError:
        return 0
    finally:
        await client.close()


async def connected(url: str) -> Any:
    options: Mapping[str, Any] = {"connect_timeout": 2, "max_reconnect_attempts": 30, "reconnect_time_wait": 0.5}
    return await nats.connect(url, **options)
