"""The harness itself is killed at random moments, and two run at once: nothing is left, nobody is disturbed.

``STORMPROOF_KILLS`` is how often it is killed, ``STORMPROOF_KILLS_SEED`` what the moments come from.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from command import STORMPROOF, children, docker_works, left_behind, run_info

KILLS = int(os.environ.get("STORMPROOF_KILLS", "10"))
SEED = int(os.environ.get("STORMPROOF_KILLS_SEED", "1"))
MARK = "STORMPROOF_KILL_TEST"
LONGEST = 25.0
QUICK = ["--system", "joram", "--nemesis", "kill,partition", "--time-limit", "5", "--rate", "100", "--set",
         "idle_timeout=1"]  # fmt: skip
BACKENDS = ["local", pytest.param("docker", marks=pytest.mark.docker)]


def everything(pid: int) -> list[int]:
    return [pid, *children(pid)]


def python_only(pid: int) -> list[int]:
    """The harness and its child, and what the child was started by; neither nodes nor the JVM."""
    return [pid, *(each for each in children(pid) if b"harness.test_runner" in cmdline(each))]


VICTIMS: Sequence[Callable[[int], list[int]]] = (everything, python_only, lambda pid: [pid], lambda pid: children(pid))


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def marked(mark: str) -> list[int]:
    """Processes that come from a harness with this mark in its environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def start(store: Path, place: Path, backend: str, seed: int) -> subprocess.Popen[str]:
    place.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(place), MARK: str(place)}
    command = [*STORMPROOF, "test", "--backend", backend, "--store", str(store), "--seed", str(seed), *QUICK]
    with (place.parent / f"{place.name}.out").open("a") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, text=True, env=environment, start_new_session=True)


def ask(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*STORMPROOF, *words], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", BACKENDS)
def test_kills_of_the_harness_at_random_moments_leave_nothing(backend: str, tmp_path: Path) -> None:
    if backend == "docker" and not docker_works():
        pytest.skip("no Docker daemon")
    store, place, chance = tmp_path / "store", tmp_path / "tmp", random.Random(SEED)
    for number in range(KILLS):
        process = start(store, place, backend, number)
        victims, moment = VICTIMS[number % len(VICTIMS)], chance.uniform(0.2, LONGEST)
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            for pid in victims(process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        told = f"kill {number}, after {moment:.1f} s"
        process.wait(90)
        until = time.monotonic() + 60
        while marked(str(place)) and time.monotonic() < until:  # a child that is alone heals and ends by itself
            time.sleep(0.1)
        assert marked(str(place)) == [], told
        healed = ask("heal", "--store", str(store))  # not under the TMPDIR of the run
        assert healed.returncode == 0, healed.stderr
        # A folder that was made before there was a run to note it in is found where it is.
        environment = {**os.environ, "TMPDIR": str(place)}
        subprocess.run([*STORMPROOF, "heal", "--store", str(store)], check=True, env=environment, capture_output=True)
        assert [path.name for path in place.iterdir()] == [], told
        assert [thing for path in store.glob("*/run.json") for thing in left_behind(path.parent)] == [], told
        assert "left" not in [line.split()[0] for line in healed.stdout.splitlines()], healed.stdout
    assert ask("recover", "--store", str(store)).returncode == 0
    judged = json.loads(ask("check", "--all", "--store", str(store), "--json").stdout)
    runs = {path.parent.name: run_info(path.parent) for path in store.glob("*/run.json")}
    assert {info["status"] for info in runs.values()} <= {"recorded", "broken"}
    verdicts = {row["run"]: row for row in judged["runs"]}
    for name, info in runs.items():
        assert name in verdicts or info["failure"], f"{name} is neither judged nor said why not"
        if name in verdicts:  # a whole run of a sound broker is valid, a part of one at least not invalid
            assert verdicts[name]["verdict"] != "invalid", verdicts[name]
    print(f"{backend}: {KILLS} kills, {len(runs)} runs, {len(verdicts)} judged", file=sys.stderr)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backends", [
    ("local", "local"), pytest.param(("docker", "docker"), marks=pytest.mark.docker),
    pytest.param(("local", "docker"), marks=pytest.mark.docker),
], ids="+".join)  # fmt: skip
def test_two_harnesses_at_once_do_not_disturb_each_other(backends: tuple[str, str], tmp_path: Path) -> None:
    """Each in a store of its own, while `heal` is called again and again in a third."""
    if "docker" in backends and not docker_works():
        pytest.skip("no Docker daemon")
    place = tmp_path / "tmp"  # one place for temporary files: what is in it must not be mixed up
    stores = [tmp_path / f"store-{number}" for number in range(2)]
    both = [start(store, place, backend, 7) for store, backend in zip(stores, backends, strict=True)]
    environment = {**os.environ, "TMPDIR": str(place)}
    while any(process.poll() is None for process in both):
        healed = subprocess.run([*STORMPROOF, "heal", "--store", str(tmp_path / "third")], env=environment,
                                capture_output=True, text=True, check=True)
        assert not [line for line in healed.stdout.splitlines() if str(place) in line], healed.stdout
    output = (tmp_path / "tmp.out").read_text()
    # On a machine that is busy with both, too little may happen to say *valid*.
    assert all(process.returncode in (0, 2) for process in both), output
    assert [path.name for path in place.iterdir()] == []
    assert [thing for store in stores for path in store.glob("*/run.json") for thing in left_behind(path.parent)] == []
