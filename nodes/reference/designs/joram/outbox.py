"""What the master has to tell its clients and must not tell yet."""

from __future__ import annotations

from collections import deque

from nodes.reference.api import Command, Done, Effect, Safe

MAX_AHEAD = 10_000
"""Entries that may be confirmed ahead of the other replicas; beyond, clients wait for these."""


class Outbox:
    """Effects in two stages: those that wait for their entry to be committed, and those that may go out.

    With asynchronous propagation [2.2] the receipt of a message that was sent, outside a transaction, is the one
    effect that doesn't wait: its client keeps the message until it hears that it is safe. Whatever else a client is
    told, deliveries above all, can't be taken back, so it waits for the other replicas.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Effect]] = deque()
        self._ready: list[Effect] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._ready)

    def __bool__(self) -> bool:
        return bool(self._ready)

    def add(self, effects: list[Effect]) -> None:
        """Effects of what is committed."""
        self._ready += effects

    def add_ahead(self, index: int, command: Command, effects: list[Effect], early: bool) -> bool:
        """Effects of a command that is not committed yet; whether one of them waits for that.

        ``early``: what may be told before, is.
        """
        plain_send = command.kind == "send" and command.args.get("tx") is None
        waits = False
        for effect in effects:
            if early and plain_send and isinstance(effect, Done):
                self._ready.append(effect)
            else:
                self._waiting.append((index, effect))
                waits = True
        if command.seq:
            self._waiting.append((index, Safe(command.conn, command.seq)))
        return waits

    def commit(self, index: int) -> None:
        """Everything up to an index is committed; of the numbers that are safe now, each client is told the last."""
        safe: dict[str, Safe] = {}
        while self._waiting and self._waiting[0][0] <= index:
            _, effect = self._waiting.popleft()
            if isinstance(effect, Safe):
                safe[effect.conn] = effect
            else:
                self._ready.append(effect)
        self._ready.extend(safe.values())

    def first(self, committed: int) -> int | None:
        """The entry of the first effect that may go out, now that so much is committed; 0 for one that is ready, None
        where there is none."""
        if self._ready:
            return 0
        return self._waiting[0][0] if self._waiting and self._waiting[0][0] <= committed else None

    def release(self) -> list[Effect]:
        """All that may go out, which is then no longer here."""
        effects, self._ready = self._ready, []
        return effects

    def clear(self) -> None:
        """Nobody is told anything."""
        self._waiting.clear()
        self._ready.clear()
