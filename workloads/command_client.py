"""The client of workload ``commands``: it executes a test command in its container and waits for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stormproof.contracts.commands import NotStarted, RunsCommands
from stormproof.errors import BackendError
from stormproof.operation import Op
from stormproof.text import printable, words_of
from workloads.command_schedule import END_COMMANDS
from workloads.test_templates import ANYTIME, DRIVERS, Command

EXIT_STATUS = "exit status"
"""The beginning of the error of a command that ended by itself with a status other than 0."""
MACHINE_ENDED = "its container ended"
"""Text in the error of a command whose container ended while it ran."""
ENDED_BY_TEST = "ended by the test"
"""The beginning of the error of a command that the test ended."""
NOT_STARTED = "not started"
"""The beginning of the error of a command that could not be started."""
_TAIL_CHARACTERS = 420
"""The end of the output in an error, which is cut to ``LONGEST_REASON`` characters as a whole."""
_LEAVE_SECONDS = 5.0
"""The time for a command to end after SIGKILL."""


class Stage:
    """The commands of a run, and the state of those that were started.

    ``over`` ends the drivers and anytime commands that run. ``incomplete`` counts the commands that did not run to
    their end.
    """

    def __init__(self, machines: RunsCommands, commands: Sequence[Command], limit: float) -> None:
        self.machines, self.commands, self.limit = machines, commands, limit
        self.over = asyncio.Event()
        self.incomplete = 0


class CommandClient:
    """One thread of commands."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def open(self) -> None:
        """Do nothing: a command needs no connection."""

    async def close(self) -> None:
        """Do nothing: a command needs no connection."""

    async def invoke(self, op: Op) -> Op:
        """Execute the command with number ``op.key``, or end all that run.

        The completion's value is the exit status. It is *ok* for 0, *fail* for any other status and for a command that
        did not start, and *info* for a command that did not run to its end.
        """
        stage = self._stage
        if op.f == END_COMMANDS:
            stage.over.set()
            return op.ok()
        command = stage.commands[op.key or 0]
        return (await self._carried_out(op, command))._replace(node=command.machine)

    async def _carried_out(self, op: Op, command: Command) -> Op:
        stage, under_load = self._stage, op.f in (*DRIVERS, ANYTIME)
        running = asyncio.ensure_future(stage.machines.execute(command.machine, command.path, {}))
        over = asyncio.ensure_future(stage.over.wait() if under_load else asyncio.sleep(stage.limit))
        try:
            await asyncio.wait({running, over}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                stage.incomplete += 1
                running.cancel()
                await asyncio.wait({running}, timeout=_LEAVE_SECONDS)
                why = "" if under_load else f" after {stage.limit:g} s (--set command_limit)"
                return op.info(f"{ENDED_BY_TEST}{why}")
            end = running.result()
        except NotStarted as error:
            return op.fail(f"{NOT_STARTED}: {words_of(error)}")
        except BackendError as error:
            stage.incomplete += 1
            return op.info(words_of(error))
        finally:
            over.cancel()
            if not running.done():  # the run is interrupted
                stage.incomplete += 1
                running.cancel()
        if not end.status:
            return op.ok(0)
        ended = f", and {MACHINE_ENDED}" if end.machine_ended else ""
        text = printable(" ".join(end.output.split())[-_TAIL_CHARACTERS:])
        error_text = f"{EXIT_STATUS} {end.status}{ended}" + (f": {text}" if text else "")
        if end.machine_ended:
            stage.incomplete += 1
            return op.info(error_text, end.status)
        return op.fail(error_text)._replace(value=end.status)
