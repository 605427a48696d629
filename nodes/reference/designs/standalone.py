"""The design without replication: one node, which always serves."""

from __future__ import annotations

import asyncio
from typing import Any

from nodes.reference.api import Admission, Broker, Command, Effect


class Standalone:
    """Group commit: all waiting commands share one transaction and one disk sync."""

    has_topic_manager = False
    has_services = True

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.commands: list[Command] = []
        self.done = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to serve."""
        self._task = self.broker.runtime.spawn(self._run(), "commit")
        self.broker.began_serving()
        # The commands that this start causes are finished before the first client can connect.
        while self.commands:
            self._commit()

    async def stop(self) -> None:
        """Commit the waiting commands, and end."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            self._commit()

    def admission(self) -> Admission:
        """Admit every client."""
        return Admission(True)

    def submit(self, command: Command) -> None:
        """Queue a command; it is committed together with all others that arrive in this turn of the event loop."""
        self.commands.append(command)
        self._wake.set()

    def status(self) -> dict[str, Any]:
        """Return the status: a master in a view of one node."""
        return {"role": "master", "serving": True, "epoch": 0, "view": [self.broker.config.node]}

    @property
    def unwoken(self) -> bool:
        """Tell whether commands wait, and nothing wakes up who carries them out."""
        return bool(self.commands) and not self._wake.is_set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._commit()

    def _commit(self) -> None:
        commands, self.commands = self.commands, []
        if not commands:
            return
        self.done += len(commands)
        effects: list[Effect] = []
        with self.broker.transaction():
            for command in commands:
                effects.extend(self.broker.engine.apply(command))
        self.broker.release(effects)
