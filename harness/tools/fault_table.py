"""The table of faults that each backend can inject, proven by runs.

``python -m harness.tools.fault_table [BACKEND|FAMILY...]`` makes one run for each family of faults on each backend,
with all kinds one after the other, and records their evidence in ``docs/faults.json``. ``make docs`` generates the
table in ``docs/backends.md`` from these records.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.backends.catalog import BACKENDS
from harness.run.describe import create_run
from harness.run.lifecycle import RunnerProcess
from harness.run.settings import make_test
from harness.sim.run import simulate
from nemesis.catalog import FAULTS
from nemesis.families import needs_of, setting
from stormproof.errors import StormproofError
from stormproof.history.ledger import read_ledger
from stormproof.run_folder import LEDGER, RunLock

DOCS = Path(__file__).parents[2] / "docs"
SEEN_FILE = DOCS / "faults.json"
PAGE = DOCS / "backends.md"
BEGIN, END = "<!-- faults and backends: made by `make docs` -->", "<!-- end of faults and backends -->"

REAL = ("local", "docker", "ssh")
_LASTS, _BETWEEN, _FIRST = 5.0, 7.0, 5.0
_INSIDE = "STORMPROOF_FAULT_TABLE_INSIDE"


@dataclass(frozen=True)
class FaultScene:
    """The system and settings that a family needs to be injected."""

    system: str = "joram"
    nodes: int = 3
    settings: Mapping[str, str] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    """The kinds to try instead of the family's own kinds and aimed kinds."""


_SCENES: Mapping[str, FaultScene] = {
    "partition": FaultScene(nodes=5),
    "move-leader": FaultScene("nats", settings={"replicas": "3"}),
    "membership": FaultScene(nodes=5, settings={"spares": "2"}),
    "rolling": FaultScene(settings={"rolling_settings": "detection_timeout=3"}, kinds=("restart", "crash", "settings")),
    "manager": FaultScene("qpid"),
    "quorum": FaultScene("qpid"),
    "gateway": FaultScene("fiorano", nodes=2),
    "lockfile": FaultScene("fiorano", nodes=2),
    "channel": FaultScene("fiorano", nodes=2),
    "shared-db": FaultScene("fiorano", nodes=2, settings={"mode": "shared"}),
}


@dataclass(frozen=True)
class KindResult:
    """The result of a run for one kind: its evidence confirmed it, or ``why`` it did not."""

    backend: str
    family: str
    kind: str
    proven: bool
    why: str = ""


def scene_of(family: str) -> FaultScene:
    """Return the scene in which a family is tried."""
    return _SCENES.get(family, FaultScene())


def kinds_of(family: str) -> tuple[str, ...]:
    """Return the kinds of a family that are tried: all kinds, including those that are injected only on request."""
    fault = FAULTS.load(family)
    return scene_of(family).kinds or (*fault.kinds, *fault.aimed_kinds)


def schedule_of(family: str, kinds: Iterable[str]) -> tuple[str, float]:
    """Return a schedule of these kinds, one after the other, and the time limit that it needs."""
    words, begin = [], _FIRST
    for number, kind in enumerate(kinds):
        words.append(f"{family}:{kind}:{begin:g}-{begin + _LASTS:g}:{number + 1}")
        begin += _LASTS + _BETWEEN
    return " ".join(words), begin + _FIRST


def prove(backend: str, family: str, store: Path, settings: Mapping[str, Any]) -> Iterator[KindResult]:
    """Run the kinds of a family on a backend."""
    fault, made = FAULTS.load(family), BACKENDS.load(backend)
    lacking = made.lacks()
    abilities = {name: how for name, how in made.abilities.items() if name.partition(":")[0] not in lacking}
    kinds = [kind for kind in kinds_of(family) if _can(abilities, fault, kind)]
    for kind in kinds_of(family):
        if kind not in kinds:
            yield KindResult(backend, family, kind, False, _missing(fault, kind, abilities, lacking))
    if not kinds:
        return
    tried = list(_tried(backend, family, kinds, store, settings))
    if len(kinds) > 1 and len({each.why for each in tried}) == 1 and not tried[0].proven:
        # All were refused together. One kind's obstacle may not affect another kind, so try each alone.
        option = setting(family, "kind")
        tried = [each for kind in kinds
                 for each in _tried(backend, family, [kind], store, {**settings, option: kind})]  # fmt: skip
    yield from tried


def _tried(backend: str, family: str, kinds: Sequence[str], store: Path, settings: Mapping[str, Any],
           ) -> Iterator[KindResult]:
    """Make one run with these kinds."""
    scene = scene_of(family)
    schedule, limit = schedule_of(family, kinds)
    try:
        test = make_test(system=scene.system, workload="queue", nemesis=family, backend=backend, nodes=scene.nodes,
                         time_limit=limit, rate=100, seed=1,
                         settings={**scene.settings, **settings, "schedule": schedule})  # fmt: skip
        run_dir = record(test, store)
    except StormproofError as error:
        yield from (KindResult(backend, family, kind, False, _in_short(str(error))) for kind in kinds)
        return
    shown: dict[str, KindResult] = {}
    for window in read_ledger(run_dir / LEDGER):
        why = "" if window.counts else window.error or window.unmet or "its evidence does not confirm it"
        shown[window.kind] = KindResult(backend, family, window.kind, window.counts, why)
    yield from (shown.get(kind, KindResult(backend, family, kind, False, "it was not injected")) for kind in kinds)


def _in_short(error: str) -> str:
    """Return a refusal without the name of its host, and without advice."""
    return re.sub(r"\bn\d+ \([^)]*\)", "a host", error).partition("; choose another")[0].partition(": what cuts")[0]


