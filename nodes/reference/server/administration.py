"""The requests of an administrator's connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from nodes import stomp
from nodes.reference.api import ConfigError
from nodes.reference.server import frames
from nodes.reference.server.frames import FrameError
from nodes.reference.server.output_buffer import OutputBuffer
from nodes.stomp import Frame


class AdministrationHost(Protocol):
    """The broker, as an administrator uses it."""

    def time_of_day(self) -> float:
        """Return seconds since 1970 by the node's clock, which may be wrong."""
        ...

    def status(self) -> dict[str, Any]:
        """Return the broker's status."""
        ...

    def add_replica(self, name: str, link: tuple[str, int], client: str) -> None:
        """Add a replica to the group; raises ConfigError when the design can't."""

    def administer(self, request: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], None]) -> None:
        """Pass an administrator's request to the design; ``answer`` is called with the result."""


class AdministratorRequests:
    """Answers an administrator's frames on ``output``."""

    def __init__(self, host: AdministrationHost, output: OutputBuffer) -> None:
        self._host, self._output = host, output

    def handle(self, frame: Frame) -> bool:
        """Carry out a frame; return whether it is the last one.

        Raises:
            FrameError: an administrator may not send it, or the request is refused.
        """
        destination = frame.headers.get("destination") if frame.command == "SEND" else None
        if destination == frames.ADMIN_STATUS:
            self._tell(frames.ADMIN_STATUS, self._host.status())
        elif destination == frames.ADMIN_TIME:
            self._tell(frames.ADMIN_TIME, {"time": self._host.time_of_day()})
        elif destination == frames.ADMIN_DESIGN:
            self._host.administer(frames.design_request(frame), self._answer)
        elif destination == frames.ADMIN_ADD_REPLICA:
            try:
                self._host.add_replica(*frames.new_replica(frame))
            except ConfigError as error:
                raise FrameError(str(error)) from error
        elif frame.command != "DISCONNECT":
            raise FrameError(
                f"an administrator may SEND to {frames.ADMIN_STATUS}, {frames.ADMIN_TIME}, {frames.ADMIN_DESIGN} and "
                f"{frames.ADMIN_ADD_REPLICA}, and DISCONNECT")
        asked = frame.headers.get("receipt")
        if asked is not None:
            self._output.add(frames.receipt(asked))
        return frame.command == "DISCONNECT"

    def _tell(self, destination: str, content: Mapping[str, Any]) -> None:
        headers = {"subscription": "admin", "message-id": "status", "destination": destination,
                   "content-type": "application/json"}
        self._output.add(stomp.encode(Frame("MESSAGE", headers, json.dumps(content).encode())))

    def _answer(self, answer: Mapping[str, Any]) -> None:
        if not self._output.is_over:
            self._tell(frames.ADMIN_DESIGN, answer)
            self._output.flush()
