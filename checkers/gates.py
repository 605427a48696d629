"""Coverage gates: a run that did not exercise what it was to exercise is unknown, never valid.

``run.json`` names the gates and their limits (``docs/checks.md`` lists them). An unknown gate is not met: otherwise a
misspelt gate would count as a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkers.api import RunCheck
from checkers.checks import commands
from checkers.checks.recovery import never_again
from checkers.history import CREATES, DELETES, READS
from checkers.locks import SLEPT, STOOD_STILL, UPDATE
from checkers.run import Run, noun_of
from stormproof import vocabulary
from stormproof.contracts.check import MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.contracts.fault import CUTS_CLIENTS, CUTS_LINKS
from stormproof.history.disk_use import stores_nothing, unused
from stormproof.history.ledger import UNCHECKED, FaultWindow
from stormproof.test import named_kinds, replica_names
from stormproof.text import amount, elapsed
from stormproof.vocabulary import ANY, MESSAGES

DEFAULT_GATES: Mapping[str, Any] = {
    "min_enqueue_ok": 1,
    "min_dequeue_ok": 1,
    "drain": True,
    "depth": True,
    "faults_confirmed": True,
}
"""Gates of a run on queues, or of a run with no known subject, whose run.json names no gates."""


KEPT_IN_REPOSITORY = "kept in the repository"
"""Error text of a send that the client accepted though no broker had confirmed it."""
OPERATIONS = "operations"
"""The gate that a run without an operation does not meet, unless its run.json waives it."""
_MOST_SENTENCES = 3
NOTHING_PREPARED = "none prepared"
"""Error of a look for prepared transactions that found none."""


@dataclass(frozen=True)
class GateResult:
    """Whether a gate is met.

    ``found`` is the figure compared, ``reason`` a clause about the missing part, ``told`` a clause about the finding.
    """

    met: bool
    found: Any
    reason: str = ""
    told: str = ""

    @property
    def words(self) -> str:
        """The finding or the missing part, in words for the user."""
        return (self.told if self.met else self.reason) or str(self.found)


Gate = Callable[[Run, Any], GateResult]


def check(run: Run) -> CheckOutcome:
    """Evaluate every gate that the run names; the count is the number of gates not met."""
    asked = list(_results(run))
    results = {name: result for name, _, result in asked}
    wanted = {name: value for name, value, _ in asked}
    missed = {name: result for name, result in results.items() if not result.met}
    figures = {
        "gates": {
            name: {"wanted": wanted[name], "found": r.found, "met": r.met, "asks": asks(name, wanted[name]),
                   "told": r.words} for name, r in results.items()
        }
    }  # fmt: skip
    if not missed:
        return CheckOutcome(VALID, 0, f"all {len(results)} coverage gates are met", (), figures)
    examples = tuple(
        Anomaly("gate", (), detail={"gate": name, "wanted": wanted[name], "found": r.found, "reason": r.reason})
        for name, r in list(missed.items())[:MAX_EXAMPLES]
    )
    return CheckOutcome(UNKNOWN, len(missed), "; ".join(r.reason for r in missed.values()), examples, figures)


def _results(run: Run) -> Iterator[tuple[str, Any, GateResult]]:
    yield "completed", True, _completed(run)
    if (last := run.recovered) is not None and not last["healthy"] and not run.info.get("failure"):
        yield "healthy", True, GateResult(False, False, never_again(run, last))
    if run.info.get("guarantees") == []:
        yield "guarantees", True, GateResult(False, 0, "it names no guarantee that the run is judged by")
    if run.standstills:
        yield "schedule", True, _schedule(run)
    asked = run.info.get("gates")
    if (asked or {}).get(OPERATIONS) is not False and not (run.history.process >= 0).any():
        yield OPERATIONS, True, GateResult(False, 0, "no client did anything")
    if asked is None:
        asked = DEFAULT_GATES if run.subjects <= {MESSAGES, ANY} else {}
    for name, value in asked.items():
        if value is None or value is False or name == OPERATIONS:
            continue
        gate = GATES.get(name)
        if gate is None:
            known = ", ".join(GATES)
            yield name, value, GateResult(False, None, f"unknown gate {name!r} (known: {known})")
        else:
            yield name, value, gate(run, value)


def _completed(run: Run) -> GateResult:
    """Check that the run reached its end: no failure of the harness, no broken-off recording."""
    failure = run.info.get("failure")
    status = run.info.get("status")
    if failure:
        return GateResult(False, status, f"the run did not complete: {failure}")
    return GateResult(status != "broken", status, "the run did not complete", "it did")


def _schedule(run: Run) -> GateResult:
    """Check that the schedule was carried out although the harness stood still at times.

    Each family that was in effect had a fault that no standstill swallowed, at least half of the planned faults were
    neither swallowed nor left out, and the harness was running for at least half of the main phase.
    """
    swallowed = [fault for fault in run.faults if run.swallowed(fault)]
    planned = max(int(run.info.get("faults_planned") or 0), len(run.faults))
    happened = len(run.faults) - len(swallowed)
    start, end = run.main_phase()
    still = sum(max(0, min(end, each.end) - max(start, each.start)) for each in run.standstills)
    seconds = sum(each.seconds for each in run.standstills)
    families = {fault.fault for fault in run.faults} | set(run.test.get("nemesis") or ())
    unseen = sorted(families - {fault.fault for fault in run.faults if fault not in swallowed})
    met = not unseen and 2 * happened >= planned and 2 * still <= end - start
    told = f"; of {', '.join(unseen)} none" if unseen else ""
    reason = (f"the harness itself stood still for {elapsed(seconds)}, and the schedule did not happen "
              f"({happened} of {planned} planned faults did{told})")  # fmt: skip
    return GateResult(met, happened, reason, f"{happened} of {planned} planned faults did")


def _enqueued(run: Run, wanted: Any) -> GateResult:
    found = run.count(vocabulary.ENQUEUE, vocabulary.OK)
    return GateResult(found >= wanted, found, f"only {found:,} sends were confirmed, {wanted:,} are required",
                      f"{found:,} were")  # fmt: skip


def _dequeued(run: Run, wanted: Any) -> GateResult:
    found = run.count(vocabulary.DEQUEUE, vocabulary.OK) + run.count(vocabulary.DRAIN, vocabulary.OK)
    return GateResult(found >= wanted, found, f"only {found:,} deliveries were confirmed, {wanted:,} are required",
                      f"{found:,} were")  # fmt: skip


def _kept(run: Run, wanted: Any) -> GateResult:
    """Check that clients' repositories accepted at least ``wanted`` sends."""
    h = run.history
    accepted = (h.role == vocabulary.ENQUEUE) & (h.kind == vocabulary.OK)
    found = int(np.count_nonzero(accepted & h.error.rows_with(KEPT_IN_REPOSITORY)))
    return GateResult(found >= wanted, found,
                      f"only {found:,} sends went through a repository, {wanted:,} are required",
                      f"{found:,} did")  # fmt: skip


