"""Administrative commands of a qpid cluster, as with ``qpid-ha``: status, promotion, shutdown, repair of stores."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from nodes.reference.designs.qpid.store_status import first_start
from nodes.systems.reference.asking import ANSWER_SECONDS, TROUBLE, ask_design, asked, connect, parse_address
from nodes.systems.reference.qpid.copying import copy_store, source_of_copy
from nodes.systems.reference.qpid.stores import Status, best_store, describe, propagation
from stormproof.contracts.system import AdminAccess, AdminArgument, AdminCommand
from stormproof.errors import BackendError, UsageError

SHUTDOWN_SECONDS = 60.0
"""Time limit of a shutdown, which waits until every backup has everything."""
COPY_SECONDS = 30.0
"""Time limit for a broker to store a piece of a store; the first piece empties the broker's own store."""


def ask(access: AdminAccess, seconds: float = ANSWER_SECONDS, **request: Any) -> Status:
    """Send one request to a broker's design.

    Raises:
        UsageError: the broker refuses it. BackendError: the broker does not answer.
    """
    return ask_design(access, request, seconds)


def statuses(access: AdminAccess) -> dict[str, Status | str]:
    """Return the status of each broker that the one at ``server`` knows, or the reason why there is none."""
    found: dict[str, Status | str] = {}
    for name, address in dict(ask(access, op="status")["clients"]).items():
        try:
            found[name] = ask(AdminAccess(str(address), access.login, access.passcode), op="status")
        except (UsageError, BackendError) as error:
            found[name] = str(error)
    return found


def show(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
    """Print every broker's state and store; for the primary, also the backups that have everything, and the
    configuration changes that have propagated."""
    found = statuses(access)
    for name, status in found.items():
        yield describe(name, status)
        if not isinstance(status, str) and status["state"] == "primary":
            yield from propagation(name, status, found)


def list_objects(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
    """List the objects at one broker; if it is a backup, these have propagated to it [LC2, case b]."""
    after = ""
    while True:
        answer = ask(access, op="list", after=after, **({"kind": given["kind"]} if given["kind"] else {}))
        for kind, name, arguments in answer["objects"]:
            parts = name.split("\n")  # a binding's parts are its arguments
            said = [f"{key}={value}" for key, value in arguments.items() if key != "created" and len(parts) == 1]
            yield " ".join((kind, *filter(None, parts), *said))
        after = answer["more"]
        if not after:
            return


def promote(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
    """Make the broker at ``server`` primary.

    Two kinds of start need no backup that was ready: the first start of an empty cluster, and one from stores that are
    all clean with one identifier. The command asks every broker whether this is such a start.
    """
    found = statuses(access)
    serving = [name for name, status in found.items() if not isinstance(status, str) and status["state"] == "primary"]
    if serving and not given["force"]:
        raise UsageError(f"{serving[0]} is primary already; stop it first, or use --force")
    stores = [None if isinstance(status, str) else status["store"] for status in found.values()]
    ask(access, op="promote", bootstrap=first_start(stores), force=bool(given["force"]))
    yield f"{access.server} is primary"


def shutdown(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
    """Shut the whole cluster down in order; the broker at ``server`` must be primary."""
    answer = ask(access, SHUTDOWN_SECONDS, op="shutdown")
    yield (f"clean, {answer['uuid']}: {', '.join(answer.get('clean', []))}; managers end with their brokers now; stop "
           "brokers that have no manager")


def name_best_store(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
    """List every store, and name the best one after the loss of all brokers."""
    found = statuses(access)
    yield from (describe(name, status) for name, status in found.items())
    silent = [name for name, status in found.items() if isinstance(status, str)]
    best = best_store(found)
    if best is None:
        raise UsageError("no store is best: none of them is a primary's")
    yield f"best: {best}" + (f" (of those that answered; {', '.join(silent)} did not)" if silent else "")


def copy(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
    """Copy the best store to all other brokers, which restart from it [Recovering from total crash]."""
    found = statuses(access)
    source = source_of_copy(found, given["source"])
    yield from (describe(name, status) for name, status in found.items())
    targets = [name for name in found if name != source]
    yield f"copying the store of {source} to {', '.join(targets)}"
    size = asyncio.run(_copied(access, source, targets))
    yield f"{size} bytes; the stores of {', '.join(found)} are clean and alike: managers start from them by " \
          "themselves, without managers start the brokers that ended, and promote one"


async def _copied(access: AdminAccess, source: str, targets: Sequence[str]) -> int:
    addresses = dict((await asked(access, {"op": "status"}, ANSWER_SECONDS))["clients"])
    connections = {name: connect(AdminAccess(str(addresses[name]), access.login, access.passcode))
                   for name in (source, *targets)}

    async def ask_one(node: str, /, **request: Any) -> Status:
        try:
            answer = await connections[node].design(request, COPY_SECONDS)
        except TROUBLE as error:
            raise BackendError(f"{node} does not answer: {error or type(error).__name__}; run the command again when "
                               "all brokers run") from None
        if not answer.get("ok"):
            raise UsageError(f"{node}: {answer.get('error', 'refused')}")
        return dict(answer)

    try:
        return await copy_store(ask_one, source, targets)
    finally:
        for connection in connections.values():
            connection.close()


def _store_command(op: str, done: str) -> Callable[[AdminAccess, Mapping[str, Any]], Iterable[str]]:
    def run(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
        ask(access, op=op)
        yield f"{access.server}: {done}"

    return run


def _url_command(op: str) -> Callable[[AdminAccess, Mapping[str, Any]], Iterable[str]]:
    def run(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
        addresses = {}
        for part in given["addresses"]:
            name, equals, address = part.partition("=")
            if not equals or not name:
                raise UsageError(f"{part}: write it as NAME=HOST:PORT")
            addresses[name] = list(parse_address(address, name))
        ask(access, op=op, addresses=addresses)
        yield f"{access.server}: {json.dumps(addresses)}"

    return run


_ADDRESSES = AdminArgument("addresses", "NAME=HOST:PORT of every broker", several=True)

COMMANDS = (
    AdminCommand("status", "Print every broker's state and store, and which backups have all that is confirmed.", show),
    AdminCommand("list", "Print the queues, exchanges and bindings of the broker at --server, a backup's too.",
                 list_objects, (AdminArgument("kind", "queue, exchange or binding; all if empty", str, "",
                                              required=False),)),
    AdminCommand("promote", "Make the broker at --server primary.", promote,
                 (AdminArgument("force", "1: although it may lack something", int, 0, required=False),)),
    AdminCommand("shutdown", "End the whole cluster in order, so that it can start again by itself.", shutdown),
    AdminCommand("best-store", "After the loss of all brokers: print every store, and which is the best.",
                 name_best_store),
    AdminCommand("copy-store", "After the loss of all brokers: copy the best store to all others.", copy,
                 (AdminArgument("source", "the broker whose store it is, instead of the best", str, "",
                                required=False),)),
    AdminCommand("accept-store", "Let the broker at --server, started from a dirty store, be primary with it.",
                 _store_command("accept-store", "its store is accepted")),
    AdminCommand("erase-store", "Erase the store of the broker at --server, which then catches up.",
                 _store_command("erase-store", "its store is empty")),
    AdminCommand("set-broker-url", "Tell the broker at --server where all brokers' links are, itself included.",
                 _url_command("set-broker-url"), (_ADDRESSES,)),
    AdminCommand("set-client-url", "Tell the broker at --server where clients find all brokers.",
                 _url_command("set-client-url"), (_ADDRESSES,)),
)  # fmt: skip
