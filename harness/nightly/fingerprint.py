"""The kind of failure of a run. It is identified by what was violated and how, never by seed or counts.

The active faults, and the presence of a freshly elected leader, would distinguish a few more defects. But they would
also give one defect many fingerprints, and each of these would be reported as new on some morning (docs/nights.md has
the figures).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.analysis.coverage import note_log_events
from harness.run.cases import BROKEN, JudgedRun
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.check import INVALID
from stormproof.errors import StormproofError, UsageError
from stormproof.run_folder import read_run, read_verdict

SEVERITY = ("phantom", "tx-phantom", "lost", "atomic", "exactly-once", "metadata", "duplicated", "order")
"""The order in which checks name a failure. All other checks come after them, by name."""
_NO_MATTER = ("bug",)
"""Options that fingerprints ignore. A switched-on bug represents a defect that is still unknown, so it must not be
named."""
_SAME_KIND = {"acknowledged-twice": "delivered-after-receipt"}
"""Kinds of one failure. Only timing decides whether a client still acknowledged the message that arrived again."""


@dataclass(frozen=True)
class Features:
    """The features that identify a failed run. ``check`` is the gravest deciding check that was violated, ``kind`` its
    most frequent anomaly. ``others`` are the further violated checks, ``settings`` the modes that the test chose."""

    system: str
    subject: str
    settings: tuple[str, ...]
    check: str
    kind: str
    others: tuple[str, ...]


def features_of(run_dir: Path) -> Features | None:
    """Return the features of a stored run; None when it did not fail.

    Raises:
        HistoryError: it can't be read.
    """
    run, verdict = read_run(run_dir), read_verdict(run_dir)
    failed = [check for check in verdict["checks"] if check["decides"] and check["verdict"] == INVALID]
    if verdict["verdict"] != INVALID or not failed:
        return None
    ranked = sorted(failed, key=lambda check: (_rank(check["check"]), check["check"]))
    first = ranked[0]
    test = run["test"]
    kinds = Counter(_SAME_KIND.get(kind, kind) for kind in (str(each.get("kind")) for each in first["anomalies"]))
    kind = kinds.most_common(1)[0][0] if kinds else ""
    return Features(str(test["system"]), str(test["workload"]), _settings(test), first["check"], kind,
                    tuple(sorted(check["check"] for check in ranked[1:])))


def _rank(check: str) -> int:
    return SEVERITY.index(check) if check in SEVERITY else len(SEVERITY)


def _settings(test: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modes that the test chose: non-default options of the system that name a way to work."""
    try:
        declared = SYSTEMS.load(str(test["system"])).options
    except UsageError:  # the plug-in is not available here
        return ()
    given = test["options"]
    return tuple(sorted(f"{option.name}={given[option.name]}" for option in declared
                        if isinstance(option.default, (str, bool)) and option.name not in _NO_MATTER
                        and option.name in given and given[option.name] != option.default))  # fmt: skip


@dataclass(frozen=True)
class Fingerprint:
    """``code`` is for machines, ``words`` for people."""

    code: str
    words: str


def fingerprint_of(run_dir: Path) -> Fingerprint | None:
    """Return the fingerprint of a stored run; None when it did not fail. Raises HistoryError when it can't be read."""
    features = features_of(run_dir)
    if features is None:
        return None
    settings = f" ({', '.join(features.settings)})" if features.settings else ""
    others = f", with {' and '.join(features.others)}" if features.others else ""
    words = f"{features.system} {features.subject}{settings}: {features.check} ({features.kind}){others}"
    return Fingerprint(_code(words), words)


def broken_fingerprint(system: str, workload: str, reason: str) -> Fingerprint:
    """Return the fingerprint of a run that the harness could not complete, from the words of the reason."""
    words = f"{system} {workload}: broken: {re.sub('[0-9]+', '#', ' '.join(reason.split()))[:120]}"
    return Fingerprint(_code(words), words)


def fingerprint_of_failure(run: JudgedRun) -> Fingerprint:
    """Return the fingerprint of a failed run, and store the events of its logs. A run whose folder can't be read or
    written counts as broken."""
    if run.verdict != BROKEN and run.run_dir is not None:
        try:
            note_log_events(run.run_dir)
            found = fingerprint_of(run.run_dir)
        except StormproofError as error:
            return broken_fingerprint(run.case.system, run.case.workload, str(error))
        if found is not None:
            return found
    return broken_fingerprint(run.case.system, run.case.workload, run.sentence)


def _code(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()[:10]
