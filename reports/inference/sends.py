"""The fate of each confirmed send of a run: when it was confirmed, by which node, and when a client first got it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reports.narrative import Narrator
from reports.spans import TYPE_WORDS
from stormproof.history.columns import Bools, Int64s
from stormproof.history.schema import PAIR_SHIFT
from stormproof.vocabulary import SENDS, TAKES, TOPIC, function_named

_OK, _INFO = TYPE_WORDS.index("ok"), TYPE_WORDS.index("info")
_LOW = (1 << PAIR_SHIFT) - 1
_NS = 1e9
APPEND, POLL, SCAN = "append", "poll", "scan"
"""Functions of logs whose values are pairs: offset, value."""


Times = NDArray[np.float64]
Names = NDArray[np.object_]


@dataclass(frozen=True)
class ConfirmedSends:
    """The confirmed sends of a run, in the order of their confirmations; times are seconds of the run.

    ``got`` is the time at which a client first received a message (infinite: never). ``value`` is the encoded message,
    for a log the entry's value; ``offset`` is the entry's offset, -1 for messages. ``via`` has the names of the nodes
    that confirmed them to clients, ``node`` those of the nodes that kept them for the others: their leaders, where
    these are known.
    """

    start: Times
    end: Times
    got: Times
    key: Int64s
    value: Int64s
    offset: Int64s
    node: Names
    via: Names

    def __len__(self) -> int:
        return len(self.start)

    @property
    def lost(self) -> Bools:
        """Which messages never arrived."""
        found: Bools = np.isinf(self.got)
        return found

    def named(self, names: Collection[tuple[int, int]]) -> Bools:
        """Return which sends have one of these pairs of key and encoded value."""
        wanted = set(names)
        pairs = zip(self.key.tolist(), self.value.tolist(), strict=True)
        return np.fromiter((pair in wanted for pair in pairs), dtype=np.bool_, count=len(self))


def confirmed_sends(narrator: Narrator, subscription: int | None = None) -> ConfirmedSends:
    """Return the sends of messages, or the appends to logs; ``subscription``: only its deliveries count."""
    spans, names = narrator.spans, narrator.history.f.names
    verbs = [function_named(name) for name in names]

    def rows(codes: list[int], *types: int) -> Int64s:
        found: Int64s = np.flatnonzero(np.isin(spans.f, codes) & np.isin(spans.type, types) & (spans.value >= 0))
        return found

    logs = [code for code, name in enumerate(names) if name == APPEND]
    on_topics = any(verb.noun == TOPIC for verb in verbs)
    if logs:
        sent, taken = rows(logs, _OK), rows([code for code, name in enumerate(names) if name == SCAN], _OK)
        value, offset, seen = spans.value[sent] & _LOW, spans.value[sent] >> PAIR_SHIFT, spans.value[taken] & _LOW
    else:
        sent = rows([code for code, verb in enumerate(verbs) if verb.does == SENDS and not verb.transaction], _OK)
        taken = rows([code for code, verb in enumerate(verbs) if verb.does == TAKES], _OK, _INFO)
        value, seen = spans.value[sent], spans.value[taken]
        offset = np.full(len(sent), -1, dtype=np.int64)
    sent_key, taken_key = spans.key[sent], spans.key[taken]
    if on_topics:  # the key of a delivery is its subscription, not the topic
        if subscription is not None:
            seen, taken = seen[taken_key == subscription], taken[taken_key == subscription]
        sent_key, taken_key = np.zeros_like(sent), np.zeros_like(taken)
    first: dict[tuple[int, int], float] = {}
    ends = (spans.end[taken] / _NS).tolist()
    for pair, end in zip(zip(taken_key.tolist(), seen.tolist(), strict=True), ends, strict=True):
        first[pair] = min(end, first.get(pair, np.inf))
    got = np.array([first.get(pair, np.inf) for pair in zip(sent_key.tolist(), value.tolist(), strict=True)])
    nodes = np.array([*narrator.history.node.names, ""], dtype=object)[spans.node[sent]]
    order = np.argsort(spans.end[sent], kind="stable")
    start, end = (spans.start[sent] / _NS)[order], (spans.end[sent] / _NS)[order]
    return ConfirmedSends(start, end, got[order], sent_key[order], value[order], offset[order], nodes[order],
                          nodes[order])  # fmt: skip
