"""Records the leaders that nodes report during a run. Reports show from it the leadership by queue."""

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
"""Seconds between an answer and the next question."""
ANSWER_SECONDS = 3.0
"""Seconds after which a node that does not answer counts as reporting nothing."""
MAX_CHANGES = 10_000
"""The most changes of one witness. A picture of more would be unreadable."""


async def watch_leaders(cluster: Cluster, clock: Callable[[], int], path: Path) -> None:
    """Ask each of the cluster's witnesses for its leaders, until cancelled, and write a line for each changed answer.
    Each witness has a separate task, so that one in trouble does not delay the others.

    A line has ``time`` (nanoseconds of the run, from ``clock``), ``witness`` and ``leaders`` (object -> node).
    ``leaders`` is empty if the witness did not answer. A system without witnesses gets no file. A line that can't be
    written is missing only in the report.
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
        async with within(ANSWER_SECONDS):
            return await cluster.leaders_told(witness)
    except Exception:  # a node in trouble can answer anything
        return {}
