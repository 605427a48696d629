"""Evidence that a fault of disks or power affected stored data of the system; in the ledger by node, under
``DISKS``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

DISKS = "disks"
FILES, WRITES_TO, UNKNOWN = "files", "writes to", "files not known"
"""For a node: the number of the system's files on the disk that is hit; the other folders to which the node writes; the
reason why the number of files is unknown."""
LOST_BYTES, LOST_AGE = "bytes discarded", "oldest discarded, seconds"
"""For a node whose power was cut: the bytes of the system's unsynced writes that the disk discarded; the age of the
oldest of them."""
STORES_NOTHING, STORES_ELSEWHERE = "stores nothing", "stores elsewhere"
"""The system's declaration why a node without such files stores nothing, or stores nothing on its private disk."""


def in_use(found: Mapping[str, Any]) -> bool:
    """Return whether a loss of power affected the system: a node that was hit had files of the system on its disk, or
    has none there by the system's declaration. In the latter case the end of its processes counts, wherever the store
    is."""
    return any(use.get(FILES) or use.get(STORES_NOTHING) or use.get(STORES_ELSEWHERE) for _, use in _uses(found))


def stores_nothing(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the nodes that were hit and store nothing on their private disks, with the system's reason."""
    for node, use in _uses(found):
        if why := use.get(STORES_NOTHING):
            yield f"{node} stores nothing on its disk: {why}"
        elif why := use.get(STORES_ELSEWHERE):
            yield f"{node} stores nothing on its own disk, the end of its processes counts: {why}"


def unused(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each node on which the fault affected none of the system's files: the reason, and the real
    place of the files."""
    for node, use in _uses(found):
        if use.get(UNKNOWN):
            yield f"nobody can tell what {node} stores on its disk: {use[UNKNOWN]}"
        if use.get(STORES_NOTHING) or FILES not in use:
            continue
        folders = use.get(WRITES_TO)
        beside = ", ".join(map(str, folders)) if isinstance(folders, list | tuple) else ""
        if not use[FILES]:
            declared = f": {use[STORES_ELSEWHERE]}" if use.get(STORES_ELSEWHERE) else ""
            yield (f"{node} wrote nothing to its data folder (machine.data), which the fault hits{declared}"
                   + (f"; it wrote to: {beside}" if beside else ""))  # fmt: skip
        elif beside:
            yield (f"nothing that {node} did with its data folder (machine.data) met the fault; beside that folder it "
                   f"wrote to: {beside}")  # fmt: skip


def _uses(found: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    uses = found.get(DISKS)
    if isinstance(uses, Mapping):
        yield from ((str(node), use) for node, use in uses.items() if isinstance(use, Mapping))
