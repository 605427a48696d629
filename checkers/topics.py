"""The account of a run on topics: the published messages, the subscriptions, and the deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from checkers.account import Sends, repeats
from checkers.history import dense_keys
from checkers.kernels.deliveries import FIRST, judge_order
from checkers.kernels.queues import ACKED
from checkers.kernels.rows import number_streams
from checkers.kernels.topics import first_places, overlapping
from checkers.queue_ends import EMPTY, not_drained
from stormproof import vocabulary
from stormproof.errors import HistoryError
from stormproof.history.columns import Bools, HistoryColumns, Int8s, Int32s, Int64s

MAX_TOPICS = 62
"""Topics are bits of a subscription's value."""

_SUBSCRIBES = (vocabulary.LISTEN, vocabulary.ATTACH)
_ON_SUBSCRIPTIONS = (*_SUBSCRIBES, vocabulary.RECEIVE, vocabulary.DRAIN, vocabulary.DETACH, vocabulary.DELETE)


@dataclass(frozen=True)
class SubscriptionRecord:
    """One subscription; ``number`` is its place, ``key`` its number in the history.

    ``mask`` has a bit for each topic that it takes. ``asked`` is the row of the first request for it, ``since`` the row
    that first confirmed it (-1: none), ``until`` the row of the request to delete it (the number of rows: never).
    """

    number: int
    key: int
    durable: bool
    mask: int
    asked: int
    since: int
    until: int


@dataclass(frozen=True)
class SubscriptionConnection:
    """One process's connection to a transient subscription; ``taken`` are the places of its deliveries."""

    subscription: SubscriptionRecord
    process: int
    asked: int
    since: int
    taken: Int64s


