"""Conclusions from the brokers' statuses: the best store, and the propagation of changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Status = Mapping[str, Any]
"""A broker's status (``Administration.description``)."""
_A = {"empty": "an empty", "clean": "a clean", "dirty": "a dirty"}
Found = Mapping[str, Status | str]
"""For each broker its status, or the reason why there is none."""


def best_store(found: Found) -> str | None:
    """Return the broker whose store is best: the highest generation among those in primary state [Interaction with the
    store]; None when no store is a primary's."""
    primaries = {name: status["store"]["generation"] for name, status in found.items()
                 if not isinstance(status, str) and status["store"]["role"] == "primary"}  # fmt: skip
    return max(primaries, key=lambda name: primaries[name]) if primaries else None


def propagation(primary: str, status: Status, found: Found) -> Iterator[str]:
    """Describe what a primary's backups have: its messages, by its own status, and its configuration changes, by
    theirs.
    """
    behind = [f"{backup} ({state})" for backup, state in status["backups"].items() if state != "ready"]
    yield f"{primary}: propagated to {len(status['backups']) - len(behind)} backups" + (
        f", not yet to {', '.join(behind)}" if behind else "")
    if status["configuration"] is None:
        yield f"{primary}: which changes of the configuration have propagated is not told (LC2b, as documented)"
        return
    have = [backup for backup in sorted(status["backups"]) if _has_all(found.get(backup, ""), status)]
    lack = [backup for backup in sorted(status["backups"]) if backup not in have]
    yield f"{primary}: configuration at change {status['configuration']}, which has propagated to " \
          f"{', '.join(have) or 'no backup'}" + (f", not yet to {', '.join(lack)}" if lack else "")


def _has_all(backup: Status | str, primary: Status) -> bool:
    """Tell whether a backup has all changes of the primary's configuration."""
    known = ("generation", "configuration")
    return not isinstance(backup, str) and all(backup[each] == primary[each] for each in known)


def describe(name: str, status: Status | str) -> str:
    """Describe a broker and its store in one line."""
    if isinstance(status, str):
        return f"{name}: {status}"
    store = status["store"]
    uuid, started = f" ({store['uuid'][:8]})" if store["uuid"] else "", status["started_from"]
    of_shutdown = f" ({started['uuid'][:8]})" if started["state"] == "clean" else ""
    eligible = ", eligible" if status["eligible"] else ""
    place = ", for disaster recovery" if status["disaster"] else ""
    copying = ", part of a copy" if status["copying"] else ""
    error = f"; CRITICAL: its store fails ({store['error']}), it carries on in memory" if store["error"] else ""
    return f"{name}: {status['state']}{eligible}{place}{copying}; store {store['state']}{uuid}, {store['role']}, " \
           f"generation {store['generation']}; started from {_A[started['state']]} store{of_shutdown}{error}"
