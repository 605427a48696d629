"""Message trace: lines in the node's log that record which messages enter and leave which queue of this node.

Option ``trace`` switches it on, to find out how a message was lost. It changes nothing that clients or other nodes see.
A line describes the moment in which a command is applied: its effect may not be on disk yet. After a crash, the lines
of the next start show the contents of the disk.

A message is named by the first line of its body, or by a header for bodies that can't hold a name; a name that is too
long or not printable is recorded as ``?``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from nodes.reference.api import Command, Deliver, Effect
from nodes.reference.engine.model import PLAIN, PROXY, QUEUE_PREFIX, Message, Queue
from nodes.reference.engine.value_names import VALUE

EVENT = "trace"
"""The event of its lines. ``put``, ``gone``, ``given`` (to a consumer), ``read`` (by a command), ``told`` (by a
receipt) or ``passed`` (over) names a place, ``by`` the reason, ``ids`` the messages, separated by spaces. A line with
``held`` instead counts the contents of a replaced or restored state, and lines of the same reason follow it. ``log``
gives the first index from which a log holds entries of ``epoch``. ``state`` gives the last entry included in a state
that was given to a peer or taken from it; ``parts`` lists the name, size and hash of its parts."""
START, STATE = "start", "state"
"""Reasons other than commands: the broker was started; its whole state was replaced."""
COPY, RESET, DELETE = "copy", "reset", "delete"
"""Further reasons, for queues that copy another broker's queues: a change reported by that broker; the discarding of
everything beyond a position; the removal of the queue."""
COUNTED = "counted"
"""The reason why a copy of a queue skips a message: its count has already reached the message's number. That number and
the queue's count follow it and, if the queue holds a different message under that number, that message's name."""
OBJECTS, OUTGOING, PREPARED = "database", "server:", "prepared"
"""Places other than queues: a design's store of topics and subscribers; messages waiting for another server, by its
number; prepared distributed transactions, by their XIDs."""
RECEIPT = "receipt"
"""A place other than a queue: the answer to a client."""
LOG, LOGGED, TRUNCATED = "log", "logged", "truncated"
"""A place other than a queue: the log of commands to be applied; the reasons why a message was added to it or
removed."""
NAME_HEADER = "x-value"
UNNAMED = "?"

_MAX_NAME = 40
_MAX_IDS = 100
"""Maximum number of names in one line."""

Log = Callable[..., None]


class Holdings(Protocol):
    """The current messages, as the engine's state holds them."""

    @property
    def messages(self) -> Mapping[int, Message]:
        """The messages by id."""
        ...

    def peek(self, message: Message) -> tuple[Mapping[str, str], bytes]:
        """Return headers and body without changing what memory holds."""
        ...


def name_of(headers: Mapping[str, str], body: bytes) -> str:
    """Return the name of a message in the trace."""
    text = headers.get(NAME_HEADER) or body[: 2 * _MAX_NAME].partition(b"\n")[0].decode("ascii", "replace")
    plain = 0 < len(text) <= _MAX_NAME and text.isascii() and text.isprintable() and not set(text) & set(' "=\\')
    return text if plain else UNNAMED


def place_of(queue: Queue) -> str:
    """Return the name of a queue in the trace: its own name, preceded by the kind for subscriptions."""
    if queue.kind == PLAIN:
        return queue.name
    return f"{queue.kind}:{queue.pattern}" if queue.kind == PROXY else f"{queue.kind}:{queue.name or queue.id}"


