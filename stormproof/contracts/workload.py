"""Workloads: what clients do, and what a run must show before it is called valid."""

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

    A subclass declares ``options``, the ``guarantees`` (checks) that make a run invalid when they are violated, and
    what it ``needs`` of a system; it makes clients and generators. ``subject`` is what its histories are about,
    where their functions alone don't tell (``stormproof.vocabulary``). ``draws`` is what the default campaign draws
    of its settings. ``run_dir`` is where its run is recorded, once it has one: whatever it makes elsewhere on this
    machine is noted there (``stormproof.resource_log``).
    """

    name: str = ""
    needs: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    guarantees: tuple[str, ...] = ()
    subject: str = ""
    draws: tuple[Draw, ...] = ()
    drawn: int = 1
    """How often the default campaign draws it, compared with others."""
    run_dir: Path | None = None

    @classmethod
    @abstractmethod
    def concurrency(cls, options: Mapping[str, Any]) -> int:
        """Number of client threads.

        Raises:
            UsageError: the options make no sense.
        """

    @classmethod
    def judged_by(cls, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The guarantees that runs with these options are judged by: ``guarantees``, and what options add."""
        return cls.guarantees

    @classmethod
    def names(cls, options: Mapping[str, Any]) -> tuple[str, ...]:
        """What the keys of its histories stand for, in order, where a number tells people nothing; else empty."""
        return ()

    @classmethod
    def demands(cls, options: Mapping[str, Any]) -> Demands:
        """What a system has to set up for it."""
        return Demands()

    @classmethod
    def gates(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Coverage gates: what a run must have done for its verdict to be *valid* (docs/checks.md)."""
        return {"faults_confirmed": True}

    @classmethod
    def prefetch(cls, options: Mapping[str, Any]) -> int | None:
        """How many messages a broker may give one of its STOMP clients ahead of their acknowledgement; None: nobody
        knows. Other clients' connections say it themselves (``Prefetching``)."""
        return None

    @abstractmethod
    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """A client for one process of a thread, which stands at the client host ``host``."""

    @abstractmethod
    def main(self, test: Test) -> Generator:
        """The load, while faults come and go."""

    def drain(self, test: Test) -> Generator:
        """Afterwards, when everything is healed: reads what is left."""
        return lift(None)

    def used(self) -> Mapping[str, int]:
        """How often its clients have used each item of what the system offers (docs/reference/feature-coverage.md), as
        far as it counts them: the run's record tells it."""
        return {}

    def depth(self, test: Test) -> Generator:
        """At the very end, when all clients are gone: counts what is left."""
        return lift(None)
