"""The meaning of the functions in histories: one table for workloads, checks and reports.

A function that is not in the table is only a name: it is shown, and no conclusions are drawn from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

INVOKE, OK, FAIL, INFO = 0, 1, 2, 3
"""Codes of the types of rows, in the order of ``stormproof.history.schema.TYPE_NAMES``."""

OTHER, ENQUEUE, DEQUEUE, DRAIN, DEPTH = 0, 1, 2, 3, 4
PUBLISH, RECEIVE, LISTEN, ATTACH, DETACH, DELETE = 5, 6, 7, 8, 9, 10
COMMIT, ABORT, MOVE, FINISH, RECOVER, ROLLBACK = 11, 12, 13, 14, 15, 16
"""Codes of the functions that compiled kernels know and keep in their caches: they are never reassigned."""

MESSAGES, TRANSFERS, TOPICS, TRANSACTIONS, METADATA, EVENTS, REGISTERS, LOCKS, LOGS, WATCHES, DIALOGUES, ANY = (
    "messages", "transfers", "topics", "transactions", "metadata", "events", "registers", "locks", "logs", "watches",
    "dialogues", "any",
)  # fmt: skip
"""The subjects of histories, which determine the applicable checks."""

QUEUE, QUEUES, TOPIC, SUBSCRIPTION, OBJECT = "queue", "queues", "topic", "subscription", "object"
REGISTER, LOCK, LOG, KEY = "register", "lock", "log", "key"
"""The objects that the key of a function numbers; the key for ``queues`` has a bit for each queue."""

SENDS, TAKES = "sends", "takes"
CREATES, DELETES, READS = "creates", "deletes", "reads"


@dataclass(frozen=True)
class Function:
    """The meaning of one function.

    ``does``: it sends or takes a message, or creates, deletes or reads an object. ``noun`` is the kind of object that
    its key numbers. ``pair``: its value is a message, (producer, sequence). ``subject`` is the subject of a history
    with this function, if the function alone determines it. ``service`` is the function whose service its success
    demonstrates, None if it demonstrates none. ``final``: it belongs to the end of a run. ``counted`` is the name under
    which a run's figures count it. ``sentence`` describes a function that neither sends nor takes, with the
    placeholders ``{key}`` and ``{value}``.
    """

    name: str
    code: int = OTHER
    does: str = ""
    noun: str = OBJECT
    pair: bool = False
    subject: str = ""
    service: str | None = ""
    transaction: bool = False
    moves: bool = False
    final: bool = False
    counted: str = ""
    sentence: str = ""

    @property
    def shows(self) -> str | None:
        """The function whose service it demonstrates: itself unless the table names another."""
        return self.name if self.service == "" else self.service


FUNCTIONS: Mapping[str, Function] = {
    function.name: function
    for function in (
        # In the order in which reports list and colour them: functions that send, take, count; then the rest.
        Function("enqueue", ENQUEUE, SENDS, QUEUE, pair=True, subject=MESSAGES, counted="enqueue"),
        Function("publish", PUBLISH, SENDS, TOPIC, pair=True, subject=TOPICS, counted="enqueue"),
        Function("send", does=SENDS),
        Function("write", sentence="write of {value} to {key}"),
        Function("commit", COMMIT, SENDS, QUEUES, pair=True, subject=TRANSACTIONS, transaction=True, counted="enqueue"),
        Function("abort", ABORT, SENDS, QUEUES, pair=True, subject=TRANSACTIONS, transaction=True),
        Function("move", MOVE, SENDS, QUEUE, pair=True, subject=TRANSACTIONS, transaction=True, moves=True),
        Function("finish", FINISH, SENDS, QUEUE, pair=True, subject=TRANSACTIONS, transaction=True, moves=True,
                 service="move", final=True),
        Function("dequeue", DEQUEUE, TAKES, QUEUE, pair=True, subject=MESSAGES, counted="dequeue"),
        Function("receive", RECEIVE, TAKES, SUBSCRIPTION, pair=True, subject=TOPICS, counted="dequeue"),
        Function("read", sentence="read of {key}, which gave {value}"),
        Function("drain", DRAIN, TAKES, QUEUE, pair=True, subject=MESSAGES, service="dequeue", final=True,
                 counted="dequeue"),
        Function("depth", DEPTH, noun=QUEUE, service=None, final=True),
        Function("observe", noun=QUEUE, pair=True, service=None, sentence="observed: {value} of {key}"),
        Function("attach", ATTACH, noun=SUBSCRIPTION, subject=TOPICS,
                 sentence="request for durable subscription {key}"),
        Function("listen", LISTEN, noun=SUBSCRIPTION, subject=TOPICS,
                 sentence="request for transient subscription {key}"),
        Function("detach", DETACH, noun=SUBSCRIPTION, sentence="disconnection from subscription {key}"),
        Function("delete", DELETE, noun=SUBSCRIPTION, sentence="deletion of subscription {key}"),
        Function("recover", RECOVER, pair=True, service=None,
                 sentence="search for a prepared transaction, and commit"),
        Function("rollback", ROLLBACK, pair=True, service=None,
                 sentence="search for a prepared transaction, and rollback"),
        Function("cas", noun=REGISTER, sentence="compare-and-set of {key} (expected/new: {value})"),
        Function("install", noun=LOCK, subject=LOCKS, service=None, final=True,
                 sentence="the lock's token sent to its queue"),
        Function("acquire", noun=LOCK, subject=LOCKS, sentence="request for the lock"),
        Function("update", noun=LOCK, subject=LOCKS, sentence="update of the guarded resource (write/count: {value})"),
        Function("release", noun=LOCK, subject=LOCKS, sentence="release of the lock"),
        Function("append", noun=LOG, subject=LOGS, sentence="append to {key} (offset/value: {value})"),
        Function("poll", noun=LOG, subject=LOGS, sentence="next entry of {key} (offset/value: {value})"),
        Function("seek", noun=LOG, subject=LOGS, service=None, sentence="reader of {key} moved back to after {value}"),
        Function("scan", noun=LOG, subject=LOGS, service=None, final=True,
                 sentence="complete read of {key} (offset/value: {value})"),
        Function("copy", noun=LOG, subject=LOGS, service=None, final=True,
                 sentence="read of a node's copy of {key} (offset/value: {value})"),
        Function("put", noun=KEY, subject=WATCHES, sentence="put of {key} (revision/value: {value})"),
        Function("event", noun=KEY, subject=WATCHES,
                 sentence="next event of {key} (revision/value: {value}; value 0 reports only progress)"),
        Function("rewatch", noun=KEY, subject=WATCHES, service=None,
                 sentence="watch of {key} restarted after revision {value}"),
        Function("replay", noun=KEY, subject=WATCHES, service=None, final=True,
                 sentence="complete watch of {key} (revision/value: {value})"),
        Function("talk", subject=DIALOGUES, sentence="commands on the client's private objects"),
        Function("settle", subject=DIALOGUES, service=None, final=True, sentence="the missing messages are received"),
        Function("subscribe", does=CREATES, subject=METADATA),
        Function("create", does=CREATES, subject=METADATA),
        Function("link", does=CREATES, subject=METADATA),
        Function("grant", does=CREATES, subject=METADATA),
        Function("unsubscribe", does=DELETES, subject=METADATA),
        Function("destroy", does=DELETES, subject=METADATA),
        Function("unlink", does=DELETES, subject=METADATA),
        Function("revoke", does=DELETES, subject=METADATA),
        Function("look", does=READS, subject=METADATA),
        Function("offline", noun=QUEUE, subject=TRANSFERS, service=None,
                 sentence="the client disconnects and continues to send"),
        Function("online", noun=QUEUE, subject=TRANSFERS, service=None,
                 sentence="the client reconnects"),
        Function("transfer", noun=QUEUE, subject=TRANSFERS, service=None, final=True,
                 sentence="all messages of the client's repository are transferred"),
    )
}  # fmt: skip

_UNKNOWN = Function("")


def function_named(name: str) -> Function:
    """Return the table's entry of a function; an unknown function gets an entry without meaning."""
    return FUNCTIONS.get(name, _UNKNOWN)


def names_that(does: str) -> tuple[str, ...]:
    """Return the functions with this effect, such as those that create."""
    return tuple(name for name, function in FUNCTIONS.items() if function.does == does)


def shown_service(name: str) -> str | None:
    """Return the function whose service an operation of this name demonstrates; None if there is none."""
    function = FUNCTIONS.get(name)
    return name if function is None else function.shows


def rank(name: str) -> int:
    """Return the place of a function among others in lists and colours; unknown functions are last."""
    return _RANKS.get(name, len(_RANKS))


_RANKS = {name: place for place, name in enumerate(FUNCTIONS) if place < 13}


def noun_of(functions: Collection[str]) -> str:
    """Return the kind of object that the keys of a history with these functions number: ``queue``, ``subscription`` or
    ``object``, for example.
    """
    nouns = {FUNCTIONS[name].noun for name in functions if name in FUNCTIONS}
    if SUBSCRIPTION in nouns:
        return SUBSCRIPTION
    return next((noun for noun in (REGISTER, LOCK) if noun in nouns), QUEUE if nouns & {QUEUE, QUEUES} else OBJECT)
