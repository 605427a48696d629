"""The report of one run: RUN/report.html, a single file that opens offline."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reports.costs import cost_plots, cost_table
from reports.disk_writes import disk_facts
from reports.faults import FaultRow, fault_rows
from reports.folder import RunFolder, changed_options, mapping, number, read_folder, sequence
from reports.idents import content_names
from reports.inference.sends import confirmed_sends
from reports.leaders import leader_lanes
from reports.message_trace import read_trace
from reports.narrative import MAX_ANOMALIES, Narrator, ShownAnomaly, flat, plain
from reports.node_logs import NodeLog, read_log
from reports.pack import choose_spans, pack_spans, shorten
from reports.page import render, write_page
from reports.page_lives import Lives
from reports.plots import run_plots
from reports.roles import Lane, read_grants, read_transfers, role_lanes
from reports.root_cause import AnomalyGroup, LeadingCause, declared, groups, leading_cause
from reports.run_facts import Facts
from reports.series import run_series
from reports.spans import Spans, client_functions, pair_spans
from reports.timeline import (
    Phase,
    StripLane,
    axis_start,
    fault_lanes,
    group_lanes,
    leader_strips,
    node_lanes,
    nodes_of,
    phase_lanes,
)
from stormproof.contracts.check import INVALID, VALID, VERDICTS
from stormproof.history.columns import Int64s
from stormproof.history.ledger import Standstill
from stormproof.node_logs import parse_time
from stormproof.run_folder import (
    COSTS,
    HISTORY,
    IMPORTED,
    LEADERS,
    LEDGER,
    REPORT,
    RUN_FILE,
    TWIN,
    UNDO_FILE,
    VERDICT_FILE,
    environment_read,
    pictures,
)
from stormproof.text import amount, elapsed
from stormproof.vocabulary import FUNCTIONS, OBJECT, SENDS, noun_of

STYLES = ("base.css", "run.css", "why.css")
SCRIPTS = ("dom.js", "theme.js", "model.js", "view.js", "strips.js", "lanes_view.js", "lanes.js", "points.js",
           "plots.js", "logs.js", "life.js", "detail.js", "player.js", "address.js", "run.js")  # fmt: skip

MOST_SETTINGS = 10
"""Settings at the top of the page: more would take more than two lines."""
LONGEST_SETTING = 60
"""Characters of one of them."""
FILES = (RUN_FILE, VERDICT_FILE, HISTORY, LEDGER, LEADERS, COSTS, UNDO_FILE)

_SEND_LATENCIES = tuple(name for name, function in FUNCTIONS.items() if function.does == SENDS)
"""Functions for sending: the first that the run has stands for sending at the top of the page."""

STATUS_SENTENCES = {
    "running": "This run has no verdict yet: it was still running or had been interrupted when this page was written.",
    "recorded": "This run is recorded but not checked yet: run stormproof check.",
    "broken": "The harness failed, so this run shows nothing about the system.",
}


@dataclass(frozen=True)
class CheckGroup:
    """One check: its row in the table, and its anomalies with their evidence."""

    name: str
    decides: bool
    verdict: str
    count: int
    summary: str
    figures: tuple[tuple[str, str], ...]
    anomalies: tuple[ShownAnomaly, ...]
    raw: Mapping[str, Any] = field(default_factory=dict)
    """The figures as stored."""
    pictures: tuple[tuple[str, str], ...] = ()
    """Pages that show the findings: (file, words for the link)."""
    declared: str = ""
    """The system's statement on the guarantee."""
    groups: tuple[AnomalyGroup, ...] = ()

    @property
    def tone(self) -> str:
        """The severity of the findings: non-deciding checks are never shown as an alarm."""
        return self.verdict if self.decides and self.verdict != VALID else "none"


@dataclass(frozen=True)
class GateRow:
    """A coverage gate: its name, its requirement and the result in words, whether it is met (None: not checked yet)."""

    name: str
    asks: str
    found: str
    met: bool | None


def write_report(run_dir: Path) -> Path:
    """Write RUN/report.html from the content of the run folder; the page names missing parts.

    Raises:
        HistoryError: the folder is not a run's, or the page can't be written.
    """
    return write_page(run_dir / REPORT, run_report(read_folder(run_dir)))


