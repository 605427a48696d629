"""The main line of each row of HA Joram on real nodes: the same on this machine and in containers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import docker_works, left_behind, on, only_run

from harness.history.ledger import read_ledger
from harness.registry import BACKENDS

CHILD = Path(__file__).with_name("joram_child.py")
DESCRIPTOR = Path(__file__).parents[1] / "joram" / "a3servers.xml"
"""The descriptor of section 4.6.3, letter by letter."""
LOCAL, DOCKER = "local", "docker"
AT_ONCE = 2
"""Runs that go on at the same time: they wait more than they compute."""
COMMON = ["--design", "joram", "--rate", "120", "--seed", "4", "--set", "fault_duration=1.5", "--set", "fault_gap=0.3",
          "--set", "idle_timeout=1", "--set", "min_ok=10", "--json"]  # fmt: skip
KILL = ["--nemesis", "kill", "--set", "kill_kind=master", "--time-limit", "4.5"]
GROW = ["--nemesis", "kill,membership", "--set", "kill_kind=master", "--time-limit", "5", "--nodes", "4",
        "--set", "spares=1", "--set", "log_keep=20"]  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """A run that has ended: its exit status, what it printed and left."""

    status: int
    answer: Mapping[str, Any]
    folder: Path

    @property
    def logs(self) -> dict[str, str]:
        """Node -> its log."""
        return {path.stem: path.read_text() for path in sorted((self.folder / "logs").iterdir())}

    def tellers(self, *words: str) -> list[str]:
        """The nodes in whose logs one line has all these words."""
        return [node for node, log in self.logs.items()
                if any(all(word in line for word in words) for line in log.splitlines())]


def served_by_two(run: Ended) -> None:
    assert len(run.tellers("promoted: serving as master")) >= 2


def grew(form: str) -> Callable[[Ended], None]:
    """A fourth replica was given the whole state in that form, and became one of the group."""

    def check(run: Ended) -> None:
        assert run.tellers("state transfer begin", "to=n4", f"form={form}")
        assert "n4" in run.tellers("state transfer end", "source=")
        assert run.tellers("group changed", "members=n1,n2,n3,n4")

    return check


def reacted(run: Ended) -> None:
    """The client inside the broker moved with the master, as did the services, which began once for the first time."""
    grew("held-back")(run)
    assert len(run.tellers("collocated connection opened")) >= 2
    assert run.tellers("former collocated connection cleaned")
    assert len(run.tellers("service initialised", "first_time=True")) == 1
    assert run.tellers("service initialised", "first_time=False")
    assert set(run.tellers("service initialised")) == set(run.tellers("promoted: serving as master"))


def forwarded(run: Ended) -> None:
    """The local server n4 found the master, and the next one; nobody but masters let it in."""
    served_by_two(run)
    assert run.tellers("network up", "to=0") == ["n4"]
    let_in = run.tellers("network up", "of=1")
    assert len(let_in) >= 2
    assert set(let_in) <= set(run.tellers("promoted: serving as master"))


def clustered(run: Ended) -> None:
    """Both servers sent messages to the other one, and the first one had two masters."""
    served_by_two(run)
    assert run.tellers("network up", "to=1") and run.tellers("network up", "to=0")


def both_sides_served(run: Ended) -> None:
    assert run.answer["anomalies"].get("lost", 0) + run.answer["anomalies"].get("duplicated", 0) > 0
    assert len(run.tellers("promoted: serving as master")) >= 2


@dataclass(frozen=True)
class Line:
    """A run, and what is to be seen of it: in the sentence of the verdict, and by ``check``."""

    words: Sequence[str]
    says: str
    check: Callable[[Ended], None]
    verdict: str = "valid"


LINES: Mapping[str, Line] = {
    "asynchronous": Line(
        ["--workload", "queue", *GROW, "--set", "propagation=asynchronous", "--set", "transfer=two-step"],
        "confirmed messages were delivered", grew("two-step")),
    "reaction": Line(
        ["--workload", "reaction", *GROW, "--set", "source=topic", "--set", "transfer=held-back"],
        "confirmed messages were delivered", reacted),
    "forward": Line(
        ["--workload", "forward", *KILL, "--nodes", "4", "--set", "local_servers=1"],
        "confirmed messages were delivered", forwarded),
    "clustered": Line(
        ["--workload", "clustered", *KILL, "--nodes", "6"], "confirmed messages were delivered", clustered),
    "topic": Line(
        ["--workload", "topic", *KILL], "owed to durable subscriptions came", served_by_two),
    "transaction": Line(
        ["--workload", "transaction", *KILL, "--set", "transactions=xa", "--set", "crash_share=0.2"],
        "moved exactly once", served_by_two),
    "unspecified": Line(
        ["--workload", "queue", "--nemesis", "partition", "--set", "partition_kind=master", "--time-limit", "8",
         "--set", "fault_duration=3.5", "--set", "partitions=unspecified", "--set", "both_sides=true"],
        "Invalid", both_sides_served, "invalid"),
}  # fmt: skip


def row(*ids: str, part: bool = False) -> list[pytest.MarkDecorator]:
    return [pytest.mark.requirement(each, part=True) if part else pytest.mark.requirement(each) for each in ids]


ROWS: Mapping[str, list[pytest.MarkDecorator]] = {
    "asynchronous": row("J1", "J7", "J15", "J17", "J18"),
    "reaction": row("J3", "J5", "J10", "J18") + row("J4", part=True),
    "forward": row("J2", "J11", "J12"),
    "clustered": row("J19"),
    "topic": row("J5"),
    "transaction": row("J4", part=True),
    "unspecified": row("J20"),
    "descriptor": row("J1", "J6", "J8", "J13", "J14", "J15", "J16", "J17") + row("J10", part=True),
}


def everywhere(*names: str, only: Sequence[str] = (LOCAL, DOCKER)) -> list[Any]:
    """The lines of these names, each on each backend."""
    places = {LOCAL: [], DOCKER: [pytest.mark.docker]}
    return [pytest.param(name, backend, marks=[*ROWS[name], *places[backend]], id=f"{name}-{backend}")
            for name in names for backend in only]


def run_line(name: str, backend: str, folder: Path) -> Ended:
    """One run to its end."""
    done = on(backend).stormproof("test", *COMMON, *LINES[name].words, "--backend", backend, "--store", str(folder))
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return Ended(done.returncode, json.loads(done.stdout), only_run(folder))


def run_child(backend: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What joram_child does, to its end."""
    command = [*BACKENDS.load(backend).launch_prefix(), sys.executable, str(CHILD), backend, str(DESCRIPTOR)]
    return subprocess.run([*command, str(folder)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=120, check=False)  # fmt: skip


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest,
            tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], Any]]:
    """What came of the runs of all tests that were selected; they begin one behind the other with the first test."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures: dict[tuple[str, str], Future[Any]] = {}
        for item in request.session.items:
            if not isinstance(item, pytest.Function) or item.path != request.path:
                continue
            name, backend = item.callspec.params["name"], item.callspec.params["backend"]
            if backend == DOCKER and not docker_works():
                continue
            folder = tmp_path_factory.mktemp(f"rows-{name}-{backend}")
            if name in LINES:
                futures[name, backend] = pool.submit(run_line, name, backend, folder)
            else:
                futures[name, backend] = pool.submit(run_child, backend, folder)

        def result(name: str, backend: str) -> Any:
            if (name, backend) not in futures:
                pytest.skip("no Docker daemon answers here")
            return futures[name, backend].result()

        yield result
        pool.shutdown(cancel_futures=True)


@pytest.mark.requirement("H6", part=True)
@pytest.mark.parametrize(("name", "backend"), [
    *everywhere("asynchronous", "reaction", "forward", "clustered", "transaction"),
    *everywhere("topic", only=[LOCAL]), *everywhere("unspecified", only=[DOCKER]),
])  # fmt: skip
def test_main_line(name: str, backend: str, results: Callable[[str, str], Ended]) -> None:
    line, run = LINES[name], results(name, backend)
    assert run.answer["verdict"] == line.verdict, run.answer
    assert run.status == (0 if line.verdict == "valid" else 1)
    assert line.says in run.answer["sentence"]
    faults = read_ledger(run.folder / "ledger.jsonl")
    assert {window.fault for window in faults} == set(line.words[line.words.index("--nemesis") + 1].split(","))
    assert all(window.proven for window in faults)
    line.check(run)
    assert left_behind(run.folder) == []


@pytest.mark.parametrize(("name", "backend"), everywhere("descriptor"))
def test_the_documents_descriptor_but_for_host_names_starts_a_cluster(
    name: str, backend: str, results: Callable[[str, str], subprocess.CompletedProcess[str]]
) -> None:
    """What joram_child says of it, and of a client of that cluster, and of one that was away for too long."""
    child = results(name, backend)
    assert child.returncode == 0, child.stderr[-3000:]
    assert left_behind(Path(child.args[-1])) == []
