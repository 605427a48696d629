"""Registers and locks by their definitions: every order of instants is tried. For histories of a few operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from checker_histories import Row


@dataclass(frozen=True)
class Done:
    """An operation that happened, or may have: rows of its invocation and completion (None: nobody knows)."""

    f: str
    process: int
    key: int
    sent: Any
    value: Any
    error: str | None
    kind: str
    call: int
    ret: int | None


def operations(rows: Sequence[Row]) -> list[Done]:
    """The operations of a history in order of invocation."""
    found: list[Done] = []
    for number, row in enumerate(rows):
        if row.type != "invoke":
            continue
        after = (at for at in range(number + 1, len(rows)) if rows[at].process == row.process)
        end = next(after, None)
        if end is None:
            found.append(Done(row.f, row.process, row.key, row.value, row.value, None, "info", number, None))
            continue
        done = rows[end]
        ret = end if done.type != "info" else None
        found.append(Done(row.f, row.process, row.key, row.value, done.value, done.error, done.type, number, ret))
    return found


Step = Callable[[Any, Done], Sequence[Any]]
"""The states to which an operation leads from a state; none: it can't have happened there."""


def explained(todo: frozenset[Done], state: Any, step: Step, must: Callable[[Done], bool]) -> bool:
    """Whether some order of instants, each within its operation, explains what happened."""
    if not any(must(each) for each in todo):
        return True
    first_end = min((each.ret for each in todo if each.ret is not None and must(each)), default=None)
    for each in todo:
        if first_end is not None and each.call > first_end:
            continue
        if any(explained(todo - {each}, after, step, must) for after in step(state, each)):
            return True
    return False


def register_holds(rows: Sequence[Row]) -> dict[int, bool]:
    """Register -> whether it was linearizable."""
    done = [each for each in operations(rows) if _tells(each)]
    keys = sorted({each.key for each in done})
    return {key: explained(frozenset(e for e in done if e.key == key), 0, _register, _happened) for key in keys}


def _happened(each: Done) -> bool:
    return each.ret is not None


def _tells(each: Done) -> bool:
    if each.f == "read":
        return each.kind == "ok"
    return each.kind != "fail" or (each.f == "cas" and each.error == "not what was expected")


def _register(state: int, each: Done) -> Sequence[int]:
    if each.f == "read":
        return (state,) if state == each.value else ()
    if each.f == "write":
        return (each.sent,)
    if not isinstance(each.value, tuple):
        return (each.value,)
    old, new = each.value
    if each.kind == "fail":
        return (state,) if state != old else ()
    # Whoever expected nothing can't be told, in a history, from whoever did not say what it expected.
    loose = each.kind == "info" and old == 0
    return (new,) if state == old or loose else ()


@dataclass(frozen=True)
class Instant:
    """Something that has to happen to a lock, or may: between two places of the history, for the sake of a hold."""

    what: str
    hold: int
    call: float
    ret: float | None


def exclusion_holds(rows: Sequence[Row]) -> bool:
    """Whether some order of instants explains who had the lock.

    A hold begins within its acquire, and is had at the end of that, and at the end of each update. A confirmed release
    ends it; besides, the lock may be taken from it at any time.
    """
    todo: set[Instant] = set()
    current: dict[int, int] = {}
    for hold, each in enumerate(sorted((o for o in operations(rows) if o.kind == "ok"), key=lambda o: o.ret or 0)):
        assert each.ret is not None
        if each.f == "acquire":
            current[each.process] = hold
            todo |= {Instant("take", hold, each.call, each.ret), Instant("have", hold, each.ret - 0.1, each.ret),
                     Instant("lose", hold, each.call, None)}  # fmt: skip
        elif each.process in current and each.f == "update":
            todo.add(Instant("have", current[each.process], each.ret - 0.1, each.ret))
        elif each.process in current and each.f == "release":
            todo.add(Instant("give", current.pop(each.process), each.call, each.ret))
    return explained(frozenset(todo), None, _lock, lambda instant: instant.ret is not None)  # type: ignore[arg-type]


def _lock(state: int | None, instant: Any) -> Sequence[int | None]:
    if instant.what == "take":
        return (instant.hold,) if state is None else ()
    if state != instant.hold:
        return ()
    return (state,) if instant.what == "have" else (None,)


def lost_updates(rows: Sequence[Row]) -> int:
    """Updates that a later write overwrote without having counted them."""
    written = [each.value for each in operations(rows) if each.f == "update" and each.kind == "ok"]
    return sum(any(other[0] > number and other[1] <= count for other in written) for number, count in written)


def tokens_that_went_back(rows: Sequence[Row]) -> int:
    """Acquires whose token is one that an earlier one has, or less than one that had been given before they began."""
    found = sorted(((o, token) for o in operations(rows) if o.f == "acquire" and o.kind == "ok"
                    and (token := token_of(o)) is not None), key=lambda had: had[0].ret or 0)  # fmt: skip
    return sum(any(other == token for _, other in found[:place])
               or any((o.ret or 0) < each.call and other > token for o, other in found)
               for place, (each, token) in enumerate(found))  # fmt: skip


def token_of(acquire: Done) -> int | None:
    """Its value; where a history has no number for the token, its error says it."""
    if acquire.value is None and acquire.error is not None:
        return int(acquire.error.removeprefix("token "))
    return None if acquire.value is None else int(acquire.value)


def mutex_holds(rows: Sequence[Row], reentrant: bool) -> bool:
    """Whether some order of instants explains the answers of a lock that is held until its owner releases it."""

    def step(state: tuple[Any, int], each: Done) -> Sequence[tuple[Any, int]]:
        owner, depth = state
        who = ("process", each.process) if each.sent is None else ("owner", each.sent)
        mine = depth > 0 and owner == who
        can = mine if each.f == "release" else depth == 0 or (mine and reentrant)
        if each.kind == "fail":
            return () if can else (state,)
        if not can:
            return ()
        deeper = depth + (1 if each.f == "acquire" else -1)
        return ((who, deeper) if deeper else (None, 0),)

    todo = frozenset(each for each in operations(rows) if each.kind != "fail" or each.error == "refused")
    return explained(todo, (None, 0), step, _happened)
