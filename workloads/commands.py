"""Workload ``commands``: test templates of the user's, whose commands run in the containers of a Compose project.

docs/compose-commands.md says which command runs when.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.commands import TEST_COMMANDS, RunsCommands
from stormproof.contracts.option import Option
from stormproof.contracts.workload import Workload
from stormproof.errors import UsageError
from stormproof.generator import Generator, lift, on_threads, once
from stormproof.operation import INVOKE, Op
from stormproof.test import Test
from stormproof.vocabulary import COMMANDS
from workloads.command_client import CommandClient, Stage
from workloads.command_schedule import Plan, first_command, load, plan_of
from workloads.sdk_assertions import SdkReader
from workloads.test_templates import EVENTUALLY, FINALLY, chosen_template, templates_in

ANY = "any"
POLL_SECONDS = 0.2
"""The interval between two readings of the SDK's output: a program that starts again may begin its file again."""
_HANG_SECONDS = 60.0

logger = logging.getLogger("stormproof.runner")


class CommandsWorkload(Workload):
    """The commands of one test template a run."""

    name = "commands"
    needs = ("commands",)
    subject = COMMANDS
    options = (
        Option("parallel", 4, "number of `parallel_driver_` commands at once, at most", least=1, load=True),
        Option("template", "", "test template to run; empty: drawn from the seed"),
        Option("ending", ANY, "command at the end, without faults: `eventually_`, `finally_`, or drawn from the seed",
               (ANY, EVENTUALLY, FINALLY)),
        Option("start_rate", 4.0, "commands that are started a second, at most", least=0.01),
        Option("command_limit", 60.0, "seconds for each command without faults, and for drivers that still run when "
               "the load ends before `finally_`", least=0.1),
        Option("setup_timeout", 30.0, "seconds to wait until a container says `setup_complete` (Antithesis's SDK); "
               "after that, or with 0, commands begin as soon as all services are healthy"),
        Option("min_ok", 1, "driver or anytime commands that succeed, below which the verdict is unknown"),
    )
    guarantees: tuple[str, ...] = ("commands", "assertions")

    def __init__(self) -> None:
        self._stage: Stage | None = None
        self._plan: Plan | None = None
        self._template = ""
        self._began_by = ""
        self._ending, self._missed = "", ""
        self._machines: RunsCommands | None = None
        self._reader = SdkReader()
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of threads: for drivers, one for anytime commands, and one for the other commands.

        Raises:
            UsageError: no service with test commands is named.
        """
        if not options.get(TEST_COMMANDS):
            raise UsageError("--workload commands: say where the commands are: --compose FILE --test-commands SERVICE")
        return int(options["parallel"]) + 2

    @classmethod
    def gates(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the coverage gates."""
        return {"commands": max(1, options["min_ok"]), "faults_confirmed": True}

    @classmethod
    def hang_seconds(cls, test: Test) -> float:
        """Return a time beyond all limits of a command."""
        return 4 * test.time_limit + 2 * float(test.options["command_limit"]) + _HANG_SECONDS

    async def survey(self, cluster: Cluster) -> None:
        """Wait until the setup is complete, find all commands, and draw those of this run.

        Raises:
            UsageError: there are none, or they can't be run.
        """
        machines, test = cluster.backend, cluster.test
        if not isinstance(machines, RunsCommands):
            raise UsageError(f"--backend {test.backend}: its machines have no test commands; use --compose FILE")
        self._machines = machines
        await self._await_setup(float(test.options["setup_timeout"]))
        self._reading = asyncio.create_task(self._read_on(), name="sdk-output")
        found = [(machine, folder, await machines.list_files(machine, folder))
                 for machine, folder in machines.command_folders()]  # fmt: skip
        rng, ending = test.rng("template"), str(test.options["ending"])
        commands = chosen_template(templates_in(found), str(test.options["template"]), rng.randrange(1 << 30),
                                   " or ".join(f"{folder} of {machine}" for machine, folder, _ in found))
        self._template = commands[0].template
        self._plan = plan_of(commands, "" if ending == ANY else ending, rng)
        if ending != ANY and not self._plan.ending:
            raise UsageError(f"--set ending={ending}: test template {self._template} has no {ending}_ command")
        self._stage = Stage(machines, commands, float(test.options["command_limit"]))

    async def _await_setup(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        self._read()
        while not self._reader.setup and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(POLL_SECONDS)
            self._read()
        self._began_by = f"setup_complete from {self._reader.setup}" if self._reader.setup else "health"
        if not self._reader.setup and seconds:
            logger.warning("no container said setup_complete within %g s; all services are healthy, so commands begin",
                           seconds)

    async def _read_on(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self._read()

    def _read(self) -> None:
        assert self._machines is not None
        with contextlib.suppress(OSError):
            for service, line in self._machines.sdk_output():
                self._reader.take(service, line)

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread."""
        assert self._stage is not None
        return CommandClient(self._stage)

    def before_load(self, test: Test) -> Generator:
        """Run one `first_` command, if the template has any."""
        assert self._plan is not None
        return first_command(self._plan, test.concurrency - 1)

    def main(self, test: Test) -> Generator:
        """Run drivers and anytime commands for the test's time; before `eventually_`, end those that still run."""
        assert self._plan is not None
        patience = 0.0 if self._plan.ending == EVENTUALLY else float(test.options["command_limit"])
        starts = min(test.rate, float(test.options["start_rate"]))
        return load(self._plan, test, int(test.options["parallel"]), starts, patience)

    def drain(self, test: Test) -> Generator:
        """Run one `eventually_` or `finally_` command; `finally_` only if every command ran to its end."""
        assert self._plan is not None and self._stage is not None
        ending, (eventually, final) = self._plan.ending, self._plan.endings
        if ending == FINALLY and self._stage.incomplete:
            told = f"{self._stage.incomplete} commands did not run to their end"
            named = test.options["ending"] == FINALLY
            ending, self._missed = (EVENTUALLY, "") if eventually and not named else ("", told)
        self._ending = ending
        if not ending:
            return lift(None)
        key = (eventually if ending == EVENTUALLY else final)[0]
        return on_threads([test.concurrency - 1], once(Op(INVOKE, ending, None, key)))

    def facts(self) -> dict[str, Any]:
        """Return the template, its commands, and the SDK's assertions."""
        if self._reading is not None:
            self._reading.cancel()
        if self._machines is not None:
            self._read()
        found: dict[str, Any] = {"assertions": self._reader.found(), "sdk_left_out": self._reader.left_out,
                                 "sdk_unreadable": self._reader.unreadable}  # fmt: skip
        if self._stage is not None:
            commands = self._stage.commands
            found["names"] = [command.label for command in commands]
            found["commands"] = {"template": self._template, "began_by": self._began_by, "ending": self._ending,
                                 "missed": self._missed,
                                 "machines": [command.machine for command in commands]}  # fmt: skip
        return found