@dataclass(frozen=True)
class Explained:
    """A run's records of its anomalies: checks in the order of their weight, with groups and causes."""

    checks: list[CheckGroup]
    facts: Facts
    lives: Lives
    spans: Spans | None
    noun: str
    duration: float
    start: float
    """The start of the axis, in seconds of the run: the start of the load, after the set-up."""

    @property
    def anomalies(self) -> list[ShownAnomaly]:
        """The anomalies of all checks."""
        return [anomaly for check in self.checks for anomaly in check.anomalies]

    @property
    def why(self) -> LeadingCause | None:
        """The cause that stands under the verdict: of the first check that makes the run invalid and has anomalies."""
        return next((leading_cause(check.groups, check.count) for check in self.checks
                     if check.decides and check.verdict == INVALID and check.groups), None)


def explain(folder: RunFolder) -> Explained:
    """Read the causes of the findings, as far as the run recorded them."""
    history = folder.history
    noun = noun_of(history.f.names) if history is not None else OBJECT
    spans = pair_spans(history) if history is not None else None
    narrator = Narrator.of(history, spans, folder.faults, noun) if history is not None and spans is not None else None
    checks = check_groups(folder.verdict or {}, narrator, noun)
    duration = _duration(folder)
    roles = role_lanes(folder.path, folder.faults, duration)
    facts = Facts(read_trace(folder.path), roles, read_transfers(folder.path), folder.faults,
                  read_grants(folder.path), folder.repairs,
                  leader_lanes(folder.path, duration), mapping(folder.test.get("options")),
                  tuple(nodes_of(folder.test, history, (path.stem for path in folder.logs))),
                  functools.lru_cache(partial(confirmed_sends, narrator)) if narrator is not None else None)
    lives = Lives(facts, narrator)
    checks = [
        replace(check, declared=declared(folder.run, check.name),
                groups=groups(check, facts, duration, lives.operations))
        for check in checks
    ]
    lives.tell([anomaly for check in checks for anomaly in check.anomalies])
    start = axis_start(_phases(folder.run), history, fault_rows(folder.faults, folder.verdict or {}))
    return Explained(checks, facts, lives, spans, noun, duration, min(start, duration))


def run_report(folder: RunFolder) -> str:
    """Return the page's text."""
    history, told = folder.history, explain(folder)
    checks, anomalies, lives, duration = told.checks, told.anomalies, told.lives, told.duration
    verdict, spans, roles, noun = folder.verdict or {}, told.spans, told.facts.roles, told.noun
    faults = fault_rows(folder.faults, verdict)
    planned = number(folder.run.get("faults_planned")) or 0
    logs = _logs(folder, anomalies, faults, lives.deaths(), told.facts.trace.lines)
    phases = _phases(folder.run)
    strips = _strips(folder, phases, faults, roles, duration)
    word, sentence = headline(folder)
    context = {
        "name": shorten(folder.name),
        "word": word,
        "sentence": sentence,
        "why": told.why,
        "tested": tested(folder),
        "notes": folder.notes,
        "facts": [*headline_facts(verdict, faults, planned, duration), *disk_facts(folder.path)],
        "checks": checks,
        "gates": gate_rows(folder.run, verdict),
        "guarantees": frozenset(str(name) for name in sequence(folder.run.get("guarantees"))),
        "faults": faults,
        "repairs": folder.repairs,
        "planned": planned,
        "complete": folder.run.get("status") == "recorded" and not folder.run.get("failure"),
        "duration": duration,
        "command": str(folder.run.get("command") or ""),
        "reads": environment_read(folder.run),
        "settings": settings(folder),
        "options": flat(mapping(folder.test.get("options"))),
        "versions": flat(mapping(folder.run.get("versions"))),
        "files": [name for name in FILES if (folder.path / name).exists()],
        "pictures": frozenset(pictures(folder.path)),
        "twin": (folder.path / TWIN).exists(),
        "lives": lives.told,
        "logs": logs,
        "costs": cost_table(folder.run, verdict),
        "strips": strips,
        "start": told.start,
        "sha256": str(folder.run.get("history_sha256") or ""),
        "noun": noun,
        "clock_known": "clock_zero" in folder.run,
        "has_history": history is not None,
    }
    data: dict[str, Any] = {
        "name": folder.name,
        "start": told.start,
        "duration": duration,
        "simulated": bool(mapping(folder.run.get("backend")).get("in_process")),
        "concurrency": int(number(folder.test.get("concurrency")) or 0),
        "faults": [*(_fault_data(row, duration) for row in faults), *map(_standstill_data, folder.standstills)],
        "logs": [_log_data(log) for log in logs],
        "anomalies": [],
        "spans": None,
        "plots": [plot.to_json() for plot in cost_plots(folder.path)],
    }
    if history is not None and spans is not None:
        keep = np.asarray(sorted({op.span for a in anomalies for op in a.operations}), dtype=np.int64)
        chosen = choose_spans(spans, keep)
        data["spans"] = pack_spans(history, spans, chosen)
        functions = [history.f.names[code] for code in client_functions(history, spans)]
        data["plots"][:0] = [plot.to_json() for plot in run_plots(run_series(history, spans), functions)]
        data["anomalies"] = [_anomaly_data(anomaly, check.tone, chosen, lives.death(anomaly))
                             for check in checks for anomaly in check.anomalies]  # fmt: skip
        data["lives"] = lives.data()
        data["trace"] = lives.trace_data()
    return render("run.html", STYLES, SCRIPTS, data, context)


