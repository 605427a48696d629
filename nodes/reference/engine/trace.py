"""Where each message stood: lines of the node's log that say which messages came into and left which queue here.

Option ``trace`` switches it on, for whoever wants to know how a message died. It changes nothing that clients or other
nodes see. A line tells of the moment in which a command is applied: what it tells may not be on disk yet, and what is
there after a crash the line of the next start says.

A message is named by the first line of its body, or by a header for bodies that can't hold a name; one whose name is
long or not printable is ``?``.
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
receipt) or ``passed`` (over) names a place, ``by`` the reason, ``ids`` the messages, parted by spaces. ``held`` instead
counts what a replaced or restored state holds; lines of the same reason follow it. ``log`` says from which entry on a
log holds those of ``epoch``; ``state``, up to which entry one is that was given to a peer or taken from it, of which
``parts`` are name, size and hash."""
START, STATE = "start", "state"
"""Reasons that are no command: the broker was started; its whole state was replaced."""
COPY, RESET, DELETE = "copy", "reset", "delete"
"""More of them, of queues that are kept equal to another broker's: as that one told; all beyond a position is
discarded; the queue is removed."""
COUNTED = "counted"
"""Why a copy of a queue passes a message over: it has counted as far as its number. What follows it are that number,
how far it has counted, and, where it has another message of that number, its name."""
OBJECTS, OUTGOING, PREPARED = "database", "server:", "prepared"
"""Places that are no queues: what a design keeps of topics and subscribers; what waits for another server, by its
number; distributed transactions that are prepared, by their XIDs."""
RECEIPT = "receipt"
"""A place that is no queue: the answer to a client."""
LOG, LOGGED, TRUNCATED = "log", "logged", "truncated"
"""A place that is no queue: the log of commands that are to be applied; why a message came there, or left."""
NAME_HEADER = "x-value"
UNNAMED = "?"

_MAX_NAME = 40
_MAX_IDS = 100
"""Names in one line."""

Log = Callable[..., None]


class Holdings(Protocol):
    """What is held, as the engine's state has it."""

    @property
    def messages(self) -> Mapping[int, Message]:
        """By id."""
        ...

    def peek(self, message: Message) -> tuple[Mapping[str, str], bytes]:
        """Headers and body, read without a change to what memory holds."""
        ...


def name_of(headers: Mapping[str, str], body: bytes) -> str:
    """What the trace calls a message."""
    text = headers.get(NAME_HEADER) or body[: 2 * _MAX_NAME].partition(b"\n")[0].decode("ascii", "replace")
    plain = 0 < len(text) <= _MAX_NAME and text.isascii() and text.isprintable() and not set(text) & set(' "=\\')
    return text if plain else UNNAMED


def place_of(queue: Queue) -> str:
    """What the trace calls a queue: its name; of subscriptions with their kind."""
    if queue.kind == PLAIN:
        return queue.name
    return f"{queue.kind}:{queue.pattern}" if queue.kind == PROXY else f"{queue.kind}:{queue.name or queue.id}"


class MessageTrace:
    """Told of every message that comes and goes; ``log`` writes a line, ``by`` is why things happen now."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._held: dict[int, tuple[str, str]] = {}
        """Id -> (place, name)."""
        self._noted: dict[tuple[str, str, str], list[str]] = {}
        """(``put`` or ``gone``, place, reason) -> names, that no line tells yet."""
        self.by = START

    def applies(self, command: Command) -> None:
        """What follows is the work of this command."""
        reason = command.args.get("reason") if command.kind == "close" else None
        about: tuple[Any, ...] = (command.kind, command.conn, command.seq or "", reason or "")
        self.by = " ".join(str(part).replace(" ", "-") for part in about if part != "")

    def added(self, message: Message, headers: Mapping[str, str], body: bytes) -> None:
        """The message is at the end of its queue."""
        where = self._held[message.id] = place_of(message.queue), name_of(headers, body)
        self._note("put", *where)

    def removed(self, message: Message) -> None:
        """The message has left its queue."""
        where = self._held.pop(message.id, None)
        if where is not None:
            self._note("gone", *where)

    def given(self, effects: Iterable[Effect]) -> None:
        """Messages were delivered to connections: this replica's part of it, whether or not it serves clients."""
        for effect in effects:
            if isinstance(effect, Deliver):
                place = effect.destination.removeprefix(QUEUE_PREFIX)
                self.note("given", place, name_of(effect.headers, effect.body), f"deliver {effect.conn}")

    def read(self, place: str, answer: Mapping[str, str]) -> None:
        """A command that looks at a value is carried out, and finds this one."""
        if VALUE in answer:
            self.note("read", place, _value_of(answer), self.by)

    def told(self, conn: str, seq: int, answer: Mapping[str, str]) -> None:
        """A client is told a value."""
        if VALUE in answer:
            self._log(EVENT, told=RECEIPT, by=f"read {conn} {seq or ''}".rstrip(), ids=_value_of(answer))

    def replaced(self, holdings: Holdings, reason: str) -> None:
        """The whole state is another: what it holds that was not here, and what was here and it does not hold."""
        before = self._held
        self._held = {identity: (place_of(message.queue), name_of(*holdings.peek(message)))
                      for identity, message in holdings.messages.items()}
        self._log(EVENT, held=len(self._held), by=reason)
        self._differ(before, reason)

    def compare(self, held: dict[int, tuple[str, str]], reason: str) -> None:
        """What is held is this now: id -> (place, name)."""
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
        """Write lines of what was noted."""
        noted, self._noted = self._noted, {}
        for (what, place, by), names in noted.items():
            for piece in _pieces(names):
                self._log(EVENT, **{what: place}, by=by, ids=" ".join(piece))

    def note(self, what: str, place: str, name: str, reason: str) -> None:
        """Something that happened for another reason than what is done now."""
        self._noted.setdefault((what, place, reason), []).append(name)

    def entries(self, index: int, epoch: str, reason: str) -> None:
        """Write at once of which epoch a log's entries are from ``index`` on, behind what was noted before."""
        self.tell()
        self._log(EVENT, log=index, epoch=epoch or "-", by=reason)

    def state(self, peer: str, given: bool, upto: int, parts: Mapping[str, str]) -> None:
        """Write at once what a state is that is given to a peer, or was taken from it."""
        self._log(EVENT, state=upto, by=f"{'given' if given else 'taken'} {peer}",
                  parts=" ".join(f"{name}:{text}" for name, text in parts.items()))

    def _note(self, what: str, place: str, name: str) -> None:
        self.note(what, place, name, self.by)


def _value_of(answer: Mapping[str, str]) -> str:
    return name_of({}, base64.b64decode(answer[VALUE]))


def _pieces(names: list[str]) -> Iterable[list[str]]:
    return (names[at : at + _MAX_IDS] for at in range(0, len(names), _MAX_IDS))
