"""Which messages are in a replica's log, for the trace: a message may be there, confirmed, and never be applied."""

from __future__ import annotations

from nodes.reference.api import MessageNotes
from nodes.reference.designs.joram.log import Log, decode_command, is_command
from nodes.reference.engine.trace import LOG, LOGGED, TRUNCATED, name_of


class LogTrace:
    """Watches a log; whoever makes it lets the log tell it."""

    def __init__(self, log: Log, trace: MessageNotes) -> None:
        self._log, self._trace = log, trace
        self._names: dict[int, str] = {}
        """Index -> the message that the entry sends; of entries that were not applied when the last one came."""

    def appended(self, index: int, entry: bytes) -> None:
        """An entry was added at the end."""
        for applied in [place for place in self._names if place <= self._log.applied]:
            del self._names[applied]  # can't be removed any more
        command = decode_command(entry) if is_command(entry) else None
        if command is not None and command.kind == "send":
            name = self._names[index] = name_of(command.args["headers"], command.args["body"])
            self._trace.note("put", LOG, name, LOGGED)

    def truncated(self, index: int) -> None:
        """The entries from ``index`` on were removed."""
        for place in [place for place in self._names if place >= index]:
            self._trace.note("gone", LOG, self._names.pop(place), TRUNCATED)