def _can(abilities: Mapping[str, str], fault: Any, kind: str) -> bool:
    return all(need in abilities or f"{need}:{kind}" in abilities for need in needs_of(fault, kind))


def _missing(fault: Any, kind: str, abilities: Mapping[str, str], lacking: Mapping[str, str]) -> str:
    """Return why a backend can't inject a kind."""
    for need in needs_of(fault, kind):
        if need in lacking:
            return lacking[need]
        if need not in abilities and f"{need}:{kind}" not in abilities:
            return _WHY_NOT.get(need, f"it has no ability {need!r}")
    return "it was not tried"


_WHY_NOT: Mapping[str, str] = {
    "reboot": "its machines boot with their run, and no kernel of their own restarts",
    "power": "nobody can cut the power of its machines",
    "clocks": "its machines have no clocks of their own",
    "disks": "its machines have no disks that can fail",
    "files": "its machines have no files that faults could delete",
}


def record(test: Any, store: Path) -> Path:
    """Run a test without judging it, and return its folder.

    Raises:
        StormproofError: the run broke.
    """
    run_dir = create_run(test, "to see which faults can be injected", store)
    with RunLock(run_dir) as lock:
        if BACKENDS.load(test.backend).in_process:
            simulate(run_dir, lambda event: None)
            return run_dir
        runner = RunnerProcess(test, run_dir, lock)
        try:
            for event in runner.events():
                if event["event"] in ("sealed", "broken"):
                    runner.finish(keep=False)
            runner.wait()
        finally:
            runner.end()
    return run_dir


def read_seen(path: Path = SEEN_FILE) -> list[KindResult]:
    """Return the recorded results; an empty list if the file does not exist."""
    if not path.exists():
        return []
    return [KindResult(**row) for row in json.loads(path.read_text(encoding="utf-8"))["seen"]]


def note_seen(found: Iterable[KindResult], path: Path = SEEN_FILE) -> None:
    """Store these results, in place of earlier results for the same families on the same backends."""
    found = list(found)
    with (Path(tempfile.gettempdir()) / "stormproof-faults.lock").open("w") as lock:  # several may run at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        _note(found, path)


def _note(found: Sequence[KindResult], path: Path) -> None:
    anew = {(each.backend, each.family) for each in found}
    rows = [*(each for each in read_seen(path) if (each.backend, each.family) not in anew), *found]
    rows.sort(key=lambda each: (BACKENDS.names().index(each.backend), FAULTS.names().index(each.family)))
    data = {"kernel": platform.release().partition("-")[0], "seen": [vars(each) for each in rows]}
    path.write_text(json.dumps(data, indent=0) + "\n", encoding="utf-8")


def table(seen: Sequence[KindResult]) -> str:
    """Return the table, followed by the kinds that can't be injected and the reasons."""
    backends = [name for name in BACKENDS.names() if any(each.backend == name for each in seen)]
    lines = [f"| fault | {' | '.join(f'`{name}`' for name in backends)} |", "| --- |" + " --- |" * len(backends)]
    notes: dict[str, list[str]] = {}
    for family in FAULTS.names():
        of_family = [each for each in seen if each.family == family]
        if not of_family:
            continue
        cells = [_cell([each for each in of_family if each.backend == name], notes) for name in backends]
        lines.append(f"| `{family}` | {' | '.join(cells)} |")
    lines += ["", *(f"{number}. {reason}: {'; '.join(dict.fromkeys(where))}"
                    for number, (reason, where) in enumerate(notes.items(), 1))]  # fmt: skip
    return "\n".join(lines)


def _cell(seen: Sequence[KindResult], notes: dict[str, list[str]]) -> str:
    proven = [each.kind for each in seen if each.proven]
    missing = [each for each in seen if not each.proven]
    if not seen:
        return "not tried"
    numbers = []
    for each in missing:
        where = notes.setdefault(each.why, [])
        where.append(f"`{each.backend}` {each.family}")
        numbers.append(list(notes).index(each.why) + 1)
    marks = "".join(f" [{number}]" for number in dict.fromkeys(numbers))
    if not missing:
        return f"all {len(proven)}" if len(proven) > 1 else "yes"
    if not proven:
        return f"no{marks}"
    return f"{', '.join(proven)}; not {', '.join(each.kind for each in missing)}{marks}"


def with_table(text: str, seen: Sequence[KindResult]) -> str:
    """Return the page with the table inserted in its place."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(seen)}\n\n{END}{after}"


def _over_ssh(families: Sequence[str]) -> None:
    """Try the families over SSH, from inside the network of hosts with sshd that are created for this purpose."""
    from harness.tools.bench.ssh_test_hosts import running_hosts

    with tempfile.TemporaryDirectory(prefix="faults-") as folder, running_hosts(Path(folder), 5) as hosts:
        env = {**os.environ, "PYTHONPATH": ":".join(sys.path), _INSIDE: json.dumps(hosts.options)}
        words = [*hosts.enter, sys.executable, "-m", "harness.tools.fault_table", "ssh", *families]
        subprocess.run(words, env=env, check=True)


def main(words: Sequence[str]) -> int:
    """Handle ``[BACKEND|FAMILY...]``: try these, or all."""
    backends = [word for word in words if word in BACKENDS.names()] or BACKENDS.names()
    families = [word for word in words if word in FAULTS.names()] or FAULTS.names()
    inside = os.environ.get(_INSIDE)
    for backend in backends:
        if backend == "ssh" and inside is None:
            _over_ssh(families)
            continue
        for family in families:
            with tempfile.TemporaryDirectory(prefix="faults-") as store:
                found = list(prove(backend, family, Path(store), json.loads(inside or "{}")))
            note_seen(found)
            for each in found:
                print(f"{backend} {family} {each.kind}: {'proven' if each.proven else each.why}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
