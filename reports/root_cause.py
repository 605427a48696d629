"""The causes of violated guarantees, as far as the run recorded them: the system's statement on the guarantee, the
common features of the messages of a kind of anomaly, and the later announcements of the nodes that confirmed them.

These are recorded facts in order of time, never a guess at a cause: where the run has no record, the text says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from reports.cause import cause_of, left_over
from reports.folder import mapping, number
from reports.inference.infer import inferred
from reports.inference.reads import of_reads
from reports.lock_cause import LOCK_KINDS, of_lock
from reports.narrative import ShownAnomaly, ShownOperation, plain
from reports.pack import shorten
from reports.roles import Lane, TransferMark
from reports.run_facts import Cause, Facts
from reports.value_cause import of_register
from stormproof.contracts.guarantee import KNOWN_VIOLATION, NOT_PROMISED, PROMISED
from stormproof.text import listed

BINS = 60
"""Bars of a group's histogram over the whole run."""
MAX_CAUSES = 5
REGISTER = "register"
"""The check of single values."""
LEFT, PLACE = "left-in-queue", "q"
"""A kind of anomaly that names no message; the prefix of the names of places, before the number of the queue."""
MAX_LINES = 6
"""Upper bound of the announcements of one node, and of the periods with two masters, that are shown."""

_SAID = {
    PROMISED: "Promised",
    KNOWN_VIOLATION: "A known violation: required, but impossible in this mode",
    NOT_PROMISED: "Not promised",
}


class Checked(Protocol):
    """The findings of a check: ``count`` anomalies in all, and those that the verdict names."""

    @property
    def count(self) -> int:
        """The number of all anomalies."""
        ...

    @property
    def anomalies(self) -> Sequence[ShownAnomaly]:
        """The anomalies that the verdict names."""
        ...

    @property
    def raw(self) -> Mapping[str, Any]:
        """The figures of the check, as in the verdict."""
        ...


@dataclass(frozen=True)
class AnomalyGroup:
    """The anomalies of one kind that a check names: a sentence on their common features, the nodes' announcements, and
    the number that began in each of the ``BINS`` equal parts of the run, scaled to a maximum of 1.

    ``causes`` are the causes, each with the number of its anomalies, the most frequent first; ``untold`` is the
    sentence on the ``unknown`` others. ``idents`` are the anomalies.
    """

    kind: str
    sentence: str
    happened: tuple[str, ...]
    bars: tuple[float, ...]
    causes: tuple[tuple[int, Cause], ...] = ()
    further: int = 0
    """The number of anomalies whose causes are rarer than these."""
    unknown: int = 0
    untold: str = ""
    idents: tuple[str, ...] = ()


def declared(run: Mapping[str, Any], check: str) -> str:
    """Return the system's statement on the guarantee that a check finds violated; empty where there is none."""
    told = mapping(mapping(run.get("statuses")).get(check))
    said = _SAID.get(str(told.get("status")))
    if said is None:
        return ""
    where, why = shorten(str(told.get("where") or "")), shorten(str(told.get("why") or ""))
    return f"{said}{f' ({where})' if where else ''}{f': {why}' if why else ''}"


def groups(
    check: Checked, facts: Facts, duration: float, operations: Callable[[], Sequence[ShownOperation]]
) -> tuple[AnomalyGroup, ...]:
    """Return the anomalies of a check by their kinds, the most frequent first. ``duration`` is the length of the run in
    seconds; ``operations`` returns all operations of the run, for the causes of left-over messages."""
    kinds = dict.fromkeys(anomaly.kind for anomaly in check.anomalies)
    found = [_group(kind, [a for a in check.anomalies if a.kind == kind], check, facts, duration, operations)
             for kind in kinds]  # fmt: skip
    return tuple(sorted(found, key=lambda group: -len(group.idents)))


@dataclass(frozen=True)
class LeadingCause:
    """The inferred cause that stands under a run's verdict; ``which`` names the anomalies that it explains."""

    which: str
    cause: Cause


def leading_cause(groups: Sequence[AnomalyGroup], in_all: int) -> LeadingCause | None:
    """Return the most frequent cause of the first group of a check with ``in_all`` anomalies, if it is inferred."""
    first = groups[0]
    if not first.causes or not first.causes[0][1].inferred:
        return None
    count, cause = first.causes[0]
    known = sum(number for number, _ in first.causes) + first.further + first.unknown
    which = f"{plain(count)} of {plain(known)} {first.kind}" if known > 1 else f"the {first.kind}"
    if known < in_all and len(groups) == 1:
        which += f" (of the {plain(in_all)} in all, {plain(known)} were examined)"
    return LeadingCause(which, cause)


