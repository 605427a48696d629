"""Watches by their definitions, row by row and event by event. For short histories."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from checker_histories import Row
from single_value_oracle import Done, operations


def pairs(rows: Sequence[Row], *functions: str) -> list[Done]:
    """Operations that gave revision and value, by their ends; those that told progress alone have a value of 0."""
    return sorted((o for o in operations(rows) if o.f in functions and o.kind == "ok"), key=lambda o: o.ret or 0)


def events(rows: Sequence[Row], *functions: str) -> list[Done]:
    """Those with a value."""
    return [o for o in pairs(rows, *functions) if o.value[1]]


def lost(rows: Sequence[Row], nodes: int) -> int | None:
    """Values that some node's watch from the beginning lacks, though they were told before it began; None: a node's
    was not told to its end, and of others none is lost."""
    known = events(rows, "put", "event")
    ended = {(o.key, o.sent) for o in operations(rows) if o.f == "replay" and o.kind == "fail" and o.error == "empty"}
    missing, unread = set(), False
    for key in {o.key for o in known}:
        for node in range(nodes):
            if (key, node) not in ended:
                unread = True
                continue
            begun = min(o.call for o in operations(rows) if o.f == "replay" and (o.key, o.sent) == (key, node))
            there = {o.value[1] for o in pairs(rows, "replay") if (o.key, o.sent) == (key, node)}
            missing |= {(key, o.value[1]) for o in known if o.key == key and (o.ret or 0) < begun} - {
                (key, value) for value in there}  # fmt: skip
    return len(missing) if missing or not unread else None


def wrong_values(rows: Sequence[Row]) -> int:
    """Revisions of a key with two values, values with two, values from nowhere, puts that went back."""
    told = {(o.key, *o.value) for o in [*events(rows, "put", "event"), *pairs(rows, "replay")]}
    values = {a[:2] for a, b in combinations(told, 2) if a[:2] == b[:2]}
    revisions = {(a[0], a[2]) for a, b in combinations(told, 2) if (a[0], a[2]) == (b[0], b[2])}
    put = {(o.key, o.sent) for o in operations(rows) if o.f == "put" and o.kind != "fail"}
    nowhere = {(key, value) for key, _, value in told} - put
    puts = events(rows, "put")
    back = sum(any(a.key == b.key and (a.ret or 0) < b.call and a.value[0] >= b.value[0] for a in puts) for b in puts)
    return len(values) + len(revisions) + len(nowhere) + back


def wrong_order(rows: Sequence[Row]) -> tuple[int, int]:
    """Events that went back, and events or progress that left some out."""
    there = {(o.key, o.value[0]) for o in pairs(rows, "replay")}
    position: dict[tuple[str, int, int], int] = {}
    back = left_out = 0
    for each in pairs(rows, "event", "rewatch", "replay"):
        watcher = ("n", each.sent, each.key) if each.f == "replay" else ("c", each.process, each.key)
        if each.f == "rewatch":
            position[watcher] = each.value
            continue
        before, (revision, value) = position.get(watcher, 0), each.value
        progress = each.f == "event" and not value
        last = revision if progress else revision - 1
        left_out += any(key == each.key and before < at <= last for key, at in there)
        back += not progress and revision <= before
        position[watcher] = max(before, revision) if progress else revision
    return back, left_out
