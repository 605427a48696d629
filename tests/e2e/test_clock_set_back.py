"""The time of day of the harness, and of the nodes, is set back by an hour in the middle of a run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from command import STORMPROOF, await_fault, left_behind, only_run, run_info

from stormproof.history.ledger import read_ledger, read_standstills

LOAD = ["--nemesis", "kill,partition", "--time-limit", "10", "--rate", "60", "--seed", "7", "--set", "min_ok=20"]
SETS_BACK = r'''
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long back(void) {
  static int set;
  const char *sign = getenv("SETS_BACK");
  if (!set && sign && access(sign, F_OK) == 0) set = 1;
  return set ? 3600 : 0;
}
int clock_gettime(clockid_t clock, struct timespec *found) {
  int status = syscall(SYS_clock_gettime, clock, found);
  if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec -= back();
  return status;
}
int gettimeofday(struct timeval *found, void *zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  found->tv_sec = now.tv_sec, found->tv_usec = now.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *found) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (found) *found = now.tv_sec;
  return now.tv_sec;
}
'''


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", [
    ["--system", "joram", "--workload", "queue", "--set", "idle_timeout=1"],
    ["--system", "icestorm", "--workload", "subscriptions"],
], ids=lambda words: words[1])
def test_a_clock_that_is_set_back_changes_no_verdict(tmp_path: Path, words: list[str]) -> None:
    store, sign, library = tmp_path / "store", tmp_path / "back", tmp_path / "back.so"
    (tmp_path / "back.c").write_text(SETS_BACK)
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(tmp_path / "back.c")], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library), "SETS_BACK": str(sign)}
    store.mkdir()
    with (store / "out").open("w") as out:
        command = [*STORMPROOF, "test", "--backend", "local", "--store", str(store), *words, *LOAD]
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    try:
        run = await_fault(store)
        sign.touch()
        status = process.wait(250)
    finally:
        process.terminate()  # which does nothing to one that has ended
    output = (store / "out").read_text()
    assert status == 0, output
    info, verdict = run_info(run), json.loads((run / "verdict.json").read_text())
    assert run == only_run(store) and verdict["verdict"] == "valid" and info["failure"] is None
    # The clock did jump: what was written last is from an hour before what was written first.
    written = [datetime.fromisoformat(line.split()[1]) for log in (run / "logs").glob("*.log")
               for line in log.read_text().splitlines() if line[:1].isdigit()]
    began = datetime.fromisoformat(info["started"])
    assert began <= max(written) < began + timedelta(minutes=10) and min(written) < began - timedelta(minutes=45)
    windows = read_ledger(run / "ledger.jsonl")
    assert windows and all(window.confirmed and window.end and window.start < window.end for window in windows)
    assert read_standstills(run / "ledger.jsonl") == []
    again = subprocess.run([*STORMPROOF, "check", run.name, "--store", str(store)], capture_output=True, text=True,
                           env=environment, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert left_behind(run) == [] and (run / "report.html").stat().st_size > 10_000
