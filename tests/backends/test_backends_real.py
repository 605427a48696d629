"""The same checks on every real backend; after each, nothing may be left on the machine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest
from places import NASTY, PLACES, Place, cmdline, make_place

from harness.backends import docker as docker_backend
from harness.backends import docker_networks, packet_queue
from harness.backends.cleanup import cleanup
from harness.backends.docker import DockerBackend
from stormproof.contracts.topology import Topology
from stormproof.errors import BackendError
from stormproof.test import Test

TEST = Test(system="standalone", workload="queue", nodes=3)
TOPOLOGY = Topology(TEST.node_names, TEST.client_hosts)


@pytest.mark.requirement("H1")
@pytest.mark.requirement("H3")
@pytest.mark.parametrize("checks", [
    ("commands", "shell_death", "limits", "files", "shared"),
    ("process", "process_leftovers"),
    ("network", "cut", "cut_while_paused", "keep_other_rules"),
], ids=["shell", "process", "network"])
def test_backend(place: Place, checks: tuple[str, ...]) -> None:
    """What the checks of backend_child say, one after the other."""
    figures = place.check(*checks)
    assert figures["up_ms"] > 0


@pytest.mark.requirement("H3", part=True)
@pytest.mark.parametrize("name", [PLACES[0], PLACES[1], PLACES[-1]])
def test_clients_in_networks_of_their_own(name: str) -> None:
    """Programs and threads there have the client host's address, and cuts and packet faults hit them."""
    with make_place(name) as place:
        place.env["STORMPROOF_TEST_PLACES"] = "1"
        place.check("network", "cut", "cut_while_paused", "packets_in_short")


@pytest.mark.parametrize("name", [PLACES[0], PLACES[-1]])
def test_a_killed_harness_leaves_no_client_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that does not look at its standard input."""
    with make_place(name) as place:
        place.env["STORMPROOF_TEST_PLACES"] = "1"
        child, pid = place.waiting()
        assert [each for each in place.processes() if "deaf" in cmdline(each)]
        os.kill(pid, signal.SIGKILL)
        child.wait(30)
        asyncio.run(gone(place))
        monkeypatch.setattr("tempfile.tempdir", str(place.tmp))
        place.lock.close()
        cleanup([place.run])


@pytest.mark.requirement("H29")
@pytest.mark.parametrize("name", [PLACES[1], PLACES[-1]])
def test_what_machines_use_is_told(name: str) -> None:
    """CPU, memory, disk and the wire of a program that works, is paused, dies and runs anew."""
    with make_place(name) as place:
        assert place.check("usage", "usage_killed")["sampling_s"] >= 0


@pytest.mark.requirement("H5")
@pytest.mark.requirement("H24")
@pytest.mark.soak
def test_links_suffer(place: Place) -> None:
    """Every condition, each direction, and what holds packets killed: a quarter of a minute each."""
    place.check("packets", "packets_program_killed")


@pytest.mark.requirement("H5")
def test_links_suffer_in_short() -> None:
    """One condition that is a rule and one that holds packets."""
    with make_place("local-root" if os.geteuid() == 0 else "local-user") as place:
        place.check("packets_in_short")


@pytest.mark.parametrize("name", [PLACES[0], PLACES[2]])  # whole runs elsewhere: tests/e2e/test_hostile_names.py
def test_no_name_of_a_folder_is_run_by_a_shell(name: str, tmp_path: Path) -> None:
    """The folder for temporary files and the store have a name that many a command line would run."""
    mark = tmp_path / "executed"
    with make_place(name, NASTY) as place:
        trial = {**place.env, "STORMPROOF_MARK": f"{mark}-by-us"}
        subprocess.run(["sh", "-c", f"test {NASTY.splitlines()[0]}\nwait"], env=trial, check=False)
        assert Path(f"{mark}-by-us").exists(), "the name is nasty enough"
        place.env["STORMPROOF_MARK"] = str(mark)
        place.check("nasty_paths")
    assert not mark.exists()


def test_end_of_input_releases(place: Place) -> None:
    child, _ = place.waiting()
    assert place.leftovers()
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(30) == 0


@pytest.mark.parametrize("victim", ["child", "parent"])
def test_kill_leaves_nothing_but_data(
    place: Place, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill the child, or the `unshare` that started it (in Docker's case they are one process)."""
    child, pid = place.waiting()
    assert (pid == child.pid) == (place.backend == "docker")
    os.kill(pid if victim == "child" else child.pid, signal.SIGKILL)
    child.wait(30)
    asyncio.run(gone(place))
    if place.backend == "docker":
        asyncio.run(suffers_no_more(place))
    monkeypatch.setattr("tempfile.tempdir", str(place.tmp))
    monkeypatch.setattr("os.getuid", lambda: place.run_dir.stat().st_uid)
    before = place.leftovers()
    assert before
    assert all(what.split()[0] in ("folder", "container", "network", "volume", "link") for what in before)
    assert cleanup([place.run]) == [] and place.leftovers() == before, "its harness is alive"
    place.lock.close()
    assert cleanup(["another"]) == [] and place.leftovers() == before
    removed = cleanup([place.run])
    kinds = {"container", "network", "volume"} if place.backend == "docker" else {"folder"}
    assert {tuple(what.split()[:2]) for what in removed} == {("removed", kind) for kind in kinds}
    assert cleanup([place.run]) == []


