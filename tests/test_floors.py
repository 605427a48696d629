"""Who may import whom: floors of packages, no circle of files. Imports inside functions and for types count, too."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("stormproof", "nodes", "workloads", "nemesis", "checkers", "reports", "harness")

# The public face reaches up when it is asked to: run(), check(), load(), the command, tests written for pytest.
REACHES_UP = {
    ("stormproof.pytest_plugin", "harness.api"),
    ("stormproof", "harness.api"), ("stormproof", "harness.store.dataframes"),
    ("stormproof.__main__", "harness.cli.app"),
    # One parser of STOMP's frames, shipped to nodes with the reference broker: it needs the standard library alone.
    ("stormproof.clients.stomp", "nodes.stomp"),
}  # fmt: skip

# All import stormproof, and harness imports all. Besides that, what a package takes from its neighbours:
NEIGHBOURS = {
    ("workloads", "nodes.stomp"),  # clients of the reference broker, and the surface, speak STOMP
    ("workloads", "nodes.timeouts"),
}

ROOM = "reference"
"""The name of the folders that serve the reference broker alone."""

# Within the reference broker, besides the modules at its top: what each folder imports of the others.
REFERENCE = {
    "engine": set(),
    "replication": {"engine"},
    "designs": {"engine", "replication", "storage"},  # of the latter, a broker's side: not the service
    "server": {"engine", "replication", "designs", "bugs"},
    "storage": {"engine", "replication", "server"},
}

ON_NODES = ("nodes.reference", "nodes.stomp", "nodes.timeouts")

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if "porcupine-py" not in path.parts
}  # fmt: skip


def imports(path: Path) -> Iterator[str]:
    """All that a file imports, whenever that happens."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: a relative import"
            members = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (member if member in FILES else node.module for member in members)


EVERYTHING = {(name, other) for name, path in FILES.items() for other in imports(path) if other != name}
OURS = {(name, other) for name, other in EVERYTHING if other in FILES} - REACHES_UP


def top(name: str) -> str:
    return name.partition(".")[0]


def demand_no_circle(edges: set[tuple[str, str]]) -> None:
    """Raises CycleError, which names the members of a circle."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, other in edges:
        sorter.add(name, other)
    sorter.prepare()


def test_no_circles() -> None:
    assert EVERYTHING >= REACHES_UP
    demand_no_circle(OURS)
    demand_no_circle({(top(name), top(other)) for name, other in OURS if top(name) != top(other)})


def test_no_circle_in_porcupine() -> None:
    """The library has relative imports only."""
    package = ROOT / "checkers/porcupine-py/porcupine"
    edges = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                for target in (folder, *(folder / each.name for each in node.names)):
                    file = target / "__init__.py" if target.is_dir() else target.with_suffix(".py")
                    edges |= {(str(path), str(file))} if file.exists() and path != file and target != package else set()
    assert edges
    demand_no_circle(edges)


def test_nobody_imports_upwards() -> None:
    """Stormproof imports nobody, nobody imports harness, and what others take from each other is in the table."""
    between = {(top(name), other) for name, other in OURS if top(name) not in (top(other), "harness")
               and not (ROOM in name.split(".") and ROOM in other.split("."))}  # fmt: skip
    assert {(name, other) for name, other in between if top(other) != "stormproof"} == NEIGHBOURS


def test_only_rooms_of_the_reference_broker_import_it() -> None:
    """Nor does anything below the harness import such a room: registries name what is in it."""
    entering = {(name, other) for name, other in OURS if ROOM in other.split(".") and ROOM not in name.split(".")}
    assert not {(name, other) for name, other in entering if other.startswith("nodes.reference")}
    assert {top(name) for name, _ in entering} == {"harness"}


def test_floors_of_the_reference_broker() -> None:
    """Its engine knows neither designs nor server, its replication no design."""
    inside = {(name.split(".")[2], other.split(".")[2]) for name, other in OURS
              if name.startswith("nodes.reference.") and other.startswith("nodes.reference.")}  # fmt: skip
    folders = {(name, other) for name, other in inside
               if name != other and all((ROOT / "nodes/reference" / each).is_dir() for each in (name, other))}
    assert folders <= {(name, other) for name, others in REFERENCE.items() for other in others}


def test_what_runs_on_nodes_needs_the_standard_library_alone() -> None:
    foreign = {(name, other) for name, other in EVERYTHING if name.startswith(ON_NODES)
               and not other.startswith(ON_NODES) and other != "nodes" and top(other) not in sys.stdlib_module_names}
    assert not foreign


def test_what_a_run_or_a_build_leaves_changes_no_import(tmp_path: Path) -> None:
    """A folder named as a module of the tests, such as a store `runs`, must not make ruff sort imports differently."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__", "stores"))
    left = {path.stem for path in (ROOT / "tests").rglob("*.py")} | {"runs", "build", "dist"}
    for name in left - set(PACKAGES):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    command = [sys.executable, "-m", "ruff", "check", "--select", "I", "tests"]
    sorted_alike = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert sorted_alike.returncode == 0, sorted_alike.stdout
