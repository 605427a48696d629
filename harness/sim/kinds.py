"""Failures of a campaign, grouped: those of one fingerprint, and unknown runs of one reason, are reported once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.nightly.fingerprint import Fingerprint, fingerprint_of_failure
from harness.run.cases import JudgedRun
from stormproof.text import amount

_SEEDS = 10


@dataclass
class FailureKind:
    """Runs that failed in the same way; the first is the example."""

    fingerprint: Fingerprint
    runs: list[JudgedRun]

    def lines(self) -> Iterator[str]:
        """Yield the lines for display."""
        seeds = list(dict.fromkeys(result.seed for result in self.runs))
        more = f" and {len(seeds) - _SEEDS} more" if len(seeds) > _SEEDS else ""
        yield f"{self.fingerprint.code}  {self.fingerprint.words}"
        yield (f"  {amount(len(self.runs), 'run')}, {'seed' if len(seeds) == 1 else 'seeds'} "
               f"{', '.join(map(str, seeds[:_SEEDS]))}{more}")
        yield f"  {self.runs[0].sentence}"
        if self.runs[0].run_dir is not None:
            yield f"  kept in     {self.runs[0].run_dir}"
        yield f"  repeat with {self.runs[0].command}"

    def to_json(self) -> dict[str, Any]:
        """Return the object for ``--json``."""
        return {"fingerprint": self.fingerprint.code, "words": self.fingerprint.words, "runs": len(self.runs),
                "seeds": [result.seed for result in self.runs], "command": self.runs[0].command}  # fmt: skip


@dataclass
class FailureKinds:
    """All kinds of failures of a campaign, and the reasons of unknown runs."""

    failed: dict[str, FailureKind] = field(default_factory=dict)
    unknown: dict[str, list[JudgedRun]] = field(default_factory=dict)

    def add(self, result: JudgedRun) -> bool:
        """Add a run that is not valid; returns whether it is the first of its kind."""
        if not result.failed:
            runs = self.unknown.setdefault(result.sentence, [])
            runs.append(result)
            return len(runs) == 1
        found = fingerprint_of_failure(result)
        kind = self.failed.setdefault(found.code, FailureKind(found, []))
        kind.runs.append(result)
        return len(kind.runs) == 1

    def lines(self) -> Iterator[str]:
        """Yield the lines of each kind, the most frequent first."""
        kinds = sorted(self.failed.values(), key=lambda kind: -len(kind.runs))
        if kinds:
            total = sum(len(kind.runs) for kind in kinds)
            yield f"{amount(total, 'run')} failed in {amount(len(kinds), 'way')}:"
        for kind in kinds:
            yield from kind.lines()
        for sentence, runs in sorted(self.unknown.items(), key=lambda item: -len(item[1])):
            yield f"unknown, {amount(len(runs), 'run')}, as seed {runs[0].seed}: {sentence}"
            yield f"  repeat with {runs[0].command}"

    def to_json(self) -> list[dict[str, Any]]:
        """Return the list for ``--json``."""
        return [kind.to_json() for kind in sorted(self.failed.values(), key=lambda kind: -len(kind.runs))]
