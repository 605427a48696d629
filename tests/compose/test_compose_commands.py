"""Test commands in the containers of a Compose project: how they are found, run and ended, and whole runs with them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pyarrow.parquet as pq
import pytest
from provisioned import started
from static_nats import write_project

from harness.backends.compose.backend import ComposeBackend
from harness.backends.compose.settings import command_folders, composition_of
from harness.backends.compose.user_commands import SdkOutput
from harness.backends.image import ensure_image
from harness.cli.composed import composed
from nodes.systems.redis.system import REDIS
from stormproof.contracts.backend import RUNNING
from stormproof.contracts.commands import NotStarted
from stormproof.errors import UsageError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a Compose project's faults need root")
pytestmark = pytest.mark.requirement("H27", part=True)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "/opt/antithesis/test/v1"
PROJECT = """
services:
  redis:
    image: {image}
    command: redis-server --protected-mode no --appendonly yes
    restart: always
  client:
    image: {image}
    restart: always
    command:
      - sh
      - -c
      - |
        until redis-cli -h redis ping; do sleep 0.1; done
        echo '{{"antithesis_setup": {{"status": "complete", "details": {{}}}}}}' >> $$ANTITHESIS_OUTPUT_DIR/sdk.jsonl
        exec sleep infinity
    volumes: ["./templates:/opt/antithesis/test/v1:ro"]
"""
ADD = """#!/bin/sh
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
  timeout 2 redis-cli -h redis incr count && exit 0
  sleep 0.5