def headline(folder: RunFolder) -> tuple[str, str]:
    """Return the verdict's word (``none`` where there is none) and the sentence under it."""
    if folder.verdict is not None:
        word = str(folder.verdict.get("verdict"))
        sentence = str(folder.verdict.get("sentence") or "")
        if sentence.lower().startswith(f"{word}: "):  # the word is shown above the sentence
            sentence = sentence[len(word) + 2 :]
            sentence = sentence[:1].upper() + sentence[1:]
        return (word if word in VERDICTS else "none"), sentence or "The verdict has no sentence."
    status = str(folder.run.get("status") or "")
    sentence = STATUS_SENTENCES.get(status, "This run has no verdict: run stormproof check.")
    failure = folder.run.get("failure")
    return "none", f"{sentence} {failure}" if failure else sentence


def headline_facts(
    verdict: Mapping[str, Any], faults: Sequence[FaultRow], planned: float, duration: float
) -> list[tuple[str, str, str]]:
    """Return (label, figure, unit or remark) triples for the top of the page; only figures that exist."""
    figures = mapping(verdict.get("figures"))
    facts: list[tuple[str, str, str]] = []
    if (ops := number(figures.get("ops"))) is not None:
        ok = number(figures.get("ok"))
        facts.append(("Operations", plain(ops), f"{plain(ok)} ok" if ok is not None else ""))
    if sends := number(figures.get("enqueue_ok")):
        facts.append(("Confirmed sends", plain(sends), "with receipt"))
    latencies = mapping(figures.get("latency_ms"))
    latency = next((found for name in _SEND_LATENCIES if (found := mapping(latencies.get(name)))), {})
    if (p99 := number(latency.get("p99"))) is not None:
        median = number(latency.get("p50"))
        facts.append(("Send latency p99", f"{p99:,.1f} ms", f"median {median:,.1f} ms" if median is not None else ""))
    if (gap := number(figures.get("longest_gap_s"))) is not None:
        facts.append(("Longest outage", elapsed(gap), "without a successful operation"))
    confirmed = sum(row.window.counts for row in faults)
    if faults:
        remark = "all confirmed" if confirmed == len(faults) > 1 else f"{confirmed or 'none'} confirmed"
        remark = "claimed" if all(row.window.claimed for row in faults) else remark
        of = f" of {plain(planned)}" if planned > len(faults) else ""
        facts.append(("Faults", f"{len(faults)}{of}", remark))
    if duration:
        facts.append(("Duration", elapsed(duration), ""))
    return facts


