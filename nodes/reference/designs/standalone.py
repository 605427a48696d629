"""The design without replication: one node, which always serves."""

from __future__ import annotations

import asyncio
from typing import Any

from nodes.reference.api import Admission, Broker, Command, Effect, Pending


class Standalone:
    """Group commit: all waiting commands share one transaction and one disk sync."""

    has_topic_manager = False
    has_services = True

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._commands: list[Command] = []
        self._done = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to serve."""
        self._task = self._broker.runtime.spawn(self._run(), "commit")
        self._broker.began_serving()
        # The commands that this start causes are finished before the first client can connect.
        while self._commands:
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
        self._commands.append(command)
        self._wake.set()

    def observed(self) -> tuple[()]:
        """Return nothing: no invariant observes this design."""
        return ()

    def pending(self) -> Pending:
        """Return pending work: clients' waits and uncommitted commands, identified by the number of commands done
        before.
        """
        if self._broker.stopping:
            return {}
        waiting = {"uncommitted": [self._done]} if self._commands else {}
        return {**self._broker.pending(), **waiting}

    def miscounted(self) -> str:
        """Describe the first wrong counter; empty if all are right."""
        return self._broker.miscounted()

    def unlike_store(self) -> str:
        """Describe a difference between memory and store; empty if there is none."""
        return self._broker.unlike_store()

    def status(self) -> dict[str, Any]:
        """Return the status: a master in a view of one node."""
        return {"role": "master", "serving": True, "epoch": 0, "view": [self._broker.config.node]}

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._commit()

    def _commit(self) -> None:
        commands, self._commands = self._commands, []
        if not commands:
            return
        self._done += len(commands)
        effects: list[Effect] = []
        with self._broker.transaction():
            for command in commands:
                effects.extend(self._broker.engine.apply(command))
        self._broker.release(effects)