class MessageTrace:
    """Records every message that arrives or leaves; ``log`` writes a line, ``by`` is the current reason."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._held: dict[int, tuple[str, str]] = {}
        """Id -> (place, name)."""
        self._noted: dict[tuple[str, str, str], list[str]] = {}
        """(``put`` or ``gone``, place, reason) -> names that have not been logged yet."""
        self.by = START

    def applies(self, command: Command) -> None:
        """Attribute all following events to this command."""
        reason = command.args.get("reason") if command.kind == "close" else None
        about: tuple[Any, ...] = (command.kind, command.conn, command.seq or "", reason or "")
        self.by = " ".join(str(part).replace(" ", "-") for part in about if part != "")

    def added(self, message: Message, headers: Mapping[str, str], body: bytes) -> None:
        """Record that a message was added to its queue."""
        where = self._held[message.id] = place_of(message.queue), name_of(headers, body)
        self._note("put", *where)

    def removed(self, message: Message) -> None:
        """Record that a message has left its queue."""
        where = self._held.pop(message.id, None)
        if where is not None:
            self._note("gone", *where)

    def given(self, effects: Iterable[Effect]) -> None:
        """Record deliveries to connections: this replica's share of them, whether or not it serves clients."""
        for effect in effects:
            if isinstance(effect, Deliver):
                place = effect.destination.removeprefix(QUEUE_PREFIX)
                self.note("given", place, name_of(effect.headers, effect.body), f"deliver {effect.conn}")

    def read(self, place: str, answer: Mapping[str, str]) -> None:
        """Record the value that a reading command has found."""
        if VALUE in answer:
            self.note("read", place, _value_of(answer), self.by)

    def told(self, conn: str, seq: int, answer: Mapping[str, str]) -> None:
        """Log a value that is reported to a client."""
        if VALUE in answer:
            self._log(EVENT, told=RECEIPT, by=f"read {conn} {seq or ''}".rstrip(), ids=_value_of(answer))

    def replaced(self, holdings: Holdings, reason: str) -> None:
        """Record the differences after the whole state was replaced: messages that are new here, and those that are
        gone."""
        before = self._held
        self._held = {identity: (place_of(message.queue), name_of(*holdings.peek(message)))
                      for identity, message in holdings.messages.items()}
        self._log(EVENT, held=len(self._held), by=reason)
        self._differ(before, reason)

    def compare(self, held: dict[int, tuple[str, str]], reason: str) -> None:
        """Record the differences from the current contents, given as id -> (place, name)."""
        before, self._held = self._held, held
        self._differ(before, reason)

    def _differ(self, before: Mapping[int, tuple[str, str]], reason: str) -> None:
        self.by = reason
        for identity, where in before.items():
            if self._held.get(identity) != where:
                self._note("gone", *where)
        for identity, where in self._held.items():
            if before.get(identity) != where:
                self._note("put", *where)
        self.tell()

    def tell(self) -> None:
        """Write lines for the recorded events."""
        noted, self._noted = self._noted, {}
        for (what, place, by), names in noted.items():
            for piece in _pieces(names):
                self._log(EVENT, **{what: place}, by=by, ids=" ".join(piece))

    def note(self, what: str, place: str, name: str, reason: str) -> None:
        """Record an event whose reason differs from the current one."""
        self._noted.setdefault((what, place, reason), []).append(name)

    def entries(self, index: int, epoch: str, reason: str) -> None:
        """Log at once which epoch a log's entries have from ``index`` on, after all earlier events."""
        self.tell()
        self._log(EVENT, log=index, epoch=epoch or "-", by=reason)

    def state(self, peer: str, given: bool, upto: int, parts: Mapping[str, str]) -> None:
        """Log at once the state that is given to a peer, or was taken from it."""
        self._log(EVENT, state=upto, by=f"{'given' if given else 'taken'} {peer}",
                  parts=" ".join(f"{name}:{text}" for name, text in parts.items()))

    def _note(self, what: str, place: str, name: str) -> None:
        self.note(what, place, name, self.by)


def _value_of(answer: Mapping[str, str]) -> str:
    return name_of({}, base64.b64decode(answer[VALUE]))


def _pieces(names: list[str]) -> Iterable[list[str]]:
    return (names[at : at + _MAX_IDS] for at in range(0, len(names), _MAX_IDS))
