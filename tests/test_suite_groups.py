"""A test that kills its process costs itself, and no other test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = """
import pytest
from suite_groups import Groups

@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return Groups(config, log, {"test_them.py::test_together": "together"})
"""
TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range(20))
def test_each(number):
    if number == 7:
        os._exit(1)

@pytest.mark.parametrize("number", range(5))
def test_together(number):
    assert os.environ.setdefault("WHERE", os.environ["PYTEST_XDIST_WORKER"]) == os.environ["PYTEST_XDIST_WORKER"]
"""


def test_the_others_are_run_where_a_process_dies(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_them.py").write_text(TESTS)
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(Path(__file__).parent)
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "-n", "3", "-p", "no:cacheprovider", str(tmp_path)), check=False,
        capture_output=True, text=True, timeout=100, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert "1 failed, 24 passed" in done.stdout, done.stdout + done.stderr
