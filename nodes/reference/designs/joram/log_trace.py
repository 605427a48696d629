"""What is in a replica's log, for the trace: a message may be there, confirmed, and never be applied; and two replicas
may have entries of different epochs in the same place."""

from __future__ import annotations

from nodes.reference.api import MessageNotes
from nodes.reference.designs.joram.decisions import MAX_MEMBERS, round_of
from nodes.reference.designs.joram.log import Log, decode_command, is_command
from nodes.reference.engine.trace import LOG, LOGGED, STATE, TRUNCATED, name_of
from nodes.reference.replication.positions import LogId


class LogTrace:
    """Watches a log; whoever makes it lets the log tell it."""

    def __init__(self, log: Log, trace: MessageNotes) -> None:
        self._log, self._trace = log, trace
        self._names: dict[int, str] = {}
        """Index -> the message that the entry sends; of entries that were not applied when the last one came."""
        self._epoch: int | None = None
        """That of the entries at the end, if the trace was told."""

    def appended(self, index: int, epoch: int, entry: bytes) -> None:
        """An entry was added at the end."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._trace.entries(index, _text(epoch), "appended")
        for applied in [place for place in self._names if place <= self._log.applied]:
            del self._names[applied]  # can't be removed any more
        command = decode_command(entry) if is_command(entry) else None
        if command is not None and command.kind == "send":
            name = self._names[index] = name_of(command.args["headers"], command.args["body"])
            self._trace.note("put", LOG, name, f"{LOGGED} {index} {_text(epoch)}")

    def truncated(self, index: int) -> None:
        """The entries from ``index`` on were removed."""
        self._epoch = None
        self._trace.entries(index, "", TRUNCATED)
        for place in [place for place in self._names if place >= index]:
            self._trace.note("gone", LOG, self._names.pop(place), TRUNCATED)

    def replaced(self, at: LogId) -> None:
        """The log is empty, behind a state that contains everything up to ``at``."""
        self._epoch = None
        self._trace.entries(at.idx + 1, "", STATE)


def _text(epoch: int) -> str:
    """An epoch as the trace has it: its round, which people see, and whose it is, by place in the group's order."""
    return f"{round_of(epoch)}/{epoch % MAX_MEMBERS}"
