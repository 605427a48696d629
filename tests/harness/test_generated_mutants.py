"""Mutants made by rule: what the operators change, what is drawn, what is a catch, and what a second run repeats."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from click.testing import Result as Ended
from typer.testing import CliRunner

from harness.cli.app import app
from harness.mutation import hunting
from harness.mutation.child import ROOT
from harness.mutation.drawing import (
    Listed,
    MutantList,
    changed_source,
    draw,
    eligible,
    read_list,
    watched_attributes,
    write_list,
)
from harness.mutation.equivalents import Equivalent, read_equivalents
from harness.mutation.hunting import Hunter, make_list
from harness.mutation.operators import OPERATORS, mutations_of
from harness.mutation.page import (
    CAUGHT,
    EQUIVALENT,
    ESCAPED,
    GONE,
    OPEN,
    Measured,
    diff_of,
    make_page,
    outcome_of,
    summary_line,
)
from harness.mutation.processes import HANG, ChildProcess
from harness.mutation.results import Result, ResultFile
from stormproof.errors import StormproofError, UsageError

SMALL = b"""
LIMIT = 8

def take(self, items, left=0, last=None):
    \"\"\"Take 3.\"\"\"
    self.log(f"{left} of {3}")
    if left < LIMIT and not items:
        return None
    for item in items:
        if item.done:
            continue
        left += 1
    self.left = left
    self.disk.sync()
    self.tell(items)
    return min(left, 3) if items else -left
"""


def changes(source: bytes) -> dict[str, list[tuple[str, str]]]:
    """Return, by operator, the lines before and after each mutation."""
    found: dict[str, list[tuple[str, str]]] = {}
    for each in mutations_of("nodes/reference/small.py", source):
        found.setdefault(each.span.operator, []).append((each.before.strip(), each.after.strip()))
        compile(each.applied(source), "small.py", "exec")
    return found


@pytest.mark.requirement("H17", part=True)
def test_each_operator_changes_what_its_rule_says() -> None:
    condition = "if left < LIMIT and not items:"
    last = "return min(left, 3) if items else -left"
    assert changes(SMALL) == {
        "double-constant": [
            ("LIMIT = 8", "LIMIT = 16"),
            ("def take(self, items, left=0, last=None):", "def take(self, items, left=1, last=None):"),
            ("left += 1", "left += 2"),
            (last, "return min(left, 6) if items else -left"),
        ],
        "negate-condition": [
            (condition, "if not (left < LIMIT and not items):"),
            ("if item.done:", "if not (item.done):"),
        ],
        "negate-operand": [
            (condition, "if not (left < LIMIT) and not items:"),
            (condition, "if left < LIMIT and (items):"),
        ],
        "shift-bound": [(condition, "if left <= LIMIT and not items:")],
        "swap-and-or": [(condition, "if left < LIMIT or not items:")],
        "drop-exit": [("return None", "pass")],
        "swap-loop-exit": [("continue", "break")],
        "drop-assignment": [("left += 1", "pass"), ("self.left = left", "pass")],
        "shift-arithmetic": [("left += 1", "left -= 1")],
        "drop-sync": [("self.disk.sync()", "pass")],
        "drop-call": [("self.tell(items)", "pass")],
        "swap-min-max": [(last, "return max(left, 3) if items else -left")],
        "swap-branches": [(last, "return min(left, 3) if not (items) else -left")],
    }
    assert changes(b"A = True\n") == {"swap-boolean": [("A = True", "A = False")]}
    assert {*changes(SMALL), "swap-boolean"} == set(OPERATORS)


@pytest.mark.parametrize("source", [
    b'def f(self):\n    """Return 3."""\n    assert self.n < 3\n    log(self.n + 1)\n',
    b"def f(self, bugs):\n    self.off = 'x' in bugs and 1 < 2\n",
    b"class P(Protocol):\n    n: int = 3\n",
    b"def f(self) -> Literal[3]: ...\n",
    b"def __repr__(self):\n    return self.a < self.b\n",
    b"def f(self):\n    if self.n < 3:\n        self.log('full')\n        why = f'more than {3} times'\n",
    b"def f(self):\n    why = 'too many' if self.n < 3 else f'not {self.n}'\n",
])  # fmt: skip
def test_what_only_observers_read_has_no_mutations(source: bytes) -> None:
    assert changes(source) == {}


def test_an_identity_survives_changes_elsewhere_in_the_file() -> None:
    ids = {each.id for each in mutations_of("a.py", SMALL)}
    assert ids == {each.id for each in mutations_of("a.py", b"import os\n\n" + SMALL)}
    assert not ids & {each.id for each in mutations_of("b.py", SMALL)}
    twice = SMALL.replace(b"    self.disk.sync()\n", b"    self.disk.sync()\n    self.disk.sync()\n")
    assert len({each.id for each in mutations_of("a.py", twice)}) == len(ids) + 1


def test_the_draw_depends_on_the_seed_alone_and_takes_executed_lines(tmp_path: Path) -> None:
    file = "nodes/reference/small.py"
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_bytes(SMALL)
    executed = {file: [7, 12], "nodes/reference/bugs/edits.py": [1], "harness/sim/network.py": [1]}
    mutations = eligible(executed, tmp_path)
    assert {each.span.line for each in mutations} == {2, 4, 7, 12}, "lines of functions need a run; constants do not"
    four = draw(mutations, 4, "joram", 5, tmp_path)
    assert {each.line for each in four} == {2, 4, 7, 12}, "a line counts once"
    assert four == draw(mutations, 4, "joram", 5, tmp_path)
    assert four[:2] == draw(mutations, 2, "joram", 5, tmp_path)
    drawn = {tuple(each.id for each in draw(mutations, 4, system, seed, tmp_path))
             for system in ("joram", "qpid") for seed in range(5)}  # fmt: skip
    assert len(drawn) > 5
    with pytest.raises(UsageError, match="only 4 executed lines of joram"):
        draw(mutations, 5, "joram", 5, tmp_path)
    changed = changed_source(four[0], tmp_path)
    assert changed is not None and four[0].after.encode() in changed
    (tmp_path / file).write_bytes(b"")
    assert changed_source(four[0], tmp_path) is None


def mutant_of(file: str, function: str, operator: str, before: str) -> Listed:
    """Return the one mutation of a file of the broker that fits."""
    all_ = mutations_of(file, (ROOT / file).read_bytes())
    fitting = [each for each in all_ if (each.span.function, each.span.operator) == (function, operator)]
    (found,) = [each for each in fitting if before in each.before]
    return Listed(found.id, file, found.span.line, function, operator, found.before, found.after)


def listed(*mutants: Listed) -> MutantList:
    """Return a list of joram's mutants."""
    return MutantList("joram", 7, 1, 100, 50, mutants)


