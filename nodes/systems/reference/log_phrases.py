"""Phrases of the reference broker's logs that states, roles and reports parse, with their former wordings.

A store keeps the logs of old runs. Therefore, a phrase that is reworded keeps its former wordings here, and whoever
parses a log sees the present one.
"""

from __future__ import annotations

from collections.abc import Mapping

PHRASES: Mapping[str, tuple[str, ...]] = {
    # every design
    "client connected": (),
    "client ended": (),
    "duplicate discarded": (),
    "idle connection closed": (),
    "process stalled": ("stood still",),
    "started": (),
    "stopped": (),
    # joram
    "adopting the most complete log": (),
    "candidate deferred": (),
    "catch-up by log": (),
    "collocated connection opened": (),
    "election given up": (),
    "following": (),
    "former collocated connection cleaned": (),
    "joining the group": (),
    "lease expired": (),
    "master lost": (),
    "prepared branch finished": (),
    "promoted: serving as master": (),
    "proposal refused": (),
    "proposing": (),
    "state transfer begin": (),
    "state transfer end": (),
    "stepped down": (),
    "uncommitted tail removed": (),
    "view installed": (),
    # icestorm
    "database transfer": (),
    "delivery failed": (),
    "event dropped": (),
    "group replicates": (),
    "group waits": (),
    "idle client closed": (),
    "members lost": (),
    "replica state": (),
    "subscriber removed": (),
    # qpid
    "backup attached": (),
    "backup given up": (),
    "backup no longer awaited": ("backup not awaited any longer",),
    "no quorum: the manager's lease ran out": (),
    "queue reset": (),
    "store failed; carrying on in memory": (),
    # fiorano
    "disk writes": (),
    "state": (),
    "database refused an older epoch": (),
    "database unreachable": ("database out of reach",),
    "lock granted": (),
    "lock lost": (),
    "lock obtained": (),
    "lock refused": (),
    "synchronisation complete": (),
}
"""Present phrase -> its former wordings."""

PRESENT: Mapping[str, str] = {former: phrase for phrase, formers in PHRASES.items() for former in formers}
"""Former wording -> present phrase."""
