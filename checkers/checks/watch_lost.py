"""Loss from watched keys: a confirmed or reported event that a final watch from the beginning does not report."""

from __future__ import annotations

import numpy as np

from checkers.api import RunCheck
from checkers.logs import examples
from checkers.run import Run
from checkers.watches import Watches
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, CheckOutcome
from stormproof.history.columns import Int64s
from stormproof.text import amount
from stormproof.vocabulary import WATCHES


def check(run: Run) -> CheckOutcome:
    """Find values that the final watch of a key from its beginning lacks, at one node at least.

    They are values of confirmed puts (``confirmed-lost``), or others that watches reported (``seen-lost``).

    Only operations that ended before that watch began count, and only watches that reached their end, at each node. A
    key for which one did not makes a run without losses *unknown*.
    """
    watches, h = Watches(run), run.history
    calls, ends = watches.rows(vocabulary.INVOKE, "replay"), watches.ends("replay")
    nodes = range(int(run.test.get("nodes", 1)))
    known = np.unique(watches.key(np.concatenate([watches.appended, watches.told])))
    missing: dict[str, list[int]] = {"confirmed-lost": [], "seen-lost": []}
    unread: list[tuple[int, int]] = []
    number = h.value[h.partner]  # a replay's invocation names the node
    for key in known.tolist():
        rows = {kind: _of(found, watches, key) for kind, found in
                (("confirmed-lost", watches.appended), ("seen-lost", watches.told))}  # fmt: skip
        absent: set[int] = set()
        for node in nodes:
            if not ((watches.key(ends) == key) & (number[ends] == node)).any():
                unread.append((key, node))
                continue
            begun = int(calls[(watches.key(calls) == key) & (h.value[calls] == node)][0])
            mine = watches.scanned[(watches.key(watches.scanned) == key) & (number[watches.scanned] == node)]
            there = watches.value(mine)
            for each in rows.values():
                asked = each[each < begun]
                absent |= set(watches.value(asked)[~np.isin(watches.value(asked), there)].tolist())
        for kind, each in rows.items():
            values, first = np.unique(watches.value(each), return_index=True)
            lost = [int(each[at]) for value, at in zip(values.tolist(), first.tolist(), strict=True) if value in absent]
            absent -= set(values.tolist())
            missing[kind] += lost
    counts = {kind: len(rows) for kind, rows in missing.items()}
    puts = amount(len(watches.appended), "confirmed put")
    if sum(counts.values()):
        found = [one for kind, lost in missing.items()
                 for one in examples(run, kind, [(row,) for row in sorted(lost)], watches)]  # fmt: skip
        text = f"{counts['confirmed-lost']:,} of {puts} lost, and {counts['seen-lost']:,} others that were reported"
        return CheckOutcome(INVALID, sum(counts.values()), text, tuple(found[:MAX_EXAMPLES]), counts)
    if unread:
        key, node = unread[0]
        text = f"{run.name_of(key)} was not watched from its beginning to its end at n{node + 1}"
        return CheckOutcome(UNKNOWN, 0, text, (), counts)
    return CheckOutcome(VALID, 0, f"none of {puts} was lost, at each node", (), counts)


def _of(rows: Int64s, watches: Watches, key: int) -> Int64s:
    found: Int64s = rows[watches.key(rows) == key]
    return found


CHECK = RunCheck(
    name="watch-lost",
    guarantee="a watch from the beginning reports every confirmed or reported event, at every node",
    anomaly="watch-lost",
    decides=True,
    subjects=(WATCHES,),
    one="event was lost",
    more="events were lost",
    function=check,
)
