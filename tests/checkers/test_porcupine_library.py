"""porcupine-py is a library of its own: its tests pass, alone, and it needs nothing of Stormproof."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.tools.bench.__main__ import porcupine_figures

LIBRARY = Path(__file__).resolve().parents[2] / "checkers" / "porcupine-py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in the library's folder, with only the library beside what is installed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "STORMPROOF"))}
    environment["PYTHONPATH"] = str(LIBRARY)
    return subprocess.run(
        [sys.executable, *arguments], cwd=LIBRARY, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.requirement("H13")
@pytest.mark.timeout(900)
def test_its_own_tests_pass() -> None:
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.requirement("H13", part=True)
def test_it_stands_alone() -> None:
    project = tomllib.loads((LIBRARY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert sorted(name.split(">")[0] for name in project["dependencies"]) == ["numba", "numpy"]
    code = (
        "import sys, porcupine\n"
        "found = porcupine.check_queue_columns([0, 1, 1], [7, 7, 7], [0, 2, 4], [1, 3, 5], unordered=True)\n"
        "print(found.verdict.value, *{'harness', 'checkers', 'pyarrow', 'pandas', 'pyspark'} & set(sys.modules))"
    )
    done = run("-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "illegal"), done.stderr


def test_its_figures_are_among_the_projects() -> None:
    figures = list(porcupine_figures(0.05))
    assert len(figures) > 8
    assert any("FIFO" in name for name, _, _ in figures) and any("illegal" in name for name, _, _ in figures)
