"""``stormproof demo``: the same faults, twice. Unsafe settings must give an invalid run, safe ones a valid run.

``split``: a partition isolates the master together with a third of the clients, for longer than three detection
time-outs. If each side elects its own master (``partitions=unspecified``, because the HA Joram document leaves this
open), both sides confirm messages, and those of one side are lost when the partition heals. If only a majority may
serve, the isolated master confirms nothing and nothing is lost. Producers are faster than consumers, so that queues
hold messages when the partition begins.

``offline-events``: subscribers are cut off from the replicas that have events for them. With
``offline_events=discarded``, IceStorm discards events that arrive while a subscriber is unreachable, although the
subscriber stays subscribed. With ``kept``, these events are delivered later.

``fiorano``: the network between the two servers fails. Before FioranoMQ HA had a lock (``lock=false``), both become
STANDALONE; with the lock exactly one does. Then the machine that grants the lock dies. A healthy pair is not affected:
neither server changes its state.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from checkers.spark.session import SparkWarmup
from harness.analysis.run_diff import write_twin
from harness.backends.probe import choose_backend
from harness.run.lifecycle import RunResult, run_test
from harness.run.progress import RunQueue
from harness.run.settings import make_test
from reports.roles import role_lanes
from reports.run_page import write_report
from stormproof.contracts.check import INVALID, VALID
from stormproof.history.ledger import read_ledger
from stormproof.run_folder import LEDGER
from stormproof.test import Test

UNSAFE, SAFE, SCENE = "unsafe", "safe", "scene"
EXPECTED = {UNSAFE: INVALID, SAFE: VALID, SCENE: VALID}
TRACE = "trace"
"""Every demonstration traces messages, to show why one was lost."""
_SECOND = 1e9


@dataclass(frozen=True)
class DemoScene:
    """A third run, after both halves: other faults under the safe setting, during which no node may change its role."""

    name: str
    nemesis: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Demo:
    """A test, and the one setting that makes it unsafe or safe. ``times`` are stretched on slow machines.

    ``gates`` are settings of one half. ``scene`` follows after both halves.
    """

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
    nodes: int = 3
    scene: DemoScene | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The two halves, the unsafe one first, and the scene, if there is one."""
        return (UNSAFE, SAFE, *((SCENE,) if self.scene else ()))

    def test(
        self, twin: str, seed: int, backend: str, given: Mapping[str, Any] = MappingProxyType({}), slower: float = 1.0
    ) -> Test:
        """Return the test of one half, or of the scene. For the same seed, both halves have the same plan of load and
        faults.

        ``given`` settings take precedence. ``slower`` stretches all times, for slow machines.
        """
        times = {name: value * slower for name, value in self.times.items()}
        scene = self.scene if twin == SCENE else None
        own = scene.settings if scene else self.gates.get(twin, {})
        settings = {TRACE: True, **self.common, **times, **own, **given, self.setting: self.value(twin)}
        nemesis = scene.nemesis if scene else self.nemesis
        return make_test(
            system=self.system, workload=self.workload, nemesis=nemesis, backend=backend, nodes=self.nodes,
            time_limit=self.time_limit * slower, rate=self.rate / slower, seed=seed, settings=settings,
        )  # fmt: skip

    def value(self, part: str) -> str:
        """Return the value of the setting for a part of the demo: ``unsafe``, ``safe`` or ``scene``."""
        return self.values[SAFE if part == SCENE else part]


_ALL_LINKS: Mapping[str, Any] = {"partition_kind": "master", "fault_network": "all"}

