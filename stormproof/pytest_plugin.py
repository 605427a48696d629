"""Chaos tests written as pytest tests: the mark and the fixture ``storm`` (docs/nights.md).

pytest loads this module in every environment that has Stormproof, so expensive imports happen on demand.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stormproof.errors import StormproofError, UsageError
from stormproof.text import seeds_of

if TYPE_CHECKING:
    from harness.api import RunResult

MARK = "storm"
_EXPECTED = ("valid", "invalid", "unknown")
_SPARKS: pytest.StashKey[list[Any]] = pytest.StashKey()
"""The Spark of this process, if one was started."""


@dataclass
class Storm:
    """The value of the fixture ``storm``. Calling it runs a test, as ``stormproof.run`` does, and asserts its verdict.

    ``result`` is the result of the last run: the mark's run, before the test's body begins.
    """

    item: pytest.Item
    store: Path
    seed: int | None = None
    results: list[RunResult] = field(default_factory=list)

    @property
    def result(self) -> RunResult:
        """The run's folder, verdict and report; raises UsageError if there was no run."""
        if not self.results:
            raise UsageError("nothing was run: mark the test with @pytest.mark.storm(...), or call storm(...)")
        return self.results[-1]

    @property
    def verdict(self) -> Mapping[str, Any]:
        """The verdict as stored."""
        return self.result.verdict

    def __call__(self, system: Any = "joram", workload: Any = "queue", nemesis: Any = "partition", *,
                 expected: str | Sequence[str] = "valid", **options: Any) -> RunResult:
        """Run a test; fail the pytest test unless the verdict is ``expected``, or one of several.

        ``options`` are the options of ``stormproof.run``.
        """
        from harness.api import run

        wanted = (expected,) if isinstance(expected, str) else tuple(expected)
        for word in wanted:
            if word not in _EXPECTED:
                pytest.fail(f"storm: expected={word!r} is none of {', '.join(_EXPECTED)}", pytrace=False)
        settings = {"store": self.store, "seed": self.seed, "quiet": True} | options
        if unknown := [name for name in settings if name not in signature(run).parameters]:
            pytest.fail(f"storm: unknown option {unknown[0]!r} (known: {', '.join(signature(run).parameters)})",
                        pytrace=False)
        result, broken = None, ""
        try:
            result = run(system, workload, nemesis, spark=self._spark(), **settings)
        except StormproofError as error:
            broken = str(error)
        if result is None:  # report the failure without the traceback of the error
            pytest.fail(broken, pytrace=False)
        self.results.append(result)
        told = {"run": str(result.run_dir), "report": str(result.report), "command": result.command}
        self.item.user_properties += told.items()
        if result.verdict["verdict"] not in wanted:
            lines = [*([f"expected {' or '.join(wanted)}:"] if wanted != ("valid",) else []), *result.lines()]
            pytest.fail("\n".join(lines), pytrace=False)
        return result

    def _spark(self) -> Any:
        """Return the one Spark of this process: a start takes seconds."""
        from harness.api import warm_up

        started = self.item.config.stash[_SPARKS]
        if not started:
            started.append(warm_up())
        return started[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the store of runs."""
    group = parser.getgroup("stormproof")
    group.addoption("--storm-store", type=Path, default=None, help="folder that holds the runs of tests marked storm")
    parser.addini("storm_store", "folder that holds the runs of tests marked storm", default="runs")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", f"{MARK}(system, workload, nemesis, seeds='1-5', expected='valid', ...): a "
                            "chaos test, run before the body; options are those of stormproof.run")
    config.stash[_SPARKS] = []


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop Spark."""
    for spark in config.stash.get(_SPARKS, []):
        spark.abandon()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Generate one test for each seed.

    Raises:
        UsageError: the seeds, or the test's arguments, are invalid.
    """
    mark = metafunc.definition.get_closest_marker(MARK)
    if mark is None:
        return
    if MARK not in metafunc.fixturenames:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: a test that is marked {MARK} takes the argument {MARK}")
    if "seeds" in mark.kwargs:
        try:
            seeds = seeds_of(mark.kwargs["seeds"])
        except UsageError as error:
            raise pytest.UsageError(f"{metafunc.definition.nodeid}: {error}") from None
        metafunc.parametrize("storm_seed", seeds, ids=[f"seed-{seed}" for seed in seeds], indirect=True)


@pytest.fixture
def storm_seed(request: pytest.FixtureRequest) -> int | None:
    """The seed of this test; None where the mark names none."""
    return getattr(request, "param", None)


@pytest.fixture
def storm(request: pytest.FixtureRequest, storm_seed: int | None) -> Storm:
    """Runs chaos tests; with the mark ``storm`` the one that it describes has been run."""
    store = request.config.getoption("--storm-store") or request.config.rootpath / request.config.getini("storm_store")
    return Storm(request.node, store, storm_seed)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Execute the mark's run before the test's body, as a part of the test."""
    mark = pyfuncitem.get_closest_marker(MARK)
    if mark is not None:
        run = pyfuncitem.funcargs[MARK]
        assert isinstance(run, Storm)
        run(*mark.args, **{name: value for name, value in mark.kwargs.items() if name != "seeds"})
    return (yield)
