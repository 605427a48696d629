"""What the doctor says of real systems: where each can run, and by which command it comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.backends import probe, system_probe
from harness.cli import app as cli
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.backend import Capability
from stormproof.errors import BackendError
from stormproof.shell_system import ShellSystem


def probed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: str, image: str,
           clients: bool = True) -> dict[str, Capability]:  # fmt: skip
    """What is found where dpkg-query knows these packages alone, and Docker says so of every image."""
    known = "".join(f"[ $name = {name} ] && echo installed $name\n" for name in installed.split())
    program = tmp_path / "dpkg-query"
    program.write_text(f'#!/bin/sh\nfor name; do\n{known}done\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(system_probe, "_images", lambda: (lambda _packages: image, lambda: None))
    monkeypatch.setattr(system_probe, "as_root", lambda: "sudo ")
    if not clients:
        monkeypatch.setattr(system_probe, "_is_installed", lambda _name: False)
    return {item.name: item for item in system_probe.probe_systems()}


@pytest.mark.requirement("H12", part=True)
def test_what_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = probed(monkeypatch, tmp_path, "redis-server etcd-server", "not usable here")
    redis, etcd, nats = found["redis"], found["etcd"], found["nats"]
    assert not redis.available and "redis-sentinel not installed" in redis.detail
    assert redis.mend == "run: sudo apt-get install --no-install-recommends redis-server redis-sentinel"
    assert etcd.available and not etcd.mend and "docker: not usable here" in etcd.detail
    assert nats.available and not nats.mend


def test_clients_come_from_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = probed(monkeypatch, tmp_path, "mosquitto", "image is there", clients=False)
    assert found["mosquitto"].mend == "run: pip install 'stormproof[systems]'"
    assert not found["mosquitto"].available and "paho-mqtt not installed" in found["mosquitto"].detail
    assert found["redis"].mend.endswith("redis-sentinel && pip install 'stormproof[systems]'")
    assert found["zeroc-icestorm"].mend.endswith("pip install 'stormproof[icestorm]'")  # has to be compiled
    assert found["activemq"].available  # in containers, and its clients are ours


def test_in_containers_it_runs_without_being_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for image, there in (("image is there", True), ("image is built by the first test", True),
                         ("image can't be built here", False)):
        assert probed(monkeypatch, tmp_path, "", image)["rabbitmq"].available is there


def test_every_real_system_is_told() -> None:
    real = [name for name in SYSTEMS.names() if isinstance(SYSTEMS.load(name), ShellSystem)]
    assert [item.name for item in system_probe.probe_systems()] == real
    assert {"redis", "mosquitto", "rabbitmq", "activemq", "etcd", "nats"} <= set(real)


def test_doctor_tells_all_the_same_where_no_backend_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(_requested: str | None = None) -> tuple[str, str]:
        raise BackendError("no backend works here: why")

    monkeypatch.setattr(probe, "choose_backend", nothing)
    monkeypatch.setattr("sys.argv", ["stormproof", "doctor", "--json"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    told = json.loads(capsys.readouterr().out)
    assert (end.value.code, told["backend"], told["why"]) == (0, None, "no backend works here: why")
