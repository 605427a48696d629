"""States of interest of a cluster of qpid brokers, and the role changes in their logs."""

from __future__ import annotations

import itertools

from nodes.systems.reference.log_events import BOOT, BROKER_STATES, EventLine, NodeLogs, State, broken_off, logged
from stormproof.contracts.system import RoleChange, StateTransfer

_CONNECTING, _CATCHUP, _READY, _PRIMARY, _STOPPED = "connecting", "catchup", "ready", "primary", "stopped"


def role_change(line: EventLine) -> RoleChange | None:
    """Parse a log line about a broker's state; None for other lines."""
    if line.event not in (_CONNECTING, _CATCHUP, _READY, _PRIMARY, _STOPPED):
        return None
    serving = line.event in (_READY, _PRIMARY)
    return RoleChange(line.event, f"generation {line.fields.get('generation', '?')}", serving,
                      leads=line.event == _PRIMARY)


def state_transfer(line: EventLine) -> StateTransfer | None:
    """Parse the log line of a backup that has begun to catch up."""
    if line.event != _CATCHUP or "primary" not in line.fields:
        return None
    return StateTransfer(line.fields["primary"], "", f"generation {line.fields.get('generation', '?')}")


def _failovers(logs: NodeLogs) -> int:
    primaries = [line.node for line in logs.of(_PRIMARY)]
    return sum(before != after for before, after in itertools.pairwise(primaries))


def _promoted_from(*states: str) -> State:
    """Return the state of interest that a broker became primary out of one of these states."""
    before = " or ".join(states)

    def count(logs: NodeLogs) -> int:
        found = 0
        last: dict[str, str] = {}
        for line in logs.lines:
            if line.event == _PRIMARY:
                found += last.get(line.node) in states
            if line.event in (_CONNECTING, _CATCHUP, _READY, _PRIMARY):
                last[line.node] = line.event
            elif line.event == BOOT:
                last.setdefault(line.node, _CONNECTING)
        return found

    return State(f"promoted-from-{before}", f"a {before} broker became primary", count)


def _nonzero(value: str) -> bool:
    return value not in ("", "0")


STATES = (
    State("failover", "a different broker became primary", _failovers),
    _promoted_from(_READY),
    _promoted_from(_CONNECTING),
    State("caught-up", "a backup had caught up", logged(_READY)),
    State("catch-up-broken-off", "a catch-up restarted, or a broker's restart ended it", broken_off(_CATCHUP, _READY)),
    State("caught-up-with-another", "a backup that was not restarted caught up with a new primary",
          logged("backup attached", queues=_nonzero)),
    State("queue-reset", "a backup was ahead of a new primary and had to reset its queue (LM1)", logged("queue reset")),
    State("backup-given-up", "a backup that did not catch up was excluded", logged("backup given up")),
    State("backup-not-awaited", "a new primary stopped waiting for a backup", logged("backup no longer awaited")),
    State("primary-lost", "a backup lost its primary", logged(_CONNECTING, lost=bool)),
    State("stepped-down", "a primary gave way to a newer one", logged(_CONNECTING, why=bool)),
    State("dirty-store", "a broker was started from a dirty store", logged(_CONNECTING, store="dirty")),
    State("clean-store", "a broker was started from a clean store", logged(_CONNECTING, store="clean")),
    State("no-quorum", "a broker ended because its manager had no quorum",
          logged("no quorum: the manager's lease ran out")),
    State("shut-down", "the whole cluster was shut down in an orderly way", logged(_STOPPED, generation=bool)),
    State("carried-on", "a backup whose store failed carried on in memory",
          logged("store failed; carrying on in memory")),
    State("stood-still", "a broker noticed that it had been paused", logged("process stalled")),
    *BROKER_STATES,
)  # fmt: skip
