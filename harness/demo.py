"""``make demo``: the same split, twice. Unsafe settings must come out invalid, safe ones valid.

The master is cut off, with a third of the clients beside it, for longer than three detection time-outs. Where each
side elects its own master (``partitions=unspecified``, as the HA Joram document leaves it) both sides confirm
messages, and one side's are lost when they meet again. Where only a majority may serve, the cut-off master confirms
nothing and nothing is lost. Producers are faster than consumers, so that queues hold messages when the split comes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from checkers.spark import SparkWarmup
from harness.backends.probe import choose_backend
from harness.cli import SET_HELP, run_app
from harness.run import Outcome, run_test
from harness.settings import make_test, parse_assignments
from harness.spec import Test

UNSAFE = "unspecified"
SAFE = "primary-partition"
EXPECTED = {UNSAFE: "invalid", SAFE: "valid"}

_COMMON: Mapping[str, Any] = {
    "producers": 4,
    "consumers": 2,
    "partition_kind": "master",
}
# Of these the last four are the workload's defaults.
_TIMES: Mapping[str, float] = {
    "detection_timeout": 1.0,
    "idle_timeout": 3.0,
    "fault_duration": 6.0,
    "op_timeout": 3.0,
    "open_timeout": 2.0,
    "client_heartbeat": 0.3,
    "settle_timeout": 60.0,
}
_GATES: Mapping[str, Mapping[str, Any]] = {UNSAFE: {"both_sides": True}, SAFE: {"majority_ok": 30}}


@dataclass(frozen=True)
class Twin:
    """One half of the demo, run; ``seconds`` is its wall time."""

    partitions: str
    outcome: Outcome
    seconds: float

    @property
    def as_expected(self) -> bool:
        """Whether the unsafe half was invalid, or the safe one valid."""
        return bool(self.outcome.verdict["verdict"] == EXPECTED[self.partitions])


def demo_test(
    partitions: str, seed: int, backend: str, given: Mapping[str, Any] = MappingProxyType({}), slower: float = 1.0
) -> Test:
    """The test of one half: the same plan of load and faults for the same seed.

    ``given`` settings win; ``slower`` stretches all times, for machines that are slow.
    """
    times = {name: value * slower for name, value in _TIMES.items()}
    return make_test(
        design="joram",
        workload="queue",
        nemesis="partition",
        backend=backend,
        nodes=3,
        time_limit=18.0 * slower,
        rate=120.0 / slower,
        seed=seed,
        settings={**_COMMON, **times, **_GATES[partitions], **given, "partitions": partitions},
    )


def run_twins(
    seed: int, backend: str, why: str, store: Path, spark: SparkWarmup, given: Mapping[str, Any], slower: float
) -> list[Twin]:
    """Run both halves, the unsafe one first."""
    twins = []
    for partitions in (UNSAFE, SAFE):
        print(f"\npartitions={partitions}, seed {seed}: expected {EXPECTED[partitions]}", flush=True)
        start = time.monotonic()
        outcome = run_test(demo_test(partitions, seed, backend, given, slower), why, store, spark=spark)
        twins.append(Twin(partitions, outcome, time.monotonic() - start))
        print(outcome.verdict["sentence"], flush=True)
    return twins


def demo(
    seed: Annotated[int, typer.Option(help="seed of the first pair of runs")] = 7,
    seeds: Annotated[int, typer.Option(help="number of pairs, with consecutive seeds", min=1)] = 1,
    backend: Annotated[str | None, typer.Option(help="docker, local, sim or ssh  [default: the strongest]")] = None,
    store: Annotated[Path, typer.Option(help="folder that holds the runs")] = Path("runs"),
    settings: Annotated[list[str] | None, typer.Option("--set", help=SET_HELP)] = None,
    slower: Annotated[float, typer.Option(help="stretch all times, for slow machines", min=1)] = 1.0,
    summary: Annotated[Path | None, typer.Option(help="write a table of all pairs to this Markdown file")] = None,
) -> None:
    """Split a replicated broker under unsafe and under safe settings and compare the verdicts."""
    given = parse_assignments(settings or [])
    demo_test(SAFE, seed, backend or "local", given, slower)  # complain about a typing error before probing the machine
    chosen, why = choose_backend(backend)
    print(f"backend {chosen}: {why}", flush=True)
    spark = SparkWarmup()
    pairs = []
    try:
        for number in range(seed, seed + seeds):
            pairs.append((number, run_twins(number, chosen, why, store, spark, given, slower)))
    finally:
        spark.stop()
        if summary and pairs:
            summary.write_text(_table(chosen, pairs), encoding="utf-8")
    for _, twins in pairs[-1:]:
        print()
        for twin in twins:
            anomalies = ", ".join(f"{name} {count}" for name, count in twin.outcome.verdict["anomalies"].items())
            print(f"{twin.partitions:18} {twin.outcome.verdict['verdict']:8} {anomalies or 'no anomaly'}")
            print(f"{'':18} report: {twin.outcome.report.resolve()}")
    good = sum(twin.as_expected for _, twins in pairs for twin in twins)
    total = 2 * len(pairs)
    print(f"\n{good} of {total} verdicts as expected")
    raise typer.Exit(0 if good == total else 1)


def _table(backend: str, pairs: list[tuple[int, list[Twin]]]) -> str:
    lines = [
        "# Demo runs",
        "",
        f"Made by `python -m harness.demo --seed {pairs[0][0]} --seeds {len(pairs)} --summary FILE` on backend "
        f"`{backend}`: the unsafe twin must be *invalid*, the safe one *valid*.",
        "",
        "| seed | partitions | verdict | as expected | lost | duplicated | operations | ok | seconds |",
        "| ---: | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for seed, twins in pairs:
        for twin in twins:
            verdict = twin.outcome.verdict
            anomalies, figures = verdict["anomalies"], verdict["figures"]
            lines.append(
                f"| {seed} | {twin.partitions} | {verdict['verdict']} | {'yes' if twin.as_expected else '**no**'} "
                f"| {anomalies.get('lost', 0)} | {anomalies.get('duplicated', 0)} "
                f"| {figures.get('ops', 0)} | {figures.get('ok', 0)} | {twin.seconds:.0f} |"
            )
    for partitions, expected in EXPECTED.items():
        good = sum(twin.as_expected for _, twins in pairs for twin in twins if twin.partitions == partitions)
        lines += ["", f"`{partitions}`: {good} of {len(pairs)} *{expected}*."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(demo)
    run_app(app)
