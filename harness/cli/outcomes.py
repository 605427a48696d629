"""Outcomes of runs: JUnit's XML for CI systems, Markdown for people who read a CI system's pages."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from harness.nightly.notify import Notify
from harness.run.cases import BROKEN
from stormproof.contracts.check import INVALID, UNKNOWN, VALID
from stormproof.errors import HistoryError, StormproofError, UsageError
from stormproof.run_folder import read_run, write_text
from stormproof.test import Test
from stormproof.text import amount, markdown_cell

ORDER = (INVALID, BROKEN, UNKNOWN, VALID)
"""The order of verdicts, the worst first."""
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""The characters that no XML 1.0 document may hold (section 2.2)."""
_SKIPPED = "skipped"
_SHOWN = 100
"""The most runs in a table of Markdown, because CI systems limit the size of their pages."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run. ``group`` names the tested system and workload, ``name`` the conditions (faults, backend,
    seed). ``seconds`` is the duration, if known. ``told`` locates things: the run's folder, its report, the command
    that repeats it. ``excuse`` is the reason why its failure is tolerated, if it is."""

    group: str
    name: str
    verdict: str
    sentence: str
    seconds: float = 0.0
    told: Mapping[str, str] = field(default_factory=dict)
    excuse: str = ""


def outcome_of(test: Test, verdict: str, sentence: str, seconds: float, **told: object) -> Outcome:
    """Return the outcome of a test."""
    name = f"{','.join(test.nemesis) or 'none'} on {test.backend}, seed {test.seed}"
    return Outcome(f"{test.system}.{test.workload}", name, verdict, sentence, seconds,
                   {key: str(value) for key, value in told.items() if value})  # fmt: skip


def outcome_of_run(run_dir: Path, verdict: str, sentence: str) -> Outcome:
    """Return the outcome of a stored run. If its description can't be read, its id serves as the name."""
    report = run_dir / "report.html"
    told = {"run": str(run_dir), **({"report": str(report)} if report.exists() else {})}
    try:
        test = Test.from_json(read_run(run_dir)["test"])
    except (HistoryError, UsageError, KeyError, TypeError, ValueError):
        return Outcome("stormproof", run_dir.name, verdict, sentence, 0.0, told)
    found = outcome_of(test, verdict, sentence, 0.0)
    return Outcome(found.group, f"{found.name}, {run_dir.name}", verdict, sentence, 0.0, told)


class Outcomes:
    """Collects outcomes, and writes them at the end of the ``with`` block, even after an error.

    Raises UsageError when a file has no valid place. This happens before the first run, not after the last.
    """

    def __init__(self, junit: Path | None = None, markdown: Path | None = None, notify: Notify | None = None) -> None:
        """Create the collection. ``notify`` receives each invalid run."""
        self._junit, self._markdown, self._notify = junit, markdown, notify
        self._found: list[Outcome] = []
        self.lines: Sequence[str] = ()
        """Lines for people about all outcomes, printed above the table."""
        for option, path in (("--junit", junit), ("--markdown", markdown)):
            if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
                raise UsageError(f"{option} {path}: not a file in a folder that is there")

    def add(self, outcome: Outcome) -> None:
        """Add one outcome."""
        self._found.append(outcome)
        if self._notify is not None and outcome.verdict == INVALID:
            self._notify.tell({"verdict": outcome.verdict, "sentence": outcome.sentence, "test": outcome.group,
                               "name": outcome.name, **outcome.told})

    def __enter__(self) -> Outcomes:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for path in (self._junit, self._markdown):
            if path is None:
                continue
            try:
                write_text(path, junit(self._found) if path is self._junit else markdown(self._found, self.lines))
            except StormproofError as error:
                if kind is None:
                    raise
                print(f"stormproof: {error}", file=sys.stderr)  # why the block ended matters more


def junit(outcomes: Sequence[Outcome]) -> str:
    """Return a JUnit document. An invalid run is a failure. An unknown or broken run is an error. A run whose failure
    is tolerated is skipped."""
    counts = Counter(_SKIPPED if outcome.excuse else outcome.verdict for outcome in outcomes)
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root, "testsuite", name="stormproof", tests=str(len(outcomes)), failures=str(counts[INVALID]),
        errors=str(counts[UNKNOWN] + counts[BROKEN]), skipped=str(counts[_SKIPPED]),
        time=f"{sum(outcome.seconds for outcome in outcomes):.3f}",
    )
    for outcome in outcomes:
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(outcome.group), name=_xml(outcome.name),
                                      time=f"{outcome.seconds:.3f}")
        if outcome.told:
            properties = ElementTree.SubElement(case, "properties")
            for name, value in outcome.told.items():
                ElementTree.SubElement(properties, "property", name=name, value=_xml(value))
        if outcome.excuse:
            ElementTree.SubElement(case, "skipped", message=_xml(f"{outcome.excuse}: {outcome.sentence}"))
        elif outcome.verdict != VALID:
            kind = "failure" if outcome.verdict == INVALID else "error"
            element = ElementTree.SubElement(case, kind, message=_xml(outcome.sentence), type=outcome.verdict)
            element.text = _xml("\n".join([outcome.sentence, *(f"{name}: {at}" for name, at in outcome.told.items())]))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def markdown(outcomes: Sequence[Outcome], told: Sequence[str] = ()) -> str:
    """Return a Markdown page with ``told``, the lines about all runs, and a table of the runs, the worst first."""
    ranked = sorted(outcomes, key=lambda outcome: ORDER.index(outcome.verdict))
    lines = ["# Stormproof", "", _summary(outcomes), ""]
    if told:  # indented, so that nothing in it is markup
        lines += [*(f"    {' '.join(_xml(line).split(chr(10)))}" for line in told), ""]
    if ranked:
        lines += ["| verdict | test | run | what was found |", "| --- | --- | --- | --- |"]
    for outcome in ranked[:_SHOWN]:
        sentence = f"{outcome.excuse}: {outcome.sentence}" if outcome.excuse else outcome.sentence
        cells = (outcome.verdict, *map(_cell, (outcome.group, outcome.name, sentence)))
        lines.append(f"| {' | '.join(cells)} |")
    if len(ranked) > _SHOWN:
        lines += ["", f"... and {len(ranked) - _SHOWN} more"]
    commands = [outcome for outcome in ranked if outcome.verdict != VALID and "command" in outcome.told]
    if commands:
        lines += ["", "## Again", "", "```sh", *(" ".join(each.told["command"].split()) for each in commands[:_SHOWN]),
                  "```"]
    return "\n".join(lines) + "\n"


def _summary(outcomes: Iterable[Outcome]) -> str:
    counts = Counter(outcome.verdict for outcome in outcomes)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ORDER if counts[verdict])
    return f"{amount(sum(counts.values()), 'run')}{': ' + told if told else ''}"


def _xml(text: str) -> str:
    """Return a text without characters that XML can't hold. The text may have come from a broker."""
    return _NO_XML.sub("\ufffd", text)


def _cell(text: str) -> str:
    """Return a text as one cell of a table."""
    return markdown_cell(_xml(text))
