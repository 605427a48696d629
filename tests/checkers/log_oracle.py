"""Logs by their definitions, row by row and pair by pair. For short histories."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from checker_histories import Row
from single_value_oracle import Done, operations


def entries(rows: Sequence[Row], *functions: str) -> list[Done]:
    """Operations that gave an entry, by their ends."""
    return sorted((o for o in operations(rows) if o.f in functions and o.kind == "ok"), key=lambda o: o.ret or 0)


def gone(rows: Sequence[Row], patience: int | None) -> set[int]:
    """Logs of which every read from the beginning said that they are not there, for so many rows at least."""
    scans = [o for o in operations(rows) if o.f == "scan" and o.ret is not None]
    found = set()
    for key in {o.key for o in scans}:
        mine = [o for o in scans if o.key == key]
        ends = [o.ret or 0 for o in mine]
        if patience is not None and max(ends) - min(ends) >= patience:
            found |= {key} if all("not found" in (o.error or "") for o in mine) else set()
    return found


def lost(rows: Sequence[Row], patience: int | None = None) -> int | None:
    """Entries that were confirmed or polled before the log was read, and were not there; None: can't be told."""
    whole = {o.key for o in operations(rows) if o.f == "scan" and o.kind == "fail" and o.error == "empty"}
    whole |= gone(rows, patience)
    told = {(o.key, o.value[1], o.ret) for o in entries(rows, "append", "poll")}
    there = {(o.key, o.value[1]) for o in entries(rows, "scan")}
    missing = set()
    for key, value, ret in told:
        begun = min((o.call for o in operations(rows) if o.f == "scan" and o.key == key), default=-1)
        if key in whole and ret < begun and (key, value) not in there:
            missing.add((key, value))
    return len(missing) if missing or {key for key, _, _ in told} <= whole else None


def wrong_offsets(rows: Sequence[Row]) -> int:
    """Offsets with two values, values with two offsets, values from nowhere, appends that went back."""
    told = {(o.key, *o.value) for o in entries(rows, "append", "poll", "scan")}
    values = {a[:2] for a, b in combinations(told, 2) if a[:2] == b[:2]}
    offsets = {(a[0], a[2]) for a, b in combinations(told, 2) if (a[0], a[2]) == (b[0], b[2])}
    appended = {(o.key, o.sent) for o in operations(rows) if o.f == "append" and o.kind != "fail"}
    nowhere = {(key, value) for key, _, value in told} - appended
    appends = entries(rows, "append")
    back = sum(any(a.key == b.key and (a.ret or 0) < b.call and a.value[0] >= b.value[0] for a in appends)
               for b in appends)  # fmt: skip
    return len(values) + len(offsets) + len(nowhere) + back


def wrong_reads(rows: Sequence[Row]) -> int:
    """Polls that went back, or skipped what is there in the end."""
    there = {(o.key, o.value[0]) for o in entries(rows, "scan")}
    position: dict[tuple[int, int], int] = {}
    wrong = 0
    for each in entries(rows, "poll", "seek"):
        reader = each.process, each.key
        if each.f == "seek":
            position[reader] = each.value
            continue
        before, position[reader] = position.get(reader, 0), each.value[0]
        skipped = any(key == each.key and before < offset < each.value[0] for key, offset in there)
        wrong += each.value[0] <= before or skipped
    return wrong


def diverging(rows: Sequence[Row], nodes: dict[int, str], count: int) -> int | None:
    """Offsets of whole copies that are not the same everywhere; None: can't be told. ``nodes``: row -> node; ``count``
    of them are in the test."""
    copies = [o for o in operations(rows) if o.f == "copy"]
    wrong, short = 0, False
    for key in {o.key for o in copies}:
        whole = {nodes[o.ret] for o in copies if o.ret is not None and o.key == key
                 and o.kind == "fail" and o.error == "empty"}  # fmt: skip
        if len(whole) < 2:
            without = {nodes[o.ret] for o in copies if o.ret is not None and o.key == key
                       and o.kind == "fail" and o.error == "this node has no copy"}  # fmt: skip
            short = short or len(whole | without) < count
            continue
        mine = [(nodes[o.ret], *o.value) for o in copies if o.ret is not None and o.key == key and o.kind == "ok"
                and nodes[o.ret] in whole]  # fmt: skip
        for offset in {offset for _, offset, _ in mine}:
            views = [{value for node, at, value in mine if (node, at) == (one, offset)} for one in whole]
            wrong += len(set().union(*views)) > 1 or not all(views)
    return None if short and not wrong else wrong
