"""The main line of each row of HA Joram on real nodes: the same on this machine and in containers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from command import docker_works, left_behind, on, only_run
from joram_lines import DESCRIPTOR, LINES, ROWS, Ended

from harness.backends.catalog import BACKENDS

TOUR = Path(__file__).parents[1] / "joram_tour.py"
LOCAL, DOCKER = "local", "docker"
AT_ONCE = 2
"""Runs that go on at the same time: they wait more than they compute."""


def everywhere(*names: str, only: Sequence[str] = (LOCAL, DOCKER), slow: bool = False) -> list[Any]:
    """The lines of these names, each on each backend; ``slow`` ones are left to `make soak`."""
    places = {LOCAL: [], DOCKER: [pytest.mark.docker]}
    more = [pytest.mark.soak] if slow else []
    return [pytest.param(name, backend, marks=[*ROWS[name], *places[backend], *more], id=f"{name}-{backend}")
            for name in names for backend in only]


def run_line(name: str, backend: str, folder: Path) -> Ended:
    """One run to its end."""
    words = ["--backend", backend, "--store", str(folder), "--json"]
    done = on(backend).stormproof("test", *LINES[name].words(), *words)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert done.returncode == (0 if answer["verdict"] == "valid" else 1)
    return Ended(only_run(folder), answer["verdict"], answer["sentence"], answer["anomalies"])


def run_tour(backend: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What joram_tour does, to its end."""
    command = [*BACKENDS.load(backend).launch_prefix(), sys.executable, str(TOUR), backend, str(DESCRIPTOR)]
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
                futures[name, backend] = pool.submit(run_tour, backend, folder)

        def result(name: str, backend: str) -> Any:
            if (name, backend) not in futures:
                pytest.skip("no Docker daemon answers here")
            return futures[name, backend].result()

        yield result
        pool.shutdown(cancel_futures=True)


@pytest.mark.requirement("H6", part=True)
@pytest.mark.parametrize(("name", "backend"), [
    *everywhere("store-and-forward", only=[LOCAL]), *everywhere("store-and-forward", only=[DOCKER], slow=True),
    *everywhere("topic", "transaction", "own-server", "clustered-topic", slow=True),
    *everywhere("asynchronous", only=[DOCKER]), *everywhere("asynchronous", only=[LOCAL], slow=True),
    *everywhere("clustered", "processing", slow=True), *everywhere("unspecified", only=[DOCKER], slow=True),
])  # fmt: skip
def test_main_line(name: str, backend: str, results: Callable[[str, str], Ended]) -> None:
    run = results(name, backend)
    LINES[name].look(run)
    assert left_behind(run.folder) == []


@pytest.mark.parametrize(("name", "backend"), everywhere("descriptor"))
def test_the_documents_descriptor_but_for_host_names_starts_a_cluster(
    name: str, backend: str, results: Callable[[str, str], subprocess.CompletedProcess[str]]
) -> None:
    """What joram_tour says of it, and of a client of that cluster, and of one that was away for too long."""
    child = results(name, backend)
    assert child.returncode == 0, child.stderr[-3000:]
    assert left_behind(Path(child.args[-1])) == []