@dataclass(frozen=True)
class Topics(Sends):
    """The sends of messages, with their ``topic`` (-1: never published), and the deliveries to each subscription.

    The deliveries to subscription s are the completions ``rows[start[s]:start[s + 1]]`` in order; ``message`` is the
    message of each delivery. ``codes`` and ``shown_by`` classify it as ``judge_deliveries`` does.
    """

    history: HistoryColumns
    topic: Int32s
    subscriptions: tuple[SubscriptionRecord, ...]
    start: Int64s
    rows: Int64s
    message: Int32s
    codes: Int8s
    shown_by: Int64s

    @classmethod
    def of(cls, h: HistoryColumns) -> Topics:
        """Return the account of a history.

        Raises:
            HistoryError: a value was published twice, a subscription was used by two processes at once, or an operation
                began on one subscription and ended on another, so that no account can be given.
        """
        as_queue = _as_queue_roles(h.role)
        sends = Sends.read(h, as_queue, np.zeros(h.rows, dtype=np.int32), "publishes")
        sent = sends.sent
        topic = np.where(sent >= 0, h.key[sent], -1).astype(np.int32)
        if len(topic) and (topic.max() >= MAX_TOPICS or (topic[sent >= 0] < 0).any()):
            raise HistoryError(f"a message is published to a topic whose number is not below {MAX_TOPICS}")
        on = np.isin(h.role, _ON_SUBSCRIPTIONS)
        _demand_one_key(h, on)
        dense, bound, keys = dense_keys(h)
        subscriptions, number_of = _subscriptions(h, dense, bound, keys)
        which = np.where(on & (dense >= 0), number_of[dense], -1).astype(np.int32)
        clash = overlapping(h.kind, which, h.partner, len(subscriptions))
        if clash >= 0:
            raise HistoryError(
                f"row {clash} uses subscription {h.key[clash]} while another operation on it is under way: the "
                "order in which it got its messages is not known"
            )
        came = np.flatnonzero((sends.of_row >= 0) & (as_queue != vocabulary.ENQUEUE))
        if (which[came] < 0).any():
            row = int(came[which[came] < 0][0])
            raise HistoryError(f"row {row} receives a message of subscription {h.key[row]}, which no row requested")
        came = came[np.argsort(which[came], kind="stable")]
        which, message = which[came], sends.of_row[came]
        start = np.searchsorted(which, np.arange(len(subscriptions) + 1)).astype(np.int64)
        order = np.lexsort((message, which))
        codes, shown_by = np.empty(len(came), dtype=np.int8), np.empty(len(came), dtype=np.int64)
        codes[order], shown_by[order] = repeats(h, came[order], (which[order], message[order]), np.zeros_like(came))
        return cls(sends.of_row, sends.key, sends.value, sent, sends.state, h, topic, subscriptions, start, came,
                   message, codes, shown_by)  # fmt: skip

    @property
    def messages(self) -> int:
        """The number of messages."""
        return len(self.value)

    @property
    def confirmed(self) -> Bools:
        """Mark the messages whose publishing was confirmed."""
        confirmed: Bools = (self.state == ACKED) & (self.topic >= 0)
        return confirmed

    @cached_property
    def on_subscriptions(self) -> Bools:
        """Mark, by row, the operations on a subscription."""
        on: Bools = np.isin(self.history.role, _ON_SUBSCRIPTIONS)
        return on

    @cached_property
    def which(self) -> Int64s:
        """The number of the subscription of each delivery."""
        return np.repeat(np.arange(len(self.subscriptions)), np.diff(self.start))

    def got(self, subscription: SubscriptionRecord) -> Bools:
        """Return, by message, whether the subscription got it."""
        here = np.zeros(self.messages, dtype=np.bool_)
        here[self.message[self.start[subscription.number] : self.start[subscription.number + 1]]] = True
        return here

    def owed(self, s: SubscriptionRecord) -> tuple[Int64s, Int64s]:
        """Return the messages that were sent to a subscription after it had been confirmed, and confirmed themselves;
        and those of them that it never got.
        """
        acked = np.flatnonzero(self.confirmed)
        mine = (np.int64(s.mask) >> self.topic[acked].astype(np.int64) & 1 == 1) & (self.sent[acked] > s.since)
        owed = acked[mine]
        return owed, owed[~self.got(s)[owed]]

    def late(self, group: Int64s) -> list[tuple[int, int]]:
        """Return the place of each first delivery to a subscription that followed that of a later message of the same
        ``group`` (a number by message), with the place of that delivery.

        Order binds only a message that was confirmed before the later one was sent.
        """
        places = np.flatnonzero(self.codes == FIRST)
        message, first = self.message[places], self.rows[places]
        of_row = np.full(self.history.rows, -1, dtype=np.int32)
        of_row[first] = np.arange(len(places))
        # Operations on a subscription do not overlap: it is one consumer.
        stream, streams = number_streams(self.which[places].astype(np.int32), group[message], 0)
        codes, shown_by = judge_order(
            self.history.kind, self.history.partner, of_row, first, stream, stream,
            self.sequence[message], self.sent[message], self.state[message], streams, streams,
        )  # fmt: skip
        late = np.flatnonzero(codes)
        return list(zip(places[late].tolist(), places[of_row[shown_by[late]]].tolist(), strict=True))

    def first_places(self, subscription: SubscriptionRecord) -> tuple[Int64s, Int64s]:
        """Return ``topics.first_places`` of a subscription."""
        return first_places(
            self.codes, self.start, self.message, subscription.number, self.messages
        )

    @cached_property
    def connections(self) -> tuple[SubscriptionConnection, ...]:
        """The connections of transient subscriptions that got a message, in order."""
        h, found = self.history, []
        for subscription in self.subscriptions:
            if subscription.durable:
                continue
            places = np.arange(self.start[subscription.number], self.start[subscription.number + 1])
            processes = h.process[self.rows[places]]
            asked = np.flatnonzero((h.role == vocabulary.LISTEN) & (h.key == subscription.key))
            for process in dict.fromkeys(processes.tolist()):
                mine = asked[h.process[asked] == process]
                invoked, confirmed = mine[h.kind[mine] == vocabulary.INVOKE], mine[h.kind[mine] == vocabulary.OK]
                found.append(
                    SubscriptionConnection(
                        subscription, process,
                        int(invoked[0]) if len(invoked) else -1,
                        int(confirmed[0]) if len(confirmed) else -1,
                        places[processes == process],
                    )
                )  # fmt: skip
        return tuple(found)

    @cached_property
    def undrained(self) -> Mapping[int, str]:
        """Keys of durable subscriptions whose drain did not finish, with the reason; without deleted ones.

        A subscription is drained when a drain found it empty that was invoked after everything else on it, and after
        all publishing to its topics.
        """
        h = self.history
        empty = (h.kind == vocabulary.FAIL) & h.error.rows_with(EMPTY)
        reasons = {}
        for s in self.subscriptions:
            if not s.durable or s.until < h.rows or s.since < 0:
                continue
            here = (h.key == s.key) & np.isin(h.role, _ON_SUBSCRIPTIONS)
            published = (h.role == vocabulary.PUBLISH) & (h.key >= 0)
            here |= published & (np.int64(s.mask) >> np.where(published, h.key, 0).astype(np.int64) & 1 == 1)
            reason = not_drained(h, h.key == s.key, here, (h.kind != vocabulary.INVOKE) & ~empty, empty)
            if reason is not None:
                reasons[s.key] = reason
        return reasons


