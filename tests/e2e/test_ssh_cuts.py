"""Real sshd: connections that are cut in every phase of a run, and a host whose key changes in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from command import Where, on, only_run, run_info

from harness.backends.ssh.keys import make_key
from harness.tools.bench.ssh_test_hosts import SshTestHosts

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400), pytest.mark.requirement("H2", part=True)]

WORDS = ["--system", "joram", "--nemesis", "kill,partition", "--time-limit", "6", "--rate", "100"]
PHASES = ["making the nodes", "starting the brokers", "load and faults", "injected", "healing everything",
          "reading to the end", "reading what is left", "tearing down"]  # fmt: skip
HOSTS = (1, 2, 3)


def sshd(hosts: SshTestHosts, number: int) -> int:
    """The process of a host's sshd, which is the host's first."""
    holder = children(children(hosts.pid)[0])[number - 1]
    return children(holder)[0]


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def cut(hosts: SshTestHosts, *numbers: int) -> int:
    """End the sessions of some hosts, as if somebody had pulled a cable; how many there were."""
    sessions = [pid for number in numbers for pid in children(sshd(hosts, number)) if is_sshd(pid)]
    for pid in sessions:
        for each in [*children(pid), pid]:
            if is_sshd(each):
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
    return len(sessions)


def is_sshd(pid: int) -> bool:
    try:
        return b"sshd" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return False


def change_key(hosts: SshTestHosts, number: int, key: str) -> None:
    """Let sshd go on with another key of its own."""
    write = [*hosts.inside(number), "sh", "-c", "cat > /etc/stormproof/host_key"]
    subprocess.run(write, input=key, text=True, check=True)
    os.kill(sshd(hosts, number), signal.SIGHUP)


def await_line(store: Path, text: str, process: subprocess.Popen[str], limit: float = 90.0) -> bool:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline and process.poll() is None:
        if text in (store / "out").read_text():
            return True
        time.sleep(0.02)
    return text in (store / "out").read_text()


def ended(where: Where, store: Path, process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """The status of a run that was disturbed, and the lines that say why it failed; nothing of it is left."""
    status = process.wait(200)
    output = (store / "out").read_text()
    assert "Traceback" not in output, output
    healed = where.stormproof("heal", "--store", str(store))
    assert healed.returncode == 0, healed.stdout + healed.stderr
    recovered = where.stormproof("recover", "--store", str(store))
    assert recovered.returncode == 0, recovered.stderr
    for run in store.glob("*/run.json"):
        assert where.left_behind(run.parent) == [], (output, healed.stdout)
    return status, [line for line in output.splitlines() if line.startswith("stormproof: ")]


@pytest.fixture
def place(ssh_hosts: SshTestHosts) -> Iterator[Where]:
    yield on("ssh", ssh_hosts)


@pytest.mark.parametrize("numbers", [(2,), HOSTS], ids=["one host", "all hosts"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_connection_that_is_cut_costs_at_most_the_run(place: Where, tmp_path: Path, phase: str,
                                                        numbers: tuple[int, ...]) -> None:
    assert place.hosts is not None
    process = place.start_test(tmp_path, *WORDS)
    try:
        assert await_line(tmp_path, phase, process), (tmp_path / "out").read_text()
        cuts = 0
        for _ in range(8):
            cuts += cut(place.hosts, *numbers)
            time.sleep(0.1)
    finally:
        status, complaints = ended(place, tmp_path, process)
    run = only_run(tmp_path)
    info = run_info(run)
    print(phase, numbers, cuts, status, complaints, info["status"], info["failure"])
    assert cuts and info["status"] in ("recorded", "broken")
    judged = place.stormproof("check", run.name, "--store", str(tmp_path), "--json")
    if status in (0, 2):
        assert judged.returncode == status
    else:
        # Whole runs whose hosts could not be cleaned keep their history, and their verdict.
        assert status == 3 and len(complaints) == 1, (status, complaints)
        assert info["status"] == "recorded" or info["failure"], info
        assert judged.returncode in ((0, 2) if info["status"] == "recorded" else (2, 3)), judged.stdout + judged.stderr


def test_a_host_whose_key_changes_in_the_middle_is_not_talked_to(place: Where, tmp_path: Path) -> None:
    hosts = place.hosts
    assert hosts is not None
    key = (hosts.folder / "n2.hostkey").read_text()
    make_key(tmp_path / "another")
    process = place.start_test(tmp_path / "store", *WORDS)
    try:
        assert await_line(tmp_path / "store", "injected", process)
        change_key(hosts, 2, (tmp_path / "another").read_text())
        cut(hosts, 2)
        status = process.wait(200)
        output = (tmp_path / "store" / "out").read_text()
        told = [line for line in output.splitlines() if "host key" in line]
        assert status == 3 and "Traceback" not in output and len(told) >= 1, output
        run = only_run(tmp_path / "store")
        assert (run / "journal.bin").exists() or (run / "history.parquet").exists()
        healed = place.stormproof("heal", "--store", str(tmp_path / "store"))
        assert "n2" in healed.stdout and "host key" in healed.stdout, healed.stdout + healed.stderr
    finally:
        change_key(hosts, 2, key)
        process.kill()
    status, complaints = ended(place, tmp_path / "store", process)
    assert len(complaints) == 1 and "host key" in complaints[0], complaints
    assert place.stormproof("check", run.name, "--store", str(tmp_path / "store")).returncode in (2, 3)