def _causes(
    members: Sequence[ShownAnomaly], facts: Facts, operations: Callable[[], Sequence[ShownOperation]]
) -> Iterator[Cause]:
    for anomaly in members:
        if anomaly.kind in LOCK_KINDS:
            yield of_lock(anomaly, facts.options, operations)
            continue
        if anomaly.check == REGISTER:
            yield (of_register if facts.trace.exists else of_reads)(anomaly, facts, operations)
            continue
        if anomaly.kind != LEFT:
            yield cause_of(anomaly, facts)
            continue
        left = list(left_over(f"{PLACE}{anomaly.key}", facts, operations()) if facts.trace.exists else ())
        yield from (cause for _, cause in left)
        if not left:
            yield cause_of(anomaly, facts)


def _counted(causes: Iterable[Cause]) -> tuple[tuple[tuple[int, Cause], ...], int, str]:
    """Return the causes with their number, and the number of anomalies without one, with the sentence about those."""
    told: dict[str, list[Cause]] = {}
    untold: dict[str, int] = {}
    for cause in causes:
        if cause.code:  # group inferred causes; show the facts of the first anomaly
            told.setdefault(cause.inferred or cause.sentence, []).append(cause)
        else:
            untold[cause.sentence] = untold.get(cause.sentence, 0) + 1
    found = sorted(((len(alike), _first(alike)) for alike in told.values()), key=lambda each: -each[0])
    return tuple(found), sum(untold.values()), max(untold, key=lambda text: untold[text], default="")


def _first(alike: Sequence[Cause]) -> Cause:
    """Return the first of several causes of one kind; its facts name the anomaly that they are about."""
    first, texts = alike[0], {cause.sentence for cause in alike}
    return replace(first, sentence=f"The first of them: {first.sentence}") if len(texts) > 1 else first


def _numbered(causes: Sequence[tuple[int, Cause]]) -> tuple[tuple[tuple[int, Cause], ...], int, str]:
    """Return the causes as ``_counted`` does."""
    told = tuple((count, cause) for count, cause in causes if cause.code)
    untold = [(count, cause.sentence) for count, cause in causes if not cause.code]
    return told, sum(count for count, _ in untold), max(untold, default=(0, ""))[1]


def _group(
    kind: str, members: Sequence[ShownAnomaly], check: Checked, facts: Facts, duration: float,
    operations: Callable[[], Sequence[ShownOperation]],
) -> AnomalyGroup:
    whole, roles, transfers = check.count == len(check.anomalies), facts.roles, facts.transfers
    begun = [anomaly.window[0] for anomaly in members if anomaly.window]
    confirmed = [_confirmed(anomaly) for anomaly in members]
    sends = [op for op in confirmed if op is not None]
    in_all = "" if whole or len(members) < len(check.anomalies) else _in_all(kind, check)
    who = f"{plain(len(members))} {kind}"
    if not whole:
        who = f"{in_all} Of these" if in_all else "Of"
        who += f" the {plain(len(members))} {kind if not in_all else ''}".rstrip() + " that the verdict names"
    parts: list[str] = []
    happened: list[str] = []
    if sends:
        all_sent = len(sends) == len(members)
        several = len(members) > 1
        which = ("all " if several else "") if all_sent else f"{plain(len(sends))} "
        nodes = sorted({op.node for op in sends if op.node})
        if nodes:
            parts.append(f"{which}confirmed by {' or '.join(nodes)}")
        first, last = min(op.start for op in sends), max(op.start for op in sends)
        parts.append(f"sent at {first:.3f} s" if first == last else f"sent {first:.3f} to {last:.3f} s")
        parts.extend(_during(sends))
        processes = len({op.process for op in sends})
        parts.append(f"by {plain(processes)} client process{'es' if processes > 1 else ''}")
        happened += _two_masters(roles, first, max(op.end or op.start for op in sends))
        happened += [line for node in nodes for line in _afterwards(node, sends, roles, transfers)]
    elif begun:
        first, last = min(begun), max(begun)
        parts.append(f"at {first:.3f} s" if first == last else f"from {first:.3f} to {last:.3f} s")
    sentence = f"{who}: {', '.join(parts)}." if parts else ""
    known = inferred(kind, members, check.count, facts, operations)
    causes, unknown, untold = _numbered(known) if known is not None else _counted(_causes(members, facts, operations))
    further = sum(count for count, _ in causes[MAX_CAUSES:])
    return AnomalyGroup(kind, sentence, tuple(happened), _bars(begun, duration), causes[:MAX_CAUSES], further, unknown,
                        untold, tuple(anomaly.ident for anomaly in members))