def _as_queue_roles(role: Int8s) -> Int8s:
    """Map publishing and receiving to the roles of the kernels that number messages."""
    known = np.arange(vocabulary.ROLLBACK + 1, dtype=np.int8)
    known[vocabulary.PUBLISH], known[vocabulary.RECEIVE] = vocabulary.ENQUEUE, vocabulary.DEQUEUE
    roles: Int8s = known[role]
    return roles


def _demand_one_key(h: HistoryColumns, on: Bools) -> None:
    """Demand that an operation on a subscription ends on the subscription on which it began.

    ``overlapping`` finds operations of two processes on one subscription by the keys of both rows: with two keys, a
    subscription could be used by two processes unnoticed, and a message delivered twice would count as delivered again.
    """
    ends = np.flatnonzero(on & (h.partner >= 0) & (h.kind != vocabulary.INVOKE))
    wrong = ends[h.key[ends] != h.key[h.partner[ends]]]
    if len(wrong):
        row = int(wrong[0])
        began = int(h.partner[row])
        raise HistoryError(f"row {row} ends an operation on subscription {h.key[row]}, and row {began} began it on "
                           f"subscription {h.key[began]}: give both rows one key")


def _subscriptions(
    h: HistoryColumns, dense: Int32s, bound: int, keys: Int32s
) -> tuple[tuple[SubscriptionRecord, ...], Int32s]:
    """Return all requested subscriptions, in order of their keys; and their numbers by dense key (-1: none)."""
    number_of = np.full(bound + 1, -1, dtype=np.int32)
    asked = np.flatnonzero(np.isin(h.role, _SUBSCRIBES) & (dense >= 0))
    found = []
    for number, place in enumerate(np.unique(dense[asked]).tolist()):
        rows = asked[dense[asked] == place]
        key = int(keys[place])
        invoked, confirmed = rows[h.kind[rows] == vocabulary.INVOKE], rows[h.kind[rows] == vocabulary.OK]
        if len(np.unique(h.role[rows])) > 1:
            raise HistoryError(f"subscription {key} is both durable and transient")
        if len(np.unique(h.value[invoked])) > 1 or h.value[invoked[0]] < 0:
            raise HistoryError(f"subscription {key} does not name the same topics in each of its rows")
        deletes = np.flatnonzero((h.role == vocabulary.DELETE) & (dense == place) & (h.kind == vocabulary.INVOKE))
        number_of[place] = number
        found.append(
            SubscriptionRecord(
                number, key, bool(h.role[rows[0]] == vocabulary.ATTACH), int(h.value[invoked[0]]), int(invoked[0]),
                int(confirmed[0]) if len(confirmed) else -1, int(deletes[0]) if len(deletes) else h.rows,
            )
        )  # fmt: skip
    return tuple(found), number_of
