"""Destinations that a broker must take for what they are, and refuse where its design does not have them."""

from __future__ import annotations

from collections.abc import Sequence

from nodes.reference.server import frames
from nodes.reference.server.frames import FrameError
from nodes.stomp import Frame

_REQUEST = {"x-request": "list"}
_CASES: Sequence[tuple[str, str, bool, bool, str]] = (
    *(("SEND", "/queue/q", manager, secured, "send") for manager in (True, False) for secured in (True, False)),
    *(("SEND", destination, True, False, "request") for destination in ("/management", "/topic-manager")),
    ("SEND", "/exchange/e/k", True, False, "send"), ("SEND", "/security", False, True, "security"),
    *(("SEND", destination, False, True, "")
      for destination in ("/management", "/topic-manager", "/exchange/e/k", "/queue/", "/none")),
    ("SEND", "/security", True, False, ""), ("SEND", "/security", False, False, ""),
    *(("SUBSCRIBE", destination, True, True, "")
      for destination in ("/management", "/topic-manager", "/exchange/e/k", "/security")),
    ("SUBSCRIBE", "/queue/q", True, True, "subscribe"),
)  # fmt: skip
"""Command, destination, whether the design takes requests, whether there are requests about security; and the kind of
the broker's command, empty for a refusal."""


def misread() -> str:
    """Describe a destination that is taken for another, or refused or taken wrongly; empty if there is none."""
    for command, destination, manager, secured, kind in _CASES:
        frame = Frame(command, {"id": "1", "destination": destination, **_REQUEST}, b"{}")
        try:
            found = frames.command_of(frame, "c", False, manager, secured).kind
        except FrameError:
            found = ""
        if found != kind:
            return (f"{command} to {destination} is {found or 'refused'}, and should be {kind or 'refused'}, by a "
                    f"design {'with' if manager else 'without'} requests")  # fmt: skip
    return ""