def _in_all(kind: str, check: Checked) -> str:
    """Return a sentence on all anomalies, where the check has counted them by node; else nothing."""
    nodes = {shorten(str(name)): int(n) for name, count in mapping(check.raw.get("by_node")).items()
             if (n := number(count))}  # fmt: skip
    window = mapping(check.raw.get("window"))
    first, last = number(window.get("from")), number(window.get("to"))
    if not nodes or first is None or last is None:
        return ""
    by = f"all confirmed by {next(iter(nodes))}" if len(nodes) == 1 else "confirmed by " + listed(
        [f"{name} ({plain(count)})" for name, count in nodes.items()])
    return f"{plain(check.count)} {kind}: {by}, sent {first:.3f} to {last:.3f} s."


def _confirmed(anomaly: ShownAnomaly) -> ShownOperation | None:
    """Return the confirmed operation that sent an anomaly's message; None if the history has no such operation, or
    several."""
    sends = [op for op in anomaly.operations
             if op.sends and op.type == "ok" and op.f != "abort" and op.value == anomaly.value]  # fmt: skip
    return sends[0] if len(sends) == 1 else None


def _during(sends: Sequence[ShownOperation]) -> Iterator[str]:
    every = [fault for fault in dict.fromkeys(sends[0].faults) if all(fault in op.faults for op in sends)]
    some = [fault for fault in dict.fromkeys(f for op in sends for f in op.faults) if fault not in every]
    if every:
        yield f"during {listed(every)}"
    if some:
        yield f"{'and ' if every else ''}some during {listed(some[:4])}"
    if not every and not some:
        yield "while no fault was in force"


def _two_masters(roles: Sequence[Lane], first: float, last: float) -> list[str]:
    """Return the periods, from ``first`` to ``last``, in which two machines considered themselves master."""
    led = [(lane.node, s) for lane in roles for s in lane.stretches if s.leads and s.start <= last and s.end >= first]
    told = []
    for at, (node, mine) in enumerate(led):
        for other, theirs in led[at + 1 :]:
            start, end = max(mine.start, theirs.start), min(mine.end, theirs.end)
            if node.partition(".")[0] != other.partition(".")[0] and start < end and start <= last and end >= first:
                groups_told = f" ({mine.group} and {theirs.group})" if mine.group and theirs.group else ""
                told.append((start, f"{start:.3f} – {end:.3f} s: {node} and {other} both reported that they "
                                    f"led{groups_told}."))  # fmt: skip
    return [line for _, line in sorted(told)[:MAX_LINES]]


def _afterwards(
    node: str, sends: Sequence[ShownOperation], roles: Sequence[Lane], transfers: Sequence[TransferMark]
) -> Iterator[str]:
    """Yield the node's announcements since the last of the messages that it confirmed was sent: its roles until a
    transfer of state to it, or the first few. They begin at the send, since a receipt is in transit before the client
    gets it."""
    last = max(op.start for op in sends if op.node == node)
    stretches = [s for lane in roles if lane.node == node for s in lane.stretches]
    replaced = next((each for each in transfers if each.target == node and each.time >= last), None)
    then = next((s for s in stretches if s.start <= last < s.end), None)
    if then is not None:
        role = _role(then.role, then.group)
        yield f"{last:.3f} s: the last message that {node} confirmed was sent; {node} was {role}."
    until = replaced.time if replaced is not None else float("inf")
    known = None if then is None else (then.role, then.group)
    told = 0
    for s in stretches:
        if not last < s.start <= until or (s.role, s.group) == known:
            continue
        known, told = (s.role, s.group), told + 1
        if told > MAX_LINES:
            break
        yield f"{s.start:.3f} s: {node} was {_role(s.role, s.group)}."
    if replaced is not None:
        source = replaced.source if replaced.source not in ("", "?") else "another node"
        detail = f" ({shorten(replaced.detail)})" if replaced.detail else ""
        # In some designs this is the end of a replacement, in others the start of catching up.
        yield f"{replaced.time:.3f} s: {node} reported a state transfer from {source}{detail}."
    elif stretches:
        yield f"The logs report no later state transfer to {node}."
    else:
        yield f"The logs report no role of {node}."


def _role(role: str, group: str) -> str:
    return f"{shorten(role)} ({shorten(group)})" if group else shorten(role)


def _bars(begun: Sequence[float], duration: float) -> tuple[float, ...]:
    if not begun or duration <= 0:
        return ()
    counts = [0] * BINS
    for time in begun:
        counts[min(BINS - 1, max(0, int(time / duration * BINS)))] += 1
    return tuple(n / max(counts) for n in counts)
