"""A client of queues on RabbitMQ, by STOMP.

(RabbitMQ's documentation 3.10: "STOMP Plugin"; "Quorum Queues", *Poison Message Handling*: ``x-delivery-count``.)
"""

from __future__ import annotations

from collections.abc import Mapping

from nodes.stomp import Frame
from nodes.systems.stomp_connection import Depth, StompQueues
from stormproof.contracts.backend import Credentials

USER = PASSWORD = "stormproof"
OURS = Credentials(USER, PASSWORD)
DELIVERY_COUNT = "x-delivery-count"
"""The header in which a quorum queue reports how often it had to take a message back; a new message lacks it."""


class RabbitQueues(StompQueues):
    """One client's connection to existing queues, or, with ``made_as``, to queues that are created by their first use.

    Args:
        depth: asks for a queue's depth.
        counted: the queues are quorum queues, which count deliveries.
        heartbeat: seconds between two heart-beats of the client; the broker drops a client after two missed ones.
        credentials: user and password.
        made_as: headers that define how queues are created ("STOMP Plugin", *User Generated Queue Names*).
    """

    def __init__(self, depth: Depth, counted: bool, heartbeat: float, credentials: Credentials = OURS,
                 made_as: Mapping[str, str] | None = None) -> None:  # fmt: skip
        place, made = ("/amq/queue/{}", {}) if made_as is None else ("/queue/{}", made_as)
        super().__init__(place.format, depth, login=(credentials.login, credentials.passcode),
                         sending={"persistent": "true", **made}, subscribing={"prefetch-count": "1", **made},
                         heartbeat=heartbeat)  # fmt: skip
        self._counted = counted

    def number_of(self, frame: Frame) -> int | None:
        """Return one more than the number of times that the queue had to take the message back: the group of the
        queue's replicas agrees on that, as on the message itself. A classic queue reports only whether there were any.
        """
        return int(frame.headers.get(DELIVERY_COUNT, "0")) + 1 if self._counted else None
