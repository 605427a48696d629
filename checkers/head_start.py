"""Runs that are judged while Spark starts, by a fork of the fork server: until then the other cores have nothing to do.

What it has judged is left out of the Spark job. It takes small runs only, the smallest first, so that nobody waits for
it long; where it dies, or there is none, all runs are the job's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers import memory
from checkers.forks import ask, has_begun
from checkers.job import VERDICT_ROWS, check_and_store, demand_mounted
from checkers.judged import digest_of_checks
from checkers.large_runs import decomposes, history_size
from checkers.memory import budget_of
from stormproof.history import bounds

MOST_BYTES = 2 << 20
"""Of a history that is judged so: a tenth of a second."""
GRACE = 5.0
"""Seconds that it has for the run at which it is, and to hand over what it has judged."""
MOST_RUNS = 2000
"""That are named to the fork; it never comes so far."""


class HeadStart:
    """What is judged ahead, from when this is made until ``stop``.

    Args:
        place: where the fork server listens.
        environ: the variables of whoever judges.
    """

    def __init__(self, run_dirs: Sequence[Path], place: Path, environ: Mapping[str, str]) -> None:
        self._server: socket.socket | None = None
        sizes = {run: history_size(run) for run in run_dirs}
        small = sorted((run for run, size in sizes.items() if size <= MOST_BYTES), key=lambda run: sizes[run])
        with contextlib.suppress(OSError), Path(os.devnull).open("r+b") as nowhere:
            named = [str(run) for run in small[:MOST_RUNS]]
            told = {"judge": named, "digest": digest_of_checks()}
            self._server = ask(str(place), told, [nowhere.fileno()] * 3, environ)

    def stop(self) -> pa.Table:
        """End it when it has finished with the run at which it is; the rows of those that it has judged."""
        server, self._server = self._server, None
        if server is None:
            return VERDICT_ROWS.empty_table()
        with server:
            try:
                server.shutdown(socket.SHUT_WR)
                server.settimeout(GRACE)
                if has_begun(server):
                    with server.makefile("rb") as told, pa.ipc.open_stream(told) as rows:
                        return rows.read_all()
            except (OSError, pa.ArrowInvalid):
                pass  # it has died, or hangs
        return VERDICT_ROWS.empty_table()


def judge(run_dirs: Sequence[Path], digest: str, asking: socket.socket) -> None:
    """Judge runs until whoever asked has had enough, or is gone; then send their rows. ``digest`` is that of the checks
    which the job will have.

    Those of which the judging may take long are left out, however small they are: searches for a proof.
    """
    pa.set_cpu_count(1)  # the JVM needs the others
    bounds.set_max_history(os.environ.get(bounds.VARIABLE))
    budget = budget_of(secrets.token_hex(8), os.environ.get(memory.VARIABLE))
    rows: list[dict[str, Any]] = []
    stores: set[Path] = set()
    for run_dir in run_dirs if digest == digest_of_checks() else ():
        if select.select([asking], [], [], 0)[0]:
            break
        if decomposes(run_dir):
            if run_dir.parent not in stores:
                demand_mounted(run_dir.parent)
                stores.add(run_dir.parent)
            rows.append(check_and_store(run_dir, budget=budget))
    with contextlib.suppress(OSError), asking.makefile("wb") as told, pa.ipc.new_stream(told, VERDICT_ROWS) as stream:
        stream.write_batch(pa.RecordBatch.from_pylist(rows, VERDICT_ROWS))
