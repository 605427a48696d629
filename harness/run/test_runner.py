"""The child process of a run: nodes, clients and nemesis, from provisioning to tear-down.

``harness.run.lifecycle`` starts it as ``python -m harness.run.test_runner RUN_DIR [PLUGINS]``. It reports on standard
output, one JSON object per line, and takes orders from its standard input. ``teardown`` ends a finished run. ``keep``
leaves its nodes running until a person removes them (``harness.run.kept_nodes``). ``interrupt`` or end of file ends the
run early. In all cases faults are healed and the history is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.analysis.coverage import read_coverage, read_role_changes
from harness.backends.catalog import BACKENDS
from harness.run.child import run_child
from harness.run.control_channel import ControlChannel, Interrupted, tell_parent
from harness.run.costs import CostWatch, costs_summary, interval_of
from harness.run.deployment import cluster_of, leave_connections, topology_of
from harness.run.interpreter import Interpreter, LoadProgress, RunClock
from harness.run.kept_nodes import KeptNodes
from harness.run.leaders import watch_leaders
from harness.run.resting_state import holdings, resting_state
from harness.run.settings import SETTLE_TIMEOUT
from harness.run.stall_detector import watch_for_standstills
from harness.run.system_calls import SystemCalls
from harness.run.troubles import Troubles
from nemesis.compose import NemesisClient
from nemesis.families import supported_families
from nemesis.schedule import count_faults, fault_generator, lasting
from nodes.systems.catalog import SYSTEMS
from stormproof.client_log import ClientLog
from stormproof.contracts.backend import Disturbed, Holding, KeepsSetup, Metered
from stormproof.contracts.bounds import KEEPS_ROLES
from stormproof.contracts.client import AcknowledgingUnseen, Client, DeadLettering, Prefetching
from stormproof.errors import StormproofError
from stormproof.generator import any_of
from stormproof.generator.basic import NOTHING, lift
from stormproof.generator.core import SECOND
from stormproof.history.journal import JournalWriter
from stormproof.history.ledger import LedgerLine, Repair, Standstill, ledger_sha256
from stormproof.history.seal import drop_journal, seal
from stormproof.run_folder import CLIENT_LOG, COSTS, JOURNAL, LEADERS, LEDGER, LOGS, read_run, update_run
from stormproof.test import Test
from stormproof.text import amount, elapsed
from stormproof.timeout_scale import timeout_scale
from stormproof.unnamed_takes import DELIVERY_LIMIT, live
from workloads.catalog import WORKLOADS

logger = logging.getLogger("stormproof.runner")

Emit = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Environment:
    """The surroundings of a test runner: the function for its events, the clients' password, the time of day, the
    journal."""

    emit: Emit
    passcode: str
    time_of_day: Callable[[], datetime]
    make_journal: Callable[[Path, str], JournalWriter]
    can_stand_still: bool = False
    """Whether time continues when the harness stands still."""

    @classmethod
    def real(cls) -> Environment:
        """Return the environment of a child process."""
        return cls(tell_parent, secrets.token_hex(16), lambda: datetime.now(UTC), JournalWriter, True)


class TestRunner:
    """One run of one test."""

    __test__ = False  # not a pytest class

    def __init__(self, run_dir: Path, control: ControlChannel, environment: Environment) -> None:
        self.run_dir = run_dir
        self._emit = environment.emit
        self._can_stand_still = environment.can_stand_still
        self.test = Test.from_json(read_run(run_dir)["test"])
        self.control = control
        self.workload = WORKLOADS.load(self.test.workload)()
        self.workload.run_dir = run_dir
        self.backend = BACKENDS.load(self.test.backend)()
        self.system = SYSTEMS.load(self.test.system)
        self.topology = topology_of(self.test)
        self.cluster = cluster_of(self.test, self.backend, environment.passcode)
        self.cluster.tell_client_line = ClientLog(run_dir / CLIENT_LOG)
        self.calls = SystemCalls(self.test, self.backend, self.topology, self.cluster)
        self.apart = None if self.backend.in_process else leave_connections(self.cluster)
        families = supported_families(self.backend, self.test, self.topology, self.system)
        self.faults, self.families = fault_generator(self.test, families), families
        self.planned = count_faults(self.test, families)
        self.clock = RunClock()
        # Node logs have times of day: this relates them to the history.
        update_run(run_dir, clock_zero=environment.time_of_day().isoformat(), faults_planned=self.planned)
        self.journal = environment.make_journal(run_dir / JOURNAL, run_dir.name)
        self.nemesis = NemesisClient(self.test, self.cluster, run_dir, self.clock, families, on_line=self._fault)
        self.troubles = Troubles(lambda text: self._tell("warning", text=text))
        self.interpreter = Interpreter(
            self.test, self._client, self.nemesis, self.journal, clock=self.clock, on_progress=self._progress,
            on_abandoned=self.troubles.abandoned, on_completion=self.troubles.ended,
            hang_limit=self.workload.hang_seconds(self.test),
        )  # fmt: skip
        self.loaded = False
        """Whether the load has begun, and no repair of the system is under way."""
        self.phases: list[dict[str, Any]] = []
        self.recovery: dict[str, Any] | None = None
        self.repair_errors: list[str] = []
        self._over = False
        """Whether ``end_as_it_is`` has ended the run."""
        self._sealed = False
        """Whether the whole run is recorded."""

    async def run(self) -> None:
        """Provision, record, seal, wait for the parent's check, tear down.

        Raises:
            StormproofError: the run broke; the history so far is sealed.
            Interrupted: the parent ended it; the history so far is sealed, too.
        """
        try:
            try:
                await self.control.unless_interrupted(self._record())
            except BaseException as error:
                if not self._over:
                    await self._give_up(str(error) or "the harness ended before the test did")
                if isinstance(error, StormproofError):
                    self._tell("broken", message=str(error))
                    await self.control.unless_interrupted(self._await_teardown())
                    await self._keep()
                raise
            await self._collect_logs()
            self._seal("recorded")
            self._sealed = True
            self._tell("sealed")
            await self.control.unless_interrupted(self._await_teardown())
            await self._keep()
        finally:
            self._tell("phase", name="teardown")
            left = await self.calls.leave()
            if left:
                self._tell("warning", text=left)
            if left is not None:
                with contextlib.suppress(StormproofError):
                    update_run(self.run_dir, left=left)
            await self.backend.release()
            if self.apart is not None:
                self.apart.close()

    async def _await_teardown(self) -> None:
        await self.control.teardown.wait()
        if self._sealed and self.backend.in_process:
            await self.cluster.stop()  # which rules observe

    async def _keep(self) -> None:
        """Leave the nodes to a person, if the parent requested it."""
        if self.control.keep:
            await KeptNodes(self.cluster, self.run_dir).serve(lambda: self._tell("kept"))

    async def _record(self) -> None:
        await self._phase("provision", self.backend.provision(self.test, self.topology, self.run_dir))
        async with self._costs_watched():
            await self._watched()

    @contextlib.asynccontextmanager
    async def _costs_watched(self) -> AsyncIterator[None]:
        """Record the resource usage of the machines during the block, if it can be measured and is wanted."""
        interval = interval_of(self.test)
        if not interval or not self._can_stand_still or not isinstance(self.backend, Metered):
            yield
            return
        costs = CostWatch(self.backend, self.clock, self.run_dir / COSTS, interval)
        costs.start(self.topology.machines)
        try:
            yield
        finally:
            await costs.close()
            if costs.troubles:
                machine, reason = next(iter(costs.troubles.items()))
                whose = f"what {machine} uses was not measured all the time" if machine else "no costs are noted"
                self._tell("warning", text=f"{whose}: {reason}")

    async def _watched(self) -> None:
        await self._phase("start", self.calls.start(self.run_dir / LOGS))
        watches: list[asyncio.Task[None]] = []
        if self._can_stand_still:  # in simulated time both would be steps of the run
            leaders = watch_leaders(self.cluster, self.clock, self.run_dir / LEADERS)
            watches = [
                asyncio.create_task(watch_for_standstills(self.clock, self._stood_still), name="standstills"),
                asyncio.create_task(leaders, name="leaders"),
            ]
        try:
            await self._load_and_drain()
        finally:
            for watch in watches:
                watch.cancel()
        await self.nemesis.close()

    async def _load_and_drain(self) -> None:
        test, workload = self.test, self.workload
        await workload.survey(self.cluster)
        if isinstance(self.backend, KeepsSetup):
            await self.backend.load_begins(test.options)
        if (first := workload.before_load(test)) is not NOTHING:
            await self._phase("first", self._interpret(first))
        main = any_of(lasting(test, self.families, lift(workload.main(test))), self.faults)
        update_run(self.run_dir, unnamed_takes=self._unnamed_takes())
        if limit := self._delivery_limit():
            update_run(self.run_dir, **{DELIVERY_LIMIT: limit})
        if isinstance(self.backend, Disturbed):
            self.backend.told_of_faults(self._disturbed)
        self.loaded = True
        if isinstance(self.backend, Holding):
            update_run(self.run_dir, rest_before=holdings(self.backend, self.topology))
        await self._phase("main", self._attended(self._interpret(main)))
        if left_out := self.planned - self.nemesis.begun_before(self.planned):
            why = "what is late must still last and be over with the load; a longer --time-limit helps"
            self._tell("warning", text=f"{left_out} of {amount(self.planned, 'planned fault')} had no time: {why}")
        await self._phase("heal", self._heal())
        self.loaded = False
        await self._phase("repair", self._repair())
        self.loaded = True
        await self._phase("settle", self._settle())
        await self._phase("drain", self._interpret(workload.drain(test)))
        await self.interpreter.close()
        await self._phase("depth", self._interpret(workload.depth(test)))
        await self.interpreter.close()
        if self._delivery_limit() and not self.cluster.attached:
            await self._phase("dead-letters", self._interpret(workload.dead_letters(test)))
            await self.interpreter.close()
        if isinstance(self.backend, Holding):
            timeouts = self.system.drawing.timeouts
            update_run(self.run_dir, **await resting_state(test, self.backend, self.topology, self.cluster, timeouts,
                                                           self.clock))  # fmt: skip

    def _unnamed_takes(self) -> dict[str, dict[str, int | None]]:
        """Return the number of messages that a take of this run's clients may have received without naming them."""
        connection = self.cluster.queue_connection()
        if connection is None:
            return live(self.workload.prefetch(self.test.options))
        return live(connection.prefetch if isinstance(connection, Prefetching) else None,
                    isinstance(connection, AcknowledgingUnseen) and connection.acknowledges_unseen)  # fmt: skip

    def _delivery_limit(self) -> str:
        """Return the statement by which the system drops messages after a number of deliveries; empty: none."""
        connection = self.cluster.queue_connection()
        return str(connection.delivery_limit) if isinstance(connection, DeadLettering) else ""

    def _disturbed(self) -> tuple[bool, int]:
        """Return whether a fault is active or a repair is under way, and the number of such steps so far."""
        disturbed, steps = self.nemesis.disturbed()
        return disturbed or not self.loaded, steps

    async def _phase(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        start = self.clock()
        self._tell("phase", name=name, time=start)
        try:
            await work
        finally:
            self.phases.append({"name": name, "start": start, "end": self.clock()})

    async def _interpret(self, generator: Any) -> None:
        if not await self.interpreter.run(generator):
            raise Interrupted

    async def _attended(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work while an operator is on call."""
        on_call = asyncio.create_task(self.calls.carry_out("attending to it", self.cluster.attend(self._repaired)))
        try:
            await work
        finally:
            on_call.cancel()
            try:
                await on_call
            except asyncio.CancelledError:
                pass
            except StormproofError as error:
                self._repair_failed(str(error))

    async def _heal(self) -> None:
        """Undo all faults, and wait for health."""
        await self.nemesis.heal_all()
        self.recovery = await self._health()
        if not self.recovery["healthy"]:
            self._tell("warning", text=f"not healthy within {self.recovery['bound']:g} s of the last heal: "
                                       f"{self.recovery['state']}")  # fmt: skip

    async def _health(self) -> dict[str, Any]:
        """Wait within the time limit until the cluster is healthy. Return whether it is, and if not, the state of its
        nodes."""
        bound, start = float(self.test.options[SETTLE_TIMEOUT.name]) * timeout_scale(self.backend), self.clock()
        healthy, unsure, state = False, True, ""
        try:  # a mistake in a hook of a plug-in must not cost the run its verdict
            healthy = await self.cluster.await_healthy(bound)
            unsure = bool(self.cluster.unsure)
            state = "" if healthy else self.calls.unsaid(await self.cluster.describe())
        except Exception as error:
            logger.exception("%s: looking at it failed", self.test.system)
            state = f"looking at it failed: {type(error).__name__}: {error}"
        return {"healthy": healthy, "seconds": (self.clock() - start) / SECOND, "bound": bound, "state": state,
                **({"unsure": True} if unsure else {})}  # fmt: skip

    async def _repair(self) -> None:
        """Repair the cluster as an operator would, by the system's own manual, and test whether it is healthy then."""
        assert self.recovery is not None
        start, done = self.clock(), ""
        if self.cluster.helped_since is not None:  # that help made it healthy
            start -= round((asyncio.get_running_loop().time() - self.cluster.helped_since) * SECOND)
        limit = float(self.test.options[SETTLE_TIMEOUT.name]) * timeout_scale(self.backend)
        try:
            done = await self.calls.carry_out("repairing it", self.cluster.repair(), limit)
        except StormproofError as error:
            self._repair_failed(str(error))
        if done:
            self._repaired(done, start)
        if self.repair_errors:
            self.recovery["repair_errors"] = self.repair_errors
        if not self.recovery["healthy"] or self.repair_errors or (done and not self.backend.in_process):
            self.recovery["after_repair"] = after = await self._health()
            if not after["healthy"]:
                self._tell("warning", text=f"not healthy within {after['bound']:g} s of the repair: {after['state']}")

    def _repair_failed(self, error: str) -> None:
        """Record that a repair failed. The run continues without it."""
        self.repair_errors.append(self.calls.unsaid(error))
        self._tell("warning", text=f"the repair failed: {self.repair_errors[-1]}")

    def _repaired(self, done: str, start: int | None = None) -> None:
        """Record and report a repair by an operator, which began at ``start``."""
        now = self.clock()
        self.nemesis.repaired(Repair(done, now if start is None else start, now))
        self._tell("fault", time=now, text=f"repair: {done}")

    async def _settle(self) -> None:
        """Let the connections that clients abandoned expire, and let clients make their confirmed operations safe."""
        await asyncio.sleep(self.cluster.linger + 1)
        bound = float(self.test.options[SETTLE_TIMEOUT.name])
        if not await self.interpreter.flush(bound):
            self._tell("warning", text=f"some clients could not settle what was confirmed to them within {bound:g} s")

    async def _give_up(self, reason: str) -> None:
        """Heal and keep the records. No error here may hide the reason for giving up."""
        try:
            update_run(self.run_dir, failure=reason)
        except StormproofError as error:
            logger.warning("the reason is not noted: %s", error)
        for step in (self.nemesis.heal_all(), self.interpreter.close(), self.nemesis.close()):
            try:
                await step
            except (StormproofError, OSError, TimeoutError) as error:
                self._tell("warning", text=f"while giving up: {error}")
        await self._collect_logs()
        try:
            self._seal("broken")
        except StormproofError as error:
            # For example on a full disk. The parent tries again, and later `stormproof recover`.
            logger.warning("not sealed: %s", error)

    def end_as_it_is(self, reason: str) -> None:
        """Keep the records of a run that can do nothing further, because its simulated world stands still."""
        self._over = True
        if self._sealed:
            update_run(self.run_dir, failure=reason, status="broken")
            return
        update_run(self.run_dir, failure=reason)
        at_once(self._collect_logs())
        self._seal("broken")

    def _seal(self, status: str) -> None:
        self.journal.close()
        sealed = seal(self.run_dir)
        digests = {"history_sha256": sealed.sha256, "history_file_sha256": sealed.file_sha256,
                   "ledger_sha256": ledger_sha256(self.run_dir / LEDGER)}  # fmt: skip
        coverage = read_coverage(self.system, self.run_dir)
        info, found = read_run(self.run_dir), dict[str, Any]()
        if KEEPS_ROLES in (info.get("bounds") or {}):
            found["role_changes"] = read_role_changes(self.system, self.run_dir, info.get("clock_zero"))
        if (costs := costs_summary(self.run_dir, {**info, "phases": self.phases})) is not None:
            found["costs"] = costs
        found |= {"status": status, "phases": self.phases, "recovery": self.recovery, "coverage": coverage,
                  "surface": self._used(), **self.workload.facts(), **self.troubles.found(), **digests}  # fmt: skip
        update_run(self.run_dir, **found)
        drop_journal(self.run_dir)

    def _used(self) -> dict[str, int]:
        """Return the features that clients have used: items that they counted themselves, and operations by
        function."""
        done = {f"f:{name}": count for name, count in self.interpreter.done.items()}
        return dict(sorted({**self.workload.used(), **done}.items()))

    def _client(self, thread: int, process: int, host: str) -> Client:
        return self.workload.client(self.cluster, thread, host)

    async def _collect_logs(self) -> None:
        try:
            await self.cluster.collect_logs(self.run_dir / LOGS)
        except (StormproofError, OSError) as error:
            self._tell("warning", text=f"the nodes' logs could not be fetched: {error}")

    def _progress(self, progress: LoadProgress) -> None:
        self._tell("progress", **progress.__dict__)

    def _fault(self, line: LedgerLine) -> None:
        """Report a step of a fault to observers of the run."""
        done = {"inject": "injected", "heal": "healed"}[line.phase]
        whom = f" {', '.join(line.targets)}" if line.targets else ""
        trouble = f": {line.error}" if line.error else ""
        self._tell("fault", time=line.time, text=f"{line.fault} {line.kind}{whom} {done}{trouble}")

    def _stood_still(self, standstill: Standstill) -> None:
        """Record a standstill in the ledger for the checks, and report it."""
        text = f"the harness itself stood still for {elapsed(standstill.seconds)}"
        try:
            self.nemesis.stood_still(standstill)
        except StormproofError as error:
            logger.warning("%s, which is not noted: %s", text, error)
        self._tell("warning", text=text)

    def _tell(self, event: str, **fields: Any) -> None:
        self._emit({"event": event, **fields})


def at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing, without a turning loop. If it waits nevertheless, close it at that
    point."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    logger.warning("%s had to wait", work)


async def run(run_dir: Path, control: ControlChannel) -> None:
    """Run the test of a run's folder; raises as ``TestRunner.run``."""
    await TestRunner(run_dir, control, Environment.real()).run()


if __name__ == "__main__":
    run_child(run)
