"""Workloads: the operations of clients, and the coverage that a run must show before it is called valid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.draw import Draw
from stormproof.contracts.option import Option
from stormproof.contracts.workload_requirements import Demands
from stormproof.generator import Generator, lift
from stormproof.test import Test


class Workload(ABC):
    """Clients and the operations that they carry out; a new instance for each run.

    A subclass declares ``options``, the ``guarantees`` (checks) whose violation makes a run invalid, and the features
    that it ``needs`` from a system; it creates clients and generators. ``subject`` is the subject of its histories, if
    their functions alone don't determine it (``stormproof.vocabulary``). ``draws`` are the settings of the workload
    that the default campaign draws. ``run_dir`` is the folder of its run, once there is one: it records there whatever
    it creates elsewhere on this machine (``stormproof.resource_log``).
    """

    name: str = ""
    needs: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    guarantees: tuple[str, ...] = ()
    subject: str = ""
    draws: tuple[Draw, ...] = ()
    drawn: int = 1
    """Its weight in the draws of the default campaign."""
    run_dir: Path | None = None

    @classmethod
    @abstractmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Return the number of client threads.

        Raises:
            UsageError: the options make no sense.
        """

    @classmethod
    def judged_by(cls, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the guarantees by which runs with these options are judged: ``guarantees``, and those that options
        add."""
        return cls.guarantees

    @classmethod
    def names(cls, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of its histories' keys, in order, if a number is meaningless to people; else empty."""
        return ()

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """Return the objects that a system must set up for the workload."""
        return Demands()

    @classmethod
    def gates(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the coverage gates: the conditions on a run for its verdict to be *valid* (docs/checks.md)."""
        return {"faults_confirmed": True}

    @classmethod
    def prefetch(cls, options: Mapping[str, Any]) -> int | None:
        """Return how many unacknowledged messages a broker may send ahead to one of the workload's STOMP clients; None:
        unknown. Other clients' connections declare it themselves (``Prefetching``)."""
        return None

    @classmethod
    def hang_seconds(cls, test: Test) -> float:
        """Return the time after which an operation that does not end is cut off."""
        return 60.0

    async def survey(self, cluster: Cluster) -> None:
        """Find out what only the running system tells, once it is healthy; generators are made after that.

        Raises:
            StormproofError: the workload can't run there.
        """

    def before_load(self, test: Test) -> Generator:
        """Return the operations before the load, and before any fault."""
        return lift(None)

    @abstractmethod
    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread, located on the client host ``host``."""

    @abstractmethod
    def main(self, test: Test) -> Generator:
        """Return the load during the phase with faults."""

    def drain(self, test: Test) -> Generator:
        """Return the operations after the last heal: they read the remaining messages."""
        return lift(None)

    def facts(self) -> Mapping[str, Any]:
        """Return fields for the run's description, when the run has ended."""
        return {}

    def used(self) -> Mapping[str, int]:
        """Return how often the workload's clients have used each feature of the system, as far as it is counted, for
        the run's record. docs/reference/feature-coverage.md lists the features."""
        return {}

    def depth(self, test: Test) -> Generator:
        """Return the operations at the very end, without any clients left: they count the remaining messages."""
        return lift(None)

    def dead_letters(self, test: Test) -> Generator:
        """Return the operations after that which drain dead-letter queues (``DeadLettering``)."""
        return lift(None)
