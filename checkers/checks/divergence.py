"""Divergence: replicas of a log that differ when all faults are healed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from checkers.api import RunCheck
from checkers.logs import NO_COPIES, NO_COPY, Logs, RowTuples, outcome_of
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import UNKNOWN, VALID, CheckOutcome
from stormproof.history.columns import Int64s
from stormproof.text import amount
from stormproof.vocabulary import LOGS


def check(run: Run) -> CheckOutcome:
    """Find offsets at which the nodes' copies have different values (``differs``), or some copies have none
    (``missing``).

    Only copies that were read to their end are compared. If copies of a log were requested from nodes and fewer than
    two were read completely, a run without differences is *unknown*. If none were requested, the system shows no
    copies, or all nodes but one said that they have none, there is nothing to compare.
    """
    logs, h = Logs(run), run.history
    rows, ends = logs.rows(vocabulary.OK, "copy"), logs.ends("copy")
    asked = np.setdiff1d(logs.key(logs.rows(vocabulary.INVOKE, "copy")), logs.key(logs.ends("copy", NO_COPIES)))
    absent = logs.ends("copy", NO_COPY)
    found: dict[str, RowTuples] = {"differs": [], "missing": []}
    short, several, compared = [], False, 0
    for key in asked.tolist():
        nodes = np.unique(h.node.codes[ends[h.key[ends] == key]])
        if len(nodes) < 2:
            told = np.union1d(nodes, h.node.codes[absent[h.key[absent] == key]])
            if len(told) < int(run.test.get("nodes", 0)):
                short.append(key)
            continue
        several = True
        mine = rows[(h.key[rows] == key) & np.isin(h.node.codes[rows], nodes)]
        compared += len(np.unique(logs.offset(mine)))
        _compare(logs, mine, len(nodes), found)
    outcome = outcome_of(logs, found, amount(compared, "offset"), ", the same at each node")
    if not several and not short:
        return replace(outcome, summary="no copies to compare")
    if short and outcome.verdict == VALID:
        reason = f"fewer than two copies of log {short[0]} were read to their ends"
        return replace(outcome, verdict=UNKNOWN, summary=reason)
    return outcome


def _compare(logs: Logs, rows: Int64s, nodes: int, found: dict[str, RowTuples]) -> None:
    """Record the offsets of one log at which its copies differ."""
    codes = logs.run.history.node.codes
    order = np.lexsort((rows, logs.offset(rows)))
    rows = rows[order]
    groups = np.split(rows, np.flatnonzero(np.diff(logs.offset(rows))) + 1) if len(rows) else []
    for group in groups:
        value = logs.value(group)
        if (value != value[0]).any():
            found["differs"].append(tuple(group.tolist()))
        elif len(np.unique(codes[group])) < nodes:
            found["missing"].append(tuple(group.tolist()))


CHECK = RunCheck(
    name="divergence",
    guarantee="after the last heal, all nodes have the same log",
    anomaly="divergence",
    decides=True,
    subjects=(LOGS,),
    one="offset of a log was not the same at all nodes",
    more="offsets of logs were not the same at all nodes",
    function=check,
)
