"""The harness's calls of the hooks of a system under test: start it, attach to it, leave it, with time limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from harness.backends.clock_machines import ClockBackend
from nodes.timeouts import within
from stormproof.apart import left_after
from stormproof.contracts.backend import DEAD, Backend
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
from stormproof.contracts.topology import Topology
from stormproof.errors import StormproofError, errors_of_others
from stormproof.test import Test
from stormproof.text import place_of, reason
from stormproof.timeout_scale import timeout_scale

logger = logging.getLogger("stormproof.runner")

T = TypeVar("T")

START_TIMEOUT = Option("start_timeout", 45.0, "seconds for a freshly started cluster to become healthy, and then for "
                       "its `prepare`", least=1)
"""An option of every test."""
ATTACHED_TIMEOUT, LEAVE_TIMEOUT = 10.0, 20.0
"""Seconds in which a system that ran before must become healthy, and in which it must delete the objects of the run."""
DEAD_POLL = 0.5
"""Seconds between tests for a broker that ended while it started."""


class SystemCalls:
    """Calls of the hooks of one run's cluster."""

    def __init__(self, test: Test, backend: Backend, topology: Topology, cluster: Cluster) -> None:
        self._test, self._backend, self._topology, self._cluster = test, backend, topology, cluster
        self._attached = False
        """Whether clients of this run have used a system that ran before. It may then hold objects of this run."""

    async def carry_out(self, what: str, work: Awaitable[T], limit: float | None = None) -> T:
        """Have the system do something, in ``limit`` seconds if that is given.

        A mistake in a hook of a plug-in ends the run with a line that names the place.
        """
        begun = asyncio.get_running_loop().time()
        try:
            if not self._backend.in_process:
                return await left_after(limit, work)
            async with within(limit):  # our own code, in the one loop
                return await work
        except StormproofError:
            raise
        except errors_of_others() as error:
            taken = asyncio.get_running_loop().time() - begun
            if isinstance(error, TimeoutError) and limit is not None and taken >= limit:  # otherwise a library's
                raise StormproofError(f"{self._test.system}: {what} took too long (it is given {limit:g} s)"
                                      ) from error
            logger.exception("%s: %s failed", self._test.system, what)
            why = f"{what} failed: {reason(error)} ({place_of(error)})"
            raise StormproofError(f"{self._test.system}: {why}") from error

    async def start(self, logs: Path) -> None:
        """Install and start the system, or attach to one that runs, and prepare it for clients. ``logs`` is the folder
        of its logs."""
        if self._cluster.attached:
            await self._attach()
            return
        await self.carry_out("installing it", self._cluster.install())
        await self.carry_out("starting it", self._cluster.start())
        limit = float(self._test.options.get(START_TIMEOUT.name, START_TIMEOUT.default)) * timeout_scale(self._backend)
        if not await self.comes_up(limit):
            raise StormproofError(
                f"the cluster did not come up (it is given {limit:g} s, see --set start_timeout): "
                f"{await self._cluster.describe()}; see {logs}"
            )
        if isinstance(self._backend, ClockBackend):
            await self._backend.check_clocks()
        await self.carry_out("preparing it", self._cluster.prepare(), limit)

    async def _attach(self) -> None:
        """Verify that a running system exists, and prepare it for clients."""
        statuses = await self._cluster.statuses()
        if not all(status.reachable for status in statuses):
            raise StormproofError(f"can't attach: {self.unsaid(await self._cluster.describe())}; "
                                  "nothing was done there")
        if not await self._cluster.await_healthy(ATTACHED_TIMEOUT):
            raise StormproofError("can't attach to it in its present state: "
                                  f"{self.unsaid(await self._cluster.describe())}; nothing was done there")
        self._attached = True
        await self.carry_out("preparing it", self._cluster.prepare(), float(START_TIMEOUT.default))

    async def comes_up(self, limit: float) -> bool:
        """Return whether the cluster becomes healthy. A broker that has ended will not, so waiting stops then."""
        healthy = asyncio.create_task(self._cluster.await_healthy(limit))
        try:
            while not healthy.done():
                await asyncio.wait({healthy}, timeout=DEAD_POLL)
                watched = [(machine, program) for machine in self._topology.machines
                           for program in self._cluster.programs(machine)
                           if not self._cluster.restarted(machine, program)]  # fmt: skip
                states = await asyncio.gather(*(self._backend.process(*place) for place in watched))
                if any(state.state == DEAD for state in states):
                    return False
            return bool(healthy.result())
        finally:
            healthy.cancel()

    async def leave(self) -> str | None:
        """Delete the objects of this run from a system that continues to run. Return what could not be deleted, or None
        if the run did not attach to one. No error here may hide how the run ended."""
        if not self._attached:
            return None
        try:
            left = await left_after(LEAVE_TIMEOUT, self._cluster.leave())
        except Exception as error:
            left = f"left there: {', '.join(sorted(self._cluster.own_names))} ({error or type(error).__name__})"
        return self.unsaid(left)

    def unsaid(self, text: str) -> str:
        """Return a text without the password, which libraries may put into their messages."""
        secret = self._cluster.credentials.passcode
        return text.replace(secret, "***") if secret else text
