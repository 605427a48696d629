"""A full broker: it refuses commands that would exceed its limit of messages, queues or prepared branches.

Other clients use the broker as well, so a client cannot know in general whether it is full. But a client whose own
messages reach the limit knows that it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from workloads.reference.broker_model import BrokerModel, ClientLimits

_USUAL = ClientLimits()
"""Limits that no run reaches."""
_IS_FULL = re.compile("the broker already (has|holds) its limit of")


class BrokerFull(Exception):
    """The broker has reached a limit: the command has no effect, and the connection ends."""


def needs_capacity(command: str, headers: Mapping[str, str]) -> bool:
    """Return whether a full broker may refuse such a command. It never refuses to end a prepared branch."""
    return command in ("SEND", "SUBSCRIBE", "PREPARE") or (command == "COMMIT" and "transaction" in headers)


class Capacity:
    """The room that a broker with these limits has."""

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self.small = (limits.max_messages < _USUAL.max_messages or limits.max_queues < _USUAL.max_queues
                      or limits.max_prepared < _USUAL.max_prepared)
        """True if the broker may be full in this run."""

    def lacks(self, command: str, headers: Mapping[str, str], reason: str) -> bool:
        """Return whether the command was refused for lack of room, and may have been."""
        return self.small and needs_capacity(command, headers) and _IS_FULL.search(reason) is not None

    def taken(self, model: BrokerModel, command: str, headers: Mapping[str, str]) -> bool:
        """Return whether one client alone reaches the limit that a command needs, so that the broker has to refuse
        it."""
        if command == "PREPARE":
            return len(model.prepared) >= self._limits.max_prepared
        return (command == "SEND" and "transaction" not in headers and headers["destination"].startswith("/queue/")
                and model.messages() >= self._limits.max_messages)  # fmt: skip
