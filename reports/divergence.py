"""The causes of replicas' divergence, as far as traces and lock grants show them: a copy that was passed over, log
entries that contradict another log, a state that was taken incomplete, a lock that should not have been granted. Each
finding is a fact that a correct system does not produce."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from reports.message_trace import QueueStay, Trace
from reports.pack import shorten
from reports.replica_logs import Extent, contradiction
from reports.run_facts import CLOCKS_S, Facts, source_of
from stormproof.contracts.system import COUNTED, PASSED
from stormproof.text import listed


@dataclass(frozen=True)
class NodeFinding:
    """A fact about nodes: ``code`` is the kind of finding, ``sentence`` describes it; without a code it may be correct
    behaviour."""

    code: str
    sentence: str


def findings(message: str, stays: Sequence[QueueStay], lacking: Collection[str], until: float, facts: Facts
             ) -> Iterator[NodeFinding]:  # fmt: skip
    """Yield the faults of the nodes that should have had or removed a message and did not (``lacking``), or whose state
    others took; up to ``until`` (seconds of the run)."""
    for node in sorted(lacking):
        yield from _passed_over(message, node, stays, until, facts)
    for node in sorted(lacking):
        yield from _kept_entries(node, stays, until, facts)
    for node in sorted(lacking):
        yield from _taken_incomplete(node, until, facts)


def _passed_over(
    message: str, node: str, stays: Sequence[QueueStay], until: float, facts: Facts
) -> Iterator[NodeFinding]:
    marks = [mark for mark in facts.trace.of(PASSED, message)
             if mark.node == node and mark.cause == COUNTED and mark.time <= until]  # fmt: skip
    if not marks or any(stay.node == node and not stay.logged for stay in stays):
        return
    kept = len(marks[0].token.split()) > 2
    why = "it already had another message under that number" if kept else "it had already counted past that number"
    yield NodeFinding("passed-over", f"{node} skipped the copy that arrived at {marks[0].time:.3f} s: {why}.")


def _kept_entries(node: str, stays: Sequence[QueueStay], until: float, facts: Facts) -> Iterator[NodeFinding]:
    trace = facts.trace
    if not trace.logs_contradict:
        return
    entries = {stay.entry for stay in stays if stay.logged and stay.entry is not None}
    for entry in sorted(entries):
        mine = [stay for stay in stays if stay.node == node and stay.logged and stay.entry == entry]
        first = _opener(entry.epoch, trace)
        theirs = [stay for stay in stays if stay.node == first and stay.logged and stay.entry == entry]
        if first in ("", node) or not theirs:
            continue
        found = contradiction(trace.log_of(node, mine[0].start if mine else until),
                              trace.log_of(first, theirs[0].start if mine else until), entry.number)  # fmt: skip
        if found is not None:
            ours, other = found
            others = "another" if ours.first == ours.last else "others"
            yield NodeFinding(
                "log-kept", f"{node}’s log kept {_entries(ours)}, where {first}’s log had {others}, of epoch "
                            f"{_shown(other, ours)}, and then accepted {first}’s later entries.")  # fmt: skip
            return


def _opener(epoch: str, trace: Trace) -> str:
    """Return the node whose log first had an entry of an epoch: its master."""
    first = {node: min((part.time for part in parts if part.epoch == epoch), default=None)
             for node, parts in trace.logs.items()}  # fmt: skip
    known = {node: time for node, time in first.items() if time is not None}
    return min(known, key=lambda node: known[node], default="")


def _entries(extent: Extent) -> str:
    which = f"entry {extent.first}" if extent.first == extent.last else f"entries {extent.first} to {extent.last}"
    return f"{which} of epoch {extent.epoch.partition('/')[0]}"


def _shown(extent: Extent, other: Extent) -> str:
    number = extent.epoch.partition("/")[0]
    return f"{number} of another master" if number == other.epoch.partition("/")[0] else number


def _taken_incomplete(node: str, until: float, facts: Facts) -> Iterator[NodeFinding]:
    """Yield the last state that a node took before a time, if it differed from the state that was given."""
    taken = [each for each in facts.trace.states if each.node == node and not each.given and each.time <= until]
    for each, parts in facts.trace.unlike(node):
        if taken and each is taken[-1]:
            whose = shorten(each.peer)
            yield NodeFinding(
                "state-unlike", f"The state that {node} took at {each.time:.3f} s, up to entry {each.upto}, was not "
                                f"{whose}’s state: {listed(list(parts))} differed.")  # fmt: skip


def left_out(stays: Sequence[QueueStay], facts: Facts) -> list[NodeFinding]:
    """Return the nodes that never had a message, though they took the state of a node that had it at that time.

    A message that arrives during a state transfer follows by the log, and may never arrive. The gap is wrong only where
    the state was to hold everything up to a later entry (else the finding has no code).
    """
    queued = [stay for stay in stays if not stay.logged]
    never = facts.trace.nodes - {stay.node for stay in queued}
    told: dict[str, NodeFinding] = {}
    for each in facts.transfers:
        node = each.target.partition(".")[0]
        source = source_of(node, each.time, facts)
        had = any(stay.node == source and stay.start < each.time and stay.holds(each.time + CLOCKS_S)
                  for stay in queued)  # fmt: skip
        if node not in never or not had:
            continue
        entry = next((stay.entry for stay in stays if stay.logged and stay.node == source), None)
        text = f"{node} took {shorten(source)}’s state at {each.time:.3f} s"
        missed = f"but did not get this message, which {shorten(source)} had"
        if entry is not None and each.upto is not None and entry.number <= each.upto:
            text = f"{text}, up to entry {each.upto}, {missed} as entry {entry.number}."
            told.setdefault(node, NodeFinding("left-out", text))
        else:
            told.setdefault(node, NodeFinding("", f"{text}, {missed}."))
    return list(told.values())


def wrong_grants(by: str, confirmed: float, unaware: Callable[[str, float], bool], until: float, facts: Facts
                 ) -> Iterator[NodeFinding]:  # fmt: skip
    """Yield locks that were granted, before ``until``, while another node still had a lease on them, or to a node that
    was not up to date. Such a grant is yielded only if the node that confirmed the operation (``by``) got its lock this
    way, or if the lock went to another node that was ``unaware`` of the operation at that time."""
    for at, each in enumerate(facts.grants):
        if each.time > until + CLOCKS_S:
            return
        to = shorten(each.to)
        text = f"The {shorten(each.grantor)} granted {to} the lock at {each.time:.3f} s ({shorten(each.epoch)})"
        since = [later.to for later in facts.grants[at + 1 :] if later.time <= confirmed]
        got = by == each.to and each.time <= confirmed and all(name == by for name in since)
        if each.leased and (got or (by in each.leased and unaware(each.to, each.time))):
            names = listed([shorten(name) for name in each.leased])
            yield NodeFinding("two-holders", f"{text} while {names} still held an unexpired lease on it.")
            return
        passed_by = by == each.last and confirmed <= each.time and unaware(each.to, each.time)
        if each.stale and (got or passed_by):
            yield NodeFinding("stale-holder", f"{text}, although {to} was up to date only as of {shorten(each.known)}; "
                                          f"{shorten(each.last)} held the lock later, in {shorten(each.before)}."
                          )  # fmt: skip
            return
