"""``stormproof demo``: the same faults, twice. Unsafe settings must come out invalid, safe ones valid.

``split``: the master is cut off, with a third of the clients beside it, for longer than three detection time-outs.
Where each side elects its own master (``partitions=unspecified``, as the HA Joram document leaves it) both sides
confirm messages, and one side's are lost when they meet again. Where only a majority may serve, the cut-off master
confirms nothing and nothing is lost. Producers are faster than consumers, so that queues hold messages when the split
comes.

``offline-events``: subscribers are cut off from the replicas that have events for them. IceStorm discards what comes
while a subscriber can't be reached (``offline_events=discarded``), though the subscriber stays; where it is kept, it
arrives.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from checkers.spark import SparkWarmup
from harness.backends.probe import choose_backend
from harness.progress import Queue
from harness.run import RunResult, run_test
from harness.settings import make_test
from stormproof.contracts.check import INVALID, VALID
from stormproof.test import Test

UNSAFE, SAFE = "unsafe", "safe"
EXPECTED = {UNSAFE: INVALID, SAFE: VALID}


@dataclass(frozen=True)
class Demo:
    """A test, and the one setting that makes it unsafe or safe; ``times`` are stretched on slow machines."""

    name: str
    summary: str
    system: str
    workload: str
    nemesis: str
    setting: str
    values: Mapping[str, str]
    time_limit: float
    rate: float
    common: Mapping[str, Any] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    gates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def test(
        self, twin: str, seed: int, backend: str, given: Mapping[str, Any] = MappingProxyType({}), slower: float = 1.0
    ) -> Test:
        """The test of one half: the same plan of load and faults for the same seed.

        ``given`` settings win; ``slower`` stretches all times, for machines that are slow.
        """
        times = {name: value * slower for name, value in self.times.items()}
        settings = {**self.common, **times, **self.gates.get(twin, {}), **given, self.setting: self.values[twin]}
        return make_test(
            system=self.system, workload=self.workload, nemesis=self.nemesis, backend=backend, nodes=3,
            time_limit=self.time_limit * slower, rate=self.rate / slower, seed=seed, settings=settings,
        )  # fmt: skip


DEMOS: Mapping[str, Demo] = {
    demo.name: demo
    for demo in (
        Demo(
            "split", "a three-node HA Joram cluster is split: messages are lost, or not", "joram", "queue", "partition",
            "partitions", {UNSAFE: "unspecified", SAFE: "primary-partition"}, 18.0, 120.0,
            common={"producers": 4, "consumers": 2, "partition_kind": "master"},
            # Of these the last four are the workload's defaults.
            times={"detection_timeout": 1.0, "idle_timeout": 3.0, "fault_duration": 6.0, "op_timeout": 3.0,
                   "open_timeout": 2.0, "client_heartbeat": 0.3, "settle_timeout": 60.0},
            gates={UNSAFE: {"both_sides": True}, SAFE: {"majority_ok": 30}},
        ),
        Demo(
            "offline-events", "subscribers of HA IceStorm are cut off: their events are gone, or wait", "icestorm",
            "events", "partition", "offline_events", {UNSAFE: "discarded", SAFE: "kept"}, 15.0, 120.0,
            common={"partition_kind": "one"}, times={"fault_duration": 3.0, "settle_timeout": 60.0},
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Twin:
    """One half of a demonstration, run; ``seconds`` is its wall time."""

    half: str
    value: str
    result: RunResult
    seconds: float

    @property
    def as_expected(self) -> bool:
        """Whether the unsafe half was invalid, or the safe one valid."""
        return bool(self.result.verdict["verdict"] == EXPECTED[self.half])


def run_twins(
    demo: Demo, seed: int, backend: str, why: str, store: Path, spark: SparkWarmup, given: Mapping[str, Any],
    slower: float, queue: Queue | None = None, done: int = 0,
) -> list[Twin]:  # fmt: skip
    """Run both halves, the unsafe one first; ``queue`` is of all runs, of which so many are ``done``."""
    queue = queue or Queue(2)
    twins = []
    for number, half in enumerate((UNSAFE, SAFE), done + 1):
        value = demo.values[half]
        expected = f"{demo.setting}={value}, seed {seed}: expected {EXPECTED[half]}"
        print(f"\n{queue.line(number)}: {expected}", flush=True)
        start = time.monotonic()
        test = demo.test(half, seed, backend, given, slower)
        result = run_test(test, why, store, spark=spark, place=queue.place(number))
        twins.append(Twin(half, value, result, time.monotonic() - start))
        print(result.verdict["sentence"], flush=True)
    return twins


def run_demo(
    demo: Demo, seed: int, seeds: int, backend: str | None, store: Path, given: Mapping[str, Any], slower: float,
    summary: Path | None,
) -> int:  # fmt: skip
    """Run pairs with consecutive seeds and compare the verdicts; the exit status is 0 when all are as expected."""
    demo.test(SAFE, seed, backend or "local", given, slower)  # complain about a typing error before probing the machine
    chosen, why = choose_backend(backend)
    print(f"backend {chosen}: {why}", flush=True)
    spark = SparkWarmup()
    pairs: list[tuple[int, list[Twin]]] = []
    queue = Queue(2 * seeds)
    try:
        for number in range(seed, seed + seeds):
            done = 2 * len(pairs)
            twins = run_twins(demo, number, chosen, why, store, spark, given, slower, queue, done)
            pairs.append((number, twins))
    finally:
        spark.stop()
        if summary and pairs:
            summary.write_text(_table(demo, chosen, pairs), encoding="utf-8")
    for _, twins in pairs[-1:]:
        print()
        for twin in twins:
            anomalies = ", ".join(f"{name} {count}" for name, count in twin.result.verdict["anomalies"].items())
            print(f"{twin.value:18} {twin.result.verdict['verdict']:8} {anomalies or 'no anomaly'}")
            print(f"{'':18} report: {twin.result.report.resolve()}")
    good = sum(twin.as_expected for _, twins in pairs for twin in twins)
    total = 2 * len(pairs)
    print(f"\n{good} of {total} verdicts as expected")
    return 0 if good == total else 1


def _table(demo: Demo, backend: str, pairs: list[tuple[int, list[Twin]]]) -> str:
    lines = [
        "# Demo runs",
        "",
        f"Made by `stormproof demo {demo.name} --seed {pairs[0][0]} --seeds {len(pairs)} --summary FILE` on backend "
        f"`{backend}`: the unsafe twin must be *invalid*, the safe one *valid*.",
        "",
        f"| seed | {demo.setting} | verdict | as expected | lost | duplicated | operations | ok | seconds |",
        "| ---: | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for seed, twins in pairs:
        for twin in twins:
            verdict = twin.result.verdict
            anomalies, figures = verdict["anomalies"], verdict["figures"]
            lines.append(
                f"| {seed} | {twin.value} | {verdict['verdict']} | {'yes' if twin.as_expected else '**no**'} "
                f"| {anomalies.get('lost', 0)} | {anomalies.get('duplicated', 0)} "
                f"| {figures.get('ops', 0)} | {figures.get('ok', 0)} | {twin.seconds:.0f} |"
            )
    for half, expected in EXPECTED.items():
        good = sum(twin.as_expected for _, twins in pairs for twin in twins if twin.half == half)
        lines += ["", f"`{demo.values[half]}`: {good} of {len(pairs)} *{expected}*."]
    return "\n".join(lines) + "\n"
