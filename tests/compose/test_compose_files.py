"""Compose files without containers: what is refused, what is changed, what ``x-stormproof`` may say, and both versions
of Compose."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.backends.compose import command
from harness.backends.compose.adapt import (
    adapt,
    demand_separate,
    disks_of,
    machines_of,
    networks_of,
    without_disk,
)
from harness.backends.compose.addresses import fixed_addresses, with_ranges
from harness.backends.compose.backend import ComposeBackend
from harness.backends.compose.command import Project, compose_command, read_config
from harness.backends.compose.settings import declared_in
from stormproof.errors import UsageError

LABELS = {"stormproof.run": "r"}
needs_compose = pytest.mark.skipif(not shutil.which("docker-compose"), reason="docker-compose is not installed")


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a Compose file."""
    def write(text: str, name: str = "compose.yml") -> Path:
        (tmp_path / name).write_text(textwrap.dedent(text))
        return tmp_path / name

    return write


def one(**service: Any) -> dict[str, Any]:
    return {"services": {"a": {"image": "x", **service}}}


@pytest.mark.parametrize(("config", "said"), [
    (one(network_mode="host"), "service a has network_mode: host"),
    (one(network_mode="service:b"), "service a has network_mode: service:b"),
    (one(network_mode="container:b"), "network_mode: container:b"),
    (one(pid="host"), "service a has pid: host"),
    (one(pid="service:b"), "service a has pid: service:b"),
    (one(ipc="host"), "service a has ipc: host"),
    (one(ipc="container:b"), "service a has ipc: container:b"),
    (one(privileged=True), "service a has privileged: true"),
    (one(volumes=["/var/run/docker.sock:/var/run/docker.sock"]), "service a mounts Docker's socket"),
    (one(volumes=[{"type": "bind", "source": "/run/docker.sock", "target": "/s"}]), "service a mounts Docker's socket"),
    (one(volumes=["/var/run:/host:ro"]), "service a mounts Docker's socket (/var/run)"),
    (one(volumes=["/:/host"]), "service a mounts Docker's socket (/)"),
    (one(external_links=["theirs"]), "service a uses a container of others (theirs)"),
    (one(volumes_from=["container:theirs"]), "service a uses a container of others (container:theirs)"),
    ({**one(), "networks": {"n": {"external": True}}}, "network n is external"),
    ({**one(), "networks": {"n": {"external": {"name": "x"}}}}, "network n is external"),
    ({**one(), "volumes": {"v": {"external": True, "name": "x"}}}, "volume v is external"),
    ({**one(), "networks": {"n": {"driver": "macvlan"}}}, "network n has the driver macvlan"),
    ({**one(), "networks": {"n": {"driver": "overlay"}}}, "network n has the driver overlay"),
])
def test_what_would_touch_others_is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        demand_separate(config)
    text = str(refused.value)
    assert said in text and "\n" not in text
    assert any(word in text for word in ("remove", "let the file create it", "faults need bridge")), "what to change"


@pytest.mark.parametrize("config", [
    one(ipc="shareable"), one(network_mode="none"), one(volumes=["./conf:/conf:ro"]), one(volumes_from=["b"]),
    {**one(), "networks": {"n": None, "m": {"driver": "bridge", "internal": True}}},
])
def test_what_stays_within_the_project_is_accepted(config: dict[str, Any]) -> None:
    demand_separate(config)


def test_the_changes_and_the_override() -> None:
    config = {
        "services": {
            "a": {"image": "x", "ports": ["8080:80"], "container_name": "fixed", "labels": ["k=v"],
                  "networks": {"front": {"aliases": ["z"]}, "back": None}, "environment": {"PASSWORD": "geheim"}},
            "b": {"build": {"context": "."}, "network_mode": "bridge"},
        },
        "networks": {"front": {"name": "netz"}, "back": None},
        "volumes": {"data": {"name": "vol"}},
    }  # fmt: skip
    before = json.dumps(config)
    found = adapt(config, LABELS, {"front": "sp-1", "back": "sp-2", "default": "sp-3"}, folder=Path("/f"))
    assert json.dumps(config) == before
    a, b = found.config["services"]["a"], found.config["services"]["b"]
    assert "ports" not in a and "container_name" not in a
    assert a["networks"] == {"front": {"aliases": ["z", "fixed"]}, "back": {"aliases": ["fixed"]}}
    assert a["labels"] == {"k": "v", **LABELS}
    assert b["image"] == adapt(config, LABELS, {}, folder=Path("/f")).config["services"]["b"]["image"]
    assert "network_mode" not in b and networks_of(b) == ("default",)
    assert all("name" not in each and each["labels"] == LABELS
               for kind in ("networks", "volumes") for each in found.config[kind].values())
    assert {name: each["driver_opts"] for name, each in found.config["networks"].items()} == {
        name: {"com.docker.network.bridge.name": bridge}
        for name, bridge in (("front", "sp-1"), ("back", "sp-2"), ("default", "sp-3"))
    }
    assert len(found.notes) == 5 and "geheim" not in yaml.safe_dump(found.override) + "".join(found.notes)


