"""What a replica must offer so that its log can be fed to others, and from others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from nodes.reference.api import Broker, Runtime
from nodes.reference.replication.links import Links
from nodes.reference.replication.messages import FeedMessage
from nodes.reference.replication.positions import LogId, Position
from nodes.reference.replication.transfer import Marks


class ReplicatedLog(Protocol):
    """Numbered entries, each of an epoch; ``base`` is the last one that was dropped, ``applied`` the last applied.

    ``whole``: it has all that this replica may ever have acknowledged.
    """

    base: int
    applied: int
    whole: bool

    @property
    def last(self) -> int:
        """Index of the last entry."""
        ...

    @property
    def has_unwritten(self) -> bool:
        """Whether entries have not been written to disk."""
        ...

    def epoch_at(self, index: int) -> int | None:
        """Epoch of the entry at an index; None when there is none, or it was dropped."""
        ...

    def id_at(self, index: int) -> LogId:
        """The id of the entry at an index that the log holds."""
        ...

    def position(self) -> Position:
        """How far this replica is."""
        ...

    def read(self, start: int, limit: int) -> list[tuple[int, bytes]]:
        """(epoch, entry) from ``start`` on, at least one if there is one, up to ``limit`` bytes in all."""
        ...

    def append(self, epoch: int, entry: bytes) -> int:
        """Add an entry at the end; returns its index."""
        ...

    def truncate(self, index: int) -> None:
        """Remove the entries from ``index`` on."""

    def compact(self, keep: int, keep_bytes: int, hold: int) -> bool:
        """Drop the oldest applied entries that need not be kept; True if some were dropped."""
        ...

    def view_at(self, index: int) -> list[str]:
        """The members of the view at an entry."""
        ...

    def group_at(self, index: int) -> list[list[Any]]:
        """Who belonged to the group at an entry."""
        ...


class ReplicationOptions(Protocol):
    """How a log is fed; times are in seconds, ``joram.options`` says what each means."""

    @property
    def detection_timeout(self) -> float: ...
    @property
    def log_keep(self) -> int: ...
    @property
    def log_keep_bytes(self) -> int: ...
    @property
    def send_window(self) -> int: ...
    @property
    def transfer(self) -> str: ...
    @property
    def transfer_chunk(self) -> int: ...
    @property
    def max_state(self) -> int: ...


class Replica(Protocol):
    """One replica of a group: its log, its links, and how entries reach the engine."""

    broker: Broker
    runtime: Runtime
    bugs: frozenset[str]
    links: Links
    marks: Marks
    committed: int

    @property
    def options(self) -> ReplicationOptions:
        """How the log is fed."""
        ...

    @property
    def log(self) -> ReplicatedLog:
        """The entries."""
        ...

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def encode(self, message: FeedMessage) -> bytes:
        """The link frame of a message."""
        ...

    def check_entry(self, index: int, entry: bytes) -> None:
        """Raises LinkError when an entry that a peer has sent for this index is none."""

    def check_group(self, view: Sequence[Any], group: Sequence[Any]) -> None:
        """Raises LinkError when these, which a peer has sent, are no view or no group."""

    def send(self, peer: str, message: FeedMessage) -> None:
        """Send to a peer; lost when there is no link."""

    def advance(self, committed: int) -> list[Any]:
        """Apply the entries up to ``committed``; their effects."""
        ...

    def persist(self) -> None:
        """Commit the log and what has been applied to disk."""

    def progress(self) -> Callable[[], None]:
        """To be called now and then during work that keeps the event loop from running."""
        ...

    def load(self, rows: Iterable[list[Any]], at: LogId, view: Sequence[str], group: Sequence[Sequence[Any]]) -> None:
        """Replace the state by a dump that contains every entry up to ``at``, in one transaction."""
