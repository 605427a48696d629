"""The harness itself is killed at random moments, and two run at once: nothing is left, nobody is disturbed.

``STORMPROOF_KILLS`` is how often it is killed on each backend, ``STORMPROOF_KILLS_SEED`` what the moments come from.
``STORMPROOF_KILLS_LOG`` names a file that gets a line for each kill.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import STORMPROOF, SYSTEMS, Where, children, docker_works, left_behind, on, run_info

KILLS = int(os.environ.get("STORMPROOF_KILLS", "10"))
SEED = int(os.environ.get("STORMPROOF_KILLS_SEED", "1"))
LOG = os.environ.get("STORMPROOF_KILLS_LOG", os.devnull)
MARK = "STORMPROOF_KILL_TEST"
QUICK = ["--nemesis", "kill,partition", "--time-limit", "5", "--rate", "100"]
KILLED = [("local", "joram"), pytest.param("docker", "joram", marks=pytest.mark.docker), ("ssh", "joram"),
          ("local", "qpid"), pytest.param("docker", "qpid", marks=pytest.mark.docker)]  # fmt: skip


def everything(pid: int) -> list[int]:
    return [pid, *children(pid)]


def python_only(pid: int) -> list[int]:
    """The harness and its child, and what the child was started by; neither nodes nor the JVM."""
    return [pid, *(each for each in children(pid) if b"harness.run.test_runner" in cmdline(each))]


def harness(pid: int) -> list[int]:
    return [pid]


VICTIMS: Sequence[Callable[[int], list[int]]] = (everything, python_only, harness, children)


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


def start(store: Path, place: Path, where: Where, seed: int, system: str = "joram") -> subprocess.Popen[str]:
    place.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(place), MARK: str(place)}
    command = [*where.within, *STORMPROOF, "test", *where.words, "--store", str(store), "--seed", str(seed), *QUICK,
               *SYSTEMS[system]]  # fmt: skip
    with (place.parent / f"{place.name}.out").open("a") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, text=True, env=environment, start_new_session=True)


@dataclass(frozen=True)
class Range:
    """Where runs are made and killed: a store, a place for temporary files, a backend, and the system under test."""

    folder: Path
    where: Where
    system: str

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def place(self) -> Path:
        return self.folder / "tmp"

    def runs(self) -> list[Path]:
        return sorted(path for path in self.store.glob("[0-9]*") if path.is_dir())

    def ask(self, *words: str, place: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "TMPDIR": str(place)} if place else None
        command = [*self.where.within, *STORMPROOF, *words, "--store", str(self.store)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)

    def undisturbed(self) -> float:
        """Seconds that a whole run takes here and now."""
        begun = time.monotonic()
        assert start(self.store, self.place, self.where, 0, self.system).wait(300) in (0, 2)
        return time.monotonic() - begun

    def kill(self, number: int, victims: Callable[[int], list[int]], moment: float) -> float | None:
        """Start a run, kill some of its harness after so many seconds, and wait until all of it has ended.

        What it took if it ended before, None if not.
        """
        begun, took = time.monotonic(), None
        process = start(self.store, self.place, self.where, number, self.system)
        try:
            process.wait(moment)
            took = time.monotonic() - begun
        except subprocess.TimeoutExpired:
            for pid in victims(process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        process.wait(120)
        until = time.monotonic() + 90
        while marked(str(self.place)) and time.monotonic() < until:  # a child that is alone heals and ends by itself
            time.sleep(0.1)
        return took

    def mended(self) -> Iterator[str]:
        """Do what a person does after a kill; what went wrong, and what is left nevertheless."""
        # At first not under the TMPDIR of the run; a folder made before there was a run to note it in needs that.
        for done in (self.ask("heal"), self.ask("heal", place=self.place), self.ask("recover")):
            if done.returncode != 0 or any(line.startswith("left ") for line in done.stdout.splitlines()):
                yield f"{done.args}: status {done.returncode}, {done.stdout} {done.stderr}"
        yield from self.left()

    def left(self) -> Iterator[str]:
        """What of dead runs is still there."""
        yield from (f"process {pid}: {cmdline(pid)!r}" for pid in marked(str(self.place)))
        yield from (str(path) for path in self.place.iterdir())
        yield from (thing for run in self.runs() for thing in self.where.left_behind(run))
        yield from (str(path) for path in self.store.rglob("*.partial"))
        yield from (str(path) for path in self.store.glob(".*") if path.is_dir())
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        yield from (f"mount {line}" for line in mounts if str(self.place) in line)
        tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=False).stdout
        yield from (line for line in tables.splitlines() if "stormproof" in line)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(("backend", "system"), KILLED)
def test_kills_of_the_harness_at_random_moments_leave_nothing(backend: str, system: str, tmp_path: Path,
                                                              request: pytest.FixtureRequest) -> None:
    if backend == "docker" and not docker_works():
        pytest.skip("no Docker daemon")
    here = Range(tmp_path, on(backend, request.getfixturevalue("ssh_hosts") if backend == "ssh" else None), system)
    here.undisturbed()  # the first run on a machine compiles what later ones find
    longest, chance = here.undisturbed(), random.Random(SEED)
    found: dict[str, str] = {}  # what is wrong, and since which kill
    for number in range(KILLS):
        victims, moment = VICTIMS[number % len(VICTIMS)], chance.uniform(0, 1.1 * longest)
        told = f"{system} on {backend}, kill {number} of {victims.__name__} after {moment:.1f} of {longest:.1f} s"
        longest = here.kill(number, victims, moment) or longest
        for problem in here.mended():
            found.setdefault(problem, told)
        with Path(LOG).open("a") as log:
            print(told, file=log)
    judged = here.ask("check", "--all", "--json")
    assert not found, "\n".join(f"{told}: {problem}" for problem, told in found.items())
    assert judged.returncode in (0, 2), judged.stderr
    counted = outcomes(here.runs(), {row["run"]: row for row in json.loads(judged.stdout)["runs"]})
    with Path(LOG).open("a") as log:
        print(f"{system} on {backend}: {KILLS} kills, {sum(counted.values())} runs: {dict(counted)}", file=log)


def outcomes(runs: Sequence[Path], verdicts: dict[str, dict[str, Any]]) -> Counter[str]:
    """How many runs came to which verdict; one that none was given to says in one line why."""
    counted: Counter[str] = Counter()
    for run in runs:
        info = run_info(run)
        assert info["status"] in ("recorded", "broken"), info
        if run.name not in verdicts:
            assert info["failure"] and "\n" not in info["failure"], f"{run.name}: not judged, nor said why: {info}"
        elif verdicts[run.name]["verdict"] == "unknown":
            assert verdicts[run.name]["sentence"].removeprefix("Unknown: "), verdicts[run.name]
        counted[verdicts[run.name]["verdict"] if run.name in verdicts else info["failure"]] += 1
    assert not counted["invalid"]  # a whole run of a sound broker is valid, a part of one at least not invalid
    return counted


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
    both = [start(store, place, on(backend), 7) for store, backend in zip(stores, backends, strict=True)]
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
