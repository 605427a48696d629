"""Removes what a run left on this machine when its harness was killed: containers, networks, data folders.

A harness holds its run folder's ``lock`` file with flock(2) for as long as it lives, and what a run makes carries
the path of its run folder: what belongs to a lock that is held is alive and stays.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from pathlib import Path

from harness.backends.scratch import remove_scratch, scratch_folders
from harness.errors import StormproofError
from harness.store import is_alive

_API_LIMIT_S = 30


def cleanup(run_ids: Collection[str] | None = None, own: bool = False) -> list[str]:
    """Remove what dead runs left, of all runs or of those named; one line for each thing removed.

    ``own``: the caller is these runs' harness, so their locks, which it holds itself, do not protect them.
    Blocks; does nothing about containers where no Docker daemon answers.
    """

    def doomed(run_dir: Path) -> bool:
        if run_ids is not None and run_dir.name not in run_ids:
            return False
        return (own and run_ids is not None) or not _may_be_alive(run_dir)

    removed = []
    for folder, run_dir in scratch_folders():
        if doomed(run_dir):
            remove_scratch(folder)
            removed.append(f"folder {folder}")
    return removed + _clean_docker(doomed)


def _may_be_alive(run_dir: Path) -> bool:
    try:
        return is_alive(run_dir)
    except StormproofError:
        return True  # somebody else's run, whose folder can't be read

def _clean_docker(doomed: Callable[[Path], bool]) -> list[str]:
    import docker  # here, because a fifth of a second is much for who only wants `local`
    from docker.errors import DockerException

    from harness.backends.docker import LABEL_DIR, LABEL_HOST, remove_run

    # A harness elsewhere may share this daemon; whether it is alive can only be seen there.
    ours = {"label": [LABEL_DIR, f"{LABEL_HOST}={socket.gethostname()}"]}
    removed = []
    try:
        client = docker.from_env(timeout=_API_LIMIT_S)
        try:
            found = [*client.api.containers(all=True, filters=ours), *client.api.networks(filters=ours)]
            runs = sorted({Path(thing["Labels"][LABEL_DIR]) for thing in found})
            for run_dir in filter(doomed, runs):
                removed += remove_run(client, run_dir.name)
        finally:
            client.close()
    except DockerException:
        return removed
    return removed