def test_scaled_services_are_numbered() -> None:
    config = {"services": {"a": {"deploy": {"replicas": 3}}, "b": {"scale": 2}, "c": {}}}
    assert [each.name for each in machines_of(config)] == ["a-1", "a-2", "a-3", "b-1", "b-2", "c"]
    with pytest.raises(UsageError, match="two containers would be called a-1"):
        machines_of({"services": {"a": {"scale": 2}, "a-1": {}}})


@pytest.mark.parametrize(("volumes", "why"), [
    (["data:/d"], ""), (["/anonymous"], ""), ([{"type": "volume", "target": "/anonymous", "volume": {}}], ""),
    (["./here:/d"], "bind mount"), ([], "the container's own layer"), (["shared:/d"], "shares its volume"),
    ([{"type": "bind", "source": "/here", "target": "/d"}], "bind mount"),
])
def test_disks_are_the_volumes_of_one_service(volumes: list[Any], why: str) -> None:
    config = {"services": {"a": {"volumes": volumes}, "b": {"volumes": ["shared:/x"]}}}
    assert why in without_disk(config, "a") and bool(disks_of(config, "a")) == (not why)


@pytest.mark.parametrize(("pool", "fixed", "wanted"), [
    ({"subnet": "10.1.0.0/24"}, ["10.1.0.2"], {"ip_range": "10.1.0.128/25", "gateway": "10.1.0.1"}),
    ({"subnet": "10.1.0.0/24"}, ["10.1.0.2", "10.1.0.200"], {"ip_range": "10.1.0.64/26", "gateway": "10.1.0.1"}),
    ({"subnet": "10.1.0.0/24", "gateway": "10.1.0.9"}, ["10.1.0.1"],
     {"ip_range": "10.1.0.128/25", "gateway": "10.1.0.9"}),
    ({"subnet": "10.1.0.0/16", "ip_range": "10.1.5.0/24"}, ["10.1.5.130"],
     {"ip_range": "10.1.5.0/25", "gateway": "10.1.0.1"}),
    ({"subnet": "fd00:1::/64"}, ["fd00:1::2"], {"ip_range": "fd00:1::1:0/112", "gateway": "fd00:1::1"}),
    ({"subnet": "10.1.0.0/24"}, ["10.2.0.2"], {}),
])
def test_ranges_without_fixed_addresses(pool: dict[str, str], fixed: list[str], wanted: dict[str, str]) -> None:
    found = with_ranges("n", {"config": [pool]}, [ipaddress.ip_address(each) for each in fixed], 8)
    assert found == {"config": [{**pool, **wanted}]}


def test_fixed_addresses_that_leave_no_room() -> None:
    service = {"networks": {"n": {"ipv4_address": "10.1.0.2"}}}
    assert fixed_addresses({"a": service}, "n") == {ipaddress.ip_address("10.1.0.2"): "a"}
    with pytest.raises(UsageError, match=r"subnet 10.1.0.0/29 has no room for 8 addresses.*widen it"):
        with_ranges("n", {"config": [{"subnet": "10.1.0.0/29"}]}, fixed_addresses({"a": service}, "n"), 8)
    with pytest.raises(UsageError, match="'high' is no address"):
        fixed_addresses({"a": {"networks": {"n": {"ipv4_address": "high"}}}}, "n")