def run(folder: Path, *words: str) -> Ended:
    """Run ``stormproof mutants`` with lists and store in a folder."""
    return CliRunner().invoke(app, ["mutants", *words, "--lists", str(folder), "--store", str(folder / "store")])


def test_a_child_has_the_changed_source_and_this_process_has_not() -> None:
    file = "nodes/reference/wire.py"
    source = (ROOT / file).read_bytes() + b"\nraise RuntimeError('mutated')\n"
    with ChildProcess("joram", 1, 1, file=file, source=source) as child:
        (answer,) = child.answers()
    assert answer["by"] == ["crash: RuntimeError"] and answer["sentence"] == "import: mutated"
    subprocess.run([sys.executable, "-c", "import nodes.reference.wire"], cwd=ROOT, check=True)


def test_what_only_rules_read_is_left_alone() -> None:
    source = b"""
def run(self):
    self.seen += 1
    if self.late:
        self.when = now()
    self.seen = self.queue = 2
"""
    found = [(each.span.line, each.span.operator) for each in mutations_of("f.py", source, {"seen", "when"})]
    assert {line for line, _ in found} == {6} and (6, "drop-assignment") in found
    assert len(mutations_of("f.py", source)) > len(found)
    watched = watched_attributes()
    assert {"at_share", "checks"} <= watched and not {"sequence", "queues"} & watched


@pytest.mark.requirement("H17", part=True)
def test_a_mutant_is_caught_and_an_equivalent_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caught = mutant_of("nodes/reference/engine/model.py", "Queue.add", "drop-call", "self.fresh.append")
    harmless = mutant_of(
        "nodes/reference/designs/joram/replica.py", "JoramReplica.check_entry", "shift-bound", "> _COMMANDS_KEPT"
    )
    write_list(tmp_path / "joram-7.json", listed(caught, harmless))
    words = ("--generated", "2", "--seed", "7", "--system", "joram", "--seeds", "1", "--jobs", "2")
    ended = run(tmp_path, *words, "--json")
    assert ended.exit_code == 1, ended.output
    found = json.loads(ended.stdout)["joram"]
    by_id = {each["id"]: each for each in found["mutants"]}
    assert by_id[caught.id]["outcome"] == CAUGHT and by_id[caught.id]["seeds"] == 1
    assert by_id[caught.id]["by"] and by_id[caught.id]["seconds"] > 0
    assert by_id[harmless.id]["outcome"] == ESCAPED and by_id[harmless.id]["by"] == []
    assert found["summary"]["share"] == 0.5
    assert f"{harmless.id} {harmless.file}:{harmless.line}" in ended.stderr and "ESCAPED" in ended.stderr

    monkeypatch.setattr(hunting, "ChildProcess", None)  # Nothing may run again.
    (tmp_path / "equivalent.toml").write_text(f'[{harmless.id}]\nplace = "p"\nreason = "Same."\nagreed = "B"\n')
    ended = run(tmp_path, *words, "--page", str(tmp_path / "page.md"))
    assert ended.exit_code == 0, ended.output
    assert "joram: 1 caught, 0 escaped, 1 equivalent; 100 % of those that are not equivalent" in ended.stdout
    page = (tmp_path / "page.md").read_text()
    assert "Equivalent: Same. Agreed by B." in page and f"+ {harmless.after.strip()}" in " ".join(page.split())
    ended = run(tmp_path, *words, harmless.id)
    assert ended.exit_code == 0 and "0 caught" in ended.stdout


