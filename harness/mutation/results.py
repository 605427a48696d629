"""The results of hunts for generated mutants, as JSON lines in a store; they belong to one version of the source.

A line tells of some seeds of one mutant, or of the seed that the unchanged broker was run with for comparison. Lines of
another version of the source stay in the file, and are not used.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path

from harness.mutation.child import ROOT
from stormproof.errors import StormproofError

_PACKAGES = ("checkers", "harness", "nemesis", "nodes", "stormproof", "workloads")
"""The packages on which a run and its verdict depend."""


def source_version(root: Path = ROOT) -> str:
    """Return a hash of all code on which a run and its verdict depend."""
    digest = hashlib.sha256()
    for file in sorted(file for package in _PACKAGES for file in (root / package).rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


@dataclass
class Result:
    """The seeds that a mutant was run with so far, from ``start`` on without a gap, and what caught it.

    ``by`` is empty while nothing caught it. ``unknown`` counts runs without a decision. ``innocent`` holds seeds whose
    failure the unchanged broker shows as well. ``seconds`` is processor time.
    """

    id: str
    start: int
    seeds: int = 0
    by: list[str] = field(default_factory=list)
    unknown: int = 0
    innocent: list[int] = field(default_factory=list)
    seconds: float = 0.0
    sentence: str = ""
    command: str = ""

    @property
    def next(self) -> int:
        """The seed that comes next."""
        return self.start + self.seeds


class ResultFile:
    """The results of one list, for one version of the source; several threads may add to them."""

    def __init__(self, path: Path, version: str) -> None:
        """Read the file, if it is there.

        Raises:
            StormproofError: it can't be read.
        """
        self._path, self._version = path, version
        self._lock = threading.Lock()
        self._results: dict[tuple[str, int], Result] = {}
        self.baseline: dict[int, tuple[bool, float]] = {}
        """Seed -> whether the unchanged broker fails with it, and the processor seconds that it took."""
        self.of_others = 0
        """The number of lines that belong to other versions of the source."""
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
        except OSError as error:
            raise StormproofError(f"{path}: can't be read ({error.strerror})") from error
        for line in text.splitlines():
            self._read(line)
        self._ahead = "\n" if text and not text.endswith("\n") else ""
        """Ends a line whose writing was broken off."""

    def _read(self, line: str) -> None:
        try:
            content = json.loads(line)
            version = content.pop("version")
            if version != self._version:
                self.of_others += 1
            elif "baseline" in content:
                self.baseline[content["baseline"]] = content["failed"], content["seconds"]
            else:
                result = Result(**content)
                self._results[result.id, result.start] = result
        except (ValueError, TypeError, KeyError, AttributeError):
            pass  # A line whose writing was broken off.

    def get(self, mutant: str, start: int) -> Result:
        """Return what is known of a mutant from a first seed on."""
        return self._results.get((mutant, start)) or Result(mutant, start)

    def add(self, result: Result) -> None:
        """Keep a result, which includes the former ones of the same mutant and first seed; raises StormproofError."""
        self._results[result.id, result.start] = result
        self._append(asdict(result))

    def add_baseline(self, seed: int, failed: bool, seconds: float) -> None:
        """Keep what the unchanged broker shows with a seed; raises StormproofError."""
        self.baseline[seed] = failed, seconds
        self._append({"baseline": seed, "failed": failed, "seconds": seconds})

    def _append(self, content: dict[str, object]) -> None:
        text = json.dumps({"version": self._version, **content}, ensure_ascii=False) + "\n"
        try:
            with self._lock:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(self._ahead + text)
                self._ahead = ""
        except OSError as error:
            raise StormproofError(f"{self._path}: can't be written ({error.strerror})") from error
