"""States of interest of a pair of fiorano servers, and the role changes in their logs."""

from __future__ import annotations

import itertools

from nodes.reference.designs.fiorano.gateway.grants import ANY, LockRecord, Take, is_up_to_date
from nodes.reference.designs.fiorano.states import (
    ACTIVATING,
    ACTIVE,
    ACTIVE_TRANSITION,
    PASSIVE,
    PASSIVE_TRANSITION,
    SERVING,
    STANDALONE,
    WAITING,
)
from nodes.reference.designs.fiorano.tally import EVENT as DISK_WRITES
from nodes.systems.reference.log_events import BROKER_STATES, EventLine, NodeLogs, State, logged
from stormproof.contracts.system import DiskWrites, Grant, RoleChange, StateTransfer

STATE = "state"
"""The event of a state change; ``present`` and ``previous`` name the states."""


def role_change(line: EventLine) -> RoleChange | None:
    """Parse a log line about a state change; None for other lines."""
    if line.event != STATE or "present" not in line.fields:
        return None
    state = line.fields["present"]
    serving = state in SERVING
    return RoleChange(state, f"epoch {line.fields.get('epoch', '?')}", serving or state == PASSIVE, leads=serving)


def state_transfer(line: EventLine) -> StateTransfer | None:
    """Parse the end of a synchronisation, logged by the server that was synchronised."""
    if line.event != "synchronisation complete" or "counter" not in line.fields:
        return None
    return StateTransfer("its peer", "", f"up to change {line.fields['counter']}")


def grant(line: EventLine) -> Grant | None:
    """Parse the gateway's log line about a lock that it has granted to a server."""
    if line.event != "lock granted":
        return None
    try:
        epoch, low, own, other, before = (int(line.fields[name])
                                          for name in ("epoch", "repository", "own", "other", "before"))
        to, last, leased = (line.fields[name].removeprefix("-") for name in ("holder", "last", "leased"))
    except (KeyError, ValueError):
        return None  # a line of an earlier release
    fresh = is_up_to_date(LockRecord(before, last), to, Take(low, own, other, epoch))
    return Grant(to, f"epoch {epoch}", "" if low == ANY else f"epoch {low}", last, f"epoch {before}", not fresh,
                 tuple(name for name in leased.split(",") if name))


def disk_writes(line: EventLine) -> DiskWrites | None:
    """Parse the number of disk writes so far of a server or of the shared database's service."""
    if line.event != DISK_WRITES or not line.fields.get("writes", "").isdecimal():
        return None
    return DiskWrites(*(int(text) if text.isdecimal() else 0
                        for text in (line.fields.get(name, "") for name in ("writes", "changes", "messages"))))


def _changed(previous: str, present: str) -> State:
    name = f"{previous}-to-{present}".lower().replace("_", "-")
    return State(name, f"a server that was {previous} became {present}",
                 logged(STATE, previous=previous, present=present))


def _moved(logs: NodeLogs) -> int:
    serving = [line.node for line in logs.of(STATE) if line.fields.get("present") in SERVING]
    return sum(before != after for before, after in itertools.pairwise(serving))


STATES = (
    State("failover", "a different server began to serve", _moved),
    _changed(WAITING, ACTIVE_TRANSITION),
    _changed(WAITING, PASSIVE_TRANSITION),
    _changed(WAITING, STANDALONE),
    _changed(ACTIVE_TRANSITION, ACTIVE),
    _changed(ACTIVE_TRANSITION, STANDALONE),
    _changed(ACTIVE_TRANSITION, WAITING),
    _changed(PASSIVE_TRANSITION, PASSIVE),
    _changed(PASSIVE_TRANSITION, WAITING),
    _changed(PASSIVE, STANDALONE),
    _changed(PASSIVE, WAITING),
    _changed(ACTIVE, STANDALONE),
    _changed(ACTIVE, WAITING),
    _changed(STANDALONE, WAITING),
    _changed(STANDALONE, ACTIVE_TRANSITION),
    _changed(PASSIVE, ACTIVATING),
    _changed(ACTIVATING, ACTIVE),
    _changed(ACTIVATING, PASSIVE),
    _changed(ACTIVE, PASSIVE),
    State("database-out-of-reach", "a server could not reach the shared database", logged("database unreachable")),
    State("database-fenced", "the shared database refused an older epoch",
          logged("database refused an older epoch")),
    State("lock-obtained", "a server obtained the lock", logged("lock obtained")),
    State("lock-lost", "a server lost the lock", logged("lock lost")),
    State("lock-refused", "a server was refused a lock that the other server had held since",
          logged("lock refused", repository=bool)),
    State("stood-still", "a server noticed that it had been paused", logged("process stalled")),
    *BROKER_STATES,
)  # fmt: skip
