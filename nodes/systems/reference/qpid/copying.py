"""``copy-store``: after the loss of all brokers, copies the best store to all of them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from nodes.systems.reference.qpid.stores import Found, best_store
from stormproof.errors import UsageError

COPIES = "copies"
PERSONS = ("accepts", COPIES)
"""The administrator's choices for the best store: let its broker become primary, or copy it to all others."""


class Ask(Protocol):
    """Asks a broker, by name, raising UsageError when it refuses and BackendError when it does not answer."""

    def __call__(self, node: str, /, **request: Any) -> Awaitable[Mapping[str, Any]]:
        """Return the answer."""
        ...


def source_of_copy(found: Found, chosen: str = "") -> str:
    """Return the broker whose store is copied to all: the best, unless one is ``chosen``.

    Raises:
        UsageError: stores can't be copied now: a broker is missing, or has left the state ``connecting``.
    """
    for name, status in found.items():
        if isinstance(status, str):
            raise UsageError(f"{name}: {status}; all brokers must run for a copy, so that all stores become equal")
        if status["state"] != "connecting":
            raise UsageError(f"{name} is {status['state']}: stores are copied after the loss of all brokers, while "
                             "none is primary")
    if chosen and chosen not in found:
        raise UsageError(f"--source {chosen}: no such broker (known: {', '.join(found)})")
    source = chosen or best_store(found)
    if source is None:
        raise UsageError("no store is best, because none of the stores is a primary's; choose one with --source")
    return source


async def copy_store(ask: Ask, source: str, targets: Sequence[str],
                     token: Callable[[int], str] = secrets.token_hex) -> int:
    """Copy one broker's store to the others; return its size in bytes. ``token`` creates a new name of that many bytes.

    Raises:
        UsageError, BackendError: one broker refused, or did not answer; the copy can be restarted.
    """
    copy, number, size = token(8), 0, 0
    while True:
        read = await ask(source, op="read-store", copy=copy, piece=number)
        data = str(read["data"])
        await asyncio.gather(*(ask(node, op="write-store", copy=copy, piece=number, data=data) for node in targets))
        size += len(data) * 3 // 4
        number += 1
        if not data:
            break
    # The source is last: as long as one store is not clean, no broker starts from the others.
    uuid = token(16)
    stamp = {"op": "stamp-store", "copy": copy, "piece": number, "uuid": uuid, "generation": read["generation"]}
    await asyncio.gather(*(ask(node, **stamp) for node in targets))
    await ask(source, **stamp)
    return size
