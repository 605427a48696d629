"""Notes who leads what while a run goes on, as nodes tell: what a report shows of leadership by queue."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from nodes.timeouts import within
from stormproof.contracts.cluster import Cluster

logger = logging.getLogger(__name__)

SECONDS = 1.0
"""Between an answer and the next question."""
PATIENCE = 3.0
"""Seconds after which a node that does not answer counts as telling nothing."""
MAX_CHANGES = 10_000
"""Of one witness; more would be no picture any more."""


async def watch_leaders(cluster: Cluster, clock: Callable[[], int], path: Path) -> None:
    """Until cancelled: ask each of the cluster's witnesses by itself, so that one in trouble keeps nobody waiting, and
    write a line where it tells something else than before.

    A line has ``time`` (nanoseconds of the run, ``clock``'s), ``witness`` and ``leaders`` (object -> node); these are
    empty where it did not answer. A system whose leaders nobody tells gets no file. What can't be written is missing in
    the report only.
    """
    if not cluster.leader_witnesses:
        return
    try:
        with path.open("a", encoding="utf-8") as file:
            await asyncio.gather(*(_watch(cluster, witness, clock, file) for witness in cluster.leader_witnesses))
    except OSError as error:
        logger.warning("%s can't be written: %s", path, error.strerror)


async def _watch(cluster: Cluster, witness: str, clock: Callable[[], int], file: TextIO) -> None:
    before: Mapping[str, str] | None = None
    changes = 0
    while changes < MAX_CHANGES:
        now = clock()
        told = await _told(cluster, witness)
        if told != before:
            file.write(json.dumps({"time": now, "witness": witness, "leaders": dict(told)}) + "\n")
            file.flush()
            before, changes = told, changes + 1
        await asyncio.sleep(SECONDS)


async def _told(cluster: Cluster, witness: str) -> Mapping[str, str]:
    try:
        async with within(PATIENCE):
            return await cluster.leaders_told(witness)
    except Exception:  # what a node in trouble answers, nobody has reckoned with
        return {}
