"""The waits of a replica of HA Joram."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nodes.systems.reference.rules import waits
from stormproof.contracts.wait import Instant, Wait

_PAGE = "docs/designs/joram.md: "
_BEATS = _PAGE + "heartbeat_interval, a fifth of detection_timeout; replicas look at their timers twice in it"
_ELECTION = "election.py: pre-votes, proposals and the adoption of a log, as multiples of detection_timeout"
_INTERVALS = (0.05, 0.15)
"""The intervals that the default campaign draws (``table.DRAWING``); waits are claimed for these and the default."""


def _of_beats(half: Mapping[str, float], intervals: tuple[float, ...], suffix: str = "") -> tuple[Wait, ...]:
    """Return the waits that depend on half of the interval of heartbeats; ``suffix`` tells their names apart."""
    found = (
        Wait("tick-timer", "JoramDesign._tick_forever", half, 0.0, _BEATS,
             "a replica looks after its peers, its lease and its candidacy every {}"),
        *waits.of_links({"detection_timeout": 1}, half, _PAGE + "detection_timeout; links.py: dialled again in half of "
                        "a heartbeat's interval"),
    )  # fmt: skip
    where = {"heartbeat_interval": intervals}
    return tuple(replace(each, name=each.name + suffix, where=where) for each in found)


WAITS = (
    *_of_beats({"detection_timeout": 0.1}, (0.0,)),
    *_of_beats({"heartbeat_interval": 0.5}, _INTERVALS, "-set"),
    Wait("sync-timer", "Leader._synchronise", {"sync_interval": 1}, 0.0,
         _PAGE + "sync_interval, seconds between synchronisations of the replicas",
         "the master brings the other replicas up to date every {}"),
    Instant("favour-until", "_design.election.favoured_until", {"detection_timeout": 0.5}, 0.0, _ELECTION,
            "a replica that would support a candidate supports no other one for {}"),
    Instant("rests-until", "_design.election._rests_until", {"detection_timeout": 1}, 0.0, _ELECTION,
            "a replica that starts with a log promises nothing for {}"),
    Instant("phase-until", "_design.election._deadline", {"detection_timeout": 1}, 0.0, _ELECTION,
            "a candidate waits {} for the answers of the others"),
    Instant("adopting-until", "_design.election._deadline", {"detection_timeout": 10}, 0.0, _ELECTION,
            "a candidate has {} to receive the most complete log"),
    Instant("grace-until", "_design.election._grace", {"detection_timeout": 0.25}, 0.0, _ELECTION,
            "a candidate that has enough answers leaves the others {}"),
    Instant("back-off-until", "_design.election.retry_at", {"detection_timeout": 2}, 0.0, _ELECTION,
            "a candidate that was not elected stands again after {}", 0.0),
    *waits.NETWORKS,
    *waits.WAITS,
    *waits.CONNECTIONS,
)  # fmt: skip
