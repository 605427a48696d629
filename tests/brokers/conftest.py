"""What several files of tests need and takes long to get: once a session, for all of its processes."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest
from builds import COPY, MAVEN, build
from kafka_server import POM, form

STARTED = time.monotonic()
CHANGED, START_FOR = "STORMPROOF_CHANGED", "STORMPROOF_START_TESTS_FOR"
"""Environment variables: changed files, whose brokers come first; seconds after which no more tests are started."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests of brokers whose files changed come first."""
    root = Path(__file__).resolve().parents[2]
    names = {each.stem for folder in ("nodes/systems", "stormproof/clients") for each in (root / folder).iterdir()}
    changed = {name for name in names if name in os.environ.get(CHANGED, "")}
    items.sort(key=lambda item: not any(name in item.nodeid.removeprefix("tests/brokers/") for name in changed))


def pytest_runtest_setup() -> None:
    """Skip a test when the time is over in which tests are started."""
    limit = os.environ.get(START_FOR, "")
    if limit and time.monotonic() - STARTED > float(limit):
        pytest.skip(f"{START_FOR}={limit}: the time for starting tests is over")


@pytest.fixture(scope="session")
def kafka_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kafka's libraries, and the checkpoint with which a node begins; skips the test where Maven or its registry is
    missing."""
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kafka-home"
    home.mkdir(exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "ready").exists():
            (home / "pom.xml").write_text(POM)
            build([*MAVEN, *COPY, f"-DoutputDirectory={home / 'libs'}"], home)
            form(home)
            (home / "ready").touch()
    return home
