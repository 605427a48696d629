"""Remembers the last outcome of every test that proves a requirement, for ``make requirements``; hosts with sshd."""

from __future__ import annotations

import functools
import os
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import DockerException
from hypothesis import settings
from outcome_record import Outcome, newer, outcome_now, write_record

from harness.tools.bench.ssh_test_hosts import SshTestHosts, running_hosts, why_not

OUTCOMES = "stormproof/last_outcomes"

# `make test` draws the same examples every time, so that its outcome depends on the code alone. `make soak` sets
# HYPOTHESIS_PROFILE=default and draws new ones.
settings.register_profile("repeatable", derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Tests that one process of `make test` takes, one after the other, while the others do the rest. Runs of whole clusters
# wait more than they compute, and are at their best when no other cluster runs beside them; the others share what is
# dear to start, and what they do with this machine.
TOGETHER = {
    "tests/backends/test_backends_real.py::test_kill": "clusters",  # `heal` there would clean up before they do
    "tests/backends/test_backends_real.py::test_owner": "clusters",
    "tests/backends/test_backends_real": "hosts",
    "tests/backends/test_disk_machines": "hosts",
    "tests/e2e/": "clusters",
    "tests/systems/": "systems",
    "tests/test_wheel": "systems",
    "tests/ssh/test_ssh_backend": "hosts",
    "tests/checkers/test_check_spark": "spark",
    "tests/checkers/test_linearizable.py::test_spark": "spark",
    "tests/reports/test_report_browser": "browser",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: tests of real processes wait as much as they compute."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As ``suite_groups`` says."""
    from suite_groups import Groups

    return Groups(config, log, TOGETHER)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that the others report to
        config.pluginmanager.register(Outcomes())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun behind a shell's &, and inherited by what tests start
        signal.signal(signal.SIGINT, signal.default_int_handler)


@functools.cache
def rows_of_clauses() -> dict[str, set[str]]:
    """Test, or parametrised test without its brackets -> the rows of which it proves a clause."""
    table = tomllib.loads((Path(__file__).parents[1] / "docs" / "requirements.toml").read_text(encoding="utf-8"))
    found: dict[str, set[str]] = {}
    for row, clauses in table.items():
        for test in (test for proof in clauses.values() if isinstance(proof, list) for test in proof):
            found.setdefault(test, set()).add(row)
    return found


def mark_clauses(item: pytest.Item) -> None:
    """Have a test carry the rows of which docs/requirements.toml names it for a clause."""
    named = rows_of_clauses()
    rows = named.get(item.nodeid, set()) | named.get(item.nodeid.partition("[")[0], set())
    for row in sorted(rows - {mark.args[0] for mark in item.iter_markers("requirement")}):
        item.add_marker(pytest.mark.requirement(row, part=True))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Soak tests run only when asked for by ``-m soak``."""
    for item in items:
        mark_clauses(item)
    if "soak" not in (config.option.markexpr or ""):
        kept = [item for item in items if not item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    path = os.environ.get("STORMPROOF_COLLECTED")
    if path:
        with Path(path).open("w") as file:
            for item in items:
                for mark in item.iter_markers("requirement"):
                    file.write(f"{mark.args[0]}\t{mark.kwargs.get('part', False)}\t{item.nodeid}\n")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs Docker's engine where none answers, whether or not the client is installed."""
    if item.get_closest_marker("docker") and (reason := why_no_docker()):
        pytest.skip(reason)


@functools.cache
def why_no_docker() -> str | None:
    """Return why Docker's engine can't be used, None where it can."""
    try:
        docker.from_env(timeout=5).close()
    except DockerException as error:
        return f"no Docker engine answers: {error}"
    return None


class Outcomes:
    """What came of the tests that prove a requirement, those of other processes as well.

    The cache of this machine keeps all of them. Those of soak tests also go to the file that the variable
    STORMPROOF_RECORD names, after each test: a soak that is ended by force has its record.
    """

    def __init__(self) -> None:
        self.fresh: dict[str, Outcome] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "requirement" not in report.keywords or not (report.when == "call" or report.outcome != "passed"):
            return
        self.fresh[report.nodeid] = outcome_now(report.outcome)
        record = os.environ.get("STORMPROOF_RECORD")
        if record and "soak" in report.keywords:
            write_record(Path(record), {report.nodeid: self.fresh[report.nodeid]})

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        cache = getattr(session.config, "cache", None)  # not there with -p no:cacheprovider
        if cache is not None and self.fresh:
            cache.set(OUTCOMES, newer(cache.get(OUTCOMES, {}), self.fresh))


@pytest.fixture(scope="session")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshTestHosts]:
    """Six hosts with sshd on this machine."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with running_hosts(tmp_path_factory.mktemp("hosts"), 6) as hosts:
        yield hosts