done
exit 1
"""
SAY = ('echo \'{{"antithesis_assert": {{"hit": true, "must_hit": true, "assert_type": "{kind}",'
       ' "display_type": "{kind}", "condition": {condition}, "message": "{name}", "id": "{name}", "details": null}}}}\''
       " >> $ANTITHESIS_OUTPUT_DIR/sdk.jsonl\n")  # fmt: skip


def say(kind: str, name: str, condition: str) -> str:
    """Return a line of a shell script that makes an assertion."""
    return SAY.format(kind=kind, name=name, condition=condition)


def write(folder: Path, scripts: Mapping[str, str]) -> Path:
    """Write the project, with these test commands in one template; return its file."""
    client = docker.from_env()
    try:
        image, _ = ensure_image(client, REDIS.packages)
    finally:
        client.close()
    place = folder / "templates" / "main"
    place.mkdir(parents=True)
    for name, text in scripts.items():
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    file = folder / "compose.yml"
    file.write_text(PROJECT.format(image=image))
    return file


@dataclass(frozen=True)
class Ran:
    """A run that has ended: its exit status, its description, its verdict, its faults and its commands."""

    status: int
    info: Mapping[str, Any]
    verdict: Mapping[str, Any]
    ledger: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    page: str

    def check(self, name: str) -> Mapping[str, Any]:
        return next(each for each in self.verdict["checks"] if each["check"] == name)

    def fault(self, phase: str) -> list[int]:
        """The times of a phase of all faults."""
        return [int(line["time"]) for line in self.ledger if line["phase"] == phase]

    def of(self, kind: str, *types: int) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["f"] == kind and row["type"] in types]


INVOKE, OK, FAIL, ENDED = 0, 1, 2, 3


def run_test(file: Path, *words: str) -> Ran:
    """Run the command line, as a person does."""
    argv = [sys.executable, "-m", "harness", "test", "--compose", str(file), "--test-commands", "client", "--seed", "3",
            "--store", str(file.parent / "runs"), *words]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=550, check=False, cwd=file.parent,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    (run,) = (file.parent / "runs").glob("2*")
    assert (run / "verdict.json").exists(), done.stderr
    ledger = run / "ledger.jsonl"
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return Ran(done.returncode, json.loads((run / "run.json").read_text()),
               json.loads((run / "verdict.json").read_text()), [json.loads(line) for line in lines],
               pq.read_table(run / "history.parquet").to_pylist(), (run / "report.html").read_text())


@pytest.mark.docker
@needs_root
@pytest.mark.timeout(600)
def test_a_template_that_passes(tmp_path: Path) -> None:
    """Its commands run when their names say; what the load leaves behind is ended before ``eventually_``."""
    file = write(tmp_path, {
        "first_reset": "#!/bin/sh\nredis-cli -h redis set count 0\n",
        "parallel_driver_add": ADD + say("sometimes", "never reached", "true"),
        "serial_driver_get": ADD.replace("incr", "get").replace("&& exit 0", "&& {\n" + say(
            "always", "count is there", "true") + say("sometimes", "count is odd", "false") + "exit 0; }"),
        "anytime_long": "#!/bin/sh\nexec sleep 1000\n",
        "eventually_up": "#!/bin/sh\ntest $(redis-cli -h redis get count) -gt 0\n",
        "helper_notes": "no command",
    })  # fmt: skip
    ran = run_test(file, "--nemesis", "kill", "--time-limit", "12", "--set", "start_rate=3")
    assert (ran.status, ran.verdict["verdict"]) == (0, "valid"), ran.verdict["sentence"]
    assert ran.info["commands"]["began_by"] == "setup_complete from client"
    (first,) = ran.of("first", OK)
    (begun,), (ended,) = ran.of("eventually", INVOKE), ran.of("eventually", OK)
    assert first["time"] < min(ran.fault("inject")) and max(ran.fault("heal")) < begun["time"]
    load = [row for kind in ("parallel_driver", "serial_driver", "anytime") for row in ran.of(kind, INVOKE, OK, ENDED)]
    assert first["time"] < min(row["time"] for row in load) and max(row["time"] for row in load) < begun["time"]
    assert {row["error"] for row in ran.of("anytime", ENDED)} == {"ended by the test"}
    assert ran.of("parallel_driver", OK) and ran.of("serial_driver", OK) and ended["node"] == "client"
    told = {each["message"]: each for each in ran.info["assertions"]}
    assert told["count is there"]["passes"] >= 1 and told["count is there"]["services"] == ["client"]
    assert ran.check("assertions")["figures"]["not_reached"] == ["count is odd"]
    assert not (tmp_path / "runs" / ran.info["run"] / "sdk").exists()


@pytest.mark.docker
@needs_root
@pytest.mark.timeout(600)
def test_a_command_that_fails_and_an_assertion_that_breaks(tmp_path: Path) -> None:
    file = write(tmp_path, {
        "singleton_driver_all": ADD.replace("&& exit 0", "&& {\n" + say("always", "sum fits", "false") + "exit 0; }"),
        "finally_sum": "#!/bin/sh\necho 'expected <b>7</b>, found 1' >&2\nexit 3\n",
    })  # fmt: skip
    ran = run_test(file, "--nemesis", "none", "--time-limit", "3")
    assert (ran.status, ran.verdict["verdict"]) == (1, "invalid")
    (anomaly,) = ran.check("commands")["anomalies"]
    assert anomaly["detail"]["command"] == "main/finally_sum in client" and anomaly["detail"]["exit_status"] == 3
    assert anomaly["detail"]["output"] == "expected <b>7</b>, found 1"
    assert "<b>7</b>" not in ran.page and "7&lt;/b&gt;" in ran.page
    (broken,) = ran.check("assertions")["anomalies"]
    assert broken["detail"]["assertion"] == "sum fits"
    assert len(ran.of("singleton_driver", INVOKE)) == 1


@pytest.mark.docker
@needs_root
@pytest.mark.timeout(600)
def test_a_command_whose_container_is_killed_is_no_finding(tmp_path: Path) -> None:
    file = write(tmp_path, {"parallel_driver_wait": "#!/bin/sh\nsleep 1.5\n", "finally_x": "#!/bin/sh\nexit 0\n"})
    ran = run_test(file, "--nemesis", "kill", "--time-limit", "12", "--set", "kill_kind=client")
    results = ran.check("commands")["figures"]["results"]
    assert ran.check("commands")["verdict"] == "valid" and results["hit by a fault"] >= 1 and results["succeeded"] >= 1
    assert ran.info["commands"]["missed"] and ran.verdict["verdict"] == "unknown"  # finally_ could not run
    assert not ran.of("finally", INVOKE)


def lives(word: str) -> bool:
    """Return whether a process of this machine has a word in its command line."""
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                if word.encode() in (each / "cmdline").read_bytes().split(b"\0"):
                    return True
            except OSError:
                continue
    return False


async def becomes(wanted: bool, word: str) -> None:
    deadline = time.monotonic() + 30
    while lives(word) != wanted:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def until_running(backend: ComposeBackend) -> None:
    deadline = time.monotonic() + 30
    while (await backend.process("client", "")).state != RUNNING:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@pytest.mark.docker
@needs_root
async def test_a_command_is_run_and_ended(tmp_path: Path) -> None:
    file = write(tmp_path, {
        "parallel_driver_ok": "#!/bin/sh\necho out; echo err >&2\n",
        "anytime_loud": "#!/bin/sh\nyes | head -99999\nexit 7\n", "anytime_bad": "#!/no/such/program\n", "helper_x": "",
        "parallel_driver_tree": "#!/bin/sh\nsleep 98765431 &\nsh -c 'sleep 98765432; true'\n",
    })  # fmt: skip
    (file.parent / "templates" / "main" / "anytime_plain").write_text("no program")
    (file.parent / "templates" / "main" / "anytime_link").symlink_to("parallel_driver_ok")
    async with started(file, "redis") as backend:
        found = {each.path: each.executable for each in await backend.list_files("client", FOLDER)}
        assert found == {"main/parallel_driver_ok": True, "main/anytime_loud": True, "main/anytime_bad": True,
                         "main/helper_x": True, "main/parallel_driver_tree": True, "main/anytime_plain": False,
                         "main/anytime_link": True}  # fmt: skip
        assert await backend.list_files("client", "/no/such/folder") == []
        for name in ("parallel_driver_ok", "anytime_link"):
            end = await backend.execute("client", f"{FOLDER}/main/{name}", {})
            assert end.status == 0 and sorted(end.output.split()) == ["err", "out"] and not end.machine_ended
        end = await backend.execute("client", f"{FOLDER}/main/anytime_loud", {})
        assert end.status == 7 and 0 < len(end.output) <= 4096
        for name in ("anytime_bad", "anytime_plain", "missing"):
            with pytest.raises(NotStarted):
                await backend.execute("client", f"{FOLDER}/main/{name}", {})
        running = asyncio.create_task(backend.execute("client", f"{FOLDER}/main/parallel_driver_tree", {}))
        await becomes(True, "98765431")
        await becomes(True, "98765432")
        running.cancel()
        await becomes(False, "98765431")
        await becomes(False, "98765432")
        hit = asyncio.create_task(backend.execute("client", f"{FOLDER}/main/parallel_driver_tree", {}))
        await becomes(True, "98765432")
        await backend.kill("client", "")
        end = await hit
        assert end.status != 0 and end.machine_ended
        await becomes(False, "98765431")
        await until_running(backend)
        await backend.pause("client", "")
        with pytest.raises(NotStarted, match="paused"):
            await backend.execute("client", f"{FOLDER}/main/parallel_driver_ok", {})
        await backend.resume("client", "")
        await backend.stop("client", "", 0.0)
        with pytest.raises(NotStarted, match="not running"):
            await backend.execute("client", f"{FOLDER}/main/parallel_driver_ok", {})


@pytest.mark.docker
@needs_root
async def test_a_container_without_a_shell_runs_a_command(tmp_path: Path) -> None:
    file = write_project(tmp_path, os.getpid() % 60000 + 3)
    async with started(file, "nats-1,nats-2,nats-3") as backend:
        assert (await backend.process("nats-1", "")).state == RUNNING
        assert "etc/hosts" in [each.path for each in await backend.list_files("nats-1", "/")]
        end = await backend.execute("nats-1", "/nats-server", {})  # its port is in use
        assert end.status == 1 and "address already in use" in end.output


def test_output_of_the_sdk_is_read_as_it_grows(tmp_path: Path) -> None:
    output = SdkOutput(tmp_path / "sdk")
    folder = Path(output.folder("a"))
    assert folder.stat().st_mode & 0o777 == 0o777
    (folder / "sdk.jsonl").write_text('{"n": 1}\n{"n"')
    (folder / "secret.jsonl").symlink_to("/etc/hostname")
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "inner").mkdir()
    assert list(output.lines()) == [("a", '{"n": 1}')]
    with (folder / "sdk.jsonl").open("a") as file:
        file.write(": 2}\n\n")
    assert list(output.lines()) == [("a", '{"n": 2}')]
    assert list(output.lines()) == []
    (folder / "sdk.jsonl").write_text('{"n": 3}\n')  # begun again
    assert list(output.lines()) == [("a", '{"n": 3}')]
    output.remove()
    assert not folder.exists()


@pytest.mark.skipif(not shutil.which("docker-compose"), reason="docker-compose is not installed")
@pytest.mark.parametrize(("declared", "client", "named", "system", "commands"), [
    ("{}", None, "c:/t", "any-commands", "c:/t"),
    ("{test_commands: [c, d]}", None, None, "any-commands", "c,d"),
    ("{test_commands: [c], client: redis}", None, "d", "any-redis", "d"),
    ("{}", "redis", "c", "any-redis", "c"),
])  # fmt: skip
def test_test_commands_choose_system_and_workload(declared: str, client: str | None, named: str | None, system: str,
                                                  commands: str, tmp_path: Path) -> None:
    file = tmp_path / "compose.yml"
    file.write_text(f"services: {{c: {{image: x}}, d: {{image: x}}, e: {{image: x}}}}\nx-stormproof: {declared}\n")
    found = composed([file], None, None, None, client, named)
    assert (found.system, found.workload, found.given["test_commands"]) == (system, "commands", commands)


def test_without_client_and_test_commands_both_are_named(tmp_path: Path) -> None:
    file = tmp_path / "compose.yml"
    file.write_text("services: {c: {image: x}}\n")
    with pytest.raises(UsageError, match=r"--client NAME.*--test-commands SERVICE"):
        composed([file], None, None, None, None)


@pytest.mark.skipif(not shutil.which("docker-compose"), reason="docker-compose is not installed")
def test_services_with_commands(tmp_path: Path) -> None:
    file = tmp_path / "compose.yml"
    file.write_text("services:\n  a: {image: x, depends_on: {job: {condition: service_completed_successfully}}}\n"
                    "  b: {image: x, scale: 2}\n  c: {image: x, depends_on: {a: {condition: service_started}}}\n"
                    "  job: {image: x}\n")
    composition = composition_of({"compose": str(file)})
    assert command_folders(composition, "b,c:/t") == (("b-1", FOLDER), ("b-2", FOLDER), ("c", "/t"))
    for text, said in (("d", "no such service"), ("a:t", "a:/FOLDER")):
        with pytest.raises(UsageError, match=said):
            command_folders(composition, text)
    prepared = ComposeBackend.prepare_settings({"compose": str(file), "test_commands": "c"})
    assert (prepared["services"], prepared["helper_services"]) == ("a,b-1,b-2", "c,job")
