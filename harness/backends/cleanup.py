"""Removes what runs of killed harnesses left on this machine: containers, networks, data folders.

Leftovers are removed only if their owner is proven to be dead (``stormproof.process_owner``). Leftovers whose owner is
unknown or may be alive are kept, and reported.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from harness.backends.catalog import BACKENDS
from stormproof.errors import StormproofError
from stormproof.process_owner import ALIVE, Leftover, OwnerState
from stormproof.resource_log import folders
from stormproof.run_folder import is_alive


def cleanup(run_ids: Collection[str] | None = None, own: bool = False, places: Collection[Path] = ()) -> list[str]:
    """Remove the leftovers of dead runs: of all runs, or of those named.

    Returns a line for each object removed, and for each run some of whose objects were kept because their owner may be
    alive.

    With ``own``, this process is responsible for the runs named, so its being alive does not protect their objects.
    ``places`` are further locations of folders, in addition to the one for temporary files. Blocks.
    """
    lines: list[str] = []
    left: dict[tuple[str, str], list[str]] = {}
    found = [*folders(places), *(thing for entry in BACKENDS for thing in BACKENDS.load(entry.name).leftovers())]
    for thing in found:
        if run_ids is not None and thing.run not in run_ids:
            continue
        fate = _fate(thing, own and run_ids is not None)
        try:
            if fate.dead and thing.remove():
                lines.append(f"removed {thing.what}")
        except OSError as error:
            fate = OwnerState(False, f"it can't be removed: {error.strerror or error}")
        if fate.why and not thing.is_gone():
            left.setdefault((thing.run, fate.why), []).append(thing.what)
    return lines + [f"left {', '.join(things)}{f' of run {run}' if run else ''}: {why}; if nobody uses it any more, "
                    "remove it by hand" for (run, why), things in left.items()]


def _fate(thing: Leftover, own: bool) -> OwnerState:
    if thing.owner is None:
        return OwnerState(False, "it does not say whose it is")
    try:
        if not own and thing.run_dir is not None and is_alive(thing.run_dir):
            return ALIVE
    except StormproofError as error:
        return OwnerState(False, str(error))
    return thing.owner.fate(thing.lock, besides={os.getpid()} if own else ())
