"""Vagrant takes the Vagrantfile, and `make vagrant-demo` finds a way to make machines or says what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.backends.ssh.facts import MARKER, cluster_addresses, parse_facts
from harness.backends.ssh.hosts import SshHost, parse_ssh_config
from harness.backends.ssh.power import PowerSwitch
from harness.tools.vagrant import OWN_BOX, PROJECT, Provider, choose_provider, parse_status
from stormproof.errors import BackendError, UsageError
from stormproof.timeout_scale import VARIABLE

needs_vagrant = pytest.mark.skipif(
    shutil.which("vagrant") is None, reason="Vagrant is not installed (apt-get install vagrant)"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with what the Vagrantfile needs, so that no machine of the project's own is touched.

    Beside it stands a stand-in for Docker's client: Vagrant asks `docker version` before it reads a file for that
    provider, so that these tests would otherwise depend on whether an engine runs.
    """
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text('#!/bin/sh\n[ "$1" = version ]\n')
    docker.chmod(0o755)
    folder = tmp_path / "project"
    shutil.copytree(PROJECT / "nodes" / "image", folder / "nodes" / "image")
    shutil.copy(PROJECT / "Vagrantfile", folder)
    return folder


def vagrant(project: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Vagrant with the Docker provider, without the network and without the user's own settings."""
    foreign = ("VAGRANT", "STORMPROOF", "NODES")
    keep = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    own = {"VAGRANT_HOME": str(project.parent / "home"), "VAGRANT_CHECKPOINT_DISABLE": "1", "VAGRANT_NO_PLUGINS": "1",
           "VAGRANT_DEFAULT_PROVIDER": "docker", "PATH": f"{project.parent / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run(["vagrant", *words], cwd=project, env={**keep, **own, **variables}, capture_output=True,
                          text=True, timeout=60, check=False)


@needs_vagrant
@pytest.mark.requirement("H2", part=True)
def test_vagrant_takes_the_file_and_makes_as_many_machines_as_asked(project: Path) -> None:
    valid = vagrant(project, "validate")
    assert valid.returncode == 0, valid.stderr
    five = parse_status(vagrant(project, "status", "--machine-readable", NODES="5", STORMPROOF_BOX=OWN_BOX).stdout)
    assert five == {f"n{number}": ("docker", "not_created") for number in range(1, 6)}


@needs_vagrant
@pytest.mark.parametrize("nodes", ["0", "many"])
def test_a_wrong_number_of_machines_is_refused(project: Path, nodes: str) -> None:
    refused = vagrant(project, "validate", NODES=nodes)
    assert refused.returncode != 0
    assert refused.stderr.strip() == f'NODES must be 1 to 99, not "{nodes}"'


@needs_vagrant
@pytest.mark.parametrize(("box", "provider", "told"), [
    pytest.param(OWN_BOX, "libvirt", "stormproof-host is not on this machine; make it: sudo nodes/image/vagrant/build "
                 "libvirt", marks=pytest.mark.soak),
    (OWN_BOX, "docker", "stormproof-host is not on this machine; make it: nodes/image/vagrant/build docker"),
    (None, "libvirt", "if it can't be downloaded, make one: sudo nodes/image/vagrant/build libvirt"),
    pytest.param(None, "docker", "if it can't be downloaded, make one: nodes/image/vagrant/build docker",
                 marks=pytest.mark.soak),
])  # fmt: skip
def test_up_without_its_box_tells_the_command_that_makes_it(
    project: Path, box: str | None, provider: str, told: str
) -> None:
    variables = {"STORMPROOF_BOX": box} if box else {}
    up = vagrant(project, "up", f"--provider={provider}", **variables)
    first = up.stderr.splitlines()[0]
    assert up.returncode != 0 and told in first
    assert first.endswith(f"STORMPROOF_BOX={OWN_BOX} vagrant up --provider={provider}")
    assert box is None or len(up.stderr.splitlines()) == 1
    assert "is not on this machine" not in vagrant(project, "validate", **variables).stderr


@needs_vagrant
def test_a_broken_file_is_not_taken(project: Path) -> None:
    file = project / "Vagrantfile"
    file.write_text(file.read_text().replace("container.has_ssh", "container.has_shh"))
    assert vagrant(project, "validate").returncode != 0


@pytest.mark.requirement("H2", part=True)
def test_the_machines_carry_the_marker_that_the_harness_asks_for() -> None:
    assert f"}} >{MARKER}\n" in (PROJECT / "Vagrantfile").read_text()


GOOD = Provider("virtualbox", None, "")
LACKING = Provider("libvirt", "libvirt does not run", "start it")
NO_DOCKER = Provider("docker", "Docker does not answer", "apt-get install docker.io")


def test_the_first_provider_that_works_is_chosen() -> None:
    assert choose_provider([LACKING, NO_DOCKER, GOOD], None) is GOOD
    assert choose_provider([LACKING, GOOD], "virtualbox") is GOOD


def test_what_is_missing_is_told_with_the_command_that_mends_it() -> None:
    with pytest.raises(BackendError, match="libvirt does not run; run: start it"):
        choose_provider([GOOD, LACKING], "libvirt")
    with pytest.raises(BackendError, match=r"libvirt does not run; docker: .*; run: apt-get install docker\.io"):
        choose_provider([LACKING, NO_DOCKER], None)
    with pytest.raises(UsageError, match="unknown provider 'cloud'"):
        choose_provider([GOOD], "cloud")


def test_without_vagrant_one_line_says_how_to_install_it(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    demo = subprocess.run([sys.executable, "-m", "harness.tools.vagrant"], cwd=tmp_path, env=env, capture_output=True,
                          text=True, timeout=60, check=False)
    assert demo.returncode == 3
    assert len(demo.stderr.splitlines()) == 1
    assert "apt-get install vagrant" in demo.stderr


@pytest.mark.soak
@pytest.mark.docker
@needs_vagrant
@pytest.mark.requirement("H2")
def test_the_demo_runs_on_machines_of_vagrant(tmp_path: Path) -> None:
    """Needs Docker and a mirror of Debian's packages, or the image: `vagrant up`, both verdicts, nothing left."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "harness.tools.vagrant", "--provider", "docker", "--store", str(tmp_path)]
    demo = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "2 of 2 verdicts as expected" in demo.stdout
    left = subprocess.run(["docker", "ps", "-aq", "--filter", f"ancestor={OWN_BOX}"], capture_output=True, check=True)
    assert left.stdout == b""


def test_ssh_config_of_vagrant_names_all_that_the_harness_needs(tmp_path: Path) -> None:
    printed = """Host n1
  HostName 127.0.0.1
  User vagrant
  Port 2222
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking no
  PasswordAuthentication no
  IdentityFile /project/.vagrant/machines/n1/docker/private_key
  IdentitiesOnly yes
  LogLevel FATAL

"""
    (host,) = parse_ssh_config(printed, tmp_path / "ssh-config")
    assert (host.name, host.user, host.known_as) == ("n1", "vagrant", "[127.0.0.1]:2222")
    assert host.keys == ("/project/.vagrant/machines/n1/docker/private_key",)
    assert not host.agent


def test_the_network_that_the_marker_names_is_taken_before_that_of_ssh(tmp_path: Path) -> None:
    text = "marker\nnetwork 192.168.56.0/24\naddress eth0 172.17.0.{0}/16\naddress eth1 192.168.56.{0}/24"
    facts = [parse_facts(text.format(number)) for number in (11, 12)]
    hosts = [SshHost(f"n{number}", f"172.17.0.{number}") for number in (11, 12)]
    assert {each.network for each in facts} == {"192.168.56.0/24"}
    assert [str(each.ip) for each in cluster_addresses(hosts, facts, facts[0].network)] == [
        "192.168.56.11", "192.168.56.12"]
    assert str(cluster_addresses(hosts, facts, "")[0].ip) == "172.17.0.11"


def test_limits_of_calls_are_stretched_by_a_variable_and_nothing_else_is_taken_for_a_number() -> None:
    def limit(value: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, VARIABLE: value, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", "from harness.backends.base import CALL_LIMIT; print(CALL_LIMIT)"]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    assert limit("").stdout == "10.0\n"
    assert limit("5").stdout == "50.0\n"
    refused = limit("nan")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert refused.stderr == "stormproof: STORMPROOF_SLOW=nan: give a number from 1 to 100\n"


def test_the_power_of_a_libvirt_machine_is_cut_and_not_shut_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    for program in ("virsh", "vagrant"):
        (tmp_path / program).write_text(f"#!/bin/sh\necho {program} $* >>{said}\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    note = tmp_path / ".vagrant" / "machines" / "n1" / "libvirt" / "id"
    note.parent.mkdir(parents=True)
    note.write_text("1d0-a1n")
    power = PowerSwitch("vagrant", str(tmp_path))
    power.switch("n1", on=False)
    power.switch("n1", on=True)
    power.switch("n2", on=False)
    assert said.read_text().splitlines() == ["virsh destroy 1d0-a1n", "virsh start 1d0-a1n", "vagrant halt --force n2"]
