"""Watchers of the frames that Qpid brokers and their managers send. The checker reads them from the wire, and compares
the reports of a backup with its disk."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from nodes.reference.designs.qpid.states import PRIMARY
from nodes.reference.designs.qpid.store_status import CLEAN, DIRTY
from nodes.systems.reference.qpid.manager_probes import ManagerObserved, ManagerProbe
from nodes.systems.reference.qpid.probes import QpidObserved, QpidProbe
from nodes.systems.reference.rules.disks import DiskWatcher
from nodes.systems.reference.wire_reader import decoded, first_items
from stormproof.contracts.invariant import Watcher

_ATTACH, _GROUP, _COMPLETED = 1, 3, 4
"""The first bytes of a backup's list of its content, of a group of events, and of a backup's report that it has stored
all groups up to a number."""
_NUMBERS = struct.Struct(">Bqq")
_ENQUEUE, _DEQUEUE, _RESET, _DELETE, _SNAPSHOT = "enqueue", "dequeue", "reset", "delete", "snapshot"
_OF_A_QUEUE = (_RESET, _DELETE, _SNAPSHOT)
_WORDS_A_LOOK = 25
"""One of this number of a backup's words is compared with its disk."""
_REMEMBERED = 200
_BEAT, _ECHO, _REQUEST, _VOTE = range(4)
"""The first bytes of what managers send each other: heartbeats and their answers, requests for votes and votes."""
_ASKED = struct.Struct(">Bq?")
_BEATS_REMEMBERED = 16
_SLACK = 0.01
"""Seconds by which a frame may leave after the step that has written it."""


class Enqueued(NamedTuple):
    """A message that a backup was sent: the group's number, and the body."""

    group: int
    body: bytes


def completed(frame: Any) -> int | None:
    """Return the number up to which a backup says that it has stored all groups; None for another frame."""
    if type(frame) is not bytes or not frame or frame[0] != _COMPLETED or len(frame) != _NUMBERS.size:
        return None
    return int(_NUMBERS.unpack(frame)[1])


class CompletedIsStored(DiskWatcher):
    """Tracks the latest messages that each backup was sent and has to keep, by queue and position, and how often it has
    said that it has stored something."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, dict[tuple[str, str], Enqueued]] = {}
        self._words: dict[str, int] = {}

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check, when a backup says that it has stored a group, that its messages are on the backup's disk."""
        if type(frame) is not bytes or not frame:
            return ""
        if frame[0] == _GROUP:
            self._send(peer, decoded(frame[1:]))
            return ""
        number = completed(frame)
        if not number:
            return ""
        self._words[node] = self._words.get(node, 0) + 1
        if self._words[node] % _WORDS_A_LOOK:
            return ""
        known = self._kept.get(node, {})
        due = {each.body for each in known.values() if each.group <= number and each.body}
        if not due or (rows := self.rows(node, "messages")) is None:
            return ""
        there = {column for row in rows for column in row if isinstance(column, bytes)}
        if not (lacking := sorted(due - there)):
            return ""
        return (f"it says that it has stored group {number}, and on its disk {len(lacking)} messages are not, as "
                f"{lacking[0][:40]!r}")

    def _send(self, peer: str, group: Any) -> None:
        number, _, events, _ = group
        kept = self._kept.setdefault(peer, {})
        for name, *parts in events:
            if name == _ENQUEUE and number:
                kept[str(parts[0]), repr(parts[2])] = Enqueued(number, parts[4])
            elif name == _DEQUEUE:
                kept.pop((str(parts[0]), repr(parts[1])), None)
            elif name in _OF_A_QUEUE:
                kept.clear()
        while len(kept) > _REMEMBERED:
            del kept[next(iter(kept))]

    def ended(self, node: str) -> None:
        """Forget what an ended broker was sent: it is sent what it lacks when it attaches again."""
        self._kept.pop(node, None)


