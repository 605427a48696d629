"""Translation of foreign histories into the operations of a workload, as rows that checks understand.

The ends of operations keep Jepsen's meaning: ``ok`` happened, ``fail`` did not. ``info`` may have happened, and so may
an operation without an end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from porcupine import PorcupineError
from porcupine.models.base import shown
from porcupine.values import as_json, freeze, name_of

from checkers.checks.fencing import TOKEN
from checkers.checks.mutex import MUTEX, REFUSED
from checkers.checks.register import EXPECTED_FIRST
from stormproof.history.schema import HISTORY_SCHEMA, NO_VALUE, TYPE_CODES, encode_value
from stormproof.operation import FAIL, INFO, INVOKE, OK
from workloads.register_client import NO_MATCH

_EMPTY = "empty"
_NOTHING_LEFT = frozenset({"empty", "exhausted"})
"""The error words of a take that found the queue empty."""


class Unfit(ValueError):
    """A row does not fit: ``field`` is the name of its wrong field, ``line`` its line. The text describes the expected
    value."""

    def __init__(self, field: str, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.field, self.line = field, line


@dataclass(frozen=True)
class ForeignEvent:
    """One row of a foreign history: ``process`` is a number from 0, ``time`` in nanoseconds, ``line`` its place in the
    file. ``key`` is None where the row has none. ``text`` is the JSON of a value in our own files. ``named`` is the
    process as the file names it."""

    line: int
    process: int
    type: str
    f: str
    value: Any
    time: int
    key: Any = None
    node: str | None = None
    error: Any = None
    text: str | None = None
    named: Any = None


@dataclass(frozen=True)
class Meaning:
    """The meaning of a history as far as its rows do not define it. With ``observed``, a ``cas`` that ended ``fail``
    found another value; otherwise it did not happen. ``initial`` is the first value of registers."""

    observed: bool = False
    initial: Any = None


@dataclass
class ForeignRows:
    """Rows for a history: (type, f, value, key, process, time, node, error)."""

    rows: list[tuple[str, str | None, Any, int | None, int, int, str | None, str | None]] = field(default_factory=list)

    def add(self, event: ForeignEvent, kind: str, value: Any, key: int | None = None, error: str | None = None) -> None:
        """Append a row with the time, process and node of a foreign one."""
        told = event.error if error is None else error
        text = told if told is None or isinstance(told, str) else json.dumps(told, default=str)
        self.rows.append((kind, _utf8(event.f), value, key, event.process, event.time, _utf8(event.node), _utf8(text)))

    def table(self, run: str) -> pa.Table:
        """Return the rows as a table of HISTORY_SCHEMA."""
        columns: dict[str, list[Any]] = {name: [] for name in HISTORY_SCHEMA.names}
        for index, (kind, f, value, key, process, time, node, error) in enumerate(self.rows):
            number, text = encode_value(value)
            entries = (run, index, time, process, TYPE_CODES[kind], f, NO_VALUE if key is None else key, number, text,
                       node, error)  # fmt: skip
            for name, entry in zip(HISTORY_SCHEMA.names, entries, strict=True):
                columns[name].append(entry)
        return pa.table(columns, schema=HISTORY_SCHEMA)


def _utf8(text: str | None) -> str | None:
    """Return the text without unpaired surrogates, which JSON may have and columns can't hold."""
    return None if text is None else text.encode("utf-8", "replace").decode()


