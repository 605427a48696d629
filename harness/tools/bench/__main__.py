"""``make bench``: the project's figures on this machine, written to docs/reference/benchmarks.md.

``python -m harness.tools.bench qpid sending`` measures only the named groups, and writes no file.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from porcupine import bench

from checkers.prepare import prepare
from checkers.synthetic import write_store
from harness.backends.probe import choose_backend
from harness.reproductions.checkout import UNKNOWN, commit_of
from harness.tools.bench.engines import many_runs, one_run
from harness.tools.bench.interpreter import operations_per_second
from harness.tools.bench.reference import elections
from harness.tools.bench.reference.cluster import measure
from harness.tools.bench.reference.events import REPLICAS, event_rates
from harness.tools.bench.reference.fiorano import fiorano_figures
from harness.tools.bench.reference.joram import joram_figures
from harness.tools.bench.reference.nodes import IN_FLIGHT
from harness.tools.bench.reference.qpid import qpid_figures
from harness.tools.bench.report import report_figures
from harness.tools.bench.simulation import WATCHED, demo_seconds, speed, watching
from harness.tools.bench.ssh import shell_figures
from stormproof.errors import StormproofError, UsageError

Row = tuple[str, str, str]
"""The measurement's title, the figure, and the aim or a remark."""
PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "benchmarks.md"
RUNS, EVENTS = 1000, 10_000
REFERENCE = 113e6
"""Turns of an empty loop that Python performs in a second on the machine to which absolute aims refer."""


def main(groups: Sequence[str]) -> None:
    """Measure, print each figure at once, and write the page.

    If groups are named, only these are measured, and the page is not written.
    """
    rows, turns = [], turns_per_second()
    for title, figure, aim in figures(groups):
        there = scaled(figure, aim, turns)
        print(f"{title:72} {figure:>22} {there:>22}  {aim}", flush=True)
        rows.append(f"| {title} | {figure} | {there} | {aim} |")
    if groups:
        return
    lines = [
        "# Benchmarks",
        "",
        f"Made by `make bench` on {datetime.now(UTC):%Y-%m-%d}, {commit()}: {machine()}.",
        "",
        f"*Scaled*: the figure on a machine on which Python makes {REFERENCE / 1e6:.0f} million turns of an empty loop "
        f"a second. This machine made {turns / 1e6:.1f}. Rates and machine-bound times are scaled, time-outs are not.",
        "",
        "| what | measured | scaled | asked for |",
        "| --- | ---: | ---: | --- |",
        *rows,
    ]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def figures(groups: Sequence[str] = ()) -> Iterator[Row]:
    """Yield (what, figure, aim), measured one after the other; only of these groups, if any are named.

    Raises:
        UsageError: a group does not exist.
    """
    if unknown := [name for name in groups if name not in GROUPS]:
        raise UsageError(f"unknown figures {unknown[0]!r} (known: {', '.join(GROUPS)})")
    for name in groups or (name for name in GROUPS if name not in ONLY_BY_NAME):
        yield from GROUPS[name]()


_RATE = re.compile(r"(?:/s|ops/s|a minute)$")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def scaled(figure: str, aim: str, turns: float) -> str:
    """Convert a figure to a machine on which Python is as fast as ``REFERENCE`` says.

    ``turns`` is this machine's number of turns in a second. The result is empty for figures that do not depend on
    speed: counts, ratios, and times that the tested systems' time-outs determine.
    """
    rate = _RATE.search(figure) is not None
    if "turns" in figure or "million/s" in figure or not (rate or (figure.endswith(" s") and aim.startswith("under"))):
        return ""
    factor = REFERENCE / turns if rate else turns / REFERENCE

    def other(found: re.Match[str]) -> str:
        text = found[0]
        digits = len(text.partition(".")[2])
        return f"{float(text.replace(',', '')) * factor:,.{digits}f}"

    return _NUMBER.sub(other, figure)


