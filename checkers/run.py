"""A recorded run as checks see it: its history, its description, its faults, and the account of its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from checkers.account import Messages
from checkers.history import read_history
from checkers.kernels.queues import ACKED
from checkers.kernels.rows import tally
from checkers.queue_ends import EMPTY, QueueEnds
from checkers.run_schema import LEDGER_DIGEST, demand_whole, ended_early
from checkers.topics import Topics
from checkers.transactions import TransactionTable
from stormproof import vocabulary
from stormproof.contracts.check import MAX_EXAMPLES
from stormproof.errors import HistoryError
from stormproof.history.columns import Bools, HistoryColumns, Int64s
from stormproof.history.description import demand_sealed
from stormproof.history.ledger import (
    FaultWindow,
    Repair,
    Standstill,
    demand_same,
    read_ledger,
    read_repairs,
    read_standstills,
)
from stormproof.run_folder import LEDGER, read_run, written_by
from stormproof.unnamed_takes import DELIVERY_LIMIT, UNNAMED_TAKES
from stormproof.vocabulary import ANY, FUNCTIONS, MESSAGES, TOPICS, TRANSACTIONS, TRANSFERS

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Run:
    """One run.

    ``info`` is run.json, ``faults`` the windows of its ledger in order of injection, ``folder`` its folder on disk, if
    it has one.
    """

    name: str
    info: Mapping[str, Any]
    faults: Sequence[FaultWindow]
    history: HistoryColumns
    folder: Path | None = None
    repairs: Sequence[Repair] = ()
    """Repairs between the last heal and the drain, as an operator would do them."""
    standstills: Sequence[Standstill] = ()
    """Times at which the harness itself stood still."""
    whole: bool = True
    """Whether the history is complete, not a part (``checkers.partitioned_check``)."""
    unsealed: bool = False
    """Whether the description's format has no seal: then nothing shows whether it was changed."""

    @property
    def test(self) -> Mapping[str, Any]:
        """The test's description as stored."""
        test: Mapping[str, Any] = self.info.get("test") or {}
        return test

    def exempt(self, check: str) -> frozenset[str]:
        """Return the kinds of a check's anomalies that the run's mode does not promise to exclude."""
        return frozenset((self.info.get("exemptions") or {}).get(check, ()))

    def name_of(self, key: int) -> str:
        """Return the user's name of the object behind a key of the history, as the workload defines it."""
        names = self.info.get("names") or ()
        return str(names[key]) if 0 <= key < len(names) else f"object {key}"

    @property
    def in_process(self) -> bool:
        """Whether the nodes were simulated: then only simulated delays occur."""
        return bool((self.info.get("backend") or {}).get("in_process"))

    @property
    def lateness(self) -> float | None:
        """Seconds by which events on a node may be later than its timers say; None: its clock is unreliable."""
        found = (self.info.get("backend") or {}).get("lateness")
        return None if found is None else float(found)

    @cached_property
    def messages(self) -> Messages:
        """The account of all messages.

        Raises:
            SentTwice: one value was sent twice, so that no account can be given.
        """
        return Messages.of(self.history)

    @cached_property
    def topics(self) -> Topics:
        """The account of a run on topics; raises HistoryError as ``Topics.of`` does."""
        return Topics.of(self.history)

    @cached_property
    def transactions(self) -> TransactionTable:
        """The account of a run of transactions; raises HistoryError as ``TransactionTable.of`` does."""
        return TransactionTable.of(self.history, self.empty)

    @cached_property
    def subjects(self) -> frozenset[str]:
        """The subjects of the history, and ``any``.

        The others are ``messages`` (of queues), ``topics``, ``transactions``, ``metadata`` and ``events``. The run's
        description decides. Without it the history's functions do: topics and transactions take precedence, then
        messages, which may be ``transfers`` of durable connections as well.
        """
        if told := self.info.get("subject"):
            return frozenset({str(told), ANY})
        used = (name for name, counts in self.tally.items() if counts.any())
        found = {FUNCTIONS[name].subject for name in used if name in FUNCTIONS}
        if found & {TOPICS, TRANSACTIONS}:
            found &= {TOPICS, TRANSACTIONS}
        elif MESSAGES in found:
            found &= {MESSAGES, TRANSFERS}
        return frozenset({*found - {""}, ANY})

    @cached_property
    def empty(self) -> Bools:
        """Mark, by row, the completions that found the queue empty (``fail`` with the error ``empty``)."""
        h = self.history
        empty: Bools = (h.kind == vocabulary.FAIL) & h.error.rows_with(EMPTY)
        return empty

    @property
    def undrained(self) -> Mapping[int, str]:
        """Queues (durable subscriptions, for a run on topics) whose drain did not finish, with the reason."""
        if TOPICS in self.subjects:
            return self.topics.undrained
        return self.transactions.undrained if TRANSACTIONS in self.subjects else self._ends.undrained

    @property
    def open_queues(self) -> Mapping[int, str]:
        """As ``QueueEnds.open``; also queues whose dead-letter queue was not drained."""
        return {**self._undrained_dead_letters, **self._ends.open}

    @property
    def delivery_limit(self) -> str:
        """The statement by which the system drops messages after a number of deliveries; empty: it does not."""
        return str(self.info.get(DELIVERY_LIMIT) or "")

    @cached_property
    def dead_letters(self) -> Int64s:
        """The values of the messages that were taken from dead-letter queues."""
        h = self.history
        taken = h.f.rows_with(vocabulary.DEAD_LETTER) & np.isin(h.kind, (vocabulary.OK, vocabulary.INFO))
        return np.unique(h.value[taken & (h.value >= 0)])

    @cached_property
    def _undrained_dead_letters(self) -> Mapping[int, str]:
        if not self.delivery_limit:
            return {}
        h = self.history
        ends = np.flatnonzero(h.f.rows_with(vocabulary.DEAD_LETTER) & (h.kind != vocabulary.INVOKE))
        last = {int(h.key[row]): row for row in ends.tolist()}
        return {queue: f"its dead-letter queue was not drained ({self.delivery_limit})" for queue in self.queues
                if queue not in last or not self.empty[last[queue]]}  # fmt: skip

    @cached_property
    def undelivered(self) -> Int64s:
        """The confirmed messages that no consumer got, without dead letters."""
        messages = self.messages
        gone = np.flatnonzero((messages.state == ACKED) & (messages.deliveries == 0))
        return gone[~np.isin(messages.value[gone], self.dead_letters)]

    @property
    def fenced_queues(self) -> frozenset[int]:
        """As ``QueueEnds.fenced``; empty for a run on topics or transactions, which are not swept."""
        return frozenset() if self.subjects & {TOPICS, TRANSACTIONS} else self._ends.fenced

    @property
    def recovered(self) -> Mapping[str, Any] | None:
        """The last wait for a healthy cluster and its result: after the last heal, or the repair."""
        found = self.info.get("recovery") or {}
        told: Mapping[str, Any] | None = found.get("after_repair") or found or None
        return told

    @property
    def gone_queues(self) -> Mapping[int, tuple[int, int]]:
        """As ``QueueEnds.gone``."""
        return self._ends.gone

    @cached_property
    def absence_proves(self) -> int | None:
        """Nanoseconds for which an object must be reported missing before it counts as gone: half of the drain's limit.

        None: nothing proves it, since the cluster was not healthy.
        """
        limit = (self.test.get("options") or {}).get("drain_limit")
        if not (self.recovered or {}).get("healthy") or not isinstance(limit, int | float):
            return None
        return round(float(limit) / 2 * SECOND)

    @property
    def accounts(self) -> Mapping[int, float]:
        """As ``QueueEnds.accounts``."""
        return self._ends.accounts

    @property
    def still_open(self) -> Mapping[int, float]:
        """As ``QueueEnds.still_open``; empty for a run on topics or transactions, where such queues are not drained."""
        return {} if self.subjects & {TOPICS, TRANSACTIONS} else self._ends.still_open

    @cached_property
    def _ends(self) -> QueueEnds:
        return QueueEnds(self.history, self.empty, self.depths, self.info.get(UNNAMED_TAKES),
                         self.absence_proves, self._unclosed)  # fmt: skip

    @property
    def _unclosed(self) -> int:
        """The number of clients that could not be closed, from run.json's record of abandoned ones.

        The record has details of the first ones only.
        """
        told = self.info.get("abandoned") or {}
        return int(told.get("count", 0)) - sum(bool(each.get("f")) for each in told.get("first", ()))

    def place(self, message: int) -> int:
        """Return a message's place in the order of appearance, which also holds among the messages of a run's other
        parts.
        """
        return message if self.whole else int(self._appearances[message])

    @cached_property
    def _appearances(self) -> Int64s:
        """The row of the whole history in which each message appears first."""
        messages = self.messages
        rows = np.flatnonzero(messages.of_row >= 0)[::-1]
        first = np.empty(len(messages.key), dtype=np.int64)
        first[messages.of_row[rows]] = self.history.index[rows]
        return first

    @cached_property
    def depths(self) -> Mapping[int, tuple[int, int]]:
        """Queue -> (messages left, row of the completion), of its last confirmed reading."""
        h = self.history
        rows = np.flatnonzero((h.role == vocabulary.DEPTH) & (h.kind == vocabulary.OK) & (h.value >= 0))
        return {int(h.key[row]): (int(h.value[row]), int(row)) for row in rows}

    @cached_property
    def queues(self) -> tuple[int, ...]:
        """The queues to which a client tried to send; for a run on topics, the durable subscriptions that last."""
        h = self.history
        if TOPICS in self.subjects:
            return tuple(s.key for s in self.topics.subscriptions if s.durable and s.until == h.rows)
        if TRANSACTIONS in self.subjects:
            return self.transactions.queues
        return tuple(np.unique(h.key[(h.role == vocabulary.ENQUEUE) & (h.kind == vocabulary.INVOKE)]).tolist())

    def rows_of(self, *rows: int) -> tuple[int, ...]:
        """Return invocation and completion of the operations of these rows, in order of time."""
        partner = self.history.partner
        both = {int(row) for row in rows} | {int(partner[row]) for row in rows if partner[row] >= 0}
        return tuple(int(self.history.index[row]) for row in sorted(both)[:MAX_EXAMPLES])

    @cached_property
    def tally(self) -> Mapping[str, Int64s]:
        """The number of clients' rows of each type, by function."""
        h = self.history
        counts = tally(h.process, h.kind, h.f.codes, len(h.f.names)).reshape(-1, 4)
        return dict(zip(h.f.names, counts, strict=True))

    def count(self, role: int, kind: int) -> int:
        """Return the number of completions (invocations) of one role and type."""
        return sum(int(counts[kind]) for name, counts in self.tally.items()
                   if name in FUNCTIONS and FUNCTIONS[name].code == role)  # fmt: skip

    def ended(self, role: int, kind: int) -> Int64s:
        """Return the rows of the completions of one role and type."""
        h = self.history
        return np.flatnonzero((h.role == role) & (h.kind == kind))

    def faults_at(self, row: int) -> list[int]:
        """Return the ids of the faults that were in force at a row."""
        moment = self.history.time[row]
        return [
            fault.id for fault in self.faults if fault.start <= moment and (fault.end is None or moment <= fault.end)
        ]

    def swallowed(self, fault: FaultWindow) -> bool:
        """Return whether the harness stood still for more than half of a fault's time: then no client observed the
        fault.
        """
        start, end = fault.start, self._last if fault.end is None else fault.end
        still = sum(max(0, min(end, each.end) - max(start, each.start)) for each in self.standstills)
        return 2 * still > end - start

    @cached_property
    def _last(self) -> int:
        return int(self.history.time[-1]) if self.history.rows else 0

    def main_phase(self) -> tuple[int, int]:
        """Return start and end of the main phase in nanoseconds: from run.json, or else until the drain begins."""
        h = self.history
        last = int(h.time[-1]) if h.rows else 0
        for phase in self.info.get("phases") or ():
            if phase.get("name") == "main":
                end = phase.get("end")
                return int(phase.get("start") or 0), last if end is None else int(end)
        drains = np.flatnonzero(h.role == vocabulary.DRAIN)
        return 0, int(h.time[drains[0]]) if len(drains) else last


def noun_of(run: Run) -> str:
    """Return the word for the drained objects of this run."""
    return vocabulary.noun_of(run.history.f.names)


class EndedEarly(HistoryError):
    """The run ended before its history was sealed: it gets no verdict, and it is not damaged."""


def load_run(run_dir: Path) -> Run:
    """Read a run: its description, which must be whole and match its seal, its history, and its ledger.

    Raises:
        EndedEarly: it was never sealed. HistoryError: one of the three can't be read, isn't well formed, or differs
            from the run's record.
    """
    info = read_run(run_dir)
    is_sealed = demand_sealed(run_dir, info)
    if (reason := ended_early(info)) is not None:
        raise EndedEarly(reason)
    demand_whole(run_dir, info, written_by(run_dir))
    history = read_history(run_dir, info["history_file_sha256"], info["history_sha256"])
    ledger = run_dir / LEDGER
    if LEDGER_DIGEST in info:
        demand_same(ledger, info[LEDGER_DIGEST])
    return Run(run_dir.name, info, read_ledger(ledger), history, run_dir, read_repairs(ledger),
               read_standstills(ledger), unsealed=not is_sealed)  # fmt: skip
