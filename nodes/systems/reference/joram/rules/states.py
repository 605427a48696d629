"""States of interest of a group of joram replicas."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta

from nodes.systems.reference.log_events import (
    BOOT,
    BROKER_STATES,
    EventLine,
    NodeLogs,
    State,
    broken_off,
    during,
    logged,
    moved,
    resumed,
)
from stormproof.contracts.system import GroupChange, RoleChange, StateTransfer

_SERVES = "promoted: serving as master"
_DOWN = "stepped down"
_BEGIN, _END = "state transfer begin", "state transfer end"
_VIEW = "view installed"
_ROLES = {"following": ("slave", True), "promoted: serving as master": ("master", True),
          "master lost": ("electing", False), "stepped down": ("electing", False), "proposing": ("electing", False),
          "joining the group": ("starting", False)}  # fmt: skip


def role_change(line: EventLine) -> RoleChange | None:
    """Parse a log line about a replica's role; a view that a master changes may have a new epoch."""
    if line.event == "view installed" and "why" in line.fields:
        return RoleChange("master", f"epoch {line.fields.get('epoch', '?')}", serving=True, leads=True)
    if line.event not in _ROLES:
        return None
    role, serving = _ROLES[line.event]
    epoch = f"epoch {line.fields.get('epoch', '?')}" if serving else ""
    return RoleChange(role, epoch, serving, leads=role == "master")


def state_transfer(line: EventLine) -> StateTransfer | None:
    """Parse the end of a transfer, logged by the replica whose state was replaced."""
    if line.event != "state transfer end" or "source" not in line.fields:
        return None
    index = line.fields.get("index", "?")
    return StateTransfer(line.fields["source"], "", f"up to entry {index}", int(index) if index.isdecimal() else None)


def group_change(line: EventLine) -> GroupChange | None:
    """Parse a master's log line about the view that it installs."""
    if line.event != "view installed" or "members" not in line.fields:
        return None
    return GroupChange(f"epoch {line.fields.get('epoch', '?')}", tuple(line.fields["members"].split(",")))


def _some(value: str) -> bool:
    return value != "0"


def _failovers(logs: NodeLogs) -> int:
    masters = [line.node for line in logs.of(_SERVES)]
    return sum(before != after for before, after in itertools.pairwise(masters))


def _two_masters(logs: NodeLogs) -> int:
    """Count the times that a node began to serve while another one served and had no reason to stop.

    A master that was killed or paused logs nothing: it counts as gone if it logs nothing more, or reports later that it
    was suspended.
    """
    last = {line.node: line.time for line in logs.lines}
    serving: set[str] = set()
    found = 0
    for line in logs.lines:
        if line.event == _SERVES:
            found += any(last[node] > line.time and not _absent(logs, node, line.time) for node in serving)
            serving.add(line.node)
        elif line.event in (_DOWN, BOOT, "stopped"):
            serving.discard(line.node)
    return found


def _absent(logs: NodeLogs, node: str, time: str) -> bool:
    """Tell whether a node was paused at that time, or had been killed."""
    for line in logs.lines:
        if line.node == node and line.time > time:
            if line.event == BOOT:
                return True
            if line.event == "process stalled":
                # It notices the pause at a tick, of which a detection time-out has ten, and does not count one of them.
                away = timedelta(seconds=1.2 * float(line.fields["seconds"]))
                return datetime.fromisoformat(line.time) - away <= datetime.fromisoformat(time)
            if line.event == _DOWN:
                return False
    return False


def _all_restarted(logs: NodeLogs) -> int:
    """Count the promotions of a master for which every replica had been restarted since the previous promotion."""
    nodes = set(logs.nodes())
    promoted = False
    restarted: set[str] = set()
    found = 0
    for line in logs.lines:
        if line.event == BOOT:
            restarted.add(line.node)
        elif line.event == _SERVES:
            found += promoted and restarted == nodes
            promoted, restarted = True, set()
    return found


STATES = (
    State("failover", "a different node began to serve", _failovers),
    State("two-masters", "a node began to serve while another still considered itself the master", _two_masters),
    State("epoch-raised", "a master that met another one opened a newer epoch (unspecified)",
          logged(_VIEW, why="epoch raised")),
    State("all-restarted", "a master was promoted after all replicas had been restarted", _all_restarted),
    State("member-lost", "a new view excluded a silent member", logged(_VIEW, why="member lost")),
    State("member-joined", "a new view included a member that had caught up", logged(_VIEW, why="member joined")),
    State("stepped-down", "a master stepped down", logged(_DOWN)),
    State("stepped-down-with-work", "a master stepped down with commands in progress", logged(_DOWN, pending=_some)),
    State("lease-expired", "a master held effects back because its lease had expired", logged("lease expired")),
    State("candidate-deferred", "a candidate deferred to another", logged("candidate deferred")),
    State("promotion-refused", "a replica refused its promise to a candidate", logged("proposal refused")),
    State("election-given-up", "an election was abandoned after its time-out", logged("election given up")),
    State("log-adopted", "a candidate took over a more complete log", logged("adopting the most complete log")),
    State("tail-removed", "a replica removed entries that were never committed", logged("uncommitted tail removed")),
    State("caught-up-by-log", "a replica received the missing log entries", logged("catch-up by log")),
    State("state-transfer", "a replica received the whole state", logged(_END, source=bool)),
    State("state-transfer-broken-off", "a state transfer was restarted, or ended by a restart of a node",
          broken_off(_BEGIN, _END)),
    State("view-change-in-transfer", "the view changed while the master sent its state", during(_BEGIN, _VIEW, _END)),
    State("stood-still", "a replica noticed that it had been paused", logged("process stalled")),
    State("connection-resumed-elsewhere", "a client resumed its connection on another node",
          resumed(elsewhere=True)),
    State("collocated-client-moved", "a collocated client opened its connection on another node than before",
          moved("collocated connection opened")),
    State("collocated-context-cleaned", "a context of a former collocated connection was cleaned up",
          logged("former collocated connection cleaned")),
    State("prepared-branch-finished", "a collocated client committed what its predecessor had prepared",
          logged("prepared branch finished")),
    *BROKER_STATES,
)  # fmt: skip
