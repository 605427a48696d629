"""What several files of tests need and takes long to get: once a session, for all of its processes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from builds import COPY, MAVEN, build
from kafka_server import POM, form


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
