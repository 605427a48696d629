"""``python -m harness.tools.bench.reference.reasons``: thirty failures with known causes, and their pages.

They are two failures of each replicated design by its settings, twenty by injected bugs, drawn by a seed, and published
misbehaviours of the real systems that are installed here. The program writes a table into docs/reports.md. A person
judges the correctness of a page, once for each kind of reason that it may give (``JUDGED``); a reason that was not
judged does not count. Words on the command line select failures by their names; these are printed, and no file is
written.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.analysis.coverage import note_log_events
from harness.analysis.guarantee_matrix import cases_of, modes_of
from harness.reference.mutants import case_of
from harness.reproductions.recipes import find_recipe, recipes
from harness.run.cases import Case
from harness.sim.campaign import FAILED, run_and_judge
from harness.sim.pool import worker_pool
from nodes.reference.bugs import BUGS
from nodes.systems.catalog import SYSTEMS
from reports.folder import read_folder
from reports.run_page import CheckGroup, explain
from stormproof.contracts.check import INVALID
from stormproof.contracts.guarantee import guarantee_for
from stormproof.store import Store

BY_SETTINGS = (
    ("joram", "unspecified partitions", "queue"), ("joram", "unspecified partitions", "topic"),
    ("qpid", "LM4 as documented", "queue"), ("qpid", "LM1 as documented", "queue"),
    ("fiorano", "no lock", "queue"), ("fiorano", "no fencing", "queue"),
    ("icestorm", "offline events discarded", "events"), ("icestorm", "as IceStorm 3.7", "events"),
)  # fmt: skip
"""System, mode, workload."""
REAL = (("redis-D1", "redis-server"), ("redis-D2", "redis-server"), ("mosquitto-M1", "mosquitto"),
        ("rabbitmq-R1", "rabbitmq-server"), ("etcd-E3", "etcd"), ("nats-N1", "nats-server"),
        ("redis-D3", "redis-server"), ("activemq-A2", "activemq"), ("rabbitmq-R2", "rabbitmq-server"),
        ("rabbitmq-R3", "rabbitmq-server"), ("etcd-E2", "etcd"), ("icestorm-I1", "icebox"), ("icestorm-I2", "icebox"),
        )  # fmt: skip
"""Published misbehaviours, each with a program whose presence shows that the system is installed."""
DRAWN, SEED, BUDGET = 20, 26, 60
"""The number of bugs drawn, the seed of the draw, and the number of seeds tried for each failure."""

RIGHT, IN_PART, CANT_TELL, WRONG = "right", "in part", "can't tell", "**wrong**"
NOT_JUDGED, NOT_SHOWN = "not judged", "not shown"
JUDGED: Mapping[tuple[str, str, str], str] = {
    ("joram, unspecified partitions, queue", "lost", "replaced"): RIGHT,
    ("joram, unspecified partitions, queue", "duplicated", "kept-elsewhere"): RIGHT,
    ("joram, unspecified partitions, topic", "topic-lost", "replaced"): RIGHT,
    ("joram, unspecified partitions, topic", "topic-duplicated", "kept-elsewhere"): RIGHT,
    ("qpid, LM4 as documented, queue", "duplicated", "kept-elsewhere"): RIGHT,
    ("qpid, LM1 as documented, queue", "lost", "passed-over:replaced"): RIGHT,
    ("qpid, LM1 as documented, queue", "lost", "replaced"): IN_PART,
    ("fiorano, no lock, queue", "lost", "replaced"): RIGHT,
    ("fiorano, no lock, queue", "duplicated", "kept-elsewhere"): RIGHT,
    ("fiorano, no fencing, queue", "lost", "replaced"): RIGHT,
    ("fiorano, no fencing, queue", "duplicated", "kept-elsewhere"): IN_PART,
    ("fiorano, no fencing, queue", "depth", "kept-elsewhere"): IN_PART,
    ("icestorm, offline events discarded, events", "event-lost", "discarded"): RIGHT,
    ("icestorm, as IceStorm 3.7, events", "event-lost", "discarded"): RIGHT,
    ("bug ack-on-master-only", "duplicated", "kept-elsewhere"): RIGHT,
    ("bug ack-on-master-only", "depth", "kept-elsewhere"): RIGHT,
    ("bug branches-forgotten", "prepared", "prepared:open"): RIGHT,
    ("bug commit-unmatched", "availability", "breach"): CANT_TELL,
    ("bug commit-unmatched", "recovery", "breach"): RIGHT,
    ("bug catch-up-misses-changes", "lost", "replaced+reset"): RIGHT,
    ("bug conflicting-tail-kept", "lost", "log-kept:acknowledged+replaced"): RIGHT,
    ("bug conflicting-tail-kept", "duplicated", "log-kept:came-back"): RIGHT,
    ("bug conflicting-tail-kept", "lost", "acknowledged+replaced"): IN_PART,
    ("bug conflicting-tail-kept", "duplicated", "came-back"): IN_PART,
    ("bug exclusion-not-noted", "lost", "replaced+reset"): RIGHT,
    ("bug exclusion-not-noted", "duplicated", "kept-elsewhere"): IN_PART,
    ("bug failed-event-last", "event-order", "retried-late"): RIGHT,
    ("bug inquorate-broker-lives", "lost", "replaced"): RIGHT,
    ("bug inquorate-broker-lives", "duplicated", "kept-elsewhere"): RIGHT,
    ("bug dequeue-not-sent", "duplicated", "kept-elsewhere"): RIGHT,
    ("bug oldest-database-wins", "metadata", "against-majority"): RIGHT,
    ("bug orphans-never-expire", "depth", "held-by-connection"): RIGHT,
    ("bug receipt-before-standby", "lost", "replaced"): RIGHT,
    ("bug receipt-before-standby", "duplicated", "kept-elsewhere"): RIGHT,
    ("bug receipt-on-arrival", "lost", "never-applied"): RIGHT,
    ("bug redelivery-uncounted", "redelivery", "uncounted"): RIGHT,
    ("bug requeued-twice", "duplicated", "put-again"): RIGHT,
    ("bug stale-coordinator-stays", "metadata", "disagreed"): RIGHT,
    ("bug stale-coordinator-stays", "elections", "breach"): RIGHT,
    ("bug read-on-arrival", "register", "read-unordered"): RIGHT,
    ("bug stale-standby-serves", "lost", "stale-holder:held:"): RIGHT,
    ("bug stale-standby-serves", "lost", "held:"): CANT_TELL,
    ("bug stale-standby-serves", "depth", "never-given"): CANT_TELL,
    ("bug stale-standby-serves", "depth", "stale-holder:kept-elsewhere"): RIGHT,
    ("bug transfer-forgets-marked", "lost", "state-unlike:replaced"): RIGHT,
    ("bug transfer-forgets-marked", "lost", "state-unlike:acknowledged+replaced"): RIGHT,
    ("bug transfer-forgets-marked", "duplicated", "state-unlike:kept-elsewhere"): RIGHT,
    ("bug transfer-forgets-marked", "lost", "replaced"): IN_PART,
    ("bug transfer-forgets-marked", "lost", "acknowledged+replaced"): IN_PART,
    ("bug transfer-forgets-marked", "duplicated", "kept-elsewhere"): IN_PART,
    ("bug two-holders", "lost", "two-holders:replaced"): RIGHT,
    ("bug two-holders", "duplicated", "two-holders:kept-elsewhere"): RIGHT,
    ("bug two-holders", "lost", "replaced"): RIGHT,
    ("bug two-holders", "duplicated", "kept-elsewhere"): IN_PART,
    ("activemq-A2", "lost", "power"): RIGHT,
    ("etcd-E2", "watch-order", "watch-cut-off"): RIGHT,
    ("etcd-E3", "mutual-exclusion", "lease-outlived"): RIGHT,
    ("etcd-E3", "lost-update", "lease-outlived"): RIGHT,
    ("icestorm-I1", "event-lost", "ended"): RIGHT,
    ("icestorm-I2", "event-lost", "silenced"): RIGHT,
    ("mosquitto-M1", "lost", "ended"): RIGHT,
    ("nats-N1", "lost", "power"): RIGHT,
    ("rabbitmq-R1", "lost", "stood-still"): RIGHT,
    ("rabbitmq-R2", "lost", "joined-anew"): RIGHT,
    ("rabbitmq-R3", "lost-update", "session-outlived"): RIGHT,
    ("rabbitmq-R3", "mutual-exclusion", "session-outlived"): RIGHT,
    ("redis-D1", "lost", "cut-off"): RIGHT,
    ("redis-D2", "lost", "ended"): RIGHT,
    ("redis-D3", "lost", "power"): RIGHT,
}
"""(failure, check, kind of reason) -> how right the reason is. *In part*: it is true, but lacks the decisive step."""

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reports.md"
BEGIN, END = "<!-- Made by python -m harness.tools.bench.reference.reasons: -->", "<!-- until here. -->"


@dataclass(frozen=True)
class Failure:
    """One failure: its name, the true cause, and the case that provokes it; a real one has a recipe instead."""

    name: str
    truth: str
    case: Case | None = None


@dataclass(frozen=True)
class ReportedCause:
    """A page's statement about a violated guarantee.

    It holds the most frequent reason and its ``code``, and the share of the anomalies named in the verdict that it
    explains. The code is empty if the page cannot tell the reason.
    """

    check: str
    code: str
    sentence: str
    share: str


def failures(seed: int) -> list[Failure]:
    """Return all failures that can be simulated; ``seed`` draws the bugs."""
    found = []
    for system, mode, workload in BY_SETTINGS:
        case = next(each for each in cases_of(system, modes_of(system)[mode]) if each.workload == workload)
        found.append(Failure(f"{system}, {mode}, {workload}", "", _traced(case)))
    bugs = sorted(name for name, bug in BUGS.items() if not bug.drawn)
    found += [Failure(f"bug {name}", BUGS[name].summary, _traced(case_of(name)))
              for name in sorted(random.Random(seed).sample(bugs, DRAWN))]  # fmt: skip
    return found


def _traced(case: Case) -> Case:
    return replace(case, settings={**case.settings, "trace": "true"})


def simulated(failure: Failure, scratch: Path) -> tuple[Failure, tuple[ReportedCause, ...]]:
    """Simulate seeds until one is invalid; returns the failure, with the true cause, and its page's statements.

    The statements are empty if no run is invalid.
    """
    assert failure.case is not None
    for seed in range(1, BUDGET + 1):
        result, verdict = run_and_judge(failure.case, seed, Path("runs"), scratch, FAILED)
        if verdict is None or result.verdict != INVALID or result.run_dir is None:
            continue
        note_log_events(result.run_dir, over=True)
        told = tuple(_told(explain(read_folder(result.run_dir)).checks))
        return replace(failure, truth=failure.truth or _declared(failure.case, seed, told)), told
    return failure, ()


def _declared(case: Case, seed: int, told: Sequence[ReportedCause]) -> str:
    """Return why, by the system's document, guarantees cannot be kept in this mode: the true cause of its failures."""
    test = case.test(seed)
    declared = SYSTEMS.load(case.system).guarantees
    found = [guarantee_for(declared, each.check, test.options, test.nemesis) for each in told]
    return "; ".join(dict.fromkeys(guarantee.why for guarantee in found if guarantee is not None))