def harness_figures() -> Iterator[Row]:
    """Yield the figures of the harness itself, simulation included."""
    turns = turns_per_second() / 1e6
    yield "Python alone, to compare machines by: turns of an empty loop", f"{turns:,.1f} million/s", ""
    yield "interpreter, no-op client, real journal", f"{operations_per_second():,.0f} ops/s", "at least 20,000"
    simulated = speed()
    yield "simulated runs (3 nodes, 30 s, 500 ops, faults, checks) on 2 cores", (
        f"{simulated.runs_a_minute:,.0f} a minute"), "at least 1,000, scaled"
    yield "the same: simulated seconds a real second", f"{simulated.simulated_a_second:,.0f}", ""
    for partitions, seconds in demo_seconds().items():
        yield f"the demo's test with {partitions} in simulation, to the report", f"{seconds:.1f} s", "under 10 s"


def watching_figures() -> Iterator[Row]:
    """Yield the cost of invariants in simulation."""
    for system in WATCHED:
        invariants, all_ = watching(system)
        yield f"{system}, simulated: time with invariants over time without", f"{invariants:.2f}", "at most 1.20"
        yield f"{system}, simulated: the same with deadlines", f"{all_:.2f}", ""


def sending_figures() -> Iterator[Row]:
    """Yield the confirmed sends a second of each design, on each backend."""
    for backend in backends():
        standalone = None
        for design, nodes in (("standalone", 1), ("joram", 3), ("qpid", 3)):
            found = measure(backend, design, nodes)
            name = f"{design}, {nodes} node{'s' if nodes > 1 else ''} on {backend}"
            yield f"{name}: up until healthy / down", f"{found.up_s:.2f} / {found.down_s:.2f} s", ""
            yield f"{name}: confirmed sends, 1 producer", f"{found.sends_1:,.0f} /s", ""
            ratio = "" if standalone is None else f"{found.sends_32 / standalone:.2f} of standalone"
            standalone = standalone or found.sends_32
            yield f"{name}: confirmed sends, {IN_FLIGHT} producers", f"{found.sends_32:,.0f} /s", ratio
            if design == "standalone":
                yield f"{name}: interpreter at full rate", f"{found.interpreter_ops:,.0f} ops/s", ""


def backend_figures() -> Iterator[Row]:
    """Yield the figures of commands and cuts on each backend."""
    for backend in (*backends(), "ssh"):
        shells = shell_figures(backend)
        if shells is not None:
            yield f"{backend}: commands on a node, one after the other", f"{shells.commands:,.0f} /s", ""
            yield f"{backend}: 3 nodes split / healed", f"{shells.cut_ms:.0f} / {shells.heal_ms:.0f} ms", ""


def check_figures() -> Iterator[Row]:
    """Yield the time for checking a store of many runs."""
    seconds = check_all()
    what = f"`stormproof check --all`, {RUNS:,} runs, {RUNS * EVENTS:,} events, whole process"
    yield what, f"{seconds:.1f} s", "under 5.6 s, scaled"


def engine_figures() -> Iterator[Row]:
    """Yield the figures of Stormproof's checks, DuckDB and Polars on the same files."""
    yield from many_runs(RUNS, EVENTS)
    yield from one_run(RUNS * EVENTS)


def large_engine_figures() -> Iterator[Row]:
    """Yield the same figures with five times as many events."""
    yield from many_runs(RUNS, 5 * EVENTS)
    yield from one_run(5 * RUNS * EVENTS)


def turns_per_second(turns: int = 5_000_000) -> float:
    """Return the speed of the interpreter itself on this machine: the best of five empty loops."""
    return turns / min(timeit.repeat(number=turns, repeat=5))


def election_figures() -> Iterator[Row]:
    """Yield the times of design icestorm's elections: by the size of the group, and after faults, by the time-outs."""
    for size in elections.SIZES:
        start, again = elections.convergence(size)
        what = f"icestorm, {size} replicas, simulated: normal after start / after the coordinator's kill"
        yield what, f"{start:.2f} / {again:.2f} s", "time-outs 1 s"
    for size in elections.REAL_SIZES:
        found = elections.on_nodes("local", size, 1.0, [elections.KILL])
        what = f"icestorm, {size} replicas on local: normal after start of the processes / after the coordinator's kill"
        yield what, f"{found[elections.START]:.2f} / {found[elections.KILL]:.2f} s", "time-outs 1 s"
    for timeout in (1.0, 0.3):
        found = elections.on_nodes("local", 3, timeout)
        for fault in elections.FAULTS:
            yield f"icestorm, 3 replicas on local: normal again after {fault} of the coordinator", (
                f"{found[fault]:.2f} s"), f"time-outs {timeout:g} s"


