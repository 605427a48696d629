"""Questions to Artemis's management by STOMP.

(Artemis User Manual: "Management", *The Management API*; "STOMP", *Sending messages for management*.)
"""

from __future__ import annotations

import asyncio
import json
import secrets

from nodes.stomp import Frame
from nodes.systems.artemis.configuration import ANSWERS
from nodes.timeouts import within
from stormproof.clients.stomp import StompConnection
from stormproof.contracts.backend import Credentials
from stormproof.contracts.protocol_client import Access
from stormproof.errors import BackendError
from stormproof.shell_system import Machine

ADDRESS = "activemq.management"
ASK_SECONDS = 3.0
"""The time limit for a connection and its questions: a broker that waits for its replica answers later."""


class Management(StompConnection):
    """A connection that reads attributes of the broker's resources."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__(Access(credentials), prefix="")
        self._name = secrets.token_hex(8)

    async def attribute(self, resource: str, attribute: str) -> object:
        """Return an attribute of a resource: ``broker``, or ``queue.NAME``.

        Raises:
            BackendError: the broker refused. ConnectionError: it closed the connection.
        """
        if self._name not in self._messages:
            self._messages[self._name] = asyncio.Queue()
            await self._request(Frame("SUBSCRIBE", {
                "id": self._name, "destination": ANSWERS, "ack": "auto", "subscription-type": "ANYCAST",
                "selector": f"JMSCorrelationID = '{self._name}'"}))  # fmt: skip
        await self._request(Frame("SEND", {
            "destination": ADDRESS, "reply-to": ANSWERS, "correlation-id": self._name,
            "_AMQ_ResourceName": resource, "_AMQ_Attribute": attribute}))  # fmt: skip
        found = await self.arrival(self._name, ASK_SECONDS)
        if found is None:
            raise TimeoutError(f"no answer about {resource}")
        frame, _ = found
        if frame.headers.get("_AMQ_OperationSucceeded") == "false":
            raise BackendError(f"{resource}: {frame.body.decode(errors='replace')[:200]}")
        (value,) = json.loads(frame.body)
        return value


async def ask(machine: Machine, *questions: tuple[str, str]) -> list[object]:
    """Return attributes (resource, attribute) of the broker on a machine.

    Raises:
        ConnectionRefusedError: it does not serve. OSError, TimeoutError, BackendError: it does not answer.
    """
    connection = Management(machine.credentials)
    try:
        async with within(ASK_SECONDS):
            await connection.connect(machine.address, machine.port, "")
            return [await connection.attribute(*question) for question in questions]
    finally:
        await connection.close()
