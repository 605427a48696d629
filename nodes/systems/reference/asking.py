"""Administrators' questions to running brokers, one connection each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodes.stomp import ProtocolError
from nodes.systems.reference.admin_connection import AdminConnection
from stormproof.contracts.system import AdminAccess
from stormproof.errors import UsageError

ANSWER_SECONDS = 5.0
LOGIN_HINT = ", and who you are with --login and --passcode (or STORMPROOF_PASSCODE)"
TROUBLE = (OSError, TimeoutError, EOFError, ProtocolError, ValueError)


def parse_address(text: str, what: str = "--server") -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; raises UsageError for anything else, which names ``what``."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{what} {text}: write it as host:port")
    return host, int(port)


def connect(access: AdminAccess, *, privileged: bool = True) -> AdminConnection:
    """A connection to the broker, opened by the first question; ``privileged`` ones are let in by every replica."""
    return AdminConnection(*parse_address(access.server), access.login, access.passcode, privileged=privileged)


async def ask_status(server: str, access: AdminAccess) -> Mapping[str, Any] | str:
    """The status of the broker at ``server``, or why there is none."""
    admin = connect(AdminAccess(server, access.login, access.passcode))
    try:
        return await admin.status(ANSWER_SECONDS)
    except TROUBLE as error:
        return str(error) or type(error).__name__
    finally:
        admin.close()
