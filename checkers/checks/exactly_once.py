"""Exactly once: every message that transactions moved led to exactly one message."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from checkers.account import name_of
from checkers.api import RunCheck, listed
from checkers.run import Run
from checkers.transactions import ABORTED, COMMITTED, OUTCOMES, TransactionTable, find
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, UNKNOWN, VALID, Anomaly, CheckOutcome
from stormproof.history.columns import Int64s
from stormproof.text import amount
from stormproof.vocabulary import TRANSACTIONS

LOST = "lost"
TWICE = "moved-twice"
UNCOMMITTED = "uncommitted-yet-delivered"
OUTPUT_LOST = "output-lost"
NOWHERE = "from-nowhere"


@dataclass
class _Found:
    kinds: Counter[str] = field(default_factory=Counter)
    examples: list[Anomaly] = field(default_factory=list)
    undecided: int = 0
    messages: int = 0

    def add(self, kind: str, anomaly: Anomaly) -> None:
        self.kinds[kind] += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(anomaly)


def check(run: Run) -> CheckOutcome:
    """Judge moves: a move takes a message from one queue and sends another to the next queue in one transaction.

    Violated by confirmed messages that led to none, messages that led to several, results of moves that are certain not
    to have committed, committed moves whose result never arrived, and moves of messages that no one had sent.

    A result counts when it was delivered, or when its move is known to have committed. Undecided (unknown) while a
    queue on the way was not drained.
    """
    t, found = run.transactions, _Found()
    for number in np.flatnonzero(t.is_move & (t.outcome == ABORTED) & (t.came != 0)).tolist():
        found.add(UNCOMMITTED, _of_move(run, t, UNCOMMITTED, number))
    for source in t.sources:
        _judge(run, t, source, found)
    figures: dict[str, Any] = {
        "messages": found.messages, "undecided": found.undecided, "kinds": dict(found.kinds),
        "moves_unknown": int(np.count_nonzero(t.is_move & (t.outcome != COMMITTED) & (t.outcome != ABORTED))),
    }  # fmt: skip
    count = found.kinds.total()
    if count:
        told = listed(dict(found.kinds.most_common()))
        text = f"{amount(count, 'message was', 'messages were')} not moved exactly once ({told})"
        return CheckOutcome(INVALID, count, text, tuple(found.examples), figures)
    if found.undecided:
        messages = amount(found.undecided, "message was", "messages were")
        text = f"{messages} not seen to be moved, but not every queue on the way was drained"
        return CheckOutcome(UNKNOWN, 0, text, (), figures)
    return CheckOutcome(VALID, 0, f"all {found.messages:,} confirmed messages were moved exactly once", (), figures)


def _judge(run: Run, t: TransactionTable, source: int, found: _Found) -> None:
    """Judge the messages of one queue from which messages are moved."""
    h, messages = run.history, t.messages_of(source)
    moves = np.flatnonzero(t.is_move & (h.key[t.row] == source))
    known, which = t.taken[moves] != -1, find(messages.value, t.taken[moves])
    effective = (t.came[moves] != 0) | (t.outcome[moves] == COMMITTED)
    delivered = t.came[moves] != 0
    drained = all(t.drained >> queue & 1 for queue in (source, source + 1))

    named, count = which >= 0, len(messages.value)
    results = np.bincount(which[named & effective], minlength=count)
    arrived = np.bincount(which[named & delivered], minlength=count)
    for place in np.flatnonzero(results > 1).tolist():
        mine = moves[named & effective & (which == place)]
        found.add(TWICE, _of_message(run, t, TWICE, source, int(messages.value[place]), int(messages.row[place]), mine))
    if t.drained >> (source + 1) & 1:
        for number in moves[effective & ~delivered].tolist():
            found.add(OUTPUT_LOST, _of_move(run, t, OUTPUT_LOST, number))
    found.messages += int(messages.confirmed.sum())
    missing = np.flatnonzero(messages.confirmed & (results == 0))
    # A move that does not name the message it took may have taken any message.
    nameless = int(np.count_nonzero(~known & delivered))
    if drained and not nameless:
        for place in missing.tolist():
            mine = moves[named & (which == place)]
            value, row = int(messages.value[place]), int(messages.row[place])
            found.add(LOST, _of_message(run, t, LOST, source, value, row, mine))
    else:
        found.undecided += len(missing)
    if not t.drained >> (source + 1) & 1:
        found.undecided += int(np.count_nonzero((results > 0) & (arrived == 0) & messages.confirmed))
    nobodys = known & (~named | np.append(messages.failed, False)[which])
    for number in moves[nobodys].tolist():
        found.add(NOWHERE, _of_move(run, t, NOWHERE, number))


def _of_move(run: Run, t: TransactionTable, kind: str, number: int) -> Anomaly:
    row = int(t.row[number])
    detail: dict[str, Any] = {"outcome": OUTCOMES[int(t.outcome[number])], "faults": run.faults_at(row)}
    if t.taken[number] != -1:
        detail["took"] = name_of(int(t.taken[number])) if t.taken[number] >= 0 else "what nobody of ours wrote"
    rows = [row, *t.deliveries[t.of_delivery == number].tolist()]
    return Anomaly(kind, run.rows_of(*rows), int(run.history.key[row]), t.name(number), detail)


def _of_message(run: Run, t: TransactionTable, kind: str, source: int, value: int, sent: int, moves: Int64s) -> Anomaly:
    confirmed = max(sent, int(run.history.partner[sent]))
    detail = {
        "moved_by": [f"{t.name(n)} ({OUTCOMES[int(t.outcome[n])]})" for n in moves.tolist()]
        or "no move that says so",
        "results_delivered": int(np.count_nonzero(t.came[moves])),
        "faults": run.faults_at(confirmed),
    }
    rows = [sent, *t.row[moves].tolist(), *t.deliveries[np.isin(t.of_delivery, moves)].tolist()]
    return Anomaly(kind, run.rows_of(*rows), source, name_of(value), detail)


CHECK = RunCheck(
    name="exactly-once",
    guarantee="every message that is moved by transactions leads to exactly one",
    anomaly="exactly-once",
    decides=True,
    subjects=(TRANSACTIONS,),
    one="message was not moved exactly once",
    more="messages were not moved exactly once",
    speaks_when_held=True,
    function=check,
)
