"""Systems in a file of one's own under the workloads of registers and locks: a real Redis, a real beanstalkd."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from system_runs import HERE, Ran, run_of

EXAMPLES = HERE.parents[1] / "docs" / "examples"
REDIS, BEANSTALKD = EXAMPLES / "redis_values.py", EXAMPLES / "beanstalkd.py"


def kill(file: Path, system: str, folder: Path, workload: str, **settings: object) -> Ran:
    """A run in which the program is killed."""
    return run_of(f"{file}:{system}", folder, "local", "--workload", workload, "--nemesis", "kill",
                  "--time-limit", "10", "--rate", "60", "--seed", "2", **settings)  # fmt: skip


def test_the_page_names_the_file_which_is_short() -> None:
    assert REDIS.read_text().count("\n") < 80
    assert "examples/redis_values.py" in (EXAMPLES.parent / "systems.md").read_text()


@pytest.mark.soak
@pytest.mark.requirement("H27", part=True)
@pytest.mark.skipif(not shutil.which("redis-server"), reason="apt-get install redis-server")
def test_registers_of_redis(tmp_path: Path) -> None:
    """What is on disk before it is confirmed lasts; what is in memory alone is forgotten at a kill."""
    always = kill(REDIS, "Redis", tmp_path / "always", "register")
    never = kill(REDIS, "Redis", tmp_path / "never", "register", durability="never")
    assert always.verdict["verdict"] == "valid", always.err + always.out
    assert never.verdict["verdict"] == "invalid" and never.verdict["anomalies"]["register"], never.err + never.out


@pytest.mark.soak
@pytest.mark.requirement("H27", part=True)
@pytest.mark.skipif(not shutil.which("redis-server"), reason="apt-get install redis-server")
def test_a_lease_in_redis_with_fencing_and_without(tmp_path: Path) -> None:
    """Holders stand still for longer than a lease: what they write then is refused, or updates are lost."""
    fenced = kill(REDIS, "Redis", tmp_path / "fenced", "lease", holders="stalling")
    unsafe = kill(REDIS, "Redis", tmp_path / "unsafe", "lease", holders="stalling", refuse_old_tokens="false")
    checks = {check["check"]: check["verdict"] for check in fenced.verdict["checks"]}
    assert checks["lost-update"] == "valid", fenced.err + fenced.out
    assert unsafe.verdict["verdict"] == "invalid" and unsafe.verdict["anomalies"]["lost-update"], unsafe.out


@pytest.mark.soak
@pytest.mark.requirement("H27", part=True)
@pytest.mark.skipif(not shutil.which("beanstalkd"), reason="apt-get install beanstalkd")
def test_a_lock_of_beanstalkd(tmp_path: Path) -> None:
    ran = kill(BEANSTALKD, "Beanstalkd", tmp_path, "lock")
    assert ran.verdict["verdict"] == "valid", ran.err + ran.out
