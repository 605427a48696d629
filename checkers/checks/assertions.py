"""Assertions that programs made with Antithesis's SDK during a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from checkers.api import RunCheck
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.errors import HistoryError
from stormproof.text import amount
from stormproof.vocabulary import COMMANDS

ALWAYS, SOMETIMES, REACHABILITY = "always", "sometimes", "reachability"
_SHOWN = 5


def assertions_of(run: Run) -> Sequence[Mapping[str, Any]]:
    """Return the assertions in a run's description.

    Raises:
        HistoryError: one is of another form.
    """
    found = run.info.get("assertions") or []
    if not isinstance(found, list) or not all(map(is_assertion, found)):
        raise HistoryError("the run's description has assertions of a form that is unknown")
    return found


def is_assertion(found: object) -> bool:
    """Return whether an entry of a run's description has the form of an assertion."""
    return isinstance(found, dict) and found.get("type") in (ALWAYS, SOMETIMES, REACHABILITY) and all(
        isinstance(found.get(name), int) for name in ("hits", "passes", "fails")) and isinstance(
        found.get("must_hit"), bool) and isinstance(found.get("message"), str)


def is_broken(found: Mapping[str, Any]) -> bool:
    """Return whether an *always* was false, or an *unreachable* was reached."""
    if found["type"] == ALWAYS:
        return bool(found["fails"])
    return found["type"] == REACHABILITY and not found["must_hit"] and found["hits"] > 0


def is_missed(found: Mapping[str, Any]) -> bool:
    """Return whether a *sometimes* was never true, or something that must be reached was not."""
    if found["type"] == SOMETIMES:
        return not found["passes"]
    return bool(found["must_hit"]) and not found["hits"]


def check(run: Run) -> CheckOutcome:
    """Find broken assertions: an *always* that was false, an *unreachable* that was reached.

    A *sometimes* that never was true, and a *reachable* that was not reached, are listed as not reached: another run
    may reach them.
    """
    found = assertions_of(run)
    broken, missed = [each for each in found if is_broken(each)], [each for each in found if is_missed(each)]
    figures = {"assertions": len(found), "not_reached": [each["message"] for each in missed[:MAX_EXAMPLES]],
               "unreadable_lines": run.info.get("sdk_unreadable", 0)}  # fmt: skip
    text = f"{amount(len(found) - len(broken) - len(missed), 'assertion')} held" if found else "no assertion was made"
    if missed:
        names = ", ".join(each["message"] for each in missed[:_SHOWN])
        text += f"; not reached: {len(missed)} ({names}{', ...' if len(missed) > _SHOWN else ''})"
    if broken:
        examples = tuple(Anomaly("assertion-broken", (), None, None, _detail(each)) for each in broken[:MAX_EXAMPLES])
        told = f"{amount(len(broken), 'assertion')} broken, the first: {broken[0]['message']}; {text}"
        return CheckOutcome(INVALID, len(broken), told, examples, figures)
    if run.info.get("sdk_left_out"):
        return CheckOutcome(UNKNOWN, 0, f"there were too many assertions to keep; {text}", (), figures)
    return CheckOutcome(VALID, 0, text, (), figures)


def _detail(found: Mapping[str, Any]) -> dict[str, Any]:
    services = found.get("services")
    told = {"assertion": found["message"], "kind": found.get("kind"), "failed": found["fails"] or found["hits"],
            "of": found["hits"], "location": found.get("location"), "details": found.get("details"),
            "services": ", ".join(map(str, services)) if isinstance(services, list) else ""}  # fmt: skip
    return {name: value for name, value in told.items() if value}


def _clauses(outcome: CheckOutcome, others: Mapping[str, CheckOutcome]) -> list[str]:
    """Return the clause of the sentence: it names the first assertion."""
    first = outcome.anomalies[0].detail
    named = f"{first.get('kind') or 'assertion'}: {first['assertion']}"
    were = "was" if outcome.count == 1 else "were"
    return [f"{amount(outcome.count, 'assertion')} of the SDK {were} broken ({named})"]


CHECK = RunCheck(
    name="assertions",
    guarantee="assertions by Antithesis's SDK: an *always* is never false, an *unreachable* is never reached",
    anomaly="assertion-broken",
    decides=True,
    subjects=(COMMANDS,),
    tell=_clauses,
    function=check,
)
