"""The resources that the machines of a run used, for its page: totals of each, and lines on the timeline's axis."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.folder import mapping, number, sequence
from reports.pack import shorten
from reports.plots import BYTE_RATE, BYTES, PERCENT, Plot, PlotLine
from stormproof.errors import HistoryError
from stormproof.history.costs import LATE, NodeCosts, Sample, read_costs
from stormproof.run_folder import COSTS
from stormproof.text import amount, elapsed, size

MAX_NODES = 12
"""Upper bound of the machines that are drawn."""
MAX_POINTS = 600
"""Upper bound of the points of one line: more samples are thinned out."""
COLOURS = ("f0", "f1", "f2", "f3", "info", "fault-1")


@dataclass(frozen=True)
class CostRow:
    """One machine's totals, in words."""

    node: str
    cpu: str
    memory: str
    disk: str
    written: str
    read: str
    sent: str
    received: str


@dataclass(frozen=True)
class CostTable:
    """The resources that the machines used under the load: a row each, and sentences about the cost of a message and
    about missing measurements."""

    rows: tuple[CostRow, ...] = ()
    each: str = ""
    sampling: str = ""
    troubles: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rows or self.troubles)


def cost_table(run: Mapping[str, Any], verdict: Mapping[str, Any]) -> CostTable:
    """Return the totals of ``run.json`` and of the verdict."""
    costs = mapping(run.get("costs"))
    nodes = {str(node): mapping(told) for node, told in mapping(costs.get("nodes")).items()}
    rows = tuple(_row(node, told) for node, told in nodes.items())
    troubles = tuple(_trouble(str(node), mapping(told)) for node, told in mapping(costs.get("troubles")).items())
    shares = [share for told in nodes.values() if (share := _share(told, "sampling_s")) is not None]
    interval = number(costs.get("interval_s"))
    sampling = (f"Sampled every {interval:g} s. Sampling used at most {max(shares):.2f} % of a core on each machine."
                if shares and interval is not None else "")  # fmt: skip
    return CostTable(rows, _each(mapping(mapping(verdict.get("figures")).get("costs"))), sampling, troubles)


def _row(node: str, told: Mapping[str, Any]) -> CostRow:
    cpu, share = number(told.get("cpu_s")), _share(told, "cpu_s")
    end, peak = _bytes(told, "disk_end"), _bytes(told, "disk_peak")
    return CostRow(
        shorten(node), "—" if cpu is None else elapsed(cpu) + ("" if share is None else f" ({share:.1f} %)"),
        _bytes(told, "memory_peak"), end if end == peak else f"{end} (peak {peak})",
        *(_bytes(told, name) for name in ("written", "read", "sent", "received")),
    )  # fmt: skip


def _share(told: Mapping[str, Any], name: str) -> float | None:
    """Return the share of one core, in percent."""
    used, seconds = number(told.get(name)), number(told.get("seconds"))
    return 100 * used / seconds if used is not None and seconds else None


def _bytes(told: Mapping[str, Any], name: str) -> str:
    value = number(told.get(name))
    return "—" if value is None or value < 0 else size(int(value))


def _each(figures: Mapping[str, Any]) -> str:
    cpu, count = number(figures.get("cpu_ms_each")), number(figures.get("count"))
    if cpu is None or not count:
        return ""
    lower = "" if figures.get("complete") is True else "; a lower bound, since some measurements are missing"
    written, sent = _bytes(figures, "written_each"), _bytes(figures, "sent_each")
    return (f"Each {shorten(str(figures.get('each')))} took {cpu:,.2f} ms of CPU, {written} written and {sent} sent, "
            f"on all machines together ({int(count):,} of them{lower}).")


def _trouble(node: str, told: Mapping[str, Any]) -> str:
    reason = shorten(str(told.get("reason") or "unknown reason"))
    if not node:
        return f"The recorded measurements can't be read: {reason}."
    gaps = [(number(gap[0]), number(gap[1])) for gap in sequence(told.get("gaps")) if len(sequence(gap)) == 2]
    spans = [f"from {begin:.1f} s {'on' if end is None else f'to {end:.1f} s'}"
             for begin, end in gaps[:3] if begin is not None]  # fmt: skip
    more = len(gaps) - 3
    when = ", ".join(spans) + (f" and {amount(more, 'time more', 'times more')}" if more > 0 else "")
    return f"{shorten(node)} could not be measured{' ' + when if when else ''}: {reason}."


def cost_plots(run_dir: Path) -> list[Plot]:
    """Return lines over time: CPU, memory, disk, network; empty where no costs were recorded or can be read."""
    try:
        costs = read_costs(run_dir / COSTS)
    except (OSError, HistoryError):
        return []  # a report omits unreadable parts; the table reports the error
    names = sorted((node for node, each in costs.items() if each.samples), key=lambda node: (len(node), node))
    drawn = {node: costs[node] for node in names[:MAX_NODES]}
    plots = [
        Plot("cost-cpu", "CPU", "of one core, by machine", PERCENT, _rates(drawn, "cpu", 100.0)),
        Plot("cost-memory", "Memory", "resident, of the system's programs", BYTES, _levels(drawn, "memory")),
        Plot("cost-sent", "Sent", "bytes on the wire a second", BYTE_RATE, _rates(drawn, "sent", 1.0)),
        Plot("cost-written", "Written", "bytes to storage a second", BYTE_RATE, _rates(drawn, "written", 1.0)),
        Plot("cost-disk", "On disk", "size of the system's data", BYTES, _levels(drawn, "disk")),
    ]
    return [plot for plot in plots if any(value is not None for line in plot.lines for value in line.values)]


def _lines(costs: Mapping[str, NodeCosts], value: Callable[[Sample, Sample], float | None]) -> list[PlotLine]:
    lines = []
    for at, (node, each) in enumerate(costs.items()):
        samples = _thinned(each.samples)
        usual = sorted(new.time - old.time for old, new in itertools.pairwise(samples))
        late = LATE * (usual[len(usual) // 2] if usual else 0.0)
        times: list[float] = []
        values: list[float | None] = []
        for old, new in itertools.pairwise(samples):
            if new.time - old.time > late or any(old.time < trouble.time < new.time for trouble in each.troubles):
                times.append(round((old.time + new.time) / 2, 3))
                values.append(None)  # the use in the meantime is part of the totals
            else:
                times.append(round(new.time, 3))
                values.append(value(old, new))
        lines.append(PlotLine(shorten(node), values, COLOURS[at % len(COLOURS)], at // len(COLOURS), times=times))
    return lines


def _thinned(samples: Sequence[Sample]) -> Sequence[Sample]:
    step = -(-len(samples) // MAX_POINTS) or 1
    return samples[::step]


def _rates(costs: Mapping[str, NodeCosts], name: str, factor: float) -> list[PlotLine]:
    def rate(old: Sample, new: Sample) -> float | None:
        before: float | None = getattr(old.usage, name)
        now: float | None = getattr(new.usage, name)
        if before is None or now is None or new.time <= old.time:
            return None
        return round(factor * max(0, now - before) / (new.time - old.time), 2)

    return _lines(costs, rate)


def _levels(costs: Mapping[str, NodeCosts], name: str) -> list[PlotLine]:
    def level(_: Sample, new: Sample) -> float | None:
        found = getattr(new.usage, name)
        return None if found is None else float(found)

    return _lines(costs, level)