class ForeignValueIds:
    """Assigns numbers from 1 to values of any kind, in order of first occurrence. Values that are equal in their format
    share a number."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def of(self, value: Any) -> int:
        """Return the number of a value."""
        return self._known.setdefault(freeze(value), len(self._known) + 1)


class Translation(Protocol):
    """Converts events to rows, one after another. ``begun`` is the invocation that a completion ends."""

    def __call__(self, event: ForeignEvent, begun: ForeignEvent | None, to: ForeignRows) -> None: ...


def _known(event: ForeignEvent, functions: Collection[str], what: str) -> None:
    if event.f not in functions:
        raise Unfit("f", f"one of {', '.join(functions)} is expected for a {what}, not {event.f!r:.40}")


class RegisterTranslation:
    """``read``, ``write`` and ``cas`` of one register, or of several by keys.

    Each row has a field ``key``, or all invocations have values ``[key value]``, as in Jepsen's ``independent`` and in
    Maelstrom's ``lin-kv``. A register that was never written holds the initial value.
    """

    functions = ("read", "write", "cas")

    def __init__(self, meaning: Meaning, events: Iterable[ForeignEvent]) -> None:
        self._meaning = meaning
        self._values, self._keys = ForeignValueIds(), ForeignValueIds()
        self._first = freeze(meaning.initial)
        invoked = [event for event in events if event.type == INVOKE]
        self._keyed = bool(invoked) and all(_has_key(event) for event in invoked)

    def __call__(self, event: ForeignEvent, begun: ForeignEvent | None, to: ForeignRows) -> None:
        _known(event, self.functions, "register")
        # The invocation defines the operation. The completion of one that ended ``info`` may have a reason as its
        # value.
        key, value = self._parts(begun or event)
        if begun is not None and event.f == "read" and event.type == OK:
            value = self._read(key, event)
        if event.f == "cas":
            # Both from the start: the expected value of a cas that never ends is known, too.
            old, new = map(self._number, _pair(value, "a cas needs [expected new]"))
            failed = event.type == FAIL and self._meaning.observed
            error = NO_MATCH if failed else _not(NO_MATCH, event) if event.type == FAIL else None
            if old == 0 and event.type in (INVOKE, INFO):
                error = EXPECTED_FIRST
            to.add(event, event.type, (old, new), key, error)
            return
        told = event.f == "write" or event.type == OK
        to.add(event, event.type, self._number(value) if told else None, key)

    def _parts(self, event: ForeignEvent) -> tuple[int, Any]:
        """Return the key's number, and the value without the key."""
        if event.key is not None:
            return self._keys.of(event.key), event.value
        if not self._keyed:
            return 0, event.value
        key, value = _pair(event.value, "[key value] is expected")
        return self._keys.of(key), value

    def _read(self, key: int, event: ForeignEvent) -> Any:
        """Return the value that a read returned. With keys, nil may occur without its key."""
        if not self._keyed or event.value is None:
            return event.value
        of, value = _pair(event.value, "[key value] is expected, as in the invocation")
        if self._keys.of(of) != key:
            raise Unfit("value", f"the key of the invocation is expected, not {shown(of)}")
        return value

    def _number(self, value: Any) -> int:
        return 0 if freeze(value) == self._first else self._values.of(value)


def _has_key(event: ForeignEvent) -> bool:
    value = event.value
    if event.key is not None or not isinstance(value, list | tuple) or len(value) != 2:
        return False
    return event.f != "cas" or (isinstance(value[1], list | tuple) and len(value[1]) == 2)


def _pair(value: Any, expected: str) -> tuple[Any, Any]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise Unfit("value", f"{expected}, not {shown(value)}")
    return value[0], value[1]


def _not(word: str, event: ForeignEvent) -> str:
    """Return the error of an operation that certainly did not happen. It must not read as an observation."""
    told = event.error
    text = "did not happen" if told is None else told if isinstance(told, str) else json.dumps(told, default=str)
    return f"did not happen: {text}" if text == word else text


class QueueTranslation:
    """``enqueue`` and ``dequeue`` of one queue, or of several by a key. A ``drain`` takes a list of messages, after
    which the queue was empty."""

    functions = ("enqueue", "dequeue", "drain")

    def __init__(self, meaning: Meaning, events: Iterable[ForeignEvent]) -> None:
        self._messages, self._queues = ForeignValueIds(), ForeignValueIds()
        self._seen = 0
        self._drains: dict[int, int] = {}
        """Process -> the number of events before it began its drain."""
        self._put: dict[int, int] = {}
        """Queue -> the number of events before a message was last put there, or may have been put back."""

    def __call__(self, event: ForeignEvent, begun: ForeignEvent | None, to: ForeignRows) -> None:
        _known(event, self.functions, "queue")
        asked = (begun or event).key
        key = 0 if asked is None else self._queues.of(asked)
        self._note(event, key)
        if event.f == "enqueue":
            sent = (begun or event).value
            if sent is None:
                raise Unfit("value", "an enqueue needs a message; nil is what a take of an empty queue gives")
            to.add(event, event.type, self._message(sent), key)
        elif event.type == INVOKE:
            to.add(event, INVOKE, None, key)
        elif event.type == FAIL:
            to.add(event, FAIL, None, key, _EMPTY if _found_empty(event) else None)
        elif event.f == "drain":
            self._drained(event, key, to)
        elif event.type == OK and event.value is None:
            to.add(event, FAIL, None, key, _EMPTY)
        else:
            to.add(event, event.type, None if event.value is None else self._message(event.value), key)

    def _drained(self, event: ForeignEvent, key: int, to: ForeignRows) -> None:
        """Add a row for each message that a drain took. A drain that ended ``info`` may have taken more."""
        taken = event.value
        if not isinstance(taken, list | tuple):
            if event.type == OK and taken is not None and name_of(taken) not in _NOTHING_LEFT:
                raise Unfit("value", f"a drain that ended ok needs a list of messages, :exhausted or nil, not "
                                     f"{shown(taken)}")  # fmt: skip
            taken = ()
        for each in taken:
            to.add(event, OK, self._message(each), key)
            to.add(event, INVOKE, None, key)
        if event.type != OK:
            to.add(event, INFO, None, key)
        # The queue was empty at some time within the drain. A message may have arrived there after that.
        elif taken and self._put.get(key, 0) > self._drains[event.process]:
            to.add(event, FAIL, None, key, "messages were put there meanwhile")
        else:
            to.add(event, FAIL, None, key, _EMPTY)

    def _note(self, event: ForeignEvent, key: int) -> None:
        self._seen += 1
        if event.f == "drain" and event.type == INVOKE:
            self._drains[event.process] = self._seen
        put = event.f == "enqueue" and event.type == OK
        put_back = event.f != "enqueue" and event.type == FAIL and not _found_empty(event)
        if put or put_back:
            self._put[key] = self._seen

    def _message(self, value: Any) -> tuple[int, int]:
        return 0, self._messages.of(value)


