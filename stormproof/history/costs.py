"""The resource usage of a run's machines: ``costs.jsonl``, one line for each sample of a machine.

A line has ``time`` (nanoseconds of the run), ``node`` (or the name of a helper machine), and the fields of
``stormproof.contracts.backend.Usage``; counters continue across a restart of the node or of the sampling. If a machine
could not be sampled, the line has ``trouble``, the reason, instead. Each line is written as a whole, so whatever ends
the harness leaves at most one torn last line, which readers skip.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from stormproof.contracts.backend import Usage
from stormproof.errors import HistoryError
from stormproof.history.read_limits import read_small_text

COUNTERS = ("cpu", "read", "written", "received", "sent", "sampling")
"""The cumulative fields of ``Usage``; the other fields are current values."""
LATE = 3.0
"""The number of intervals after which a sample counts as missing: the usage in the gap is known, its time is not."""
MAX_REASON = 200
_NAMES = tuple(field.name for field in fields(Usage))
_WHOLE = frozenset(_NAMES) - {"cpu", "sampling"}
_MAY_LACK = frozenset({"disk", "read", "written"})


@dataclass(frozen=True)
class Sample:
    """A machine's usage at a time (seconds of the run)."""

    time: float
    usage: Usage


@dataclass(frozen=True)
class Trouble:
    """The time (seconds of the run) from which a machine could not be sampled, and the reason."""

    time: float
    reason: str


@dataclass(frozen=True)
class NodeCosts:
    """The samples and troubles of one machine, in order of time."""

    samples: tuple[Sample, ...] = ()
    troubles: tuple[Trouble, ...] = ()

    def gaps(self) -> list[tuple[float, float | None]]:
        """Return the (start, end) of each period without samples because of a trouble; the end is None for the run's
        end.
        """
        found: list[tuple[float, float | None]] = []
        for trouble in self.troubles:
            if found and (found[-1][1] is None or found[-1][1] >= trouble.time):
                continue
            start = max((each.time for each in self.samples if each.time <= trouble.time), default=trouble.time)
            end = next((each.time for each in self.samples if each.time > trouble.time), None)
            found.append((start, end))
        return found


def sample_line(time: int, node: str, usage: Usage) -> str:
    """Return the line of a sample at ``time`` nanoseconds."""
    return json.dumps({"time": time, "node": node, **asdict(usage)}) + "\n"


def trouble_line(time: int, node: str, reason: str) -> str:
    """Return the line of a machine that can't be sampled from ``time`` (nanoseconds) on."""
    return json.dumps({"time": time, "node": node, "trouble": " ".join(reason.split())[:MAX_REASON]}) + "\n"


def added(before: Usage | None, since: Usage) -> Usage:
    """Return the total usage: before the counters were reset, and since then."""
    if before is None:
        return since
    told = asdict(since)
    for name in COUNTERS:
        old = getattr(before, name)
        if old is not None:  # a value that was missing for a while is not lost
            told[name] = old if told[name] is None else old + told[name]
    return Usage(**told)


def read_costs(path: Path) -> dict[str, NodeCosts]:
    """Return the costs of each machine, by its name; empty if none were recorded. Malformed lines are skipped.

    Raises:
        HistoryError: the file is too large, or the path is not a file. OSError: the file can't be read.
    """
    try:
        lines = read_small_text(path).splitlines()
    except FileNotFoundError:
        return {}
    samples: dict[str, list[Sample]] = {}
    troubles: dict[str, list[Trouble]] = {}
    for line in lines:
        row = _row(line)
        node, time = row.get("node"), _number(row.get("time"))
        if not isinstance(node, str) or time is None:
            continue
        if isinstance(row.get("trouble"), str):
            troubles.setdefault(node, []).append(Trouble(time / 1e9, row["trouble"][:MAX_REASON]))
        elif (usage := _usage(row)) is not None:
            samples.setdefault(node, []).append(Sample(time / 1e9, usage))
    return {node: NodeCosts(tuple(sorted(samples.get(node, ()), key=lambda each: each.time)),
                            tuple(sorted(troubles.get(node, ()), key=lambda each: each.time)))
            for node in dict.fromkeys([*samples, *troubles])}  # fmt: skip


def _row(line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 63:
        return None
    return value if math.isfinite(value) else None


def _usage(row: Mapping[str, Any]) -> Usage | None:
    found: dict[str, Any] = {}
    for name in _NAMES:
        value = _number(row.get(name))
        if value is None and not (name in _MAY_LACK and row.get(name) is None):
            return None
        found[name] = int(value) if name in _WHOLE and value is not None else value
    return Usage(**found)


def grown(samples: Sequence[Sample], name: str) -> float | None:
    """Return the growth of a counter over some samples; None if no sample has it. Counters never shrink: an apparent
    decrease is a reset of the counter, and counts as 0."""
    told = [value for each in samples if (value := getattr(each.usage, name)) is not None]
    if not told:
        return None
    return float(sum(max(0, new - old) for old, new in itertools.pairwise(told)))


def since(costs: NodeCosts, start: float) -> Sequence[Sample]:
    """Return the samples from ``start`` (seconds) on, and the last one before ``start`` as the base of the counts."""
    first = max((at for at, each in enumerate(costs.samples) if each.time <= start), default=0)
    return costs.samples[first:]


def totals(costs: NodeCosts, start: float) -> dict[str, float | int | None]:
    """Return a machine's usage from ``start`` (seconds) on; empty if there are no samples.

    CPU and sampling times are in seconds, ``seconds`` is the length of the sampled period; all other values are bytes.
    """
    samples = since(costs, start)
    if not samples:
        return {}
    disk = [each.usage.disk for each in samples if each.usage.disk is not None]
    counted = {name: grown(samples, name) for name in COUNTERS}
    return {
        "seconds": round(samples[-1].time - samples[0].time, 3), "samples": len(samples),
        "cpu_s": round(counted["cpu"] or 0.0, 2), "memory_peak": max(each.usage.memory for each in samples),
        "disk_peak": max(disk, default=None), "disk_end": disk[-1] if disk else None,
        **{name: None if (value := counted[name]) is None else int(value)
           for name in ("read", "written", "received", "sent")},
        "sampling_s": round(counted["sampling"] or 0.0, 3),
    }  # fmt: skip


def summary(path: Path, start: float, interval: float) -> dict[str, Any] | None:
    """Return the costs for a run's ``run.json``: totals of each machine from ``start`` (seconds) on, and the troubles
    of machines that could not be sampled. None if no costs were recorded. Never raises because of a damaged file."""
    try:
        costs = read_costs(path)
    except (HistoryError, OSError) as error:
        return {"interval_s": interval, "since_s": start, "nodes": {}, "troubles": {"": {"reason": str(error)}}}
    if not costs:
        return None
    troubled = {
        node: {"times": len(each.troubles), "reason": each.troubles[0].reason,
               "gaps": [[round(begin, 3), None if end is None else round(end, 3)] for begin, end in each.gaps()[:20]]}
        for node, each in sorted(costs.items()) if each.troubles
    }  # fmt: skip
    return {"interval_s": interval, "since_s": round(start, 3),
            "nodes": {node: found for node, each in sorted(costs.items()) if (found := totals(each, start))},
            "troubles": troubled}  # fmt: skip