def real(name: str) -> tuple[Failure, tuple[ReportedCause, ...]]:
    """Run the failing arm of a published misbehaviour on this machine, and read its page."""
    recipe = find_recipe(name, recipes())
    failure = Failure(name, recipe.claim)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "harness", "reproduce", name, "--arm", "fails", "--store", folder]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        for run_dir in Store(Path(folder)).runs():
            return failure, tuple(_told(explain(read_folder(run_dir)).checks))
    return failure, ()


def _told(checks: Sequence[CheckGroup]) -> Iterator[ReportedCause]:
    for check in checks:
        if not check.decides or check.verdict != INVALID:
            continue
        causes = [(count, cause) for group in check.groups for count, cause in group.causes]
        named = sum(count for count, _ in causes) + sum(group.unknown + group.further for group in check.groups)
        if causes:
            count, cause = max(causes, key=lambda each: each[0])
            yield ReportedCause(check.name, cause.code, cause.text, f"{count} of {named}")
        else:
            yield ReportedCause(check.name, "", next((group.untold for group in check.groups), ""), "")


def judged(failure: Failure, told: Sequence[ReportedCause]) -> tuple[str, ReportedCause | None]:
    """Judge a page by its first statement on each violated guarantee; one wrong statement makes the page wrong."""
    if not told:
        return NOT_SHOWN, None
    known = [each for each in told if each.code]
    if not known:
        return CANT_TELL, told[0]
    found = [(JUDGED.get((failure.name, each.check, each.code), NOT_JUDGED), each) for each in known]
    order = (WRONG, RIGHT, IN_PART, NOT_JUDGED, CANT_TELL)
    return min(found, key=lambda each: order.index(each[0]))


