"""A manager's durable facts: its promise, the decision it has accepted, and its broker's promotion."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, NamedTuple

from nodes.reference.api import ConfigError
from nodes.reference.designs.qpid.manager.note import Note, decoded_note
from nodes.reference.replication.handshake import LinkError

DATABASE = "manager"


class ManagerRecord(NamedTuple):
    """The durable record. ``promised``: the highest ballot supported. ``ballot``, ``term``, ``primary``: the newest
    decision accepted.

    ``promoted``: the last term in which this node's broker got the order to become primary; ``process``: the process
    that was promoted, empty when it certainly is not primary. ``finished``: the last term in which this node's broker
    was primary, or could have become it, and never will be again. ``note``: the latest note that a primary requested.
    """

    promised: int = 0
    ballot: int = 0
    term: int = 0
    primary: str = ""
    promoted: int = 0
    process: str = ""
    finished: int = 0
    note: Note = Note()

    @property
    def decision(self) -> tuple[int, int]:
        """The sort key of decisions."""
        return self.ballot, self.term


class RecordStore:
    """The record on disk; ``record`` mirrors it."""

    def __init__(self, database: sqlite3.Connection) -> None:
        """Load the record; raises ConfigError when the database holds anything else."""
        self._database = database
        self.failure: sqlite3.Error | None = None
        """The reason why the disk can't be relied on any longer."""
        database.execute("CREATE TABLE IF NOT EXISTS record (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), "
                         "promised INTEGER, ballot INTEGER, term INTEGER, primary_node TEXT, promoted INTEGER, "
                         "process TEXT, finished INTEGER, note TEXT)")  # fmt: skip
        row = database.execute("SELECT promised, ballot, term, primary_node, promoted, process, finished, note "
                               "FROM record").fetchone()  # fmt: skip
        try:
            self.record = _read(row) if row is not None else ManagerRecord()
        except (ValueError, LinkError):
            raise ConfigError(f"data: the database {DATABASE} holds no manager's record; move it away, if the node "
                              "has no part in a running cluster") from None  # fmt: skip

    def save(self, record: ManagerRecord) -> None:
        """Store the record; it is on disk when this returns. Raises sqlite3.Error when the disk fails: then the manager
        must end.
        """
        if record == self.record:
            return
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("INSERT OR REPLACE INTO record VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)",
                                   (*record[:-1], json.dumps(record.note.encoded())))  # fmt: skip
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self.failure = error
            raise
        self.record = record


def _read(row: tuple[Any, ...]) -> ManagerRecord:
    if [type(value) for value in row] != [int, int, int, str, int, str, int, str]:
        raise ValueError("a value has another type")
    return ManagerRecord(*row)._replace(note=decoded_note(json.loads(row[-1])))