class ResetsWhatDiffers(Watcher):
    """Tracks the running brokers, the lists of backups that are not answered, and the queues that an answer under way
    has yet to reset, each with the highest position to which."""

    fields = ("state",)

    def __init__(self) -> None:
        self._programs: dict[str, QpidProbe] = {}
        self._lists: dict[tuple[str, str], list[Any]] = {}
        self._due: dict[tuple[str, str], dict[str, int]] = {}

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Note the running broker."""
        self._programs[node] = program
        return ""

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check that a primary's answer to a backup's list resets each queue in which both have numbered differently,
        to a position before that."""
        if type(frame) is not bytes or not frame:
            return ""
        if frame[0] == _ATTACH:
            self._lists[node, peer] = decoded(frame[1:])[2]
            self._due.pop((peer, node), None)
        elif frame[0] == _GROUP and ((peer, node) in self._lists or (node, peer) in self._due):
            return self._answers(node, peer, *decoded(frame[1:])[2:])
        return ""

    def _answers(self, node: str, peer: str, events: list[Any], more: bool) -> str:
        program, listed = self._programs.get(node), self._lists.pop((peer, node), None)
        if program is None or program.failed:
            return ""
        if listed is not None:
            if not events or events[0][0] != _SNAPSHOT:
                return ""
            self._due[node, peer] = due_resets(program, listed)
        due = self._due[node, peer]
        for name, *about in events:
            if name == _RESET and about[0] in due and program.position(about[1]) <= due[about[0]]:
                del due[about[0]]
        if more:
            return ""
        del self._due[node, peer]
        left = next(iter(due.items()), None)
        return (f"it lets {peer} keep the messages of queue {left[0]} beyond {left[1]}, up to which both have numbered "
                "alike") if left is not None else ""  # fmt: skip

    def ended(self, node: str) -> None:
        """Forget what an ended broker has listed, and what it was about to answer."""
        self._programs.pop(node, None)
        self._lists = {key: each for key, each in self._lists.items() if node not in key}
        self._due = {key: each for key, each in self._due.items() if node not in key}


