"""Remembers the last outcome of every test that proves a requirement, for ``make requirements``; hosts with sshd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.bench.farm import Farm, running_farm, why_not

OUTCOMES = "stormproof/outcomes"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_KEY] = {}


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    report = yield
    if item.get_closest_marker("requirement"):
        outcomes = item.config.stash[_KEY]
        if report.when == "call" or report.outcome != "passed":
            outcomes[item.nodeid] = report.outcome
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    cache = session.config.cache
    fresh = session.config.stash[_KEY]
    if cache is not None and fresh:
        cache.set(OUTCOMES, {**cache.get(OUTCOMES, {}), **fresh})


@pytest.fixture(scope="session")
def ssh_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """Six hosts with sshd on this machine."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with running_farm(tmp_path_factory.mktemp("farm"), 6) as farm:
        yield farm


_KEY: pytest.StashKey[dict[str, str]] = pytest.StashKey()