def check_groups(verdict: Mapping[str, Any], narrator: Narrator | None, noun: str) -> list[CheckGroup]:
    """Return the checks in the order of their weight: deciding ones first, among them the violated ones."""
    groups: list[CheckGroup] = []
    items = [mapping(c) for c in sequence(verdict.get("checks"))]
    named = [(str(item.get("check") or f"check {at + 1}"),
              [mapping(a) for a in sequence(item.get("anomalies"))[:MAX_ANOMALIES]])
             for at, item in enumerate(items)]  # fmt: skip
    idents = iter(content_names([(name, example) for name, examples in named for example in examples]))
    for item, (name, examples) in zip(items, named, strict=True):
        anomalies = [
            narrator.anomaly(ident, name, example) if narrator else _bare_anomaly(ident, name, example, noun)
            for example, ident in zip(examples, idents, strict=False)  # this order wastes no name
        ]
        groups.append(
            CheckGroup(
                name=name,
                decides=bool(item.get("decides")),
                verdict=str(item.get("verdict")) if item.get("verdict") in VERDICTS else "none",
                count=int(number(item.get("count")) or 0),
                summary=str(item.get("summary") or ""),
                raw=mapping(item.get("figures")),
                figures=flat({k: v for k, v in mapping(item.get("figures")).items() if k != "gates"}),
                anomalies=tuple(anomalies),
                pictures=tuple(_pictures(examples, noun)),
            )
        )
    severity = {word: at for at, word in enumerate(reversed(VERDICTS))}
    return sorted(groups, key=lambda group: (not group.decides, severity.get(group.verdict, len(severity))))


def _pictures(examples: Sequence[Mapping[str, Any]], noun: str) -> Iterator[tuple[str, str]]:
    for example in examples:
        file = mapping(example.get("detail")).get("picture")
        if isinstance(file, str):
            yield file, f"Picture of {noun} {example.get('key')}"


def _bare_anomaly(ident: str, check: str, data: Mapping[str, Any], noun: str) -> ShownAnomaly:
    key = data.get("key")
    return ShownAnomaly(
        ident=ident,
        check=check,
        kind=str(data.get("kind") or check),
        key=key if isinstance(key, int) else None,
        value=shorten(str(data.get("value") if data.get("value") is not None else "")),
        detail=flat(mapping(data.get("detail"))),
        operations=(),
        left_off=0,
        story=(),
        noun=noun,
    )


def gate_rows(run: Mapping[str, Any], verdict: Mapping[str, Any]) -> list[GateRow]:
    """Return each coverage gate in words; for a run that is not checked yet, the gates' names."""
    results: Mapping[str, Any] = {}
    for item in map(mapping, sequence(verdict.get("checks"))):
        results = mapping(mapping(item.get("figures")).get("gates")) or results
    if not results:
        return [GateRow(name, name, f"required: {wanted}", None) for name, wanted in flat(mapping(run.get("gates")))]
    return [_gate_row(str(name).replace("_", " "), mapping(result)) for name, result in results.items()]


def _gate_row(name: str, result: Mapping[str, Any]) -> GateRow:
    # A verdict of an earlier release has figures only.
    words = shorten(str(result.get("asks") or f"{name}: {plain(result.get('wanted'))}"))
    found = result.get("found")
    found = ", ".join(map(str, found)) if isinstance(found, list | tuple) else plain(found)
    found = shorten(str(result.get("told") or found))
    return GateRow(name, words[:1].upper() + words[1:], found, bool(result.get("met")))


def tested(folder: RunFolder) -> str:
    """Return a description of the tested configuration, in one line: the settings that differ from their defaults."""
    test, about = folder.test, mapping(folder.run.get("backend"))
    backend = about.get("name")
    if not test:
        return ""
    if backend == IMPORTED:
        return shorten(" · ".join(str(part) for part in (test.get("system"), test.get("workload"), about.get("why"))))
    faults = ", ".join(str(name) for name in sequence(test.get("nemesis"))) or "no faults"
    nodes = "1 node" if test.get("nodes") == 1 else f"{test.get('nodes', '?')} nodes"
    nodes += f" on {backend}" if backend else ""
    changed = changed_options(folder.run)
    more = f"and {amount(len(changed) - MOST_SETTINGS, 'more setting')}" if len(changed) > MOST_SETTINGS else ""
    parts = [
        test.get("system"),
        test.get("workload"),
        faults,
        nodes,
        f"seed {test.get('seed', '?')}",
        *(shorten(each, LONGEST_SETTING) for each in changed[:MOST_SETTINGS]),
        more,
    ]
    return shorten(" · ".join(str(part) for part in parts if part))


