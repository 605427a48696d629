"""Cluster managers that are not ours: keepalived, the twin that fails, and Pacemaker with fencing, which passes."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from qpid_sim import Group, simulate

from harness.backends.probe import choose_backend
from harness.backends.ssh.backend import SshBackend
from harness.run.settings import make_test
from nodes.reference.designs.qpid.eviction import Eviction
from nodes.systems.reference.qpid import pacemaker
from nodes.systems.reference.qpid.managers import OUTSIDE
from nodes.systems.reference.qpid.system import QPID
from stormproof.contracts.backend import DEAD, OWN_ROOT, CommandResult, ProcessState
from stormproof.contracts.cluster import Deployment
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import StormproofError, UsageError
from stormproof.test import Test


def a_test(manager: str, backend: str = "local", **settings: str) -> Test:
    return make_test(system="qpid", workload="queue", nemesis="kill", backend=backend, nodes=3, time_limit=20, rate=10,
                     seed=1, settings={"manager": manager, **settings})  # fmt: skip


@pytest.mark.parametrize("manager", sorted(OUTSIDE))
def test_their_programs_are_real(manager: str) -> None:
    with pytest.raises(UsageError, match=f"--backend sim: manager={manager} asks for programs that can't be simulated"):
        a_test(manager, "sim")
    topology = QPID.topology(a_test(manager), Demands(queues=("q",)))
    assert topology.packages == OUTSIDE[manager].packages and "NET_RAW" in topology.capabilities


def test_brokers_are_on_the_network_that_fencing_follows() -> None:
    with pytest.raises(UsageError, match="broker_network=own: manager=pacemaker fences no broker that is cut off"):
        a_test("pacemaker", broker_network="own")
    assert a_test("keepalived", broker_network="own").options["broker_network"] == "own"


@pytest.mark.parametrize("manager", sorted(OUTSIDE))
async def test_hosts_keep_the_cluster_manager_that_they_have(manager: str) -> None:
    test, demands = a_test(manager), Demands(queues=("q",))
    cluster = QPID.cluster(Deployment(test, demands, SshBackend(), QPID.topology(test, demands), "secret"))
    with pytest.raises(UsageError, match=f"manager={manager}: it would replace the cluster manager of the hosts"):
        await cluster.install()


def test_the_address_goes_with_the_primary() -> None:
    for address in ("", "10.0.0.9"):
        root = ElementTree.fromstring(pacemaker.resources(("n1", "n2"), address))
        assert bool(root.findall(".//primitive[@type='IPaddr2']")) is bool(address)
        together = {(each.get("rsc"), each.get("with-rsc")) for each in root.iter("rsc_colocation")}
        assert together == {("primary", "backups")} | ({("address", "primary")} if address else set())


def test_a_lost_backup_is_waited_for_until_it_must_have_been_fenced() -> None:
    class Clock:
        time = 100.0

        def now(self) -> float:
            return self.time

    clock = Clock()
    eviction: Any = Eviction(clock, 10.0, ["n3"])  # type: ignore[arg-type]
    assert eviction.recorded(["n3"]), "it was fenced before"
    assert not eviction.recorded(["n2", "n3"])
    clock.time += 9
    assert not eviction.recorded(["n2", "n3"])
    clock.time += 1
    assert eviction.recorded(["n2", "n3"])
    assert eviction.recorded([]) and not eviction.recorded(["n3"]), "it was back meanwhile"


async def seconds_to_confirm(group: Group, node: str) -> float:
    """How long a message takes, in simulated time."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await group.send(node, "m")
    return loop.time() - began


