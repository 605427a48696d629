"""Who may join as a peer: those who share a secret; without one, only brokers of the same machine."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from loopback import free_ports

from harness.run.cases import Case
from harness.sim.campaign import run_seed
from nodes.reference.api import Config, ConfigError
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.runtime import RealRuntime
from nodes.reference.storage.config import parse_storage_config
from nodes.reference.trust import NO_SECRET, check_trust, is_loopback
from nodes.systems.catalog import SYSTEMS
from nodes.systems.reference.cluster import ReferenceCluster
from stormproof.contracts.backend import Shells
from stormproof.contracts.cluster import Deployment
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.test import Test

HERE = ("127.0.0.1", 1)


@pytest.mark.parametrize(("host", "local"), [
    ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("", False), ("0.0.0.0", False),
    ("::", False), ("10.0.0.1", False), ("localhost.example", False), ("127.0.0.1.example", False), ("n1", False),
])
def test_what_only_this_machine_can_reach(host: str, local: bool) -> None:
    assert is_loopback(host) is local


@pytest.mark.parametrize(("settings", "named"), [
    ({"peers": {"n1": HERE, "n2": ("10.0.0.2", 1)}}, "peers.n2 is at '10.0.0.2'"),
    ({"peers": {"n1": ("0.0.0.0", 1), "n2": HERE}}, "peers.n1 is at '0.0.0.0'"),
    ({"networks": [[("", 1)]]}, "networks.0 is at ''"),
    ({"servers": {4: [HERE, ("away", 1)]}}, "servers.4 is at 'away'"),
])
async def test_without_a_secret_links_stay_on_this_machine(tmp_path: Path, settings: dict[str, Any],
                                                           named: str) -> None:
    design = "joram" if "peers" in settings else "standalone"
    config = Config("n1", design, str(tmp_path), port=0, **settings)
    with pytest.raises(ConfigError) as refusal:
        await ReferenceBroker(config, RealRuntime(config, io.StringIO())).start()
    assert str(refusal.value).startswith("options.secret: is missing") and str(refusal.value).endswith(named)
    assert "\n" not in str(refusal.value)
    assert not check_trust(Config("n1", design, "", options={"secret": "s"}, **settings))


@pytest.mark.parametrize("design", ["joram", "icestorm"])
async def test_a_broker_of_one_machine_says_that_it_has_no_secret(tmp_path: Path, design: str) -> None:
    for options, said in (({}, 1), ({"secret": "between us"}, 0)):
        link, client = free_ports(2)
        config = Config("n1", design, str(tmp_path / f"{said}"), port=client, peers={"n1": ("127.0.0.1", link)},
                        options=options)
        log = io.StringIO()
        broker = ReferenceBroker(config, RealRuntime(config, log))
        await broker.start()
        if design == "joram" and not options:
            with pytest.raises(ConfigError, match=r"options.secret: is missing.* n2 is at '10.0.0.2'"):
                broker.add_replica("n2", ("10.0.0.2", 1), "10.0.0.2:2")
        await broker.stop()
        lines = [line for line in log.getvalue().splitlines() if NO_SECRET in line]
        assert len(lines) == said and "between us" not in log.getvalue()
    assert not check_trust(Config("n1", "standalone", "")), "there is nothing to join"


def test_a_storage_service_without_a_secret_stays_on_this_machine() -> None:
    settings = {"data": "d", "host": "10.0.0.1", "port": 1, "clients": ["a"]}
    with pytest.raises(ConfigError, match=r"secret: is missing; .* not at '10.0.0.1'"):
        parse_storage_config(settings)
    assert parse_storage_config({**settings, "secret": "s"}).secret == "s"
    assert parse_storage_config({**settings, "host": "127.0.0.1"}).secret == ""


def cluster(system: str, servers: int) -> ReferenceCluster:
    nodes = 3 * servers if system == "joram" else servers
    backend = MagicMock(spec=Shells)
    backend.in_process = False
    backend.address = "10.0.0.{}".format
    backend.node_dir = "/nodes/{}".format
    backend.upload, backend.start, backend.exec = AsyncMock(), AsyncMock(), AsyncMock()
    options = {option.name: option.default for option in SYSTEMS.load(system).options}
    test = Test(system=system, workload="queue", nodes=nodes, options=options)
    deployment = Deployment(test, Demands(servers=servers), backend, MagicMock(spec=Topology), "passcode-x")
    made = SYSTEMS.load(system).cluster(deployment)
    assert isinstance(made, ReferenceCluster)
    return made


@pytest.mark.parametrize(("system", "servers"), [("joram", 1), ("joram", 2), ("standalone", 2)])
async def test_each_run_has_a_secret_of_its_own(system: str, servers: int) -> None:
    runs = [cluster(system, servers) for _ in range(2)]
    secrets = [{run._config(node)["options"]["secret"] for node in run.test.node_names} for run in runs]
    assert [len(each) for each in secrets] == [1, 1] and secrets[0] != secrets[1]
    (secret,) = secrets[0]
    assert len(secret) >= 32 and "passcode-x" not in secret
    run, node = runs[0], runs[0].test.node_names[0]
    backend: Any = run.backend
    await run._configure(node)
    await run.start_program(node, "main")
    assert secret in json.loads(backend.upload.call_args.args[1])["options"].values()
    said = f"{backend.start.call_args} {backend.exec.call_args}"
    assert "chmod 600" in said and secret not in said and "passcode-x" not in said


@pytest.mark.parametrize(("system", "workload"), [("joram", "queue"), ("icestorm", "subscriptions")])
def test_nothing_that_a_run_leaves_holds_its_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str,
                                                    workload: str) -> None:
    monkeypatch.setattr("nodes.systems.reference.cluster.secrets", SimpleNamespace(token_hex=lambda _: "5ec2e7-links"))
    case = Case(system=system, workload=workload, nemesis="kill", nodes=3, time_limit=3.0, rate=20.0, settings={})
    run_seed(case, 1, tmp_path, tmp_path, "all")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".log" for path in files)
    assert not [path for path in files if b"5ec2e7" in path.read_bytes()]