@needs_compose
def test_compose_itself_resolves_the_files(file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Several files, extends, env files, profiles, variables and relative paths."""
    monkeypatch.setenv("COMPOSE_FILE", "/nowhere.yml")
    monkeypatch.setenv("COMPOSE_PROJECT_NAME", "theirs")
    file("services: {parent: {image: 'x:${TAG}', env_file: [b.env]}}", "base.yml")
    file("IN_FILE=1\n", "b.env")
    file("TAG=7\n", ".env")
    first = file("""
        services:
          a: {extends: {file: base.yml, service: parent}}
          tool: {image: t, profiles: [debug]}
    """)
    second = file("services: {a: {environment: {MORE: $$2}}}", "second.yml")
    found = read_config([first, second])
    assert list(found["services"]) == ["a"] and found["services"]["a"]["image"] == "x:7"
    assert found["services"]["a"]["environment"] == {"IN_FILE": "1", "MORE": "$$2"}
    assert set(read_config([first], ["debug"])["services"]) == {"a", "tool"}
    monkeypatch.setenv("COMPOSE_PROFILES", "other,debug")
    assert set(read_config([first])["services"]) == {"a", "tool"}
    other = file("TAG=8\n", "other.env")
    assert read_config([first], env_file=other)["services"]["a"]["image"] == "x:8"


@needs_compose
@pytest.mark.parametrize(("text", "said"), [
    ("services: {a: [", "while parsing"), ("services: {a: {image: x, wrong: 1}}", "wrong"), ("{}", ""),
    ("services: {a: {image: x, profiles: [p]}}", "--profile"),
])
def test_a_file_that_compose_refuses(text: str, said: str, file: Callable[..., Path]) -> None:
    with pytest.raises(UsageError) as refused:
        read_config([file(text)])
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(("output", "reason"), [
    ('Creating network "p_d" with the default driver\nPulling a (no-such:7)...\nGet "https://r/v2/": no such host',
     'Pulling a (no-such:7)...; Get "https://r/v2/": no such host'),
    ("Starting p_a_1 ... \r\nStarting p_a_1 ... error\nERROR: for p_a_1  Cannot start service a: no /x\n"
     "ERROR: for a  Cannot start service a: no /x\nEncountered errors while bringing up the project.",
     "Cannot start service a: no /x"),
    ("Building a\nDEPRECATED: The legacy builder\nInstall the buildx\n\nThe command 'x' returned a non-zero code: 7\n"
     "ERROR: Service 'a' failed to build : Build failed",
     "The command 'x' returned a non-zero code: 7; Service 'a' failed to build : Build failed"),
    (" Network p_default  Creating\n Network p_default  Created\nError response from daemon: no such image",
     "Error response from daemon: no such image"),
    ("WARNING: The A variable is not set.", "no reason was given"),
])
def test_why_compose_failed(output: str, reason: str) -> None:
    assert command._reason(output) == reason


def declared(write: Callable[..., Path], text: str) -> Any:
    return declared_in([write("x-stormproof:\n" + textwrap.indent(textwrap.dedent(text), "  "))])


def test_all_keys_of_the_extension(file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET", "from the environment")
    file("WHO='me'\n# no\nexport EMPTY=\nSET=not this\n", ".env")
    for name in ("pw", "ca.pem"):
        (tmp_path / name).write_text("geheim\n")
    found = declared(file, """
        client: amqp
        replicas: [a, b]
        port: "5671"
        profiles: p, q
        settings: {queue_type: quorum}
        guarantees: {duplicated: not promised}
        login: $WHO
        password_file: pw
        vhost: ${SET}-${EMPTY:-default}-${EMPTY-other}-$$x
        sasl: PLAIN
        tls: {ca: ca.pem, name: broker}
        leader: {service: a, command: who leads}
    """)
    assert (found.client, found.replicas, found.port, found.profiles) == ("amqp", ("a", "b"), 5671, ("p", "q"))
    assert (found.access.credentials.login, found.access.credentials.passcode) == ("me", "geheim")
    assert found.access.vhost == "from the environment-default--$x" and found.access.sasl == "PLAIN"
    assert (found.access.tls.ca, found.access.tls.name) == (str(tmp_path / "ca.pem"), "broker")
    assert (found.hooks["leader"].service, found.hooks["leader"].command) == ("a", "who leads")
    assert "geheim" not in repr(found)
    tagged = file("services: {a: {ports: !reset []}}\nx-stormproof: {client: nats}", "tags.yml")
    assert declared_in([tagged]).client == "nats"


@pytest.mark.parametrize(("text", "said"), [
    ("repicas: [a]", "x-stormproof has no key 'repicas' (known: client,"),
    ("replicas: 3", "replicas must be a list of names"),
    ("replicas: [1]", "replicas must be a list of names"),
    ("port: high", "port: 'high' is no number"),
    ("settings: [a]", "settings must be a mapping"),
    ("guarantees: lost", "guarantees must be a mapping"),
    ("password_file: missing", "password_file"),
    ("tls: {ca: missing.pem}", "tls: ca: no file"),
    ("tls: {authority: x}", "tls has no key 'authority' (known: ca, cert, key, name)"),
    ("leader: who", "leader must be {service: NAME, command: TEXT}"),
    ("depth: {service: a}", "depth must be {service: NAME, command: TEXT}"),
    ("- a", "x-stormproof must be a mapping"),
])
def test_a_wrong_extension(text: str, said: str, file: Callable[..., Path]) -> None:
    with pytest.raises(UsageError) as refused:
        declared(file, text)
    assert said in str(refused.value) and "\n" not in str(refused.value)


V2_CONFIG = """
name: theirs
services:
  a:
    command: null
    container_name: fixed
    depends_on: {b: {condition: service_started, required: true}}
    deploy: {replicas: 1, resources: {}, placement: {}}
    entrypoint: null
    environment: {PASSWORD: geheim}
    image: x
    networks: {back: null, front: {aliases: [z]}}
    ports: [{mode: ingress, target: 80, published: "8080", protocol: tcp}]
    restart: always
    volumes:
      - {type: volume, source: data, target: /d, volume: {}}
      - {type: volume, target: /anonymous, volume: {}}
      - {type: bind, source: /here, target: /conf, read_only: true, bind: {create_host_path: true}}
  b:
    build: {context: /here, dockerfile: Dockerfile}
    networks: {default: null}
networks:
  back: {name: theirs_back, ipam: {}}
  default: {name: theirs_default, ipam: {}}
  front: {name: netz, ipam: {}}
volumes: {data: {name: theirs_data}}
x-stormproof: {client: amqp}
"""

DOUBLE = """#!/bin/sh
printf '%s\\n' "$*" >>"$0.calls"
case "$*" in
"compose version --short") echo "${{VERSION:-v2.29.7}}" ;;
*" config") cat {config} ;;
*" up "*) cat >"$0.input" ;;
*) cat >/dev/null
  echo 'time="2026-11-28T00:00:00Z" level=warning msg="ignored"' >&2
  echo "no such thing" >&2
  exit 1 ;;
