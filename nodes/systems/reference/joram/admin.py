"""Administrative commands of joram: add a replica to the group, and remove one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from nodes.stomp import ProtocolError
from nodes.systems.reference.asking import ANSWER_SECONDS, ask_design, connect, parse_address
from stormproof.contracts.system import AdminAccess, AdminArgument, AdminCommand
from stormproof.errors import BackendError, UsageError

_POLL = 0.2


def add_replica(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
    """Have the master add a replica, and wait until it belongs to the group."""
    parse_address(given["clients"], "CLIENTS")
    links = parse_address(given["links"], "LINKS")
    asyncio.run(_add_replica(access, given["name"], links, given["clients"], given["wait"]))
    yield f"{given['name']} is one of the replicas"


async def _add_replica(access: AdminAccess, name: str, links: tuple[str, int], clients: str, wait: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    server, admin = access.server, connect(access)
    try:
        await admin.add_replica(name, links, clients, ANSWER_SECONDS)
        while name not in (status := await admin.status(ANSWER_SECONDS))["replicas"]:
            if name not in status["learners"]:
                raise BackendError(f"{server} is no longer master, {name} was not added; ask the master again")
            if loop.time() >= deadline:
                raise BackendError(
                    f"{name} has not caught up within {wait:g} s, and {server} continues to try; does it "
                    f"run with --join, and can {server} reach {links[0]}:{links[1]}?"
                )
            await asyncio.sleep(_POLL)
    except ProtocolError as error:
        raise UsageError(f"{name} was not added: {error}") from None
    except (OSError, TimeoutError, EOFError) as error:
        raise BackendError(f"{server} does not answer ({error or type(error).__name__}); is it running?") from None
    finally:
        admin.close()


def remove_replica(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
    """Have the master remove a replica from the group."""
    ask_design(access, {"op": "remove-replica", "name": given["name"]})
    yield f"{given['name']} is no longer one of the replicas; it may be stopped"


COMMANDS = (
    AdminCommand(
        "add-replica",
        "Let the group grow while it runs: the master at --server takes in a replica, which learns the state first. "
        "The new replica's configuration lists all replicas in `peers`, itself last, and has the option `join: true`; "
        "with a descriptor it is started with --join.",
        add_replica,
        (
            AdminArgument("name", "name of the new replica, which must be running"),
            AdminArgument("links", "host:port of its links"),
            AdminArgument("clients", "host:port of its clients"),
            AdminArgument("wait", "seconds to wait until it belongs to the group", float, 300.0, required=False),
        ),
    ),
    AdminCommand(
        "remove-replica",
        "Let the group go on without a replica: majorities are those of the others. One that runs follows on, serves "
        "nobody, and can be taken in again; the master itself is stopped first, and its successor asked.",
        remove_replica,
        (AdminArgument("name", "name of the replica"),),
    ),
)
