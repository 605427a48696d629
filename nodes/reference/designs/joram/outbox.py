"""Effects that the master must not yet release to its clients."""

from __future__ import annotations

from collections import deque

from nodes.reference.api import Command, Done, Effect, Safe

MAX_AHEAD = 10_000
"""Entries that may be confirmed ahead of the other replicas; beyond this number, clients wait for the replicas."""


class Outbox:
    """Effects in two stages: those that wait for their entry to be committed, and those that may be released.

    With asynchronous propagation [2.2] the receipt of a message that was sent outside a transaction is the one effect
    that doesn't wait: its client keeps the message until it learns that it is safe. All other effects, deliveries above
    all, can't be taken back, so they wait for the other replicas.
    """

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, Effect]] = deque()
        self.ready: list[Effect] = []

    def __len__(self) -> int:
        return len(self.waiting) + len(self.ready)

    def __bool__(self) -> bool:
        return bool(self.ready)

    def add(self, effects: list[Effect]) -> None:
        """Add effects of committed entries."""
        self.ready += effects

    def add_ahead(self, index: int, command: Command, effects: list[Effect], early: bool) -> bool:
        """Add effects of a command that is not committed yet; return whether one of them waits for its commitment.

        ``early``: release the effects that may precede commitment.
        """
        plain_send = command.kind == "send" and command.args.get("tx") is None
        waits = False
        for effect in effects:
            if early and plain_send and isinstance(effect, Done):
                self.ready.append(effect)
            else:
                self.waiting.append((index, effect))
                waits = True
        if command.seq:
            self.waiting.append((index, Safe(command.conn, command.seq)))
        return waits

    def commit(self, index: int) -> None:
        """Release the effects up to a committed index; each client gets only the last of its sequence numbers that are
        safe now.
        """
        safe: dict[str, Safe] = {}
        while self.waiting and self.waiting[0][0] <= index:
            _, effect = self.waiting.popleft()
            if isinstance(effect, Safe):
                safe[effect.conn] = effect
            else:
                self.ready.append(effect)
        self.ready.extend(safe.values())

    def release(self) -> list[Effect]:
        """Remove and return all effects that may be released."""
        effects, self.ready = self.ready, []
        return effects

    def clear(self) -> None:
        """Drop all effects."""
        self.waiting.clear()
        self.ready.clear()
