"""Removes what a run left on this machine when its harness was killed: containers, networks, data folders.

A harness holds its run folder's ``lock`` file with flock(2) for as long as it lives, and what a run makes carries
the path of its run folder: what belongs to a lock that is held is alive and stays.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from harness.backends.catalog import BACKENDS
from stormproof.errors import StormproofError
from stormproof.run_folder import is_alive


def cleanup(run_ids: Collection[str] | None = None, own: bool = False) -> list[str]:
    """Remove what dead runs left, of all runs or of those named; one line for each thing removed.

    ``own``: the caller is these runs' harness, so their locks, which it holds itself, do not protect them.
    Blocks.
    """

    def doomed(run_dir: Path) -> bool:
        if run_ids is not None and run_dir.name not in run_ids:
            return False
        return (own and run_ids is not None) or not _may_be_alive(run_dir)

    return [line for entry in BACKENDS for line in BACKENDS.load(entry.name).remove_left(doomed)]


def _may_be_alive(run_dir: Path) -> bool:
    try:
        return is_alive(run_dir)
    except StormproofError:
        return True  # somebody else's run, whose folder can't be read