def table(rows: Sequence[tuple[Failure, Sequence[ReportedCause]]], missing: Sequence[str]) -> str:
    """Return the page's section."""
    lines = ["| failure | true cause | what the page says | judged |", "| --- | --- | --- | --- |"]
    counted: Counter[str] = Counter()
    for failure, told in rows:
        verdict, first = judged(failure, told)
        counted[verdict] += 1
        says = f"`{first.check}`{f' ({first.share})' if first.share else ''}: {first.sentence}" if first else "—"
        cells = (failure.name, failure.truth, says, verdict)
        lines.append(f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |")
    words = ", ".join(f"{count} {name}" for name, count in counted.most_common())
    lines += ["", f"Of {len(rows)} failures: {words}."]
    if missing:
        lines.append(f"Not installed where this was made: {', '.join(missing)}.")
    return "\n".join(lines)


def main(words: Sequence[str]) -> None:
    """Provoke the failures; print their pages' statements, and write the table unless some failures were selected."""
    chosen = [failure for failure in failures(SEED) if not words or any(word in failure.name for word in words)]
    rows: dict[str, tuple[Failure, tuple[ReportedCause, ...]]] = {}
    with worker_pool(2) as (workers, scratch):
        for failure, told in workers.each(simulated, [(failure, scratch) for failure in chosen]):
            rows[failure.name] = failure, told
            _print(failure, told)
    installed = [name for name, program in REAL if shutil.which(program, path="/usr/bin:/usr/sbin:/usr/local/bin")]
    for name in installed:
        if not words or name in words:
            rows[name] = real(name)
            _print(*rows[name])
    ordered = [rows[name] for name in (*(failure.name for failure in chosen), *installed) if name in rows]
    section = table(ordered, [name for name, _ in REAL if name not in installed])
    print(section)
    if not words:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n\n{section}\n\n{END}{after}", encoding="utf-8")


def _print(failure: Failure, told: Sequence[ReportedCause]) -> None:
    print(f"## {failure.name}: {failure.truth}", flush=True)
    for each in told:
        judgement = JUDGED.get((failure.name, each.check, each.code), NOT_JUDGED) if each.code else CANT_TELL
        print(f"   {each.check} [{each.code or '-'}] {each.share} {each.sentence} -> {judgement}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