def settings(folder: RunFolder) -> list[tuple[str, str]]:
    """Return the tested configuration, label and value, without the options."""
    test, backend = folder.test, mapping(folder.run.get("backend"))
    labels = {
        "system": "System",
        "workload": "Workload",
        "nemesis": "Nemesis",
        "nodes": "Nodes",
        "seed": "Seed",
        "rate": "Rate",
        "concurrency": "Clients",
        "time_limit": "Time limit",
    }
    if backend.get("name") == IMPORTED:  # the others are unknown
        labels = {name: labels[name] for name in ("system", "workload")}
    units = {"rate": " operations/s", "time_limit": " s"}
    rows: list[tuple[str, str]] = []
    for name, label in labels.items():
        value = test.get(name)
        if value is None:
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        rows.append((label, (text or "none") + units.get(name, "")))
    if backend.get("name"):
        why = backend.get("why")
        rows.insert(min(3, len(rows)), ("Backend", f"{backend['name']} ({why})" if why else str(backend["name"])))
    if folder.run.get("started"):
        moment = parse_time(folder.run["started"])
        rows.append(("Started", f"{moment:%Y-%m-%d %H:%M:%S %Z}" if moment else str(folder.run["started"])))
    return rows


def _duration(folder: RunFolder) -> float:
    """Return the length of the run in seconds: up to its last event."""
    ends = [window.end or window.start for window in folder.faults]
    if folder.history is not None and folder.history.rows:
        ends.append(int(folder.history.time.max()))
    return max(ends, default=0) / 1e9


def _logs(
    folder: RunFolder, anomalies: Sequence[ShownAnomaly], faults: Sequence[FaultRow], deaths: Sequence[float],
    hidden: Mapping[str, frozenset[int]],
) -> list[NodeLog]:
    near = sorted({time for a in anomalies[:MAX_ANOMALIES] if a.window for time in a.window} | set(deaths))
    changes = sorted({time for row in faults for time in (row.start, row.end) if time is not None})
    return [read_log(path, folder.started, near, changes, hidden.get(path.stem, ())) for path in folder.logs]


def _fault_data(row: FaultRow, duration: float) -> dict[str, Any]:
    return {
        "id": row.window.id,
        "name": row.name,
        "family": row.window.fault,
        "targets": list(row.window.targets),
        "start": row.start,
        "end": duration if row.end is None else row.end,
        "healed": row.end is not None,
        "confirmed": row.window.counts,
    }


def _standstill_data(standstill: Standstill) -> dict[str, Any]:
    """Return a band like that of a fault, though it affected the harness."""
    start, end = standstill.start / 1e9, standstill.end / 1e9
    return {"id": -1, "name": "harness stalled", "family": "standstill", "targets": [], "start": start, "end": end,
            "healed": True, "confirmed": True}  # fmt: skip


def _phases(run: Mapping[str, Any]) -> list[Phase]:
    phases: list[Phase] = []
    for phase in map(mapping, sequence(run.get("phases"))):
        start, end = number(phase.get("start")), number(phase.get("end"))
        if start is not None and end is not None:
            phases.append(Phase(shorten(str(phase.get("name"))), start / 1e9, end / 1e9))
    return phases


def _strips(
    folder: RunFolder, phases: Sequence[Phase], faults: Sequence[FaultRow], roles: Sequence[Lane], duration: float
) -> list[StripLane]:
    nodes = nodes_of(folder.test, folder.history, (path.stem for path in folder.logs))
    return [
        *phase_lanes(phases),
        *fault_lanes(faults, folder.standstills, duration),
        *group_lanes(roles, duration),
        *node_lanes(roles, nodes),
        *leader_strips(leader_lanes(folder.path, duration)),
    ]


def _log_data(log: NodeLog) -> dict[str, Any]:
    return {"node": log.node, "lines": [[line.number, line.time, line.text] for line in log.lines]}


def _anomaly_data(anomaly: ShownAnomaly, tone: str, chosen: Int64s, death: float | None) -> dict[str, Any]:
    spans = [int(at) for at in np.searchsorted(chosen, [op.span for op in anomaly.operations])]
    window = anomaly.window
    return {
        "ident": anomaly.ident,
        "title": anomaly.title,
        "tone": tone,
        "spans": spans,
        "proof": [at for at, op in zip(spans, anomaly.operations, strict=True) if op.proof],
        "start": window[0] if window else None,
        "end": window[1] if window else None,
        "value": anomaly.value,
        "death": death,
    }
