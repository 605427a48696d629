"""The service scripts ``backup`` and ``primary``, by which any cluster resource manager runs brokers.

``python -m nodes.reference.designs.qpid.service backup|primary start|stop|status CONFIG.json`` [Interaction with
rgmanager]. ``backup`` is the broker as a process; ``primary`` is the role to which it is promoted. Exit statuses are
those of LSB's init scripts. Every action has a time limit, and a failure prints one line.

| | start | stop | status |
| --- | --- | --- | --- |
| 0 | it runs, and answers | it has ended, or did not run | it runs |
| 1 | it does not, or the broker refuses | its process does not end | |
| 2, 6 | wrong arguments, wrong configuration | the same | |
| 3 | | | it does not run |
| 4 | | | unknown: the broker hangs, or wrong arguments or configuration |
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nodes.reference.api import ConfigError
from nodes.reference.designs.qpid.control import Control, RequestDeclined, RequestUnanswered
from nodes.reference.designs.qpid.manager.processes import Processes, ProgramCommand
from nodes.reference.designs.qpid.manager.programs import BROKER, ProgramError
from nodes.reference.designs.qpid.service_config import ServiceConfig, read_service_config
from nodes.reference.designs.qpid.states import PRIMARY
from nodes.reference.designs.qpid.store_status import first_start

RUNS, FAILED, WRONG_USE, STOPPED, UNKNOWN, NOT_CONFIGURED = 0, 1, 2, 3, 4, 6
"""Exit statuses of LSB."""

ENDED = "QPID_ENDED"
"""Environment variable: the nodes that a manager has fenced, for which a new primary need not wait."""
ANSWER_SECONDS = 2.0
"""Time limit for a broker to report its status."""
START_SECONDS = 15.0
"""Time limit from the start of a broker to its first answer."""
STOP_SECONDS = 3.0
"""Time from SIGTERM to SIGKILL."""
PROMOTION_SECONDS = 5.0
_OTHERS_SECONDS = 1.0
"""Time limit for another node's broker to report its status: one that is cut off delays each promotion."""
GATHERING_SECONDS = 5.0
"""The time for which a promotion waits for brokers that do not answer, while it may be a first start."""
_TURN_SECONDS = 20.0
"""The time for which a script waits while another one changes things on this node."""
_STEP = 0.05

Status = dict[str, Any]


class ServiceError(Exception):
    """The request can't be carried out; the text is one line."""


class _Network:
    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(host, port)


