"""Hunts for generated mutants: each runs in separate processes until a check catches it, or its seeds are used up."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager

from harness.mutation.child import BROKER
from harness.mutation.drawing import TRACED_SEEDS, Listed, MutantList, changed_source, draw, eligible
from harness.mutation.processes import HANG, ChildProcess
from harness.mutation.results import Result, ResultFile, source_version
from stormproof.errors import StormproofError

_FAR_LESS = 3.0
"""A run hangs only if the unchanged broker's run takes less than this part of the limit."""
_TRACED_SECONDS = 600.0


def make_list(system: str, number: int, seed: int, traced: int = TRACED_SEEDS) -> MutantList:
    """Run the system's default campaign, and draw mutations of the lines that it executes.

    Raises:
        UsageError: there are fewer.
        StormproofError: a run ended the process.
    """
    lines: dict[str, list[int]] | None = None
    why = ""
    with ChildProcess(system, 1, traced, trace=True, limit=_TRACED_SECONDS) as child:
        for answer in child.answers():
            lines = answer.get("lines", lines)
            why = answer.get("sentence", why)
    if lines is None:
        raise StormproofError(f"the executed lines of {system} can't be found: {why}")
    mutations = eligible(lines)
    executed = sum(len(each) for file, each in lines.items() if file.startswith(BROKER))
    return MutantList(system, seed, traced, executed, len(mutations), tuple(draw(mutations, number, system, seed)))


class Hunter:
    """Hunts for a list's mutants, ``jobs`` at a time; ``results`` holds what was found before, and takes the rest."""

    def __init__(self, system: str, results: ResultFile, version: str) -> None:
        self._system, self._results, self._version = system, results, version
        self._stop = threading.Event()
        self._comparing = threading.Lock()
        self._children: set[ChildProcess] = set()

    def hunt(self, mutants: Sequence[Listed], start: int, budget: int, jobs: int) -> Iterator[tuple[Listed, Result]]:
        """Yield each mutant with its result, in order of completion. Mutants whose source has changed have no seeds.

        Raises:
            StormproofError: the source changed meanwhile, or results can't be kept.
        """
        with ThreadPoolExecutor(jobs) as pool:
            futures: dict[Future[Result], Listed] = {
                pool.submit(self._hunt_one, mutant, start, budget): mutant for mutant in mutants
            }
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            finally:
                self._stop.set()
                for future in futures:
                    future.cancel()
                for child in list(self._children):
                    child.stop()

    def _hunt_one(self, mutant: Listed, start: int, budget: int) -> Result:
        result = copy.deepcopy(self._results.get(mutant.id, start))
        source = changed_source(mutant)
        before = result.seeds
        if source is None or self._stop.is_set():
            return result
        try:
            while not result.by and result.seeds < budget and not self._stop.is_set():
                self._some_seeds(result, mutant.file, source, start + budget - 1)
        finally:
            if result.seeds > before:
                self._results.add(result)
        return result

    def _some_seeds(self, result: Result, file: str, source: bytes, last: int) -> None:
        """Run seeds up to one that fails, and judge that failure."""
        if source_version() != self._version:
            raise StormproofError("the source has changed during the hunt: run the command again")
        with self._child(result.next, last, file, source) as child:
            for answer in child.answers():
                if "seed" not in answer:
                    result.seconds = round(result.seconds + answer.get("ready", 0.0), 3)
                    continue
                seed = answer["seed"]
                result.seconds = round(result.seconds + answer["seconds"], 3)
                if answer["by"]:
                    failed, seconds = self._baseline(seed)
                    slow = answer["verdict"] == HANG and seconds > answer["seconds"] / _FAR_LESS
                    if self._stop.is_set():
                        return
                    if failed or slow:
                        result.innocent.append(seed)
                    else:
                        result.by, result.sentence = answer["by"], answer["sentence"]
                        result.command = answer["command"]
                result.seeds += 1
                result.unknown += answer["verdict"] == "unknown"

    def _baseline(self, seed: int) -> tuple[bool, float]:
        """Return whether the unchanged broker fails with this seed as well, and its processor seconds."""
        with self._comparing:
            if seed not in self._results.baseline and not self._stop.is_set():
                with self._child(seed, seed, "", None) as child:
                    for answer in child.answers():
                        if "seed" in answer:
                            self._results.add_baseline(seed, bool(answer["by"]), answer["seconds"])
            return self._results.baseline.get(seed, (True, 0.0))

    @contextmanager
    def _child(self, first: int, last: int, file: str, source: bytes | None) -> Iterator[ChildProcess]:
        """Start a process, which the end of the hunt ends."""
        with ChildProcess(self._system, first, last, file=file, source=source) as child:
            self._children.add(child)
            if self._stop.is_set():
                child.stop()
            try:
                yield child
            finally:
                self._children.discard(child)