def test_lines_that_a_campaign_executes_are_found_and_a_list_is_read_back(tmp_path: Path) -> None:
    drawn = make_list("icestorm", 3, 3, traced=1)
    assert drawn.lines > 500 and drawn.mutations > 500
    assert all((ROOT / each.file).is_file() and changed_source(each) for each in drawn.mutants)
    write_list(tmp_path / "a.json", drawn)
    assert read_list(tmp_path / "a.json") == drawn == make_list("icestorm", 3, 3, traced=1)


class ScriptedChild:
    """In place of a process: seeds fail as the script of its mutant, or of the unchanged broker, says."""

    mutated: Mapping[int, str] = {}
    unchanged: Mapping[int, str] = {}
    seconds = 1.0
    """Processor seconds of a run of the unchanged broker."""
    started: ClassVar[list[tuple[int, bool]]] = []

    def __init__(self, system: str, first: int, last: int, *, file: str, source: bytes | None) -> None:
        self._seeds, self._script = range(first, last + 1), self.mutated if file else self.unchanged
        self._seconds = 60.0 if file else self.seconds
        self.started.append((first, bool(file)))

    def answers(self) -> Iterator[Mapping[str, Any]]:
        yield {"ready": 0.5}
        for seed in self._seeds:
            verdict = self._script.get(seed, "valid")
            if verdict == "interrupt":
                raise KeyboardInterrupt
            by = [] if verdict in ("valid", "unknown") else [verdict]
            yield {"seed": seed, "verdict": verdict, "by": by, "sentence": "s", "command": "c",
                   "seconds": self._seconds if by else 1.0}  # fmt: skip
            if by:
                return

    def stop(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedChild]:
    """Return the class that stands for processes, with an empty script."""
    child = type("Child", (ScriptedChild,), {"started": []})
    monkeypatch.setattr(hunting, "ChildProcess", child)
    monkeypatch.setattr(hunting, "source_version", lambda: "v")
    monkeypatch.setattr(hunting, "changed_source", lambda mutant: b"" if mutant.file else None)
    return child


MUTANT = Listed("m", "f.py", 1, "f", "drop-call", "    a()", "    pass")


def hunted(folder: Path, budget: int = 10) -> Result:
    """Hunt for the mutant, with the results that the folder holds."""
    results = ResultFile(folder / "r.jsonl", "v")
    ((_, result),) = Hunter("joram", results, "v").hunt([MUTANT], 1, budget, 1)
    return result


def test_what_the_unchanged_broker_shows_as_well_is_not_counted(tmp_path: Path, scripted: type[ScriptedChild]) -> None:
    scripted.mutated = {2: "lost", 3: "unknown", 5: "lost"}
    scripted.unchanged = {2: "duplicated"}
    result = hunted(tmp_path)
    assert (result.by, result.seeds, result.innocent, result.unknown) == (["lost"], 5, [2], 1)
    assert scripted.started == [(1, True), (2, False), (3, True), (5, False)]
    assert result.seconds == 0.5 + 1 + 60 + 0.5 + 1 + 1 + 60


@pytest.mark.parametrize(("seconds", "by"), [(19.0, [HANG]), (21.0, [])])
def test_a_hang_counts_only_where_the_unchanged_broker_is_far_faster(
    tmp_path: Path, scripted: type[ScriptedChild], seconds: float, by: list[str]
) -> None:
    scripted.mutated, scripted.seconds = {4: HANG}, seconds
    monkey = scripted.answers

    def slow(self: ScriptedChild) -> Iterator[Mapping[str, Any]]:
        return ({**each, "seconds": self._seconds} if "seed" in each else each for each in monkey(self))

    scripted.answers = slow  # type: ignore[method-assign]
    assert hunted(tmp_path).by == by


