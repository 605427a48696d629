"""Information from the node logs of a run: the states that the system reached, and each node's roles over time."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.system import DiskWrites, System
from stormproof.errors import HistoryError, StormproofError, UsageError
from stormproof.history.ledger import read_ledger
from stormproof.history.log_timestamps import SUFFIX, write_moments
from stormproof.history.read_limits import read_small_text
from stormproof.node_logs import read_log
from stormproof.run_folder import LEDGER, LOG_EVENTS, MESSAGE_TRACE, is_alive, node_logs, read_run, write_text
from stormproof.text import escaped, reason

AFTER_HEAL = 1.0
"""Seconds after a heal in which what a system does is still counted as done under the fault."""
CLIPPED, LOG, STATE = "clipped", "log", "state"
"""Kinds of trace marks: the earlier part of a node's log was cut off; the epochs of the entries in a replica's log; a
replica's state."""


def read_coverage(system: System, run_dir: Path) -> dict[str, int]:
    """Return state -> times reached, from the node logs of a run."""
    try:
        return system.states_reached({path.stem: read_small_text(path) for path in node_logs(run_dir)})
    except Exception as error:  # a plug-in's error, for example, must not cost the run its history
        _complain(system, error)
        return {}


def states_during_faults(system: System, run_dir: Path) -> frozenset[tuple[str, str]]:
    """Return the pairs (state, fault family) of a run: the state was reached while a fault of the family that took
    effect was in force, or within ``AFTER_HEAL`` seconds of its heal."""
    run = read_run(run_dir)
    zero = datetime.fromisoformat(str(run.get("clock_zero") or run["started"])).timestamp()
    logs = {path.stem: read_log(path, zero, system.parse_line)[0] for path in node_logs(run_dir)}

    def reached_by(time: float) -> dict[str, int]:
        return system.states_reached({
            node: "\n".join(line.raw for line in lines if line.time is None or line.time <= time)
            for node, lines in logs.items()
        })  # fmt: skip

    found: set[tuple[str, str]] = set()
    for fault in read_ledger(run_dir / LEDGER):
        if fault.counts and fault.end is not None:
            begin = (fault.in_force if fault.in_force is not None else fault.start) / 1e9
            before, after = reached_by(begin), reached_by(fault.end / 1e9 + AFTER_HEAL)
            found |= {(state, fault.fault) for state, times in after.items() if times > before.get(state, 0)}
    return frozenset(found)


def read_role_changes(system: System, run_dir: Path, zero: str | None) -> list[dict[str, Any]]:
    """Return all role changes that a run's logs announce, in order of time. ``zero`` is the run's beginning as text.

    Each has the node, the time in seconds of the run, and the fields of ``RoleChange``.
    """
    found: list[dict[str, Any]] = []
    try:
        began = datetime.fromisoformat(str(zero)).timestamp()
        for path in node_logs(run_dir):
            for line in read_log(path, began, system.parse_line)[0]:
                role = system.role_change(line.text)
                if role is not None and line.time is not None:
                    found.append({"node": path.stem, "time": line.time, **asdict(role)})
    except Exception as error:  # a plug-in's error, for example, must not cost the run its history
        _complain(system, error)
        return []
    return sorted(found, key=lambda each: float(each["time"]))


def note_log_events(run_dir: Path, *, over: bool = False) -> None:
    """Extract roles and state transfers from the node logs of a run into a file, unless it exists already.

    Reports read this file, so that they do not need the system's code. For logs of another format than ours, the times
    of the lines are also written next to the log. While the run is under way nothing is written, because its logs are
    collected at its end. ``over`` means that this end has been reached, even if the run's nodes are kept alive.

    Raises:
        StormproofError: the file can't be written.
    """
    if (run_dir / LOG_EVENTS).exists() or (is_alive(run_dir) and not over):
        return
    try:
        run = read_run(run_dir)
        system = SYSTEMS.load(str(run["test"]["system"]))
        zero = datetime.fromisoformat(str(run.get("clock_zero") or run["started"])).timestamp()
    except (HistoryError, UsageError, KeyError, TypeError, ValueError):
        return  # the system does not exist here, or the run never began: its report shows no roles
    rows: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    try:
        for path in node_logs(run_dir):
            rows += _events(system, path, zero, marks)
    except StormproofError:
        raise
    except Exception as error:  # a plug-in's error, for example: the report then shows the events found so far
        _complain(system, error)
    if marks:
        write_text(run_dir / MESSAGE_TRACE, "".join(json.dumps(row) + "\n" for row in marks))
    write_text(run_dir / LOG_EVENTS, "".join(json.dumps(row) + "\n" for row in rows))


def _complain(system: System, error: Exception) -> None:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    print(f"stormproof: {system.name} can't read its nodes' logs: {escaped(reason(error))} "
          f"({Path(frame.filename).name}:{frame.lineno})", file=sys.stderr)  # fmt: skip


def _traced(system: System, text: str) -> dict[str, Any] | None:
    """Return the content of a line that was written for a trace of messages; None for any other line."""
    if (mark := system.message_mark(text)) is not None:
        return asdict(mark)
    if (entries := system.log_mark(text)) is not None:
        return {"what": LOG, **asdict(entries)}
    if (state := system.state_mark(text)) is not None:
        return {"what": STATE, **asdict(state)}
    return None


def _events(system: System, path: Path, zero: float, marks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the events in the lines of a log. Marks of the message trace are added to ``marks``."""
    lines, clipped = read_log(path, zero, system.parse_line)
    if not clipped and not Path(f"{path}{SUFFIX}").exists() and any(line.time is not None for line in lines):
        ours, _ = read_log(path, zero)
        if all(line.time is None for line in ours):
            times = [line.time if line.time is not None else 0.0 for line in lines]
            Path(f"{path}{SUFFIX}").write_bytes(write_moments(zero + time for time in times))
    lives: list[DiskWrites] = []
    for line in lines:
        if (counted := system.disk_writes(line.text)) is not None:
            if lives and counted.writes >= lives[-1].writes:
                lives.pop()  # an earlier count of the same process lifetime
            lives.append(counted)
        if line.time is None:
            continue
        at = {"node": path.stem, "time": line.time}
        if (traced := _traced(system, line.text)) is not None:
            if clipped and not any(row["node"] == path.stem for row in marks):
                marks.append({**at, "what": CLIPPED})
            marks.append({**at, "line": line.number, **traced})
            continue
        if (group := system.group_change(line.text)) is not None:
            yield {**at, "event": "group", **asdict(group)}
        if (role := system.role_change(line.text)) is not None:
            yield {**at, "event": "role", **asdict(role)}
        if (transfer := system.state_transfer(line.text)) is not None:
            target = transfer.target or path.stem
            source = transfer.source or ("?" if target == path.stem else path.stem)
            yield {**at, "event": "transfer", **asdict(transfer), "source": source, "target": target}
        if (grant := system.grant(line.text)) is not None:
            yield {**at, "event": "grant", **asdict(grant)}
    if lives:
        yield {"node": path.stem, "event": "disk", "writes": sum(life.writes for life in lives),
               "changes": sum(life.changes for life in lives), "messages": sum(life.messages for life in lives)}