@pytest.mark.requirement("Q4", part=True)
def test_a_primary_that_was_cut_off_confirms_nothing_until_it_must_have_been_fenced(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        await group.begin()
        assert await seconds_to_confirm(group, "n1") < 1
        await group.cut_off("n1")
        assert await seconds_to_confirm(group, "n1") > 5

    simulate(scenario, tmp_path, manager="pacemaker", eviction_timeout=5.0)


@pytest.mark.requirement("Q4", part=True)
@pytest.mark.parametrize("known", [True, False])
def test_a_new_primary_does_not_wait_for_whom_the_manager_has_ended(tmp_path: Path, known: bool) -> None:
    async def scenario(group: Group) -> None:
        await group.begin()
        await group.kill("n1")
        await group.until("n2", "connecting")
        assert (await group.ask("n2", "promote", ended=["n1"] if known else []))["ok"]
        await group.until("n3", "ready")
        assert (await seconds_to_confirm(group, "n2") < 1) is known

    simulate(scenario, tmp_path, manager="pacemaker", eviction_timeout=5.0, catchup_timeout=2.0)


class Machines:
    """A backend that notes what is done on its machines."""

    root_folder, in_process = OWN_ROOT, False

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.all_started = asyncio.Event()

    def address(self, name: str) -> str:
        return "127.0.0.1"

    def node_dir(self, node: str) -> str:
        return f"/{node}"

    def code_dir(self, node: str) -> str:
        return f"/{node}/code"

    def python(self, node: str) -> str:
        return "python3"

    async def process(self, node: str, program: str) -> ProcessState:
        return ProcessState(DEAD)

    async def exec(self, node: str, command: str, timeout: float = 10.0) -> CommandResult:
        self.done.append((node, "ends everything" if "SIGKILL" in command else command))
        return CommandResult(0, "")

    async def start(self, node: str, program: str, argv: Sequence[str], log: str) -> None:
        self.done.append((node, f"starts {program}"))
        if program == "pacemaker":
            self.all_started.set()

    async def stop(self, node: str, program: str, timeout: float = 5.0) -> None:
        self.done.append((node, f"stops {program}"))


@pytest.mark.requirement("Q4", part=True)
async def test_the_fencing_agent_asks_a_switch_that_wants_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test, demands, machines = a_test("pacemaker"), Demands(queues=("q",)), Machines()
    topology = QPID.topology(test, demands)
    key = tmp_path / "key"
    monkeypatch.setattr(pacemaker, "_KEY", str(key))
    monkeypatch.setattr(pacemaker, "_OFF_SECONDS", 0.0)
    cluster = QPID.cluster(Deployment(test, demands, machines, topology, "secret"))  # type: ignore[arg-type]
    assert isinstance(cluster, pacemaker.PacemakerCluster)
    await cluster.before_install()
    files = cluster.manager_files("n1")
    agent = tmp_path / "agent"
    agent.write_text(files["/usr/sbin/fence_stormproof"])

    async def fence(**given: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(sys.executable, str(agent), stdin=PIPE, stdout=PIPE,
                                                       stderr=STDOUT)
        text = "".join(f"{name}={value}\n" for name, value in given.items())
        said, _ = await process.communicate(text.encode())
        return process.returncode, said.decode().strip()

    status, metadata = await fence(action="metadata")
    assert status == 0 and ElementTree.fromstring(metadata).get("name") == "fence_stormproof"
    key.write_text("guess\n")
    assert await fence(action="reboot", port="n2") == (1, "the power switch at 127.0.0.1: no such key")
    key.write_text(files[str(key)])
    assert await fence(action="reboot", port="n9") == (1, "the power switch at 127.0.0.1: there is no reboot of n9")
    assert await fence(action="monitor") == (0, "")
    assert machines.done == []
    assert await fence(action="off", port="n2") == (0, "")
    assert machines.done[0] == ("n2", "ends everything") and {node for node, _ in machines.done} == {"n2"}
    assert await fence(action="reboot", port="n3") == (0, "")
    await machines.all_started.wait()
    assert ("n3", "starts corosync") in machines.done and ("n2", "starts corosync") not in machines.done
    assert all(files[str(key)].strip() not in text for path, text in files.items() if path != str(key))
    await cluster.stop()


class Ran:
    """A run on a real backend."""

    def __init__(self, tmp_path: Path, manager: str, backend: str, *more: str) -> None:
        missing = {"keepalived": "keepalived", "pacemaker": "pacemakerd"}[manager]
        if backend == "local" and shutil.which(missing, path="/usr/sbin:/sbin") is None:
            pytest.skip(f"run: apt-get install --no-install-recommends {' '.join(OUTSIDE[manager].packages)}")
        try:
            choose_backend(backend)
        except StormproofError as error:
            pytest.skip(str(error))
        if backend == "docker":  # an image is built once, which may take minutes
            image = [sys.executable, "-m", "harness.backends.image", *OUTSIDE[manager].packages]
            built = subprocess.run(image, capture_output=True, text=True, timeout=900, check=False)
            assert built.returncode == 0, built.stderr
        command = [sys.executable, "-m", "harness", "test", "--system", "qpid", "--backend", backend, "--seed", "3",
                   "--set", f"manager={manager}", "--rate", "40", "--store", str(tmp_path), *more]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        self.status, self.said = done.returncode, f"{done.stdout}{done.stderr}"[-4000:]
        (run_json,) = tmp_path.glob("*/run.json")
        self.folder = run_json.parent

    @property
    def verdict(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "verdict.json").read_text()))

    def log(self, name: str) -> str:
        return (self.folder / "logs" / f"{name}.log").read_text()

    def primaries(self) -> list[str]:
        """Who became primary, in order."""
        lines = [(line.split()[1], node) for node in ("n1", "n2", "n3") for line in self.log(node).splitlines()
                 if re.match(r"\S+ \S+ primary ", line)]  # fmt: skip
        return [node for _, node in sorted(lines)]


