"""Growth: the memory contents of idle nodes must not depend on the amount of work that they have done."""

from __future__ import annotations

from checkers.api import RunCheck
from checkers.run import Run
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.contracts.resting_state import LEFT
from stormproof.text import amount
from stormproof.vocabulary import ANY

UNDECLARED_ITEMS = 3
"""Number of things that an undeclared container or table may hold on an idle node beyond those before the load; or one
for each machine, if that is more.

A program has many small tables. A table that exceeds this number has kept a trace of the work it did, if only of each
time that a peer was away.
"""
TASK, UNDECLARED_TASKS = "task ", 1
"""Prefix of the names of code that tasks run, and the number of tasks beyond those before the load that may run the
same code: a node has few tasks, and most of them live as long as the node.
"""
NESTED = 4
"""Factor by which the limit of a container's inner containers grows at each level of nesting."""
FOR_EACH = 3
"""Things that a node may hold for each message that is left: its delivery, its place in some index."""


def check(run: Run) -> CheckOutcome:
    """Find containers and tables that hold too much on idle nodes after the run.

    The limit is the one that the node's system declares. Without a declaration it is a few things more than any node
    held there before the load. If clients have left messages (a matter for the check of depths), a node may hold some
    things more for each. Unknown for real nodes, whose memory cannot be inspected.
    """
    rest = run.info.get("rest")
    if not isinstance(rest, dict):
        return CheckOutcome(UNKNOWN, 0, "the nodes' memory was not inspected")
    operations = sum(int(counts[0]) for counts in run.tally.values())
    keeps = run.info.get("keeps") or {}
    before: dict[str, int] = {}
    for holdings in (run.info.get("rest_before") or {}).values():
        before |= {name: max(count, before.get(name, 0)) for name, count in holdings.items()}
    found: list[Anomaly] = []
    few = max(UNDECLARED_ITEMS, len(rest), len(run.info.get("rest_before") or {}))
    for node, holdings in sorted(rest.items()):
        limits = {name: [holdings.get(limit, 0) + few if isinstance(limit, str) else limit
                         for start, limit in keeps.items() if name.startswith(start)] for name in holdings}
        left = max((count for name, count in holdings.items() if LEFT in limits[name]), default=0)
        for name, count in sorted(holdings.items()):
            levels = NESTED ** name.count("[]")
            more = UNDECLARED_TASKS if name.startswith(TASK) else few * levels
            most = max([more + before.get(name, 0), *(limit * levels for limit in limits[name])])
            most += FOR_EACH * left
            if LEFT not in limits[name] and count > most:
                found.append(Anomaly("leak", (), detail={"node": node, "what": name, "holds": count, "most": most,
                                                          "operations": operations}))
    if found:
        first = found[0].detail
        text = (f"{first['node']} held {first['holds']} things in {first['what']} when idle, after "
                f"{amount(operations, 'operation')}; {first['most']} are expected at most")
        return CheckOutcome(INVALID, len(found), text, tuple(found[:MAX_EXAMPLES]))
    return CheckOutcome(VALID, 0, f"nothing that idle nodes held had grown with {amount(operations, 'operation')}")


CHECK = RunCheck(
    name="growth",
    guarantee="the memory of idle nodes does not grow with the work that they have done",
    anomaly="leak",
    subjects=(ANY,),
    function=check,
)
