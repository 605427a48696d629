"""``python -m checkers.bench``: how long the checks of many recorded runs take, whole process.

The store is made up (``checkers.synthetic``); what is timed is ``stormproof check --all``, a fresh process that checks
every run, stores the verdicts and sums them up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from checkers.prepare import prepare
from stormproof.errors import EXIT_OF

_SAMPLE_SECONDS = 0.1


@dataclass(frozen=True)
class CheckBench:
    """One measurement.

    ``seconds`` is wall time. ``peak_mb`` is the largest memory (proportional set size, MB) that the process and all its
    descendants held at once.
    """

    runs: int
    events: int
    seconds: float
    peak_mb: float


def measure(runs: int, events: int, store: Path, master: str | None = None) -> CheckBench:
    """Fill an empty store with ``runs`` runs of about ``events`` rows each, and time a check of all of them.

    Spark does the work if a ``master`` is named.

    Raises:
        subprocess.CalledProcessError: the check failed; its reason is on standard error.
    """
    from checkers.synthetic import write_store

    prepare()
    expected = Counter(defects.verdict for _, defects in write_store(store, runs, events))
    begin = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "harness", "check", "--all", "--json", "--store", str(store),
         *(("--master", master) if master else ())],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    peak = Peak(child.pid)
    output, _ = child.communicate()
    seconds = time.perf_counter() - begin
    peak.stop()
    if child.returncode not in EXIT_OF.values():
        raise subprocess.CalledProcessError(child.returncode, child.args)
    counted = Counter(run["verdict"] for run in json.loads(output)["runs"])
    if counted != expected:
        raise RuntimeError(f"wrong verdicts: {dict(counted)} where {dict(expected)} are right")
    return CheckBench(runs, runs * events, seconds, peak.megabytes)


class Peak:
    """Samples the memory and the processor time of a process and its descendants until it is stopped.

    ``megabytes`` is the most that they held at once. ``processor`` is the seconds that they used, without the time
    between a process's last sample and its end.
    """

    def __init__(self, pid: int) -> None:
        self.megabytes = 0.0
        self._ticks: dict[int, int] = {}
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the sampling."""
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(_SAMPLE_SECONDS):
            family = _family(self._pid)
            self.megabytes = max(self.megabytes, sum(map(_proportional_mb, family)))
            self._ticks |= {pid: ticks for pid in family if (ticks := _ticks(pid)) > self._ticks.get(pid, 0)}

    @property
    def processor(self) -> float:
        """Seconds of processor time, of all of them."""
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found, unseen = [], [pid]
    while unseen:
        current = unseen.pop()
        found.append(current)
        # A task may end while its files are read.
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{current}/task").iterdir():
                unseen += map(int, (task / "children").read_text().split())
    return found


def _ticks(pid: int) -> int:
    """Return the processor time of a process in clock ticks; 0 when the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _proportional_mb(pid: int) -> float:
    """Return the memory of a process in MB, with shared pages divided among their users; 0 when the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def main() -> None:
    """Measure and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--events", type=int, default=10_000, help="rows a run")
    parser.add_argument("--master", help="a Spark master, that judges whatever there is")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stormproof-bench-") as folder:
        result = measure(arguments.runs, arguments.events, Path(folder), arguments.master)
    print(
        f"check --all: {result.runs:,} runs, {result.events:,} events: "
        f"{result.seconds:.1f} s whole process, {result.peak_mb:,.0f} MB at most"
    )


if __name__ == "__main__":
    main()