def test_a_second_run_goes_on_where_the_first_ended(tmp_path: Path, scripted: type[ScriptedChild]) -> None:
    scripted.mutated = {7: "interrupt", 9: "lost"}
    with pytest.raises(KeyboardInterrupt):
        hunted(tmp_path)
    assert ResultFile(tmp_path / "r.jsonl", "v").get("m", 1).seeds == 6
    scripted.mutated = {9: "lost"}
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write('{"version": "v", "id": "m", "sta')  # The process was killed.
    scripted.started.clear()
    assert hunted(tmp_path, budget=8).by == []
    assert (result := hunted(tmp_path)).by == ["lost"] and result.seeds == 9
    assert scripted.started == [(7, True), (9, True), (9, False)]
    others = ResultFile(tmp_path / "r.jsonl", "another version")
    assert others.get("m", 1) == Result("m", 1) and others.of_others >= 3


def test_outcomes_and_the_measure() -> None:
    equivalents = {"e": Equivalent("f.py:1", "r", "p")}
    rows = []
    for name, result, gone in [
        ("a", Result("a", 1, 1, ["lost"], seconds=2), False), ("b", Result("b", 1, 5, ["lost"], seconds=8), False),
        ("c", Result("c", 1, 30, ["lost"], seconds=30), False), ("d", Result("d", 1, 20, unknown=2), False),
        ("e", Result("e", 1, 20), False), ("g", Result("g", 1), True), ("o", Result("o", 1, 3), False),
    ]:  # fmt: skip
        mutant = Listed(name, *list(asdict(MUTANT).values())[1:])
        rows.append((mutant, result, outcome_of(mutant, result, 20, gone, equivalents)))
    assert [outcome for *_, outcome in rows] == [CAUGHT, CAUGHT, ESCAPED, ESCAPED, EQUIVALENT, GONE, OPEN]
    measured = Measured(listed(*(mutant for mutant, *_ in rows)), 1, 20, "v", rows, equivalents)
    assert summary_line(measured) == (
        "joram: 2 caught, 2 escaped, 1 equivalent, 1 not finished, 1 gone; 50 % of those that are not equivalent; "
        "median 5 seeds, 90th percentile >20; 40 s of a core, 0.51 s a seed"
    )
    page = make_page([measured])
    assert "| joram | 7 | 7 | 2 | 2 | 1 | 2 | 50 % | 5 | >20 | 40 | 0.51 |" in page
    assert "20 seeds, 2 of them unknown" in page and "Equivalent: r Agreed by p." in page
    assert diff_of(MUTANT) == ["-     a()", "+     pass"]


@pytest.mark.parametrize(("words", "files", "told"), [
    (["--generated", "0"], {}, "at least 1"),
    (["--generated", "1", "--seeds", "0"], {}, "at least 1"),
    (["--generated", "1", "--system", "kafka"], {}, "mutants are made of joram, icestorm, qpid, fiorano"),
    (["--generated", "1", "--guided"], {}, "do not go with --generated"),
    (["--seed", "1"], {}, "need --generated N"),
    (["--generated", "1"], {"joram-1.json": "{"}, "joram-1.json: not a list of generated mutants"),
    (["--generated", "1"], {"joram-1.json": "[]"}, "joram-1.json: not a list of generated mutants"),
    (["--generated", "2"], {}, "has 1 mutant: draw another list"),
    (["--generated", "1", "nothing"], {}, "no such mutant in the list of joram: nothing"),
    (["--generated", "1", "--system", "qpid", "1234abcd"], {}, "qpid-1.json: no such list, so no ids of mutants"),
    (["--generated", "1", "--page", "absent/page.md"], {}, "no such folder"),
    (["--generated", "1"], {"equivalent.toml": "["}, "equivalent.toml: can't be read"),
    (["--generated", "1"], {"equivalent.toml": '[a]\nplace = "p"\nreason = "r"\nagreed = " "\n'},
     "[a] needs exactly the texts agreed, place, reason"),
])  # fmt: skip
def test_bad_input_is_one_line_and_status_3(tmp_path: Path, words: list[str], files: dict[str, str], told: str) -> None:
    write_list(tmp_path / "joram-1.json", listed(MUTANT))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    system = [] if "--system" in words or "--seed" in words else ["--system", "joram"]
    ended = run(tmp_path, *system, *words)
    assert isinstance(ended.exception, StormproofError), ended.output  # The command line makes it status 3.
    assert told in str(ended.exception) and "\n" not in str(ended.exception)


def test_committed_lists_can_be_read_and_equivalents_are_few() -> None:
    folder = ROOT / "docs/mutants"
    equivalents = read_equivalents(folder)
    files = sorted(folder.glob("*-*.json"))
    assert files
    for file in files:
        mutants = read_list(file).mutants
        assert file.name == f"{read_list(file).system}-{read_list(file).seed}.json"
        assert sum(each.id in equivalents for each in mutants) <= len(mutants) / 10
