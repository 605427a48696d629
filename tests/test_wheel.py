"""The two wheels, installed away from the clone: everything that they need is in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from harness.backends.probe import choose_backend
from stormproof.errors import StormproofError

ROOT = Path(__file__).resolve().parents[1]
NOT_SOURCE = shutil.ignore_patterns("__pycache__", "build", "dist", "*.egg-info", ".*", "tests", "docs", "runs")
QUICK = ("--system", "standalone", "--workload", "queue", "--time-limit", "2", "--rate", "200", "--seed", "3")
FOREIGN = "raise RuntimeError('not the package that was meant')\n"


class Installed:
    """A virtual environment with both wheels."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "bin/python"
        self.command = folder / "bin/stormproof"
        self.packages = folder / f"lib/python{sysconfig.get_python_version()}/site-packages"

    def run(self, *words: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run something there, as somebody does who has never seen the clone."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        return subprocess.run(words, cwd=cwd, env=kept | env, capture_output=True, text=True, check=False, timeout=150)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheels built from a copy of the sources; what they depend on comes from the environment of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = shutil.copytree(ROOT, folder / "sources", ignore=NOT_SOURCE)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    subprocess.run((*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder / "dist",
                    sources, sources / "checkers/porcupine-py"), check=True)  # fmt: skip
    subprocess.run((sys.executable, "-m", "venv", "--without-pip", folder / "venv"), check=True)
    there = Installed(folder / "venv")
    wheels = sorted((folder / "dist").iterdir())
    assert [wheel.name.partition("-")[0] for wheel in wheels] == ["porcupine_py", "stormproof"]
    subprocess.run((*pip, "--python", there.python, "install", "--no-deps", "--no-index", *wheels), check=True)
    # A folder named here comes last, and the .pth files within it, of editable installs, are not read.
    (there.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    keep_compiled(ROOT / "checkers", there.packages / "checkers")
    keep_compiled(ROOT / "checkers/porcupine-py/porcupine", there.packages / "porcupine")
    return there


def keep_compiled(ours: Path, theirs: Path) -> None:
    """Save a minute: take over what Numba has compiled of the same sources, which it knows by their times."""
    for source in theirs.rglob("*.py"):
        same = ours / source.relative_to(theirs)
        os.utime(source, ns=(same.stat().st_atime_ns, same.stat().st_mtime_ns))
        for compiled in same.parent.glob(f"__pycache__/{source.stem}.*.nb?"):
            (source.parent / "__pycache__").mkdir(exist_ok=True)
            shutil.copy2(compiled, source.parent / "__pycache__")


def test_where_it_comes_from(installed: Installed, tmp_path: Path) -> None:
    """No module of the clone is used."""
    code = "import checkers, harness, nemesis, nodes, porcupine, reports, stormproof, workloads as w, sys; " \
           "print(*{sys.modules[name].__file__ for name in sys.modules if name in sys.argv[1:]}, sep=chr(10))"
    names = ("checkers", "harness", "nemesis", "nodes", "porcupine", "reports", "stormproof", "workloads")
    found = installed.run(installed.python, "-c", code, *names, cwd=tmp_path)
    assert found.stderr == "" and len(found.stdout.split()) == len(names)
    assert all(Path(path).is_relative_to(installed.packages) for path in found.stdout.split())
    assert not (installed.packages / "harness/tools").exists()
    assert "demo" not in installed.run(installed.command, "--help", cwd=tmp_path).stdout
    version = installed.run(installed.command, "--version", cwd=tmp_path)
    assert (version.returncode, version.stderr) == (0, "") and version.stdout.startswith("stormproof ")


@pytest.mark.parametrize(("folders", "backend"), [
    pytest.param((), "local", marks=pytest.mark.soak, id="alone"),
    pytest.param(("reports", "nodes"), "sim", id="beside-foreign-folders"),
])  # fmt: skip
def test_it_runs(installed: Installed, tmp_path: Path, folders: tuple[str, ...], backend: str) -> None:
    """A test with its report, and a few seeds; packages of a user's own, in the folder where it runs, don't matter."""
    for name in folders:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(FOREIGN)
    if backend != "sim":
        check_campaign(installed, tmp_path)
    try:
        choose_backend(backend)
    except StormproofError as error:
        pytest.skip(str(error))
    ran = installed.run(installed.command, "test", "--backend", backend, *QUICK, "--nemesis", "none", "--store",
                        "store", cwd=tmp_path)  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (report,) = (tmp_path / "store").glob("*/report.html")
    page = report.read_text()
    assert "confirmed messages were delivered" in page
    for name in ("run.css", "lanes_view.js"):
        assert (ROOT / "reports/static" / name).read_text() in page


def check_campaign(installed: Installed, folder: Path) -> None:
    """Its processes find what they need."""
    seeds = installed.run(installed.command, "simulate", *QUICK[:4], "--nemesis", "kill", "--seeds", "3",
                          "--time-limit", "15", "--store", "store", cwd=folder)  # fmt: skip
    assert seeds.returncode == 0, seeds.stdout + seeds.stderr
    assert "3 runs:" in seeds.stdout


def test_another_package_before_ours(installed: Installed, tmp_path: Path) -> None:
    """One line names the file, and nothing of it is executed."""
    foreign = tmp_path / "reports/__init__.py"
    foreign.parent.mkdir()
    foreign.write_text(FOREIGN)
    by_path = installed.run(installed.command, "list", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    by_module = installed.run(installed.python, "-m", "stormproof", "list", cwd=tmp_path)
    for found in (by_path, by_module):
        assert found.returncode == 3 and found.stdout == ""
        assert found.stderr.count("\n") == 1 and str(foreign) in found.stderr and "'reports'" in found.stderr