_CUT_OFF = ("--nemesis", "partition", "--set", "partition_kind=master", "--set", "fault_duration=12", "--time-limit",
            "30")
_KILLED = ("--nemesis", "kill", "--set", "kill_kind=master", "--set", "kill_program=broker", "--set",
           "fault_duration=12", "--time-limit", "30")
_BOTH = [pytest.param("local", marks=pytest.mark.soak),
         pytest.param("docker", marks=[pytest.mark.soak, pytest.mark.timeout(1500)])]


@pytest.mark.requirement("Q4", part=True)
@pytest.mark.parametrize("backend", _BOTH)
def test_keepalived_has_two_primaries_in_a_partition(tmp_path: Path, backend: str) -> None:
    """What the one on the smaller side confirms is lost."""
    ran = Ran(tmp_path, "keepalived", backend, *_CUT_OFF)
    assert ran.status == 1, ran.said
    assert ran.verdict["verdict"] == "invalid" and "lost" in ran.verdict["anomalies"], ran.said
    assert len(set(ran.primaries())) > 1


@pytest.mark.requirement("Q4", part=True)
@pytest.mark.parametrize("backend", _BOTH)
def test_pacemaker_fences_whoever_is_cut_off(tmp_path: Path, backend: str) -> None:
    ran = Ran(tmp_path, "pacemaker", backend, *_CUT_OFF)
    assert ran.status == 0, ran.said
    first, second, *_ = ran.primaries()
    assert first != second
    assert "fenced" in ran.log(f"{first}.switch") and "fenced" not in ran.log(f"{second}.switch")
    assert "store=dirty" in ran.log(first), "it was ended, and came back as a backup"


@pytest.mark.soak
@pytest.mark.requirement("Q4", part=True)
@pytest.mark.parametrize("manager", sorted(OUTSIDE))
def test_a_primary_that_was_killed_is_replaced(tmp_path: Path, manager: str) -> None:
    ran = Ran(tmp_path, manager, "local", *_KILLED)
    assert ran.status == 0, ran.said
    assert len(set(ran.primaries())) > 1, ran.said


@pytest.mark.soak
@pytest.mark.requirement("Q12", part=True)
@pytest.mark.parametrize("manager", sorted(OUTSIDE))
def test_after_the_loss_of_all_a_person_takes_the_best_store(tmp_path: Path, manager: str) -> None:
    """The managers, which were killed with their brokers, start again, and promote whose store was accepted."""
    ran = Ran(tmp_path, manager, "local", "--nemesis", "crash", "--set", "crash_kind=kill", "--time-limit", "45")
    assert ran.status == 0, ran.said
    assert "accepted the store of" in (ran.folder / "ledger.jsonl").read_text()
