"""What breaks the invariants about what clients and operators see of a broker: frames, and its orderly end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from harness.run.cases import Case
from nodes.reference.server import frames
from nodes.reference.server.listeners import Listeners

Break = Callable[[pytest.MonkeyPatch], None]
_CASE = Case("joram", "queue", "stop,kill", 3, 15.0, 30.0, {"min_ok": "5"})


def _still_listens(patch: pytest.MonkeyPatch) -> None:
    """A broker that is asked to stop does not close its listeners."""
    patch.setattr(Listeners, "close", lambda self: None)


def _no_master(patch: pytest.MonkeyPatch) -> None:
    """A refused client is not told who the master is."""
    told = frames.error

    def instead(reason: str, headers: Mapping[str, str]) -> bytes:
        return told(reason, {name: text for name, text in headers.items() if name != "x-master"})

    patch.setattr(frames, "error", instead)


SURFACE_BREAKS: dict[str, tuple[Case, Break]] = {
    "stops-in-order": (_CASE, _still_listens),
    "tells-clients": (replace(_CASE, nemesis="kill"), _no_master),
}
"""Name of an invariant -> the case in which it is broken, and what breaks it."""
