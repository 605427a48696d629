"""Administrators' requests to running brokers, one connection each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from nodes.stomp import ProtocolError
from nodes.systems.reference.admin_connection import AdminConnection
from stormproof.contracts.system import AdminAccess
from stormproof.errors import BackendError, UsageError

ANSWER_SECONDS = 5.0
LOGIN_HINT = ", and who you are with --login and --passcode (or STORMPROOF_PASSCODE)"
TROUBLE = (OSError, TimeoutError, EOFError, ProtocolError, ValueError)


def parse_address(text: str, what: str = "--server") -> tuple[str, int]:
    """Parse ``HOST:PORT`` into host and port; raises UsageError, which names ``what``, for anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{what} {text}: write it as host:port")
    return host, int(port)


def connect(access: AdminAccess, *, privileged: bool = True) -> AdminConnection:
    """Create a connection to the broker, opened by the first request; every replica admits ``privileged`` ones."""
    return AdminConnection(*parse_address(access.server), access.login, access.passcode, privileged=privileged)


def ask_design(access: AdminAccess, request: Mapping[str, Any], seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
    """Return the answer of a broker's design to a request.

    Raises:
        UsageError: the broker refuses it. BackendError: the broker does not answer.
    """
    try:
        answer = asyncio.run(asked(access, request, seconds))
    except TROUBLE as error:
        why = str(error) or type(error).__name__
        raise BackendError(f"{access.server} does not answer: {why}; name a running broker with "
                           f"--server{LOGIN_HINT}") from None
    if not answer.get("ok"):
        raise UsageError(f"{access.server}: {answer.get('error', 'refused')}")
    return answer


async def asked(access: AdminAccess, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return the answer of a broker's design to a request, refused or not; raises the exceptions in TROUBLE."""
    connection = connect(access)
    try:
        answer = await connection.design(request, seconds)
    finally:
        connection.close()
    if not isinstance(answer, dict):
        raise ProtocolError("the answer is not a JSON object")
    return answer


async def ask_status(server: str, access: AdminAccess) -> Mapping[str, Any] | str:
    """Return the status of the broker at ``server``, or the reason why there is none."""
    admin = connect(AdminAccess(server, access.login, access.passcode))
    try:
        return await admin.status(ANSWER_SECONDS)
    except TROUBLE as error:
        return str(error) or type(error).__name__
    finally:
        admin.close()