def _min_ok(run: Run, wanted: Any) -> GateResult:
    """Check that each named function has at least its number of confirmed operations."""
    found = {name: int(run.tally[name][vocabulary.OK]) if name in run.tally else 0 for name in wanted}
    short = [f"{found[function]:,} of {function}" for function in wanted if found[function] < wanted[function]]
    asked = ", ".join(f"{least:,} of {function}" for function, least in wanted.items())
    told = ", ".join(f"{count:,} of {function}" for function, count in found.items())
    return GateResult(not short, found, f"only {', '.join(short)} were confirmed, {asked} are required", told)


def _stalls(run: Run, wanted: Any) -> GateResult:
    """Check that at least ``wanted`` holders of a lock stood still; those that only slept do not count."""
    h = run.history
    ended = h.f.rows_with(UPDATE) & (h.process >= 0) & (h.kind != vocabulary.INVOKE)
    found = int(np.count_nonzero(ended & h.error.rows_containing(STOOD_STILL)))
    slept = int(np.count_nonzero(ended & h.error.rows_containing(SLEPT)))
    reason = f"only {found:,} holders stood still, {wanted:,} are required"
    if slept:
        reason = (f"{amount(slept, 'stall does', 'stalls do')} not count: the system's connections do not say whether "
                  "they send heart-beats (docs/systems.md: heartbeat, stand_still)")  # fmt: skip
    return GateResult(found >= wanted, found, reason, f"{found:,} did")


