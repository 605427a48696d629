"""The example of docs/systems.md: a real broker, in a file that anybody can write."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from system_runs import HERE, Ran, backends, run_of

DOCS = HERE.parents[1] / "docs"
EXAMPLE = DOCS / "examples/beanstalkd.py"
REAL = [backend for backend in backends(slow="docker") if backend != "sim"]


def test_the_page_shows_the_file() -> None:
    """Under 100 lines, and the page has them as they are tested."""
    text = EXAMPLE.read_text()
    assert text.count("\n") < 100
    assert f"```python\n{text}```\n" in (DOCS / "systems.md").read_text()


@pytest.mark.requirement("H12", part=True)
@pytest.mark.requirement("H20", part=True)
@pytest.mark.parametrize("backend", REAL)
def test_beanstalkd(tmp_path: Path, backend: str) -> None:
    """With its log on disk it loses nothing when it is killed; without, what was confirmed is lost, and found so."""
    if backend == "local" and not shutil.which("beanstalkd"):
        pytest.skip("beanstalkd is not installed (apt-get install beanstalkd)")

    file = shutil.copy(EXAMPLE, tmp_path / "mine.py")  # as it would lie outside the repository

    def run(durability: str) -> Ran:
        # More senders than takers, so that there is something to lose.
        return run_of(f"{file}:Beanstalkd", tmp_path / durability, backend, "--nemesis", "kill", "--time-limit", "5",
                      "--rate", "100", fault_duration=1, producers=4, consumers=1, durability=durability)  # fmt: skip

    with ThreadPoolExecutor() as pool:
        always, never = pool.map(run, ("always", "never"))
    for ran in (always, never):
        kills = [line for line in ran.faults() if line["phase"] == "inject"]
        assert kills and all(line["fault"] == "kill" and line["proven"] for line in kills), ran.err + ran.out
    assert (always.status, always.verdict["verdict"]) == (0, "valid"), always.err + always.out
    assert (never.status, never.verdict["verdict"]) == (1, "invalid"), never.err + never.out
    assert never.verdict["anomalies"]["lost"] > 0, never.out
