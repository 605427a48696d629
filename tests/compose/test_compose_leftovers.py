"""What a run of a Compose file leaves behind: nothing of its own, and all that was there before."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from examples import image
from static_nats import write_project

from harness.backends.compose.places import IMAGE, ensure_place_image

pytestmark = [pytest.mark.docker, pytest.mark.skipif(os.geteuid() != 0, reason="faults of a Compose project need root")]

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
THEIRS = f"stormproof-test-{os.getpid()}"
PHASES = {"containers": '"container"', "load": '"inject"'}
"""Phase of a run -> what stands in its records once it has begun."""


@pytest.fixture
def theirs() -> Iterator[docker.DockerClient]:
    """A network, a volume and a container of others, whose names the project wants, too."""
    client = docker.from_env()
    ensure_place_image(client)
    network, volume = client.networks.create(THEIRS), client.volumes.create(THEIRS)
    container = client.containers.create(IMAGE, name=THEIRS, network=THEIRS,
                                         volumes={THEIRS: {"bind": "/kept"}})  # fmt: skip
    container.start()
    try:
        yield client
        assert client.containers.get(container.id).status == "running"
        assert client.networks.get(network.id).name == client.volumes.get(volume.id).name == THEIRS
    finally:
        container.remove(force=True)
        network.remove()
        volume.remove()
        client.close()


@pytest.mark.parametrize(("phase", "how"), [
    ("containers", signal.SIGINT), ("load", signal.SIGINT), ("load", signal.SIGKILL),
])
def test_nothing_is_left(phase: str, how: signal.Signals, theirs: docker.DockerClient, tmp_path: Path) -> None:
    file, store = write_project(tmp_path, os.getpid() % 60000), tmp_path / "store"
    text = file.read_text()
    for old, new in (("nats-1: &nats\n", f"nats-1: &nats\n    container_name: {THEIRS}\n"),
                     ("  nats-2:\n", "  nats-2:\n    container_name: two\n"),
                     ("  nats-3:\n", "  nats-3:\n    container_name: three\n"),
                     ("front: {}", f"front: {{name: {THEIRS}}}"), ("data-1: {},", f"data-1: {{name: {THEIRS}}},")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    file.write_text(text)
    argv = [sys.executable, "-m", "harness", "test", "--compose", str(file), "--replicas", "nats-1,nats-2,nats-3",
            "--client", "nats", "--nemesis", "partition,power", "--time-limit", "60", "--set",
            "schedule=partition:one:2-50:1", "--store", str(store)]  # fmt: skip
    with (tmp_path / "out").open("w") as out:
        child = subprocess.Popen(argv, stdout=out, stderr=out, env=ENVIRONMENT, start_new_session=True)
    try:
        run = await_phase(theirs, store, phase, tmp_path / "out", child)
        assert of_run(theirs, run)
        if how == signal.SIGKILL:
            listed = subprocess.run(["pgrep", "-P", str(child.pid)], capture_output=True, text=True, check=True).stdout
            for pid in [*map(int, listed.split()), child.pid]:  # the runner outlives its parent and cleans up
                os.kill(pid, signal.SIGKILL)
            child.wait(60)
            assert of_run(theirs, run), "containers outlive a harness that was killed"
            healed = subprocess.run([sys.executable, "-m", "harness", "heal", "--store", str(store)], env=ENVIRONMENT,
                                    capture_output=True, text=True, timeout=170, check=False)  # fmt: skip
            assert healed.returncode == 0, healed.stdout + healed.stderr
            assert not of_run(theirs, run), healed.stdout + healed.stderr
        else:
            child.send_signal(how)
            assert child.wait(170) == 130, (tmp_path / "out").read_text()
    finally:
        if child.poll() is None:
            child.kill()
    assert not of_run(theirs, run)


BUILDING = "services: {{a: {{build: {{context: .}}}}}}"
SICK = "services: {{a: {{image: {image}, command: sleep 600, healthcheck: {{test: 'false', interval: 1s}}}}}}"


@pytest.mark.parametrize(("project", "under_way", "how"), [
    (BUILDING, "docker build", signal.SIGINT), (SICK, "starting the brokers", signal.SIGTERM),
])
def test_nothing_is_left_of_a_start(project: str, under_way: str, how: signal.Signals, theirs: docker.DockerClient,
                                    tmp_path: Path) -> None:  # fmt: skip
    """A build that was interrupted has ended; so have containers that never became healthy."""
    base = image("redis-server", "redis-sentinel")
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN echo {tmp_path} && sleep 300\n")
    file, store = tmp_path / "compose.yml", tmp_path / "store"
    file.write_text(project.format(image=base))
    argv = [sys.executable, "-m", "harness", "test", "--compose", str(file), "--replicas", "a", "--client", "redis",
            "--nemesis", "none", "--store", str(store)]  # fmt: skip
    with (tmp_path / "out").open("w") as out:
        child = subprocess.Popen(argv, stdout=out, stderr=out, env=ENVIRONMENT, start_new_session=True)
    try:
        deadline = time.monotonic() + 150
        while not any(under_way in text for text in ((tmp_path / "out").read_text(), *commands(tmp_path))):
            assert child.poll() is None and time.monotonic() < deadline, (tmp_path / "out").read_text()
            time.sleep(0.1)
        child.send_signal(how)
        assert child.wait(170) == 130
    finally:
        if child.poll() is None:
            child.kill()
    said = (tmp_path / "out").read_text()
    (run,) = store.glob("2*")
    assert f"it ended before the first operation; its logs are in {run}; `stormproof test --compose {file} " in said
    assert not of_run(theirs, run) and not commands(tmp_path)
    assert not [each["Command"] for each in theirs.api.containers(all=True) if str(tmp_path) in each["Command"]]


def commands(folder: Path) -> list[str]:
    """Return the command lines of Compose and Docker that name a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [words] if str(folder) in words and "docker" in words else []
    return found


def await_phase(client: docker.DockerClient, store: Path, phase: str, out: Path, child: subprocess.Popen[bytes]
                ) -> Path:  # fmt: skip
    """Wait until a run has come that far; return its folder."""
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline and child.poll() is None:
        for name in ("made.jsonl", "ledger.jsonl"):
            for records in store.glob(f"*/{name}"):
                if PHASES[phase] in records.read_text() and (phase == "load" or of_run(client, records.parent)):
                    return records.parent
        time.sleep(0.1)
    raise AssertionError(out.read_text())


def of_run(client: docker.DockerClient, run: Path) -> list[str]:
    """Return what a run has in Docker's engine, in the kernel's filter, among the mounts and for temporary files."""
    ours = {"label": f"stormproof.run={run.name}"}
    volumes = client.api.volumes(filters=ours)["Volumes"] or []
    found = [*(str(each["Names"]) for each in client.api.containers(all=True, filters=ours)),
             *(each["Name"] for each in [*client.api.networks(filters=ours), *volumes])]  # fmt: skip
    with Path("/proc/self/mounts").open() as mounts:
        found += [line for line in mounts if run.name in line]
    listed = subprocess.run(["nft", "-j", "list", "tables"], capture_output=True, text=True, check=True).stdout
    tables = {each["table"]["name"] for each in json.loads(listed)["nftables"] if "table" in each}
    made = run / "made.jsonl"
    return found + sorted(name for name in tables if name.startswith("stormproof_") and made.exists()
                          and name.removeprefix("stormproof_") in made.read_text())  # fmt: skip