def _recovered(run: Run, wanted: Any) -> GateResult:
    """Check that, after everything else, a look for prepared transactions found none."""
    h = run.history
    roles: tuple[int, ...] = (vocabulary.RECOVER, vocabulary.ROLLBACK)
    nothing = h.error.rows_with(NOTHING_PREPARED)
    looks = h.partner[np.flatnonzero((h.role == vocabulary.RECOVER) & (h.kind == vocabulary.FAIL) & nothing)]
    roles += (vocabulary.COMMIT, vocabulary.MOVE, vocabulary.FINISH)
    begun = np.isin(h.role, roles) & (h.kind != vocabulary.INVOKE)
    last = np.flatnonzero(begun & ~run.empty & ~nothing)
    met = len(looks) > 0 and (len(last) == 0 or looks.max() > last[-1])
    return GateResult(bool(met), len(looks), "nobody saw at the end that no prepared transaction was left",
                      "the last look found none")  # fmt: skip


def _drained(run: Run, wanted: Any) -> GateResult:
    open_queues = run.undrained
    noun = noun_of(run)
    reasons = "; ".join(f"{noun} {queue}: {reason}" for queue, reason in list(open_queues.items())[:3])
    return GateResult(not open_queues, len(open_queues), f"the drain did not finish ({reasons})",
                      f"all of them{by_fences(run)}")  # fmt: skip


def _depth_read(run: Run, wanted: Any) -> GateResult:
    unread = [queue for queue in run.queues if queue not in run.depths and queue not in run.fenced_queues]
    reason = f"the depth of {amount(len(unread), noun_of(run))} was not read"
    return GateResult(not unread, len(unread), reason, f"all of it{by_fences(run)}")


def by_fences(run: Run) -> str:
    """Return a clause about the queues whose emptiness was shown by fences, or an empty text."""
    count = len(run.fenced_queues)
    return f"; nobody tells the depth: fences showed that {amount(count, 'queue')} was empty" if count == 1 else \
        f"; nobody tells the depth: fences showed that {amount(count, 'queue')} were empty" if count else ""


def _faults_confirmed(run: Run, wanted: Any) -> GateResult:
    """Check that every family that the test names has a window with evidence that it took effect, in the expected
    state.

    The same is required of each kind that the test names, if one of its windows occurred without that state.
    """
    seen = [fault for fault in run.faults if not run.swallowed(fault)]
    counted = {fault.fault for fault in seen if fault.counts}
    missing = [family for family in run.test.get("nemesis") or () if family not in counted]
    vacuous = {f"{fault.fault}:{fault.kind}": fault for fault in seen if fault.unmet and (
        fault.confirmed or fault.skipped) and (fault.fault in missing or (_names_kind(run, fault) and not any(
            other.counts for other in seen if (other.fault, other.kind) == (fault.fault, fault.kind))))}  # fmt: skip
    unproven = [family for family in missing if not any(name.startswith(f"{family}:") for name in vacuous)]
    skipped = {family: windows[-1].skipped for family in unproven if (
        windows := [fault for fault in seen if fault.fault == family]) and all(fault.skipped for fault in windows)}
    unproven = [family for family in unproven if family not in skipped]
    reasons = [f"no proof that these faults took effect: {', '.join(unproven)}"] if unproven else []
    reasons += _each(unused, (fault for fault in run.faults if fault.fault in unproven))
    reasons += [f"{family} was never injected ({why})" for family, why in skipped.items()]
    reasons += [f"{name} {'was never orderly' if fault.forced else 'never found the state that it expects'} "
                f"({fault.unmet})" for name, fault in vacuous.items()]  # fmt: skip
    there = [f"it is there for {', '.join(sorted(counted))}" if counted else "there were no faults"]
    there += _each(stores_nothing, (fault for fault in run.faults if fault.fault in counted))
    there += _each(_unchecked, seen)
    return GateResult(not reasons, sorted(counted), "; ".join(reasons), "; ".join(there))


def _each(told: Callable[[Mapping[str, Any]], Iterable[str]], faults: Iterable[FaultWindow]) -> list[str]:
    """Return the sentences that the evidence of faults yields, each once."""
    found = (text for fault in faults for text in told({**fault.inject_evidence, **fault.heal_evidence}))
    return list(dict.fromkeys(found))[:_MOST_SENTENCES]


def _unchecked(evidence: Mapping[str, Any]) -> Iterable[str]:
    return [f"not checked: {evidence[UNCHECKED]}"] if UNCHECKED in evidence else []


