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

(MESSAGES, TRANSFERS, TOPICS, TRANSACTIONS, METADATA, EVENTS, REGISTERS, LOCKS, LOGS, WATCHES, DIALOGUES, COMMANDS,
 ANY) = (
    "messages", "transfers", "topics", "transactions", "metadata", "events", "registers", "locks", "logs", "watches",
    "dialogues", "commands", "any",
)  # fmt: skip
"""The subjects of histories, which determine the applicable checks."""

QUEUE, QUEUES, TOPIC, SUBSCRIPTION, OBJECT = "queue", "queues", "topic", "subscription", "object"
REGISTER, LOCK, LOG, KEY, COMMAND = "register", "lock", "log", "key", "command"
"""The objects that the key of a function numbers; the key for ``queues`` has a bit for each queue."""

SENDS, TAKES = "sends", "takes"
CREATES, DELETES, READS = "creates", "deletes", "reads"


SWEEP = "sweep"
"""The function of a drain that fences end (``workloads.fenced_drain``), by a queue's last and only consumer."""

DEAD_LETTER = "dead-letter"
"""The function that takes a message from a dead-letter queue. It delivers nothing: a delivery limit dropped it."""


@dataclass(frozen=True)
class Verb:
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


FUNCTIONS: Mapping[str, Verb] = {
    function.name: function
    for function in (
        # In the order in which reports list and colour them: functions that send, take, count; then the rest.
        Verb("enqueue", ENQUEUE, SENDS, QUEUE, pair=True, subject=MESSAGES, counted="enqueue"),
        Verb("publish", PUBLISH, SENDS, TOPIC, pair=True, subject=TOPICS, counted="enqueue"),
        Verb("send", does=SENDS),
        Verb("write", sentence="write of {value} to {key}"),
        Verb("commit", COMMIT, SENDS, QUEUES, pair=True, subject=TRANSACTIONS, transaction=True, counted="enqueue"),
        Verb("abort", ABORT, SENDS, QUEUES, pair=True, subject=TRANSACTIONS, transaction=True),
        Verb("move", MOVE, SENDS, QUEUE, pair=True, subject=TRANSACTIONS, transaction=True, moves=True),
        Verb("finish", FINISH, SENDS, QUEUE, pair=True, subject=TRANSACTIONS, transaction=True, moves=True,
             service="move", final=True),
        Verb("dequeue", DEQUEUE, TAKES, QUEUE, pair=True, subject=MESSAGES, counted="dequeue"),
        Verb("receive", RECEIVE, TAKES, SUBSCRIPTION, pair=True, subject=TOPICS, counted="dequeue"),
        Verb("read", sentence="read of {key}, which gave {value}"),
        Verb("drain", DRAIN, TAKES, QUEUE, pair=True, subject=MESSAGES, service="dequeue", final=True,
             counted="dequeue"),
        Verb("depth", DEPTH, noun=QUEUE, service=None, final=True),
        Verb(SWEEP, DRAIN, TAKES, QUEUE, pair=True, subject=MESSAGES, service="dequeue", final=True,
             counted="dequeue"),
        Verb(DEAD_LETTER, noun=QUEUE, pair=True, service=None, final=True,
             sentence="dead letter of {key}: {value}"),
        Verb("observe", noun=QUEUE, pair=True, service=None, sentence="observed: {value} of {key}"),
        Verb("attach", ATTACH, noun=SUBSCRIPTION, subject=TOPICS,
             sentence="request for durable subscription {key}"),
        Verb("listen", LISTEN, noun=SUBSCRIPTION, subject=TOPICS,
             sentence="request for transient subscription {key}"),
        Verb("detach", DETACH, noun=SUBSCRIPTION, sentence="disconnection from subscription {key}"),
        Verb("delete", DELETE, noun=SUBSCRIPTION, sentence="deletion of subscription {key}"),
        Verb("recover", RECOVER, pair=True, service=None,
             sentence="search for a prepared transaction, and commit"),
        Verb("rollback", ROLLBACK, pair=True, service=None,
             sentence="search for a prepared transaction, and rollback"),
        Verb("cas", noun=REGISTER, sentence="compare-and-set of {key} (expected/new: {value})"),
        Verb("install", noun=LOCK, subject=LOCKS, service=None, final=True,
             sentence="the lock's token sent to its queue"),
        Verb("acquire", noun=LOCK, subject=LOCKS, sentence="request for the lock"),
        Verb("update", noun=LOCK, subject=LOCKS, sentence="update of the guarded resource (write/count: {value})"),
        Verb("release", noun=LOCK, subject=LOCKS, sentence="release of the lock"),
        Verb("append", noun=LOG, subject=LOGS, sentence="append to {key} (offset/value: {value})"),
        Verb("poll", noun=LOG, subject=LOGS, sentence="next entry of {key} (offset/value: {value})"),
        Verb("seek", noun=LOG, subject=LOGS, service=None, sentence="reader of {key} moved back to after {value}"),
        Verb("scan", noun=LOG, subject=LOGS, service=None, final=True,
             sentence="complete read of {key} (offset/value: {value})"),
        Verb("copy", noun=LOG, subject=LOGS, service=None, final=True,
             sentence="read of a node's copy of {key} (offset/value: {value})"),
        Verb("put", noun=KEY, subject=WATCHES, sentence="put of {key} (revision/value: {value})"),
        Verb("event", noun=KEY, subject=WATCHES,
             sentence="next event of {key} (revision/value: {value}; value 0 reports only progress)"),
        Verb("rewatch", noun=KEY, subject=WATCHES, service=None,
             sentence="watch of {key} restarted after revision {value}"),
        Verb("replay", noun=KEY, subject=WATCHES, service=None, final=True,
             sentence="complete watch of {key} (revision/value: {value})"),
        Verb("talk", subject=DIALOGUES, sentence="commands on the client's private objects"),
        Verb("settle", subject=DIALOGUES, service=None, final=True, sentence="the missing messages are received"),
        Verb("subscribe", does=CREATES, subject=METADATA),
        Verb("create", does=CREATES, subject=METADATA),
        Verb("link", does=CREATES, subject=METADATA),
        Verb("grant", does=CREATES, subject=METADATA),
        Verb("unsubscribe", does=DELETES, subject=METADATA),
        Verb("destroy", does=DELETES, subject=METADATA),
        Verb("unlink", does=DELETES, subject=METADATA),
        Verb("revoke", does=DELETES, subject=METADATA),
        Verb("look", does=READS, subject=METADATA),
        Verb("first", noun=COMMAND, subject=COMMANDS, service=None, sentence="command {key} (exit status: {value})"),
        Verb("parallel_driver", noun=COMMAND, subject=COMMANDS, sentence="command {key} (exit status: {value})"),
        Verb("serial_driver", noun=COMMAND, subject=COMMANDS, sentence="command {key} (exit status: {value})"),
        Verb("singleton_driver", noun=COMMAND, subject=COMMANDS, sentence="command {key} (exit status: {value})"),
        Verb("anytime", noun=COMMAND, subject=COMMANDS, sentence="command {key} (exit status: {value})"),
        Verb("end_commands", subject=COMMANDS, service=None, sentence="the commands that still run are ended"),
        Verb("eventually", noun=COMMAND, subject=COMMANDS, service=None, final=True,
             sentence="command {key} (exit status: {value})"),
        Verb("finally", noun=COMMAND, subject=COMMANDS, service=None, final=True,
             sentence="command {key} (exit status: {value})"),
        Verb("offline", noun=QUEUE, subject=TRANSFERS, service=None,
             sentence="the client disconnects and continues to send"),
        Verb("online", noun=QUEUE, subject=TRANSFERS, service=None,
             sentence="the client reconnects"),
        Verb("transfer", noun=QUEUE, subject=TRANSFERS, service=None, final=True,
             sentence="all messages of the client's repository are transferred"),
    )
}  # fmt: skip

_UNKNOWN = Verb("")


def function_named(name: str) -> Verb:
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


_RANKS = {name: place for place, name in enumerate(FUNCTIONS) if place < 14}


def noun_of(functions: Collection[str]) -> str:
    """Return the kind of object that the keys of a history with these functions number: ``queue``, ``subscription`` or
    ``object``, for example.
    """
    nouns = {FUNCTIONS[name].noun for name in functions if name in FUNCTIONS}
    if SUBSCRIPTION in nouns:
        return SUBSCRIPTION
    return next((noun for noun in (REGISTER, LOCK) if noun in nouns), QUEUE if nouns & {QUEUE, QUEUES} else OBJECT)
