"""The account of a run on topics: the published messages, the subscriptions, and the deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from checkers.history import dense_keys
from checkers.kernels import queues as kernels
from checkers.kernels import topics as kernels_topic
from checkers.queue_ends import undrained_reason
from stormproof import vocabulary
from stormproof.errors import HistoryError
from stormproof.history.columns import HistoryColumns, Int8s, Int32s, Int64s
from stormproof.history.schema import decode_pair

Bools = NDArray[np.bool_]

MAX_TOPICS = 62
"""Topics are bits of a subscription's value."""

_SUBSCRIBES = (vocabulary.LISTEN, vocabulary.ATTACH)
_ON_SUBSCRIPTIONS = (*_SUBSCRIBES, vocabulary.RECEIVE, vocabulary.DRAIN, vocabulary.DETACH, vocabulary.DELETE)


@dataclass(frozen=True)
class Subscription:
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

    subscription: Subscription
    process: int
    asked: int
    since: int
    taken: Int64s


@dataclass(frozen=True)
class Topics:
    """Messages by number: ``topic`` (-1: never published), ``value``, ``sent``, ``state`` as in ``Messages``.

    ``codes`` and ``shown_by`` are those of ``kernels_topic.judge_repeats``, which describes ``start`` and ``rows``;
    ``message`` is the message of each delivery.
    """

    history: HistoryColumns
    value: Int64s
    topic: Int32s
    sent: Int64s
    state: Int8s
    subscriptions: tuple[Subscription, ...]
    start: Int64s
    rows: Int64s
    message: Int32s
    codes: Int8s
    shown_by: Int64s

    @classmethod
    def of(cls, h: HistoryColumns) -> Topics:
        """Return the account of a history.

        Raises:
            HistoryError: a value was published twice, or a subscription was used by two processes at once, so that no
                account can be given.
        """
        as_queue = _as_queue_roles(h.role)
        nowhere = np.zeros(h.rows, dtype=np.int32)
        of_row, _, value = kernels.number_messages(as_queue, h.kind, nowhere, h.value)
        sent, state, twice = kernels.account_sends(as_queue, h.kind, h.partner, of_row, len(value))
        if twice >= 0:
            name = "/".join(map(str, decode_pair(int(h.value[twice]))))
            raise HistoryError(f"row {twice} publishes message {name} a second time: values must be unique")
        topic = np.where(sent >= 0, h.key[sent], -1).astype(np.int32)
        if len(topic) and (topic.max() >= MAX_TOPICS or (topic[sent >= 0] < 0).any()):
            raise HistoryError(f"a message is published to a topic whose number is not below {MAX_TOPICS}")
        dense, bound, keys = dense_keys(h)
        subscriptions, number_of = _subscriptions(h, dense, bound, keys)
        which = np.where(np.isin(h.role, _ON_SUBSCRIPTIONS) & (dense >= 0), number_of[dense], -1).astype(np.int32)
        clash = kernels_topic.overlapping(h.kind, which, h.partner, len(subscriptions))
        if clash >= 0:
            raise HistoryError(
                f"row {clash} uses subscription {h.key[clash]} while another operation on it is under way: the "
                "order in which it got its messages is not known"
            )
        came = np.flatnonzero((of_row >= 0) & (as_queue != vocabulary.ENQUEUE))
        if (which[came] < 0).any():
            row = int(came[which[came] < 0][0])
            raise HistoryError(f"row {row} receives a message of subscription {h.key[row]}, which no row requested")
        came = came[np.argsort(which[came], kind="stable")]
        start = np.searchsorted(which[came], np.arange(len(subscriptions) + 1)).astype(np.int64)
        message = of_row[came]
        codes, shown_by = kernels_topic.judge_repeats(h.kind, start, came, message, len(value))
        return cls(h, value, topic, sent, state, subscriptions, start, came, message, codes, shown_by)

    @property
    def messages(self) -> int:
        """The number of messages."""
        return len(self.value)

    @cached_property
    def on_subscriptions(self) -> Bools:
        """Mark, by row, the operations on a subscription."""
        on: Bools = np.isin(self.history.role, _ON_SUBSCRIPTIONS)
        return on

    @cached_property
    def which(self) -> Int64s:
        """The number of the subscription of each delivery."""
        return np.repeat(np.arange(len(self.subscriptions)), np.diff(self.start))

    def name(self, message: int) -> str:
        """Return a message's name for users: ``producer/sequence``."""
        producer, sequence = decode_pair(int(self.value[message]))
        return f"{producer}/{sequence}"

    def got(self, subscription: Subscription) -> Bools:
        """Return, by message, whether the subscription got it."""
        here = np.zeros(self.messages, dtype=np.bool_)
        here[self.message[self.start[subscription.number] : self.start[subscription.number + 1]]] = True
        return here

    def first_places(self, subscription: Subscription) -> tuple[Int64s, Int64s]:
        """Return ``kernels_topic.first_places`` of a subscription."""
        return kernels_topic.first_places(
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
        errors = np.asarray([*(name == "empty" for name in h.error.names), False], dtype=np.bool_)
        empty = (h.kind == vocabulary.FAIL) & errors[h.error.codes]
        reasons = {}
        for s in self.subscriptions:
            if not s.durable or s.until < h.rows or s.since < 0:
                continue
            here = (h.key == s.key) & np.isin(h.role, _ON_SUBSCRIPTIONS)
            published = (h.role == vocabulary.PUBLISH) & (h.key >= 0)
            here |= published & (np.int64(s.mask) >> np.where(published, h.key, 0).astype(np.int64) & 1 == 1)
            ended = np.flatnonzero(here & (h.kind != vocabulary.INVOKE) & ~empty)
            if (here & (h.kind == vocabulary.INVOKE) & (h.partner < 0)).any():
                reasons[s.key] = "an operation was still open when the history ended"
                continue
            finds = h.partner[np.flatnonzero((h.role == vocabulary.DRAIN) & (h.key == s.key) & empty)]
            if not len(finds) or (len(ended) and finds.max() < ended[-1]):
                reasons[s.key] = undrained_reason(h, h.key == s.key, bool(len(finds)))
        return reasons


def _as_queue_roles(role: Int8s) -> Int8s:
    """Map publishing and receiving to the roles of the kernels that number messages."""
    known = np.arange(vocabulary.ROLLBACK + 1, dtype=np.int8)
    known[vocabulary.PUBLISH], known[vocabulary.RECEIVE] = vocabulary.ENQUEUE, vocabulary.DEQUEUE
    roles: Int8s = known[role]
    return roles


def _subscriptions(
    h: HistoryColumns, dense: Int32s, bound: int, keys: Int32s
) -> tuple[tuple[Subscription, ...], Int32s]:
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
            Subscription(
                number, key, bool(h.role[rows[0]] == vocabulary.ATTACH), int(h.value[invoked[0]]), int(invoked[0]),
                int(confirmed[0]) if len(confirmed) else -1, int(deletes[0]) if len(deletes) else h.rows,
            )
        )  # fmt: skip
    return tuple(found), number_of