def _names_kind(run: Run, fault: FaultWindow) -> bool:
    """Return whether the test names the kind of a fault, rather than any kind."""
    return fault.kind in named_kinds(run.test.get("options") or {}, fault.fault)


def sides(fault: FaultWindow, nodes: Sequence[str]) -> list[frozenset[str]]:
    """Return the groups of nodes that a partition separated, without client hosts.

    The partition's evidence names them (``sides``); otherwise they are its targets and the rest.
    """
    everyone = frozenset(nodes)
    told = fault.inject_evidence.get("sides")
    groups = [frozenset(group) for group in told] if told else [frozenset(fault.targets)]
    groups = [group & everyone for group in groups]
    rest = everyone.difference(*groups)
    return [group for group in [*groups, rest] if group]


def _confirmed_by_side(run: Run) -> list[dict[frozenset[str], int]]:
    """Count, for each partition that counts, the sends that were invoked and confirmed within it on each side.

    A client's side is that of the node it talked to: no packet crosses the cut.
    """
    h = run.history
    confirmed = run.ended(vocabulary.ENQUEUE, vocabulary.OK)
    counts = []
    for fault in run.faults:
        if CUTS_LINKS not in fault.effects or CUTS_CLIENTS in fault.effects or not fault.counts or run.swallowed(fault):
            continue
        end = fault.end if fault.end is not None else int(h.time[-1]) if h.rows else fault.start
        # While the cut was being established its sides could still hear each other.
        since = fault.start if fault.in_force is None else fault.in_force
        within = confirmed[(h.time[h.partner[confirmed]] >= since) & (h.time[confirmed] <= end)]
        by_node = np.bincount(h.node.codes[within] + 1, minlength=len(h.node.names) + 1)
        told = {name: int(by_node[code + 1]) for code, name in enumerate(h.node.names)}
        groups = sides(fault, replica_names(run.test.get("options") or {}, int(run.test.get("nodes", 0))))
        counts.append({group: sum(told.get(node, 0) for node in group) for group in groups})
    return counts


def _both_sides(run: Run, wanted: Any) -> GateResult:
    """Check that in some partition at least ``wanted`` sends (true: one) were confirmed on each of two sides."""
    least = max(1, int(wanted))
    found = 0
    for counts in _confirmed_by_side(run):
        found = max(found, sorted([0, 0, *counts.values()])[-2])
    return GateResult(found >= least, found, "no partition had sends confirmed on both of its sides",
                      f"{found:,} on the side that had fewer")  # fmt: skip


def _majority_success(run: Run, wanted: Any) -> GateResult:
    """Check that at least ``wanted`` sends were confirmed on the majority's side while a partition was in force."""
    half = int(run.test.get("nodes", 0)) / 2
    found = sum(
        count for counts in _confirmed_by_side(run) for group, count in counts.items() if len(group) > half
    )
    return GateResult(
        found >= wanted, found, f"only {found:,} sends were confirmed on the majority's side, {wanted:,} are required",
        f"{found:,} were",
    )  # fmt: skip


def _at_least(functions: tuple[str, ...], what: str) -> Gate:
    """Return a gate for a number of confirmed operations of these functions."""

    def gate(run: Run, wanted: Any) -> GateResult:
        h = run.history
        ours = [code for code, name in enumerate(h.f.names) if name in functions]
        found = int(np.count_nonzero((h.kind == vocabulary.OK) & np.isin(h.f.codes, ours)))
        return GateResult(found >= wanted, found, f"only {found:,} {what} were confirmed, {wanted:,} are required",
                          f"{found:,} were")  # fmt: skip

    return gate


def _last_reads(run: Run, wanted: Any) -> GateResult:
    """Check that the workload looked at every changed object after all changes had completed."""
    h = run.history
    looks = [code for code, name in enumerate(h.f.names) if name in READS]
    changes = [code for code, name in enumerate(h.f.names) if name in (*CREATES, *DELETES)]
    changed = np.flatnonzero(np.isin(h.f.codes, changes))
    last = int(changed.max(initial=-1))
    seen = np.flatnonzero(np.isin(h.f.codes, looks) & (h.kind == vocabulary.OK) & (h.partner > last))
    unseen = sorted(set(h.key[changed].tolist()) - set(h.key[seen].tolist()))
    return GateResult(not unseen, len(unseen), f"{len(unseen)} objects were not looked at in the end: "
                      f"{', '.join(map(str, unseen[:5]))}", "all of them")  # fmt: skip


