"""The completeness of a run's description: a run is judged only if every field that a gate or a check reads exists.

A field that is missing, or of the wrong kind, was lost or changed after the run: no verdict can rest on it. A run that
merely ended early is whole as far as it got, and unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stormproof.contracts.guarantee import KNOWN_VIOLATION, NOT_PROMISED, PROMISED
from stormproof.errors import HistoryError
from stormproof.run_folder import BROKEN, RECORDED, RUN_FILE, RUNNING
from stormproof.unnamed_takes import DELIVERY_LIMIT, UNNAMED_TAKES

DIGESTS = ("history_sha256", "history_file_sha256")
LEDGER_DIGEST = "ledger_sha256"

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)

Kind = tuple[str, Callable[[Any], bool]]
"""The expected kind of a field, in words, and a test of whether a value is of that kind."""


def ended_early(info: Mapping[str, Any]) -> str | None:
    """Return why a run that ended before its history was sealed gets no verdict; None for any other run."""
    if info.get("status") == RUNNING:
        return "the run did not complete: its harness ended first, or is still at it (`stormproof recover` seals it)"
    if info.get("status") == BROKEN and any(info.get(name) is None for name in DIGESTS):
        failure = info.get("failure")
        return f"the run did not complete: {failure if isinstance(failure, str) and failure else 'it was not sealed'}"
    return None


def demand_whole(run_dir: Path, info: Mapping[str, Any], schema: object) -> None:
    """Verify that a run's description (in current terms) has all fields that a verdict needs.

    A description in an older ``schema`` may lack fields that were not written then. The defaults for those judge more
    strictly, not less, except for the ledger's digest, without which a missing line cannot be detected.

    Raises:
        HistoryError: it does not; the message names the field and the file.
    """
    where = run_dir / RUN_FILE
    missing = {1: (*_NOT_IN_1, *_NOT_IN_2), 2: _NOT_IN_2}.get(schema, ()) if isinstance(schema, int) else ()
    _demand(where, "", info, _RUN, (*_OPTIONAL, *missing))
    _demand(where, "test.", info["test"], _TEST, (*_OPTIONAL_OF_TEST, *missing))
    if "backend" in info:
        _demand(where, "backend.", info["backend"], _BACKEND, ())
    for number, phase in enumerate(info.get("phases") or ()):
        _demand(where, f"phases[{number}].", phase, _PHASE, ())
    if info.get("recovery") is not None:
        _demand(where, "recovery.", info["recovery"], {**_RECOVERY, **_AFTER_REPAIR}, ("unsure", *_AFTER_REPAIR))
        if (after := info["recovery"].get("after_repair")) is not None:
            _demand(where, "recovery.after_repair.", after, _RECOVERY, ("unsure",))


def _demand(where: Path, prefix: str, data: Any, kinds: Mapping[str, Kind], optional: Any) -> None:
    if not isinstance(data, dict):
        raise HistoryError(f"{where}: the field {prefix.rstrip('.')} is {_shown(data)}, not an object")
    for name, (words, fits) in kinds.items():
        if name not in data:
            if name in optional:
                continue
            raise HistoryError(f"{where}: the field {prefix}{name} is missing: the run can't be judged")
        if not fits(data[name]):
            raise HistoryError(f"{where}: the field {prefix}{name} is {_shown(data[name])}, not {words}")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _are_statuses(value: Any) -> bool:
    known = (PROMISED, KNOWN_VIOLATION, NOT_PROMISED)
    return isinstance(value, dict) and all(isinstance(told, dict) and told.get("status") in known
                                           for told in value.values())  # fmt: skip


def _are_exemptions(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_texts(kinds) for kinds in value.values())


def _are_gates(value: Any) -> bool:
    return isinstance(value, dict) and all(
        wanted is None or isinstance(wanted, bool) or (
            isinstance(wanted, dict) and all(map(_is_count, wanted.values())) if name == "min_ok" else _is_count(wanted)
        ) for name, wanted in value.items())  # fmt: skip


def _are_abandoned(value: Any) -> bool:
    return (isinstance(value, dict) and _is_whole(value.get("count")) and isinstance(value.get("first"), list)
            and len(value["first"]) <= value["count"]
            and all(isinstance(each, dict) and _is_text(each.get("f")) for each in value["first"]))  # fmt: skip


def _are_limits(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(each, dict) and all(limit is None or (_is_whole(limit) and limit >= 0) for limit in each.values())
        for each in value.values())  # fmt: skip


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_broken_invariant(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_text(value.get(name)) for name in ("name", "rule", "source", "wrong"))


def _are_bounds(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(each, dict) and _is_time(each.get("seconds")) and isinstance(each.get("formula"), str)
        and isinstance(each.get("source"), str) for each in value.values())  # fmt: skip


def _are_role_changes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict) and isinstance(each.get("node"), str) and isinstance(each.get("role"), str)
        and _is_time(each.get("time"), least=-1e9) for each in value)  # fmt: skip


def _is_time(value: Any, least: float = 0.0) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= 1e9


def _or_null(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


_TEXT: Kind = ("a text", _is_text)
_WHOLE: Kind = ("a whole number", _is_whole)
_TIME: Kind = ("a time", lambda value: _is_whole(value) and 0 <= value < 1 << 63)
_NUMBER: Kind = ("a number", _is_number)
_TRUTH: Kind = ("true or false", lambda value: isinstance(value, bool))
_OBJECT: Kind = ("an object", _is_object)
_TEXTS: Kind = ("a list of names", _is_texts)
_DIGEST: Kind = ("a SHA-256", lambda value: isinstance(value, str) and _SHA256.fullmatch(value) is not None)

def _are_keeps(value: object) -> bool:
    return isinstance(value, dict) and all(_is_whole(each) or _is_text(each) for each in value.values())


def _are_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(_is_number(each) for each in value.values())


def _are_counts(value: object) -> bool:
    return isinstance(value, dict) and all(_are_numbers(each) for each in value.values())


_RUN: Mapping[str, Kind] = {
    "status": (f"{RECORDED} or {BROKEN}", lambda value: value in (RECORDED, BROKEN)),
    "failure": ("a text or null", _or_null(_is_text)),
    "test": _OBJECT,
    "guarantees": _TEXTS,
    "statuses": ("what the system says of each guarantee", _are_statuses),
    "exemptions": ("kinds of anomalies by guarantee", _are_exemptions),
    "gates": ("the gates by name, with what each asks for", _are_gates),
    "subject": ("a text or null", _or_null(_is_text)),
    "backend": _OBJECT,
    "phases": ("a list", lambda value: isinstance(value, list)),
    "recovery": ("an object or null", _or_null(_is_object)),
    "abandoned": ("how many were abandoned, and the first of them", _are_abandoned),
    UNNAMED_TAKES: ("limits of takes by function", _are_limits),
    DELIVERY_LIMIT: ("a text", lambda value: isinstance(value, str)),
    "livelock": _TEXT,
    "invariant_broken": ("what is known of a broken invariant", _is_broken_invariant),
    "bounds": ("bounds by name, each with seconds, formula and source", _are_bounds),
    "role_changes": ("changes of role", _are_role_changes),
    "rest": ("what each node held at rest", _are_counts),
    "keeps": ("numbers, or other names, by name", _are_keeps),
    "clock_zero": ("a text or null", _or_null(_is_text)),
    "faults_planned": ("a number of faults", lambda value: _is_whole(value) and value >= 0),
    **dict.fromkeys((*DIGESTS, LEDGER_DIGEST), _DIGEST),
}
_TEST: Mapping[str, Kind] = {
    "system": _TEXT, "workload": _TEXT, "nemesis": _TEXTS,
    "nodes": ("a number of nodes", lambda value: _is_whole(value) and value > 0),
    "backend": _TEXT, "seed": _WHOLE, "time_limit": _NUMBER, "rate": _NUMBER, "concurrency": _WHOLE,
    "options": _OBJECT,
}  # fmt: skip
_BACKEND: Mapping[str, Kind] = {
    "name": _TEXT, "in_process": _TRUTH, "lateness": ("a number or null", _or_null(_is_number)),
}  # fmt: skip
_PHASE: Mapping[str, Kind] = {"name": _TEXT, "start": _TIME, "end": ("a time or null", _or_null(_TIME[1]))}
_RECOVERY: Mapping[str, Kind] = {"healthy": _TRUTH, "seconds": _NUMBER, "bound": _NUMBER, "state": _TEXT,
                                   "unsure": _TRUTH}  # fmt: skip
_AFTER_REPAIR: Mapping[str, Kind] = {"after_repair": _OBJECT, "repair_errors": ("a list of texts", _is_texts)}

_OPTIONAL = ("statuses", "exemptions", "subject", "phases", "recovery", "livelock", "invariant_broken",
             "rest", "keeps", UNNAMED_TAKES, DELIVERY_LIMIT, "abandoned", "clock_zero", "faults_planned", "failure",
             "bounds", "role_changes")  # fmt: skip
"""Fields that no verdict needs, or whose absence makes it stricter; if they exist, they must be of the right kind."""
_OPTIONAL_OF_TEST = ("backend", "seed", "time_limit", "rate", "concurrency")
_NOT_IN_1 = ("guarantees", "gates", "backend", "options")
_NOT_IN_2 = (LEDGER_DIGEST,)
