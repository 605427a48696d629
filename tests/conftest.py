"""Remembers the last outcome of every test that proves a requirement, for ``make requirements``; hosts with sshd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.bench.farm import Farm, running_farm, why_not

OUTCOMES = "stormproof/outcomes"

# Runs of whole clusters wait more than they compute, and are at their best when no other cluster runs beside them: one
# process of `make test` takes these, one after the other, while the others do the rest.
CLUSTERS = "clusters"
CLUSTER_FOLDERS = ("backends", "e2e", "ssh")
# What else is for one process: these fixtures cost more than the tests that share them.
SHARED_FIXTURES = {"spark": "spark", "shared_broker": "broker", "browser": "browser"}


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that the others report to
        config.pluginmanager.register(Outcomes())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Soak tests run only when asked for by ``-m soak``; tests that share something go to the same process."""
    if "soak" not in (config.option.markexpr or ""):
        kept = [item for item in items if not item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    for item in items:
        if group := _group(item):
            item.add_marker(pytest.mark.xdist_group(group))
    path = os.environ.get("STORMPROOF_COLLECTED")
    if path:
        with Path(path).open("w") as file:
            for item in items:
                for mark in item.iter_markers("requirement"):
                    file.write(f"{mark.args[0]}\t{mark.kwargs.get('part', False)}\t{item.nodeid}\n")


def _group(item: pytest.Item) -> str | None:
    if item.path.parent.name in CLUSTER_FOLDERS:
        return CLUSTERS
    fixtures = getattr(item, "fixturenames", ())
    return next((group for fixture, group in SHARED_FIXTURES.items() if fixture in fixtures), None)


def _as_collected(nodeid: str) -> str:
    """Without the group that pytest-xdist writes behind the name of a test."""
    return nodeid.rpartition("@")[0] if nodeid.rfind("@") > nodeid.rfind("]") else nodeid


class Outcomes:
    """What came of the tests that prove a requirement, those of other processes as well."""

    def __init__(self) -> None:
        self.fresh: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "requirement" in report.keywords and (report.when == "call" or report.outcome != "passed"):
            self.fresh[_as_collected(report.nodeid)] = report.outcome

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        cache = session.config.cache
        if cache is not None and self.fresh:
            cache.set(OUTCOMES, {**cache.get(OUTCOMES, {}), **self.fresh})


@pytest.fixture(scope="session")
def ssh_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """Six hosts with sshd on this machine."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with running_farm(tmp_path_factory.mktemp("farm"), 6) as farm:
        yield farm
