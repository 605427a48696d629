"""Clients: one logical process's way to the system, and the four primitives that a queue of any system has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stormproof.operation import Op


class Client(Protocol):
    """One logical process's way to the system. After an ``info`` it is closed and a new one is opened."""

    async def open(self) -> None:
        """Connect; an exception here completes the operation as ``fail``."""

    async def invoke(self, op: Op) -> Op:
        """Carry out the operation and return its completion; an exception is recorded as ``info``."""
        ...

    async def close(self) -> None:
        """Disconnect; must not raise and must not hang."""


@runtime_checkable
class Flushable(Client, Protocol):
    """A client that may hold what was confirmed to it and is not safe yet."""

    async def flush(self) -> None:
        """Wait until all of it is safe, or can't be saved; no operation is under way. Must not raise.

        The interpreter calls it of a client that its thread has lost, before it closes it; and, when all faults
        are healed, of every client in use.
        """


class NotDone(Exception):
    """What was asked certainly did not happen; the text says why. Any other exception: it may have happened."""


@dataclass(frozen=True)
class Delivery:
    """A message that was taken from a queue; awaiting ``ack()`` takes it for good, or raises."""

    body: bytes
    ack: Callable[[], Awaitable[None]]


class QueueConnection(Protocol):
    """A connection to a broker of any kind, with the four primitives that the queue workload needs of it.

    The harness decides what an exception means for the history: ``NotDone`` is *fail*, whatever else *info*. It bounds
    every call, asks for one thing at a time, and closes a connection on which something went wrong.
    """

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, which decides on which side of a partition the client stands."""

    async def send(self, queue: str, body: bytes) -> None:
        """Put a message into a queue; returns when the broker has confirmed that it has it."""

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """The next message of a queue, None when none came within ``timeout`` seconds."""
        ...

    async def depth(self, queue: str) -> int:
        """How many messages a queue holds, delivered but unacknowledged ones included."""
        ...

    async def close(self) -> None:
        """Disconnect; must not raise."""
