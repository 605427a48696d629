"""Clients and hooks of a user's that never return, block, or raise what ends programs: a run always ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from system_runs import HERE, Ran, possible, run_of, stormproof

TOY = f"{HERE / 'misbehaving.py'}:Toy"
REAL = next((name for name in possible() if name != "sim"), None)
QUICK = ("--nodes", "1", "--nemesis", "none", "--time-limit", "4", "--rate", "40")

pytestmark = pytest.mark.skipif(REAL is None, reason="no backend with real machines works here")


def toy(store: Path, way: str, *words: str, **settings: object) -> Ran:
    assert REAL is not None
    return run_of(TOY, store, REAL, *QUICK, *words, way=way, min_ok=10, **settings)


def rows(ran: Ran) -> list[dict[str, object]]:
    assert ran.run is not None
    return list(pq.read_table(ran.run / "history.parquet").to_pylist())


def never_ended(ran: Ran) -> list[str]:
    """Functions of the operations that have no completion."""
    started: dict[object, str] = {}
    for row in rows(ran):
        if row["type"] == 0:
            started[row["process"]] = str(row["f"])
        else:
            started.pop(row["process"], None)
    return list(started.values())


@pytest.mark.requirement("H26", part=True)
@pytest.mark.parametrize("way", ["deaf", "block"])
def test_a_call_that_never_returns_is_left_behind(way: str, tmp_path: Path) -> None:
    """Its operation has no completion, everything else goes on, and the page says so."""
    ran = toy(tmp_path / "runs", way)
    assert ran.status == 0, ran.err + ran.out
    assert "send() did not end within" in ran.out, ran.out
    assert never_ended(ran) == ["enqueue"]
    assert ran.info["abandoned"]["count"] == 1 and ran.info["abandoned"]["first"][0]["f"] == "enqueue"
    assert ran.run is not None
    assert "1 client was abandoned" in (ran.run / "report.html").read_text()


@pytest.mark.requirement("H26", part=True)
def test_what_an_abandoned_consumer_was_given_is_no_proven_loss(tmp_path: Path) -> None:
    """The message that it took and never named is unknown: it may still come to its application."""
    ran = toy(tmp_path / "runs", "deaf-take")
    assert never_ended(ran) == ["dequeue"], ran.out
    assert ran.status == 2 and "takes that named no message may have held" in ran.out, ran.out


@pytest.mark.requirement("H26", part=True)
@pytest.mark.parametrize(("way", "told"), [
    ("exit", "SystemExit: 7"), ("keyboard", "KeyboardInterrupt"), ("recursion", "RecursionError"),
    ("huge", "RuntimeError: \\ud800 \U0001f600 xxx"),
])  # fmt: skip
def test_whatever_a_client_raises_is_one_unknown_operation(way: str, told: str, tmp_path: Path) -> None:
    ran = toy(tmp_path / "runs", way)
    assert ran.status == 0, ran.err + ran.out
    assert told in ran.out and "first error of its kind: enqueue" in ran.out, ran.out
    unknown = [row for row in rows(ran) if row["type"] == 3]
    assert [row["f"] for row in unknown] == ["enqueue"] and never_ended(ran) == []
    assert len(str(unknown[0]["error"])) < 1000


@pytest.mark.requirement("H26", part=True)
def test_clients_that_can_not_be_closed_keep_nobody(tmp_path: Path) -> None:
    ran = toy(tmp_path / "runs", "deaf-close")
    assert ran.status == 0, ran.err + ran.out
    assert "close() did not end within" in ran.out


@pytest.mark.requirement("H26", part=True)
@pytest.mark.parametrize(("way", "told"), [
    ("exit-command", "command() failed: SystemExit: 7"), ("deaf-prepare", "preparing it took too long"),
    ("block-status", "Toy.status() "),
])  # fmt: skip
def test_a_hook_that_never_returns_ends_the_run_with_a_line(way: str, told: str, tmp_path: Path) -> None:
    ran = toy(tmp_path / "runs", way, *(["--nemesis", "kill"] if way == "block-status" else []))
    assert ran.status == 3, ran.out + ran.err
    (line,) = [line for line in ran.err.splitlines() if told in line]
    assert "misbehaving.py:" in line or way == "deaf-prepare"
    assert "Traceback" not in ran.err
    assert ran.info["status"] == "broken"


@pytest.mark.requirement("H26", part=True)
def test_a_health_hook_that_exits_leaves_a_verdict(tmp_path: Path) -> None:
    """The cluster counts as not healthy, with the reason, and what was recorded is judged."""
    ran = toy(tmp_path / "runs", "exit-healthy", settle_timeout=2)
    assert ran.status == 2, ran.out + ran.err
    assert "healthy() failed: SystemExit: 7" in ran.out and "misbehaving.py:" in ran.out


@pytest.mark.requirement("H26", part=True)
def test_nothing_is_left_of_a_harness_that_is_killed_with_such_a_client(tmp_path: Path) -> None:
    """``kill -9`` while a client is deaf: the child ends by itself, and ``heal`` finds nothing that stays."""
    assert REAL is not None
    store = tmp_path / "runs"
    argv = [sys.executable, "-m", "harness", "test", "--system", TOY, "--backend", REAL, "--store", str(store),
            "--nodes", "1", "--nemesis", "none", "--time-limit", "60", "--rate", "40", "--set", "way=deaf"]  # fmt: skip
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out, text=True)
    until = time.monotonic() + 100
    while "abandoned" not in (tmp_path / "out").read_text():
        assert time.monotonic() < until and process.poll() is None, (tmp_path / "out").read_text()
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (run,) = (path.parent for path in store.glob("*/run.json"))
    stormproof("heal", "--store", str(store))
    while (left := _processes_of(run.name)) and time.monotonic() < until + 60:
        time.sleep(0.5)
    stormproof("heal", "--store", str(store))
    assert not left, left


def _processes_of(name: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if name in words:
            found.append(words)
    return found