DEMOS: Mapping[str, Demo] = {
    demo.name: demo
    for demo in (
        Demo(
            "split", "a three-node HA Joram cluster is split: messages are lost, or not", "joram", "queue", "partition",
            "partitions", {UNSAFE: "unspecified", SAFE: "primary-partition"}, 18.0, 120.0,
            common={"producers": 4, "consumers": 2, "partition_kind": "master"},
            # The last four are the workload's defaults.
            times={"detection_timeout": 1.0, "idle_timeout": 3.0, "fault_duration": 6.0, "op_timeout": 3.0,
                   "open_timeout": 2.0, "client_heartbeat": 0.3, "settle_timeout": 60.0},
            gates={UNSAFE: {"both_sides": True}, SAFE: {"majority_ok": 30}},
        ),
        Demo(
            "offline-events", "subscribers of HA IceStorm are cut off: their events are gone, or wait", "icestorm",
            "events", "partition", "offline_events", {UNSAFE: "discarded", SAFE: "kept"}, 15.0, 120.0,
            common={"partition_kind": "one"}, times={"fault_duration": 3.0, "settle_timeout": 60.0},
        ),
        Demo(
            "fiorano", "the link between the two servers of FioranoMQ HA fails, without the lock and with it; then the "
            "gateway dies", "fiorano", "queue", "partition", "lock", {UNSAFE: "false", SAFE: "true"}, 18.0, 120.0,
            common={"producers": 4, "consumers": 2, "client_order": "nearest-first"},
            times={"lease": 1.0, "heartbeat": 0.25, "idle_timeout": 3.0, "fault_duration": 6.0, "op_timeout": 3.0,
                   "open_timeout": 2.0, "client_heartbeat": 0.3, "settle_timeout": 60.0},
            # Clients run next to their server, and reach only that one.
            gates={UNSAFE: {**_ALL_LINKS, "both_sides": True}, SAFE: _ALL_LINKS}, nodes=2,
            scene=DemoScene("the gateway dies", "gateway", {"gateway_kind": "kill"}),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Twin:
    """One completed part of a demonstration. ``seconds`` is its wall time; ``moved`` describes forbidden role
    changes."""

    half: str
    value: str
    result: RunResult
    seconds: float
    moved: str = ""

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the expected one, and no node made a forbidden role change."""
        return bool(self.result.verdict["verdict"] == EXPECTED[self.half]) and not self.moved


def run_twins(
    demo: Demo, seed: int, backend: str, why: str, store: Path, spark: SparkWarmup, given: Mapping[str, Any],
    slower: float, queue: RunQueue | None = None, done: int = 0,
) -> list[Twin]:  # fmt: skip
    """Run both halves, the unsafe one first, and the scene. ``queue`` counts all runs, of which ``done`` are
    complete."""
    queue = queue or RunQueue(len(demo.parts))
    twins = []
    for number, part in enumerate(demo.parts, done + 1):
        value, scene = demo.value(part), demo.scene if part == SCENE else None
        told = f"{scene.name}, {demo.setting}={value}" if scene else f"{demo.setting}={value}"
        print(f"\n{queue.line(number)}: {told}, seed {seed}: expected {EXPECTED[part]}", flush=True)
        start = time.monotonic()
        test = demo.test(part, seed, backend, given, slower)
        result = run_test(test, why, store, spark=spark, place=queue.place(number))
        seconds = time.monotonic() - start
        print(result.verdict["sentence"], flush=True)
        moved = ""
        if scene:
            moved = role_changes(result.run_dir)
            print(f"While it lasted {moved or 'no server changed its state'}.", flush=True)
        twins.append(Twin(part, scene.name if scene else value, result, seconds, moved))
    return twins


def role_changes(run_dir: Path) -> str:
    """Return which nodes changed their role while a fault was active, and their new roles, as a clause; empty if none
    did."""
    faults = read_ledger(run_dir / LEDGER)
    changed = [
        f"{lane.node} became {stretch.role}"
        for lane in role_lanes(run_dir, faults, float("inf"))
        for stretch in lane.stretches
        for fault in faults
        if fault.start / _SECOND < stretch.start < (float("inf") if fault.end is None else fault.end / _SECOND)
    ]
    return ", ".join(dict.fromkeys(changed))


def run_demo(
    demo: Demo, seed: int, seeds: int, backend: str | None, store: Path, given: Mapping[str, Any], slower: float,
    summary: Path | None,
) -> int:  # fmt: skip
    """Run pairs with consecutive seeds and compare the verdicts. The exit status is 0 when all are as expected."""
    for part in demo.parts:  # report a typing error before probing the machine
        demo.test(part, seed, backend or "local", given, slower)
    chosen, why = choose_backend(backend)
    print(f"backend {chosen}: {why}", flush=True)
    spark = SparkWarmup()
    pairs: list[tuple[int, list[Twin]]] = []
    queue = RunQueue(len(demo.parts) * seeds)
    try:
        for number in range(seed, seed + seeds):
            done = len(demo.parts) * len(pairs)
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
            shown = twin.value if twin.half == SCENE else f"{demo.setting}={twin.value}"
            print(f"{shown:28} {twin.result.verdict['verdict']:8} {twin.moved or anomalies or 'no anomaly'}")
            print(f"{'':28} report: {twin.result.report.resolve()}")
    for _, twins in pairs[-1:]:
        page = beside(twins, store)
        if page is not None:
            print(f"{'the unsafe run beside the safe one':36} {page.resolve()}")
    good = sum(twin.as_expected for _, twins in pairs for twin in twins)
    total = len(demo.parts) * len(pairs)
    print(f"\n{good} of {total} verdicts as expected")
    return 0 if good == total else 1


def beside(twins: Sequence[Twin], store: Path) -> Path | None:
    """Write the page that shows the unsafe half next to the safe one; the report of the unsafe half links to it. Return
    None if a half is missing."""
    halves = {twin.half: twin.result.run_dir for twin in twins}
    if UNSAFE not in halves or SAFE not in halves:
        return None
    page = write_twin(store, halves[UNSAFE], halves[SAFE])
    write_report(halves[UNSAFE])
    return page


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
    for part in demo.parts:
        shown = [twin for _, twins in pairs for twin in twins if twin.half == part]
        good = sum(twin.as_expected for twin in shown)
        lines += ["", f"`{shown[0].value}`: {good} of {len(pairs)} *{EXPECTED[part]}*."]
    return "\n".join(lines) + "\n"