async def suffers_no_more(place: Place) -> None:
    """Containers outlive a killed harness, but not what held their packets, nor its rules."""
    name = docker_networks.container_name(place.run, "n2")
    for _ in range(100):
        ask = ["docker", "exec", name, "nft", "list", "tables"]
        shown = subprocess.run(ask, capture_output=True, text=True, check=False)
        assert "inet stormproof\n" in shown.stdout, "the cut is there until the container is removed"
        if packet_queue.TABLE not in shown.stdout:
            return  # the program undoes it last
        await asyncio.sleep(0.1)
    raise AssertionError(shown.stdout)


async def gone(place: Place) -> None:
    """Wait until the kernel has taken down the killed process's namespaces."""
    for _ in range(500):
        if not place.processes():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"processes are left: {place.processes()}")


def test_owner_cleans_its_own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with make_place("docker" if os.geteuid() else "local-root") as place:
        child, pid = place.waiting()
        os.kill(pid, signal.SIGKILL)
        child.wait(30)
        monkeypatch.setattr("tempfile.tempdir", str(place.tmp))
        assert cleanup([place.run]) == []
        assert cleanup([place.run], own=True)


@pytest.mark.docker
def test_docker_things_of_a_run_whose_store_was_moved() -> None:
    """The run lives, and its folder is not where it was."""
    with make_place("docker") as place:
        child, _ = place.waiting()
        place.run_dir.rename(place.run_dir.with_name("moved"))
        before = place.leftovers()
        assert cleanup([place.run]) == [] and place.leftovers() == before
        child.kill()
        child.wait(30)
        assert len(cleanup([place.run])) == 5


@pytest.mark.docker
@pytest.mark.parametrize(("changed", "why"), [
    ({"uid": "4711"}, "another user's"), ({"namespace": "pid:[1]"}, "another pid namespace"),
    ({"machine": "elsewhere 1f", "boot": "another"}, "another machine"), ({"uid": "x"}, "does not say whose"),
])
def test_docker_things_that_nobody_can_judge_are_left(changed: dict[str, str], why: str) -> None:
    with make_place("docker") as place:
        dead = {**docker_backend.owner_labels(place.run_dir), "stormproof.owner.processes": "4194304:1",
                "stormproof.owner.lock": ""}  # fmt: skip
        labels = dead | {f"stormproof.owner.{name}": value for name, value in changed.items()}
        client = docker_backend.connect()
        name = docker_networks.network_name(place.run)
        place.lock.close()
        place.run_dir.rename(place.run_dir.with_name("moved"))
        made = client.api.create_network(name, labels=labels, internal=True)["Id"]
        try:
            (line,) = cleanup([place.run])
            assert line.startswith(f"left network {name} of run {place.run}: ") and why in line
        finally:
            client.api.remove_network(made)
        client.api.create_network(name, labels=dead, internal=True)
        client.close()
        assert cleanup([place.run]) == [f"removed network {name}"]


@pytest.mark.docker
async def test_docker_addresses_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may use Docker but isn't root gets the client hosts' addresses through a container."""
    with make_place("docker") as place:
        backend = DockerBackend()
        monkeypatch.setattr(docker_backend.os, "geteuid", lambda: 1000)
        await backend.provision(TEST, TOPOLOGY, place.run_dir)
        try:
            listener = "nohup python3 -m http.server 7200 >/dev/null 2>/tmp/seen </dev/null &"
            await backend.exec("n1", listener)
            for _ in range(1500):
                try:
                    _, writer = await asyncio.open_connection(
                        backend.address("n1"), 7200, local_addr=(backend.address("c2"), 0))
                    break
                except ConnectionRefusedError:
                    await asyncio.sleep(0.02)
            else:
                raise AssertionError("nobody listens")
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            seen = await backend.exec("n1", "until grep GET /tmp/seen; do sleep 0.02; done")
            writer.close()
            assert seen.output.startswith(backend.address("c2"))
        finally:
            await backend.release()


@pytest.mark.docker
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3])
async def test_docker_cancelled_provision_leaves_nothing(delay: float) -> None:
    with make_place("docker") as place:
        backend = DockerBackend()
        task = asyncio.create_task(backend.provision(TEST, TOPOLOGY, place.run_dir))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await backend.release()


@pytest.mark.docker
async def test_docker_containers_hold_no_more_than_they_need() -> None:
    with make_place("docker") as place:
        backend = DockerBackend()
        await backend.provision(TEST, TOPOLOGY, place.run_dir)
        try:
            client = docker_backend.connect()
            host = client.containers.get(docker_networks.container_name(place.run, "n1")).attrs["HostConfig"]
            client.close()
            assert host["CapDrop"] == ["ALL"] and host["CapAdd"] == ["NET_ADMIN"]
            assert host["SecurityOpt"] == ["no-new-privileges"] and not host["Privileged"]
            assert host["Memory"] > 0 and not host["Binds"]
            refused = await backend.exec("n1", "date -s 2000-01-01 || mount -t tmpfs x /mnt")
            assert refused.status != 0
        finally:
            await backend.release()


@pytest.mark.docker
async def test_docker_subnets_do_not_collide() -> None:
    """Two runs at once, the second one's first choice of a subnet being taken."""
    with make_place("docker") as one, make_place("docker") as two:
        backends = [DockerBackend(), DockerBackend()]
        try:
            await asyncio.gather(*(
                backend.provision(TEST, TOPOLOGY, place.run_dir)
                for backend, place in zip(backends, (one, two), strict=True)
            ))
            assert backends[0].address("n1") != backends[1].address("n1")
        finally:
            await asyncio.gather(*(backend.release() for backend in backends))


async def test_local_refuses_outside_of_namespaces(tmp_path: Path) -> None:
    from harness.backends.local import LocalBackend

    backend = LocalBackend()
    with pytest.raises(BackendError, match="launch_prefix"):
        await backend.provision(TEST, TOPOLOGY, tmp_path)
    await backend.release()
