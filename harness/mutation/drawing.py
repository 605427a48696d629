"""The list of a system's mutants: drawn by a seed over the lines that its default campaign executes.

A line counts once, however many mutations it permits: the line is drawn first, then one of the operators that apply to
it, then one of that operator's mutations there. Lines outside functions count when a function of their file was
executed.
"""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.mutation.child import BROKER, ROOT
from harness.mutation.operators import Mutation, mutations_of
from stormproof.errors import UsageError

LISTS = Path("docs/mutants")
"""The folder of lists, and of the file that names equivalent mutants."""
TRACED_SEEDS = 20
"""The number of seeds, from 1 on, whose executed lines are those that mutations are drawn from."""
_LEFT_OUT = ("/bugs/", "_trace.py", "/trace.py", "/audit.py", "/points.py")
"""Pieces of paths whose code only switches bugs, or only observes."""


@dataclass(frozen=True)
class Listed:
    """One mutant of a list: where it is, its rule, and the lines that it changes, before and after."""

    id: str
    file: str
    line: int
    function: str
    operator: str
    before: str
    after: str


@dataclass(frozen=True)
class MutantList:
    """A drawn list, with the amounts of executed lines and of mutations that it was drawn from."""

    system: str
    seed: int
    traced_seeds: int
    lines: int
    mutations: int
    mutants: tuple[Listed, ...]


def list_file(folder: Path, system: str, seed: int) -> Path:
    """Return the file of a list."""
    return folder / f"{system}-{seed}.json"


def is_mutated(file: str) -> bool:
    """Return whether a file of the checkout is the broker's and may have mutations."""
    return file.startswith(f"{BROKER}/") and not any(piece in file for piece in _LEFT_OUT)


def eligible(executed: Mapping[str, Collection[int]], root: Path = ROOT) -> list[Mutation]:
    """Return the mutations of executed lines, in order of file and line."""
    found, watched = [], watched_attributes(root)
    for file, lines in sorted(executed.items()):
        if is_mutated(file):
            reached = set(lines)
            found += [
                mutation
                for mutation in mutations_of(file, (root / file).read_bytes(), watched)
                if not mutation.span.function or reached.intersection(range(mutation.span.line, mutation.span.last + 1))
            ]
    return found


def watched_attributes(root: Path = ROOT) -> frozenset[str]:
    """Return the names of attributes that rules of the simulator read, and that the broker never does."""
    broker, rules = set[str](), set[str]()
    for path in sorted(root.glob("nodes/**/*.py")):
        file = path.relative_to(root).as_posix()
        names = broker if is_mutated(file) else rules
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                names.add(node.attr)
    return frozenset(rules - broker)


def draw(mutations: Sequence[Mutation], number: int, system: str, seed: int, root: Path = ROOT) -> list[Listed]:
    """Draw mutants, at most one for each line; a longer list begins with the shorter one of the same seed.

    Raises:
        UsageError: fewer lines have mutations.
    """
    rng = random.Random(f"generated mutants/{system}/{seed}")
    lines: dict[tuple[str, int], dict[str, list[Mutation]]] = {}
    for mutation in mutations:
        span = mutation.span
        lines.setdefault((mutation.file, span.line), {}).setdefault(span.operator, []).append(mutation)
    left, drawn = list(lines), list[Listed]()
    while len(drawn) < number:
        if not left:
            raise UsageError(f"--generated {number}: only {len(drawn)} executed lines of {system} have mutations")
        operators = lines[left.pop(rng.randrange(len(left)))]
        mutation = rng.choice(operators[rng.choice(list(operators))])
        if _compiles(mutation, root):
            span = mutation.span
            drawn.append(Listed(mutation.id, mutation.file, span.line, span.function, span.operator, mutation.before,
                                mutation.after))  # fmt: skip
    return drawn


def _compiles(mutation: Mutation, root: Path) -> bool:
    try:
        compile(mutation.applied((root / mutation.file).read_bytes()), mutation.file, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def write_list(path: Path, listed: MutantList) -> None:
    """Write a list; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = asdict(listed)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_list(path: Path) -> MutantList:
    """Read a list.

    Raises:
        UsageError: the file can't be read, or is no list of mutants.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return MutantList(**{**content, "mutants": tuple(Listed(**each) for each in content["mutants"])})
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror})") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path}: not a list of generated mutants ({error})") from error


def changed_source(mutant: Listed, root: Path = ROOT) -> bytes | None:
    """Return the mutant's source; None if the file no longer has the lines that the mutant changes."""
    try:
        source = (root / mutant.file).read_bytes()
    except OSError:
        return None
    for mutation in mutations_of(mutant.file, source):
        if mutation.id == mutant.id:
            return mutation.applied(source)
    return None
