"""Builds and downloads of tests, by Maven and Go."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BUILD_SECONDS = 600
MAVEN = ["mvn", "-q", "-B"]
COPY = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
_UNREACHABLE = ("dial tcp", "no such host", "Could not transfer", "No plugin found for prefix")
"""Words of Go and Maven without a network; the last is Maven's when it can't look for a plugin at all."""


def build(command: list[str], folder: Path) -> None:
    """Run a build; skips the test where its program or registry is missing."""
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    text = done.stdout + done.stderr
    if done.returncode and (line := next((each for each in text.splitlines() if any(word in each for word in
                                                                                    _UNREACHABLE)), "")):  # fmt: skip
        pytest.skip(f"its registry can't be reached: {line.strip()[:300]}")
    assert done.returncode == 0, text
