"""The example of docs/systems.md: a real broker, in a file that anybody can write."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from system_runs import HERE, Ran, backends, run_of

from harness.backends.disk_control import can_mount

DOCS = HERE.parents[1] / "docs"
EXAMPLE = DOCS / "examples/beanstalkd.py"
REAL = [backend for backend in backends(slow="docker") if backend != "sim"]


def test_the_page_shows_the_file() -> None:
    """At most 70 lines, and the page has them as they are tested."""
    text = EXAMPLE.read_text()
    assert text.count("\n") <= 70
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


@pytest.mark.requirement("H5", part=True)
@pytest.mark.skipif("local" not in REAL, reason="no namespaces here")
@pytest.mark.skipif(not can_mount().available, reason=can_mount().detail)
@pytest.mark.skipif(not shutil.which("beanstalkd"), reason="apt-get install beanstalkd")
def test_a_fault_of_a_disk_that_beanstalkd_does_not_use_proves_nothing(tmp_path: Path) -> None:
    """The run is unknown, and its verdict names the folder in which the log is; in `machine.data` the faults count."""
    inside = EXAMPLE.read_text()
    files = '    def files(self, machine):\n        return {"jobs/README": "the log", "data/README": "unused"}\n\n'
    hook = "    def stores_nothing("
    elsewhere = inside.replace('"-b", machine.data', '"-b", "jobs"').replace(hook, files + hook)
    assert elsewhere.count('"-b", "jobs"') == 1 and files in elsewhere

    def run(name: str, text: str, nemesis: str, **settings: object) -> Ran:
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        return run_of(f"{file}:Beanstalkd", tmp_path / name, "local", "--nemesis", nemesis, "--time-limit", "8",
                      "--rate", "50", fault_duration=1, **settings)  # fmt: skip

    with ThreadPoolExecutor(2) as pool:
        power = pool.submit(run, "power", elsewhere, "power")
        disk = pool.submit(run, "disk", elsewhere, "disk", disk_kind="full")
        used = pool.submit(run, "inside", inside, "power").result()
        memory = pool.submit(run, "memory", inside, "power", durability="never").result()
    for nemesis, ran in (("power", power.result()), ("disk", disk.result())):
        assert (ran.status, ran.verdict["verdict"]) == (2, "unknown"), ran.err + ran.out
        injected = [line for line in ran.faults() if line["phase"] == "inject"]
        assert injected and not any(line["proven"] for line in ran.faults())
        assert f"no proof that these faults took effect: {nemesis}" in ran.out, ran.out
        assert "n1 wrote nothing to its data folder (machine.data), which the fault hits; it wrote to: jobs" in ran.out
        page = (ran.run / "report.html").read_text() if ran.run else ""
        assert "it wrote to: jobs" in page
    assert any(line["proven"] for line in used.faults()), used.err + used.out
    assert "no proof" not in used.out, used.out
    assert any(line["proven"] for line in memory.faults()), memory.err + memory.out
    assert memory.verdict["verdict"] == "valid" or memory.verdict["anomalies"]["lost"], memory.out
    assert memory.run is not None
    assert "n1 stores nothing on its disk: durability=never" in (memory.run / "report.html").read_text()
