"""Administrative commands of an enterprise server: show its status, and take decisions that servers may not take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nodes.systems.reference.asking import ask_design
from stormproof.contracts.system import AdminAccess, AdminArgument, AdminCommand
from stormproof.errors import BackendError, UsageError


def show(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
    """Show both servers' states and repositories."""
    for name, address in dict(ask_design(access, {"op": "status"})["clients"]).items():
        try:
            yield describe(name, ask_design(AdminAccess(str(address), access.login, access.passcode), {"op": "status"}))
        except (UsageError, BackendError) as error:
            yield f"{name}: {error}"


def describe(name: str, status: Mapping[str, Any]) -> str:
    """Describe a server in one line."""
    epoch, counter = status["repository"]
    words = [f"{name}: {status['state']}, was {status['previous']}", "primary" if status["primary"] else "secondary"]
    words.append(f"lock held, epoch {status['lock epoch']}" if status["lock"] else "no lock")
    words.append(f"channel, peer {status['peer']}" if status["channel"] else "no channel")
    if status["mode"] == "replicated":
        whole = "whole" if status["whole"] else "not whole (a synchronisation was broken off)"
        words.append(f"repository {whole}, epoch {epoch}, change {counter}")
    return "; ".join(words)


def accept(access: AdminAccess, given: Mapping[str, Any]) -> Iterator[str]:
    """Declare the repository of the server at ``server`` the valid one; all changes that it lacks are lost."""
    answer = ask_design(access, {"op": "accept", "alone": bool(given["alone"])})
    yield f"{access.server}: its repository is accepted; it is {answer['state']}, and serves when it has the lock"


COMMANDS = (
    AdminCommand("status", "Print both servers' states, locks and repositories.", show),
    AdminCommand("accept", "Where both servers wait and neither repository may be used: go on with that of the server "
                 "at --server; what it lacks is lost.", accept,
                 (AdminArgument("alone", "1: without the other server, which will not come back with what it has", int,
                                0, required=False),)),
)  # fmt: skip
