"""The interface of a replica whose log can be fed to others, and from others."""

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

    ``whole``: the log has every entry that this replica may ever have acknowledged.
    """

    base: int
    applied: int
    whole: bool

    @property
    def last(self) -> int:
        """The index of the last entry."""
        ...

    @property
    def has_unwritten(self) -> bool:
        """Whether entries have not been written to disk."""
        ...

    def epoch_at(self, index: int) -> int | None:
        """Return the epoch of the entry at an index; None when there is none, or it was dropped."""
        ...

    def id_at(self, index: int) -> LogId:
        """Return the id of the entry at an index that the log holds."""
        ...

    def position(self) -> Position:
        """Return the extent of this replica's log."""
        ...

    def read(self, start: int, limit: int) -> list[tuple[int, bytes]]:
        """Return (epoch, entry) from ``start`` on, at least one if there is one, up to ``limit`` bytes in all."""
        ...

    def append(self, epoch: int, entry: bytes) -> int:
        """Append an entry; return its index."""
        ...

    def truncate(self, index: int) -> None:
        """Remove the entries from ``index`` on."""

    def compact(self, keep: int, keep_bytes: int, hold: int) -> None:
        """Drop the oldest applied entries that need not be kept."""
        ...

    def view_at(self, index: int) -> list[str]:
        """Return the members of the view at an entry."""
        ...

    def group_at(self, index: int) -> list[list[Any]]:
        """Return the members of the group at an entry."""
        ...


class ReplicationOptions(Protocol):
    """Options for feeding a log; times are in seconds, ``joram.options`` explains each."""

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
    """One replica of a group: its log, its links, and the path of entries to the engine."""

    broker: Broker
    runtime: Runtime
    links: Links
    marks: Marks
    committed: int

    @property
    def options(self) -> ReplicationOptions:
        """The options for feeding the log."""
        ...

    @property
    def log(self) -> ReplicatedLog:
        """The log's entries."""
        ...

    def now(self) -> float:
        """Return monotonic seconds."""
        ...

    def encode(self, message: FeedMessage) -> bytes:
        """Return the link frame of a message."""
        ...

    def check_entry(self, index: int, entry: bytes) -> None:
        """Raise LinkError when an entry that a peer has sent for this index is invalid."""

    def check_group(self, view: Sequence[Any], group: Sequence[Any]) -> None:
        """Raise LinkError when a view or a group that a peer has sent is invalid."""

    def send(self, peer: str, message: FeedMessage) -> None:
        """Send to a peer; the message is lost when there is no link."""

    def advance(self, committed: int) -> list[Any]:
        """Apply the entries up to ``committed``; return their effects."""
        ...

    def persist(self) -> None:
        """Commit the log and the applied changes to disk."""

    def progress(self) -> Callable[[], None]:
        """Return a function to be called periodically during work that blocks the event loop."""
        ...

    def load(self, rows: Iterable[list[Any]], at: LogId, view: Sequence[str], group: Sequence[Sequence[Any]]) -> None:
        """Replace the state by a dump that contains every entry up to ``at``, in one transaction."""