def _found_empty(event: ForeignEvent) -> bool:
    """Return whether a failed take reports that the queue was empty."""
    if event.error is None:
        return event.f == "dequeue"
    return name_of(event.error) in _NOTHING_LEFT


class LockTranslation:
    """``acquire`` and ``release``. The owner is the invocation's value, or the process if that value is nil. If an
    acquire returned a different whole number, that number is its fencing token."""

    functions = ("acquire", "release")

    def __init__(self, meaning: Meaning, events: Iterable[ForeignEvent]) -> None:
        self._owners = ForeignValueIds()
        self._values = {freeze(event.value) for event in events if event.type == INVOKE}

    def __call__(self, event: ForeignEvent, begun: ForeignEvent | None, to: ForeignRows) -> None:
        _known(event, self.functions, "lock")
        if event.key is not None:
            raise Unfit("key", "a history of one lock is expected, without keys")
        value, sent = event.value, (begun or event).value
        if begun is None:
            # Some operations may name the process as their owner, and others have nil for it.
            owner = event.named if sent is None and freeze(event.named) in self._values else sent
            to.add(event, event.type, None if owner is None else self._owners.of(owner), 0)
        elif event.type == OK and value is False:
            to.add(event, FAIL, None, 0, REFUSED)
        elif event.type == FAIL:
            to.add(event, FAIL, None, 0, _not(REFUSED, event))
        else:
            token = event.f == "acquire" and event.type == OK and type(value) is int and freeze(value) != freeze(sent)
            fits = token and encode_value(value) == (value, None)
            to.add(event, event.type, value if fits else None, 0, f"{TOKEN} {value}" if token and not fits else None)


TRANSLATIONS: Mapping[str, Callable[[Meaning, Iterable[ForeignEvent]], Translation]] = {
    "register": RegisterTranslation, "queue": QueueTranslation, "consume-last": QueueTranslation,
    "lock": LockTranslation, "lease": LockTranslation,
}  # fmt: skip
"""Workload -> the translation of foreign operations into its own."""


JUDGED_BY: Mapping[str, tuple[str, ...]] = {
    "register": ("register",), **dict.fromkeys(("queue", "consume-last"), ("lost", "phantom", "duplicated")),
    "lock": (MUTEX, "fencing"), "lease": ("mutual-exclusion", "fencing"),
}  # fmt: skip
"""Workload -> the checks that decide: those that need only the clients' operations."""


def translated(events: Sequence[ForeignEvent], make: Callable[[Meaning, Iterable[ForeignEvent]], Translation],
               meaning: Meaning) -> ForeignRows:
    """Return the rows of events, which must be given in the order in which they happened.

    Raises:
        Unfit: a row does not fit, or does not pair with another one.
    """
    rows, open_ones = ForeignRows(), dict[int, ForeignEvent]()
    translate = make(meaning, [event for event in events if event.process >= 0])
    for event in events:
        if event.process < 0:
            rows.add(event, INFO, plain(event.value))
            continue
        try:
            translate(event, _begun(event, open_ones), rows)
        except Unfit as error:
            raise Unfit(error.field, str(error), event.line) from None
        except PorcupineError as error:  # NaN
            raise Unfit("value", str(error), event.line) from None
    return rows


def _begun(event: ForeignEvent, open_ones: dict[int, ForeignEvent]) -> ForeignEvent | None:
    """Return the invocation that a row ends; None for an invocation."""
    if event.type == INVOKE:
        if (other := open_ones.get(event.process)) is not None:
            raise Unfit("process", f"{event.f} begins, but {other.f} of line {other.line} has not ended")
        open_ones[event.process] = event
        return None
    begun = open_ones.pop(event.process, None)
    if begun is None or begun.f != event.f:
        what = "its process has invoked nothing" if begun is None else f"line {begun.line} invoked {begun.f}"
        raise Unfit("f", f"{event.f} ends, but {what}")
    return begun


def plain(value: Any) -> Any:
    """Return a value of EDN in the form that JSON can hold, with sets as lists."""
    if isinstance(value, frozenset):
        return sorted((plain(each) for each in value), key=repr)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {plain_name(name): plain(each) for name, each in value.items()}
    return as_json(value)


def plain_name(value: Any) -> str:
    """Return the text of a name. A keyword loses its colon; a text keeps it."""
    return value if isinstance(value, str) else name_of(value) or str(value)
