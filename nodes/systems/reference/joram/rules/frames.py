"""The checker's own reader of the frames that matter to rules of HA Joram, and watchers of what they say.

Frames are compared with the rows that would survive a power loss, so a replica that is wrong about its own disk is
found out.
"""

from __future__ import annotations

import struct
from typing import Any

from nodes.reference.designs.joram.decisions import round_of
from nodes.reference.designs.joram.election import IDLE
from nodes.systems.reference.joram.probes import JoramObserved, JoramProbe
from nodes.systems.reference.wire_reader import Added, decoded
from stormproof.contracts.invariant import Watcher

_LOG_POSITION, _APPEND, _ACK, _REJECT, _PRE_VOTE_REQUEST = 1, 2, 3, 4, 5
_PREPARE_REPLY, _FETCH, _STATE_BEGIN, _STATE_END = 8, 9, 10, 12
"""The first bytes of frames, which distinguish their kinds."""
_LAYOUTS = {_ACK: struct.Struct(">Bqqd"), _PREPARE_REPLY: struct.Struct(">Bqqqqq")}
_EPOCH = struct.Struct(">Bq")
"""The beginning of a frame that belongs to an epoch."""
_APPEND_HEAD = struct.Struct(">Bqqqqd")
_SIZES = {_LOG_POSITION: 41, _REJECT: 9, _PRE_VOTE_REQUEST: 10, _FETCH: 41, _STATE_BEGIN: 9}
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


def _code(frame: Any) -> int:
    """Return a frame's first byte; -1: it is not a message between replicas."""
    if type(frame) is not bytes or not frame:
        return -1
    return int(frame[0]) if len(frame) == _SIZES.get(frame[0], len(frame)) else -1


class _OfPrograms(Watcher):
    """Tracks the running programs, whose facts a frame is compared with."""

    def __init__(self) -> None:
        self._programs: dict[str, JoramProbe] = {}

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Note the program."""
        self._programs[node] = program
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended replica."""
        self._programs.pop(node, None)


class StartsWithEnough(_OfPrograms):
    """Tracks the peers from which each replica has heard since its start, and those replicas that have led or followed
    since then."""

    fields = ("leads", "follows", "phase")

    def __init__(self) -> None:
        super().__init__()
        self._heard: dict[str, set[str]] = {}
        self._began: set[str] = set()

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Note that the peer hears the replica."""
        if peer in self._programs and peer not in self._began:
            self._heard.setdefault(peer, set()).add(node)
        return ""

    def look(self, node: str, program: JoramProbe, now: JoramObserved, before: JoramObserved | None) -> str:
        """Check that a replica that was no part of the group since its start stands only once enough have joined."""
        super().look(node, program, now, before)
        if now.leads or now.follows:
            self._began.add(node)
        if now.phase == IDLE or node in self._began:
            return ""
        joined, needed = 1 + len(self._heard.get(node, ())), program.starts_with(now.last > 0)
        return f"it stands with {joined} replicas, and {needed} must have joined" if joined < needed else ""

    def ended(self, node: str) -> None:
        """Forget the ended replica's life."""
        super().ended(node)
        self._heard.pop(node, None)
        self._began.discard(node)


class StatesAsSet(_OfPrograms):
    """Tracks the whole states that are being sent: the epoch, and the sender's last applied entry at the beginning."""

    fields = ("leads",)

    def __init__(self) -> None:
        super().__init__()
        self._sent: dict[tuple[str, str], tuple[int, int]] = {}

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check that a state that is sent in two steps is followed by entries, and that a held-back one is the state of
        the moment at which it began."""
        code = _code(frame)
        if code in (_LOG_POSITION, _FETCH):
            self._sent.pop((peer, node), None)  # another transfer may begin
        if code not in (_STATE_BEGIN, _APPEND, _STATE_END) or (program := self._programs.get(node)) is None:
            return ""
        if code == _STATE_BEGIN:
            self._sent[node, peer] = int(_EPOCH.unpack_from(frame)[1]), program.step
        elif code == _STATE_END:
            epoch, began = self._sent.pop((node, peer), (0, 0))
            of, upto, *_ = decoded(frame[1:])
            if program.transfer_form == "held-back" and of == epoch and upto != began:
                return f"it sends {peer} the state at entry {upto}, and it began to send that at entry {began}"
        elif (len(frame) > _APPEND_HEAD.size and program.transfer_form == "two-step"
              and _EPOCH.unpack_from(frame)[1] == self._sent.get((node, peer), (0, 0))[0]):  # fmt: skip
            return f"it sends {peer} entries before the end of the state, which is sent in two steps"
        return ""

    def ended(self, node: str) -> None:
        """Forget the states that the ended replica was sending or receiving."""
        super().ended(node)
        self._sent = {ends: state for ends, state in self._sent.items() if node not in ends}


class OldClaimsAreRejected(Watcher):
    """Tracks, for each replica, its promise at the last check, the heartbeats that it knew then, and to whom it has
    sent a rejection since."""

    period = 0.1

    def __init__(self) -> None:
        self._promised: dict[str, int] = {}
        self._heard: dict[str, dict[str, tuple[float, int]]] = {}
        self._rejected: dict[str, set[str]] = {}

    def inspect(self, node: str, program: JoramProbe) -> str:
        """Check that a peer that has claimed to be master of an older epoch was sent a rejection."""
        if program.failed:
            return ""
        promised, known = self._promised.get(node, 0), self._heard.get(node, {})
        rejected = self._rejected.pop(node, ())
        self._promised[node], heard = program.log.promised, program.claims()
        self._heard[node] = heard
        for peer, (sent, claim) in heard.items():
            if 0 < claim < promised and known.get(peer) != (sent, claim) and peer not in rejected:
                return (f"{peer} claims to be master in epoch {round_of(claim)}, and is not told of epoch "
                        f"{round_of(promised)}, which was promised")  # fmt: skip
        return ""

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Note a rejection."""
        if _code(frame) == _REJECT:
            self._rejected.setdefault(node, set()).add(peer)
        return ""

    def ended(self, node: str) -> None:
        """Forget the ended replica."""
        for known in (self._promised, self._heard, self._rejected):
            known.pop(node, None)


class AsksForNewerEpoch(_OfPrograms):
    """Stateless check of frames."""

    fields = ("phase",)

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check that the epoch that a candidate asks for is newer than all promises in the heartbeats of its peers."""
        if _code(frame) != _PRE_VOTE_REQUEST or (program := self._programs.get(node)) is None:
            return ""
        epoch = int(_EPOCH.unpack_from(frame)[1])
        told = [(promised, name) for name, promised in program.promises_heard().items() if promised >= epoch]
        if not told:
            return ""
        return f"it asks {peer} for epoch {round_of(epoch)}, and {told[0][1]} has told it of {round_of(told[0][0])}"


class AddedIsListed(_OfPrograms):
    """Stateless check of frames."""

    fields = ("leads",)

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check that a replica is in the group, or learns its log, when an administrator gets its receipt."""
        if type(frame) is not Added or (program := self._programs.get(node)) is None or not program.leads_in:
            return ""
        known = {*program.group, *program.status()["learners"]}
        if frame.name in known:
            return ""
        return f"it confirms that {frame.name} is added, and knows {','.join(sorted(known))}"
