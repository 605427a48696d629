"""The checker's own reader of the frames that matter to rules of HA Joram, and watchers of what they say.

Frames are compared with the rows that would survive a power loss, so a replica that is wrong about its own disk is
found out.
"""

from __future__ import annotations

import struct
from typing import Any

from nodes.reference.designs.joram.decisions import round_of
from stormproof.contracts.invariant import Watcher

_ACK, _PREPARE_REPLY = 3, 8
"""The first bytes of frames: an acknowledgement, and a promise to a candidate."""
_LAYOUTS = {_ACK: struct.Struct(">Bqqd"), _PREPARE_REPLY: struct.Struct(">Bqqqqq")}
_ACKS_A_CHECK = 64
"""One of this number of acknowledgements is checked: each check takes a copy of the disk."""
_BASE, _PROMISED = 0, 2
"""Rows of ``joram_meta``: the index of the last dropped entry, and the promise."""


def _read(frame: Any, code: int) -> tuple[Any, ...] | None:
    layout = _LAYOUTS[code]
    return layout.unpack(frame) if type(frame) is bytes and frame[:1] == bytes([code]) and len(frame) == layout.size \
        else None


def epoch_promised(frame: Any) -> int:
    """Return the epoch that a frame promises to a candidate; 0: it is another frame."""
    found = _read(frame, _PREPARE_REPLY)
    return int(found[1]) if found is not None else 0


class SaysWhatIsOnDisk(Watcher):
    """Counts the acknowledgements of each replica."""

    def __init__(self) -> None:
        self._acks: dict[str, int] = {}

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check that a promise that is sent, and an entry that is acknowledged, would survive a power loss."""
        if type(frame) is not bytes or frame[0] not in _LAYOUTS:
            return ""
        if epoch := epoch_promised(frame):
            kept = int(self._meta(node).get(_PROMISED, 0))
            if kept < epoch:
                return f"it promises epoch {round_of(epoch)} to {peer}, and its disk holds {round_of(kept)}"
        if (ack := _read(frame, _ACK)) is None:
            return ""
        match = int(ack[2])
        count = self._acks[node] = self._acks.get(node, 0) + 1
        if count % _ACKS_A_CHECK:
            return ""
        stored = [int(index) for index, *_ in self.outside.durable(node).rows("joram_log")]
        last = max([int(self._meta(node).get(_BASE, 0)), *stored])
        return f"it acknowledges entry {match} to {peer}, and its disk ends at entry {last}" if last < match else ""

    def _meta(self, node: str) -> dict[int, Any]:
        return dict(self.outside.durable(node).rows("joram_meta"))
