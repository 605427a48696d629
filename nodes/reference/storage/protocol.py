"""The protocol between a broker and the storage service, on a connection that begins as a link does.

Requests are lists: a number that the reply repeats, the name of the request, and its arguments.

* ``claim EPOCH``: from now on only this epoch may write. Answer: ``ok APPLIED``. A repeated claim by the same holder
  changes nothing, so a holder whose reply was lost claims again; a claim also shows that the holder is alive.
* ``commit EPOCH SEQUENCE CHANGES``: write all changes or none, durably; only on the connection of the last claim,
  so that no request of an earlier connection can follow it. ``SEQUENCE`` counts an epoch's commits from 1.
  A commit that was applied before is answered ``ok`` again, one that leaves a gap is refused (``order``). Therefore
  commits may be sent without waiting for each other. ``CHANGES`` is a list of ``[table, [row...], [removed key...]]``.
* ``read EPOCH TABLE AFTER``: rows whose keys are above ``AFTER`` (None: all), as many as fit. Answer: ``ok ROWS MORE``.
* ``state``: the current epoch and its holder. Answer: ``ok EPOCH HOLDER APPLIED IDLE``.

Other answers: ``fenced EPOCH`` (another epoch holds the store), ``order APPLIED``, ``refused REASON``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

PROTOCOL = "stormproof-storage/1"
SERVICE = "storage"
"""The service's name in the handshake."""
PAGE_BYTES = 1 << 20

Row = Sequence[Any]
"""``(key, column...)``."""


class TableChange(NamedTuple):
    """A change of one table: rows, each replacing the one with its key, and the keys of removed rows."""

    table: str
    rows: Sequence[Row]
    removed: Sequence[int]


class StoreState(NamedTuple):
    """The current epoch and its holder, the number of its applied commits, and the seconds since the holder was
    heard."""

    epoch: int
    holder: str
    applied: int
    idle: float


class StorageError(Exception):
    """The service did not carry out a request; the text is one line."""


class StorageUnavailableError(StorageError):
    """No answer in time, or no connection: the request may or may not have been carried out."""


class FencedError(StorageError):
    """Another epoch holds the store, so nothing was done."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"epoch {epoch} holds the store")
        self.epoch = epoch


class OutOfOrderError(StorageError):
    """Commits before this one are missing, so nothing was done."""

    def __init__(self, applied: int) -> None:
        super().__init__(f"the store has the commits up to {applied}")
        self.applied = applied


class StoreDamagedError(StorageError):
    """The contents of the store are not a valid state of a broker; the text gives the error."""


class MalformedRequestError(StorageError):
    """A request that breaks the protocol."""



def changes_of(value: Any) -> list[TableChange]:
    """Return the changes of a decoded request.

    Raises:
        MalformedRequestError: it holds something else.
    """
    if not isinstance(value, list) or not all(map(_is_change, value)):
        raise MalformedRequestError("changes are malformed")
    return [TableChange(*each) for each in value]


def _is_change(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[0], str):
        return False
    _, rows, removed = value
    return (
        isinstance(rows, list) and isinstance(removed, list) and all(_is_key(key) for key in removed)
        and all(isinstance(row, list) and row and _is_key(row[0]) for row in rows)
    )


def _is_key(value: Any) -> bool:
    return type(value) is int
