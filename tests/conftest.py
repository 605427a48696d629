"""Remembers the last outcome of every test that proves a requirement, for ``make requirements``; hosts with sshd."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import DockerException

from harness.bench.ssh_test_hosts import SshTestHosts, running_hosts, why_not

OUTCOMES = "stormproof/outcomes"

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Soak tests run only when asked for by ``-m soak``."""
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
    """What came of the tests that prove a requirement, those of other processes as well."""

    def __init__(self) -> None:
        self.fresh: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "requirement" in report.keywords and (report.when == "call" or report.outcome != "passed"):
            self.fresh[report.nodeid] = report.outcome

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        cache = getattr(session.config, "cache", None)  # not there with -p no:cacheprovider
        if cache is not None and self.fresh:
            cache.set(OUTCOMES, {**cache.get(OUTCOMES, {}), **self.fresh})


@pytest.fixture(scope="session")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshTestHosts]:
    """Six hosts with sshd on this machine."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with running_hosts(tmp_path_factory.mktemp("hosts"), 6) as hosts:
        yield hosts
