"""The content of a replica's log, for the trace. A message may be in the log and confirmed, and never be applied; and
two replicas may have entries of different epochs at the same index."""

from __future__ import annotations

from nodes.reference.api import MessageNotes
from nodes.reference.designs.joram.decisions import MAX_MEMBERS, round_of
from nodes.reference.designs.joram.log import JoramLog, decode_command, is_command
from nodes.reference.engine.trace import LOG, LOGGED, STATE, TRUNCATED, name_of
from nodes.reference.replication.positions import LogId


class LogTrace:
    """An observer of a log; the creator must register it with the log."""

    def __init__(self, log: JoramLog, trace: MessageNotes) -> None:
        self._log, self._trace = log, trace
        self._names: dict[int, str] = {}
        """Index -> the message that the entry sends, for entries that were unapplied when the last one was added."""
        self._epoch: int | None = None
        """The epoch of the last entries, if it was traced."""

    def appended(self, index: int, epoch: int, entry: bytes) -> None:
        """Trace an entry that was added at the end."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._trace.entries(index, _text(epoch), "appended")
        for applied in [place for place in self._names if place <= self._log.applied]:
            del self._names[applied]  # applied entries are never truncated
        command = decode_command(entry) if is_command(entry) else None
        if command is not None and command.kind == "send":
            name = self._names[index] = name_of(command.args["headers"], command.args["body"])
            self._trace.note("put", LOG, name, f"{LOGGED} {index} {_text(epoch)}")

    def truncated(self, index: int) -> None:
        """Trace the removal of the entries from ``index`` on."""
        self._epoch = None
        self._trace.entries(index, "", TRUNCATED)
        for place in [place for place in self._names if place >= index]:
            self._trace.note("gone", LOG, self._names.pop(place), TRUNCATED)

    def replaced(self, at: LogId) -> None:
        """Trace that the log is empty, behind a state that contains everything up to ``at``."""
        self._epoch = None
        self._trace.entries(at.idx + 1, "", STATE)


def _text(epoch: int) -> str:
    """Format an epoch for the trace: its round, as shown to users, and its owner's place in the group's order."""
    return f"{round_of(epoch)}/{epoch % MAX_MEMBERS}"