class NodeServices:
    """Both services of one node; each method is an action of a script, and returns the exit status."""

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config
        self._processes = Processes({BROKER: ProgramCommand(config.command, config.pid_file, config.log)})
        self._control = self._control_of(config.broker)

    def _control_of(self, address: tuple[str, int]) -> Control:
        return Control(_Network(), address, self._config.login, self._config.passcode)

    # The broker as a process.

    async def start_backup(self) -> int:
        """Start the broker unless it runs already, in whatever state it is."""
        if not (await self._processes.state(BROKER)).running:
            await self._processes.start(BROKER)
        if await self._told(START_SECONDS) is None:
            raise ServiceError(f"the broker has ended: {self._last_words()}")
        return RUNS

    async def stop_backup(self) -> int:
        """Stop the broker."""
        await self._processes.stop(BROKER, STOP_SECONDS)
        return RUNS

    async def tell_backup(self) -> int:
        """Check whether the broker runs and answers."""
        return STOPPED if await self._told() is None else RUNS

    # The role.

    async def start_primary(self) -> int:
        """Promote this node's broker; refused if it may lack data, or another broker is primary."""
        status = await self._told()
        if status is None:
            raise ServiceError("the broker does not run: start the service backup first")
        if status["state"] == PRIMARY:
            return RUNS
        found = await self._gather(status)
        for name, other in found.items():
            if other is not None and other["state"] == PRIMARY:
                raise ServiceError(f"{name} is primary: it has to be stopped first")
        fresh = first_start(each and each["store"] for each in found.values())
        ended = [name for name in os.environ.get(ENDED, "").split() if name in self._config.brokers]
        request = {"op": "promote", "bootstrap": fresh, "ended": ended}
        await self._control.ask(request, PROMOTION_SECONDS)
        return RUNS

    async def stop_primary(self) -> int:
        """End the broker's role as primary: it ends and restarts as a backup, which finds its primary itself.

        A broker that does not answer may be primary, so it is ended, too.
        """
        try:
            status = await self._told()
        except RequestUnanswered:
            status = {"state": PRIMARY}
        if status is None or status["state"] != PRIMARY:
            return RUNS
        await self._processes.stop(BROKER, STOP_SECONDS)
        try:
            await self._processes.start(BROKER)
        except ProgramError as error:
            print(f"primary stop: it has ended, but {error}")  # the service backup will notice it
        return RUNS

    async def tell_primary(self) -> int:
        """Check whether this node's broker is primary."""
        status = await self._told()
        return RUNS if status is not None and status["state"] == PRIMARY else STOPPED

    # Statuses of brokers.

    async def _told(self, limit: float = 0.0) -> Status | None:
        """Return the broker's status; None if it does not run.

        Raises:
            Unanswered: it runs, but does not answer for ``limit`` seconds (default: ``ANSWER_SECONDS``).
        """
        limit = limit or ANSWER_SECONDS
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit
        while (await self._processes.state(BROKER)).running:
            left = deadline - loop.time()
            try:
                return _checked(await self._control.ask({"op": "status"}, max(_STEP, min(ANSWER_SECONDS, left))))
            except RequestUnanswered:
                if left <= _STEP:
                    raise
                # It may just have been started, and not listen yet.
            await asyncio.sleep(_STEP)
        return None

    async def _gather(self, own: Status) -> dict[str, Status | None]:
        """Return the statuses of all brokers; None for those that do not answer, for which a first start waits."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GATHERING_SECONDS
        others = {name: self._control_of(address) for name, address in self._config.brokers.items()
                  if name != self._config.node}  # fmt: skip
        try:
            while True:
                answers = await asyncio.gather(*map(_ask_status, others.values()))
                found = {self._config.node: own, **dict(zip(others, answers, strict=True))}
                known = [each["store"] for each in found.values() if each is not None]
                if own["eligible"] or not first_start(known) or None not in answers or loop.time() >= deadline:
                    return found
                await asyncio.sleep(_STEP)
        finally:
            for control in others.values():
                control.close()

    def _last_words(self) -> str:
        try:
            lines = Path(self._config.log).read_text(errors="replace").split("\n")
        except OSError as error:
            return str(error)
        return next((line.strip()[-300:] for line in reversed(lines) if line.strip()), "its log is empty")


async def _ask_status(control: Control) -> Status | None:
    try:
        return _checked(await control.ask({"op": "status"}, _OTHERS_SECONDS))
    except (RequestUnanswered, RequestDeclined):
        return None


def _checked(status: Status) -> Status:
    store = status.get("store")
    if not isinstance(store, dict) or not all(isinstance(store.get(name), str) for name in ("state", "uuid")):
        raise RequestUnanswered("it tells no status of a broker of this design")
    return {"state": str(status.get("state")), "eligible": status.get("eligible") is True, "store": store}


ACTIONS: dict[tuple[str, str], Callable[[NodeServices], Coroutine[Any, Any, int]]] = {
    ("backup", "start"): NodeServices.start_backup, ("backup", "stop"): NodeServices.stop_backup,
    ("backup", "status"): NodeServices.tell_backup, ("primary", "start"): NodeServices.start_primary,
    ("primary", "stop"): NodeServices.stop_primary, ("primary", "status"): NodeServices.tell_primary,
}  # fmt: skip


@asynccontextmanager
async def _turn(path: str) -> AsyncIterator[None]:
    """Let only one script at a time start or stop something on this node: the one that has locked the file."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _TURN_SECONDS
    with Path(path).open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if loop.time() >= deadline:
                    raise ServiceError(f"another script has been at work for {_TURN_SECONDS:g} s") from None
            await asyncio.sleep(_STEP)
        yield


async def _act(service: str, action: str, config: ServiceConfig) -> int:
    run = ACTIONS[service, action]
    if action == "status":
        return await run(NodeServices(config))
    async with _turn(f"{config.pid_file}.lock"):
        return await run(NodeServices(config))


def main(arguments: list[str]) -> int:
    """Run the action named by the arguments; return the exit status."""
    tells = arguments[1:2] == ["status"]
    if len(arguments) != 3 or (arguments[0], arguments[1]) not in ACTIONS:
        print("usage: python -m nodes.reference.designs.qpid.service backup|primary start|stop|status CONFIG.json")
        return UNKNOWN if tells else WRONG_USE
    service, action, path = arguments
    try:
        return asyncio.run(_act(service, action, read_service_config(path)))
    except ConfigError as error:
        why, status = str(error), UNKNOWN if tells else NOT_CONFIGURED
    except (ServiceError, ProgramError, RequestDeclined, OSError) as error:
        why, status = str(error), UNKNOWN if tells else FAILED
    except RequestUnanswered as error:
        why, status = f"the broker runs, but does not answer: {error}", UNKNOWN if tells else FAILED
    print(f"{service} {action}: {why}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