esac
"""


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Version 2 of Compose's command line, as far as it is used: it answers with its own form of a project."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "v2.yml").write_text(V2_CONFIG)
    (folder / "docker").write_text(DOUBLE.format(config=tmp_path / "v2.yml"))
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    compose_command.cache_clear()
    yield folder / "docker"
    compose_command.cache_clear()


async def test_version_2_of_compose(double: Path, file: Callable[..., Path], tmp_path: Path) -> None:
    """Its command line and its form of a project: names that it would give are not the file's."""
    compose, env_file = file(V2_CONFIG), file("A=1\n", "e.env")
    assert compose_command() == (str(double), "compose")
    config = read_config([compose, compose], ["p"], env_file)
    calls = double.with_name("docker.calls").read_text().splitlines()
    assert calls[-1] == f"compose --env-file {env_file} -f {compose} -f {compose} --profile p config"
    demand_separate(config)
    assert [disk.path for disk in disks_of(config, "a")] == ["/d", "/anonymous"]
    bridges = {name: f"sp-{name}" for name in config["networks"]}
    found = adapt(config, LABELS, bridges, {"a": [("/disk/0", "/d"), ("/disk/1", "/anonymous")]}, folder=tmp_path)
    assert len(found.notes) == 4, "the names that are Compose's own are no news"
    assert "name" not in found.config and set(found.config["networks"]) == {"back", "default", "front"}
    await Project("ours", tmp_path, found.config).call("up", "-d", "--no-recreate")
    calls = double.with_name("docker.calls").read_text().splitlines()
    assert calls[-1] == f"compose -p ours --project-directory {tmp_path} -f - up -d --no-recreate"
    sent = yaml.safe_load(double.with_name("docker.input").read_text())
    assert sent["services"]["a"]["volumes"] == [
        {"type": "bind", "source": "/here", "target": "/conf", "read_only": True, "bind": {"create_host_path": True}},
        {"type": "bind", "source": "/disk/0", "target": "/d"},
        {"type": "bind", "source": "/disk/1", "target": "/anonymous"},
    ]
    assert sent["services"]["a"]["networks"] == {"back": {"aliases": ["fixed"]}, "front": {"aliases": ["z", "fixed"]}}
    assert sent["services"]["a"]["depends_on"] == {"b": {"condition": "service_started", "required": True}}
    with pytest.raises(command.BackendError, match=r"^docker compose down failed: no such thing$"):
        await Project("ours", tmp_path, found.config).call("down")


def test_versions_of_compose(double: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{double.parent}{os.pathsep}/bin")
    monkeypatch.setenv("VERSION", "1.20.0")
    old = tmp_path / "bin" / "docker-compose"
    old.write_text("#!/bin/sh\necho 1.27.4\n")
    old.chmod(0o755)
    monkeypatch.setattr(command, "find_tool", lambda name: str(double.with_name(name)))
    with pytest.raises(command.BackendError, match=r"Docker Compose is missing .*1\.27 is too old.*; run: .*install"):
        compose_command()


def test_settings_of_a_run_hold_paths_and_names_only(double: Path, file: Callable[..., Path]) -> None:
    given = ComposeBackend.prepare_settings({"compose": str(file(V2_CONFIG)), "services": "a"})
    assert (given["services"], given["helper_services"]) == ("a", "b") and "geheim" not in json.dumps(given)
