"""Small runs of systems that record no trace: a history, a ledger, announcements of roles, and a verdict."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from report_run_factory import run_json, write_history

from reports.folder import read_folder
from reports.root_cause import AnomalyGroup
from reports.run_facts import Cause
from reports.run_page import explain
from stormproof.contracts.fault import CUTS_LINKS, ENDS_PROCESS, LOSES_DATA, STOPS_TIME
from stormproof.history.disk_use import DISKS, LOST_AGE, LOST_BYTES, STORES_NOTHING
from stormproof.history.ledger import LedgerLine, Repair
from stormproof.operation import INVOKE, OK, Op
from stormproof.run_folder import LEADERS, LEDGER, LOG_EVENTS

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Step:
    """One operation of a client; times are seconds."""

    f: str
    start: float
    end: float
    node: str
    value: Any
    process: int = 1
    key: int = 0
    type: str = OK
    error: str | None = None


def send(number: int, end: float, node: str = "n1", **others: Any) -> Step:
    return replace(Step("enqueue", end - 0.01, end, node, (1, number)), **others)


def take(number: int, end: float, node: str = "n1", **others: Any) -> Step:
    return replace(Step("dequeue", end - 0.01, end, node, (1, number), process=2), **others)


@dataclass
class Recorded:
    """A run under construction: ``events`` are announcements of logs, ``leaders`` reports of leaders."""

    names: tuple[str, ...] = ("n1",)
    steps: list[Step] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    leaders: list[dict[str, Any]] = field(default_factory=list)
    options: Mapping[str, Any] = field(default_factory=dict)

    def fault(
        self, family: str, start: float, end: float, *targets: str, lost: int | None = None, memory: str = "",
        cut: Iterable[str] = (), done: float | None = None, one_way: bool = False,
    ) -> Recorded:
        """Add a fault; ``lost``: bytes that each disk discarded; ``cut``: nodes from which the targets were cut off, or
        ``one_way``, which did not hear the targets."""
        effects = {"partition": CUTS_LINKS, "pause": STOPS_TIME, "disk": LOSES_DATA}.get(family, ENDS_PROCESS)
        found: dict[str, Any] = {}
        if lost is not None:
            found[DISKS] = {node: {"files": 1, LOST_BYTES: lost, LOST_AGE: 1.25} for node in targets}
        if memory:
            found[STORES_NOTHING] = dict.fromkeys(targets, memory)
        pairs = [pair for one in targets for other in cut for pair in ((one, other), (other, one))[: 2 - one_way]]
        healed = {"dropped": {f"{a}>{b}": 7 for a, b in pairs}} if pairs else {}
        ident = len(self.lines) // 2
        for phase, time, evidence in (("inject", start, found), ("heal", end, healed)):
            at = round(time * SECOND)
            ready = round(done * SECOND) if done is not None and phase == "inject" else at
            self.lines.append(LedgerLine(ident, family, "one", phase, at, tuple(targets), evidence, True, done=ready,
                                         effects=(effects,)).to_json())  # fmt: skip
        return self

    def repair(self, text: str, start: float) -> Recorded:
        self.lines += [Repair(text, round(start * SECOND), round((start + 1) * SECOND)).to_json()]
        return self

    def role(self, node: str, time: float, role: str, leads: bool) -> Recorded:
        self.events.append({"node": node, "time": time, "event": "role", "role": role, "serving": True, "leads": leads})
        return self

    def took_state(self, node: str, time: float) -> Recorded:
        self.events.append({"node": node, "time": time, "event": "transfer", "source": "?", "target": node})
        return self

    def led(self, witness: str, time: float, leader: str, **others: str) -> Recorded:
        """Add a report of the leader of q0, and of others."""
        self.leaders.append({"time": round(time * SECOND), "witness": witness, "leaders": {"q0": leader, **others}})
        return self

    def groups(
        self, folder: Path, check: str, anomalies: Iterable[tuple[str, Any, list[Step], dict[str, Any]]],
        count: int | None = None,
    ) -> tuple[AnomalyGroup, ...]:
        """Write the run, and return what its page says about a check's anomalies: (kind, value, proof, detail)."""
        run_dir = self.write(folder, check, anomalies, count)
        (found,) = [each for each in explain(read_folder(run_dir)).checks if each.name == check]
        return found.groups

    def write(
        self, folder: Path, check: str, anomalies: Iterable[tuple[str, Any, list[Step], dict[str, Any]]],
        count: int | None = None,
    ) -> Path:
        """Write the run's folder."""
        rows: list[tuple[float, int, int, Op]] = []
        for number, step in enumerate(self.steps):
            about = {"key": step.key, "process": step.process, "node": step.node}
            known = None if step.f in ("dequeue", "drain", "receive", "read", "event", "scan") else step.value
            rows.append((step.start, 0, number, Op(INVOKE, step.f, known, time=round(step.start * SECOND), **about)))
            rows.append((step.end, 1, number, Op(step.type, step.f, step.value, time=round(step.end * SECOND),
                                                 error=step.error, **about)))  # fmt: skip
        rows.sort(key=lambda row: row[:2])
        place = {(number, which): at for at, (_, which, number, _) in enumerate(rows)}
        ours = {id(step): number for number, step in enumerate(self.steps)}
        run_dir = folder / "run-1"
        (run_dir / "logs").mkdir(parents=True)
        write_history(run_dir / "history.parquet", [op for *_, op in rows], "run-1")
        (run_dir / LEDGER).write_text("".join(line + "\n" for line in self.lines))
        for name, found in ((LOG_EVENTS, self.events), (LEADERS, self.leaders)):
            (run_dir / name).write_text("".join(json.dumps(row) + "\n" for row in found))
        for node in self.names:
            (run_dir / "logs" / f"{node}.log").write_text("")
        run = run_json("run-1", 30, 2, 7, "invalid")
        run["test"] |= {"nodes": len(self.names), "options": dict(self.options), "system": "mine"}
        (run_dir / "run.json").write_text(json.dumps(run))
        shown = [{"kind": kind, "key": proof[0].key if proof else 0, "value": value, "detail": detail,
                  "ops": [place[ours[id(step)], 1] for step in proof]}
                 for kind, value, proof, detail in anomalies]  # fmt: skip
        checks = [{"check": check, "decides": True, "verdict": "invalid", "summary": "", "figures": {},
                   "count": len(shown) if count is None else count, "anomalies": shown}]  # fmt: skip
        (run_dir / "verdict.json").write_text(json.dumps({
            "schema": 1, "run": "run-1", "verdict": "invalid", "sentence": "Wrong.", "checks": checks, "figures": {}}))
        return run_dir

    def lost(self, folder: Path) -> tuple[AnomalyGroup, ...]:
        """Return what the page says about the messages that no step takes."""
        return self.groups(folder, "lost", self.missing())

    def missing(self) -> list[tuple[str, Any, list[Step], dict[str, Any]]]:
        """Return the anomalies of the messages that no step takes."""
        got = {step.value for step in self.steps if step.f in ("dequeue", "drain")}
        return [("lost", f"{step.value[0]}/{step.value[1]}", [step], {}) for step in self.steps
                if step.f == "enqueue" and step.type == OK and step.value not in got]  # fmt: skip


def only(groups: tuple[AnomalyGroup, ...]) -> Cause:
    """Return the one cause of the one group, for all its anomalies."""
    (group,) = groups
    ((_, cause),) = group.causes
    assert not group.unknown and not group.further
    return cause


def unknown(groups: tuple[AnomalyGroup, ...]) -> int:
    """Return the number of anomalies without a cause; there must be no cause at all."""
    (group,) = groups
    assert not group.causes, group.causes
    return group.unknown
