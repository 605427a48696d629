"""A broker that is full: it refuses what would take more messages, queues or prepared branches than it may have.

Others use it as well, so nobody can tell when it is; but whoever has alone as much as all may have knows that it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from workloads.reference.broker_model import BrokerModel, Limits

_USUAL = Limits()
"""As much as no run comes to."""
_IS_FULL = re.compile("the broker already (has|holds) its limit of")


class Full(Exception):
    """The broker has as much as it may have: the command has no effect, and the connection ends."""


def takes_room(command: str, headers: Mapping[str, str]) -> bool:
    """Whether a broker that is full may refuse such a command. It always ends what is prepared."""
    return command in ("SEND", "SUBSCRIBE", "PREPARE") or (command == "COMMIT" and "transaction" in headers)


class Room:
    """What a broker of these limits has room for."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.small = (limits.max_messages < _USUAL.max_messages or limits.max_queues < _USUAL.max_queues
                      or limits.max_prepared < _USUAL.max_prepared)
        """Whether it may be full in this run."""

    def lacks(self, command: str, headers: Mapping[str, str], reason: str) -> bool:
        """Whether it is for want of room that the command was refused, and may have been."""
        return self.small and takes_room(command, headers) and _IS_FULL.search(reason) is not None

    def taken(self, model: BrokerModel, command: str, headers: Mapping[str, str]) -> bool:
        """Whether one client has all that a command needs, so that the broker has to refuse it."""
        if command == "PREPARE":
            return len(model.prepared) >= self._limits.max_prepared
        return (command == "SEND" and "transaction" not in headers and headers["destination"].startswith("/queue/")
                and model.messages() >= self._limits.max_messages)  # fmt: skip