def _in_force(run: Run, row: int) -> bool:
    """Return whether a fault was in force during the operation that ended in a row."""
    h = run.history
    begin, end = h.time[h.partner[row]], h.time[row]
    return any(fault.start <= end and (fault.end is None or fault.end >= begin) for fault in run.faults)


def _commands(run: Run, wanted: Any) -> GateResult:
    """Check that at least ``wanted`` commands succeeded under the load, that one ran during a fault, that the first
    command was started, and that the command for the end ran to its end."""
    ended = list(commands.ended_commands(run))
    found = sum(each.kind in commands.LOAD and each.result == commands.OK for each in ended)
    told = run.info.get("commands")
    noted = told if isinstance(told, Mapping) else {}
    reasons = [] if found >= wanted else [f"only {found:,} commands succeeded, {wanted:,} are required"]
    if missed := noted.get("missed"):
        reasons.append(f"no finally_ command could run at the end: {missed}")
    if run.faults and not any(each.kind in commands.LOAD and _in_force(run, each.row) for each in ended):
        reasons.append("no command ran while a fault was in force")
    for each in ended:
        if each.kind not in commands.LOAD and each.result not in (commands.OK, commands.FAILED):
            why = str(run.history.error.at(each.row) or "its end is unknown")
            reasons.append(f"{run.name_of(int(run.history.key[each.row]))} did not run to its end ({why})")
    return GateResult(not reasons, found, "; ".join(reasons), f"{found:,} succeeded")


def asks(name: str, wanted: Any) -> str:
    """Return a gate's requirement in words; for an unknown gate, return its name."""
    words = ASKS.get(name)
    if words is None:
        return name.replace("_", " ")
    number = max(1, int(wanted)) if isinstance(wanted, int | float) else 1
    least = wanted.items() if isinstance(wanted, Mapping) else ()
    return words.format(n=number, listed=", ".join(f"{n} of {function}" for function, n in least))


ASKS: Mapping[str, str] = {
    "completed": "the run came to its end",
    "healthy": "the cluster was healthy again once all faults were healed",
    "guarantees": "it names the guarantees that it is judged by",
    OPERATIONS: "clients did something",
    "schedule": "the faults happened as planned, though the harness stood still",
    "min_ok": "so many operations were confirmed at least: {listed}",
    "min_stalls": "at least {n:,} holders of the lock stood still",
    "recovered": "in the end somebody saw that no prepared transaction was left",
    "min_changes_ok": "at least {n:,} changes were confirmed",
    "min_looks_ok": "at least {n:,} looks were confirmed",
    "last_looks": "every object that was changed was looked at in the end",
    "min_kept": "at least {n:,} sends went through a client's repository",
    "commands": "at least {n:,} commands succeeded under the load, one ran during a fault, and those before and after "
                "the load ran to their end",
    "min_enqueue_ok": "at least {n:,} sends were confirmed",
    "min_dequeue_ok": "at least {n:,} deliveries were confirmed",
    "drain": "everything that was used was drained to its end",
    "depth": "what was left in everything sent to was read",
    "faults_confirmed": "each family of faults has evidence that it took effect, in the state that it expects",
    "both_sides": "in some partition at least {n:,} sends were confirmed on each of two sides",
    "majority_success": "at least {n:,} sends were confirmed on the majority's side of partitions",
}
"""The requirement of each gate, in words."""


GATES: Mapping[str, Gate] = {
    "min_ok": _min_ok,
    "min_stalls": _stalls,
    "recovered": _recovered,
    "min_changes_ok": _at_least((*CREATES, *DELETES), "changes"),
    "min_looks_ok": _at_least(READS, "looks"),
    "last_looks": _last_reads,
    "min_kept": _kept,
    "commands": _commands,
    "min_enqueue_ok": _enqueued,
    "min_dequeue_ok": _dequeued,
    "drain": _drained,
    "depth": _depth_read,
    "faults_confirmed": _faults_confirmed,
    "both_sides": _both_sides,
    "majority_success": _majority_success,
}


CHECK = RunCheck(
    name="gates",
    guarantee="none: a run that tested too little is unknown",
    decides=True,
    subjects=(ANY,),
    function=check,
)
