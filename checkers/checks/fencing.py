"""Fencing tokens: a later holder of the lock gets a larger number."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from functools import partial
from itertools import accumulate

import numpy as np

from checkers.api import RunCheck
from checkers.locks import ACQUIRE
from checkers.run import Run
from stormproof import vocabulary
from stormproof.contracts.check import INVALID, MAX_EXAMPLES, VALID, Anomaly, CheckOutcome
from stormproof.text import amount
from stormproof.vocabulary import LOCKS

TOKEN = "token"
_TOKEN = re.compile(rf"{TOKEN} (-?[0-9]+)")
"""Error text of an acquire whose token does not fit into the history's values."""


def tokens_of(run: Run) -> dict[int, int]:
    """Return the token of each acquire that got one, by the row of its completion, in order."""
    h = run.history
    told = [None if match is None else int(match[1]) for match in map(_TOKEN.fullmatch, h.error.names)]
    rows = np.flatnonzero((h.kind == vocabulary.OK) & (h.process >= 0) & h.f.rows_with(ACQUIRE))
    found = {}
    for row in rows.tolist():
        code = int(h.error.codes[row])
        token = int(h.value[row]) if h.value[row] >= 0 else told[code] if code >= 0 else None
        if token is not None:
            found[row] = token
    return found


def _larger(tokens: Mapping[int, int], first: int, second: int) -> int:
    return second if tokens[second] > tokens[first] else first


def check(run: Run) -> CheckOutcome:
    """Find acquires whose token is not larger than that of an acquire that had ended before they were invoked, and
    acquires that share a token with another one.

    Any integer is a token. Without tokens there is nothing to check.
    """
    h = run.history
    tokens = tokens_of(run)
    rows = list(tokens)
    figures: dict[str, object] = {"tokens": len(rows)}
    if not rows:
        return CheckOutcome(VALID, 0, "no fencing tokens were given", (), figures)
    wrong: list[tuple[int, int]] = []
    owner: dict[int, int] = {}
    largest = list(accumulate(rows, partial(_larger, tokens)))
    for row in rows:  # by the ends of acquires: the ends that an acquire follows lie before it
        token, before = tokens[row], bisect_left(rows, int(h.partner[row]))
        if token in owner:
            wrong.append((owner[token], row))
        elif before and token < tokens[largest[before - 1]]:
            wrong.append((largest[before - 1], row))
        owner.setdefault(token, row)
    if not wrong:
        return CheckOutcome(VALID, 0, f"{amount(len(rows), 'fencing token')}, each larger than all before", (), figures)
    examples = tuple(
        Anomaly("token-went-back", run.rows_of(first, row), 0, None,
                {"token": tokens[row], "after": tokens[first]})
        for first, row in wrong[:MAX_EXAMPLES]
    )  # fmt: skip
    text = f"{len(wrong):,} of {amount(len(rows), 'fencing token')} not larger than one before"
    return CheckOutcome(INVALID, len(wrong), text, examples, figures)


CHECK = RunCheck(
    name="fencing",
    guarantee="fencing tokens grow: each later holder of the lock gets a larger token",
    anomaly="token-went-back",
    decides=True,
    subjects=(LOCKS,),
    one="fencing token was not larger than one before",
    more="fencing tokens were not larger than one before",
    function=check,
    happens=True,
)