def event_figures(backend: str) -> Iterator[Row]:
    """Yield the events a second through design icestorm, by kind of publisher."""
    for case, rates in event_rates(backend):
        what = f"icestorm, {REPLICAS} replicas on {backend}, {case.label()}: events confirmed / delivered"
        yield what, f"{rates.confirmed:,.0f} / {rates.delivered:,.0f} /s", ""


def porcupine_figures(size: float = 1.0) -> Iterator[Row]:
    """Yield the cases of the linearizability checker; ``size`` scales them.

    Raises:
        StormproofError: a verdict was wrong.
    """
    bench.warm_up()  # Compiles the checker, if that has not been done on this machine.
    again = [sys.executable, "-c", "from porcupine import bench; print(bench.warm_up())"]
    first = float(subprocess.run(again, stdout=subprocess.PIPE, check=True).stdout)
    yield "porcupine: first verdicts of a later process", f"{first:.2f} s", "under 1 s"
    for case in bench.targets(size):
        seconds, right = bench.measure(case)
        if not right:
            raise StormproofError(f"porcupine: wrong verdict on {case.name!r}, which is {case.verdict}")
        yield f"porcupine: {case.name} ({case.verdict})", f"{seconds:.4f} s", f"under {case.limit:g} s"
    for case in bench.object_targets(size):
        seconds, turns, right = bench.measure_turns(case)
        if not right:
            raise StormproofError(f"porcupine: wrong verdict on {case.name!r}, which is {case.verdict}")
        asked = "" if case.turns is None else f"under {case.turns:g} million turns"
        yield f"porcupine: {case.name}", f"{seconds * 1e3:.2f} ms, {turns:.2f} million turns", asked


def backends() -> list[str]:
    """Return the backends that work on this machine."""
    working = []
    for name in ("local", "docker"):
        try:
            choose_backend(name)
        except StormproofError:
            continue
        working.append(name)
    return working


def check_all() -> float:
    """Return the wall-clock seconds of the command over a synthetic store, from process start to end."""
    prepare()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for _ in write_store(Path(folder), RUNS, EVENTS):
            pass
        start = time.perf_counter()
        command = [sys.executable, "-m", "harness", "check", "--all", "--store", folder]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        seconds = time.perf_counter() - start
    if done.returncode != 1:
        raise StormproofError(f"the made-up store holds invalid runs, but check ended with status {done.returncode}")
    return seconds


def commit() -> str:
    """Return the commit that is measured, and whether files differ from it."""
    name = commit_of(PAGE.parents[2])
    if name == UNKNOWN:
        return "no commit (a copy without its repository)"
    return f"commit {name.removesuffix('+')}{' with changes' if name.endswith('+') else ''}"


def machine() -> str:
    """Describe this machine in a sentence."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores ({model[1] if model else platform.machine()}), {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f} at the end"
    )


def on_each_backend(rows: Callable[[str], Iterator[Row]]) -> Callable[[], Iterator[Row]]:
    """Return a function that yields a design's figures on all working backends."""
    return lambda: (row for backend in backends() for row in rows(backend))


GROUPS: Mapping[str, Callable[[], Iterator[Row]]] = {
    "harness": harness_figures, "watching": watching_figures, "sending": sending_figures,
    "joram": on_each_backend(joram_figures), "qpid": on_each_backend(qpid_figures),
    "fiorano": on_each_backend(fiorano_figures), "elections": election_figures,
    "events": lambda: event_figures("local"), "backends": backend_figures, "check": check_figures,
    "engines": engine_figures, "engines-large": large_engine_figures,
    "porcupine": porcupine_figures, "report": report_figures,
}  # fmt: skip

ONLY_BY_NAME = frozenset({"engines-large"})
"""Groups that take many minutes, and much memory: measured only if they are named."""

if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        sys.exit(f"error: {error}")
