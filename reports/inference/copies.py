"""Why a replica's copy of a log lacks entries that others have: its disk was damaged, or lost what was not synced."""

from __future__ import annotations

from collections.abc import Sequence

from reports.folder import sequence
from reports.inference.circumstances import discarded, disk_faults, ends_of, is_power, struck
from reports.inference.loss import NOT_TOLD
from reports.narrative import ShownAnomaly, ShownOperation, fault_name, plain
from reports.pack import shorten
from reports.run_facts import Cause, Facts
from stormproof.history.ledger import FaultWindow
from stormproof.text import listed

COPY, MISSING, DIVERGENCE = "copy", "missing", "divergence"
"""The function of reads of copies; a kind of anomaly, and its check."""


def copy_causes(
    members: Sequence[ShownAnomaly], facts: Facts, operations: Sequence[ShownOperation]
) -> list[tuple[int, Cause]]:  # fmt: skip
    """Return the causes of missing entries, each with their number. A fault explains an entry that was confirmed before
    it, if no other fault hit the disks of the nodes without the entry since."""
    assert facts.sends is not None
    sends = facts.sends(None)
    confirmed = {(int(key), int(offset)): float(end)
                 for key, offset, end in zip(sends.key, sends.offset, sends.end, strict=True)}  # fmt: skip
    read = sorted({operation.node for operation in operations if operation.f == COPY and operation.node})
    explained: dict[tuple[tuple[str, ...], int], list[float]] = {}
    faults: dict[int, FaultWindow] = {}
    for anomaly in members:
        at = confirmed.get((anomaly.key or 0, int(dict(anomaly.detail).get("offset", -1))))
        nodes = _lacking(anomaly, read)
        hits = {fault.id: fault for node in nodes for fault in _disk_hits(node, facts)}
        after = [fault for fault in hits.values() if at is not None and struck(fault) >= at]
        if at is not None and len(after) == 1 and set(nodes) <= set(after[0].targets):
            faults[after[0].id] = after[0]
            explained.setdefault((nodes, after[0].id), []).append(at)
    causes = [(len(times), _cause(nodes, faults[number], times)) for (nodes, number), times in explained.items()]
    unknown = len(members) - sum(count for count, _ in causes)
    return [*sorted(causes, key=lambda each: -each[0]), *([(unknown, Cause("", NOT_TOLD))] if unknown else [])]


def _lacking(anomaly: ShownAnomaly, read: Sequence[str]) -> tuple[str, ...]:
    """Return those of the nodes whose copies were ``read`` that lack an entry: the anomaly names the others' reads."""
    have = {operation.node for operation in anomaly.operations if operation.f == COPY and operation.proof}
    return tuple(name for name in read if name not in have)


def _disk_hits(node: str, facts: Facts) -> list[FaultWindow]:
    """Return the faults that took data from a node's disk."""
    cuts = [fault for fault in ends_of(node, facts) if is_power(fault) and discarded(node, fault)[0]]
    return [*cuts, *disk_faults([node], float("inf"), facts)]


def _cause(nodes: tuple[str, ...], fault: FaultWindow, times: Sequence[float]) -> Cause:
    them, many = ("it", "It was") if len(times) == 1 else ("them", f"All {plain(len(times))} were")
    when = f"at {times[0]:.3f} s" if len(times) == 1 else f"from {min(times):.3f} to {max(times):.3f} s"
    places = [shorten(str(place)) for place in sequence(fault.inject_evidence.get("damaged"))]
    lost = sum(discarded(node, fault)[0] or 0 for node in nodes)
    told = f" ({listed(places[:2])})" if places else f", and {plain(lost)} bytes were discarded" if lost else ""
    who, disk, did = listed(nodes), "disk" if len(nodes) == 1 else "disks", "the loss of power"
    if not is_power(fault):
        did = f"the fault of the {disk}"
    text = (f"{many} confirmed {when}, before {fault_name(fault)} hit {who}’s {disk} at {struck(fault):.3f} s{told}. "
            f"Other nodes have {them}.")  # fmt: skip
    return Cause("copy", text, inferred=f"After {did}, {who} had lost {them}, and did not get {them} from the other "
                                        f"nodes.")  # fmt: skip
