"""`stormproof systems` and `stormproof systems check` from the outside."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.api import plan
from harness.backends.attach import credentials_from_environment, read_places
from harness.backends.catalog import BACKENDS
from harness.backends.cleanup import cleanup
from harness.cli.output import print_answer, teller
from harness.contract.core import FAILED, OK, SKIPPED, ItemOutcome
from harness.run import plugins
from harness.run.describe import create_run
from harness.run.fetch_progress import bring_broker
from harness.run.lifecycle import RunnerProcess
from nodes.systems.catalog import SYSTEMS
from stormproof.clients.exec import PREFIX
from stormproof.contracts.protocol_client import Access
from stormproof.errors import UsageError
from stormproof.resource_log import OwnFolder, note_owner
from stormproof.run_folder import RunLock
from stormproof.text import amount
from workloads.catalog import WORKLOADS

SUITE = "harness.contract.suite"
CONNECT_SECONDS = 3.0
"""Time in which a broker must accept a connection: longer than a lost packet takes to be sent again."""
_FIRST = ("queue", "register", "events", "log", "topic", "subscriptions")
"""Workloads for which a system may be set up; the first that fits is used."""


def systems() -> list[dict[str, Any]]:
    """Return every known system, with the features that it provides."""
    plugins.load_installed()
    found = []
    for entry in SYSTEMS:
        system = SYSTEMS.load(entry.name)
        found.append({"name": entry.name, "summary": entry.summary, "provides": sorted(system.provides),
                      "nodes": [system.min_nodes, system.max_nodes], "packages": list(system.packages),
                      "simulated": system.simulated})  # fmt: skip
    return found


def check_system(system: str, workload: str | None, backend: str | None, nodes: int | None,
                 settings: Mapping[str, str], as_json: bool) -> int:  # fmt: skip
    """Test a system against the contract's items, and print the outcome of each. Return the exit status.

    Raises:
        UsageError: the system does not exist, or it refuses the settings.
        StormproofError: no machines can be created.
    """
    name = plugins.resolve(plugins.SYSTEM, system)
    work = plugins.resolve(plugins.WORKLOAD, workload) if workload else _workload_for(name)
    test, why = plan(system=name, workload=work, nemesis="none", backend=backend, nodes=nodes, time_limit=10,
                     rate=10, seed=1, settings=settings)  # fmt: skip
    if BACKENDS.load(test.backend).in_process:
        raise UsageError(f"--backend {test.backend}: real processes are checked; choose local or docker")
    outcomes: list[ItemOutcome] = []
    tell = teller(as_json)
    tell(f"{name}, {amount(test.nodes, 'node')}, backend {test.backend}: {why}")
    bring_broker(test, as_json)

    def show(outcome: ItemOutcome) -> None:
        outcomes.append(outcome)
        tell("\n".join(lines(outcome)))

    folder = OwnFolder.temporary("check")
    try:
        run_dir = create_run(test, why, folder.path / "store")
        _run(test, run_dir, show)
    finally:
        folder.remove()
    about = {"system": name, "backend": test.backend, "nodes": test.nodes}
    return _summed_up(name, outcomes, about, as_json)


def check_client(command: str, broker: str | None, as_json: bool) -> int:
    """Test whether a client program keeps the protocol, and print the outcome of each item. Return the exit status.

    Raises:
        UsageError: the program does not exist, or ``broker`` is not one HOST:PORT where a broker accepts connections.
    """
    from harness.contract.program_check import check_program

    place = _broker_place(broker) if broker is not None else None
    outcomes: list[ItemOutcome] = []
    tell = teller(as_json)

    def show(outcome: ItemOutcome) -> None:
        outcomes.append(outcome)
        tell("\n".join(lines(outcome)))

    command = command.removeprefix(PREFIX)
    asyncio.run(check_program(command, place, Access(credentials_from_environment()), show))
    return _summed_up(command, outcomes, {"client": command}, as_json)


def _broker_place(broker: str) -> tuple[str, int]:
    """Return the host and the port of a broker that accepts connections. Raises UsageError if there is none."""
    first, *others = read_places(broker, "--broker")
    if others:
        raise UsageError(f"--broker {broker}: name one broker")
    try:
        socket.create_connection(first, CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--broker {broker}: no broker accepts connections there: {why}") from None
    return first


def _summed_up(name: str, outcomes: list[ItemOutcome], about: Mapping[str, Any], as_json: bool) -> int:
    """Print the numbers of outcomes, and return the exit status."""
    count = {status: sum(each.status == status for each in outcomes) for status in (OK, FAILED, SKIPPED)}
    status = 1 if count[FAILED] else 0
    sentence = f"{name}: {count[OK]} ok, {count[FAILED]} failed, {count[SKIPPED]} not claimed or not tried"
    print_answer(as_json, {**about, "status": status, **count, "sentence": sentence,
                           "items": [vars(each) for each in outcomes]}, [sentence])  # fmt: skip
    return status


def lines(outcome: ItemOutcome) -> list[str]:
    """Return an outcome as text for people."""
    word = "not claimed" if outcome.status == SKIPPED else outcome.status
    found = [f"{word:12} {outcome.name:20} {outcome.told}"]
    if outcome.status == FAILED:
        found += [f"{'':33} where: {outcome.where}", f"{'':33} -> {outcome.advice}"]
    return found


def _workload_for(system: str) -> str:
    provides = SYSTEMS.load(system).provides
    for name in _FIRST:
        if set(WORKLOADS.load(name).needs) <= provides:
            return name
    raise UsageError(f"{system} provides {', '.join(sorted(provides)) or 'nothing'}, which no workload here needs; "
                     "name one that sets it up: --workload FILE.py:CLASS")


def _run(test: Any, run_dir: Path, show: Callable[[ItemOutcome], None]) -> None:
    lock = RunLock(run_dir)
    note_owner(run_dir)
    runner = RunnerProcess(test, run_dir, lock, SUITE)
    try:
        for event in runner.events():
            show(ItemOutcome(**{key: value for key, value in event.items() if key != "event"}))
        runner.wait()
    except KeyboardInterrupt:
        print("\ninterrupted: ending the system", file=sys.stderr)
        runner.interrupt(lambda _: None)
        raise
    finally:
        runner.end()
        lock.release()
        for line in cleanup([run_dir.name], own=True):
            print(line, file=sys.stderr)