class AttachesWithAll(DiskWatcher):
    """Tracks the running brokers, and those that have everything of a primary's, or have been primary, since their
    start."""

    def __init__(self) -> None:
        super().__init__()
        self._programs: dict[str, QpidProbe] = {}
        self._was_primary: set[str] = set()

    def look(self, node: str, program: QpidProbe, now: QpidObserved, before: QpidObserved | None) -> str:
        """Note the running broker, and whether it is primary."""
        super().look(node, program, now, before)
        self._programs[node] = program
        if before is None:
            self._was_primary.discard(node)
        elif now.state == PRIMARY:
            self._was_primary.add(node)
        return ""

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check a backup's list of what it has, if it was ready since its start, or its store is clean or empty."""
        program = self._programs.get(node)
        if type(frame) is not bytes or not frame or frame[0] != _ATTACH or program is None or program.failed:
            return ""
        now = program.observed()
        was_ready = now.times_ready > 0 and node not in self._was_primary
        if program.replaced or not (was_ready or now.store != DIRTY):
            return ""
        _, told, listed = decoded(frame[1:])
        rows = self.rows(node, "qpid_store") if now.store == CLEAN else None
        if rows and rows[0][1] == CLEAN and told != rows[0][4]:
            return f"it tells {peer} of the shutdown {told or 'none'}, and its store is of {rows[0][4]}"
        there = {name: (made, program.position(at), held_in(held)) for name, made, _, at, held in listed}
        for name, (made, last, copies) in program.copies().items():
            if (found := there.get(name, ("", 0, set()))) != (made, last, set(copies)):
                return (f"it has {len(copies)} messages of queue {name} ({made}) up to {last}, and tells {peer} of "
                        f"{len(found[2])} up to {found[1]}")  # fmt: skip
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended broker."""
        self._programs.pop(node, None)


def held_in(ranges: Sequence[Sequence[int]]) -> set[int]:
    """Return the numbers in ranges of them, each the first one and their number."""
    return {number for first, count in ranges for number in range(first, first + count)}


def due_resets(program: QpidProbe, listed: list[Any]) -> dict[str, int]:
    """Return the queues whose numbering by a backup and by its primary differs, each with the last position before the
    difference."""
    ours, found = program.numbering(), dict[str, int]()
    for name, made, generations, at, _ in listed:
        if name not in ours or ours[name][0] != made:
            continue
        theirs, (_, last, mine) = program.position(at), ours[name]
        alike = numbered_alike(mine, last, [(each[0], each[1]) for each in generations], theirs)
        if theirs > alike:
            found[name] = alike
    return found


def numbered_alike(ours: Sequence[tuple[int, int]], our_last: int, theirs: Sequence[tuple[int, int]], their_last: int,
                   ) -> int:  # fmt: skip
    """Return the last position up to which two copies of a queue were numbered by the same generations."""
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
    begun = [each[common][1] - 1 for each in (ours, theirs) if len(each) > common]
    return min(our_last, their_last, *begun)


class Heard(NamedTuple):
    """The coordinator that a manager has answered last, when that was by its clock, and the number of that frame."""

    coordinator: str
    at: float
    number: int


class VotesInSilence(Watcher):
    """Tracks the latest heartbeats that each manager was sent by a coordinator, by the times that they carry; the last
    coordinator that each has answered as such; and the requests for votes that are not answered yet. Frames are
    numbered in the order in which they are sent."""

    fields = ("promised",)

    def __init__(self) -> None:
        self._programs: dict[str, ManagerProbe] = {}
        self._beats: dict[tuple[str, str], dict[float, int]] = {}
        self._heard: dict[str, Heard] = {}
        self._requests: dict[tuple[str, str, int, bool], int] = {}
        self._number = 0

    def look(self, node: str, program: ManagerProbe, now: ManagerObserved, before: ManagerObserved | None) -> str:
        """Note the running manager."""
        self._programs[node] = program
        return ""

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check that a manager that hears a coordinator grants no vote, and no pre-vote, to another member."""
        if type(frame) is not bytes or not frame or node not in self._programs:
            return ""
        self._number += 1
        kind = frame[0]
        if kind == _BEAT:
            sent, ballot = first_items(frame[1:], 2)
            if ballot:
                beats = self._beats.setdefault((node, peer), {})
                beats[sent] = ballot
                if len(beats) > _BEATS_REMEMBERED:
                    del beats[next(iter(beats))]
        elif kind == _ECHO:
            sent, promised = first_items(frame[1:], 2)
            # A heartbeat of a ballot below the promised one is answered, too, and not heeded.
            if promised <= self._beats.get((peer, node), {}).get(sent, -1):
                self._heard[node] = Heard(peer, self._programs[node].now(), self._number)
        elif kind == _REQUEST and len(frame) == _ASKED.size:
            _, ballot, sure = _ASKED.unpack(frame)
            self._requests[node, peer, ballot, sure] = self._number
        elif kind == _VOTE:
            ballot, sure, granted = first_items(frame[1:], 3)
            return self._votes(node, peer, self._requests.pop((peer, node, ballot, sure), 0)) if granted else ""
        return ""

    def _votes(self, node: str, peer: str, asked: int) -> str:
        heard, program = self._heard.get(node), self._programs[node]
        if heard is None or heard.coordinator == peer or asked < heard.number:
            return ""
        ago = program.now() - heard.at
        if ago >= program.options.lease - _SLACK:
            return ""
        return (f"it votes for {peer}, or says that it would, and has heard the coordinator {heard.coordinator} "
                f"{ago:.3f} s ago, within a lease")  # fmt: skip

    def ended(self, node: str) -> None:
        """Forget what an ended manager has heard."""
        self._programs.pop(node, None)
        self._heard.pop(node, None)
