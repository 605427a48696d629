"""The fork server that ``stormproof check`` starts before it is imported itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from checkers.spark import session as spark
from checkers.synthetic import write_store
from harness.cli import early

pytestmark = pytest.mark.requirement("H9")


@pytest.mark.parametrize(("words", "expected"), [
    (["check", "--all"], 1), (["check"], 1), (["check", "--all", "--master", "spark://host:7077"], 0), ([], 0),
    (["check", "--master=local[*]"], 0), (["check", "--help"], 0), (["list", "check"], 0), (["--version"], 0),
])  # fmt: skip
def test_only_a_check_of_this_machine_starts_it(
    words: Sequence[str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(spark, "start_fork_server", lambda: begun.append(1))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    early.begin(words)
    assert len(begun) == expected
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    early.begin(words)
    assert len(begun) == expected, "the one core has enough to do"


@pytest.fixture
def folder() -> Iterator[Path]:
    """One whose name is short: a socket's path holds some hundred bytes, and without a socket there is no server."""
    with tempfile.TemporaryDirectory(prefix="early-", dir="/tmp") as name:
        yield Path(name)


def servers(folder: Path) -> list[int]:
    """The fork servers whose temporary folder that is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (b"checkers.spark.fork_server" in (process / "cmdline").read_bytes()
                    and f"TMPDIR={folder}".encode() in (process / "environ").read_bytes().split(b"\0")):  # fmt: skip
                found.append(int(process.name))
        except OSError:  # it has ended, or is none of ours
            pass
    return found


def check(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "stormproof", "check", *words], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(folder)})  # fmt: skip


def test_a_command_that_comes_to_nothing_leaves_nothing(folder: Path) -> None:
    process = check(folder, "nowhere", "--store", str(folder / "none"))
    _, told = process.communicate(timeout=60)
    assert process.returncode == 3 and len(told.splitlines()) == 1
    assert servers(folder) == [] and list(folder.iterdir()) == []


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_a_command_that_is_ended_while_it_is_imported(
    folder: Path, tmp_path: Path, by: signal.Signals
) -> None:
    list(write_store(tmp_path, 2, 200))
    process = check(folder, "--all", "--store", str(tmp_path))
    deadline = time.monotonic() + 60
    while not servers(folder):
        assert process.poll() is None and time.monotonic() < deadline
    process.send_signal(by)
    process.communicate(timeout=60)
    while servers(folder):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_judges_needs_no_pandas(tmp_path: Path) -> None:
    """Arrow looks for it; the verdicts are the same without."""
    store = tmp_path / "runs"
    expected = [defects.verdict for _, defects in write_store(store, 6, 200)]
    code = ("import sys; from pathlib import Path; from checkers.spark.head_start import _NoPandas; "
            "sys.meta_path.insert(0, _NoPandas()); from checkers.spark.job import VERDICT_ROWS, check_and_store; "
            "import pyarrow as pa; "
            "rows = pa.RecordBatch.from_pylist([check_and_store(run) for run in sorted(Path(sys.argv[1]).iterdir())], "
            "VERDICT_ROWS).to_pylist(); "
            "print(*(row['verdict'] for row in rows), 'pandas' in sys.modules)")  # fmt: skip
    told = subprocess.run([sys.executable, "-c", code, str(store)], capture_output=True, text=True, check=True).stdout
    assert told.split() == [*expected, "False"]
