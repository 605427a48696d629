"""A recorded run as checks see it: its history, its description, its faults, and the account of its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkers import kernels
from checkers.folder import LEDGER_FILE
from checkers.history import History, dense_keys, read_history
from checkers.kernels import Int8s, Int32s, Int64s
from checkers.verdict import MAX_EXAMPLES
from harness.errors import HistoryError
from harness.history.ledger import FaultWindow, read_ledger
from harness.history.schema import TYPE_CODES, decode_pair

SECOND = 1_000_000_000

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Messages:
    """What happened to each message (queue, value), by its number.

    ``sent`` is the row of the send's invocation (-1: never sent), ``state`` a code of ``checkers.kernels``
    (ACKED...); message m was delivered by the completions ``delivered[start[m]:start[m + 1]]`` in order.
    ``of_row`` is the message's number by row, -1 where a row is about none.
    """

    of_row: Int32s
    key: Int32s
    value: Int64s
    sent: Int64s
    state: Int8s
    start: Int64s
    delivered: Int64s

    @property
    def deliveries(self) -> Int64s:
        """How often each message was delivered."""
        return np.diff(self.start)

    def name(self, message: int) -> str:
        """A message as people read it: ``producer/sequence``."""
        producer, sequence = decode_pair(int(self.value[message]))
        return f"{producer}/{sequence}"


@dataclass(frozen=True)
class Run:
    """One run: ``info`` is run.json, ``faults`` the windows of its ledger in order of injection."""

    name: str
    info: Mapping[str, Any]
    faults: Sequence[FaultWindow]
    history: History

    @property
    def test(self) -> Mapping[str, Any]:
        """The test's description as stored."""
        test: Mapping[str, Any] = self.info.get("test") or {}
        return test

    @cached_property
    def messages(self) -> Messages:
        """The account of all messages.

        Raises:
            HistoryError: one value was sent twice, so that no account can be given.
        """
        h = self.history
        of_row, key, value = kernels.number_messages(h.role, h.kind, h.key, h.value)
        sent, state, twice = kernels.account_sends(h.role, h.kind, h.partner, of_row, len(key))
        if twice >= 0:
            name = "/".join(map(str, decode_pair(int(h.value[twice]))))
            raise HistoryError(f"row {twice} sends message {name} a second time: values must be unique")
        start, delivered = kernels.account_deliveries(h.role, h.kind, of_row, len(key))
        return Messages(of_row, key, value, sent, state, start, delivered)

    @cached_property
    def empty(self) -> Bools:
        """By row: a completion that found the queue empty (``fail`` with the error ``empty``)."""
        errors = self.history.error
        found = np.asarray([*(name == "empty" for name in errors.names), False], dtype=np.bool_)
        fails = self.history.kind == TYPE_CODES["fail"]
        empty: Bools = fails & found[errors.codes]
        return empty

    @cached_property
    def undrained(self) -> Mapping[int, str]:
        """Queues whose drain did not finish, with the reason.

        A queue is drained when some drain operation found it empty that was invoked after everything else had
        happened on it; then nobody holds a message of it that will still be delivered.
        """
        h = self.history
        queue, bound, keys = dense_keys(h)
        empty = self.empty.astype(np.int8)
        busy, found_empty = kernels.last_words(h.role, h.kind, queue, h.partner, empty, bound)
        reasons = {}
        for number in np.flatnonzero((busy > kernels.UNTOUCHED) & (found_empty <= busy)):
            if busy[number] >= h.rows:
                reason = "an operation was still open when the history ended"
            elif found_empty[number] < 0:
                reason = "no drain ever found it empty"
            else:
                reason = "its last drain ended before it had found it empty"
            reasons[int(keys[number])] = reason
        return reasons

    @cached_property
    def depths(self) -> Mapping[int, tuple[int, int]]:
        """Queue -> (messages left, row of the completion), of its last confirmed reading."""
        h = self.history
        rows = np.flatnonzero((h.role == kernels.DEPTH) & (h.kind == kernels.OK) & (h.value >= 0))
        return {int(h.key[row]): (int(h.value[row]), int(row)) for row in rows}

    @cached_property
    def queues(self) -> tuple[int, ...]:
        """The queues that anybody tried to send to."""
        h = self.history
        return tuple(np.unique(h.key[(h.role == kernels.ENQUEUE) & (h.kind == kernels.INVOKE)]).tolist())

    def rows_of(self, *rows: int) -> tuple[int, ...]:
        """Both halves of the operations that the rows belong to, in order of time."""
        partner = self.history.partner
        both = {int(row) for row in rows} | {int(partner[row]) for row in rows if partner[row] >= 0}
        return tuple(sorted(both))[:MAX_EXAMPLES]

    def ended(self, role: int, kind: int) -> Int64s:
        """Rows of the completions of one role and type."""
        h = self.history
        return np.flatnonzero((h.role == role) & (h.kind == kind))

    def faults_at(self, row: int) -> list[int]:
        """Ids of the faults that were in force at a row."""
        moment = self.history.time[row]
        return [
            fault.id for fault in self.faults if fault.start <= moment and (fault.end is None or moment <= fault.end)
        ]

    def main_phase(self) -> tuple[int, int]:
        """Start and end of the main phase in nanoseconds: as run.json says, else until the drain begins."""
        h = self.history
        last = int(h.time[-1]) if h.rows else 0
        for phase in self.info.get("phases") or ():
            if phase.get("name") == "main":
                end = phase.get("end")
                return int(phase.get("start") or 0), last if end is None else int(end)
        drains = np.flatnonzero(h.role == kernels.DRAIN)
        return 0, int(h.time[drains[0]]) if len(drains) else last


def load_run(run_dir: Path, info: Mapping[str, Any]) -> Run:
    """Read a run's history and ledger.

    Raises:
        HistoryError: one of them can't be read or isn't well formed.
    """
    history = read_history(run_dir, info.get("history_file_sha256"))
    return Run(run_dir.name, info, read_ledger(run_dir / LEDGER_FILE), history)
