"""Watchers of what a FioranoMQ pair and its shared database have on disk when they say so. The checker reads the frames
from the wire, and compares them with the disk of whoever sends them."""

from __future__ import annotations

import struct
from typing import Any

from nodes.systems.reference.fiorano.probes import FioranoObserved, FioranoProbe
from nodes.systems.reference.rules.disks import DiskWatcher

_STORED = 5
"""The first byte of a standby's report that it has stored all change-sets up to a number."""
_REPORT = struct.Struct(">Bqqq?")
_WORDS_A_LOOK = 15
"""One of this number of reports, and of confirmations, is compared with the disk."""
_STAMP = "fiorano_repository"


class StandbyHasStored(DiskWatcher):
    """Tracks how often each standby has said that it has stored something."""

    def __init__(self) -> None:
        super().__init__()
        self._words: dict[str, int] = {}

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check, when a standby says that it has stored change-sets up to a number, that this is its disk's stamp."""
        if type(frame) is not bytes or not frame or frame[0] != _STORED or len(frame) != _REPORT.size:
            return ""
        _, _, counter, _, whole = _REPORT.unpack(frame)
        self._words[node] = self._words.get(node, 0) + 1
        if self._words[node] % _WORDS_A_LOOK or (rows := self.rows(node, _STAMP)) is None:
            return ""
        there = [(bool(row[1]), row[3]) for row in rows]
        if there and there[0][1] >= counter and there[0][0] >= whole:
            return ""
        return (f"it says that change-sets up to {counter} are stored in a repository that is {'' if whole else 'not '}"
                f"whole, and on its disk is {there or 'nothing'}")  # fmt: skip


class ConfirmedIsStored(DiskWatcher):
    """Tracks how often each server that is alone has confirmed something."""

    def __init__(self) -> None:
        super().__init__()
        self._words: dict[str, int] = {}

    def look(self, node: str, program: FioranoProbe, now: FioranoObserved, before: FioranoObserved | None) -> str:
        """Check that what a server confirms without the other one is on its own disk."""
        super().look(node, program, now, before)
        if before is None or not now.alone or now.confirmed == before.confirmed or program.failed:
            return ""
        self._words[node] = self._words.get(node, 0) + 1
        if self._words[node] % _WORDS_A_LOOK or (rows := self.rows(node, _STAMP)) is None:
            return ""
        epoch, counter = now.confirmed
        there = [(row[2], row[3]) for row in rows]
        if there and there[0] >= (epoch, counter):
            return ""
        return f"it has confirmed change {counter} of epoch {epoch}, and on its disk is {there or 'nothing'}"


class DatabaseHasStored(DiskWatcher):
    """Tracks the commits that servers have sent to the shared database and that are not answered, by server and number
    of the request, and how often the service has said that it has stored one."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[tuple[str, int], tuple[int, int]] = {}
        self._words = 0

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check, when the service says that it has stored a commit, that its disk has it."""
        match frame:
            case [int(number), "commit", int(epoch), int(sequence), _]:
                self._asked[node, number] = epoch, sequence
            case [int(number), "ok"] if (commit := self._asked.pop((peer, number), None)) is not None:
                self._words += 1
                if self._words % _WORDS_A_LOOK or (rows := self.rows(node, "fence")) is None:
                    return ""
                there = [(row[1], row[3]) for row in rows]
                if not there or there[0] < commit:
                    return (f"it says that commit {commit[1]} of epoch {commit[0]} is stored, and its disk has "
                            f"{there or 'nothing'}")  # fmt: skip
            case [int(number), str(), *_]:
                self._asked.pop((peer, number), None)
        return ""

    def ended(self, node: str) -> None:
        """Forget the requests of an ended server, and the service's answers: they are lost with the connection."""
        self._asked = {key: each for key, each in self._asked.items() if node != key[0]}
